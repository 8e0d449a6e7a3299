"""The audit detects schedulers that are broken on purpose."""

import pytest

from tests.faults.variants import VARIANTS
from tests.faults.world import run_world

pytestmark = pytest.mark.slow

FAULT_KINDS = {
    "acknowledge-before-commit": ("server killed", "database slow"),
    "forget-before-commit": ("server killed", "database fails"),
    "no-fencing": ("server frozen", "server cut off from the database"),
    "orders-not-idempotent": ("agent killed",),
    "begin-before-the-record": ("launcher killed", "power lost"),
    "commit-before-all-are-prepared": ("disk of a node slow", "network slow"),
    "requeue-before-the-lease-ends": ("node cut off",),
    "requeue-what-is-silent": ("node cut off", "agent frozen"),
    "orders-are-not-repeated": ("connection reset", "agent killed"),
    "a-failure-is-told-once": ("network slow", "agent killed"),
    "what-is-late-is-not-cancelled": ("network slow", "disk of a node slow"),
    "quotas-are-not-kept": ("connection reset",),
    "arrays-know-no-limit": ("connection reset",),
    "dependencies-are-met-by-any-end": ("connection reset",),
    "closed-nodes-take-work": ("connection reset",),
    "reservations-are-for-everybody": ("connection reset",),
    "pauses-end-with-a-restart": ("connection reset",),
    "ports-are-not-remembered": ("agent killed",),
    "one-replica-too-many": ("agent killed",),
    "services-are-deleted-without-their-replicas": ("server killed",),
    "a-failed-prolog-fails-the-job": ("server killed",),
    "nodes-with-bad-hooks-are-kept": ("server killed",),
}
"""The faults that reveal each variant soonest."""
MOST_WORLDS = 200


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_audit_catches_broken_scheduler(name: str) -> None:
    for seed in range(MOST_WORLDS):
        with VARIANTS[name]():
            result = run_world(seed, fault_kinds=FAULT_KINDS[name])
        if result.problems:
            return
    pytest.fail(f"{name} went unnoticed in {MOST_WORLDS} worlds")
