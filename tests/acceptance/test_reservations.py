"""Advance reservations on a real server."""

import time
from collections.abc import Callable
from typing import Any

from tests.acceptance.conftest import LONGEST_S, RealServer
from tests.acceptance.test_cli_restart import kill_and_restart


def places(server: RealServer, job: str) -> list[int]:
    """The GPUs that a job holds once it runs."""
    with server.client() as client:
        give_up = time.monotonic() + LONGEST_S
        while not (shown := client.get(job))["allocation"]:
            assert time.monotonic() < give_up, f"{job} does not run: {shown['reason']}"
            time.sleep(0.05)
    return [gpu["index"] for place in shown["allocation"] for gpu in place["gpus"]]


def explained(server: RealServer, job: str, true: Callable[[Any], bool]) -> Any:
    """The explanation of a job, once it has this code."""
    give_up = time.monotonic() + LONGEST_S
    while not true(told := server.json("explain", job)):
        assert time.monotonic() < give_up, told
        time.sleep(0.05)
    return told


def test_reserved_gpus_are_kept_after_restart(server: RealServer) -> None:
    server.tgpu("tenants", "create", "vision", "--id", "vision")
    made = server.json(
        *("reserve", "--gpus", 2, "--tenant", "vision", "--duration", "1h", "--gpu-ids", "0-1")
    )
    assert (made["state"], made["places"][0]["gpu_ids"]) == ("active", [0, 1])
    other = server.submit("--gpus", 8, "--time", "10m", "--", "sleep", 600)
    kill_and_restart(server)
    # Until the agent is back, the job waits for it.
    told = explained(server, other, lambda told: told["code"] == "window")
    assert told["state"] == "pending"
    assert "2 GPUs are reserved for vision until" in told["reason"]
    assert told["expected_start"] >= made["end"]
    own = server.submit("--gpus", 1, "--tenant", "vision", "--", "sleep", 600)
    assert places(server, own) == [0]
    server.tgpu("cancel", own)
    server.tgpu("wait", own, code=143)
    server.tgpu("reserve", "cancel", made["id"])
    assert places(server, other) == list(range(8))
    server.tgpu("cancel", other)


def test_preempting_reservation_stops_running_jobs(server: RealServer) -> None:
    job = server.submit("--gpus", 8, "--time", "30m", "--", "sleep", 600)
    assert len(places(server, job)) == 8
    words = ("reserve", "--gpus", 2, "--tenant", "default", "--user", "nobody", "--duration", "1h")
    refused = server.tgpu(*words, code=2).stderr
    assert "8 used by jobs that could be preempted" in refused
    made = server.json(*words, "--preempt")
    with server.client() as client:
        for event in client.events(after=0):
            if event["kind"] == "preempted":
                break
    explained(server, job, lambda told: told["details"].get("reservation") == made["id"])
    server.tgpu("reserve", "cancel", made["id"])
    server.tgpu("cancel", job)


def test_reservation_list_shows_owner_gpus_and_end(server: RealServer) -> None:
    assert server.tgpu("reserve", "list").stdout == "no reservations\n"
    server.tgpu("reserve", "--gpus", 1, "--tenant", "default", "--start", "+2h", "--duration", "1d")
    row = server.tgpu("reserve", "list", "--tabs").stdout.splitlines()[1].split("\t")
    assert row[1:4] == ["planned", "1", "default"]
    assert server.json("reserve", "show", row[0])["gpus"] == 1
    server.tgpu("reserve", "cancel", row[0].removeprefix("res-"))
    assert "ID is missing" in server.tgpu("reserve", "cancel", code=2).stderr
    assert "is not known" in server.tgpu("reserve", "cancel", "res-99", code=4).stderr


def test_reservation_without_duration_is_rejected(server: RealServer) -> None:
    words = ("reserve", "--gpus", 1, "--tenant", "default", "--duration", "0")
    assert (
        "give either --duration, such as 2d or 90m, or --end" in server.tgpu(*words, code=2).stderr
    )
