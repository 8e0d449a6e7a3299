"""Invalid services, readiness probes and reservations are rejected on construction."""

from typing import Any

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.launch import Probe, ProbeKind
from gpu_scheduler.model.plan import LONGEST_MS, AdvanceReservation
from gpu_scheduler.model.service import RestartRule


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({"kind": ProbeKind.HTTP, "path": "health"}, "absolute path", id="path"),
        pytest.param({"kind": ProbeKind.HTTP, "path": "/a b"}, "absolute path", id="space"),
        pytest.param({"kind": ProbeKind.HTTP, "path": "/a\r\nX: y"}, "absolute path", id="newline"),
        pytest.param({"kind": ProbeKind.TCP, "failures": 0}, "1 failure or more", id="failures"),
        pytest.param({"kind": ProbeKind.COMMAND}, "needs a command", id="no-command"),
        pytest.param({"kind": ProbeKind.TCP, "argv": ("x",)}, "no other does", id="command"),
        pytest.param({"kind": ProbeKind.COMMAND, "argv": ("a\0b",)}, "NUL character", id="nul"),
        pytest.param(
            {"kind": ProbeKind.TCP, "interval_ms": 99}, "interval of 0.1 s", id="interval"
        ),
    ],
)
def test_invalid_probe_is_rejected(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        Probe(**given)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"backoff_ms": 0}, id="none"),
        pytest.param({"backoff_ms": 2_000, "max_backoff_ms": 1_000}, id="more-than-most"),
        pytest.param({"reset_after_ms": 0}, id="no-good-run"),
    ],
)
def test_restart_backoff_must_be_positive(given: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="restart back-off"):
        RestartRule(**given)


def a_window(**changes: Any) -> AdvanceReservation:
    values: dict[str, Any] = {
        "id": "r1",
        "number": 1,
        "tenant": "vision",
        "start_ms": 1_000,
        "end_ms": 2_000,
        "devices": (("n0", (0, 1)),),
    }
    return AdvanceReservation(**(values | changes))


@pytest.mark.parametrize(
    "end_ms", [1_000, 999, 1_001 + LONGEST_MS], ids=["no-time", "backwards", "for-ever"]
)
def test_reservation_has_bounded_duration(end_ms: int) -> None:
    with pytest.raises(InvalidRequest, match="more than 0 and at most a year"):
        a_window(end_ms=end_ms)


@pytest.mark.parametrize("devices", [(), (("n0", ()),)], ids=["no-node", "no-device"])
def test_reservation_needs_gpus(devices: tuple[Any, ...]) -> None:
    assert a_window().gpu_count == 2
    with pytest.raises(InvalidRequest, match="reservation r1 has no GPU"):
        a_window(devices=devices)
