"""Begin times, reservations and charges when the wall clock was set."""

from gpu_scheduler.control.clock import Calendar
from gpu_scheduler.control.messages import Ended, Reserve, SetCalendar
from gpu_scheduler.control.restore import restore
from gpu_scheduler.model.plan import ReservationSpec
from tests.builders import DAY, HOUR, MINUTE, a_core, a_job, a_node, a_policy, a_tenant
from tests.scenarios.lab import Lab

GPU_HOUR = 1000 * HOUR


def calendar(offset_ms: int) -> SetCalendar:
    return SetCalendar(Calendar(offset_ms=offset_ms))


def reserve(lab: Lab, start_ms: int, end_ms: int) -> None:
    wish = ReservationSpec(tenant="vision", gpus=2, start_ms=start_ms, end_ms=end_ms)
    lab.do(Reserve(wish, "root"))


def a_lab() -> Lab:
    tenants = (a_tenant(id="vision"), a_tenant(id="nlp"))
    return Lab(policy=a_policy(name="fair"), nodes=[a_node(gpus=2)], tenants=tenants)


def test_begin_time_follows_corrected_clock() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, begin_ms=2 * HOUR))
    lab.do(calendar(-HOUR))
    lab.at(2 * HOUR)
    assert lab.running() == []
    assert lab.core.next_timer_ms() == 3 * HOUR
    lab.do(calendar(0))
    assert lab.running() == ["j1"]


def test_begin_time_is_reached_when_clock_is_corrected_ahead() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, begin_ms=2 * HOUR))
    lab.at(HOUR)
    lab.do(calendar(HOUR))
    assert lab.running() == ["j1"]


def test_queued_job_waits_again_for_begin_time_after_step_back() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2, begin_ms=HOUR))
    lab.at(HOUR)
    lab.do(calendar(-30 * MINUTE))
    lab.ends("j1")
    assert lab.running() == []
    assert "not to begin before" in lab.row("j2").reason
    lab.at(HOUR + 30 * MINUTE)
    assert lab.running() == ["j2"]


def test_restored_state_has_same_calendar() -> None:
    lab = a_lab()
    lab.do(calendar(-HOUR))
    reserve(lab, HOUR, 2 * HOUR)
    lab.submit(a_job(number=1, begin_ms=2 * HOUR, tenant="nlp"))
    core = a_core(policy=a_policy(name="fair"))
    core.state.calendar = Calendar(offset_ms=-HOUR)
    restore(core.state, lab.store, lab.now_ms)
    assert core.state.cluster.advance_reservations == lab.core.state.cluster.advance_reservations
    assert core.next_timer_ms() == lab.core.next_timer_ms()


def test_reservation_follows_corrected_clock_and_keeps_its_calendar_times() -> None:
    lab = a_lab()
    reserve(lab, HOUR, 2 * HOUR)
    lab.do(calendar(-HOUR))
    lab.at(2 * HOUR - 1)
    kinds = [row.kind for _, row in lab.store.events()]
    assert kinds == ["reservation_made"]
    lab.at(2 * HOUR)
    lab.submit(a_job(number=1, gpus=1, tenant="nlp"), a_job(number=2, gpus=1, tenant="vision"))
    assert lab.running() == ["j2"]
    (stored,) = lab.store.advance_reservations()
    assert (stored.start_ms, stored.end_ms) == (HOUR, 2 * HOUR)
    lab.ends("j2")
    lab.at(3 * HOUR)
    (stored,) = lab.store.advance_reservations()
    assert (stored.start_ms, stored.end_ms, stored.over_ms) == (HOUR, 2 * HOUR, 3 * HOUR)


def test_reservation_evicts_nothing_early_after_step_back() -> None:
    lab = a_lab()
    reserve(lab, 2 * HOUR, 3 * HOUR)
    lab.do(calendar(-DAY))
    lab.submit(a_job(number=1, gpus=2, max_runtime_ms=20 * HOUR, tenant="nlp"))
    assert lab.running() == ["j1"]
    lab.at(2 * HOUR)
    assert lab.running() == ["j1"]


def test_reservation_begins_again_after_step_back() -> None:
    lab = a_lab()
    reserve(lab, HOUR, 2 * HOUR)
    lab.at(HOUR)
    lab.do(calendar(-HOUR))
    lab.at(2 * HOUR)
    kinds = [row.kind for _, row in lab.store.events()]
    assert kinds == ["reservation_made", "reservation_begun", "reservation_begun"]


def test_estimated_gap_is_charged_only_as_far_as_node_measured_it() -> None:
    for run_ms, charged_ms in ((MINUTE, 2 * MINUTE), (DAY + MINUTE, DAY + MINUTE)):
        lab = Lab(nodes=[a_node(gpus=1)])
        lab.submit(a_job(number=1))
        lab.now_ms = DAY + 2 * MINUTE
        lab.core.state.calendar = Calendar(gap_at_ms=MINUTE, gap_ms=DAY)
        (allocation,) = lab.orders
        lab.tell(Ended(allocation.id, at_ms=lab.now_ms, run_ms=run_ms))
        (attempt,) = lab.store.attempts("j1", None)
        assert attempt.end_ms - attempt.start_ms == charged_ms
