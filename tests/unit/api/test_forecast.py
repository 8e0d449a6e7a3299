"""No time is shown without evidence, and the reason is given."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_scheduler.api.expected_times import (
    ExpectedTime,
    Explainer,
    describe_run_time,
    expected_queued_end,
    expected_running_end,
    expected_start,
    within_limits,
)
from gpu_scheduler.control.messages import Cancel, Cordon, NodeLost, NodeSilent
from gpu_scheduler.model.job import Dependency, DependencyKind, Job
from gpu_scheduler.predict.history import History
from tests.builders import HOUR, MINUTE, SECOND, a_cluster, a_job, a_node, a_tenant
from tests.scenarios.lab import Lab


def a_lab(*, nodes: int = 1, gpus: int = 8, **changes: Any) -> Lab:
    return Lab(nodes=a_cluster(nodes=nodes, gpus=gpus, **changes), predictor=History())


def a_service(lab: Lab) -> Any:
    return SimpleNamespace(
        core=lab.core,
        last_plan=lab.last_plan,
        loop_metrics=SimpleNamespace(messages=1),
        now_ms=lambda: lab.now_ms,
    )


def start_of(lab: Lab, job_id: str) -> ExpectedTime:
    service = a_service(lab)
    return expected_start(Explainer(service), job_id)


def end_of(lab: Lab, job_id: str) -> ExpectedTime:
    service = a_service(lab)
    explainer = Explainer(service)
    record = lab.core.state.jobs[job_id]
    running = lab.core.state.cluster.running.get(f"{job_id}.1")
    if running is not None:
        return expected_running_end(service, running.running)
    entry = lab.core.state.cluster.queue.entries[record.job.number]
    return expected_queued_end(explainer, entry, expected_start(explainer, job_id))


def whole(job_id: str, **fields: Any) -> Job:
    """A job that needs whole nodes."""
    return a_job(id=job_id, gpus=8, estimate_ms=0, **fields)


def test_overrunning_job_is_not_repeatedly_forecast_to_end_now() -> None:
    lab = a_lab()
    for number in range(3):
        lab.submit(whole(f"short{number}", name="x"))
        lab.at(lab.now_ms + 1_000)
        lab.ends(f"short{number}")
    lab.submit(whole("long", name="x"), whole("waits", name="y", max_runtime_ms=HOUR))
    lab.now_ms += 10 * MINUTE  # no cycle runs meanwhile
    for found in (end_of(lab, "long"), start_of(lab, "waits")):
        assert found.at_ms is not None
        assert found.at_ms > lab.now_ms + MINUTE


def test_job_waiting_for_overrun_quota_is_not_forecast_now() -> None:
    lab = Lab(nodes=[a_node()], tenants=[a_tenant(gpus=4)], predictor=History())
    lab.submit(a_job(number=9, gpus=4, estimate_ms=0))
    lab.at(MINUTE)
    lab.ends("j9", exit_code=0)
    lab.submit(a_job(number=11, gpus=4, estimate_ms=0), a_job(number=12))
    assert (start_of(lab, "j12").at_ms or 0) // SECOND == 120
    for minutes in (3, 4, 10, 60):
        # No cycle runs between: no waiting job has a reservation.
        timer_ms = lab.core.next_timer_ms()
        assert timer_ms is None or timer_ms > minutes * MINUTE
        lab.now_ms = minutes * MINUTE
        start, end = start_of(lab, "j12"), end_of(lab, "j11")
        assert start.at_ms == end.at_ms
        assert start.at_ms is not None
        assert start.at_ms > lab.now_ms + SECOND


def test_job_waiting_for_quota_on_lost_node_has_no_forecast() -> None:
    lab = Lab(
        nodes=a_cluster(nodes=2), tenants=[a_tenant(gpus=4)], predictor=History(), obedient=False
    )
    lab.submit(a_job(number=1, gpus=4, max_runtime_ms=HOUR))
    (node_id,) = lab.nodes_of("j1")
    lab.do(NodeSilent(node_id), NodeLost(node_id), Cancel("j1"))
    lab.submit(a_job(number=2, max_runtime_ms=HOUR))
    found = start_of(lab, "j2")
    assert (found.at_ms, found.why_not) == (
        None,
        "no job that is expected to end frees enough for it",
    )


def test_gang_too_large_for_open_nodes_has_no_forecast() -> None:
    lab = a_lab(nodes=3)
    lab.do(Cordon("n0", True), Cordon("n1", True))
    lab.submit(whole("gang", members=2, max_runtime_ms=HOUR))
    found = start_of(lab, "gang")
    assert found.at_ms is None
    assert "could not hold 2 members" in found.why_not


def test_job_for_label_on_closed_node_has_no_forecast() -> None:
    lab = Lab(nodes=[a_node(), a_node(ordinal=1, labels=(("zone", "a"),))], predictor=History())
    lab.do(Cordon("n1", True))
    lab.submit(a_job(id="j", gpus=1, node_labels=(("zone", "a"),), max_runtime_ms=HOUR))
    assert start_of(lab, "j") == ExpectedTime(
        None, "", "no node that could run it accepts work now"
    )


def test_job_behind_limited_job_has_start_and_end() -> None:
    lab = a_lab()
    lab.submit(whole("first", max_runtime_ms=6 * HOUR), whole("second", max_runtime_ms=HOUR))
    assert start_of(lab, "second").at_ms == 6 * HOUR
    assert end_of(lab, "second").at_ms == 7 * HOUR
    assert end_of(lab, "first").at_ms == 6 * HOUR


def test_job_behind_job_of_unknown_length_has_no_start_and_names_it() -> None:
    lab = a_lab()
    lab.submit(whole("first"), whole("second", max_runtime_ms=HOUR))
    found = start_of(lab, "second")
    assert found.at_ms is None
    assert (
        found.why_not == "job first comes before it and has no time limit of its own and no history"
    )
    assert end_of(lab, "second") == ExpectedTime(None)


def test_several_jobs_of_unknown_length_are_counted() -> None:
    lab = a_lab()
    lab.submit(whole("a"), whole("b"), whole("c"), whole("d", max_runtime_ms=HOUR))
    found = start_of(lab, "d")
    assert found.at_ms is None
    assert "3 jobs before it (a, b, c) have no time limits" in found.why_not


def test_job_of_unknown_length_on_another_node_does_not_matter() -> None:
    lab = a_lab(nodes=2)
    lab.submit(whole("known", max_runtime_ms=HOUR), whole("unknown"))
    lab.submit(whole("next", max_runtime_ms=HOUR))
    assert start_of(lab, "next").at_ms == HOUR


def test_end_of_job_of_unknown_length_is_not_shown() -> None:
    lab = a_lab()
    lab.submit(whole("runs"), whole("waits"))
    assert end_of(lab, "runs") == ExpectedTime(
        None, "", "it has no time limit of its own and no history"
    )
    assert "give --time or --estimate" in end_of(lab, "waits").why_not


def test_one_run_of_same_size_counts_as_history() -> None:
    lab = a_lab()
    lab.submit(whole("before"))
    lab.now_ms = 2 * HOUR
    lab.ends("before")
    lab.submit(whole("first"), whole("second"))
    start = start_of(lab, "second").at_ms
    assert start is not None
    assert start > lab.now_ms + HOUR


def test_exceeded_estimate_no_longer_counts() -> None:
    lab = a_lab()
    lab.submit(a_job(id="first", gpus=8, estimate_ms=HOUR), whole("second"))
    assert start_of(lab, "second").at_ms == HOUR
    lab.at(HOUR + 10 * MINUTE)
    assert start_of(lab, "second").at_ms is None
    assert end_of(lab, "first").at_ms is None


@pytest.mark.parametrize("limit_ms", [0, HOUR], ids=["unknown", "limited"])
def test_forecast_after_another_job_is_as_certain_as_that_job(limit_ms: int) -> None:
    lab = a_lab()
    after = Dependency(DependencyKind.AFTER_OK, "first")
    lab.submit(whole("first", max_runtime_ms=limit_ms), whole("then", dependencies=(after,)))
    found = start_of(lab, "then")
    assert found.at_ms == (limit_ms or None)
    assert ("job first, which it waits for, has no time limit" in found.why_not) is (limit_ms == 0)


def test_overview_omits_uncertain_times() -> None:
    lab = a_lab()
    lab.submit(whole("first"), whole("second"), whole("third"))
    numbers = [lab.core.state.jobs[name].job.number for name in ("second", "third")]
    assert Explainer(a_service(lab)).expected_starts(numbers) == {}
    lab.do(Cancel("first"), Cancel("second"), Cancel("third"))
    lab.submit(whole("first2", max_runtime_ms=HOUR), whole("second2", max_runtime_ms=HOUR))
    number = lab.core.state.jobs["second2"].job.number
    (start,) = Explainer(a_service(lab)).expected_starts([number]).values()
    assert start.at_ms == HOUR
    assert start.earliest_ms is not None
    assert start.latest_ms is not None
    assert start.earliest_ms < HOUR < start.latest_ms


def test_range_of_reserved_job_ends_where_limits_of_jobs_before_it_end() -> None:
    lab = a_lab()
    lab.submit(whole("runs", max_runtime_ms=HOUR), whole("waits", max_runtime_ms=HOUR))
    explainer = Explainer(a_service(lab))
    start = expected_start(explainer, "waits")
    assert start.basis == "reserved"
    assert start.latest_ms is not None
    assert start.latest_ms > HOUR
    limit_ms = explainer.limit_start_ms(lab.core.state.jobs["waits"].job.number)
    assert within_limits(start, limit_ms).latest_ms == limit_ms == HOUR
    forecast = start._replace(basis="forecast")
    assert within_limits(forecast, limit_ms) == forecast


def test_unlike_commands_say_nothing_about_the_job_ahead() -> None:
    """Many short `echo` do not make a job with a limit of two hours end soon."""
    lab = a_lab()
    for number in range(20):
        lab.submit(whole(f"echo{number}", command=("echo", "hi"), name=""))
        lab.at(lab.now_ms + 1_000)
        lab.ends(f"echo{number}")
    train = {"command": ("python", "train.py"), "name": "", "max_runtime_ms": 2 * HOUR}
    lab.submit(whole("train", **train), whole("waits", max_runtime_ms=HOUR))
    began_ms = lab.now_ms
    start = start_of(lab, "waits")
    assert start.at_ms == began_ms + 2 * HOUR
    explainer = Explainer(a_service(lab))
    assert explainer.limit_start_ms(lab.core.state.jobs["waits"].job.number) == start.at_ms
    assert describe_run_time(explainer, lab.core.state.jobs["train"].job) == (
        "nothing known: the limit"
    )


def test_job_on_lost_node_has_no_forecast_end() -> None:
    lab = a_lab()
    lab.submit(whole("runs", max_runtime_ms=HOUR))
    assert end_of(lab, "runs").at_ms == HOUR
    lab.do(NodeSilent("n0"), NodeLost("n0"))
    assert end_of(lab, "runs") == ExpectedTime(None, "", "its node does not answer")


def test_service_has_no_end_and_gives_no_start_to_waiting_jobs() -> None:
    lab = a_lab()
    lab.submit(whole("service", service="web"), whole("waits", max_runtime_ms=HOUR))
    assert end_of(lab, "service").why_not == "a service runs until it is deleted"
    assert start_of(lab, "waits").why_not == "no job that is expected to end frees enough for it"


def test_job_newer_than_cached_forecast_is_not_reported_as_never_starting() -> None:
    """A forecast is cached briefly, so it may be older than the job."""
    lab = a_lab(nodes=2)
    lab.do(Cordon("n0", True))
    lab.submit(whole("gang", members=2, max_runtime_ms=HOUR))
    service = a_service(lab)
    explainer = Explainer(service, clock=lambda: 1.0)
    assert expected_start(explainer, "gang").at_ms is None
    lab.submit(whole("runs", max_runtime_ms=HOUR), whole("waits", max_runtime_ms=HOUR))
    service.loop_metrics.messages += 1
    service.last_plan = lab.last_plan
    number = lab.core.state.jobs["waits"].job.number
    lab.core.state.cluster.reservations.pop(number, None)
    assert not explainer.start_forecast(number).is_never
