"""Processes read from /proc."""

import os
import signal
import subprocess

import pytest

from gpu_scheduler.agent.launcher import processes


def test_process_is_identified_by_pid_and_start_time() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        ticks = processes.start_ticks(child.pid)
        assert ticks > 0
        assert processes.is_running(child.pid)
        handle = processes.open_pidfd(child.pid, ticks)
        assert handle >= 0
        os.close(handle)
        assert processes.open_pidfd(child.pid, ticks + 1) == -1
        assert child.pid in processes.own_children()
        assert child.pid in processes.descendants([os.getpid()], processes.family())
        assert processes.user_of(child.pid) == os.geteuid()
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_running(child.pid)
    assert processes.open_pidfd(child.pid, ticks) == -1
    child.wait()
    assert processes.start_ticks(child.pid) == 0
    assert processes.user_of(child.pid) == -1


def test_job_process_is_recognised_by_environment_and_launcher() -> None:
    environment = b"A=1\0TGPU_ALLOCATION_ID=job-1.1\0TGPU_MEMBER=3\0TGPU_LAUNCHER=abc\0"
    assert processes.owner_in(environment, "abc") == ("job-1.1", 3)
    assert processes.owner_in(environment, "other") is None
    assert processes.owner_in(b"TGPU_LAUNCHER=abc\0", "abc") is None
    assert processes.owner_in(b"", "abc") is None
    endless = b"TGPU_ALLOCATION_ID=a\0TGPU_LAUNCHER=abc\0TGPU_MEMBER=" + b"9" * 5000
    assert processes.owner_in(endless, "abc") == ("a", 0)


def test_signals_have_names() -> None:
    assert processes.signal_number("USR1") == signal.SIGUSR1
    assert processes.signal_number("sigterm") == signal.SIGTERM
    assert processes.signal_number("10") == 10
    for nonsense in ("", "0", "999", "USR9", "_DFL", "SIG_IGN"):
        assert processes.signal_number(nonsense) == 0


def test_signals_to_missing_process_are_harmless() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    processes.send([child.pid], signal.SIGTERM)
    processes.send_to_group(child.pid, signal.SIGTERM)


def test_pids_that_address_many_processes_are_never_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
    processes.send([-1, 0, 1, -7], signal.SIGKILL)
    for leader in (-1, 0, 1):
        processes.send_to_group(leader, signal.SIGKILL)
    assert sent == []


def test_ancestors_are_found_below_given_process() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        assert processes.ancestors_below(child.pid, os.getpid()) == [child.pid]
        assert processes.ancestors_below(child.pid, os.getppid()) == [child.pid, os.getpid()]
        assert processes.ancestors_below(os.getpid(), child.pid) == []
        assert processes.ancestors_below(1, os.getpid()) == []
    finally:
        child.kill()
        child.wait()
    assert processes.ancestors_below(child.pid, os.getpid()) == []
