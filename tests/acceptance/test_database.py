"""A real server during a PostgreSQL outage, and the `tgpu db` commands."""

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_scheduler.client.client import Client
from gpu_scheduler.model.errors import SchedulerError
from tests.acceptance.conftest import LONGEST_S, RealServer, a_state_dir
from tests.database_proxy import Proxy
from tests.postgres import OwnPostgres, a_server

GPUS = "2xA100-80GB"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def postgres() -> Iterator[OwnPostgres]:
    with a_server() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[RealServer]:
    """A state directory for a server of the test."""
    with a_state_dir() as state_dir:
        yield RealServer(state_dir)


def status(client: Client) -> str:
    return str(client.health()["status"])


def is_healthy(client: Client) -> bool:
    try:
        return status(client) == "healthy"
    except SchedulerError:
        return False


def test_jobs_run_and_requests_fail_while_database_is_down_and_records_are_exact_afterwards(
    own_server: RealServer, postgres: OwnPostgres, tmp_path: Path
) -> None:
    own_server.environment |= {
        "GPU_SCHEDULER_DATABASE_URL": postgres.make_database(),
        "GPU_SCHEDULER_DATABASE_CONNECT_TIMEOUT_S": "1",
    }
    own_server.start(GPUS)
    script = "echo $$ >> runs; while [ ! -e go ]; do sleep 0.05; done; exit 7"
    running = own_server.submit("-G", 1, "--", "sh", "-c", script, cwd=tmp_path)
    until((tmp_path / "runs").exists)
    with own_server.client() as client:
        for away, back in (
            (postgres.stop, postgres.start),
            (postgres.freeze, postgres.thaw),
        ):
            away()
            refused = own_server.tgpu("submit", "-G", 1, "--", "true", code=1)
            assert "is not available" in refused.stderr
            assert status(client) == "degraded"
            assert "is not available" in own_server.tgpu("list", code=1).stderr
            if away == postgres.stop:
                (tmp_path / "go").touch()  # its end is reported only later
            back()
            until(lambda: is_healthy(client))
        own_server.tgpu("wait", running, code=7)
        after = own_server.submit("-G", 1, "--", "true")
        own_server.json("wait", after)
        jobs = {job["id"]: (job["state"], job["exit_code"]) for job in client.list(archived=True)}
    assert jobs == {running: ("failed", 7), after: ("completed", 0)}
    assert len((tmp_path / "runs").read_text().split()) == 1
    assert own_server.json("db", "check", "--state-dir", own_server.state_dir)["problems"] == []
    own_server.tgpu("down", "--state-dir", own_server.state_dir)


@pytest.mark.slow
def test_server_stops_although_database_failed_during_commit(
    own_server: RealServer, postgres: OwnPostgres
) -> None:
    proxy = Proxy(postgres.port)
    url = postgres.make_database().replace(f":{postgres.port}/", f":{proxy.port}/")
    own_server.environment |= {
        "GPU_SCHEDULER_DATABASE_URL": url,
        "GPU_SCHEDULER_DATABASE_CONNECT_TIMEOUT_S": "1",
        # The next COMMIT is that of the submission, not a lease renewal.
        "GPU_SCHEDULER_REPLICATION_HEARTBEAT_INTERVAL_S": "60",
        "GPU_SCHEDULER_REPLICATION_HEARTBEAT_TIMEOUT_S": "200",
    }
    own_server.start(GPUS)
    proxy.lose = "answer"
    with ThreadPoolExecutor(1) as pool, own_server.client() as client:
        submitting = pool.submit(client.submit, ["true"], gpus=1)
        assert proxy.lost.wait(LONGEST_S)
        own_server.tgpu("down", "--state-dir", own_server.state_dir)
        with pytest.raises(SchedulerError):
            submitting.result(LONGEST_S)
    proxy.close()


def test_backup_of_running_server_can_be_restored_and_copied_to_postgresql(
    own_server: RealServer, postgres: OwnPostgres, tmp_path: Path
) -> None:
    where = ("--state-dir", own_server.state_dir)
    own_server.start(GPUS)
    first = own_server.submit("-G", 1, "--", "true")
    own_server.json("wait", first)
    own_server.tgpu("db", "backup", tmp_path / "backup.db", *where)
    lost = own_server.submit("-G", 1, "--", "true")
    own_server.json("wait", lost)
    again = own_server.tgpu("db", "backup", tmp_path / "backup.db", *where, code=2)
    assert "already exists" in again.stderr
    own_server.tgpu("down", *where)

    # Restore it as docs/howto/database.md says.
    for file in Path(own_server.state_dir).glob("scheduler.db*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.db", Path(own_server.state_dir, "scheduler.db"))
    own_server.start(GPUS)
    assert [job["id"] for job in own_server.json("history")["jobs"]] == [first]
    own_server.tgpu("down", *where)

    url = postgres.make_database()
    copied = own_server.json("db", "copy", "--to", url, *where)
    assert copied["rows"]["jobs"] == 1
    assert "not empty" in own_server.tgpu("db", "copy", "--to", url, *where, code=2).stderr
    own_server.environment["GPU_SCHEDULER_DATABASE_URL"] = url
    assert own_server.json("db", "check", *where)["rows"]["jobs"] == 1
    own_server.start(GPUS)
    assert [job["id"] for job in own_server.json("history")["jobs"]] == [first]
    # The number of the lost job is not reused, because its logs still exist.
    assert own_server.submit("-G", 1, "--", "true") == "job-100002"
    own_server.stop()


def test_db_command_rejects_wrong_arguments_with_explanation(own_server: RealServer) -> None:
    where = ("--state-dir", own_server.state_dir)
    assert "needs the name" in own_server.tgpu("db", "backup", *where, code=2).stderr
    assert "--to" in own_server.tgpu("db", "copy", *where, code=2).stderr
    wrong = own_server.tgpu("db", "check", "--from", "mysql://x", *where, code=2)
    assert "postgresql://" in wrong.stderr
    away = own_server.tgpu("db", "check", "--from", "postgresql://127.0.0.1:1/x", *where, code=4)
    assert "is not available" in away.stderr
    missing = own_server.tgpu("db", "backup", "x.db", "--from", "sqlite:////nowhere/x.db", code=4)
    assert "does not exist yet" in missing.stderr
