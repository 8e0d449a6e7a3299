"""Machines and their devices."""

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.node import (
    DeviceMode,
    ForeignUse,
    Health,
    is_hot_after,
)
from tests.builders import a_device, a_mig_device, a_node


@pytest.mark.parametrize(
    ("was_hot", "temperature_c", "hot"),
    [
        (False, 85, False),
        (False, 86, True),
        (True, 86, True),
        (True, 81, True),
        (True, 80, False),
        (False, 81, False),
    ],
)
def test_device_becomes_hot_above_threshold_and_cool_well_below(
    was_hot, temperature_c, hot
) -> None:
    assert (
        is_hot_after(was_hot=was_hot, temperature_c=temperature_c, threshold_c=85, hysteresis_c=5)
        is hot
    )


def test_temperature_around_threshold_changes_state_once() -> None:
    hot, answers = False, []
    for temperature_c in (84, 86, 84, 86, 83, 86):
        hot = is_hot_after(was_hot=hot, temperature_c=temperature_c, threshold_c=85, hysteresis_c=5)
        answers.append(hot)
    assert answers == [False, True, True, True, True, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"health": Health.UNHEALTHY},
        {"paused": True},
        {"hot": True},
        {"foreign": ForeignUse(pid=1, user="eve")},
    ],
)
def test_unfit_device_takes_no_jobs(changes) -> None:
    assert a_device().takes_work
    assert not a_device(**changes).takes_work


@pytest.mark.parametrize("changes", [{"index": -1}, {"memory_mb": -1}])
def test_device_with_negative_amounts_is_rejected(changes) -> None:
    with pytest.raises(InvalidRequest, match="both must be 0 or more"):
        a_device(**changes)


def test_mig_mode_and_slices_go_together() -> None:
    assert a_mig_device().mig_slices == (("1g.10gb", 7),)
    with pytest.raises(InvalidRequest, match="MIG mode and MIG slices go together"):
        a_device(mode=DeviceMode.MIG)
    with pytest.raises(InvalidRequest, match="MIG mode and MIG slices go together"):
        a_device(mig_slices=(("1g.10gb", 7),))


@pytest.mark.parametrize("changes", [{"cpus": -1}, {"memory_mb": -1}, {"ordinal": -1}])
def test_node_with_negative_amounts_is_rejected(changes) -> None:
    with pytest.raises(InvalidRequest, match="CPU, memory and ordinal must be 0 or more"):
        a_node(**changes)


def test_duplicate_device_index_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="two devices have the same index"):
        a_node(devices=[a_device(index=1), a_device(index=1)])


def test_node_counts_its_devices() -> None:
    assert a_node(gpus=3).gpu_count == 3
