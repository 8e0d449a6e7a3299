"""`tgpu shell` and `run --pty` in a real terminal: keys, signals, sizes, detach and reattach."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli.interactive import shell
from gpu_scheduler.cli.interactive.terminal import HEAD, STATUS
from gpu_scheduler.model.errors import WrongState
from tests.acceptance.conftest import PROGRAM, RealServer
from tests.terminal import PROMPT, Terminal, a_terminal, needs_tmux

pytestmark = needs_tmux
SHELL = "tgpu shell -q -G 1 -- bash --norc --noprofile"


@pytest.fixture
def terminal(server: RealServer) -> Iterator[Terminal]:
    with a_terminal(server.environment) as found:
        yield found


def last_job(server: RealServer) -> dict[str, Any]:
    found: dict[str, Any] = server.json("list", "-s", "all", "--sort=-number", "-L", 1)["jobs"][0]
    return found


def ended(server: RealServer, job: str) -> dict[str, Any]:
    with server.client() as client:
        return client.wait(job, timeout=60)


def open_shell(terminal: Terminal, line: str = SHELL) -> None:
    terminal.enter(f"PS1='in> ' {line}")
    terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the shell's prompt")


def test_shell_has_gpus_terminal_and_window_size(server: RealServer, terminal: Terminal) -> None:
    open_shell(terminal)
    assert terminal.answer("stty size") == "30 100"
    assert terminal.answer("tty").startswith("/dev/pts/")
    assert terminal.answer("echo $TERM") in {"xterm-256color", "tmux-256color", "screen"}
    devices = terminal.answer("echo [$CUDA_VISIBLE_DEVICES]")
    assert devices.strip("[]").isdecimal()
    job = last_job(server)
    assert (job["interactive"], job["runner"], job["state"]) == (True, "terminal", "running")
    terminal.resize(120, 40)
    terminal.until(lambda _: terminal.answer("stty size") == "40 120", "the new size")
    terminal.enter("exit 7")
    terminal.see(f"exit\n{PROMPT}")
    assert terminal.answer("echo $?") == "7"
    assert ended(server, job["id"])["exit_code"] == 7
    assert terminal.answer("stty -a | grep -cw -e -echo") == "0"


def test_ctrl_c_and_ctrl_z_reach_foreground_program(server: RealServer, terminal: Terminal) -> None:
    open_shell(terminal)
    terminal.enter("sleep 1000")
    terminal.until(lambda _: "sleep" in in_foreground(server), "sleep to run")
    terminal.press("C-c")
    assert terminal.answer("echo $?") == "130"
    terminal.enter("sleep 2000")
    terminal.until(lambda _: "sleep" in in_foreground(server), "sleep to run")
    terminal.press("C-z")
    terminal.see("Stopped")
    assert "Stopped" in terminal.answer("jobs")
    terminal.enter("bg; fg")
    terminal.until(lambda _: "sleep" in in_foreground(server), "sleep to run")
    terminal.press("C-c")
    terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the prompt")
    assert terminal.answer("jobs | wc -l") == "0"
    terminal.press("C-d")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    assert ended(server, last_job(server)["id"])["exit_code"] == 0


def in_foreground(server: RealServer) -> str:
    """The foreground programs of the last job's terminal."""
    host = Path(server.state_dir)
    names = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                not entry.name.isdecimal()
                or str(host).encode() not in (entry / "environ").read_bytes()
            ):
                continue
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[2] == fields[5]:
                names.append((entry / "comm").read_text().strip())
        except OSError:
            continue
    return " ".join(names)


def test_raw_mode_program_receives_each_key(server: RealServer, terminal: Terminal) -> None:
    script = (
        "import sys, tty; tty.setraw(0); print('READY', end='', flush=True)\n"
        "while True:\n"
        "    key = sys.stdin.buffer.raw.read(1); sys.stdout.write(f'<{key[0]}>'); "
        "sys.stdout.flush()\n"
        "    if key == b'q': break\n"
    )
    server_side = Path(server.state_dir, "keys.py")
    server_side.write_text(script)
    terminal.enter(f"clear; tgpu run -q --pty -G 1 -- python3 {server_side}")
    terminal.see("READY")
    terminal.press("C-c")
    terminal.press("C-z")
    terminal.press("C-d")
    terminal.press("Escape")
    terminal.type("a~d")
    terminal.press("Enter")
    terminal.type("~~")
    terminal.see("<3><26><4><27><97><126><100><13><126>")
    terminal.type("q")
    terminal.see("<113>")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    terminal.enter("clear")
    assert terminal.answer("echo $?") == "0"
    assert terminal.answer("stty -a | grep -cw -e -icanon") == "0"


def test_shell_can_be_detached_and_reattached_also_after_server_restart(
    server: RealServer, terminal: Terminal
) -> None:
    open_shell(terminal)
    job = last_job(server)["id"]
    terminal.enter("number=41; printf '\\033[?1049h\\033[?25lfull %s' screen; read x")
    terminal.see("full screen")
    terminal.press("Enter")
    terminal.type("~d")
    terminal.see(f"{job} keeps running")
    assert "full screen" not in terminal.screen()
    server.tgpu("down", "--state-dir", server.state_dir)
    server.start("8xA100-80GB")
    terminal.enter("clear")
    terminal.until(lambda screen: "keeps running" not in screen, "a clear screen")
    terminal.enter(f"tgpu attach {job}")
    terminal.press("Enter")
    terminal.enter("printf '\\033[?1049l\\033[?25h'")
    assert terminal.answer("echo $((number + 1))") == "42"
    terminal.enter("exit 5")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    assert terminal.answer("echo $?") == "5"
    assert ended(server, job)["exit_code"] == 5


def test_shell_survives_server_agent_and_launcher_and_reports_exit_code(
    server: RealServer, terminal: Terminal
) -> None:
    open_shell(terminal)
    job = last_job(server)["id"]
    for pid in scheduler_processes(server):
        # Ending one of them may end another.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert terminal.answer("echo alive") == "alive"
    server.start("8xA100-80GB")
    with server.client() as client:
        assert client.get(job)["state"] == "running"
    terminal.enter("exit 6")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    assert terminal.answer("echo $?") == "6"
    assert ended(server, job)["exit_code"] == 6


def scheduler_processes(server: RealServer) -> list[int]:
    """The processes of the scheduler itself."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = any(word.startswith(os.fsencode(server.state_dir)) for word in words)
        modules = {b"gpu_scheduler", b"gpu_scheduler.agent", b"gpu_scheduler.agent.launcher"}
        if ours and modules.intersection(words):
            found.append(int(entry.name))
    assert len(found) >= 3
    return found


def test_waiting_shell_shows_reason_and_ctrl_c_cancels_it(
    server: RealServer, terminal: Terminal
) -> None:
    all_of_them = server.submit("-G", 8, "-t", "1h", "--no-preempt", "--", "sleep", 600)
    with server.client() as client:
        until_running(client, all_of_them)
    terminal.enter("tgpu shell -G 1 -t 10m")
    terminal.see("Ctrl-C cancels")
    terminal.see("expected start")
    job = last_job(server)["id"]
    terminal.press("C-c")
    terminal.see(f"{job} cancelled")
    assert terminal.answer("echo $?") == "130"
    assert ended(server, job)["state"] == "cancelled"
    server.tgpu("cancel", all_of_them)
    ended(server, all_of_them)


def test_idle_shell_ends_and_reports_reason(server: RealServer, terminal: Terminal) -> None:
    terminal.enter("tgpu shell -q --idle 2s -- bash --norc --noprofile")
    terminal.see("press a key, or the job ends")
    terminal.see("ended: idle for 2 s")
    job = ended(server, last_job(server)["id"])
    assert (job["state"], job["reason"]) == ("failed", "idle for 2 s")
    assert terminal.answer("echo $?") == "129"


def test_silent_computation_is_not_idle(server: RealServer) -> None:
    script = (
        "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: sum(range(999))"
    )
    with server.client() as client:
        job = client.submit(
            ["python3", "-c", script], runner="terminal", terminal={"idle_seconds": 1.0}
        )
        assert job.wait(timeout=60)["state"] == "completed"


@pytest.mark.parametrize(("wish", "state"), [("keep", "running"), ("end", "failed")])
def test_lost_connection_keeps_or_ends_shell_as_requested(
    server: RealServer, terminal: Terminal, wish: str, state: str
) -> None:
    open_shell(terminal, f"tgpu shell -q --on-disconnect {wish} -- bash --norc --noprofile")
    job = last_job(server)["id"]
    os.kill(terminal.process(f"gpu_scheduler shell -q --on-disconnec[t] {wish}"), signal.SIGKILL)
    terminal.see("Killed")
    terminal.enter("stty sane; clear")
    with server.client() as client:
        if state == "failed":
            assert "connection" in client.wait(job, timeout=60)["reason"]
            return
        assert client.get(job)["state"] == "running"
    open_shell(terminal, f"tgpu attach {job}")
    terminal.enter("exit")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_restores_terminal_state(
    server: RealServer, terminal: Terminal, number: signal.Signals
) -> None:
    before = terminal.answer("stty -g | cksum")
    terminal.enter("clear")
    open_shell(terminal)
    os.kill(terminal.process("-m gpu_scheduler shel[l] -q"), number)
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    assert terminal.answer("echo $?") == str(128 + number)
    assert terminal.answer("stty -g | cksum") == before
    server.tgpu("cancel", last_job(server)["id"])


def test_cancelled_shell_ends_at_once_though_shells_ignore_sigterm(
    server: RealServer, terminal: Terminal
) -> None:
    open_shell(terminal)
    job = last_job(server)["id"]
    server.tgpu("cancel", job)
    terminal.see(f"{job} cancelled")
    with server.client() as client:
        found = client.wait(job, timeout=60)
    assert (found["state"], found["signal"]) == ("cancelled", signal.SIGHUP)


@pytest.mark.parametrize("retried", [False, True], ids=["ended", "retried"])
def test_attempt_may_end_before_its_terminal_is_reached(
    server: RealServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    retried: bool,
) -> None:
    """The socket is gone, the directory that it was in may not be: nothing is left to wait for."""
    monkeypatch.setattr(shell, "_CONNECT_TIMEOUT_S", 60.0)
    gate = tmp_path / "gate"
    first = f"until [ -e {gate} ]; do sleep 0.05; done; echo over; exit 3"
    script = f'[ "$TGPU_ATTEMPT" != 1 ] || {{ {first}; }}; cat; echo again; exit 5'
    retries = ("--retries", 1) if retried else ()
    job = server.submit("--runner", "terminal", *retries, "--", "sh", "-c", script)
    with server.client() as client:
        seen = until_running(client, job)
        gate.touch()
        until(client, job, lambda found: found["state"] != "running" or found["attempt"] > 1)
        Path(seen["attach"][3]).parent.mkdir(parents=True, exist_ok=True)
        with pytest.raises(WrongState, match="the job has just ended"):
            shell.connect(client, job, seen)
        starts = iter([seen])
        wait = shell.wait_for_start
        monkeypatch.setattr(
            shell, "wait_for_start", lambda *args, **more: next(starts, None) or wait(*args, **more)
        )
        code = shell.wait_and_attach(client, job, quiet=True)
    shown = capfd.readouterr().out
    assert (code, shown.split()[-1]) == ((5, "again") if retried else (3, "over"))


def test_second_program_can_run_inside_job_with_its_gpus(server: RealServer) -> None:
    job = server.submit("-G", 2, "--runner", "terminal", "--", "sleep", 600)
    with server.client() as client:
        held = until_running(client, job)["allocation"][0]["gpus"]
    expected = ",".join(str(gpu["index"]) for gpu in held)
    ended = subprocess.run(
        [
            *(*PROGRAM, "shell", "--job", job, "--no-pty", "--"),
            *("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; cat; echo no >&2; exit 5"),
        ],
        input="through a pipe\n\x00\xff~d\n",
        capture_output=True,
        text=True,
        encoding="latin-1",
        env=server.environment,
        check=False,
        timeout=60,
    )
    assert ended.stdout == f"{expected}\nthrough a pipe\n\x00\xff~d\n"
    assert (ended.stderr, ended.returncode) == ("no\n", 5)
    refused = server.tgpu("shell", "--job", job, "--no-pty", "--", "/no/such", code=2)
    assert "/no/such" in refused.stderr
    server.tgpu("cancel", job)


def until_running(client: Any, job: str) -> Any:
    return until(client, job, lambda found: found["state"] == "running")


def until(client: Any, job: str, true: Callable[[Any], bool]) -> Any:
    give_up = time.monotonic() + 60
    while not true(found := client.get(job)):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    return found


def test_programs_started_inside_job_end_with_it(server: RealServer) -> None:
    job = server.submit("--runner", "terminal", "--", "sleep", 600)
    with server.client() as client:
        until_running(client, job)
    inside = subprocess.Popen(
        [*PROGRAM, "shell", "--job", job, "--no-pty", "--", "sh", "-c", "echo $$; sleep 600"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=server.environment,
    )
    assert inside.stdout is not None
    pid = int(inside.stdout.readline())
    server.tgpu("cancel", job)
    assert inside.wait(60) != 0
    inside.stdout.close()
    with server.client() as client:
        client.wait(job, timeout=60)
    assert not Path(f"/proc/{pid}").exists()


def test_terminal_socket_rejects_others_and_unknown_protocols(server: RealServer) -> None:
    job = server.submit("--runner", "terminal", "--", "sleep", 600)
    with server.client() as client:
        path = until_running(client, job)["attach"][-1]
    give_up = time.monotonic() + 60
    while not Path(path).exists():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    nonsense = [b"\x00" * 64, HEAD.pack(b"o", 1 << 30), message(b"d", b"x"), message(b"o", b"{")]
    nonsense += [message(b"o", b"[]"), message(b"o", b'{"mode": "start", "argv": 7}')]
    for words in nonsense:
        with socket.socket(socket.AF_UNIX) as rude:
            rude.settimeout(60)
            rude.connect(path)
            rude.sendall(words)
            while rude.recv(4096):
                pass
    with server.client() as client:
        assert client.get(job)["state"] == "running"
    with socket.socket(socket.AF_UNIX) as polite:
        polite.settimeout(60)
        polite.connect(path)
        asked = {"mode": "start", "argv": ["sh", "-c", "exit 3"], "terminal": True}
        polite.sendall(message(b"o", json.dumps(asked).encode()))
        heard = b""
        while not heard.endswith(STATUS.pack(3 << 8)):
            piece = polite.recv(4096)
            assert piece
            heard += piece
    server.tgpu("cancel", job)


def message(kind: bytes, data: bytes) -> bytes:
    return HEAD.pack(kind, len(data)) + data


def test_slow_reader_blocks_only_output_of_job(server: RealServer) -> None:
    marks = Path(server.state_dir, "wrote")
    script = f"seq 0 99999; echo > {marks}"
    job = server.submit("--runner", "terminal", "--", "sh", "-c", f"read go; {script}")
    with server.client() as client:
        path = until_running(client, job)["attach"][-1]
    with socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(60)
        give_up = time.monotonic() + 60
        while slow.connect_ex(path) != 0:
            assert time.monotonic() < give_up
            time.sleep(0.02)
        slow.sendall(message(b"o", b'{"mode": "attach"}') + message(b"d", b"go\n"))
        # All output arrives, in order, however late it is read.
        heard = bytearray()
        while piece := slow.recv(4096):
            heard += piece
    assert marks.exists()
    shown = bytearray()
    while heard:
        kind, length = HEAD.unpack_from(heard)
        if kind == b"d":
            shown += heard[HEAD.size : HEAD.size + length]
        del heard[: HEAD.size + length]
    numbers = [line.split()[0] for line in shown.decode().splitlines() if line[:1].isdigit()]
    assert numbers == [str(number) for number in range(100_000)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_cannot_attach_to_terminal(server: RealServer) -> None:
    job = server.submit("--runner", "terminal", "--", "sleep", 600)
    with server.client() as client:
        path = until_running(client, job)["attach"][-1]
    script = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
    tried = subprocess.run(
        ["python3", "-c", script],
        user=65534,
        group=65534,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PermissionError" in tried.stderr
    server.tgpu("cancel", job)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_shell_of_another_user_runs_entirely_as_that_user(server: RealServer) -> None:
    known = ("/usr/bin/python3", "/usr/local/bin/python3")
    python = next((path for path in known if fits(path)), "")
    if not python:
        pytest.skip("there is no Python 3.11 that everybody may run")
    become = "setpriv --reuid 65534 --regid 65534 --clear-groups"
    source = Path(__file__).parents[2] / "src"
    environment = server.environment | {"PYTHONPATH": str(source), "HOME": "/"}
    with a_terminal(environment) as terminal:
        terminal.enter(
            f"cd /; PS1='in> ' {become} {python} -B -m gpu_scheduler shell -q -G 1 -- "
            "bash --norc --noprofile"
        )
        terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the shell's prompt")
        assert terminal.answer("id -u") == "65534"
        assert terminal.answer("stat -c %u:%a $(tty)") in {"65534:600", "65534:620"}
        scratch = "$(dirname $TGPU_STOP_FILE)"
        assert terminal.answer(f"stat -c %u:%a {scratch}") == "65534:700"
        assert terminal.answer(f"stat -c %u:%a {scratch}/terminal.sock") == "65534:600"
        assert terminal.answer("echo [$CUDA_VISIBLE_DEVICES]") != "[]"
        terminal.enter("exit 9")
        terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
        assert terminal.answer("echo $?") == "9"
    with server.client() as client:
        job = client.page(sort="-number", limit=1)["jobs"][0]
    assert (job["user"], ended(server, job["id"])["exit_code"]) == ("nobody", 9)
    left = Path(server.state_dir, "scratch", f"{job['id']}.1.0")
    give_up = time.monotonic() + 60
    while left.exists():
        assert time.monotonic() < give_up, list(left.iterdir())
        time.sleep(0.05)


def fits(python: str) -> bool:
    """Whether another user can run our program."""
    script = "import sys; sys.exit(sys.version_info < (3, 11))"
    source = str(Path(__file__).parents[2] / "src")
    try:
        tried = subprocess.run(
            ["setpriv", "--reuid", "65534", "--clear-groups", python, "-B", "-c", script],
            env={"PYTHONPATH": source},
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return tried.returncode == 0 and os.access(source, os.R_OK)


def test_run_shows_output_and_asks_on_ctrl_c(server: RealServer, terminal: Terminal) -> None:
    terminal.enter("tgpu run -G 1 -- sh -c 'while :; do echo tick; sleep 0.5; done'")
    terminal.see("\ntick")
    terminal.press("C-c")
    terminal.see("[c]ancel it, [d]etach, or Enter to go on?")
    terminal.press("Enter")
    terminal.until(lambda screen: "tick" in screen.partition("to go on?")[2], "more of the output")
    terminal.press("C-c")
    terminal.until(lambda screen: screen.count("to go on?") == 2, "the question again")
    terminal.enter("d")
    job = last_job(server)["id"]
    terminal.see(f"'tgpu logs -f {job}' shows its output")
    assert terminal.answer("echo $?") == "0"
    assert server.json("show", job)["state"] == "running"
    server.tgpu("cancel", job)
    terminal.enter("clear; tgpu run -- sh -c 'echo begun again; sleep 600'")
    terminal.see("\nbegun again")
    terminal.press("C-c")
    terminal.see("to go on?")
    terminal.enter("c")
    terminal.see("cancelled")
    assert terminal.answer("echo $?") == "130"
    terminal.enter("clear; tgpu run -q -- sh -c 'echo quick; exit 3'")
    terminal.see("quick\n")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "the prompt")
    assert terminal.answer("echo $?") == "3"


def test_shell_over_http_goes_through_server(server: RealServer, terminal: Terminal) -> None:
    """A TCP client may be anywhere, so the route is the one that works from everywhere."""
    facts = json.loads(Path(server.state_dir, "server.json").read_text())
    open_shell(terminal, f"tgpu shell -q -G 1 --server {facts['http']} -- bash --norc --noprofile")
    assert terminal.answer("stty size") == "30 100"
    terminal.enter("exit 4")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    assert terminal.answer("echo $?") == "4"


def test_large_data_passes_both_ways_at_once(server: RealServer, tmp_path: Path) -> None:
    """More than the buffers hold: a client that sends without reading would block for ever."""
    job = server.submit("--runner", "terminal", "--", "sleep", 600)
    with server.client() as client:
        until_running(client, job)
    (tmp_path / "in").write_bytes(data := os.urandom(1 << 22))
    with (tmp_path / "in").open("rb") as source:
        through = subprocess.run(
            [*PROGRAM, "shell", "--job", job, "--", "cat"],
            stdin=source,
            capture_output=True,
            env=server.environment,
            check=True,
            timeout=60,
        )
    assert through.stdout == data
    server.tgpu("cancel", job)


def test_ssh_entry_for_remote_server_needs_host_name(
    server: RealServer,
) -> None:
    told = server.tgpu("code", "--ssh", "--server", "https://far.lab:8080", code=2).stderr
    assert "name the machine" in told


def test_invalid_shell_options_are_rejected_with_explanation(server: RealServer) -> None:
    for words, told in (
        (("shell", "--no-pty"), "--no-pty needs --job"),
        (("shell", "-a", "0-3", "--", "true"), "only one job"),
        (("shell", "--runner", "tmux", "--", "true"), "leave out --runner"),
        (("run", "--idle", "3m", "--", "true"), "add --pty"),
        (("run", "--pty"), "'tgpu shell' opens a shell"),
        (("attach",), "'tgpu screens' lists"),
        (("attach", "--socket", "/no/such/place"), "has the job ended?"),
    ):
        assert told in server.tgpu(*words, code=2).stderr
    with server.client() as client, pytest.raises(Exception, match="runner 'terminal'"):
        client.submit(["true"], terminal={"rows": 3})
