"""Guarantee: a scheduler that is killed and restarted continues with the same state."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import SetNode
from gpu_scheduler.control.restore import read_ended, recall, restore
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.job import ENDED
from tests.effort import examples
from tests.properties.rig import Rig, StopBehaviour
from tests.properties.strategies import Scenario, policies, scenarios


class CrashingRig(Rig):
    """Its core is thrown away repeatedly and restored from the store."""

    def __init__(self, scenario: Scenario, policy: str, stop_ms: int = 0) -> None:
        super().__init__(scenario, policy, StopBehaviour(stop_ms=stop_ms))
        self.now_ms = 1  # in rows, 0 stands for a time that was never set

    def apply(self, message: object):
        answer = super().apply(message)
        self.store.commit(self.core.ledger_writes())
        return answer

    def crash(self) -> None:
        old = self.core
        self.core = Core(old.state.policy, self.predictor, CoreLimits(backoff_ms=1_000))
        restore(self.core.state, self.store, self.now_ms)
        for stored in read_ended(self.store, [row.job.id for row in self.store.jobs()]):
            recall(self.core.state, stored)
        for node in self.audit.nodes.values():
            self.apply(SetNode(node))
        assert known(self.core, self.now_ms) == known(old, self.now_ms)


def known(core: Core, now_ms: int) -> dict[str, object]:
    """Everything that must survive; predictions may be made anew."""
    state = core.state
    return {
        "lives": {
            job_id: replace(record.row(), reason="", expected_ms=0, since_ms=0, waited_ms=0)
            for job_id, record in sorted(state.jobs.items())
        },
        "waited": {
            entry.waiting.job.id: entry.waiting.waited_at(now_ms)
            for entry in state.cluster.queue.in_order()
        },
        "queued": [
            (entry.waiting.job, entry.waiting.tasks, entry.waiting.served_ms)
            for entry in sorted(state.cluster.queue.in_order(), key=lambda entry: entry.number)
        ],
        "running": {
            allocation_id: (entry.running.allocation, entry.running.stopping)
            for allocation_id, entry in sorted(state.cluster.running.items())
        },
        "reservations": state.cluster.reservations,
        "queued_tasks": state.queued_tasks,
        "next_number": state.next_number,
        "dependents": {job_id: set(others) for job_id, others in state.dependents.items()},
        "shares": state.decayed_usage.to_rows(),
        "accounts": state.usage_totals.to_rows()[0],
    }


@settings(max_examples=examples(150))
@given(
    scenario=scenarios(),
    policy=policies(),
    every=st.integers(1, 5),
    stop_ms=st.sampled_from((0, 30_000)),
)
def test_restored_scheduler_has_same_state(
    scenario: Scenario, policy: str, every: int, stop_ms: int
) -> None:
    rig = CrashingRig(scenario, policy, stop_ms)
    for moment in range(400):
        if not rig.advance():
            break
        if moment % every == 0:
            rig.crash()


@settings(max_examples=examples(100))
@given(scenario=scenarios(limits=False), policy=policies(), every=st.integers(1, 4))
def test_every_job_ends_although_scheduler_is_killed_repeatedly(
    scenario: Scenario, policy: str, every: int
) -> None:
    rig, killed_ms = CrashingRig(scenario, policy), 0
    for moment in range(2_000):
        if not rig.advance():
            break
        # What is due at once after a restart is done before the next one: a restart takes time.
        if moment % every == 0 and rig.now_ms > killed_ms:
            rig.crash()
            killed_ms = rig.now_ms
    assert rig.waiting() == []
    assert all(row.state in ENDED for row in rig.store.jobs())
    assert not rig.store.allocations()
