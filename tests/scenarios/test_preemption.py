"""Which jobs are preempted, and what becomes of them."""

from dataclasses import replace

import pytest

from gpu_scheduler.control.effects import StopOrder
from gpu_scheduler.control.messages import Checkpointed, RunCycle
from gpu_scheduler.control.restore import restore
from gpu_scheduler.engine.policy import Feedback
from gpu_scheduler.engine.priority import LEVEL_MS
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import JobState
from tests.builders import (
    DAY,
    HOUR,
    MINUTE,
    a_cluster,
    a_core,
    a_job,
    a_node,
    a_policy,
    a_tenant,
    an_array,
)
from tests.scenarios.lab import Lab

CLASS = a_policy(name="fair", fair_ms=0, user_fair_ms=0)


def test_urgent_job_preempts_low_priority_job() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=CLASS)
    lab.submit(a_job(number=1, gpus=4, priority=250, estimate_ms=DAY))
    lab.at(HOUR)
    lab.submit(a_job(number=2, gpus=4, priority=2500))
    assert lab.stopped() == [("j1.1", "preempted")]
    assert lab.running() == ["j2"]
    assert lab.state("j1") is JobState.PENDING


def test_preempted_job_keeps_age_and_attained_service() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=CLASS, obedient=False)
    lab.submit(a_job(number=1, gpus=4, priority=250, estimate_ms=DAY))
    lab.at(HOUR)
    lab.submit(a_job(number=2, gpus=4, priority=2500))
    lab.ends("j1", exit_code=None, signal=15, progress_ms=40 * MINUTE)
    lab.submit(a_job(number=3, gpus=4, priority=250))
    row = lab.row("j1")
    assert (row.preemptions, row.attained_ms, row.state) == (1, 40 * MINUTE, JobState.PENDING)
    assert lab.events("j1")[-2:] == ["evicting", "preempted"]
    lab.at(2 * HOUR)
    lab.ends("j2")
    assert lab.running() == ["j1"], "it is older than j3 of the same class"
    assert lab.allocation("j1").attempt == 2
    assert lab.row("j1").signal is None, "that was the end of its first attempt"
    assert lab.store.attempts("j1")[0].signal == 15
    assert lab.store.attempts("j1")[0].detail == "preempted for job j2"


@pytest.mark.parametrize(
    ("stopped_by", "state"),
    [
        pytest.param("", JobState.COMPLETED, id="completed before the stop"),
        pytest.param("preempted", JobState.PENDING, id="checkpointed and stopped"),
    ],
)
def test_job_that_exits_zero_during_preemption_is_completed_unless_node_stopped_it(
    stopped_by: str, state: JobState
) -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=CLASS, obedient=False)
    lab.submit(a_job(number=1, gpus=4, priority=250, estimate_ms=DAY))
    lab.at(HOUR)
    lab.submit(a_job(number=2, gpus=4, priority=2500))
    assert lab.stopped() == [("j1.1", "preempted")]
    lab.ends("j1", stopped_by=stopped_by)
    assert lab.state("j1") is state
    assert lab.store.attempts("j1")[0].exit_code == 0
    assert lab.running() == ["j2"]


def test_freed_place_is_kept_for_preemptor() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=CLASS, obedient=False)
    lab.submit(*(a_job(number=n, gpus=2, priority=250, estimate_ms=DAY) for n in (1, 2)))
    lab.at(HOUR)
    lab.submit(a_job(number=3, gpus=4, priority=2500))
    assert [name for name, _ in lab.stopped()] == ["j1.1", "j2.1"]
    lab.submit(a_job(number=4, gpus=2, priority=750, estimate_ms=MINUTE))
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.running() == ["j2"], "j4 must not slip into the place that is cleared for j3"
    lab.ends("j2", exit_code=None, signal=15)
    assert lab.running() == ["j3"]


def test_job_that_loses_least_work_is_victim() -> None:
    lab = Lab(nodes=[a_node(gpus=2)], policy=CLASS)
    lab.submit(*(a_job(number=n, priority=250, estimate_ms=DAY) for n in (1, 2)))
    lab.at(5 * HOUR)
    lab.tell(Checkpointed("j2.1"))
    lab.at(6 * HOUR)
    lab.submit(a_job(number=3, priority=2500))
    assert lab.running() == ["j1", "j3"]


def test_job_that_ends_sooner_than_eviction_is_not_preempted() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=CLASS)
    lab.submit(a_job(number=1, priority=250, estimate_ms=HOUR))
    lab.at(HOUR - MINUTE)
    lab.submit(a_job(number=2, priority=2500))
    assert lab.stopped() == []


def test_job_is_not_preempted_beyond_preemption_limit() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=CLASS, tenants=[a_tenant(max_preemptions=1)])
    lab.submit(a_job(number=1, priority=250, estimate_ms=DAY))
    lab.at(HOUR)
    lab.submit(a_job(number=2, priority=2500))
    lab.at(2 * HOUR)
    lab.ends("j2")
    assert lab.running() == ["j1"]
    lab.at(3 * HOUR)
    lab.submit(a_job(number=3, priority=2500))
    assert lab.running() == ["j1"]


def test_optional_gang_member_preempts_nobody() -> None:
    lab = Lab(nodes=[a_node(gpus=2)], policy=CLASS)
    lab.submit(*(a_job(number=n, priority=250, estimate_ms=DAY) for n in (1, 2)))
    lab.at(HOUR)
    lab.submit(a_job(number=3, gpus=1, members=2, min_members=1, priority=2500))
    assert len(lab.stopped()) == 1


def test_nothing_is_preempted_for_gang_whose_rack_would_not_fit() -> None:
    """In each rack one node runs preemptible jobs and one runs others."""
    nodes = a_cluster(nodes=4, racks=2, gpus=4)
    lab = Lab(nodes=[replace(n, labels=(("host", n.id),)) for n in nodes], policy=CLASS)
    lab.submit(
        *(
            a_job(
                number=number + 1,
                gpus=4,
                priority=250,
                estimate_ms=DAY,
                node_labels=(("host", f"n{number}"),),
                preemptible=number in {0, 2},
            )
            for number in range(4)
        )
    )
    lab.at(HOUR)
    lab.submit(a_job(number=9, gpus=4, members=2, same_rack=True, priority=2500))
    assert lab.stopped() == []


def test_overrunning_backfilled_job_yields_to_blocked_reservation() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=CLASS)
    lab.submit(
        a_job(number=1, gpus=3, estimate_ms=2 * HOUR),
        a_job(number=2, gpus=4, estimate_ms=HOUR),
        a_job(number=3, gpus=1, estimate_ms=2 * HOUR),
    )
    assert lab.running() == ["j1", "j3"]
    lab.at(2 * HOUR)
    lab.ends("j1")
    lab.at(2 * HOUR + 10 * MINUTE)
    assert lab.stopped() == [("j3.1", "preempted")]
    assert lab.running() == ["j2"]


def test_overrun_is_detected_without_other_events() -> None:
    """The other job ends early; from then on only the backfilled one blocks the reservation."""
    lab = Lab(nodes=[a_node(gpus=4)], policy=CLASS)
    lab.submit(
        a_job(number=1, gpus=3, estimate_ms=2 * HOUR),
        a_job(number=2, gpus=4, estimate_ms=HOUR),
        a_job(number=3, gpus=1, estimate_ms=2 * HOUR),
    )
    lab.at(HOUR)
    lab.ends("j1")
    lab.at(5 * HOUR)
    assert lab.stopped() == [("j3.1", "preempted")]


def test_stop_order_is_sent_once() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=CLASS, obedient=False)
    lab.submit(a_job(number=1, priority=250, estimate_ms=DAY))
    lab.at(HOUR)
    lab.submit(a_job(number=2, priority=2500))
    lab.submit(a_job(number=3, priority=2500))
    outcome = lab.tell(RunCycle())
    assert [effect for effect in outcome.effects if isinstance(effect, StopOrder)] == []
    assert len(lab.stops) == 1


def test_preempted_array_task_keeps_attained_service() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=CLASS, obedient=False)
    lab.submit(an_array(number=1, tasks="0-1", priority=250, estimate_ms=10 * HOUR))
    lab.at(4 * HOUR)
    lab.submit(a_job(number=2, priority=2500))
    lab.ends("j1_0", exit_code=None, signal=15, progress_ms=4 * HOUR)
    lab.at(5 * HOUR)
    lab.ends("j2")
    running = lab.core.state.cluster.running["j1_0.2"].running
    assert (running.attained_ms, running.preemptions) == (4 * HOUR, 1)
    assert running.expected_end_ms == 11 * HOUR


def test_long_waiting_job_goes_first_and_is_not_preempted() -> None:
    feedback = Feedback(protect_after_ms=2 * HOUR, quantum_ms=MINUTE)
    lab = Lab(nodes=[a_node(gpus=1)], policy=a_policy(name="feedback", feedback=feedback))
    lab.submit(a_job(number=1, estimate_ms=DAY), a_job(number=2, estimate_ms=DAY))
    lab.at(2 * HOUR - 1)
    assert lab.running() == ["j1"]
    lab.at(2 * HOUR)
    assert lab.running() == ["j2"]
    lab.at(6 * HOUR)
    assert lab.running() == ["j2"], "j1 has waited as long by now, and j2 is left in peace"
    lab.ends("j2")
    assert lab.running() == ["j1"]


def test_protected_jobs_hold_no_more_than_their_share_until_jobs_have_waited_longest() -> None:
    feedback = Feedback(
        protect_after_ms=2 * HOUR,
        protect_percent=50,
        protect_at_latest_ms=5 * HOUR,
        quantum_ms=MINUTE,
    )
    lab = Lab(nodes=[a_node(gpus=4)], policy=a_policy(name="feedback", feedback=feedback))
    running = [a_job(number=number, estimate_ms=DAY) for number in range(1, 5)]
    lab.submit(*running, *(a_job(number=number, estimate_ms=DAY) for number in range(5, 9)))
    lab.at(4 * HOUR)
    assert sorted(set(lab.running()) & {"j5", "j6", "j7", "j8"}) == ["j5", "j6"]
    lab.at(5 * HOUR + MINUTE)
    assert sorted(lab.running()) == ["j5", "j6", "j7", "j8"]


def test_share_of_protected_jobs_is_kept_after_a_restart() -> None:
    feedback = Feedback(
        protect_after_ms=2 * HOUR,
        protect_percent=50,
        protect_at_latest_ms=50 * HOUR,
        quantum_ms=MINUTE,
    )
    lab = Lab(nodes=[a_node(gpus=4)], policy=a_policy(name="feedback", feedback=feedback))
    lab.submit(*(a_job(number=number, estimate_ms=DAY) for number in range(1, 9)))
    lab.at(3 * HOUR)
    assert len(lab.core.state.protected) == 2
    lab.core = a_core(nodes=[a_node(gpus=4)], policy=lab.core.state.policy)
    restore(lab.core.state, lab.store, lab.now_ms)
    lab.at(4 * HOUR)
    assert len(lab.core.state.protected) == 2


def test_wide_job_is_protected_when_no_other_job_is() -> None:
    feedback = Feedback(
        protect_after_ms=2 * HOUR, protect_percent=25, protect_at_latest_ms=50 * HOUR
    )
    lab = Lab(nodes=[a_node(gpus=4)], policy=a_policy(name="feedback", feedback=feedback))
    lab.submit(*(a_job(number=number, estimate_ms=DAY) for number in range(1, 5)))
    lab.submit(a_job(number=5, gpus=4, estimate_ms=DAY))
    lab.at(2 * HOUR + MINUTE)
    assert lab.running() == ["j5"]


ADAPTING = Feedback(
    thresholds_ms=(HOUR, 10 * HOUR), adapts=True, quantum_ms=MINUTE, protect_after_ms=5 * DAY
)


def lab_after(run_hours: list[int]) -> Lab:
    """A lab with one GPU in which jobs with these run times have ended, one after the other."""
    lab = Lab(nodes=[a_node(gpus=1)], policy=a_policy(name="feedback", feedback=ADAPTING))
    for number, hours in enumerate(run_hours, start=1):
        lab.submit(a_job(number=number, submit_ms=lab.now_ms))
        lab.at(lab.now_ms + hours * HOUR)
        lab.ends(f"j{number}")
    return lab


def a_long_and_a_new_job(lab: Lab) -> list[str]:
    """A job runs for two hours, then another comes; what runs then."""
    lab.submit(a_job(number=901, submit_ms=lab.now_ms, estimate_ms=DAY))
    lab.at(lab.now_ms + 2 * HOUR)
    lab.submit(a_job(number=902, submit_ms=lab.now_ms, estimate_ms=DAY))
    return lab.running()


def test_feedback_levels_stay_where_run_times_have_a_long_tail() -> None:
    lab = lab_after([0, 0, 0, 0, 12] * 10)
    assert lab.core.state.cluster.feedback.thresholds_ms == (HOUR,)
    assert a_long_and_a_new_job(lab) == ["j902"]


def test_feedback_has_no_levels_where_all_jobs_take_about_as_long() -> None:
    lab = lab_after([3] * 50)
    assert lab.core.state.cluster.feedback.thresholds_ms == ()
    assert a_long_and_a_new_job(lab) == ["j901"], "first come, first served"


def test_feedback_learns_the_same_levels_after_a_restart() -> None:
    lab = lab_after([3] * 50)
    lab.core = a_core(nodes=[a_node(gpus=1)], policy=lab.core.state.policy)
    restore(lab.core.state, lab.store, lab.now_ms)
    assert lab.core.state.cluster.feedback.thresholds_ms == ()


def test_waiting_job_changes_its_level_when_the_levels_change() -> None:
    lab = lab_after([])
    assert a_long_and_a_new_job(lab) == ["j902"]
    cluster = lab.core.state.cluster
    (number,) = cluster.queue.entries
    assert cluster.queue.entries[number].key >= LEVEL_MS
    cluster.set_thresholds(())
    assert cluster.queue.entries[number].key < LEVEL_MS
    snapshot = cluster.snapshot()
    rebuilt = ClusterState.from_snapshot(snapshot, cluster.policy)
    assert rebuilt.snapshot() == snapshot
    assert rebuilt.queue.entries[number].key == cluster.queue.entries[number].key
