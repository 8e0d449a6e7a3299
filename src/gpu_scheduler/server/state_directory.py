"""The state directory: its sub-directories, the lock against a second server, the server file."""

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
from gpu_scheduler.settings.trusted_files import directory_problem

PRIVATE = 0o700
PUBLIC = 0o755
TRAVERSABLE = 0o711
"""For root's state directory if users need the socket and the scratch directory in it."""
PRIVATE_UMASK = 0o177
MAX_SOCKET_PATH = 107
ID_FILE = "server.id"


class StateInUse(ClusterError):
    """Another server uses the same state directory."""

    code = "state_in_use"
    exit_code = 7


class StateUnusable(ClusterError):
    """The state directory cannot be used."""

    code = "state_unusable"
    exit_code = 8


def prepare(paths: Paths) -> None:
    """Create all directories with their permissions."""
    state = Path(paths.state)
    if len(os.fsencode(paths.launcher_socket)) > MAX_SOCKET_PATH:
        raise StateUnusable(
            f"{paths.launcher_socket} is longer than {MAX_SOCKET_PATH} bytes, the limit for the "
            "path of a socket; choose a shorter directory with --state-dir"
        )
    for directory in dict.fromkeys((paths.state, paths.runtime)):
        if problem := directory_problem(directory):
            raise StateUnusable(f"{directory} cannot be used: {problem}")
    try:
        state.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if state.stat().st_uid != os.geteuid():
            raise StateUnusable(
                f"{state} belongs to uid {state.stat().st_uid} and the server runs as uid "
                f"{os.geteuid()}; choose another with --state-dir"
            )
        is_shared = os.geteuid() == 0 and paths.runtime == paths.state
        state.chmod(TRAVERSABLE if is_shared else PRIVATE)
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
            f"{error.filename or state} cannot be used: it, or a part of its path, is not a "
            "directory; choose another with --state-dir"
        ) from error
    except OSError as error:
        raise StateUnusable(
            f"{error.filename or state} cannot be used: {(error.strerror or str(error)).lower()}; "
            "make it writable for this user, or choose another directory with --state-dir"
        ) from error


@contextmanager
def private_files() -> Iterator[None]:
    """Files made in the block are private to the server's user."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


class Lock:
    """The lock of the state directory; the kernel releases it when the process dies."""

    def __init__(self, paths: Paths) -> None:
        """Take the lock; raise `StateInUse` if another server holds it."""
        self._file = os.open(paths.server_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            other = running(paths)
            pid = f" (pid {other['pid']})" if other else ""
            raise StateInUse(
                f"another server{pid} uses {paths.state}; stop it with 'tgpu down', or "
                "choose another directory with --state-dir"
            ) from None

    def release(self) -> None:
        """Let another server take the lock."""
        os.close(self._file)


def installation_id(paths: Paths) -> str:
    """A unique id of this installation, stored in the state directory."""
    file = Path(paths.state) / ID_FILE
    with suppress(OSError):
        stored = file.read_text(encoding="ascii", errors="replace").strip()
        if stored:
            return f"{socket.gethostname()}/{stored}"
    fresh_id = secrets.token_hex(16)
    fresh = file.with_name(f"{ID_FILE}.new")
    with private_files():
        fresh.write_text(f"{fresh_id}\n", encoding="ascii")
    fresh.replace(file)
    return f"{socket.gethostname()}/{fresh_id}"


def write_server_file(paths: Paths, facts: dict[str, Any]) -> None:
    """Write the pid and addresses of this server, for `tgpu down` and `tgpu status`."""
    target = Path(paths.server_file)
    fresh = target.with_name(f"{target.name}.new")
    with private_files():
        fresh.write_text(json.dumps(facts), encoding="utf-8")
    fresh.replace(target)


def remove_server_file(paths: Paths) -> None:
    """Remove the file when the server stops."""
    Path(paths.server_file).unlink(missing_ok=True)


def running(paths: Paths) -> dict[str, Any] | None:
    """The contents of the server file, if that server still runs."""
    try:
        facts: dict[str, Any] = json.loads(Path(paths.server_file).read_text(encoding="utf-8"))
        start = process_start(facts["pid"])
    except (OSError, ValueError, KeyError):
        return None
    return facts if start == facts.get("process_start") else None


def process_start(pid: int) -> str:
    """Start time of a process in clock ticks: with the pid, a unique id of the process."""
    status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return status.rpartition(")")[2].split()[19]
