"""`tgpu top` in a real terminal: display, keys, and restoring the terminal."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gpu_scheduler.model.errors import WrongState
from tests.acceptance.conftest import RealServer
from tests.acceptance.nvml_box import box, fake_nvml, fake_nvml_library
from tests.fakes.nvml import FakeNvml
from tests.terminal import PROMPT, Terminal, a_terminal, needs_tmux

__all__ = ["box", "fake_nvml", "fake_nvml_library"]

pytestmark = needs_tmux


@pytest.fixture
def terminal(server: RealServer) -> Iterator[Terminal]:
    with a_terminal(server.environment, columns=80, rows=24) as found:
        yield found
    with server.client() as client:
        jobs = [job["id"] for job in client.list(state=("running", "scheduled", "pending"))]
        for job in jobs:
            # A job that waited for the previous one may start and end at this moment.
            with suppress(WrongState):
                client.cancel(job)
        for job in jobs:
            client.wait(job, timeout=60)


def open_top(terminal: Terminal, *options: str) -> str:
    terminal.enter(f"clear; tgpu top -i 0.5 {' '.join(options)}")
    return terminal.see("q quit")


def selected(screen: str) -> str:
    return next((line for line in screen.split("\n") if line.startswith(">")), "")


def test_gpus_and_jobs_fit_80x24_and_larger_screens(server: RealServer, terminal: Terminal) -> None:
    runs = server.submit("-G", 8, "-t", "1h", "-J", "big-run", "--", "sleep", 600)
    for number in range(30):
        server.submit("-G", 1, "-t", "10m", "-J", f"waits-{number:02d}", "--", "true")
    open_top(terminal)
    screen = terminal.until(
        lambda shown: "1 running, 30 pending" in shown and "start" in shown, "the queue"
    )
    lines = screen.split("\n")
    assert lines[1].startswith("GPU MODEL MEMORY")
    number = runs.removeprefix("job-")
    assert all(f"{number} " in line and "big-run" in line for line in lines[2:10])
    assert lines[10].startswith("Jobs: 1-11 of 31, by queue")
    assert lines[12].startswith(">" + number)
    assert lines[13].split()[1:5] == ["waits-00", user(), "PD", "1"]
    assert lines[23].startswith("q quit")
    assert max(map(len, lines)) <= 80
    terminal.resize(150, 45)
    wide = terminal.until(lambda shown: "LIMIT" in shown and "waits-14" in shown, "a larger window")
    assert "TENANT" in wide
    terminal.resize(40, 10)
    small = terminal.until(lambda shown: "LIMIT" not in shown and ">" in shown, "a small window")
    assert max(map(len, small.split("\n"))) <= 40
    terminal.resize(80, 24)
    terminal.until(lambda shown: shown.split("\n")[23].startswith("q quit"), "the first size")
    terminal.press("q")
    terminal.until(lambda shown: shown.rstrip().endswith(PROMPT), "the prompt")
    assert "GPU MODEL" not in terminal.screen()


def user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def test_keys_select_job_and_cancel_it_after_confirmation(
    server: RealServer, terminal: Terminal
) -> None:
    jobs = [server.submit("-H", "-J", f"job-named-{name}", "--", "true") for name in "abc"]
    open_top(terminal)
    terminal.see("named-c")
    terminal.press("Down")
    terminal.until(lambda shown: "named-b" in selected(shown), "the second job")
    terminal.type("c")
    terminal.see(f"cancel {jobs[1]} job-named-b")
    terminal.press("Enter")
    terminal.see("not cancelled")
    assert server.json("show", jobs[1])["state"] == "pending"
    terminal.type("cy")
    terminal.see(f"{jobs[1]} is being cancelled")
    terminal.until(lambda shown: "named-b" not in shown, "the job to be gone")
    terminal.until(lambda shown: "named-c" in selected(shown), "its neighbour")
    assert server.json("show", jobs[1])["state"] == "cancelled"
    terminal.type("q")


def test_waiting_jobs_are_held_and_released(server: RealServer, terminal: Terminal) -> None:
    holder = server.submit("-G", 8, "--", "sleep", 600)
    job = server.submit("-G", 1, "-J", "patient", "--", "true")
    open_top(terminal, "--filter", "patient")
    terminal.until(lambda shown: "patient" in selected(shown), "the job")
    terminal.type("h")
    terminal.see(f"{job} is held")
    terminal.until(lambda shown: " H " in selected(shown), "the hold")
    terminal.type("r")
    terminal.see(f"{job} is released")
    terminal.until(lambda shown: " PD " in selected(shown), "the release")
    terminal.press("Escape")
    terminal.until(lambda shown: f">{holder}" not in shown and "Jobs: 2" in shown, "all jobs")
    terminal.type("q")


def test_logs_and_reasons_are_shown_and_filter_selects_jobs(
    server: RealServer, terminal: Terminal
) -> None:
    script = (
        "printf '\\033[2J\\033[31mone\\033[0m\\n'; i=0; "
        "while :; do i=$((i+1)); echo line-$i; sleep 0.1; done"
    )
    server.submit("-G", 8, "-J", "talker", "--", "sh", "-c", script)
    server.submit("-G", 8, "-J", "waiter", "--", "true")
    open_top(terminal)
    terminal.until(lambda shown: "talker" in selected(shown), "the first job")
    terminal.type("l")
    terminal.see("Output of job-")
    terminal.see("line-30")
    terminal.press("g")
    terminal.until(lambda shown: "\none\n" in shown, "the first line")
    terminal.press("q")
    terminal.see("q quit")
    terminal.type("/waiter pending")
    terminal.press("Enter")
    terminal.until(lambda shown: "Jobs: 1, by queue, with 'waiter pending'" in shown, "the filter")
    terminal.type("e")
    screen = terminal.see("expected start")
    assert "waiting for 8 GPUs" in screen
    terminal.type("q")
    terminal.see("q quit")
    terminal.press("Escape")
    terminal.see("Jobs: 2")
    terminal.type("u")
    terminal.see("Jobs: 2, by queue, yours only")
    terminal.type("us")
    terminal.see("by time")
    terminal.type("R")
    terminal.see("by time (reversed)")
    terminal.type("?")
    terminal.see("cancel the job, after a confirmation")
    terminal.type("qq")
    terminal.until(lambda shown: shown.rstrip().endswith(PROMPT), "the prompt")


def test_ctrl_z_restores_terminal_and_fg_resumes(terminal: Terminal) -> None:
    before = terminal.answer("stty -g | cksum")
    open_top(terminal)
    terminal.press("C-z")
    terminal.see("Stopped")
    assert terminal.answer("stty -g | cksum") == before
    terminal.enter("fg")
    terminal.see("q quit")
    terminal.type("q")
    terminal.until(lambda shown: shown.rstrip().endswith(PROMPT), "the prompt")
    assert terminal.answer("stty -g | cksum") == before


@pytest.mark.parametrize(
    ("end", "code"),
    [("C-c", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_terminal_is_restored_on_every_exit(
    terminal: Terminal, end: str | signal.Signals, code: int
) -> None:
    before = terminal.answer("stty -g | cksum")
    open_top(terminal)
    if isinstance(end, str):
        terminal.press(end)
    else:
        os.kill(terminal.process("gpu_scheduler to[p] -i 0.5"), end)
    terminal.until(lambda shown: shown.rstrip().endswith(PROMPT), "the prompt")
    assert terminal.answer("echo $?") == str(code)
    assert terminal.answer("stty -g | cksum") == before
    terminal.enter("echo visible")
    terminal.see("\nvisible")


def test_unreachable_server_is_shown_and_retried(server: RealServer, terminal: Terminal) -> None:
    open_top(terminal)
    server.tgpu("down", "--state-dir", server.state_dir)
    terminal.see("retrying")
    server.start("8xA100-80GB")
    terminal.until(lambda shown: "GPUs free" in shown, "the server")
    terminal.type("q")
    terminal.until(lambda shown: shown.rstrip().endswith(PROMPT), "the prompt")


def test_colours_depend_on_terminal(terminal: Terminal) -> None:
    open_top(terminal)
    terminal.until(lambda _: "\x1b[36m" in terminal.coloured(), "colours")
    terminal.type("q")
    terminal.until(lambda shown: shown.rstrip().endswith(PROMPT), "the prompt")
    terminal.enter("clear; NO_COLOR=1 tgpu top")
    terminal.see("q quit")
    shown = terminal.coloured()
    assert not [code for code in range(30, 38) if f"\x1b[{code}m" in shown]
    terminal.type("q")


def test_top_prints_one_frame_to_pipe(server: RealServer) -> None:
    server.submit("-H", "-J", "held-one", "--", "true")
    for words in (["top", "--once"], ["top"]):
        shown = server.tgpu(*words).stdout
        assert "\x1b" not in shown
        assert "8 of 8 GPUs free" in shown.splitlines()[0]
        assert len([line for line in shown.splitlines() if " A100 " in line]) == 8
        assert "held-one" in shown
    found = json.loads(server.tgpu("top", "--json").stdout)
    assert (len(found["gpus"]), found["jobs"][0]["name"]) == (8, "held-one")
    assert server.tgpu("top", "--once", "--server", "/no/such", code=3).stderr
    assert "expected one of" in server.tgpu("top", "--sort", "shoe", code=2).stderr
    server.tgpu("cancel", "last")


def test_bars_follow_hardware_and_foreign_processes_are_named(
    box: tuple[RealServer, FakeNvml],
) -> None:
    server, nvml = box
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        with a_terminal(server.environment, columns=120, rows=40) as terminal:
            open_top(terminal)
            nvml.gpu(2, temperature=63, utilisation=87, memory_used_mb=40_960, power_mw=251_000)
            # Readings of one moment need not all be new.
            signs = ("87%", "63C", "40G/80G")
            screen = terminal.until(lambda shown: all(map(shown.__contains__, signs)), "readings")
            line = screen.split("\n")[4]
            assert line.startswith("2 ")
            assert all(sign in line for sign in signs)
            assert line.count("█") > 10
            nvml.gpu(5, compute=f"{stranger.pid}:4096", memory_used_mb=4100)
            terminal.see(f":{stranger.pid} 4.0G")
            terminal.see(f":{stranger.pid}  4 GB  sleep")
            nvml.gpu(5, compute="", memory_used_mb=0)
            terminal.until(lambda shown: f":{stranger.pid}" not in shown, "the stranger to go")
            terminal.type("q")
    finally:
        stranger.kill()
        stranger.wait()
