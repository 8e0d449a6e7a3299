"""The doctor looks at settings, state directory, disk and files with secrets."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpu_scheduler.cli.doctor_lines import OK, PROBLEM, WARNING, Line, Surroundings, nearest

LONGEST_SOCKET = 107
SYNCS = 10
SLOW_MS, VERY_SLOW_MS = 20.0, 200.0
LITTLE_MB, VERY_LITTLE_MB = 1024, 64
MB = 1 << 20
FAR = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "lustre", "ceph"})
OTHERS_WRITE = 0o022


def settings(around: Surroundings) -> Iterator[Line]:
    """Whether they can be read; all else goes by the defaults if not."""
    if around.error:
        yield Line(
            "settings",
            PROBLEM,
            around.error,
            "mend it; 'tgpu config check' reads it again, 'tgpu config sample' shows all settings",
        )
        return
    yield Line("settings", OK, around.file or "no file; variables and defaults hold")
    for notice in around.notices:
        yield Line("settings", WARNING, notice, "remove it")
    if around.file and Path(around.file).stat().st_mode & OTHERS_WRITE:
        yield Line(
            "settings",
            WARNING,
            f"{around.file} can be written by its group",
            f"chmod 644 {around.file}: who may write it may run commands as the server's user",
        )


def state(around: Surroundings) -> Iterator[Line]:
    """Whether the directory can be used, and by nobody else."""
    directory = around.paths.state
    place = Path(directory)
    if len(around.paths.launcher_socket.encode()) > LONGEST_SOCKET:
        yield Line(
            "state",
            PROBLEM,
            f"the name {directory} is too long for sockets in it",
            "choose a shorter one with --state-dir",
        )
    if not place.exists():
        above = nearest(directory)
        if os.access(above, os.W_OK | os.X_OK):
            yield Line("state", OK, f"{directory} is made at the first start")
        else:
            remedy = "start it as the right user, or choose another with --state-dir"
            yield Line("state", PROBLEM, f"{directory} cannot be made in {above}", remedy)
        return
    status = place.stat()
    if not place.is_dir():
        yield Line("state", PROBLEM, f"{directory} is no directory", "move it away")
        return
    if status.st_uid != around.uid:
        # Of a server that somebody else runs we see no more, and need not.
        known = WARNING if status.st_uid == 0 else PROBLEM
        told = f"{directory} belongs to uid {status.st_uid}, and you are uid {around.uid}"
        yield Line("state", known, told, "run the doctor as that user to look into it")
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & (OTHERS_WRITE | 0o044):
        told = f"{directory} has mode {mode:o}: others can look or write into it"
        yield Line("state", PROBLEM, told, f"chmod go-rw {directory}; a start does that, too")
    elif not os.access(directory, os.W_OK):
        yield Line("state", PROBLEM, f"{directory} cannot be written", "is it mounted read-only?")
    else:
        yield Line("state", OK, f"{directory} (mode {mode:o})")
    yield from _private_files(place)


def _private_files(place: Path) -> Iterator[Line]:
    """What holds jobs and secrets must be for the server alone."""
    for name in ("scheduler.db", "agent", "logs"):
        with suppress(OSError):
            mode = stat.S_IMODE((place / name).stat().st_mode)
            if mode & 0o077:
                told = f"{place / name} has mode {mode:o}: others can get at it"
                yield Line("state", PROBLEM, told, f"chmod go= {place / name}")


def disk(around: Surroundings) -> Iterator[Line]:
    """Room, kind, and how long a commit waits for it."""
    directory = nearest(around.paths.state)
    found = os.statvfs(directory)
    free_mb = found.f_bavail * found.f_frsize // MB
    remedy = "remove what is not needed, or choose another disk with --state-dir"
    if free_mb < LITTLE_MB:
        status = PROBLEM if free_mb < VERY_LITTLE_MB else WARNING
        yield Line("disk", status, f"{free_mb:,} MiB are free at {directory}", remedy)
    else:
        yield Line("disk", OK, f"{free_mb / 1024:,.0f} GiB are free at {directory}")
    kind = file_system(directory, Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    if kind in FAR:
        yield Line(
            "disk",
            PROBLEM,
            f"{directory} lies on {kind}, a file system of the network",
            "SQLite needs a local one for its locks; choose another with --state-dir",
        )
    yield from _sync_speed(directory)


def _sync_speed(directory: str) -> Iterator[Line]:
    took = sync_ms(directory)
    if took is None:
        yield Line("disk", OK, "how fast it is was not measured: we may not write there")
    elif took > SLOW_MS:
        status = PROBLEM if took > VERY_SLOW_MS else WARNING
        told = f"a write takes {took:.0f} ms until it is safe"
        yield Line("disk", status, told, "every answer waits for that; use a local SSD")
    else:
        yield Line("disk", OK, f"a write takes {took:.1f} ms until it is safe")


def sync_ms(directory: str) -> float | None:
    """The median of a few small writes with fsync; None if we may not write there."""
    name = f"{directory}/.tgpu-doctor-{os.getpid()}"
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        times = []
        for place in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file, b"x" * 4096, 4096 * place)
            os.fsync(file)
            times.append(time.perf_counter() - began)
        return 1000 * sorted(times)[SYNCS // 2]
    except OSError:
        return None
    finally:
        os.close(file)
        Path(name).unlink(missing_ok=True)


def file_system(directory: str, mountinfo: str) -> str:
    """The kind of file system that a directory lies on."""
    real = os.path.realpath(directory)
    best, kind = "", ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount = fields[4].replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def secrets(around: Surroundings) -> Iterator[Line]:
    """Files that the settings name and that must be there, and for nobody else."""
    notifications, api = around.settings.notifications, around.settings.api
    named = [
        ("notifications.smtp_login_file", notifications.smtp_login_file),
        ("api.tls_key", getattr(api, "tls_key", "")),
    ]
    for name, target in notifications.targets.items():
        named.append((f"notifications.targets.{name}.url_file", target.url_file))
        named.append((f"notifications.targets.{name}.secret_file", target.secret_file))
    for key, path in named:
        if not path:
            continue
        try:
            status = Path(path).stat()
        except OSError as error:
            told = f"{key} is {path}: {error.strerror}"
            yield Line("secrets", PROBLEM, told, "make it, readable for the server's user")
            continue
        if status.st_mode & 0o007:
            told = f"{key} is {path}, and everybody may read it"
            yield Line("secrets", PROBLEM, told, f"chmod 600 {path}")
        else:
            yield Line("secrets", OK, f"{key}: {path}")
