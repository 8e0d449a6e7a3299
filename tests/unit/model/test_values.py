"""Allocations, plans, tenants, snapshots and errors."""

import inspect
import json
import pickle

import pytest

from gpu_scheduler.model import errors
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, SchedulerError
from gpu_scheduler.model.plan import Allocation, DeviceShare, Eviction, Plan, Reservation, Start
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.tenant import Quota, Tenant, Tier
from tests.builders import GPU_MB, a_job, on, running, waiting

# --- allocations


def test_placement_sums_its_devices() -> None:
    placement = on("n0", {0: 1000, 3: 500})
    assert placement.gpu_milli == 1500
    assert placement.gpu_memory_mb == GPU_MB + GPU_MB // 2
    assert placement.devices[1] == DeviceShare(3, 500, GPU_MB // 2)


def test_allocation_sums_its_members() -> None:
    allocation = running(a_job(gpus=2, members=2), on("n0", [0, 1]), on("n1", [0, 1])).allocation
    assert isinstance(allocation, Allocation)
    assert allocation.gpu_milli == 4000
    assert [placement.member for placement in allocation.placements] == [0, 1]


# --- plans


def a_plan(**changes) -> Plan:
    values = {
        "starts": (Start("j1", None, (on("n0", [0]),), True),),
        "evictions": (Eviction("j2.1", "j2", "j1", "class"),),
        "reservations": (
            Reservation(
                job_id="j3", job_number=3, at_ms=5, until_ms=9, placements=(on("n1", {0: 500}),)
            ),
        ),
        "job_reasons": (("j4", Reason(ReasonCode.QUOTA, (("held", 1),))),),
        "shape_reasons": ((0, Reason(ReasonCode.RESOURCES)),),
        "examined": 4,
    }
    return Plan(**(values | changes))


def test_equal_plans_have_same_text_byte_for_byte() -> None:
    assert a_plan().to_json() == a_plan().to_json()
    assert a_plan(examined=5).to_json() != a_plan().to_json()


def test_plan_text_is_canonical_json() -> None:
    text = a_plan().to_json()
    read = json.loads(text)
    assert json.dumps(read, sort_keys=True, separators=(",", ":")) == text
    assert read["job_reasons"] == [["j4", {"code": "quota", "data": [["held", 1]]}]]
    assert read["complete"] is True


# --- tenants


def test_tiers_add_points_in_steps_of_1000() -> None:
    assert [tier.points for tier in Tier] == [0, 1000, 2000, 3000]


def test_tenant_has_no_limits_by_default() -> None:
    assert Tenant(id="t").quota == Quota()
    assert Tenant(id="t").tier is Tier.MEDIUM


@pytest.mark.parametrize("name", Quota.__slots__)
def test_negative_quota_is_rejected_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"quota {name} is -1; it must be 0 or more"):
        Quota(**{name: -1})
    assert getattr(Quota(**{name: 0}), name) == 0


def test_tenant_without_weight_or_with_negative_preemptions_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="tenant t has fair-share weight 0; it must be more"):
        Tenant(id="t", weight_milli=0)
    with pytest.raises(InvalidRequest, match="max_preemptions must be 0 or more"):
        Tenant(id="t", max_preemptions=-1)


# --- snapshots


def test_waiting_job_sums_waits_and_never_counts_backwards() -> None:
    job = waiting(a_job(), waited_ms=100, since_ms=50)
    assert job.waited_at(70) == 120
    assert job.waited_at(20) == 100


# --- errors


ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, SchedulerError)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_in_docstring_tree(kind: type[SchedulerError]) -> None:
    assert errors.__doc__ is not None
    assert kind.__name__ in errors.__doc__


def test_every_error_type_has_unique_code() -> None:
    codes = [kind.code for kind in ERRORS]
    assert len(set(codes)) == len(codes)


def test_exit_code_shows_whose_fault_it_is() -> None:
    of_store = {
        errors.StoreError: 4,
        errors.StoreUnavailable: 4,
        errors.OutcomeUnknown: 4,
        errors.StoreDamaged: 5,
        errors.StoreTooNew: 6,
    }
    for kind in ERRORS:
        others = 2 if issubclass(kind, errors.CallerError) else 1
        assert kind.exit_code == of_store.get(kind, others)


def test_file_error_names_position_first() -> None:
    error = InvalidInput("no such field", file="jobs.csv", line=7)
    assert str(error) == "jobs.csv, line 7: no such field"
    assert (error.file, error.line) == ("jobs.csv", 7)
    assert str(InvalidInput("empty", file="jobs.csv")) == "jobs.csv: empty"


def test_values_can_be_pickled() -> None:
    plan = a_plan()
    assert pickle.loads(pickle.dumps(plan)) == plan
