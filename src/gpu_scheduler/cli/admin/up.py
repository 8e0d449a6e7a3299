"""`tgpu up`: the server, in the foreground or as a daemon.

Everything heavy is imported late: a wrong option should not cost a second.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from gpu_scheduler.cli.text.values import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Any

    from gpu_scheduler.settings.file_paths import Paths
    from gpu_scheduler.settings.schema import Settings

FLAGS = {
    "simulate": "gpu.simulate",
    "http_port": "api.http_port",
    "metrics_port": "api.metrics_port",
    "policy": "policy.preset",
    "node_name": "agent.node_name",
    "log_level": "logging.level",
    "runner": "jobs.runner",
}
READY_FD = "TGPU_READY_FD"
DAEMON_LOG = "server.log"


def register(parser: ArgumentParser) -> None:
    """The options of `tgpu up`."""
    add = parser.add_argument

    def add_text(option: str, metavar: str, about: str) -> None:
        add(option, type=text(option), metavar=metavar, help=about)

    add_text("--config", "FILE", "settings; see 'tgpu config sample'")
    add_text("--state-dir", "DIR", "where all state is kept")
    add_text("--simulate", "GPUS", "declare GPUs, such as 8xA100-80GB; jobs are real")
    add("--http-port", metavar="PORT", type=int, help="0 takes a free one")
    add("--metrics-port", metavar="PORT", type=int, help="0 takes a free one")
    add_text("--policy", "NAME", "who comes first, such as fair or fifo")
    add_text("--node-name", "NAME", "default: the host name")
    add_text("--log-level", "LEVEL", "DEBUG, INFO, WARNING or ERROR")
    add("--runner", choices=("process", "tmux", "screen"), help="of jobs that do not name one")
    add("--screen", dest="runner", action="store_const", const="screen", help="--runner screen")
    add("--daemon", action="store_true", help="return once it is up")
    add("--json", action="store_true", help="print JSON instead of text once it is up")


def run(args: Namespace) -> int:
    """Start, and stay until told to stop."""
    from gpu_scheduler.cli.admin.config import checked_settings
    from gpu_scheduler.settings.file_paths import paths

    flags = {key: getattr(args, name) for name, key in FLAGS.items()}
    settings = checked_settings(args.config, flags=flags, has_nodes=False, hands_over=args.daemon)[
        0
    ].settings
    where = paths(args.state_dir or settings.files.state_dir or None)
    is_daemon = READY_FD in os.environ
    if not is_daemon and not settings.gpu.simulate:
        warn_of_another(where)
    if args.daemon:
        return _run_as_daemon(args, where)
    return serve(settings, where, _announcer(as_json=args.json), is_daemon=is_daemon)


def warn_of_another(where: Paths) -> None:
    """Two schedulers would give out the same GPUs, and one's own hides the other from oneself."""
    import socket

    from gpu_scheduler.cli.connection import warn
    from gpu_scheduler.settings.file_paths import ROOT_RUNTIME, SOCKET_NAME

    shared = f"{ROOT_RUNTIME}/{SOCKET_NAME}"
    if where.server_socket == shared:
        return
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(shared)
        except OSError:
            return
    warn(
        f"warning: a scheduler for everybody runs here already, at {shared}; this one does not "
        "know what that one gives out, and your commands go to this one while it is up"
    )


def open_log(settings: Settings, own_file: str) -> None:
    """Where the settings say; else a daemon has a file of its own, to which crashes go as well."""
    from gpu_scheduler.logging_setup.structured import LogConfig, configure
    from gpu_scheduler.model.errors import InvalidRequest

    wanted = settings.logging
    file = settings.files.log_file or own_file
    try:
        configure(
            LogConfig(
                file=file,
                level=wanted.level,
                structured=wanted.structured,
                max_bytes=round(wanted.max_log_size_mb * (1 << 20)),
                backups=wanted.backup_count,
                take_stderr=bool(file) and file == own_file,
            )
        )
    except OSError as error:
        raise InvalidRequest(
            f"files.log_file is '{file}' and cannot be written: {error.strerror}; choose another, "
            "or let the server's user write there"
        ) from error


def serve(
    settings: Settings,
    where: Paths,
    ready: Callable[[dict[str, Any]], None],
    *,
    is_daemon: bool = False,
    has_agent: bool = True,
    has_nodes: bool = False,
) -> int:
    """Serve in the foreground until told to stop by a signal."""
    import asyncio

    import uvloop

    # The library's own lines are no JSON, and every stranger at the port would make one.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gpu_scheduler.server.assembly import Server

    open_log(settings, f"{where.state}/{DAEMON_LOG}" if is_daemon else "")

    async def run_server() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await server.run(stop, ready)

    server = Server(settings, where, has_agent=has_agent, has_nodes=has_nodes)
    uvloop.run(run_server())
    return 0


def _announcer(*, as_json: bool) -> Callable[[dict[str, Any]], None]:
    """Tell whoever waits for us: a parent that made us a daemon, or the person at the terminal."""
    descriptor = os.environ.pop(READY_FD, "")
    if not descriptor:
        return _show_json if as_json else show
    # Nobody whom we start may keep the pipe open.
    os.set_inheritable(int(descriptor), False)

    def tell(facts: dict[str, Any]) -> None:
        with os.fdopen(int(descriptor), "w") as pipe:
            json.dump(facts, pipe)

    return tell


def show(facts: dict[str, Any]) -> None:
    """Say what runs, and where."""
    node = facts["hardware"]
    own_node = [f"  node     {facts['node']}: {node['summary']}"] if node else []
    lines = [
        f"gpu-scheduler {facts['version']} is up (pid {facts['pid']})",
        *own_node,
        *([f"           {node['problem']}"] if node and node["problem"] else []),
        *([f"  agents   {facts['nodes']}"] if facts["nodes"] else []),
        f"  api      {facts['http']}/docs",
        *([f"  metrics  {facts['metrics']}/metrics"] if facts["metrics"] else []),
        f"  socket   {facts['socket']}",
        f"  state    {facts['state']}",
        f"  next     {_next_step(facts)}",
    ]
    print("\n".join(lines), flush=True)


def _show_json(facts: dict[str, Any]) -> None:
    """The same for programs: what stands in server.json."""
    from gpu_scheduler.cli.text.tables import print_json

    print_json(facts)
    sys.stdout.flush()


def _next_step(facts: dict[str, Any]) -> str:
    if facts["node"]:
        has_gpus = facts["hardware"].get("gpus", 1)
        step = f"tgpu submit {'--gpus 1 ' if has_gpus else ''}-- python train.py"
        return step if _is_found(facts["socket"]) else f"{_naming(facts['state'])}; {step}"
    return f"tgpu agent --server {facts['nodes']}, on each node"


def _is_found(socket: str) -> bool:
    """Tell whether the other commands would come to this server by themselves."""
    from gpu_scheduler.client.address import candidates
    from gpu_scheduler.model.errors import InvalidRequest

    try:
        return socket in [address.path for address in candidates()]
    except InvalidRequest:
        return False


def _naming(state: str) -> str:
    import shlex

    from gpu_scheduler.client.address import SERVER_VARIABLE

    return f"export {SERVER_VARIABLE}={shlex.quote(state)}"


def _run_as_daemon(args: Namespace, where: Paths) -> int:
    """Start ourselves again without a terminal, and wait until that one answers or fails."""
    import subprocess

    from gpu_scheduler.server.state_directory import prepare

    prepare(where)
    log = f"{where.state}/{DAEMON_LOG}"
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "gpu_scheduler", "up"]
    for name in ("config", "state_dir", *FLAGS):
        value = getattr(args, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab") as output:
        os.fchmod(descriptor, 0o600)
        began = output.tell()
        server = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(writer,),
            env=os.environ | {READY_FD: str(writer)},
        )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    if answer and args.json:
        _show_json(json.loads(answer) | {"log": log})
        return 0
    if answer:
        show(json.loads(answer))
        print(f"  log      {log}")
        return 0
    code = server.wait()
    with open(log, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        lines.seek(began)
        sys.stderr.write(lines.read())
    return code or 1
