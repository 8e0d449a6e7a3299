"""Launcher messages round-trip through JSON, and invalid lines are rejected."""

import json

import pytest

from gpu_scheduler.agent.launcher_protocol import (
    Began,
    Over,
    Report,
    Saved,
    Work,
    WorkDevice,
    WorkTerminal,
    decode_line,
    decode_over,
    decode_report,
    decode_work,
    encode_line,
    encode_report,
    encode_work,
)

FULL = Work(
    allocation_id="job-12_4.1",
    member=2,
    argv=("python", "train.py", "--name", "a b\n"),
    environment={"A": "ü\n=", "EMPTY": ""},
    devices=(WorkDevice(index=3, uuid="GPU-1", path="/dev/nvidia3", share_milli=500),),
    mounts=(("/data", "/data", True),),
    closed_devices=("/dev/nvidia0",),
    cpus=(0, 1),
    prolog=("/etc/prolog", "x"),
    limit_ms=1000,
    terminal=WorkTerminal(rows=50, idle_ms=1000, keep=False),
)


@pytest.mark.parametrize("work", [FULL, Work(allocation_id="a", argv=("true",))])
def test_work_round_trips(work: Work) -> None:
    assert decode_work(json.loads(encode_line(encode_work(work)))) == work


def test_default_values_are_omitted() -> None:
    form = encode_work(Work(allocation_id="a", argv=("true",)))
    assert form == {"allocation_id": "a", "member": 0, "argv": ("true",)}


@pytest.mark.parametrize(
    "report",
    [
        Began(allocation_id="a", member=0, pid=7, at_ms=1),
        Saved(allocation_id="a", member=1, at_ms=2),
        Over(
            allocation_id="a",
            member=0,
            exit_code=None,
            signal=9,
            ran=True,
            at_ms=3,
            run_ms=4,
            stopped_by="timeout",
            detail="x",
        ),
    ],
)
def test_reports_round_trip(report: Report) -> None:
    assert decode_report(decode_line(encode_line(encode_report(report)))) == report


def test_missing_end_is_none() -> None:
    assert decode_over(None) is None


@pytest.mark.parametrize(
    "form",
    [
        7,
        {},
        {"allocation_id": "a"},
        {"allocation_id": "", "argv": ["x"]},
        {"allocation_id": "../x", "argv": ["x"]},
        {"allocation_id": "..", "argv": ["x"]},
        {"allocation_id": "a", "argv": 5},
        {"allocation_id": "a", "argv": ["x\0y"]},
        {"allocation_id": "a", "argv": [1]},
        {"allocation_id": "a", "argv": ["x"], "uid": "0"},
        {"allocation_id": "a", "argv": ["x"], "workdir": 1},
        {"allocation_id": "a", "argv": ["x"], "unknown": 1},
        {"allocation_id": "a", "argv": ["x"], "mounts": [["a"]]},
        {"allocation_id": "a", "argv": ["x"], "devices": [{"colour": 1}]},
        {"allocation_id": "a", "argv": ["x"], "environment": {"A": 1}},
    ],
)
def test_invalid_work_is_rejected(form: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_work(form)


@pytest.mark.parametrize("form", [{"report": "won"}, {"report": "began"}])
def test_invalid_report_is_rejected(form: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="report"):
        decode_report(form)


def test_line_must_hold_an_object() -> None:
    with pytest.raises(ValueError, match="list"):
        decode_line(b"[]\n")
