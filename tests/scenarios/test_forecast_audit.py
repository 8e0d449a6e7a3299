"""The first forecast of a job is kept, judged at its start, and void once the job changes."""

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import Cancel, Estimate, Hold, NoteEstimates, Reprioritise
from gpu_scheduler.control.restore import restore
from tests.builders import Stated, a_job, a_node, an_array
from tests.scenarios.lab import Lab

H = 3_600_000


def a_full_lab() -> Lab:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(id="first"), a_job(id="second"))
    lab.tell(NoteEstimates((Estimate("second", H, "forecast"), Estimate("first", 0, "forecast"))))
    return lab


def test_first_estimate_is_kept_until_start() -> None:
    lab = a_full_lab()
    lab.now_ms = 1_000
    lab.tell(NoteEstimates((Estimate("second", 9 * H, "rough"),)))
    (row,) = lab.store.estimates()
    assert (row.job_id, row.made_ms, row.promised_ms, row.basis) == ("second", 0, H, "forecast")
    lab.now_ms = 2 * H
    lab.ends("first")
    assert lab.store.estimates() == []
    (row,) = lab.store.estimates(started_since_ms=0)
    assert (row.job_id, row.start_ms) == ("second", 2 * H)


def test_changed_held_or_cancelled_job_is_excluded_from_forecast_audit() -> None:
    for deed in (Hold("second"), Reprioritise("second", 900), Cancel("second")):
        lab = a_full_lab()
        lab.do(deed)
        assert lab.store.estimates() == []
        assert lab.core.state.estimates == {}


def test_array_forecast_is_audited_by_first_task() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(id="first"), an_array(id="many", tasks="0-2"))
    lab.tell(NoteEstimates((Estimate("many", H, "forecast"),)))
    lab.now_ms = H
    lab.ends("first")
    assert [row.start_ms for row in lab.store.estimates(started_since_ms=0)] == [H]
    lab.tell(NoteEstimates((Estimate("many", 3 * H, "forecast"),)))
    assert lab.store.estimates() == []


def test_estimates_survive_restart() -> None:
    lab = a_full_lab()
    lab.store.commit(list(lab.core.state.cluster.snapshot().nodes))
    core = Core(lab.core.state.policy, Stated())
    restore(core.state, lab.store, lab.now_ms)
    assert core.state.estimates == lab.core.state.estimates
