"""Job terminals on any cluster node, through the server, in a real terminal."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, unix_connect

from gpu_scheduler.cli.interactive.terminal import HEAD
from tests.cluster import PROGRAM, Cluster, Process, a_cluster
from tests.terminal import PROMPT, Terminal, a_terminal, needs_tmux

pytestmark = needs_tmux
SHELL = "bash --norc --noprofile"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes; the server runs no jobs itself."""
    with a_cluster("n1", "n2", jobs_grace_s="1") as running:
        running.tgpu("nodes", "label", "n1", "which=one")
        running.tgpu("nodes", "label", "n2", "which=two")
        yield running


@pytest.fixture
def terminal(cluster: Cluster) -> Iterator[Terminal]:
    environment = cluster.environment | {"TGPU_SERVER": str(cluster.state)}
    with a_terminal(environment) as found:
        yield found


def last_job(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.json("list", "-s", "all", "--sort=-number", "-L", 1)["jobs"][0]
    return found


def open_shell(terminal: Terminal, *options: str) -> None:
    terminal.enter(f"PS1='in> ' tgpu shell -q -G 1 {' '.join(options)} -- {SHELL}")
    terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the shell's prompt")


def ended(cluster: Cluster, job: str) -> dict[str, Any]:
    with cluster.client() as client:
        return dict(client.wait(job, timeout=60))


@contextlib.contextmanager
def a_sleeper(cluster: Cluster, *options: str) -> Iterator[str]:
    """A job on a terminal that runs until the end of the block."""
    job = cluster.submit("--runner", "terminal", *options, "--", "sleep", "600")
    cluster.until(lambda: cluster.states(job) == {"running"}, "it runs")
    yield job
    cluster.tgpu("cancel", job)


@pytest.mark.parametrize(("label", "node"), [("one", "n1"), ("two", "n2")])
def test_shell_on_any_node_has_size_signals_and_exit_code(
    cluster: Cluster, terminal: Terminal, label: str, node: str
) -> None:
    open_shell(terminal, "--label", f"which={label}")
    assert terminal.answer("stty size") == "30 100"
    assert terminal.answer("tty").startswith("/dev/pts/")
    job = last_job(cluster)
    assert cluster.node_of(job["id"]) == node
    terminal.resize(120, 40)
    terminal.until(lambda _: terminal.answer("stty size") == "40 120", "the new size")
    # The foreground process prints that it runs: a ^C now reaches it, not the shell.
    terminal.enter("sh -c 'echo begins; exec sleep 1000'")
    terminal.see("begins\n")
    terminal.press("C-c")
    assert terminal.answer("echo $?") == "130"
    terminal.enter("exit 7")
    terminal.see(f"exit\n{PROMPT}")
    assert terminal.answer("echo $?") == "7"
    assert ended(cluster, job["id"])["exit_code"] == 7
    assert terminal.answer("stty -a | grep -cw -e -echo") == "0"


def test_shell_on_node_can_be_detached_and_reattached(cluster: Cluster, terminal: Terminal) -> None:
    open_shell(terminal)
    job = last_job(cluster)["id"]
    terminal.enter("number=41; echo s''et")
    terminal.see("set\n")
    terminal.press("Enter")
    terminal.type("~d")
    terminal.see(f"{job} keeps running")
    terminal.enter("clear")
    terminal.enter(f"tgpu attach {job}")
    terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the shell's prompt")
    assert terminal.answer("echo $((number + 1))") == "42"
    terminal.enter("exit")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    assert ended(cluster, job)["state"] == "completed"


def test_killed_agent_interrupts_terminal_but_not_job(cluster: Cluster, terminal: Terminal) -> None:
    open_shell(terminal, "--label", "which=two")
    job = last_job(cluster)["id"]
    terminal.enter("number=41; echo s''et")
    terminal.see("set\n")
    cluster.agents["n2"].kill()
    terminal.see(f"connection to {job} lost (node 'n2' was disconnected); reconnecting")
    cluster.agents["n2"].start()
    terminal.see(f"reconnected to {job}")
    terminal.press("Enter")
    terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the shell's prompt")
    assert terminal.answer("echo $((number + 1))") == "42"
    terminal.enter("exit 3")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    assert terminal.answer("echo $?") == "3"


def test_killed_server_interrupts_terminal_but_not_job(
    cluster: Cluster, terminal: Terminal
) -> None:
    open_shell(terminal)
    job = last_job(cluster)["id"]
    terminal.enter("number=41; echo s''et")
    terminal.see("set\n")
    cluster.server.kill()
    terminal.see(f"connection to {job} lost")
    cluster.start_server()
    terminal.see(f"reconnected to {job}")
    terminal.press("Enter")
    terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the shell's prompt")
    assert terminal.answer("echo $((number + 1))") == "42"
    terminal.enter("exit")
    terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "our own prompt")
    cluster.wait_for_nodes()


def test_large_data_passes_through_job_unchanged(cluster: Cluster, tmp_path: Path) -> None:
    """More than all buffers hold together, in both directions at once."""
    data = os.urandom(1 << 22)
    (tmp_path / "in").write_bytes(data)
    with a_sleeper(cluster) as job, (tmp_path / "in").open("rb") as source:
        through = subprocess.run(
            [*PROGRAM, "shell", "--job", job, "--", "sh", "-c", "cat; echo done >&2; exit 5"],
            stdin=source,
            capture_output=True,
            env=cluster.environment | {"TGPU_SERVER": str(cluster.state)},
            check=False,
            timeout=60,
        )
    assert through.stdout == data
    assert (through.returncode, through.stderr) == (5, b"done\n")


def test_slow_reader_blocks_neither_node_nor_others(
    cluster: Cluster,
) -> None:
    with a_sleeper(cluster, "--label", "which=one") as job:
        flood = subprocess.Popen(
            [*PROGRAM, "shell", "--job", job, "--", "yes"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=cluster.environment | {"TGPU_SERVER": str(cluster.state)},
        )
        try:
            assert flood.stdout is not None
            assert flood.stdout.read(4) == b"y\ny\n"
            assert cluster.tgpu("shell", "--job", job, "--", "echo", "here") == "here\n"
            other = cluster.submit("--label", "which=one", "--", "echo", "ran")
            assert ended(cluster, other)["exit_code"] == 0
            assert cluster.tgpu("logs", other) == "ran\n"
        finally:
            flood.kill()
            flood.wait(60)
            assert flood.stdout is not None
            flood.stdout.close()
    assert {node["state"] for node in cluster.nodes()} == {"online"}


def test_output_of_program_that_ended_before_attach_is_shown(
    cluster: Cluster,
) -> None:
    for _ in range(3):
        words = ("run", "-q", "--pty", "--", "sh", "-c", "echo quick; exit 3")
        assert cluster.tgpu(*words, code=3).split() == ["quick"]


def send_often(connection: ClientConnection, data: bytes) -> None:
    for _ in range(1000):
        connection.send(data)


@contextlib.contextmanager
def frozen(node: Process) -> Iterator[None]:
    """Until the end of the block the client reads nothing."""
    node.freeze()
    try:
        yield
    finally:
        node.thaw()


def test_client_that_sends_too_much_is_disconnected(cluster: Cluster) -> None:
    with a_sleeper(cluster, "--label", "which=one") as job:
        address = f"ws://localhost/api/v1/jobs/{job}/terminal"
        with unix_connect(str(cluster.state / "server.sock"), address) as rude:
            assert int(rude.recv(30)) > 0
            rude.send(HEAD.pack(b"o", 2) + b"{}")  # not a message that a terminal host understands
        with unix_connect(str(cluster.state / "server.sock"), address) as rude:
            asked = b'{"mode": "attach"}'
            rude.send(HEAD.pack(b"o", len(asked)) + asked)
            keys = HEAD.pack(b"d", 1 << 15) + bytes(1 << 15)
            with frozen(cluster.agents["n1"]), pytest.raises(ConnectionClosed) as closed:
                send_often(rude, keys)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert cluster.tgpu("shell", "--job", job, "--", "echo", "others") == "others\n"


def test_every_gang_member_has_terminal(cluster: Cluster) -> None:
    words = ("-N", 2, "-G", 8, "--runner", "terminal", "--", "sleep", "600")
    job = cluster.submit(*words)
    cluster.until(lambda: cluster.states(job) == {"running"}, "it runs on both nodes")
    asked = ("shell", "--job", job, "--", "sh", "-c", "echo rank $RANK")
    assert cluster.tgpu(*asked[:3], "--member", 1, *asked[3:]) == "rank 1\n"
    assert cluster.tgpu(*asked) == "rank 0\n"
    assert "has no member 2" in cluster.tgpu("attach", job, "--member", 2, code=4)
    cluster.tgpu("cancel", job)


def test_attach_to_job_without_terminal_is_rejected_with_alternative(cluster: Cluster) -> None:
    plain = cluster.submit("--", "sleep", "600")
    cluster.until(lambda: cluster.states(plain) == {"running"}, "it runs")
    assert "submit it with '--runner terminal'" in cluster.tgpu("attach", plain, code=2)
    cluster.tgpu("cancel", plain)
    session = cluster.submit("--runner", "tmux", "--", "sleep", "600")
    cluster.until(lambda: cluster.states(session) == {"running"}, "it runs")
    assert "runs in tmux on n" in cluster.tgpu("attach", session, code=2)
    cluster.tgpu("cancel", session)
    waiting = cluster.submit("--runner", "terminal", "--hold", "--", "true")
    assert "is pending; you can attach while it runs" in cluster.tgpu("attach", waiting, code=2)
    cluster.tgpu("cancel", waiting)
