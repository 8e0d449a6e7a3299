"""Failing starts give a clear message and exit code, and leave nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import sqlite3
from collections.abc import Callable
from functools import cache
from random import Random

import pytest

from tests.chaos.single_server import SingleServer, a_single_server
from tests.chaos.workload import Workload

pytestmark = pytest.mark.slow

CANNOT_LISTEN, DAMAGED, NEWER, IN_USE, NO_PLACE = 3, 5, 6, 7, 8


def cut_off(data: bytes) -> bytes:
    return data[: len(data) // 2 + 100]


def overwritten(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[: middle - 8192] + bytes(range(256)) * 64 + data[middle + 8192 :]


def no_database(data: bytes) -> bytes:
    return b"this was a shopping list\n" * 400


def emptied(data: bytes) -> bytes:
    return b""


def nothing_is_left(scheduler: SingleServer) -> None:
    assert scheduler.agents() == []
    # The lease watchdog notices the end of the launcher, and exits as well.
    scheduler.until(lambda: not scheduler.launchers(), "no process of the launcher")
    assert [path.name for path in scheduler.state.rglob("*.sock")] == []
    assert not (scheduler.state / "server.json").exists()


@pytest.mark.parametrize("damage", [cut_off, overwritten, no_database, emptied])
def test_damaged_database_is_rejected_with_remedy_and_left_unchanged(
    damage: Callable[[bytes], bytes],
) -> None:
    with a_single_server() as scheduler:
        scheduler.state.mkdir(mode=0o700)
        database = scheduler.state / "scheduler.db"
        database.write_bytes(damage(_a_database()))
        before = database.read_bytes()
        answer = scheduler.refused()
        assert answer.returncode == DAMAGED, answer.stderr
        assert str(database) in answer.stderr
        assert "backup" in answer.stderr
        assert "Traceback" not in answer.stderr
        assert database.read_bytes() == before
        nothing_is_left(scheduler)


def test_second_server_on_same_state_is_rejected_and_first_continues() -> None:
    with a_single_server() as scheduler:
        scheduler.start()
        assert scheduler.server is not None
        answer = scheduler.refused()
        assert answer.returncode == IN_USE, answer.stderr
        assert f"pid {scheduler.server.pid}" in answer.stderr
        assert "Traceback" not in answer.stderr
        plan = Workload(scheduler.directory, Random(1)).plain()
        job_id = scheduler.submit(plan.body)
        scheduler.until(
            lambda: scheduler.get(f"/jobs/{job_id}")["ended_at"], "a job of the first server"
        )
        assert scheduler.stop() == 0
        nothing_is_left(scheduler)


@pytest.mark.parametrize("option", ["--http-port", "--metrics-port"])
def test_port_in_use_fails_start_and_leaves_nothing_running(option: str) -> None:
    with a_single_server() as scheduler, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        answer = scheduler.refused(option, port)
        assert answer.returncode == CANNOT_LISTEN, answer.stderr
        assert port in answer.stderr
        assert "Traceback" not in answer.stderr
        nothing_is_left(scheduler)


def test_stopped_server_leaves_no_process_also_after_earlier_kill() -> None:
    with a_single_server() as scheduler:
        scheduler.start()
        agents, launchers = scheduler.agents(), scheduler.launchers()
        scheduler.kill_server()
        scheduler.start()
        assert (scheduler.agents(), scheduler.launchers()) == (agents, launchers)
        assert scheduler.stop() == 0
        nothing_is_left(scheduler)


def test_stopping_agent_is_not_reported_as_dead() -> None:
    with a_single_server() as scheduler:
        scheduler.start()
        assert scheduler.stop() == 0
        assert "stopping; jobs keep running" in scheduler.log()
        assert "agent died" not in scheduler.log()


def newer(scheduler: SingleServer) -> str:
    scheduler.state.mkdir(mode=0o700)
    database = scheduler.state / "scheduler.db"
    database.write_bytes(_a_database())
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE meta SET schema_version = 99")
    return "has schema version 99"


def no_directory(scheduler: SingleServer) -> str:
    scheduler.state.write_text("in the way")
    return "cannot be used"


@pytest.mark.parametrize(("spoil", "code"), [(newer, NEWER), (no_directory, NO_PLACE)])
def test_unusable_state_is_rejected_and_left_unchanged(
    spoil: Callable[[SingleServer], str], code: int
) -> None:
    with a_single_server() as scheduler:
        told = spoil(scheduler)
        kept = scheduler.state if scheduler.state.is_file() else scheduler.state / "scheduler.db"
        before = kept.read_bytes()
        answer = scheduler.refused()
        assert answer.returncode == code, answer.stderr
        assert told in answer.stderr
        assert str(scheduler.state) in answer.stderr
        assert "Traceback" not in answer.stderr
        assert kept.read_bytes() == before
        assert scheduler.agents() == []


def test_server_stops_on_request_while_waiting_for_agent() -> None:
    with a_single_server() as scheduler:
        (scheduler.state / "agent").mkdir(mode=0o700, parents=True)
        with (scheduler.state / "agent" / "agent.lock").open("w") as lock:
            # As with an agent that never connects.
            fcntl.flock(lock, fcntl.LOCK_EX)
            scheduler.spawn()
            scheduler.until(lambda: scheduler.get("/health"), "an answer")
            assert not (scheduler.state / "server.json").exists()
            assert scheduler.stop() == 0
        nothing_is_left(scheduler)


@pytest.mark.parametrize("died_before", [False, True])
def test_agent_with_outdated_settings_is_replaced(died_before: bool) -> None:
    """Also if a server died that had stored them without telling the agent."""
    with a_single_server() as scheduler:
        scheduler.start()
        before = scheduler.agents()
        scheduler.kill_server()
        if died_before:
            file = scheduler.state / "agent" / "agent.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"node": "other"}, indent=1))
        scheduler.start("--node-name", "other")
        scheduler.until(lambda: scheduler.agents() not in ([], before), "another agent")

        def online() -> list[str]:
            nodes = scheduler.get("/nodes")["nodes"]
            return [node["id"] for node in nodes if node["state"] == "online"]

        # The former agent may have connected for a moment before it was told to stop.
        scheduler.until(lambda: online() == ["other"], "only the new name")


@cache
def _a_database() -> bytes:
    """A database with some rows, made by a real server."""
    with a_single_server() as scheduler:
        scheduler.start()
        workload = Workload(scheduler.directory, Random(1))
        for _ in range(20):
            scheduler.submit(workload.plain().body)
        scheduler.until(
            lambda: all(job["ended_at"] for job in scheduler.jobs()), "the jobs of a first server"
        )
        assert scheduler.stop() == 0
        return (scheduler.state / "scheduler.db").read_bytes()
