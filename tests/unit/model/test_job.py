"""Jobs: contradictory fields are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import (
    PRIORITY_NAMES,
    Array,
    Dependency,
    DependencyKind,
    parse_priority,
    split_over_nodes,
)
from gpu_scheduler.model.request import Request
from tests.builders import a_job, a_request, an_array


def test_gang_without_minimum_needs_all_members() -> None:
    gang = a_job(gpus=2, members=3)
    assert (gang.min_members, gang.is_gang, gang.gpu_milli) == (3, True, 6000)
    assert not a_job().is_gang


def test_array_counts_its_tasks() -> None:
    assert an_array(tasks="0-9:3").task_count == 4
    assert a_job().task_count == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": 0}, "has no members; a gang needs at least one"),
        ({"members": 2, "min_members": 3}, "wants at least 3 of 2 members"),
        ({"members": 2, "min_members": -1}, "wants at least -1 of 2 members"),
        ({"priority": -1}, "has priority -1; allowed is 0 to 10000"),
        ({"priority": 10_001}, "has priority 10001; allowed is 0 to 10000"),
        ({"max_runtime_ms": -1}, "has max_runtime_ms -1; it must be 0 or more"),
        ({"estimate_ms": -1}, "has estimate_ms -1"),
        ({"deadline_ms": -1}, "has deadline_ms -1"),
        ({"begin_ms": -1}, "has begin_ms -1"),
        ({"retries": -1}, "has retries -1"),
        (
            {"dependencies": (Dependency(DependencyKind.AFTER_OK, "j1"),)},
            "j1 depends on itself; remove that dependency",
        ),
    ],
)
def test_contradictory_job_is_rejected(changes, message) -> None:
    with pytest.raises(InvalidRequest, match=message):
        a_job(number=1, **changes)


def test_array_without_tasks_or_with_negative_limit_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="the array has no tasks; write for example 0-99"):
        Array(tasks=IntervalSet())
    with pytest.raises(InvalidRequest, match="the array's limit is -1; it must be 0 or more"):
        Array(tasks=IntervalSet.parse("0"), max_running=-1)


# --- larger than a node


def test_request_larger_than_node_becomes_whole_nodes_and_remainder() -> None:
    parts = split_over_nodes(a_request(gpus=20, cpus=40, memory_mb=200), 8)
    assert [(p.gpu_count, p.cpu_milli, p.memory_mb) for p in parts] == [
        (8, 16_000, 80),
        (8, 16_000, 80),
        (4, 8_000, 40),
    ]


def test_multiple_of_node_leaves_no_remainder() -> None:
    assert [part.gpu_count for part in split_over_nodes(a_request(gpus=16), 8)] == [8, 8]


@pytest.mark.parametrize(
    "request_",
    [
        a_request(gpus=8),
        a_request(gpus=1.5),
        a_request(gpus=9, mig_profile="1g.10gb"),
        a_request(gpus=8.5),
        a_request(gpus=0, cpus=4),
    ],
)
def test_request_that_fits_node_or_shares_devices_is_not_split(request_: Request) -> None:
    assert split_over_nodes(request_, 8) == (request_,)


def test_nothing_is_split_without_nodes() -> None:
    assert split_over_nodes(a_request(gpus=16), 0) == (a_request(gpus=16),)


@given(st.integers(1, 200), st.integers(1, 16), st.integers(0, 500), st.integers(0, 10**6))
def test_splitting_over_nodes_loses_nothing(gpus, node_gpus, cpus, memory_mb) -> None:
    request = a_request(gpus=gpus, cpus=cpus, memory_mb=memory_mb)
    parts = split_over_nodes(request, node_gpus)
    assert sum(part.gpu_count for part in parts) == gpus
    assert all(part.gpu_count <= node_gpus for part in parts)
    assert sum(part.cpu_milli for part in parts) >= request.cpu_milli
    assert sum(part.memory_mb for part in parts) >= memory_mb


# --- priorities


@pytest.mark.parametrize(
    ("written", "priority"),
    [
        ("low", 250),
        (" Normal ", 750),
        ("HIGH", 1500),
        ("urgent", 2500),
        ("0", 0),
        (1000, 1000),
        ("10000", 10_000),
    ],
)
def test_priority_is_name_or_number(written, priority) -> None:
    assert parse_priority(written) == priority


@pytest.mark.parametrize(("written", "priority"), [(0, 0), (5, 750), ("10", 1500), (11, 11)])
def test_short_scale_goes_from_0_to_10_with_5_as_normal(written, priority) -> None:
    assert parse_priority(written, short_scale=True) == priority


def test_unknown_priority_is_rejected_with_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=f"write {', '.join(PRIORITY_NAMES)} or a number"):
        parse_priority("huge")
    with pytest.raises(InvalidRequest, match="priority '-1' is not known"):
        parse_priority(-1)
    with pytest.raises(InvalidRequest, match="priority 10001 is too large; the largest is 10000"):
        parse_priority(10_001)
