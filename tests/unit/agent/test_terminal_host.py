"""The terminal host of a job, run in this process: a job on one side, clients on the other."""

import json
import os
import pty
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpu_scheduler.agent.runners import terminal_host as host
from gpu_scheduler.agent.runners import terminal_use

TERMS = {"rows": 24, "columns": 80, "idle_ms": 0, "attach_within_ms": 0, "keep": True}
LONGEST_S = 60


@pytest.fixture
def directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tgpu-") as found:
        yield found


class TerminalClient:
    """A client of the socket."""

    here: ClassVar[list["TerminalClient"]] = []

    def __init__(self, directory: str) -> None:
        self.here.append(self)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(LONGEST_S)
        give_up = time.monotonic() + LONGEST_S
        while self._socket.connect_ex(f"{directory}/{host.SOCKET}") != 0:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        self._heard = b""
        self.shown = b""

    def say(self, kind: bytes, data: bytes = b"") -> None:
        self._socket.sendall(host.HEAD.pack(kind, len(data)) + data)

    def open(self, **asked: Any) -> tuple[bytes, bytes]:
        self.say(b"o", json.dumps({"mode": "attach"} | asked).encode())
        return self.next()

    def next(self) -> tuple[bytes, bytes]:
        """The next message; `(b"", b"")` at the end."""
        while True:
            if len(self._heard) >= host.HEAD.size:
                kind, length = host.HEAD.unpack_from(self._heard)
                if len(self._heard) >= host.HEAD.size + length:
                    data = self._heard[host.HEAD.size :][:length]
                    self._heard = self._heard[host.HEAD.size + length :]
                    return kind, data
            piece = self._socket.recv(65536)
            if not piece:
                return b"", b""
            self._heard += piece

    def see(self, text: bytes) -> None:
        """Read until this was shown."""
        while text not in self.shown:
            kind, data = self.next()
            assert kind, self.shown
            if kind in (b"d", b"E", b"n"):
                self.shown += data

    def end(self) -> int:
        """Read to the end; returns the exit status of the program."""
        while True:
            kind, data = self.next()
            assert kind
            if kind == b"d":
                self.shown += data
            if kind == b"e":
                return os.waitstatus_to_exitcode(struct.unpack("!i", data)[0])

    def go(self) -> None:
        self._socket.close()


def served(
    directory: str,
    script: str,
    clients: Callable[[], None] = lambda: None,
    **terms: Any,
) -> tuple[int, str, str]:
    """Run a job on a terminal with these clients: its exit code, the reason, and its log."""
    pid, terminal = pty.fork()
    if pid == 0:
        # The parent of the tests may ignore it, as nohup does.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv("/bin/sh", ["/bin/sh", "-c", script])
    problems: list[BaseException] = []

    def visit() -> None:
        try:
            clients()
        except BaseException as problem:  # noqa: BLE001 - it is raised again below
            problems.append(problem)
            os.kill(pid, signal.SIGKILL)
        finally:
            for client in TerminalClient.here:
                client.go()
            TerminalClient.here.clear()

    visitor = threading.Thread(target=visit)
    visitor.start()
    order = {
        "terminal": TERMS | terms,
        "environment": {"PATH": "/usr/bin:/bin", "MARK": "of the job"},
        "workdir": "/",
        "umask": 0o022,
    }
    use = terminal_use.Use(TERMS | terms)
    log = Path(directory, "log")
    handler = signal.getsignal(signal.SIGCHLD)
    with log.open("wb") as file:
        detail = host.serve(pid, terminal, file.fileno(), order, directory, use)
    signal.signal(signal.SIGCHLD, handler)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    visitor.join(LONGEST_S)
    if problems:
        raise problems[0]
    assert not Path(directory, host.SOCKET).exists()
    return os.waitstatus_to_exitcode(status), detail, log.read_text()


def test_job_runs_and_is_logged_without_client(directory: str) -> None:
    assert served(directory, "echo alone; exit 3") == (3, "", "alone\n")


def test_host_without_socket_does_not_busy_wait(directory: str) -> None:
    nowhere = f"{directory}/{'long' * 30}"
    Path(nowhere).mkdir()
    began = time.process_time()
    assert served(nowhere, "sleep 0.8; echo done")[::2] == (0, "done\n")
    assert time.process_time() - began < 0.4


def test_keys_sizes_and_output_are_exchanged(directory: str) -> None:
    def clients() -> None:
        ann = TerminalClient(directory)
        assert ann.open(rows=33, columns=99)[0] == b"o"
        ann.see(b"ready")
        ann.say(b"w", host.SIZE.pack(40, 120))
        ann.say(b"d", b"now\n")
        assert ann.end() == 4
        assert b"40 120" in ann.shown

    code, _, log = served(directory, "echo ready; read x; stty size; echo $x; exit 4", clients)
    assert code == 4
    assert "now" in log


def test_several_clients_see_same_output_and_late_one_sees_history(directory: str) -> None:
    def clients() -> None:
        ann = TerminalClient(directory)
        ann.open()
        ann.see(b"first")
        ben = TerminalClient(directory)
        ben.open()
        ben.see(b"first")
        ann.say(b"d", b"go\n")
        ann.see(b"second")
        ben.see(b"second")
        ann.say(b"l")
        ben.say(b"d", b"go\n")
        assert ben.end() == 0

    assert served(directory, "echo first; read x; echo second; read x", clients)[0] == 0


def test_full_screen_program_is_redrawn_on_attach(directory: str) -> None:
    script = (
        "trap 'printf drawn-again' WINCH; printf '\\033[?1049hfull'; "
        "while [ ! -e done ]; do sleep 0.02; done"
    )

    def clients() -> None:
        ann = TerminalClient(directory)
        ann.open()
        ann.see(b"full")
        ann.go()
        ben = TerminalClient(directory)
        ben.open()
        ben.see(b"\x1b[?1049h\x1b[H\x1b[J")
        ben.see(b"drawn-again")
        assert b"full" not in ben.shown
        Path(directory, "done").touch()
        ben.end()

    assert served(directory, f"cd {directory}; {script}", clients)[0] == 0


@pytest.mark.parametrize(("keep", "farewell", "code"), [(True, False, 0), (False, True, 0)])
def test_job_continues_after_detach_or_with_keep(
    directory: str, keep: bool, farewell: bool, code: int
) -> None:
    def clients() -> None:
        ann = TerminalClient(directory)
        ann.open()
        ann.see(b"ready")
        if farewell:
            ann.say(b"l")
        ann.go()
        Path(directory, "done").touch()

    script = f"echo ready; while [ ! -e {directory}/done ]; do sleep 0.02; done; sleep 0.2"
    assert served(directory, script, clients, keep=keep)[0] == code


def test_job_without_keep_ends_with_connection(directory: str) -> None:
    def clients() -> None:
        ann = TerminalClient(directory)
        ann.open()
        ann.see(b"ready")
        ann.go()

    code, detail, log = served(directory, "echo ready; sleep 600", clients, keep=False)
    assert (code, detail) == (-signal.SIGHUP, "the connection to its terminal broke")
    assert "tgpu: ended: the connection" in log


def test_idle_job_is_warned_and_ended_and_unattended_job_is_ended(
    directory: str,
) -> None:
    def clients() -> None:
        ann = TerminalClient(directory)
        ann.open()
        ann.see(b"press a key")
        ann.see(b"idle for 3 s")
        ann.end()

    code, detail, _ = served(directory, "echo here; sleep 600", clients, idle_ms=3000)
    assert (code, detail) == (-signal.SIGHUP, "idle for 3 s")
    code, detail, _ = served(directory, "sleep 600", attach_within_ms=300)
    assert (code, detail) == (-signal.SIGHUP, "no user attached to its terminal within 0 s")


def test_idle_job_is_never_ended_without_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the host has not run for long, as on a busy or suspended machine."""
    times = iter((0.0, 90.0, 94.0))
    monkeypatch.setattr(terminal_use.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(terminal_use, "cpu_seconds", lambda _: 0.0)
    use = terminal_use.Use(TERMS | {"idle_ms": 60_000})
    word, why = use.verdict(1, visited=True)
    assert (word.rpartition("; ")[2], why) == ("press a key, or the job ends in 1 s", "")
    assert use.verdict(1, visited=True) == ("", "idle for 60 s")


def test_clients_are_warned_before_time_limit(directory: str) -> None:
    def clients() -> None:
        ann = TerminalClient(directory)
        ann.open()
        ann.see(b"at its time limit")
        ann.say(b"d", b"\n")
        assert ann.end() == 0

    assert served(directory, "read x", clients, limit_ms=2000)[0] == 0


def test_key_presses_reset_idle_time(directory: str) -> None:
    def clients() -> None:
        ann = TerminalClient(directory)
        ann.open()
        for _ in range(20):
            ann.say(b"d", b"x")
            time.sleep(0.2)
        ann.say(b"d", b"\n")
        assert ann.end() == 0

    assert served(directory, "stty -echo; read x", clients, idle_ms=3000)[0] == 0


def test_job_that_ignores_hangup_is_killed(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "KILL_AFTER_S", 0.5)
    script = "trap '' HUP TERM; while :; do sleep 0.1; done"
    assert served(directory, script, attach_within_ms=2_000)[0] == -signal.SIGKILL


def test_second_program_runs_inside_job_on_terminal_or_pipes(directory: str) -> None:
    def clients() -> None:
        ann = TerminalClient(directory)
        script = 'echo "$MARK $TERM"; test -t 0 && echo tty; exit 5'
        argv = ["sh", "-c", script]
        assert ann.open(mode="start", argv=argv, terminal=True, term="vt100")[0] == b"o"
        assert ann.end() == 5
        assert ann.shown == b"of the job vt100\r\ntty\r\n"
        ben = TerminalClient(directory)
        argv = ["sh", "-c", "cat; echo no >&2; pwd; exit 6"]
        assert ben.open(mode="start", argv=argv, terminal=False, directory="/usr")[0] == b"o"
        ben.say(b"d", b"\x00\x01~d" * 50_000)
        ben.say(b"c")
        ben.see(b"no\n")
        assert ben.end() == 6
        assert ben.shown.replace(b"no\n", b"") == b"\x00\x01~d" * 50_000 + b"/usr\n"
        for wrong in ({"argv": ["/no/such"]}, {"argv": []}, {"argv": ["ls"], "directory": "/no"}):
            kind, why = TerminalClient(directory).open(mode="start", terminal=False, **wrong)
            assert kind == b"x"
            assert why
        gone = TerminalClient(directory)
        gone.open(mode="start", argv=["sleep", "601"], terminal=True)
        gone.go()
        Path(directory, "done").touch()

    script = f"while [ ! -e {directory}/done ]; do sleep 0.02; done"
    assert served(directory, script, clients)[0] == 0


def held_up_at(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an unresponsive directory: programs hang before exec."""
    exec_program = host.exec_program

    def hangs(*arguments: Any) -> None:
        while not Path(gate).exists():
            time.sleep(0.01)
        exec_program(*arguments)

    monkeypatch.setattr(host, "exec_program", hangs)


def test_program_with_unresponsive_directory_blocks_no_other_client(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up_at(f"{directory}/gate", monkeypatch)

    def clients() -> None:
        ann, ben, eve = (TerminalClient(directory) for _ in range(3))
        argv = ["sh", "-c", "read x; pwd; echo $x; exit 5"]
        asked = {"argv": argv, "terminal": False, "directory": "/no", "or_its_own": True}
        ann.say(b"o", json.dumps({"mode": "start"} | asked).encode())
        ann.say(b"d", b"typed early\n")
        eve.say(b"o", json.dumps({"mode": "start", "argv": ["sleep", "601"]}).encode())
        eve.go()
        assert ben.open()[0] == b"o"
        ben.say(b"d", b"hello\n")
        ben.see(b"heard hello")
        Path(directory, "gate").touch()
        assert ann.next()[0] == b"o"
        assert ann.end() == 5
        assert ann.shown == b"/\ntyped early\n"
        ben.say(b"d", b"end\n")
        assert ben.end() == 0

    assert served(directory, "read x; echo heard $x; read x", clients)[0] == 0


def test_program_that_does_not_start_in_time_is_abandoned(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up_at(f"{directory}/gate", monkeypatch)
    monkeypatch.setattr(host, "START_TIMEOUT_S", 0.1)

    def clients() -> None:
        ann = TerminalClient(directory)
        kind, why = ann.open(mode="start", argv=["true"], terminal=True)
        assert (kind, why.partition(b";")[0]) == (b"x", b"it does not start")
        assert ann.next() == (b"", b"")
        ben = TerminalClient(directory)
        ben.open()
        ben.say(b"d", b"end\n")
        assert ben.end() == 0

    assert served(directory, "read x", clients)[0] == 0


def test_invalid_message_ends_only_its_connection(directory: str) -> None:
    def clients() -> None:
        for words in (b"\x00" * 99, host.HEAD.pack(b"o", 1 << 31), b"d\x00\x00\x00\x01x"):
            rude = TerminalClient(directory)
            rude._socket.sendall(words)
            assert rude.next() == (b"", b"")
        for text in (b"{", b"[]", b"7", b'{"rows": "x"}', b"{}", b'{"mode": "start"}'):
            rude = TerminalClient(directory)
            rude.say(b"o", text)
            assert rude.next()[0] == b"x"
        polite = TerminalClient(directory)
        polite.open()
        polite.say(b"w", b"odd")
        polite.say(b"?", b"unknown")
        polite.say(b"d", b"done\n")
        assert polite.end() == 0

    assert served(directory, "read x", clients)[0] == 0


def test_client_that_reads_nothing_is_disconnected(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "STALLED_S", 0.3)

    def clients() -> None:
        deaf = TerminalClient(directory)
        deaf.open()
        deaf.say(b"d", b"go\n")
        give_up = time.monotonic() + LONGEST_S
        while not Path(directory, "done").exists():
            assert time.monotonic() < give_up
            time.sleep(0.02)

    script = f"read x; head -c 3000000 /dev/zero | tr '\\0' x; touch {directory}/done"
    code, _, log = served(directory, script, clients)
    assert code == 0
    assert log.count("x") >= 3_000_000


def test_durations_are_shown_in_words() -> None:
    assert [terminal_use.format_seconds(seconds) for seconds in (5, 90, 1800, 9000)] == [
        *("5 s", "90 s", "30 min", "2.5 h"),
    ]
