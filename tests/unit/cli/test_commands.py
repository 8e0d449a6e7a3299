"""The commands about jobs, GPUs and tenants: effect and output."""

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli.accounting import report
from gpu_scheduler.cli.accounting.usage import usage_rows
from gpu_scheduler.cli.cluster import status
from gpu_scheduler.cli.connection import my_name
from gpu_scheduler.cli.jobs import follow
from gpu_scheduler.cli.jobs import list as listing
from gpu_scheduler.cli.jobs.columns import (
    COLUMNS,
    end_text,
    exit_text,
    gpus_text,
    place_text,
    state_code,
)
from gpu_scheduler.cli.main import COMMANDS, main
from gpu_scheduler.cli.submit import run
from gpu_scheduler.cli.text.tables import aligned
from gpu_scheduler.client.errors import NoServer
from gpu_scheduler.client.requests import exit_code_of
from gpu_scheduler.model.errors import InvalidRequest
from tests.unit.client.fake_server import USER, WHEN, FakeServer, a_server

Tell = Callable[..., str]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with a_server() as running:
        monkeypatch.setenv("TGPU_SERVER", running.directory)
        for module in ("list", "columns", "actions"):
            monkeypatch.setattr(f"gpu_scheduler.cli.jobs.{module}.mine", lambda: USER)
        yield running


@pytest.fixture
def tell(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Run a command that must end with the given code, and return what it printed."""

    def tell(*words: str, code: int = 0) -> str:
        try:
            ended = main(words)
        except SystemExit as end:
            ended = int(str(end.code))
        shown = capsys.readouterr()
        assert ended == code, shown.err
        return shown.out if code == 0 else shown.out + shown.err

    return tell


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


def submitted(server: FakeServer, count: int = 1, **fields: Any) -> None:
    for number in range(count):
        server.add({"command": ["sleep", str(number)], "name": "sleep", "gpu_count": 2} | fields)


# --- lists


def test_list_in_pipe_is_aligned_and_complete(server: FakeServer, tell: Tell) -> None:
    submitted(server, 2)
    gpus = [{"index": 0, "share": 1, "memory_mb": 0}, {"index": 3, "share": 1, "memory_mb": 0}]
    server.change("job-2", state="running", allocation=[{"node": "box", "gpus": gpus}])
    assert tell("list").splitlines() == [
        "JOBID  NAME   USER  ST  TIME  LIMIT  GPUS  NODELIST(REASON)",
        "2      sleep  ada   R   0:00      -     2  box[0,3]",
        "1      sleep  ada   PD  0:00      -     2  (waiting for 2 GPUs; 1 is free)",
    ]
    assert tell("list", "--tabs").splitlines() == [
        "JOBID\tNAME\tUSER\tST\tTIME\tLIMIT\tGPUS\tNODELIST(REASON)",
        "2\tsleep\tada\tR\t0:00\t-\t2\tbox[0,3]",
        "1\tsleep\tada\tPD\t0:00\t-\t2\t(waiting for 2 GPUs; 1 is free)",
    ]


def test_list_of_all_users_shows_expected_ends(server: FakeServer, tell: Tell) -> None:
    submitted(server, 3)
    now = datetime.now().astimezone().replace(microsecond=0)
    later, past = now + timedelta(days=3), now - timedelta(seconds=5)
    server.change("job-1", state="running", redacted=True, expected_end=later.isoformat())
    server.change("job-2", state="running", expected_end=past.isoformat())
    head, *lines = [line.split("\t") for line in tell("list", "-A", "--tabs").splitlines()]
    assert head == ["JOBID", "NAME", "USER", "ST", "TIME", "LIMIT", "END", "GPUS", head[-1]]
    assert [(line[0], line[1], line[6], line[7]) for line in lines] == [
        ("1", "-", f"{later:%Y-%m-%d %H:%M}", "2"),
        ("2", "sleep", "soon", "2"),
        ("3", "sleep", "-", "2"),
    ]


@pytest.mark.parametrize(
    ("at", "text"),
    [(None, "-"), (60, "12:01"), (86_400, "2026-03-02 12:00"), (0, "soon"), (-9, "soon")],
    ids=["unknown", "today", "tomorrow", "now", "late"],
)
def test_expected_end_is_short(at: float | None, text: str) -> None:
    now = datetime(2026, 3, 1, 12).astimezone()
    end = None if at is None else (now + timedelta(seconds=at)).isoformat()
    assert end_text({"expected_end": end}, now.timestamp()) == text


def test_long_list_is_truncated_with_note(
    server: FakeServer, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(server, 5)
    assert main(["list", "-q", "--limit", "3"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "job-1\njob-2\njob-3\n"
    assert shown.err == "tgpu: 3 of 5 jobs shown; --limit 0 shows all\n"
    assert len(tell("list", "-q", "--limit", "0").splitlines()) == 5
    server.change("job-5", state="running")
    assert tell("list", "-q", "--limit", "1") == "job-5\n"


def test_name_is_whole_in_pipe_of_unknown_width(
    server: FakeServer, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "x" * 100
    submitted(server, name=name)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert name in tell("list").split()
    monkeypatch.setenv("COLUMNS", "60")  # as watch does
    assert max(map(len, tell("list").splitlines())) == 60
    assert name in tell("list", "--tabs").split("\t")
    server.end("job-1")
    assert name in tell("history", "--tabs").split("\t")


def test_chosen_columns_are_shown_in_their_order(server: FakeServer, tell: Tell) -> None:
    submitted(server, priority=1500)
    submitted(server, priority=1200)
    submitted(server, priority=9)
    shown = tell("list", "--columns", "priority,ID,nodelist,name", "--sort", "number", "--tabs")
    assert [line.split("\t") for line in shown.splitlines()] == [
        ["PRIORITY", "JOBID", "NODELIST(REASON)", "NAME"],
        ["high", "1", "(waiting for 2 GPUs; 1 is free)", "sleep"],
        ["8", "2", "(waiting for 2 GPUs; 1 is free)", "sleep"],
        ["9/10000", "3", "(waiting for 2 GPUs; 1 is free)", "sleep"],
    ]
    server.end("job-1")
    assert tell("history", "--columns", "id,st").split() == ["JOBID", "ST", "1", "CD"]
    assert tell("history", "--columns", ",".join(COLUMNS)).count("\n") == 2
    sacct = tell("history", "--columns", "JobID,JobName,Elapsed,Timelimit,ExitCode,Account")
    assert sacct.split()[:6] == ["JOBID", "NAME", "TIME", "LIMIT", "EXIT", "TENANT"]
    told = tell("list", "--columns", "jobid,prioritty", code=2)
    assert "--columns has 'prioritty'; did you mean 'priority'? expected jobid, name" in told


@pytest.mark.parametrize("states", ["all", "ended", "failed,pending,completed"])
def test_newest_ended_jobs_are_listed(
    server: FakeServer, tell: Tell, capsys: pytest.CaptureFixture[str], states: str
) -> None:
    submitted(server, 5)
    for number in range(1, 6):
        server.end(f"job-{number}", number % 2)
    assert main(["list", "-q", "-s", states, "-L", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "job-4\njob-5\n"
    assert shown.err == "tgpu: 2 of 5 jobs shown; --limit 0 shows all\n"
    assert tell("list", "-q", "-s", states, "-L", "2", "--sort", "number").split()[0] == "job-1"
    assert tell("list", "-q", "-s", states, "-L", "0").split() == [f"job-{n}" for n in range(1, 6)]


def test_list_can_be_filtered(server: FakeServer, tell: Tell) -> None:
    submitted(server, 3)
    server.end("job-1")
    server.change("job-2", state="running", user="bob")
    assert tell("list", "-q") == "job-3\n"
    assert tell("list", "-q", "-u", "all").split() == ["job-2", "job-3"]
    assert tell("list", "-q", "-A", "--state", "R") == "job-2\n"
    assert tell("list-jobs", "-q", "-u", "bob", "--status", "running") == "job-2\n"
    assert tell("list", "-q", "-A", "--state", "all").split() == ["job-1", "job-2", "job-3"]
    assert tell("list", "-q", "--state", "ended") == "job-1\n"
    assert tell("list", "-q", "-J", "other") == ""
    assert [job["id"] for job in json.loads(tell("list", "--json"))["jobs"]] == ["job-3"]
    assert "expected pending" in tell("list", "--state", "sleeping", code=2)


def test_list_and_history_take_patterns_of_names(server: FakeServer, tell: Tell) -> None:
    submitted(server, name="grid lr=0.1")
    submitted(server, name="grid lr=0.2")
    submitted(server, name="other")
    assert tell("list", "-J", "grid*", "-q").split() == ["job-1", "job-2"]
    assert tell("list", "-J", "grid*", "-q", "-L", "1").split() == ["job-1"]
    server.end("job-2")
    assert "grid lr=0.2" in tell("history", "-J", "*lr*", "--tabs")
    assert "lr" not in tell("history", "-J", "x*", "--tabs")


def test_all_pages_are_read(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tell: Tell
) -> None:
    monkeypatch.setattr(listing, "_LARGEST_PAGE", 2)
    submitted(server, 5)
    assert len(tell("list", "-q", "--limit", "0").split()) == 5


def test_unnamed_job_is_shown_by_its_program(server: FakeServer, tell: Tell) -> None:
    submitted(server, name="", command=["/bin/sh", "-c", "python train.py --lr 1"])
    submitted(server, name="", command=[])
    named = [line.split("\t")[1] for line in tell("list", "--tabs").splitlines()[1:]]
    assert sorted(named) == ["", "train.py"]
    assert tell("show", "1").startswith("job-1  train.py  ")
    server.end("job-1")
    assert "\ttrain.py\t" in tell("history", "--tabs")


def test_history_accepts_only_final_states(server: FakeServer, tell: Tell) -> None:
    told = tell("history", "--state", "failed,PD", code=2)
    assert "'pending', but history shows ended jobs; expected cancelled, completed, failed" in told
    submitted(server, 2)
    server.end("job-1")
    assert len(tell("history", "--state", "all").splitlines()) == 2


def test_job_without_measures_has_no_measured_section(server: FakeServer, tell: Tell) -> None:
    submitted(server, gpu_count=0)
    assert "measured" not in tell("show", "1")


def test_history_shows_how_jobs_ended(server: FakeServer, tell: Tell) -> None:
    submitted(server, 3)
    server.end("job-1", started_at="2026-01-31T17:00:00.000Z")
    server.end("job-2", 3, reason="exit code 3")
    rows = [line.split("\t") for line in tell("history", "--tabs").splitlines()]
    assert rows[0][:5] == ["JOBID", "NAME", "USER", "ST", "EXIT"]
    assert sorted((row[0], row[3], row[4], row[6], row[9]) for row in rows[1:]) == [
        ("1", "CD", "0", "1:00:00", ""),
        ("2", "F", "3", "0:00", "exit code 3"),
    ]
    assert json.loads(tell("history", "--json", "--state", "failed"))["total"] == 1
    assert "1 of 2 jobs" not in tell("history", "--limit", "1")
    server.change("job-2", user="ben")
    assert [json.loads(tell("history", "--json", *all_))["total"] for all_ in ([], ["-A"])] == [
        1,
        2,
    ]


def test_terminal_table_is_aligned_and_only_last_column_is_cut() -> None:
    lines = aligned(
        ("ID", "N", "REASON"),
        [["1", "22", "x" * 90], ["100", "3", "y"]],
        right=frozenset({"N"}),
        width=40,
    )
    assert lines == ["ID    N  REASON", f"1    22  {'x' * 30}…", "100   3  y"]


@pytest.mark.parametrize("deed", ["cancel", "hold", "release", "retry"])
def test_all_without_jobs_says_so(
    server: FakeServer, capsys: pytest.CaptureFixture[str], deed: str
) -> None:
    assert main([deed, "all"]) == 0
    told = "tgpu: you have no pending or running jobs\n"
    assert capsys.readouterr() == ("", told)


# --- single jobs


def test_show_prints_every_field(server: FakeServer, tell: Tell) -> None:
    submitted(server, gpu_count=0.5)
    server.change(
        "job-1",
        state="running",
        started_at=WHEN,
        environment={"LR": "0.1"},
        dependencies=["afterok:job-9", {"type": "afterany", "job_id": "job-8"}],
        array={"tasks": "0-9", "states": {"pending": "2-9"}},
        attach=["tmux", "attach", "-t", "x y"],
        allocation=[{"node": "box", "gpus": [], "member": 0}],
        hold=True,
        memory_mb=2048,
        gpu_memory_mb=1024,
        cpu_cores=4,
    )
    shown = " ".join(tell("show", "1").split())
    for part in (
        *("job-1 sleep running", "GPUs 0.5", "variables LR=0.1", "command sleep 0"),
        *("memory 2 GB", "GPU memory 1 GB", "CPU cores 4", "held yes", "runs on box"),
        *("depends on afterok:job-9, afterany:job-8", "tasks 0-9 pending 2-9"),
        "attach tmux attach -t 'x y'",
    ):
        assert part in shown
    assert json.loads(tell("show", "--json", "1"))["id"] == "job-1"


def test_job_that_was_cancelled_while_held_shows_its_end(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    tell("hold", "1")
    assert re.search(r"held +yes", tell("show", "1"))
    server.end("job-1", state="cancelled", started_at=None)
    shown = tell("show", "1")
    assert "held" not in shown
    assert re.search(r"ended +\d{4}-", shown)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("token",), "no tokens; 'tgpu token create"),
        (("notify",), "no notification targets"),
        (("nodes",), "no nodes have joined"),
        (("node", "token", "list"), "no join tokens"),
        (("node", "keys"), "no node has joined yet"),
    ],
)
def test_empty_list_is_a_sentence(
    words: tuple[str, ...], told: str, server: FakeServer, tell: Tell
) -> None:
    server.nodes = []
    assert tell(*words).startswith(told)
    (answer,) = json.loads(tell(*words, "--json")).values()
    assert answer == []


def test_elastic_gang_shows_running_members(server: FakeServer, tell: Tell) -> None:
    submitted(server, gpu_count=4)
    places = [{"node": node, "gpus": [{"index": 0, "share": 1}]} for node in ("a", "b", "c")]
    server.change("job-1", state="running", started_at=WHEN, allocation=places)
    server.change("job-1", members=4, placed_members=3)
    assert "GPUs 3x1 (3 of 4 members)" in " ".join(tell("show", "1").split())
    assert "\t3x1\t" in tell("list", "--tabs")
    server.change("job-1", placed_members=None, allocation=[], state="pending")
    assert "GPUs 4x1 " in " ".join(tell("show", "1").split())


def test_array_shows_progress(server: FakeServer, tell: Tell) -> None:
    submitted(server, gpu_count=1)
    array = {"tasks": "0-99", "count": 100, "states": {"pending": "3-99", "running": "0-2"}}
    places = [{"node": "box", "gpus": [{"index": 0, "share": 1}]}]
    server.change("job-1", state="running", started_at=WHEN, array=array, allocation=places)
    assert tell("list", "--tabs").splitlines()[1].endswith("\tbox[0]")
    array["states"] = {"completed": "0-9,20", "failed": "10", "running": "11"}
    server.change("job-1", array=array)
    assert tell("list", "--tabs").splitlines()[1].endswith("\tbox[0]; 12 of 100 done")


def test_show_prints_results_of_earlier_attempts(server: FakeServer, tell: Tell) -> None:
    submitted(server, gpu_count=4)
    first = {
        "attempt": 1,
        "state": "failed",
        "exit_code": None,
        "signal": 9,
        "started_at": WHEN,
        "ended_at": WHEN,
        "detail": "member 1 on b: signal 9",
        "allocation": [{"node": "b", "gpus": [{"index": 0, "share": 1}]}],
    }
    second = {**first, "attempt": 2, "state": "running", "detail": "", "ended_at": None}
    server.change("job-1", state="pending", attempt=1, started_at=WHEN, attempts=[first])
    server.change("job-1", members=4, min_members=2)
    how = "failed, exit SIG9, after 0:00, on b[0], member 1 on b: signal 9"
    shown = " ".join(tell("show", "1").split())
    assert how in shown
    assert "members 4, at least 2" in shown
    assert "ran for" not in shown, "it waits"
    server.change("job-1", state="running", attempt=2, attempts=[first, second])
    shown = " ".join(tell("show", "1").split())
    assert how in shown
    assert "exit -" not in shown, "the one that runs is no earlier one"
    server.change("job-1", state="running", attempt=1, attempts=[first])
    assert "earlier attempts" not in tell("show", "1")
    many = [{**first, "attempt": number} for number in range(1, 16)]
    server.change("job-1", state="pending", attempt=15, attempts=many)
    shown = tell("show", "1")
    assert "5 more before these" in shown
    assert shown.count("exit SIG9") == 10


def test_control_characters_in_name_do_not_reach_terminal(server: FakeServer, tell: Tell) -> None:
    submitted(server, name="a\x1b[2Jb\tc")
    for words in (["list"], ["show", "1"], ["status"], ["cancel", "--dry-run", "1"]):
        assert "a\\x1b[2Jb\\tc" in tell(*words)


def test_explain_prints_reason_and_forecast(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    shown = tell("explain", "1")
    assert "waiting for 2 GPUs; 1 is free" in shown
    assert "expected start" in shown
    assert json.loads(tell("explain", "1", "--json"))["position"] == 3
    server.change("job-1", state="running")
    shown = tell("explain", "1")
    assert "started" in shown
    assert "expected start" not in shown


def test_logs_are_copied_unchanged(
    server: FakeServer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    submitted(server)
    server.write("job-1", b"a\xff\n")
    assert main(["logs", "1"]) == 0
    assert capfdbinary.readouterr().out == b"a\xff\n"
    server.end("job-1")
    assert main(["logs", "-f", "last"]) == 0
    assert capfdbinary.readouterr().out == b"a\xff\n"
    assert main(["logs", "-n", "3", "--attempt", "1", "1"]) == 0
    assert server.requests[-1].endswith("/logs?attempt=1&tail=3")


def test_json_logs_are_one_object_per_line(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(server)
    server.write("job-1", "é 1\n\nlast".encode() + b"\xff")
    server.end("job-1")
    for words in (["logs", "--json", "1"], ["logs", "--json", "-f", "1"]):
        assert main(words) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["line"] for one in told] == ["é 1", "", "last\ufffd"]
        assert {one["job_id"] for one in told} == {"job-1"}


def test_log_line_received_in_pieces_is_one_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = follow._JsonLines("job-1")
    for piece in (b"caf\xc3", b"\xa9\nba", b"r", b"\n"):
        lines.write(piece)
    lines.end()
    told = [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["café", "bar"]


def test_logs_of_unstarted_job_print_reason(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(server)
    assert main(["logs", "1"]) == 0
    assert "job-1 has not started: waiting for 2 GPUs; 1 is free" in capsys.readouterr().err
    server.end("job-1")
    assert main(["logs", "1"]) == 0
    assert capsys.readouterr().err == ""


def test_wait_without_jobs_says_so(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wait", "all"]) == 0
    assert "no pending or running jobs to wait for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ([], "one\ntwo\nthree\n"),
        (["-n", "5"], "one\ntwo\nthree\n"),
        (["--all-members"], "one\ntwo\nthree\n"),
        (["--attempt", "1"], "one\n"),
    ],
    ids=["all", "tail", "members", "one attempt"],
)
def test_logs_follow_job_from_attempt_to_attempt(
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    output: str,
) -> None:
    def ends_at_last(_: float) -> None:
        server.end("job-1", 1, attempt=3)

    submitted(server)
    server.logs = {"job-1.1": b"one\n", "job-1.2": b"two\n", "job-1.3": b"three\n"}
    server.change("job-1", attempt=1)
    monkeypatch.setattr(follow.time, "sleep", ends_at_last)
    assert main(["logs", "-f", "1", *words]) == 0
    shown = capfd.readouterr()
    assert shown.out == output
    told = [f"attempt {n} of job-1 {what}" for n, what in ((1, "has ended"), (2, "started"))]
    assert all((line in shown.err) == (len(output) > 4) for line in told)
    asked = [request for request in server.requests if "/logs" in request]
    assert not any("tail" in request for request in asked[1:])


def test_unterminated_line_of_attempt_is_not_joined_with_next(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_scheduler.cli.jobs.follow import Attempts
    from gpu_scheduler.client.client import Client

    submitted(server)
    server.logs = {"job-1.1": b"one", "job-1.2": b"two\n"}
    server.end("job-1", attempt=2)
    lines = follow._JsonLines("job-1")
    with Client() as client:
        status = follow.StatusLine(quiet=True, hint="")
        Attempts(client, "job-1", status, write=lines.write, between=lines.end).copy_until_end()
    told = [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["one", "two"]


def test_logs_follow_resumes_where_it_broke_off(server: FakeServer) -> None:
    from gpu_scheduler.client.client import Client

    submitted(server)
    server.write("job-1", b"12345")
    server.end("job-1")
    with Client() as client:
        follower = follow.Follower(client, "job-1", {"tail": None})
        follower.copied = 3
        follower.copy()
    assert server.requests[-1].endswith("/logs?offset=3&follow=1")
    assert follower.copied == 5


def test_resumed_tail_follow_does_not_print_whole_log(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_scheduler.client.client import Client

    submitted(server)
    server.write("job-1", b"12345")
    server.end("job-1")
    with Client() as client:
        follower = follow.Follower(client, "job-1", {"tail": 5})
        follower.copied = 3
        follower.copy()
    assert server.requests[-1].endswith("/logs?tail=5&follow=1")
    assert "repeating the last lines of job-1" in capsys.readouterr().err


def test_logs_follow_without_server_fails(tmp_path: Path) -> None:
    from gpu_scheduler.client.client import Client

    with pytest.raises(NoServer):
        follow.follow(Client(str(tmp_path)), "job-1", {})


def test_arguments_may_follow_options(server: FakeServer, tell: Tell) -> None:
    assert "name      vision" in tell("tenants", "create", "--max-gpus", "4", "vision")
    said = tell("tenants", "create", "--max-gpus", "4", "a", "b", code=2)
    assert "unexpected argument 'b'" in said


# --- references


def test_jobs_can_be_named_in_many_ways(server: FakeServer, tell: Tell) -> None:
    submitted(server, 5)
    for words, meant in (
        (["2", "job-3"], ["job-2", "job-3"]),
        (["1-3,5"], ["job-1", "job-2", "job-3", "job-5"]),
        (["last"], ["job-5"]),
        (["@"], ["job-5"]),
        (["@~2"], ["job-3"]),
        (["last_4", "@~1_[1-3]", "@_7-9"], ["job-5_4", "job-4_[1-3]", "job-5_[7-9]"]),
        (["all"], ["job-1", "job-2", "job-3", "job-4", "job-5"]),
        (
            ["2_4", "2_[1-3,7]", "2_5-6", "2", "2"],
            ["job-2_4", "job-2_[1-3,7]", "job-2_[5-6]", "job-2"],
        ),
    ):
        shown = tell("cancel", "--dry-run", *words)
        assert [line.split()[0] for line in shown.splitlines()] == meant


@pytest.mark.parametrize("word", ["x", "3-1", "1-999999", "12_", "@~x", "", "1,,2"])
def test_invalid_job_name_is_rejected(tell: Tell, word: str) -> None:
    assert "tgpu: error: '" in tell("cancel", word, code=2)


def test_command_for_one_job_rejects_several(server: FakeServer, tell: Tell) -> None:
    submitted(server, 2)
    assert "names 2 jobs; name one" in tell("logs", "1-2", code=2)
    assert "you have submitted only 2 jobs" in tell("logs", "@~9", code=2)


# --- changes


def test_cancel_continues_after_rejection(server: FakeServer, tell: Tell) -> None:
    submitted(server, 3)
    server.end("job-2")
    shown = tell("cancel", "1-3,9", code=2)
    assert "job-1 cancelled\n" in shown
    assert "job-3 cancelled\n" in shown
    assert "job-2 is completed" in shown
    assert "there is no job job-9" in shown
    assert tell("cancel-job", "77", code=4)


@pytest.mark.parametrize("command", ["cancel", "hold"])
def test_many_unknown_jobs_are_one_line(
    server: FakeServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    submitted(server, 3)
    assert main([command, "2-99,200"]) == 4
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()] == ["job-2", "job-3"]
    assert shown.err == "tgpu: error: unknown jobs: 4-99,200\n"


def test_one_task_is_cancelled_and_named(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    assert json.loads(tell("cancel", "--json", "1_5"))[0]["job_id"] == "job-1_5"
    assert json.loads(tell("cancel", "--json", "1_[1-3]"))[0]["job_id"] == "job-1_[1-3]"


def test_cancel_dry_run_rejects_unknown_tasks(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    server.change("job-1", array={"tasks": "0-9"})
    assert "would be cancelled" in tell("cancel", "--dry-run", "1_[1-3]")
    assert "job-1 has no task 10" in tell("cancel", "--dry-run", "1_[5-12]", code=4)


def test_array_tasks_are_cancelled_by_number(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    tell("cancel", "-q", "1_[1-3]")
    assert server.requests[-1] == "DELETE /api/v1/jobs/job-1?tasks=1-3"
    assert json.loads(tell("cancel", "--json", "1"))[0]["status"] == "cancelled"


def test_usage_of_attempt_is_corrected(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    options = ("--run-time", "90", "--reason", "wrong clock")
    told = tell("correct-usage", "job-1", *options)
    assert told == "attempt 1 of job-1 is charged for 90 s instead of 864,000 s\n"
    assert json.loads(tell("correct-usage", "--json", "1", *options))["run_seconds"] == 90


def test_jobs_are_held_released_and_retried(server: FakeServer, tell: Tell) -> None:
    submitted(server, 2)
    assert tell("hold", "1-2") == "job-1 held\njob-2 held\n"
    assert server.jobs["job-2"]["hold"] is True
    assert tell("release", "all") == "job-1 released\njob-2 released\n"
    server.end("job-1", 1)
    assert tell("retry", "1") == "job-1 queued again\n"
    assert tell("resubmit", "1") == "job-1 resubmitted as job-99 with 3 tasks\n"
    assert server.jobs["job-1"]["state"] == "pending"
    server.change("job-1", tasks="1-2,7", left=3)
    told = (
        "job-1 queued again: tasks 1-2,7; 3 cancelled tasks were not, "
        "add --cancelled to retry them too\n"
    )
    assert tell("retry", "1") == told
    server.change("job-1", tasks="1-2,7", left=0)
    assert tell("retry", "1", "--cancelled") == "job-1 queued again: tasks 1-2,7\n"
    assert server.requests[-1] == "POST /api/v1/jobs/job-1/retry?cancelled=true"
    assert json.loads(tell("hold", "--json", "1"))[0]["hold"] is True
    assert "there is no job job-9" in tell("hold", "9", code=4)


def test_waiting_job_is_updated(server: FakeServer, tell: Tell) -> None:
    submitted(server, 2)
    words = ["-p", "high", "-t", "4h", "-G", "0.5", "-J", "n", "-d", "3", "--memory", "1G"]
    assert tell("update", "1", *words) == "job-1 updated\n"
    job = server.jobs["job-1"]
    assert (job["priority"], job["max_runtime_seconds"], job["gpu_count"]) == (1500, 14400, 0.5)
    assert (job["dependencies"], job["memory_mb"]) == (["afterok:job-3"], 1024)
    assert json.loads(tell("update", "1", "--json", "-p", "0"))["priority"] == 0
    tell("update", "1", "-d", "afterany:last")
    assert server.jobs["job-1"]["dependencies"] == ["afterany:job-2"]
    assert "nothing to change" in tell("update", "1", code=2)


def test_wait_returns_first_nonzero_code(server: FakeServer, tell: Tell) -> None:
    submitted(server, 3)
    server.end("job-1")
    server.end("job-2", 0, signal=9)
    server.end("job-3", 5)
    assert tell("wait", "1") == "job-1 completed 0\n"
    assert "job-2 failed 137\njob-3 failed 5\n" in tell("wait", "1-3", code=137)
    assert tell("wait", "-q", "1") == ""
    assert json.loads(tell("wait", "--json", "1"))[0]["id"] == "job-1"


def test_wait_timeout_returns_124(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    assert "has not ended" in tell("wait", "--timeout", "0.05", "1", code=124)


def test_run_prints_output_and_returns_exit_code_of_job(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.when_submitted(exit_code=3, output=b"hello\n", reason="exit code 3")
    assert main(["run", "-G", "1", "--", "x"]) == 3
    shown = capfd.readouterr()
    assert shown.out == "hello\n"
    assert "tgpu: job-1 failed: exit code 3\n" in shown.err
    server.when_submitted(signal=15)
    assert main(["run", "-q", "--", "x"]) == 143
    server.when_submitted()
    assert main(["run", "-q", "true"]) == 0
    assert main(["run", "--dry-run", "true"]) == 0


def test_run_prints_attempts_it_did_not_see_start(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.logs = {f"job-1.{number}": b"att %d\n" % number for number in (1, 2, 3)}
    server.when_submitted(exit_code=1, attempt=3)
    assert main(["run", "--", "sh"]) == 1
    shown = capfd.readouterr()
    assert shown.out == "att 1\natt 2\natt 3\n"
    assert shown.err.splitlines() == [
        "tgpu: job-1 submitted",
        "tgpu: attempt 1 of job-1 has ended; it will be retried",
        "tgpu: attempt 2 of job-1 started",
        "tgpu: attempt 2 of job-1 has ended; it will be retried",
        "tgpu: attempt 3 of job-1 started",
        "tgpu: job-1 failed with exit code 1",
    ]
    server.when_submitted(exit_code=1, attempt=2)
    assert main(["run", "-q", "--", "sh"]) == 1
    assert capfd.readouterr().err == ""


def test_unreachable_output_of_one_attempt_does_not_hide_others(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.logs = {f"job-1.{number}": b"att %d\n" % number for number in (1, 2)}
    server.lost_logs = {"job-1.1"}
    server.when_submitted(attempt=2)
    assert main(["run", "--", "sh"]) == 0
    shown = capfd.readouterr()
    assert shown.out == "att 2\n"
    assert "tgpu: job-1: the output of job-1.1 is on a dead node\n" in shown.err
    server.lost_logs = {"job-1.2"}
    assert main(["logs", "-f", "1"]) != 0


def test_run_json_leaves_output_unchanged_and_ends_with_job(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.when_submitted(exit_code=3, output=b"hello\n")
    assert main(["run", "--json", "--", "sh"]) == 3
    shown = capfd.readouterr()
    assert shown.out == "hello\n"
    (line,) = shown.err.splitlines()
    assert (json.loads(line)["id"], json.loads(line)["exit_code"]) == ("job-1", 3)
    assert main(["run", "--json", "--pty", "--", "sh"]) == 2
    assert "--json does not go with --pty" in capfd.readouterr().err


def test_run_waits_for_job_whose_output_goes_to_file(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.when_submitted(exit_code=5)
    monkeypatch.setattr("gpu_scheduler.cli.jobs.follow.Follower.copy", None)
    assert main(["run", "-o", "out.txt", "--", "x"]) == 5


def test_waiting_run_prints_reason_and_forecast(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def starts_at_last(_: float) -> None:
        if "is pending" in "".join(said):
            server.end("job-1")

    said: list[str] = []
    show = follow.StatusLine.show
    monkeypatch.setattr(
        follow.StatusLine, "show", lambda self, *text: (said.append(text[0]), show(self, *text))
    )
    monkeypatch.setattr(follow, "_QUIET_S", 0)
    monkeypatch.setattr(follow.time, "sleep", starts_at_last)
    assert main(["run", "x"]) == 0
    shown = capfd.readouterr().err
    assert "tgpu: job-1 is pending; Ctrl-C cancels; expected start " in shown
    assert "; waiting for 2 GPUs; 1 is free" in shown


def test_pipe_gets_new_line_only_for_new_reason(
    capfd: pytest.CaptureFixture[str],
) -> None:
    status = follow.StatusLine(quiet=False, hint="")
    for seconds in (3, 2, 1):
        status.show(f"job-1 waits (in {seconds} s); 1 is free", "1 is free")
    status.show("job-1 waits (in 9 s); none is free", "none is free")
    status.show("no answer")
    status.show("no answer")
    assert capfd.readouterr().err.splitlines() == [
        "tgpu: job-1 waits (in 3 s); 1 is free",
        "tgpu: job-1 waits (in 9 s); none is free",
        "tgpu: no answer",
    ]


@pytest.mark.parametrize("words", [["logs", "1"], ["logs", "-f", "1"]], ids=" ".join)
def test_empty_log_of_failed_start_prints_reason(
    server: FakeServer, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    submitted(server)
    server.end("job-1", 1, reason="could not be started: no such file")
    assert main(words) == 0
    told = "tgpu: job-1 has no output: could not be started: no such file\n"
    assert capsys.readouterr().err == told
    assert main([*words, "-n", "0"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [["list"], ["show", "1"], ["explain", "1"], ["logs", "1"], ["history"]],
    ids=lambda words: words[0],
)
def test_every_command_prints_local_times(
    in_tokyo: None, server: FakeServer, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    submitted(server)
    server.change("job-1", reason="waiting until 2020-03-01 12:00:05 UTC")
    if words == ["history"]:
        server.end("job-1", 1, reason="stopped at 2020-03-01 12:00:05 UTC")
    assert main(words) == 0
    shown = capfd.readouterr()
    assert "2020-03-01 21:00:05" in shown.out + shown.err


def test_run_accepts_one_job_only(tell: Tell) -> None:
    assert "'tgpu run' takes one job" in tell("run", "-a", "0-9", "x", code=2)
    assert "'tgpu run' takes one job" in tell("run", "--param", "a=1,2", "x", code=2)


@pytest.mark.parametrize(
    ("typed", "code", "state"),
    [("c\n", 130, "cancelled"), ("d\n", 0, "running"), ("\n", 7, "failed")],
)
def test_interrupted_run_asks_what_to_do(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, state: str
) -> None:
    server.first_state = "running"
    copy = follow.Follower.copy
    interrupts = iter([KeyboardInterrupt])

    def interrupted(self: follow.Follower) -> None:
        if next(interrupts, None):
            raise KeyboardInterrupt
        if server.jobs["job-1"]["state"] == "running":
            server.end("job-1", 7)
        copy(self)

    monkeypatch.setattr(follow.Follower, "copy", interrupted)
    _type_on_a_terminal(monkeypatch, typed)
    assert main(["run", "-q", "sleep", "9"]) == code
    assert server.jobs["job-1"]["state"] == state


def _type_on_a_terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setattr(run.sys, "stdin", _Terminal(typed))
    monkeypatch.setattr(run.sys.stderr, "isatty", lambda: True, raising=False)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("asks", [True, False], ids=["terminal", "script"])
def test_cancelled_run_prints_output_until_end(
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    asks: bool,
) -> None:
    copy = follow.Follower.copy
    slow = server.slow_cancels = ["job-1"]

    def interrupted(self: follow.Follower) -> None:
        if slow:
            raise KeyboardInterrupt
        server.write("job-1", b"saved\n")
        server.end("job-1", 0, state="cancelled", reason="cancelled by ada")
        copy(self)

    server.first_state = "running"
    monkeypatch.setattr(follow.Follower, "copy", interrupted)
    if asks:
        _type_on_a_terminal(monkeypatch, "c\n")
    assert main(["run", "sh"]) == 130
    shown = capfd.readouterr()
    assert shown.out == "saved\n"
    assert ("tgpu: job-1 cancelling\n" in shown.err) == asks
    assert shown.err.endswith("tgpu: job-1 cancelled: cancelled by ada\n")


def test_second_interrupt_does_not_wait_for_end(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: follow.Follower) -> None:
        raise KeyboardInterrupt

    server.first_state = "running"
    server.slow_cancels = ["job-1"]
    monkeypatch.setattr(follow.Follower, "copy", interrupted)
    assert main(["run", "sh"]) == 130
    assert "job-1 has not ended yet; 'tgpu wait job-1' waits for it" in capfd.readouterr().err
    assert server.jobs["job-1"]["state"] == "running"


def test_job_that_ends_during_prompt_is_not_cancelled(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = follow.Follower.copy

    def interrupted(self: follow.Follower) -> None:
        if server.jobs["job-1"]["state"] == "running":
            server.end("job-1", 7)
            raise KeyboardInterrupt
        copy(self)

    server.first_state = "running"
    monkeypatch.setattr(follow.Follower, "copy", interrupted)
    assert main(["run", "-q", "sh"]) == 7


def test_interrupted_run_without_terminal_cancels(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.first_state = "running"

    def interrupted(self: follow.Follower) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow.Follower, "copy", interrupted)
    assert main(["run", "-q", "sleep", "9"]) == 130
    assert server.jobs["job-1"]["state"] == "cancelled"


def test_attach_runs_command_named_by_server(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    assert "submit it with '--runner terminal'" in tell("attach", "1", code=2)
    server.change("job-1", runner="tmux")
    assert "job-1 is pending" in tell("attach", "1", code=2)
    server.change("job-1", state="running", attach=["echo", "in the", "session"])
    assert tell("attach", "--print", "1") == "echo 'in the' session\n"
    ended = subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", "attach", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "in the session\n"
    assert "tgpu attach 1" not in tell("screens")
    assert "echo 'in the' session" in tell("screens")
    assert json.loads(tell("screens", "--json"))["jobs"][0]["id"] == "job-1"
    server.change("job-1", attach=["/no/such/program"])
    assert "cannot run" in tell("attach", "1", code=1)


# --- machine and cluster


def test_gpus_are_shown_paused_and_resumed(server: FakeServer, tell: Tell) -> None:
    rows = [line.split("\t") for line in tell("gpus", "--tabs").splitlines()]
    assert rows[1] == [
        "0",
        "A100-80GB",
        "shared",
        "50%",
        "1000 MB / 80 GB",
        "42%",
        "61 C",
        "250 W",
        "job-1 (ada)",
    ]
    assert tell("pause-gpu", "0", "box:1") == (
        "GPU 0 paused; running jobs go on\nGPU box:1 paused; running jobs go on\n"
    )
    assert server.paused == {0, 1}
    assert json.loads(tell("gpus", "--json"))["gpus"][0]["state"] == "paused"
    assert "PAUSED" in tell("status")
    assert tell("resume-gpu", "0") == "GPU 0 in use again\n"
    assert json.loads(tell("resume-gpu", "1", "--json"))[0]["paused"] is False
    assert "is not a GPU" in tell("pause-gpu", "x", code=2)
    assert "there is no GPU 9" in tell("pause-gpu", "9", code=4)


def test_tenants_are_created_updated_and_deleted(server: FakeServer, tell: Tell) -> None:
    words = [
        "--id",
        "vision",
        "--max-gpus",
        "16",
        "--max-gpu-memory",
        "200G",
        "--tier",
        "high",
        "--elastic",
        "yes",
        "--weight",
        "2",
    ]
    assert "tenant vision created" in tell("tenants", "create", "Vision lab", *words)
    assert server.tenants["vision"] == {
        "id": "vision",
        "name": "Vision lab",
        "max_gpus": 16,
        "max_gpu_memory_mb": 204800,
        "priority_tier": "high",
        "elastic": True,
        "fair_share_weight": 2,
    }
    assert "0 / 16" in tell("tenants")
    assert "tenant vision updated" in tell("tenants", "update", "vision", "--max-gpus", "8")
    assert "max_gpus" in tell("tenants", "show", "vision")
    assert "elastic            yes\n" in tell("tenants", "show", "vision")
    assert json.loads(tell("tenants", "show", "vision", "--json"))["max_gpus"] == 8
    assert json.loads(tell("tenants", "--json"))["tenants"][1]["id"] == "vision"
    tell("tenants", "update", "vision", "--max-gpus", "none", "--user-max-jobs", "None")
    assert server.tenants["vision"]["max_gpus"] is None
    assert server.tenants["vision"]["user_max_jobs"] is None
    assert tell("tenants", "delete", "vision") == "tenant vision deleted\n"
    assert "there is no tenant vision" in tell("tenants", "show", "vision", code=4)
    assert "TENANT is missing" in tell("tenants", "create", code=2)
    assert "nothing to change" in tell("tenants", "update", "default", code=2)
    assert "did you mean 'create'?" in tell("tenants", "creat", "x", code=2)


def test_other_queries_work_as_text_and_json(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    server.end(
        "job-1", started_at="2026-01-31T17:00:00.000Z", submitted_at="2026-01-31T16:59:00.000Z"
    )
    assert "box\tonline\t2" in tell("nodes", "--tabs")
    assert json.loads(tell("nodes", "--json"))["nodes"]
    assert "default\tada\t1.50\t3" in tell("usage", "--tabs")
    assert json.loads(tell("usage", "--json", "-u", "ada"))["usage"]
    assert "healthy" in tell("health")
    assert json.loads(tell("health", "--json"))["status"] == "healthy"
    shown = tell("metrics")
    assert "mean run seconds              3600.0" in shown
    assert "mean wait seconds             60.0" in shown
    assert "failed of the last 1 ended    0" in shown
    assert json.loads(tell("metrics", "--json"))["ended_jobs"] == 1
    assert tell("metrics", "--raw") == "gpu_scheduler_queue_size 3\n"


def test_unhealthy_server_returns_1(server: FakeServer, tell: Tell) -> None:
    body = {"status": "unhealthy", "checks": {"store": {"status": "failed", "detail": "full"}}}
    server.refusal = (503, body)
    assert "store   failed: full" in tell("health", code=1)


def test_status_fits_one_screen(server: FakeServer, tell: Tell) -> None:
    submitted(server, 12)
    server.change("job-1", state="running")
    shown = tell("status")
    assert "0 of 2 GPUs free, 1 job running, 11 pending\n" in shown
    assert "Running jobs: 1" in shown
    assert "... and 1 more" in shown
    for number in range(3, 13):
        server.end(f"job-{number}")
    assert "1 job running, 1 pending" in tell("status")
    server.change("job-1", state="scheduled")
    server.queued_tasks = 5000
    assert "1 job running, 1 pending (5,000 including array tasks)" in tell("status")
    detailed = tell("status", "--detailed")
    assert "store: ok" in detailed
    assert "TEMP" in detailed
    assert set(json.loads(tell("status", "--json"))) >= {"resources", "cluster", "health"}


def test_watch_ends_quietly(
    server: FakeServer, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([None, None])

    def sleep(_: float) -> None:
        if next(turns, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", sleep)
    assert tell("status", "--watch").count("GPUs free") == 3
    turns = iter([None])
    assert tell("status", "--watch", "--json").count('"resources"') == 2


# --- all commands


def test_every_command_returns_3_without_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["list"], ["submit", "true"], ["show", "1"], ["gpus"], ["status"], ["health"]):
        assert main([words[0], "--server", str(tmp_path), *words[1:]]) == 3
        assert "start one with 'tgpu up'" in capsys.readouterr().err


def test_errors_have_their_exit_codes(server: FakeServer, tell: Tell) -> None:
    message = "quota exceeded for tenant t: GPUs requested=8, quota=4, current=2"
    server.refusal = (403, {"error": message, "code": "quota_exceeded"})
    assert message in tell("submit", "true", code=5)
    server.refusal = (503, {"error": "full", "code": "queue_full"})
    assert tell("submit", "true", code=1) == "tgpu: error: full\n"


def test_failed_job_without_code_and_signal_returns_1() -> None:
    assert exit_code_of({"state": "failed"}) == 1
    assert exit_code_of({"state": "completed"}) == 0
    assert exit_text({"signal": 9}) == "SIG9"
    assert exit_text({}) == "-"
    assert state_code({"state": "failed", "reason": "time limit of 1 h"}) == "TO"
    assert gpus_text({"gpu_count": 8, "members": 4}) == "4x2"
    assert gpus_text({"gpu_count": 20, "members": 3}) == "20"
    assert gpus_text({"gpu_count": 0, "members": 2}) == "2x0"
    two = [{"gpus": [{"share": 1}, {"share": 0.5}]}, {"gpus": [{"share": 1}, {"share": 0.5}]}]
    shrunk = {"gpu_count": 6, "members": 4, "placed_members": 2, "allocation": two}
    assert gpus_text(shrunk) == "2x1.5"
    assert gpus_text(shrunk | {"placed_members": 1, "allocation": two[:1]}) == "1x1.5"
    assert place_text({"state": "failed", "allocation": [{"node": "a"}]}) == "a"
    assert place_text({"state": "running"}) == ""


@pytest.mark.usefixtures("server")
def test_empty_usage_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpu_scheduler.client.client.Client.usage", lambda *_, **__: {"usage": []})
    assert main(["usage"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no usage" in shown.err


@pytest.mark.usefixtures("server")
def test_usage_names_its_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage"]) == 0
    told = capsys.readouterr().err
    assert "running jobs count up to now; CANCELLED includes jobs that never ran" in told


def test_usage_rows_are_found_under_any_key() -> None:
    assert usage_rows([{"a": 1}]) == [{"a": 1}]
    assert usage_rows({"accounts": [{"a": 1}]}) == [{"a": 1}]
    assert usage_rows({"a": 1, "b": {}}) == [{"a": 1}]


def test_user_without_name_is_shown_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    assert my_name() == "3999999999"


def test_states_are_parsed_by_name_and_code() -> None:
    assert listing.states_of("PD,running") == ("pending", "running")
    assert listing.states_of("all") is None
    with pytest.raises(InvalidRequest):
        listing.states_of("x")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_every_command_is_readable(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: tgpu {name}" in capsys.readouterr().out


def test_completions_are_valid_shell_scripts(
    tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tell("completions", "bash")
    asked = "COMP_WORDS=(tgpu submit --gp); COMP_CWORD=2; _tgpu; echo ${COMPREPLY[*]}"
    ended = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == [
        *("--gpus", "--gpu-memory", "--gpu-memory-per-gpu", "--gpu-model"),
    ]
    assert "submit:submit a job to the queue" in tell("completions", "zsh")
    for_fish = tell("completions", "fish")
    assert "__fish_seen_subcommand_from submit' -l gpus" in for_fish
    assert "-d 'afterok:12, afterany:3:4, afterok:last'" in for_fish


def test_wait_returns_when_job_ends_meanwhile(server: FakeServer, tell: Tell) -> None:
    submitted(server)
    threading.Timer(0.05, server.end, ["job-1"]).start()
    assert tell("wait", "1") == "job-1 completed 0\n"


# --- choosing jobs by user, name and state


def test_jobs_are_cancelled_by_name_after_a_preview(server: FakeServer, tell: Tell) -> None:
    for name in ("train-a", "train-b", "eval"):
        submitted(server, name=name)
    shown = tell("cancel", "--name", "train*", code=1)
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [
        *(["1", "train-a"], ["2", "train-b"])
    ]
    assert all(job["state"] == "pending" for job in server.jobs.values())
    assert tell("cancel", "--name", "train*", "--dry-run").count("would be cancelled") == 2
    assert tell("cancel", "--name", "train*", "--yes") == "job-1 cancelled\njob-2 cancelled\n"
    assert server.jobs["job-3"]["state"] == "pending"


def test_jobs_are_cancelled_by_user_and_state(server: FakeServer, tell: Tell) -> None:
    submitted(server, 2)
    server.change("job-1", state="running")
    server.change("job-2", user="bob")
    submitted(server, 1)
    assert tell("cancel", "--state", "PD", "-y") == "job-3 cancelled\n"
    assert tell("cancel", "-u", "bob", "-y") == "job-2 cancelled\n"
    submitted(server, 1)
    server.change("job-4", user="bob")
    submitted(server, 1)
    assert tell("cancel", "-u", "all", "--state", "PD", "-y").split() == [
        *("job-4", "cancelled", "job-5", "cancelled")
    ]
    assert tell("cancel", "--name", "none", "-y") == ""
    assert "those jobs have ended" in tell("cancel", "--state", "failed", code=2)
    assert "--state is 'h'" in tell("cancel", "--state", "H", code=2)
    assert "leave out one of both" in tell("cancel", "1", "--user", "bob", code=2)
    assert "no job given" in tell("cancel", code=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-u", "zebedee"), "user 'zebedee' has no pending or running jobs"),
        (("-u", "root", "-J", "x*"), "user 'root' has no pending or running jobs named 'x*'"),
        (("-u", "all", "-s", "PD"), "there are no jobs in state PD"),
        (("-J", "x"), "you have no pending or running jobs named 'x'"),
    ],
)
def test_cancel_that_chooses_no_job_says_whose(
    server: FakeServer, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    submitted(server, 1)
    server.change("job-1", user="zebedee", state="completed")
    assert main(("cancel", *options)) == 0
    assert capsys.readouterr().err == f"tgpu: {said}\n"


def test_unknown_user_is_an_error_of_cancel_and_a_warning_of_lists(
    server: FakeServer, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(server, 1)
    server.change("job-1", user="zebedee")
    told = tell("cancel", "--user", "zebede", code=2)
    assert "user 'zebede' has no jobs here" in told
    assert "did you mean 'zebedee'?" in told
    for command in ("list", "history"):
        assert main((command, "--user", "zebede")) == 0
        assert "did you mean 'zebedee'?" in capsys.readouterr().err


def test_show_of_a_script_shows_its_text_and_arguments(server: FakeServer, tell: Tell) -> None:
    submitted(server, 1)
    lines = ["#!/bin/bash", *(f"step {number}" for number in range(60))]
    server.change("job-1", script="\n".join(lines), command=["a", "b c"])
    shown = tell("show", "1")
    assert re.search(r"script +61 lines, #!/bin/bash\n +arguments +a 'b c'\n", shown)
    assert shown.endswith("  step 38\n  ... 21 more lines; --json has all\n")


def test_preview_asks_on_a_terminal(
    server: FakeServer, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(server, 1)
    for answer, cancelled in (("n\n", False), ("y\n", True)):
        typed = io.StringIO(answer)
        monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stdin", typed)
        tell("cancel", "--name", "sleep", code=0 if cancelled else 1)
        assert (server.jobs["job-1"]["state"] == "cancelled") is cancelled


def test_reserve_alone_lists(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "gpu_scheduler.cli.cluster.reserve.call",
        lambda _, method, path: asked.append((method, path)) or {"reservations": []},
    )
    assert tell("reserve") == "no reservations\n"
    assert asked == [("GET", "/api/v1/reservations")]
    assert "--tenant is missing" in tell("reserve", "--gpus", "2", code=2)


def test_node_points_to_nodes(tell: Tell) -> None:
    assert "write 'tgpu nodes'" in tell("node", "list", code=2)
    assert "write 'tgpu nodes drain'" in tell("node", "drain", "n1", code=2)


def test_list_shows_the_default_time_limit(server: FakeServer, tell: Tell) -> None:
    submitted(server, 2)
    server.change("job-1", time_limit_minutes=90)
    server.change("job-2", time_limit_minutes=90, max_runtime_minutes=5)
    limits = tell("list", "--columns", "id,limit", "--sort", "number", "--tabs").splitlines()
    assert limits == ["JOBID\tLIMIT", "1\t1:30:00", "2\t5:00"]


def test_held_job_and_gang_look_different(server: FakeServer, tell: Tell) -> None:
    submitted(server, 2)
    server.change("job-1", hold=True)
    server.change("job-2", members=2)
    shown = tell("list", "--columns", "id,st,gpus", "--sort", "number", "--tabs").splitlines()
    assert shown[1].startswith("1\tH\t")
    assert shown[2].startswith("2\tPD\t2x1")


def test_table_of_the_page_has_names_on_the_left_and_readable_times() -> None:
    columns = report._columns(("USER", "BUSY"), texts=1)
    assert [(one.name, one.right) for one in columns] == [("user", False), ("busy", True)]
    assert report._time_text("2026-11-01T00:00:00.000Z") == "2026-11-01 00:00 UTC"
