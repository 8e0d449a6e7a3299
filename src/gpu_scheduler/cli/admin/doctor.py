"""`tgpu doctor`: checks this machine and the server, and prints what to do about each problem.

It works without a server and as any user. The exit code is 1 if there is a problem, and 0 for
warnings. Each check takes the context and yields findings; checks that may hang, such as of the GPU
driver, run in a process of their own.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import resource
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_scheduler import __version__
from gpu_scheduler.agent import cgroups
from gpu_scheduler.agent.device_filter import can_filter_devices
from gpu_scheduler.agent.runners.container import NO_INIT, ContainerRunner, podman_init
from gpu_scheduler.cli.admin.container_trial import NO_USER, run_trial, trial_user
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import counted, painted, print_json, visible
from gpu_scheduler.client.address import SERVER_VARIABLE, Address, candidates
from gpu_scheduler.client.client import Client
from gpu_scheduler.control.clock import is_clock_synchronised
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.server.privileges import landlock_version
from gpu_scheduler.server.state_directory import running
from gpu_scheduler.server.storage import key_file_of
from gpu_scheduler.settings.file_paths import (
    ROOT_RUNTIME,
    SOCKET_NAME,
    STATE_VARIABLE,
    Paths,
    paths,
)
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.sources import load as load_settings

OK, WARNING, PROBLEM = STATUSES = ("ok", "warning", "problem")
COMMAND_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    status: str
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    """The finding of a check that passed."""
    return Finding(check, OK, found)


def warning(check: str, found: str, remedy: str = "") -> Finding:
    """The finding of a check with which the scheduler still works."""
    return Finding(check, WARNING, found, remedy)


def problem(check: str, found: str, remedy: str = "") -> Finding:
    """The finding of a check with which the scheduler does not work."""
    return Finding(check, PROBLEM, found, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the checks need: settings (defaults if they cannot be read), paths, environment, uid."""

    settings: Settings
    paths: Paths
    file: str | None = None
    notices: tuple[str, ...] = ()
    error: str = ""
    is_named: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int = field(default_factory=os.geteuid)

    @classmethod
    def load(cls, config: str | None, state_dir: str | None) -> Context:
        """The context as `tgpu up` would see it."""
        settings, error = Settings(), ""
        file: str | None = None
        notices: tuple[str, ...] = ()
        try:
            loaded = load_settings(config)
        except SchedulerError as invalid:
            error = str(invalid).replace(":\n  ", ": ").replace("\n  ", "; ")
        else:
            settings, file, notices = loaded.settings, loaded.file, loaded.notices
        where = paths(state_dir or settings.files.state_dir or None)
        return cls(
            settings=settings,
            paths=where,
            file=file,
            notices=notices,
            error=error,
            is_named=bool(state_dir or os.environ.get(STATE_VARIABLE)),
        )

    @property
    def server(self) -> Address:
        """The server that a client would use: the named one, one's own, else the machine's."""
        if not self.is_named and self.environ.get(SERVER_VARIABLE):
            return candidates(environ=self.environ)[0]
        own = self.paths.server_socket
        shared = f"{ROOT_RUNTIME}/{SOCKET_NAME}"
        if self.is_named or os.path.exists(own) or not os.path.exists(shared):  # noqa: PTH110
            return Address(path=own)
        return Address(path=shared)

    @property
    def socket(self) -> str:
        """The socket of that server; empty for a network address or an invalid one."""
        try:
            return self.server.path
        except SchedulerError:
            return ""

    def program(self, name: str) -> str | None:
        """The path of a program on the PATH."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def output(
        self, command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int, str]:
        """Exit code and output of a command; 124 if it timed out, 127 if it cannot be run."""
        try:
            ended = subprocess.run(  # noqa: S603 - programs of the system, without a shell
                list(command),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                env=dict(self.environ),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, f"no answer within {timeout_s:g} s"
        except OSError as error:
            return 127, error.strerror or str(error)
        return ended.returncode, (ended.stdout + ended.stderr).strip()


def nearest_existing(path: str) -> str:
    """The path, or the first directory above it that exists."""
    while path not in ("", "/") and not os.path.exists(path):  # noqa: PTH110
        path = os.path.dirname(path)  # noqa: PTH120
    return path or "/"


EXIT_PROBLEM = 1
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}

Check = Callable[[Context], Iterator[Finding]]


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = Options(parser)
    add.value("--config", None, "FILE", "settings of the server, as for 'tgpu up'")
    add.value("--state-dir", None, "DIR", "its state directory, as for 'tgpu up'")
    add.flag("-q --quiet", "show only warnings and problems")
    add.flag("--json", "print JSON instead of text")


def run(args: Namespace) -> int:
    """Run all checks and print the findings."""
    findings = list(run_checks(Context.load(args.config, args.state_dir)))
    counts = {status: sum(one.status == status for one in findings) for status in STATUSES}
    if args.json:
        print_json({"lines": [asdict(one) for one in findings], **counts})
    else:
        for finding in findings:
            if args.quiet and finding.status == OK:
                continue
            status = painted(f"{finding.status:<8}", _COLOURS[finding.status])
            print(f"{status} {finding.check:<9} {visible(finding.found)}")
            for part in finding.remedy.split("\n") if finding.remedy else ():
                print(f"{'':<18} -> {visible(part)}")
        totals = (counted(counts[WARNING], WARNING), counted(counts[PROBLEM], PROBLEM))
        print(painted(", ".join((f"{counts[OK]} {OK}", *totals)), "bold"))
    return EXIT_PROBLEM if counts[PROBLEM] else 0


def run_checks(context: Context) -> Iterator[Finding]:
    """Run the checks. A check that raises is a problem, and the others go on."""
    if is_served := is_served_by_root(context):
        yield ok("user", SERVED_BY_ROOT)
    for name, check in CHECKS.items():
        if is_served and name in OF_OWN_SERVER:
            continue
        try:
            yield from check(context)
        except Exception as error:  # noqa: BLE001 - one broken check must not stop the others
            found = f"the check failed: {error!r}"
            yield problem(name, found, "this is a bug in tgpu doctor; please report it")


OF_OWN_SERVER = frozenset({"user", "gpus", "cgroups", "state", "disk", "secrets", "limits"})
"""Checks of what a server of this user would have: they say nothing about a server of root."""
SERVED_BY_ROOT = (
    "not root, and the server is root's: 'tgpu doctor' as root checks its GPUs, control groups, "
    "state directory, disk, secrets and limits"
)


def is_served_by_root(context: Context) -> bool:
    """Whether a server of root answers an ordinary user; then the user needs none of their own."""
    try:
        if context.uid == 0 or not context.socket or Path(context.socket).stat().st_uid != 0:
            return False
        with Client(context.socket) as client:
            client.health()
    except (SchedulerError, OSError):
        return False
    return True


# Checks of the machine

MIN_PYTHON = (3, 11)
MIN_SQLITE = (3, 37, 0)
MIN_OPEN_FILES = 4096
CLOCK_TOLERANCE_S = 60.0
EARLIEST_TIME_S = 1_735_689_600
"""2025: a correct clock does not show an earlier time."""


def check_python(_: Context) -> Iterator[Finding]:
    """The interpreter and the SQLite in it."""
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < MIN_PYTHON:
        yield problem("python", found, "use Python 3.11 or newer")
    else:
        yield ok("python", found)
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        remedy = "use a Python with SQLite 3.37 or newer"
        yield problem("sqlite", f"SQLite {sqlite3.sqlite_version}", remedy)
    else:
        yield ok("sqlite", f"SQLite {sqlite3.sqlite_version}")


def check_user(context: Context) -> Iterator[Finding]:
    """Which user runs the server, and so which users it can serve."""
    if context.uid == 0:
        yield ok("user", "root: the server can run the jobs of all users")
        return
    try:
        name = pwd.getpwuid(context.uid).pw_name
    except KeyError:
        yield problem(
            "user",
            f"uid {context.uid} has no account",
            "jobs need a user name; add the uid to /etc/passwd or your directory service",
        )
        return
    yield warning(
        "user",
        f"{name}, not root: the server can run only your jobs, and may not be able to enforce all "
        "limits",
        "for a shared machine start it as root (deploy/systemd/gpu-scheduler.service)",
    )


def check_cgroups(context: Context) -> Iterator[Finding]:
    """Which control groups the machine has, and whether we may use them."""
    mounted = cgroups.mounts(cgroups.read("/proc/self/mountinfo"))
    own = cgroups.own_groups(cgroups.read("/proc/self/cgroup"))
    yield from cgroup_findings(mounted, own, context.uid)
    if mounted.v1 or mounted.v2:
        yield from device_findings(mounted, can_filter=can_filter_devices())


def cgroup_findings(mounted: cgroups.Mounts, own: dict[str, str], uid: int) -> Iterator[Finding]:
    """The findings for these mounts and groups."""
    if not mounted.v2 and not mounted.v1:
        yield warning(
            "cgroups",
            "this machine has no control groups",
            "memory and CPU limits fall back to rlimits, and jobs can use the GPUs of others; in a "
            "container, mount /sys/fs/cgroup",
        )
        return
    kind = "v2" if not mounted.v1 else "v1" if not mounted.v2 else "hybrid (v1 limits, v2 tracks)"
    place = cgroups.place_v2(mounted.v2, own.get("", "/")) if mounted.v2 else ""
    offered = set(mounted.v1) - {"freezer"}
    if mounted.v2:
        offered |= set(cgroups.read(f"{place or mounted.v2}/cgroup.controllers").split())
    missing = [name for name in ("cpu", "memory", "pids") if name not in offered]
    found = f"{kind}; controllers: {', '.join(sorted(offered)) or 'none'}"
    if missing:
        yield warning(
            "cgroups",
            f"{found}; missing: {', '.join(missing)}",
            "these limits fall back to rlimits; for v2, start it from a unit with Delegate=yes",
        )
    else:
        yield ok("cgroups", found)
    tops = [place or mounted.v2] if mounted.v2 and not mounted.v1 else list(mounted.v1.values())
    if not any(os.access(top, os.W_OK) for top in tops):
        how = "Delegate=yes in the unit" if uid == 0 else "run it as root, or in a delegated unit"
        yield warning("cgroups", "no permission to create groups", how)


def device_findings(mounted: cgroups.Mounts, *, can_filter: bool) -> Iterator[Finding]:
    """Whether jobs, also in containers, can be kept from opening GPUs that are not theirs."""
    if "devices" not in mounted.v1 and not (mounted.v2 and can_filter):
        yield warning(
            "cgroups",
            "device nodes of other jobs' GPUs cannot be closed: neither the devices controller "
            "(v1) nor a device filter by eBPF (v2) can be used here",
            "jobs only get CUDA_VISIBLE_DEVICES, which they can change; run the agent as root, "
            "with CAP_BPF or CAP_SYS_ADMIN, on a host with control groups",
        )


def check_clock(context: Context) -> Iterator[Finding]:
    """Whether the clock is correct."""
    now = time.time()
    if now < EARLIEST_TIME_S:
        when = time.strftime("%Y-%m-%d", time.gmtime(now))
        yield problem("clock", f"the clock shows {when}", "set it, and run chrony")
        return
    try:
        files = [entry.stat().st_mtime for entry in Path(context.paths.state).iterdir()]
    except OSError:
        files = []
    newest = max(files, default=0.0)
    if newest > now + CLOCK_TOLERANCE_S:
        yield warning(
            "clock",
            f"files of the state directory are {newest - now:.0f} s in the future",
            "the clock was set back; recorded times continue, begin times and reservations "
            "follow the clock. Run chrony",
        )
    # How far the wall clock moves against the monotonic clock in 50 ms.
    before = time.time() - time.monotonic()
    time.sleep(0.05)
    drift = time.time() - time.monotonic() - before
    if abs(drift) > 0.05:
        found = f"the clock was changed by {drift:+.2f} s during the check"
        yield warning("clock", found, "two programs may be setting it; stop one of them")
    synchronised = is_clock_synchronised()
    if synchronised:
        yield ok("clock", "synchronized by a time service")
    elif synchronised is None:
        yield ok("clock", "unknown whether a time service synchronizes it")
    else:
        yield warning(
            "clock",
            "not synchronized by a time service",
            "start chrony or systemd-timesyncd: reports, reservations and tokens use the clock",
        )


def check_programs(context: Context) -> Iterator[Finding]:
    """Programs that some jobs need."""
    for names, what in (
        (("tmux",), "jobs with --runner tmux"),
        (("screen",), "jobs with --runner screen"),
        (("podman", "docker"), "jobs with --image"),
    ):
        found = [name for name in names if context.program(name)]
        if found:
            yield ok(names[0], ", ".join(filter(None, map(context.program, found))))
            if found == ["podman"] and not podman_init():
                yield warning("podman", NO_INIT, f"{what} wait until then")
        else:
            missing = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not on the PATH"
            remedy = f"install {names[0]}; {what} wait until a node has it"
            yield warning(names[0], missing, remedy)


def check_containers(context: Context) -> Iterator[Finding]:
    """Whether containers run, by a trial: an engine that is installed may not work."""
    agent = context.settings.agent
    if not context.program("podman") and not context.program("docker"):
        return
    if agent.container_engine_user == "root":
        images = ", ".join(agent.container_allowed_images) or "none"
        found = f"the engine runs as root; images for users: {images}"
        remedy = "prefer rootless podman (agent.container_engine_user: job)"
        yield warning("containers", found, remedy)
        return
    user = trial_user()
    if user is None:
        yield warning("containers", NO_USER, "usermod --add-subuids and --add-subgids for users")
        return
    if error := run_trial(user):
        remedy = (
            "jobs with --image fail; install podman, uidmap and catatonit, and give users ranges "
            "in /etc/subuid and /etc/subgid"
        )
        yield warning("containers", f"a trial container as {user.pw_name} failed: {error}", remedy)
        return
    yield ok("containers", f"a trial container as {user.pw_name} worked (rootless podman)")
    if "mount_program" not in " ".join(ContainerRunner().podman):
        found = "without fuse-overlayfs and /dev/fuse for users, each start copies its image"
        yield warning("containers", found, "install fuse-overlayfs; chmod 666 /dev/fuse")


def check_limits(_: Context) -> Iterator[Finding]:
    """The limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < MIN_OPEN_FILES:
        remedy = f"ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}, or LimitNOFILE=65536"
        found = f"the limit of open files is {soft}; many jobs and connections need more"
        yield warning("limits", found, remedy)
    else:
        yield ok("limits", f"the limit of open files is {soft}")


# GPUs: driver, NVML and nvidia-smi

DRIVER = "/proc/driver/nvidia/version"
DEVICE_DIRECTORY = "/dev"
Findings = Generator[Finding, None, bool]
"""Yields findings, returns whether the check passed."""


def check_gpus(context: Context) -> Iterator[Finding]:
    """The driver, the library and nvidia-smi; or the declared GPUs."""
    gpu = context.settings.gpu
    declared = gpu.simulate
    if not declared:
        # `tgpu up --simulate` declares GPUs, too; the agent's file may not be readable.
        with suppress(OSError, ValueError):
            text = Path(context.paths.agent, "agent.json").read_text(encoding="utf-8")
            declared = str(json.loads(text).get("simulate") or "")
    if declared:
        yield from _by_method(context, "declared", declared)
        return
    if gpu.detection_method == "none":
        yield ok("gpus", "GPUs are disabled by gpu.detection_method")
        return
    has_driver = yield from _driver()
    found_nvml = yield from _by_method(context, "nvml")
    found_smi = yield from _smi(context)
    if not (found_nvml or found_smi):
        status = PROBLEM if has_driver else WARNING
        yield Finding(
            "gpus",
            status,
            "no usable GPU; jobs without GPUs still run",
            "load the NVIDIA driver (modprobe nvidia; nvidia-smi should answer), or declare GPUs "
            "for a test: tgpu up --simulate 8xA100-80GB",
        )


def _driver() -> Findings:
    """Whether the kernel has the driver and its device files."""
    try:
        version = Path(DRIVER).read_text(encoding="utf-8", errors="replace").split("\n", 1)[0]
    except OSError:
        nodes = list(Path(DEVICE_DIRECTORY).glob("nvidia[0-9]*"))
        if nodes:
            yield problem(
                "driver",
                f"{len(nodes)} device files exist, but no driver is loaded",
                "load it: modprobe nvidia; after a kernel update it must be rebuilt",
            )
        else:
            yield ok("driver", "no NVIDIA driver is loaded")
        return False
    yield ok("driver", version.replace("NVRM version: ", "").strip())
    blocked = [
        str(node)
        for node in sorted(Path(DEVICE_DIRECTORY).glob("nvidia[0-9]*"))
        if node.stat().st_mode & 0o006 != 0o006
    ]
    if blocked:
        yield warning(
            "driver",
            f"not all users may open {', '.join(blocked[:4])}",
            "jobs of other users cannot use it; see NVreg_DeviceFileMode of the driver, or udev",
        )
    return True


def _by_method(context: Context, method: str, declared: str = "") -> Findings:
    """Detect devices in another process, because a driver may hang."""
    command = [sys.executable, "-P", "-m", "gpu_scheduler.agent.devices", method, declared]
    code, output = context.output(command)
    if code:
        message = output.rsplit("\n", 1)[-1]
        remedy = "restart the driver or the machine" if code == 124 else "see the message"
        yield problem(method, f"cannot detect devices: {message}", remedy)
        return False
    found = json.loads(output)["found"]
    devices = found["devices"]
    if not devices:
        reason = found["problem"].split("; to try without", maxsplit=1)[0] or "no device found"
        yield Finding(method, WARNING if method == "nvml" else PROBLEM, reason)
        return False
    models: dict[str, int] = {}
    for device in devices:
        models[device["model"]] = models.get(device["model"], 0) + 1
    text = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    yield ok(method, f"{text}" + (f" ({found['problem']})" if found["problem"] else ""))
    return True


def _smi(context: Context) -> Findings:
    program = context.program("nvidia-smi")
    if program is None:
        yield warning(
            "nvidia-smi",
            "nvidia-smi is not on the PATH",
            "it is the second method to detect GPUs; install the utilities of the driver",
        )
        return False
    code, output = context.output([program, "-L"])
    if code:
        yield problem(
            "nvidia-smi",
            f"{program} fails: {output.splitlines()[0] if output else f'exit code {code}'}",
            "driver and library must have the same version (reboot after an update); if it hangs, "
            "reset the GPU or restart the machine",
        )
        return False
    yield ok("nvidia-smi", f"{program} lists {len(output.splitlines())} devices")
    return True


UNIT = "gpu-scheduler.service"
UNIT_PLACES = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
NO_SERVER = "tgpu up; on a node of a cluster set TGPU_SERVER to the cluster's address instead"
SYSTEMD = "/run/systemd/system"


def check_server(context: Context) -> Iterator[Finding]:
    """Whether the server runs, its version, and its own health checks."""
    try:
        address = context.server
    except SchedulerError as error:
        yield problem("server", str(error), f"correct or unset {SERVER_VARIABLE}")
        return
    if address.path and not Path(address.path).exists():
        found = f"no server runs here ({address.path} does not exist)"
        yield warning("server", found, NO_SERVER)
        return
    try:
        with Client(str(address)) as client:
            health = client.health()
    except (SchedulerError, OSError) as error:
        remedy = (
            "start it with 'tgpu up' (a cluster: 'tgpu server'); server.log in the state directory "
            "says why it stopped"
        )
        yield problem("server", f"does not answer: {error}", remedy)
        return
    version = str(health.get("version") or "")
    found = f"version {version} answers at {address.path or address}"
    if version != __version__:
        remedy = (
            "restart it with this version, or use the tgpu of its version; jobs survive a restart"
        )
        yield warning("server", f"{found}, but this is version {__version__}", remedy)
    else:
        yield ok("server", found)
    for reason in health.get("reasons") or []:
        status = PROBLEM if reason["status"] == "unhealthy" else WARNING
        yield Finding("health", status, reason["detail"], reason["remedy"])
    if health.get("status") == "healthy":
        yield ok("health", "healthy")


def check_privileges(context: Context) -> Iterator[Finding]:
    """What a server of root on this machine can still do."""
    facts = running(context.paths)
    try:
        status = Path(f"/proc/{facts['pid']}/status").read_text("ascii") if facts else ""
    except OSError:
        return
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if fields.get("Uid", "").split()[:1] != ["0"]:
        return
    count = int(fields["CapEff"], 16).bit_count()
    if fields["NoNewPrivs"].strip() != "1":
        yield ok("privileges", f"the server keeps all privileges of root ({count} capabilities)")
    elif not landlock_version():
        yield warning(
            "privileges",
            f"the server has {count} capabilities, and can write everywhere: this kernel has no "
            "Landlock",
            "use a kernel with Landlock (5.13 or newer), or gpu-scheduler-server.service",
        )
    else:
        yield ok("privileges", f"the server has {count} capabilities and writes only its own files")


def check_socket(context: Context) -> Iterator[Finding]:
    """Whether users can connect to the socket and trust it."""
    if not context.socket:
        return
    path = Path(context.socket)
    try:
        status = path.lstat()
    except OSError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield problem(
            "socket", f"{path} is not a socket", "move it away and start the server again"
        )
        return
    if status.st_uid not in (0, context.uid):
        found = f"{path} belongs to uid {status.st_uid}, neither root nor you, so it is not trusted"
        yield problem("socket", found, "name the right one with --server or $TGPU_SERVER")
        return
    serves_all = status.st_uid == 0
    if serves_all and status.st_mode & 0o006 != 0o006:
        found = f"{path} has mode {stat.S_IMODE(status.st_mode):o}: users cannot connect"
        yield problem("socket", found, "restart the server; it sets the mode itself")
        return
    closed = [above for above in path.parents if not above.stat().st_mode & 0o001]
    if serves_all and closed:
        mode = stat.S_IMODE(closed[0].stat().st_mode)
        found = f"users cannot reach {path}: {closed[0]} has mode {mode:o}"
        yield problem("socket", found, f"chmod o+x {closed[0]}, or another --state-dir")
        return
    yield ok("socket", f"{path}" + (", for all users" if serves_all else ", for you"))


def check_ports(context: Context) -> Iterator[Finding]:
    """Whether the ports are free, or used by our server."""
    api = context.settings.api
    ours = running(context.paths) or {}
    wanted = [("http_port", api.http_port)]
    if context.settings.logging.metrics_enabled:
        wanted.append(("metrics_port", api.metrics_port))
    for name, port in wanted:
        if not port:
            yield ok("ports", f"api.{name} is 0: the server uses a free port")
        elif any(str(ours.get(key, "")).endswith(f":{port}") for key in ("http", "metrics")):
            yield ok("ports", f"{port} (api.{name}) is used by our server")
        elif not (reason := listen_error(api.host, port)):
            yield ok("ports", f"{port} (api.{name}) is free")
        elif context.socket != context.paths.server_socket:
            yield ok("ports", f"{port} (api.{name}) is used by the server of this machine")
        else:
            yield problem(
                "ports",
                f"{port} on {api.host} (api.{name}) cannot be used: {reason}",
                f"'ss -ltnp sport = :{port}' shows the process; or change api.{name}",
            )


def listen_error(host: str, port: int) -> str:
    """Why we cannot listen there; empty if we can."""
    try:
        entry = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(entry[0], socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(entry[4])
            one.listen(1)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def check_service(context: Context) -> Iterator[Finding]:
    """Whether the server starts at boot."""
    if not Path(SYSTEMD).is_dir():
        yield ok("service", "no systemd on this machine; start the server at boot by other means")
        return
    files = [place for place in UNIT_PLACES if Path(place, UNIT).exists()]
    if not files:
        status = WARNING if context.uid == 0 else OK
        remedy = "copy deploy/systemd/gpu-scheduler.service and enable it"
        found = "no unit is installed, so the server does not start at boot"
        yield Finding("service", status, found, remedy if status == WARNING else "")
        return
    program = context.program("systemctl")
    if program is None:
        yield warning("service", "systemctl is not on the PATH", "is this a container?")
        return
    _, active = context.output([program, "is-active", UNIT])
    _, enabled = context.output([program, "is-enabled", UNIT])
    good = (active, enabled) == ("active", "enabled")
    remedy = "" if good else f"systemctl enable --now {UNIT}; journalctl -u {UNIT} shows its log"
    found = f"{files[0]}/{UNIT} is {active or 'unknown'} and {enabled or 'unknown'}"
    yield Finding("service", OK if good else WARNING, found, remedy)


# Settings, state directory, disk and secrets

MAX_SOCKET_PATH = 107
SYNC_SAMPLES = 10
SLOW_MS, VERY_SLOW_MS = 20.0, 200.0
LOW_SPACE_MB, CRITICAL_SPACE_MB = 1024, 64
MB = 1 << 20
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "lustre", "ceph"}
)
GROUP_OR_OTHERS_WRITE = 0o022


def check_settings(context: Context) -> Iterator[Finding]:
    """Whether the settings are valid; otherwise the other checks use the defaults."""
    if context.error:
        yield problem(
            "settings",
            context.error,
            "correct it; 'tgpu config check' checks it, 'tgpu config sample' shows all settings",
        )
        return
    yield ok("settings", context.file or "no file; environment variables and defaults apply")
    for notice in context.notices:
        yield warning("settings", notice, "remove it")
    if context.file and Path(context.file).stat().st_mode & GROUP_OR_OTHERS_WRITE:
        yield warning(
            "settings",
            f"{context.file} is writable for its group",
            f"chmod 644 {context.file}: its writers can run commands as the user of the server",
        )


def check_state_directory(context: Context) -> Iterator[Finding]:
    """Whether the state directory is usable and private."""
    directory = context.paths.state
    place = Path(directory)
    if len(context.paths.launcher_socket.encode()) > MAX_SOCKET_PATH:
        yield problem(
            "state",
            f"the path {directory} is too long for sockets in it",
            "choose a shorter one with --state-dir",
        )
    if not place.exists():
        above = nearest_existing(directory)
        if os.access(above, os.W_OK | os.X_OK):
            yield ok("state", f"{directory} will be created at the first start")
        else:
            remedy = "start it as the right user, or choose another with --state-dir"
            yield problem("state", f"{directory} cannot be created in {above}", remedy)
        return
    status = place.stat()
    if not place.is_dir():
        yield problem("state", f"{directory} is not a directory", "move it away")
        return
    if status.st_uid != context.uid:
        # The directory of another user's server is private.
        severity = WARNING if status.st_uid == 0 else PROBLEM
        found = f"{directory} belongs to uid {status.st_uid}, and you are uid {context.uid}"
        yield Finding("state", severity, found, "run the doctor as that user to check it")
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & (GROUP_OR_OTHERS_WRITE | 0o044):
        found = f"{directory} has mode {mode:o}: other users can read or write it"
        yield problem(
            "state", found, f"chmod go-rw {directory}; the server does this at start, too"
        )
    elif not os.access(directory, os.W_OK):
        yield problem("state", f"{directory} cannot be written", "is it mounted read-only?")
    else:
        yield ok("state", f"{directory} (mode {mode:o})")
    # Files with jobs and secrets must be private to the server.
    for name in ("scheduler.db", "agent", "logs"):
        with suppress(OSError):
            mode = stat.S_IMODE((place / name).stat().st_mode)
            if mode & 0o077:
                found = f"{place / name} has mode {mode:o}: other users can read it"
                yield problem("state", found, f"chmod go= {place / name}")


def check_disk(context: Context) -> Iterator[Finding]:
    """Free space, file system, and the time of a synced write."""
    directory = nearest_existing(context.paths.state)
    space = os.statvfs(directory)
    free_mb = space.f_bavail * space.f_frsize // MB
    remedy = "free some space, or choose another disk with --state-dir"
    if free_mb < LOW_SPACE_MB:
        status = PROBLEM if free_mb < CRITICAL_SPACE_MB else WARNING
        yield Finding("disk", status, f"{free_mb:,} MiB are free at {directory}", remedy)
    else:
        yield ok("disk", f"{free_mb / 1024:,.0f} GiB are free at {directory}")
    kind = file_system(directory, Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    if kind in NETWORK_FILE_SYSTEMS:
        yield problem(
            "disk",
            f"{directory} is on {kind}, a network file system",
            "SQLite needs a local file system for its locks; choose another with --state-dir",
        )
    took = sync_ms(directory)
    if took is None:
        yield ok("disk", "write speed not measured: no permission to write")
    elif took > SLOW_MS:
        status = PROBLEM if took > VERY_SLOW_MS else WARNING
        found = f"a synced write takes {took:.0f} ms"
        yield Finding("disk", status, found, "every submission waits for it; use a local SSD")
    else:
        yield ok("disk", f"a synced write takes {took:.1f} ms")


def sync_ms(directory: str) -> float | None:
    """The median of a few small writes with fsync; None if we may not write there."""
    name = f"{directory}/.tgpu-doctor-{os.getpid()}"
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        times = []
        for place in range(SYNC_SAMPLES):
            began = time.perf_counter()
            os.pwrite(file, b"x" * 4096, 4096 * place)
            os.fsync(file)
            times.append(time.perf_counter() - began)
        return 1000 * sorted(times)[SYNC_SAMPLES // 2]
    except OSError:
        return None
    finally:
        os.close(file)
        Path(name).unlink(missing_ok=True)


def file_system(directory: str, mountinfo: str) -> str:
    """The type of the file system of a directory."""
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


def check_secrets(context: Context) -> Iterator[Finding]:
    """Files with secrets that the settings name: they must exist and be private."""
    yield from _database_key(context)
    notifications, api = context.settings.notifications, context.settings.api
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
            found = f"{key} is {path}: {error.strerror}"
            yield problem("secrets", found, "create it, readable for the user of the server")
            continue
        if status.st_mode & 0o007:
            found = f"{key} is {path}, which all users may read"
            yield problem("secrets", found, f"chmod 600 {path}")
        else:
            yield ok("secrets", f"{key}: {path}")


def _database_key(context: Context) -> Iterator[Finding]:
    """Whether secrets in the database are encrypted, and with which key."""
    database = context.settings.database
    file = key_file_of(database, context.paths)
    if not file:
        yield warning(
            "secrets",
            "secrets in PostgreSQL (captured environments, variables of jobs, the nodes' CA key) "
            "are not encrypted: database.key_file is not set",
            "name a file there, the same on every server, and run 'tgpu db rotate-key' once",
        )
        return
    try:
        mode = stat.S_IMODE(Path(file).stat().st_mode)
    except FileNotFoundError:
        if database.is_postgresql:
            found = f"the key of the database, {file}, does not exist"
            remedy = "copy it from another server; for the first one run 'tgpu db rotate-key'"
            yield problem("secrets", found, remedy)
        return  # with SQLite, the server creates it
    except PermissionError:
        return  # it belongs to another user's server
    if mode & 0o077:
        found = f"the key of the database, {file}, has mode {mode:o}: other users may read it"
        yield problem("secrets", found, f"chmod 600 {file}, then 'tgpu db rotate-key'")
    else:
        yield ok("secrets", f"the database encrypts secrets with the key in {file}")


CHECKS: dict[str, Check] = {
    "settings": check_settings,
    "python": check_python,
    "user": check_user,
    "gpus": check_gpus,
    "cgroups": check_cgroups,
    "state": check_state_directory,
    "disk": check_disk,
    "secrets": check_secrets,
    "server": check_server,
    "privileges": check_privileges,
    "socket": check_socket,
    "ports": check_ports,
    "clock": check_clock,
    "programs": check_programs,
    "containers": check_containers,
    "service": check_service,
    "limits": check_limits,
}
