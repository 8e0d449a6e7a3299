"""When a device becomes unhealthy, and when it recovers."""

from collections.abc import Sequence

import pytest

from gpu_scheduler.agent.devices.health import (
    APPLICATION_XIDS,
    FATAL_XIDS,
    NOTED_XIDS,
    DeviceHealth,
    Recovery,
    is_fatal,
    updated_health,
)
from gpu_scheduler.agent.devices.source import Reading

RULE = Recovery(after_fault_s=60, after_error_s=600, most_s=2000, forget_s=86_400)


def looked(
    looks: Sequence[tuple[float, Reading]], trust: DeviceHealth | None = None
) -> DeviceHealth:
    trust = trust or DeviceHealth()
    for now, reading in looks:
        trust = updated_health(trust, reading, now, RULE)
    return trust


def well(**values: object) -> Reading:
    return Reading(index=0, **values)  # type: ignore[arg-type]


def test_device_without_errors_is_healthy() -> None:
    assert looked([(0, well()), (5, well(ecc_errors=0))]).healthy


def test_xid_tables_do_not_overlap() -> None:
    assert not (APPLICATION_XIDS.keys() & FATAL_XIDS.keys())
    assert not (NOTED_XIDS.keys() & (FATAL_XIDS.keys() | APPLICATION_XIDS.keys()))


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 94])
def test_application_and_corrected_errors_leave_device_healthy(xid: int) -> None:
    assert looked([(0, well(xids=(xid,)))]).healthy


@pytest.mark.parametrize("xid", [48, 62, 74, 79, 95, 119, 777])
def test_fatal_or_unknown_error_makes_device_unhealthy(xid: int) -> None:
    trust = looked([(0, well(xids=(13, xid)))])
    assert not trust.healthy
    assert trust.why.startswith(f"XID {xid}: ")
    assert is_fatal(xid)


def test_device_recovers_after_quiet_period() -> None:
    trust = looked([(0, well(xids=(48,))), (599, well())])
    assert not trust.healthy
    assert looked([(600, well())], trust).healthy


def test_each_error_within_a_day_doubles_quiet_period() -> None:
    trust = looked([(0, well(xids=(48,))), (600, well()), (1000, well(xids=(48,)))])
    assert trust.until == 1000 + 1200
    assert looked([(3000, well()), (4000, well(xids=(48,)))], trust).until == 4000 + 2000
    assert looked([(200_000, well(xids=(48,)))], trust).until == 200_600


def test_only_new_uncorrected_ecc_errors_make_device_unhealthy() -> None:
    trust = looked([(0, well(ecc_errors=7)), (5, well(ecc_errors=7))])
    assert trust.healthy
    trust = looked([(10, well(ecc_errors=9))], trust)
    assert trust.why == "2 new uncorrected ECC errors"
    assert looked([(15, well(ecc_errors=None)), (20, well(ecc_errors=9))], trust).until == 610


def test_counter_reset_indicates_device_reset() -> None:
    trust = looked([(0, well(ecc_errors=0)), (5, well(ecc_errors=1)), (10, well(ecc_errors=0))])
    assert trust.healthy


def test_fault_lasts_while_it_is_present() -> None:
    lost = well(fault="lost", needs_reset=True)
    trust = looked([(now, lost) for now in range(0, 100_000, 1000)])
    assert trust.why == "lost"


def test_reset_device_is_observed_for_short_period() -> None:
    lost = well(fault="lost", needs_reset=True, xids=(79,))
    trust = looked([(0, lost), (5, well(fault="lost", needs_reset=True)), (10, well())])
    assert trust.why == "watched after: lost"
    assert trust.until == 70
    assert not looked([(69, well())], trust).healthy
    assert looked([(70, well())], trust).healthy


def test_transient_fault_does_not_shorten_quiet_period() -> None:
    trust = looked([(0, well(xids=(48,))), (5, well(fault="unknown")), (10, well())])
    assert trust.until == 600
