"""The doctor looks at the server: whether one runs, how it is, its socket, its ports, its unit."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler import __version__
from gpu_scheduler.cli.doctor_lines import OK, PROBLEM, WARNING, Line, Surroundings
from gpu_scheduler.client.address import SERVER_VARIABLE
from gpu_scheduler.client.client import Client
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.server.directories import running

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
