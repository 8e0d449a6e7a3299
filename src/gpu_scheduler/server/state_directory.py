"""The server's own directories, and the lock that keeps a second server away from them."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.settings.file_paths import Paths

PRIVATE = 0o700
PUBLIC = 0o755
PASSABLE = 0o711
"""For the state directory of root if users must get through it to the socket and to scratch."""
PRIVATE_UMASK = 0o177
MOST_SOCKET_BYTES = 107
HOME_FILE = "server.id"


class StateInUse(ClusterError):
    """Another server works on the same state."""

    code = "state_in_use"
    exit_code = 7


class StateUnusable(ClusterError):
    """The state directory cannot be used as it is."""

    code = "state_unusable"
    exit_code = 8


def prepare(paths: Paths) -> None:
    """Make all directories, each for whom it is meant."""
    state = Path(paths.state)
    if len(os.fsencode(paths.launcher_socket)) > MOST_SOCKET_BYTES:
        raise StateUnusable(
            f"{paths.launcher_socket} is longer than the {MOST_SOCKET_BYTES} bytes that the path "
            "of a socket may have; choose a shorter directory with --state-dir"
        )
    try:
        state.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if state.stat().st_uid != os.geteuid():
            raise StateUnusable(
                f"{state} belongs to uid {state.stat().st_uid} and the server runs as uid "
                f"{os.geteuid()}; choose another with --state-dir"
            )
        is_shared = os.geteuid() == 0 and paths.runtime == paths.state
        state.chmod(PASSABLE if is_shared else PRIVATE)
        for private in (paths.agent, paths.attempts, paths.logs):
            Path(private).mkdir(mode=PRIVATE, exist_ok=True)
            Path(private).chmod(PRIVATE)
        if paths.runtime != paths.state:
            Path(paths.runtime).mkdir(mode=PUBLIC, parents=True, exist_ok=True)
            Path(paths.runtime).chmod(PUBLIC)
        Path(paths.scratch).mkdir(mode=PUBLIC, exist_ok=True)
        Path(paths.scratch).chmod(PUBLIC)
        probe = state / ".writable"
        probe.write_bytes(b"1")
        probe.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        raise StateUnusable(
            f"{error.filename or state} cannot be used: it, or a part of its path, is a file and "
            "no directory; choose another with --state-dir"
        ) from error
    except OSError as error:
        what = error.filename or state
        raise StateUnusable(
            f"{what} cannot be used: {(error.strerror or str(error)).lower()}; make it writable "
            "for this user, or choose another directory with --state-dir"
        ) from error


@contextmanager
def private_files() -> Iterator[None]:
    """What is made in here is for the server's user alone, also where others can pass."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


class Lock:
    """Held for as long as the process lives; the kernel lets go of it when it dies."""

    def __init__(self, paths: Paths) -> None:
        """Take the lock, or say who has it."""
        self._file = os.open(paths.server_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            other = running(paths)
            who = f" (pid {other['pid']})" if other else ""
            raise StateInUse(
                f"another server{who} works with {paths.state}; stop it with 'tgpu down', or "
                "choose another directory with --state-dir"
            ) from None

    def release(self) -> None:
        """Let another server come."""
        os.close(self._file)


def home_of(paths: Paths) -> str:
    """A name for this installation that no other has: made once, and kept with the state."""
    file = Path(paths.state) / HOME_FILE
    with suppress(OSError):
        known = file.read_text(encoding="ascii", errors="replace").strip()
        if known:
            return f"{socket.gethostname()}/{known}"
    made = secrets.token_hex(16)
    fresh = file.with_name(f"{HOME_FILE}.new")
    with private_files():
        fresh.write_text(f"{made}\n", encoding="ascii")
    fresh.replace(file)
    return f"{socket.gethostname()}/{made}"


def announce(paths: Paths, facts: dict[str, Any]) -> None:
    """Write down what runs, for `tgpu down` and `tgpu status`."""
    target = Path(paths.server_file)
    fresh = target.with_name(f"{target.name}.new")
    with private_files():
        fresh.write_text(json.dumps(facts), encoding="utf-8")
    fresh.replace(target)


def renounce(paths: Paths) -> None:
    """Nothing runs here any more."""
    Path(paths.server_file).unlink(missing_ok=True)


def running(paths: Paths) -> dict[str, Any] | None:
    """What a server wrote down, if that one still runs."""
    try:
        facts: dict[str, Any] = json.loads(Path(paths.server_file).read_text(encoding="utf-8"))
        began = started_at(facts["pid"])
    except (OSError, ValueError, KeyError):
        return None
    return facts if began == facts.get("process_start") else None


def started_at(pid: int) -> str:
    """When a process started, in the kernel's ticks: with the pid, that names it for good."""
    status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return status.rpartition(")")[2].split()[19]
