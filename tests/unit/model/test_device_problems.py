"""Reasons why a device is unavailable, in words."""

import pytest

from gpu_scheduler.model.node import ForeignUse, Health, device_problem
from tests.builders import a_device

SET_ASIDE = "different jobs kept dying on it at once; resume-gpu gives it back"
EVE = ForeignUse(pid=7, user="eve", command="python3", memory_mb=900)
LEFT = ForeignUse(pid=7, user="ada", memory_mb=900, leaked=True, job="job-12")


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ({}, ""),
        ({"health": Health.UNHEALTHY, "why": "XID 79: it is gone"}, "XID 79: it is gone"),
        ({"health": Health.UNHEALTHY}, "it is not to be trusted"),
        ({"quarantined": True}, SET_ASIDE),
        ({"paused": True, "foreign": EVE}, "an admin has paused it"),
        ({"foreign": EVE}, "process 7 (python3) of eve holds 900 MiB"),
        ({"foreign": ForeignUse(pid=8)}, "process 8 holds it"),
        (
            {"foreign": ForeignUse(pid=0, memory_mb=5)},
            "a process that the agent cannot see holds 5 MiB",
        ),
        ({"foreign": LEFT}, "job 12 is over, and process 7 of ada still holds 900 MiB"),
        (
            {"foreign": ForeignUse(pid=7, leaked=True)},
            "the job is over, and process 7 still holds it",
        ),
        (
            {"foreign": ForeignUse(pid=0, memory_mb=5, leaked=True)},
            "5 MiB were not given back by the last job, and no process holds them",
        ),
        (
            {"hot": True, "temperature_c": 91},
            "it became hot (91 C) and rests until it has cooled down",
        ),
    ],
)
def test_device_explains_why_it_is_unavailable(device: dict[str, object], told: str) -> None:
    assert device_problem(a_device(**device)) == told
