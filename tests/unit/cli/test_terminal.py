"""The client side of a job's terminal: detach keys, restored modes, framed messages."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.cli.interactive import terminal
from gpu_scheduler.cli.interactive.terminal import (
    Connection,
    Detached,
    TerminalSession,
    exit_code,
    reset_sequence,
)
from gpu_scheduler.model.errors import ClusterError, WrongState


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    far.settimeout(60)
    with near, far:
        yield near, far


def typed(session: TerminalSession, *pieces: bytes) -> bytes:
    return b"".join(session._without_escapes(piece) for piece in pieces)


def test_only_tilde_d_after_newline_detaches(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    session = TerminalSession(Connection(ends[0]))
    assert typed(session, b"a~d b\r~~x\r~x", b"\r", b"~", b"~", b"~d") == b"a~d b\r~x\r~x\r~~d"
    with pytest.raises(Detached):
        typed(session, b"ls\r", b"~", b"d")
    assert ends[1].recv(99) == b"l\0\0\0\0"


def test_terminal_modes_set_by_program_are_reset(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    session = TerminalSession(Connection(ends[0]))
    assert reset_sequence(session._modes) == b""
    session._follow_modes(b"\x1b[?1049h\x1b[?25lvim\x1b[?2004h\x1b[?1000;1006h")
    expected = b"\x1b[?1000l\x1b[?1006l\x1b[?1049l\x1b[?2004l\x1b[?25h"
    assert reset_sequence(session._modes) == expected
    session._follow_modes(b"\x1b[?1049;2004;1000;1006l\x1b[?25h")
    assert reset_sequence(session._modes) == b""


def test_status_becomes_exit_code() -> None:
    assert [exit_code(status) for status in (0, 7 << 8, 9, 15)] == [0, 7, 137, 143]


def test_program_on_pipes_runs_to_its_end(
    ends: tuple[socket.socket, socket.socket], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    near, far = ends

    def other_side() -> None:
        asked = far.recv(65536)
        assert b'"mode": "start"' in asked
        frames = [(b"o", b"{}"), (b"d", b"out"), (b"E", b"err"), (b"n", b"note")]
        for kind, data in [*frames, (b"e", terminal.STATUS.pack(3 << 8))]:
            far.sendall(terminal.HEAD.pack(kind, len(data)) + data)

    answering = threading.Thread(target=other_side)
    answering.start()
    status = TerminalSession(Connection(near)).start(["x"], terminal=False, directory="/")
    answering.join()
    assert status == 3 << 8
    shown = capfdbinary.readouterr()
    assert (shown.out, shown.err) == (b"out", b"err\r\ntgpu: note\r\n")


@pytest.mark.parametrize("frame", [b"x\0\0\0\2no", b""])
def test_rejection_and_early_end_are_errors(
    ends: tuple[socket.socket, socket.socket], frame: bytes
) -> None:
    near, far = ends
    far.sendall(frame)
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(WrongState, match="rejected the connection: no" if frame else "ended"):
        TerminalSession(Connection(near)).start(["x"], terminal=False, directory="/")


def test_missing_and_inaccessible_socket_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(WrongState, match="has the job ended"):
        terminal.connect_locally(f"{tmp_path}/none")
    (tmp_path / "file").touch()
    for wrong in (f"{tmp_path}/file/none", "x" * 300):
        with pytest.raises(ClusterError, match="cannot open the terminal"):
            terminal.connect_locally(wrong)


def test_socket_is_awaited_only_while_its_job_runs(tmp_path: Path) -> None:
    path = f"{tmp_path}/terminal.sock"
    answers = iter([True, True, False])
    with pytest.raises(WrongState, match="has just ended"):
        terminal.connect_locally(path, timeout_s=60, is_running=lambda: next(answers))
    assert list(answers) == []
    with socket.socket(socket.AF_UNIX) as listener:

        def starts() -> bool:
            listener.bind(path)
            listener.listen()
            return True

        terminal.connect_locally(path, timeout_s=60, is_running=starts).close()
