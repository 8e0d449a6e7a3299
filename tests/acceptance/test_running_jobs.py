"""What a running job can rely on: signals, exit reasons, limits, retries, gangs and preemption."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.acceptance.conftest import RealServer

PATIENCE_S = 60


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.05)


def ended(server: RealServer, job: str) -> dict[str, Any]:
    with server.client() as client:
        return client.wait(job, timeout=PATIENCE_S)


def log(server: RealServer, job: str) -> str:
    return server.tgpu("logs", job).stdout


def test_job_is_warned_before_time_limit_and_then_stopped(server: RealServer) -> None:
    script = (
        "trap 'echo warned' USR1; trap 'echo asked; cat $TGPU_STOP_FILE; exit 9' TERM; "
        "echo ready; while :; do sleep 0.1; done"
    )
    job = server.submit("--time", "6s", "--signal", "USR1@2", "--", "sh", "-c", script)
    row = ended(server, job)
    assert (row["state"], row["reason"]) == ("failed", "stopped at its time limit")
    steps = ["ready", "warned", "asked", "timeout"]
    # The shell itself also says that its sleep was killed by the signal.
    said = [word for word in log(server, job).split() if word in steps]
    assert said == steps


def test_cancelled_job_ends_with_all_its_processes(server: RealServer) -> None:
    script = "(setsid sleep 300 & echo $!); trap '' TERM; echo ready; while :; do sleep 0.1; done"
    job = server.submit("--", "sh", "-c", script)
    until(lambda: "ready" in log(server, job))
    server.tgpu("cancel", job)
    row = ended(server, job)
    assert row["state"] == "cancelled"
    detached = int(log(server, job).split()[0])
    assert not _is_alive(detached)


def test_only_chosen_exit_codes_are_retried(server: RealServer) -> None:
    with server.client() as client:
        flaky = client.submit(
            ["sh", "-c", "test $TGPU_ATTEMPT = 2 || exit 75"], retries=3, retry_exit_codes=[75]
        )
        hopeless = client.submit(["sh", "-c", "exit 1"], retries=3, retry_exit_codes=[75])
    assert (ended(server, flaky.id)["state"], ended(server, flaky.id)["attempt"]) == (
        "completed",
        2,
    )
    assert (ended(server, hopeless.id)["state"], ended(server, hopeless.id)["attempt"]) == (
        "failed",
        1,
    )


def test_signal_and_exit_code_are_distinguished(server: RealServer) -> None:
    killed = ended(server, server.submit("--", "sh", "-c", "kill -KILL $$"))
    assert (killed["exit_code"], killed["signal"]) == (None, 9)
    exited = ended(server, server.submit("--", "sh", "-c", "exit 137"))
    assert (exited["exit_code"], exited["signal"]) == (137, None)


def test_missing_command_is_reported(server: RealServer) -> None:
    row = ended(server, server.submit("--", "/no/such/program"))
    assert row["state"] == "failed"
    assert "could not be started" in row["reason"]
    assert "/no/such/program" in row["reason"]


def test_gang_members_find_each_other(server: RealServer) -> None:
    meet = (
        "import os, socket, sys\n"
        "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "place = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "if rank == 0:\n"
        "    door = socket.create_server(place)\n"
        "    seen = {door.accept()[0].recv(9) for _ in range(size - 1)}\n"
        "    sys.exit(0 if len(seen) == size - 1 else 1)\n"
        "import time\n"
        "for _ in range(1000):\n"
        "    try:\n"
        "        socket.create_connection(place).send(b'%d' % rank); sys.exit(0)\n"
        "    except OSError: time.sleep(0.05)\n"
        "sys.exit(2)\n"
    )
    with server.client() as client:
        job = client.submit(["python3", "-c", meet], members=4, gpus=1)
    row = ended(server, job.id)
    assert row["state"] == "completed", row
    assert len({place["member"] for place in row["allocation"]}) == 4


def test_failure_of_one_member_stops_the_others(server: RealServer) -> None:
    with server.client() as client:
        job = client.submit(["sh", "-c", "test $RANK != 1 || exit 5; sleep 300"], members=3, gpus=1)
    row = ended(server, job.id)
    assert (row["state"], row["exit_code"]) == ("failed", 5)


def test_preempted_job_is_notified_and_resumes(server: RealServer) -> None:
    script = (
        "trap 'cat $TGPU_STOP_FILE; exit 0' TERM; test $TGPU_ATTEMPT = 1 || exit 0; "
        "echo ready; while :; do sleep 0.1; done"
    )
    with server.client() as client:
        victim = client.submit(["sh", "-c", script], gpus=8, priority="low")
        until(lambda: victim.state() == "running")
        until(lambda: "ready" in log(server, victim.id))
        urgent = client.submit(["true"], gpus=8, priority="urgent")
    assert ended(server, urgent.id)["state"] == "completed"
    row = ended(server, victim.id)
    assert (row["state"], row["preemptions"], row["attempt"]) == ("completed", 1, 2)
    assert "preempted" in server.tgpu("logs", victim.id, "--attempt", "1").stdout


def test_shares_of_one_gpu_run_concurrently(server: RealServer, tmp_path: Path) -> None:
    script = (
        "echo $CUDA_VISIBLE_DEVICES $TGPU_GPU_SHARE; touch $0/$TGPU_JOB_ID; "
        "until [ $(ls $0 | wc -l) = 2 ]; do sleep 0.05; done; sleep 0.2"
    )
    with server.client() as client:
        pair = [
            client.submit(["sh", "-c", script, str(tmp_path)], gpus=0.5, allowed_gpus=[7])
            for _ in range(2)
        ]
    rows = [ended(server, job.id) for job in pair]
    assert {log(server, job.id) for job in pair} == {"7 0.5\n"}
    begins, ends = zip(*((row["started_at"], row["ended_at"]) for row in rows), strict=True)
    assert max(begins) < min(ends), "both ran at the same time"


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
