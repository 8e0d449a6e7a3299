"""A frozen agent whose stream stays open."""

from __future__ import annotations

import os
import signal
from random import Random

import pytest

from tests.chaos.audit import ENDED, read_notes
from tests.chaos.single_server import SingleServer, a_single_server
from tests.chaos.workload import Workload

pytestmark = pytest.mark.slow

SOON = {"agent_heartbeat_interval_s": "0.3", "nodes_suspect_after_s": "2"}


def node_state(scheduler: SingleServer) -> str:
    (node,) = scheduler.get("/nodes")["nodes"]
    return str(node["state"])


def test_frozen_agent_gets_no_jobs_and_its_jobs_continue_and_are_recovered() -> None:
    with a_single_server(**SOON) as scheduler:
        scheduler.start()
        workload = Workload(scheduler.directory, Random(1))
        running = scheduler.submit(workload.until_told("exit:42").body)
        scheduler.until(scheduler.witnesses, "a job that runs")
        (agent,) = scheduler.agents()
        os.kill(agent, signal.SIGSTOP)
        scheduler.until(lambda: node_state(scheduler) != "online", "the node is lost")
        waiting = scheduler.submit(workload.plain().body)
        assert scheduler.get(f"/jobs/{waiting}")["state"] == "pending"
        assert len(scheduler.witnesses()) == 1
        scheduler.release_jobs()
        scheduler.until(
            lambda: not scheduler.witnesses(), "the end of the job, with the agent frozen"
        )

        os.kill(agent, signal.SIGCONT)
        scheduler.until(lambda: node_state(scheduler) == "online", "the node is back")
        for job_id in (running, waiting):
            scheduler.until(
                lambda job_id=job_id: scheduler.get(f"/jobs/{job_id}")["state"] in ENDED,
                f"the end of {job_id}",
            )
        assert scheduler.get(f"/jobs/{running}")["exit_code"] == 42
        runs, wrong = read_notes(scheduler.notes)
        assert (len(runs), wrong) == (2, [])
        assert scheduler.agents() == [agent]
        assert scheduler.tracebacks() == []
