"""The launcher is killed: jobs survive, are found again, and no result is invented."""

from __future__ import annotations

import os
import sys
from random import Random

import pytest

from tests.chaos.audit import ENDED, read_notes
from tests.chaos.random_kills import Chaos
from tests.chaos.single_server import SingleServer, a_single_server
from tests.chaos.workload import Plan, Workload

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("CHAOS_KILLS", "20")) * 2 // 5
SEED = int(os.environ.get("CHAOS_SEED", "1"))
TARGETS = ("launcher", "launcher", "launcher", "agent", "server", "both")


def submit(scheduler: SingleServer, plans: list[Plan]) -> dict[str, str]:
    return {plan.token: scheduler.submit(plan.body) for plan in plans}


def until_ended(scheduler: SingleServer, job_id: str) -> dict[str, object]:
    def ended() -> dict[str, object] | None:
        job: dict[str, object] = scheduler.get(f"/jobs/{job_id}")
        return job if job["state"] in ENDED else None

    found = scheduler.until(ended, f"the end of {job_id}")
    assert found is not None
    return found


@pytest.mark.parametrize("also", ["nobody", "agent", "server"])
def test_jobs_survive_launcher_kill_and_end_unknown(also: str) -> None:
    with a_single_server() as scheduler:
        scheduler.start()
        workload = Workload(scheduler.directory, Random(1))
        ends = ("exit:42", "exit:0", "signal:10")
        plans = [workload.until_told(end) for end in ends]
        ids = submit(scheduler, plans)
        scheduler.until(
            lambda: all(scheduler.get(f"/jobs/{i}")["state"] == "running" for i in ids.values()),
            "the jobs run",
        )
        scheduler.until(lambda: len(scheduler.witnesses()) == len(plans), "their own programs run")
        running, before = scheduler.witnesses(), scheduler.launchers()
        scheduler.kill(scheduler.launchers)
        if also == "agent":
            scheduler.kill(scheduler.agents)
        if also == "server":
            scheduler.kill_server()
            scheduler.start()

        # A new job runs while those of the former launcher do.
        fresh = until_ended(scheduler, scheduler.submit(workload.plain().body))
        assert fresh["exit_code"] is not None
        assert before != scheduler.launchers() != []
        assert scheduler.witnesses() == running
        scheduler.release_jobs()

        for job_id in ids.values():
            job = until_ended(scheduler, job_id)
            assert (job["exit_code"], job["signal"], job["attempt"]) == (None, None, 1)
            assert job["state"] == "failed"
            assert "exit code unknown" in str(job["reason"])
            events = scheduler.get("/events?after=0&limit=1000")["events"]
            (event,) = [e for e in events if (e["kind"], e["job_id"]) == ("exit_unknown", job_id)]
            assert "the launcher that began it had died" in event["data"]["cause"]
        runs, wrong = read_notes(scheduler.notes)
        assert wrong == []
        told = {run.token: run.how for run in runs}
        assert [told[plan.token] for plan in plans] == list(ends)
        assert scheduler.tracebacks() == []


def test_job_of_dead_launcher_can_be_cancelled() -> None:
    with a_single_server() as scheduler:
        scheduler.start()
        job_id = scheduler.submit(Workload(scheduler.directory, Random(1)).cancelled().body)
        scheduler.until(scheduler.witnesses, "the job runs")
        before = scheduler.launchers()
        scheduler.kill(scheduler.launchers)
        scheduler.until(lambda: scheduler.launchers() not in ([], before), "another launcher")
        with scheduler.client() as client:
            client.cancel(job_id)
        assert until_ended(scheduler, job_id)["state"] == "cancelled"
        assert scheduler.witnesses() == []


def test_nothing_runs_twice_and_no_result_is_invented_under_launcher_kills() -> None:
    with a_single_server(jobs_assignment_retry_wait_s="0.2") as scheduler:
        chaos = Chaos(scheduler, SEED, TARGETS)
        chaos.run(KILLS, undisturbed_ms=10_000)
        chaos.drain()
        violations = chaos.violations()
    sys.stderr.write(f"chaos: seed {SEED}, {dict(chaos.kills)} kills, {len(chaos.ids)} jobs\n")
    assert violations == []
