"""Processes in /proc: start times, parents, users, and the job that their environment names.

A process is identified by pid, start time and boot id, because the kernel reuses pids. Everything
here reads, but for the functions that send signals.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from gpu_scheduler.agent.launcher_protocol import Key

_PR_SET_CHILD_SUBREAPER = 36
_ID = b"TGPU_ALLOCATION_ID="
_MEMBER = b"TGPU_MEMBER="
_SHELL_IGNORES = sum(
    1 << (number - 1) for number in (signal.SIGTERM, signal.SIGTSTP, signal.SIGTTOU)
)
_LAUNCHER = b"TGPU_LAUNCHER="
_HELPER = b"TGPU_HELPER="
_MAX_DIGITS = 10


def become_subreaper() -> None:
    """Orphans of our jobs become our children, so that they can be found."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def boot_id() -> str:
    """Identifies the time since the last boot."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 if there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in {b"Z", b"X"}


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal or a debugger."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in {b"T", b"t"}


def activity(pids: Iterable[int]) -> tuple[int, int]:
    """What these processes have done: bytes read and written, and CPU time in clock ticks.

    The CPU time includes that of children that have ended.
    """
    size = ticks = 0
    for pid in pids:
        fields = _stat(pid)
        ticks += sum(map(int, fields[11:15]))
        for line in _read(f"/proc/{pid}/io").splitlines()[:2]:
            size += int(line.partition(b":")[2])
    return size, ticks


def own_children() -> list[int]:
    """Our children, including orphans that we inherited."""
    pid = os.getpid()
    text = _read(f"/proc/{pid}/task/{pid}/children")
    if text or os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return [int(child) for child in text.split()]
    return [child for child, (parent, _) in family().items() if parent == pid]


def family() -> dict[int, tuple[int, int]]:
    """Parent and session of every process, without zombies."""
    found: dict[int, tuple[int, int]] = {}
    for pid in all_pids():
        fields = _stat(pid)
        if fields and fields[0] not in {b"Z", b"X"}:
            found[pid] = (int(fields[1]), int(fields[3]))
    return found


def descendants(roots: Iterable[int], relatives: dict[int, tuple[int, int]]) -> set[int]:
    """The roots that run, and all processes below them."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in relatives.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    ahead = list(roots)
    while ahead:
        pid = ahead.pop()
        if pid not in found:
            found.add(pid)
            ahead += children.get(pid, ())
    return found & relatives.keys()


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def owner(pid: int, launcher: str) -> Key | None:
    """The job of this launcher that the environment of a process names."""
    return owner_in(_read(f"/proc/{pid}/environ"), launcher)


def owner_in(environment: bytes, launcher: str) -> Key | None:
    """Other launchers may have jobs of the same names, even inside one of our jobs."""
    found: dict[bytes, bytes] = {}
    for item in environment.split(b"\0"):
        for name in (_ID, _MEMBER, _LAUNCHER):
            if item.startswith(name):
                found[name] = item[len(name) :]
    if _ID not in found or found.get(_LAUNCHER) != launcher.encode():
        return None
    member = found.get(_MEMBER, b"0")
    number = int(member) if member.isdigit() and len(member) < _MAX_DIGITS else 0
    return found[_ID].decode(errors="replace"), number


def is_helper(pid: int, launcher: str) -> bool:
    """Whether a hook or a container engine of ours left this process running on purpose.

    Those run as the launcher's user; the mark of another user's process is not trusted.
    """
    return has_mark(pid, launcher) and user_of(pid) == os.geteuid()


def has_mark(pid: int, mark: str) -> bool:
    """Whether the environment of a process names it a helper with this mark."""
    return _HELPER + mark.encode() in _read(f"/proc/{pid}/environ").split(b"\0")


def monitors_container(pid: int, name: str) -> bool:
    """Whether it is podman's monitor (conmon) of this container, started by our user."""
    words = _read(f"/proc/{pid}/cmdline").split(b"\0")
    if not words[0].endswith(b"conmon") or name.encode() not in words:
        return False
    return user_of(pid) == os.geteuid()


def is_first_in_namespace(pid: int) -> bool:
    """Whether it is the first process of a pid namespace directly below ours."""
    _, _, rest = _read(f"/proc/{pid}/status").partition(b"\nNSpid:")
    return rest.partition(b"\n")[0].split()[1:] == [b"1"]


def user_of(pid: int) -> int:
    """The real user of a process; -1 if it is gone.

    Not the owner of its /proc directory: that is root for a process that is not dumpable.
    """
    _, _, rest = _read(f"/proc/{pid}/status").partition(b"\nUid:")
    numbers = rest.split(None, 1)
    return int(numbers[0]) if numbers else -1


def is_shell_at_prompt(pid: int) -> bool:
    """Whether a process ignores the signals that interactive shells ignore, SIGTERM among them."""
    _, _, rest = _read(f"/proc/{pid}/status").partition(b"\nSigIgn:")
    words = rest.split(None, 1)
    return bool(words) and int(words[0], 16) & _SHELL_IGNORES == _SHELL_IGNORES


def ancestors_below(pid: int, top: int) -> list[int]:
    """The process and its ancestors below `top`; empty if `top` is not one of them."""
    found: list[int] = []
    while pid > 1 and pid != top and pid not in found:
        found.append(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0
    return found if pid == top else []


def control_groups(pid: int) -> str:
    return _read(f"/proc/{pid}/cgroup").decode(errors="replace")


def open_pidfd(pid: int, ticks: int) -> int:
    """A descriptor of exactly this process; -1 if it has ended."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return -1
    if start_ticks(pid) != ticks or not is_running(pid):
        os.close(handle)
        return -1
    return handle


def send(pids: Iterable[int], number: int) -> None:
    """Signal processes; those that are gone or not ours to signal are skipped.

    0, 1 and negative numbers do not name one ordinary process, and are never signalled.
    """
    for pid in pids:
        if pid > 1:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def send_to_group(leader: int, number: int) -> None:
    """Signal a process group; never our own, nor every process."""
    if leader > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def kill_pidfd(pidfd: int) -> None:
    """Kill exactly this process, if it still exists."""
    with suppress(OSError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def signal_number(name: str) -> int:
    """The number of SIGUSR1, USR1 or 10; 0 if there is no such signal."""
    if name.isdigit():
        return int(name) if 0 < int(name) < signal.NSIG else 0
    full = name.upper() if name.upper().startswith("SIG") else "SIG" + name.upper()
    found = getattr(signal, full, None)
    return int(found) if isinstance(found, signal.Signals) else 0


def _stat(pid: int) -> list[bytes]:
    """The fields after the name (which may contain anything): state, parent, group, session..."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    data = b""
    try:
        while part := os.read(descriptor, 65536):
            data += part
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return data
