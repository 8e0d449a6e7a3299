"""The doctor looks at the server: whether one runs, how it is, its socket, its ports, its unit."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpu_scheduler import __version__
from gpu_scheduler.cli.doctor.findings import OK, PROBLEM, WARNING, Line, Surroundings, nearest
from gpu_scheduler.client.address import SERVER_VARIABLE
from gpu_scheduler.client.client import Client
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.server.state_directory import running

UNIT = "gpu-scheduler.service"
UNIT_PLACES = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
NO_SERVER = "tgpu up; a node of a cluster needs none, only TGPU_SERVER with the cluster's address"
SYSTEMD = "/run/systemd/system"


def server(around: Surroundings) -> Iterator[Line]:
    """Whether it runs, which version, and its own view of its health."""
    try:
        address = around.server
    except SchedulerError as error:
        yield Line("server", PROBLEM, str(error), f"mend or unset {SERVER_VARIABLE}")
        return
    if address.path and not Path(address.path).exists():
        told = f"no server runs here ({address.path} is not there)"
        yield Line("server", WARNING, told, NO_SERVER)
        return
    try:
        with Client(str(address)) as client:
            health = client.health()
    except (SchedulerError, OSError) as error:
        remedy = (
            "'tgpu up' (of a cluster: 'tgpu server') starts it again; server.log in the state "
            "directory says why it ended"
        )
        yield Line("server", PROBLEM, f"it does not answer: {error}", remedy)
        return
    version = str(health.get("version") or "")
    found = f"version {version} answers at {address.path or address}"
    if version != __version__:
        remedy = "restart it with this version, or use its own; jobs survive a restart"
        yield Line("server", WARNING, f"{found}, and this is {__version__}", remedy)
    else:
        yield Line("server", OK, found)
    for reason in health.get("reasons") or []:
        status = PROBLEM if reason["status"] == "unhealthy" else WARNING
        yield Line("health", status, reason["detail"], reason["remedy"])
    if health.get("status") == "healthy":
        yield Line("health", OK, "healthy")


def socket_file(around: Surroundings) -> Iterator[Line]:
    """Whether users get to the socket, and can believe it."""
    if not around.socket:
        return
    path = Path(around.socket)
    try:
        status = path.lstat()
    except OSError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield Line("socket", PROBLEM, f"{path} is no socket", "move it away and start again")
        return
    if status.st_uid not in (0, around.uid):
        told = f"{path} belongs to uid {status.st_uid}, neither root nor you: it is not trusted"
        yield Line("socket", PROBLEM, told, "name the right one with --server or $TGPU_SERVER")
        return
    serves_all = status.st_uid == 0
    if serves_all and status.st_mode & 0o006 != 0o006:
        told = f"{path} has mode {stat.S_IMODE(status.st_mode):o}: users cannot talk to it"
        yield Line("socket", PROBLEM, told, "restart the server; it sets the mode itself")
        return
    closed = [above for above in path.parents if not above.stat().st_mode & 0o001]
    if serves_all and closed:
        told = f"users do not get to {path}: {closed[0]} has mode {_mode(closed[0])}"
        yield Line("socket", PROBLEM, told, f"chmod o+x {closed[0]}, or another --state-dir")
        return
    yield Line("socket", OK, f"{path}" + (", for everybody" if serves_all else ", for you"))


def ports(around: Surroundings) -> Iterator[Line]:
    """Whether somebody else has them; a server of ours may."""
    api = around.settings.api
    ours = running(around.paths) or {}
    wanted = [("http_port", api.http_port)]
    if around.settings.logging.metrics_enabled:
        wanted.append(("metrics_port", api.metrics_port))
    for name, port in wanted:
        if not port:
            yield Line("ports", OK, f"api.{name} is 0: a free one is taken")
        elif any(str(ours.get(key, "")).endswith(f":{port}") for key in ("http", "metrics")):
            yield Line("ports", OK, f"{port} (api.{name}) is held by our server")
        elif not (reason := why_taken(api.host, port)):
            yield Line("ports", OK, f"{port} (api.{name}) is free")
        elif around.socket != around.paths.server_socket:
            yield Line("ports", OK, f"{port} (api.{name}) is taken, by the machine's own server")
        else:
            yield Line(
                "ports",
                PROBLEM,
                f"{port} on {api.host} (api.{name}) cannot be had: {reason}",
                f"'ss -ltnp sport = :{port}' shows who has it; or set api.{name} to another",
            )


def why_taken(host: str, port: int) -> str:
    """Why we could not listen there; empty if we could."""
    try:
        entry = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(entry[0], socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(entry[4])
            one.listen(1)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def service(around: Surroundings) -> Iterator[Line]:
    """Whether it starts with the machine."""
    if not Path(SYSTEMD).is_dir():
        yield Line("service", OK, "there is no systemd here; what starts it is up to you")
        return
    files = [place for place in UNIT_PLACES if Path(place, UNIT).exists()]
    if not files:
        status = WARNING if around.uid == 0 else OK
        remedy = "copy deploy/systemd/gpu-scheduler.service and enable it"
        told = "no unit is installed: it does not start with the machine"
        yield Line("service", status, told, remedy if status == WARNING else "")
        return
    program = around.program("systemctl")
    if program is None:
        yield Line("service", WARNING, "systemctl is not on the PATH", "is this a container?")
        return
    _, active = around.output([program, "is-active", UNIT])
    _, enabled = around.output([program, "is-enabled", UNIT])
    good = (active, enabled) == ("active", "enabled")
    remedy = "" if good else f"systemctl enable --now {UNIT}; journalctl -u {UNIT} tells its story"
    told = f"{files[0]}/{UNIT} is {active or 'unknown'} and {enabled or 'unknown'}"
    yield Line("service", OK if good else WARNING, told, remedy)


def _mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


# --- The doctor looks at settings, state directory, disk and files with secrets.

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
