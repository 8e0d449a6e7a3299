"""The launcher is killed: jobs survive, are found again, and no result is invented."""

from __future__ import annotations

import os
import sys
from random import Random

import pytest

from tests.chaos.audit import ENDED, read_notes
from tests.chaos.random_kills import Chaos
from tests.chaos.single_server import House, a_house
from tests.chaos.workload import Plan, Workload

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("CHAOS_KILLS", "20")) * 2 // 5
SEED = int(os.environ.get("CHAOS_SEED", "1"))
TARGETS = ("launcher", "launcher", "launcher", "agent", "server", "both")


def submit(house: House, plans: list[Plan]) -> dict[str, str]:
    return {plan.token: house.submit(plan.body) for plan in plans}


def until_ended(house: House, job_id: str) -> dict[str, object]:
    def ended() -> dict[str, object] | None:
        job: dict[str, object] = house.get(f"/jobs/{job_id}")
        return job if job["state"] in ENDED else None

    found = house.until(ended, f"the end of {job_id}")
    assert found is not None
    return found


@pytest.mark.parametrize("also", ["nobody", "agent", "server"])
def test_jobs_survive_launcher_kill_and_end_unknown(also: str) -> None:
    with a_house() as house:
        house.start()
        workload = Workload(house.directory, Random(1))
        ends = ("exit:42", "exit:0", "signal:10")
        plans = [workload.until_told(end) for end in ends]
        ids = submit(house, plans)
        house.until(
            lambda: all(house.get(f"/jobs/{i}")["state"] == "running" for i in ids.values()),
            "the jobs run",
        )
        house.until(lambda: len(house.witnesses()) == len(plans), "their own programs run")
        running, before = house.witnesses(), house.launchers()
        house.kill(house.launchers)
        if also == "agent":
            house.kill(house.agents)
        if also == "server":
            house.kill_server()
            house.start()

        # A new job runs while those of the former launcher do.
        fresh = until_ended(house, house.submit(workload.plain().body))
        assert fresh["exit_code"] is not None
        assert before != house.launchers() != []
        assert house.witnesses() == running
        house.let_end()

        for job_id in ids.values():
            job = until_ended(house, job_id)
            assert (job["exit_code"], job["signal"], job["attempt"]) == (None, None, 1)
            assert job["state"] == "failed"
            assert "exit code unknown" in str(job["reason"])
        runs, wrong = read_notes(house.notes)
        assert wrong == []
        told = {run.token: run.how for run in runs}
        assert [told[plan.token] for plan in plans] == list(ends)
        assert house.tracebacks() == []


def test_job_of_dead_launcher_can_be_cancelled() -> None:
    with a_house() as house:
        house.start()
        job_id = house.submit(Workload(house.directory, Random(1)).cancelled().body)
        house.until(house.witnesses, "the job runs")
        before = house.launchers()
        house.kill(house.launchers)
        house.until(lambda: house.launchers() not in ([], before), "another launcher")
        with house.client() as client:
            client.cancel(job_id)
        assert until_ended(house, job_id)["state"] == "cancelled"
        assert house.witnesses() == []


def test_nothing_runs_twice_and_no_result_is_invented_under_launcher_kills() -> None:
    with a_house(jobs_assignment_retry_wait_s="0.2") as house:
        chaos = Chaos(house, SEED, TARGETS)
        chaos.run(KILLS, undisturbed_ms=10_000)
        chaos.drain()
        complaints = chaos.complaints()
    sys.stderr.write(f"chaos: seed {SEED}, {dict(chaos.kills)} kills, {len(chaos.ids)} jobs\n")
    assert complaints == []
