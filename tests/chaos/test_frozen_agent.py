"""A frozen agent whose stream stays open."""

from __future__ import annotations

import os
import signal
from random import Random

import pytest

from tests.chaos.audit import ENDED, read_notes
from tests.chaos.single_server import House, a_house
from tests.chaos.workload import Workload

pytestmark = pytest.mark.slow

SOON = {"agent_heartbeat_interval_s": "0.3", "nodes_suspect_after_s": "2"}


def node_state(house: House) -> str:
    (node,) = house.get("/nodes")["nodes"]
    return str(node["state"])


def test_frozen_agent_gets_no_jobs_and_its_jobs_continue_and_are_recovered() -> None:
    with a_house(**SOON) as house:
        house.start()
        workload = Workload(house.directory, Random(1))
        running = house.submit(workload.until_told("exit:42").body)
        house.until(house.witnesses, "a job that runs")
        (agent,) = house.agents()
        os.kill(agent, signal.SIGSTOP)
        house.until(lambda: node_state(house) != "online", "the node is lost")
        waiting = house.submit(workload.plain().body)
        assert house.get(f"/jobs/{waiting}")["state"] == "pending"
        assert len(house.witnesses()) == 1
        house.let_end()
        house.until(lambda: not house.witnesses(), "the end of the job, with the agent frozen")

        os.kill(agent, signal.SIGCONT)
        house.until(lambda: node_state(house) == "online", "the node is back")
        for job_id in (running, waiting):
            house.until(
                lambda job_id=job_id: house.get(f"/jobs/{job_id}")["state"] in ENDED,
                f"the end of {job_id}",
            )
        assert house.get(f"/jobs/{running}")["exit_code"] == 42
        runs, wrong = read_notes(house.notes)
        assert (len(runs), wrong) == (2, [])
        assert house.agents() == [agent]
        assert house.tracebacks() == []
