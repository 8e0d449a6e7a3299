"""`tgpu up`, `tgpu server` and `tgpu agent`: start a process of the scheduler.

Heavy modules are imported in functions, so that a wrong option is reported at once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys

from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.values import size_mb, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Any

    from gpu_scheduler.agent.config import AgentConfig
    from gpu_scheduler.settings.file_paths import Paths
    from gpu_scheduler.settings.schema import Settings


UP_FLAGS = {
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


def register_up(parser: ArgumentParser) -> None:
    """Add the options of `tgpu up`."""
    add = Options(parser)
    add.value("--config", text, "FILE", "settings; see 'tgpu config sample'")
    add.value("--state-dir", text, "DIR", "directory for all state")
    add.value("--simulate", text, "GPUS", "declare GPUs, such as 8xA100-80GB; jobs really run")
    add.value("--http-port", _port, "PORT", "0 uses a free port")
    add.value("--metrics-port", _port, "PORT", "0 uses a free port")
    add.value("--policy", text, "NAME", "scheduling policy, such as fair or fifo")
    add.value("--node-name", text, "NAME", "default: the host name")
    add.value("--log-level", text, "LEVEL", "DEBUG, INFO, WARNING or ERROR")
    add.choice("--runner", ("process", "tmux", "screen"), "runner of jobs that state none")
    parser.add_argument(
        "--screen", dest="runner", action="store_const", const="screen", help="--runner screen"
    )
    add.flag("--daemon", "return when the server is up")
    add.flag("--json", "print JSON instead of text when the server is up")


def _port(_: str) -> type[int]:
    """A parser of port numbers."""
    return int


def run_up(args: Namespace) -> int:
    """Start the server and its agent, and run until a signal stops them."""
    from gpu_scheduler.cli.admin.config import checked_settings
    from gpu_scheduler.settings.file_paths import paths

    flags = {key: getattr(args, name) for name, key in UP_FLAGS.items()}
    loaded, _ = checked_settings(args.config, flags=flags, has_nodes=False, hands_over=args.daemon)
    settings = loaded.settings
    where = paths(args.state_dir or settings.files.state_dir or None)
    is_daemon = READY_FD in os.environ
    if not is_daemon:
        warn_of_shared_server(where, is_simulated=bool(settings.gpu.simulate))
    if args.daemon:
        return _run_as_daemon(args, where)
    return serve(settings, where, _announcer(as_json=args.json), is_daemon=is_daemon)


def warn_of_shared_server(where: Paths, *, is_simulated: bool = False) -> None:
    """Warn if root's server runs here: both would allocate the same GPUs, unless simulated."""
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
    conflict = "this one does not know which GPUs that one has allocated, and "
    warn(
        f"warning: a server for all users is already running at {shared}; "
        f"{'' if is_simulated else conflict}your commands use this one while it is up"
    )


def open_log(settings: Settings, own_file: str) -> None:
    """Log to the file of the settings; else a daemon logs to its own file, with its crashes."""
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
            f"files.log_file is '{file}', which cannot be written: {error.strerror}; choose "
            "another file, or make it writable for the user of the server"
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
    """Run the server in the foreground until a signal stops it."""
    import asyncio

    import uvloop

    # gRPC would log every bad connection, and not as JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gpu_scheduler.agent.oom_score import PROTECTED, set_oom_score
    from gpu_scheduler.server.assembly import Server
    from gpu_scheduler.server.privileges import confine_server

    set_oom_score(PROTECTED)
    open_log(settings, f"{where.state}/{DAEMON_LOG}" if is_daemon else "")
    if not has_agent:
        confine_server(settings, where)

    async def serve_until_stopped() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await server.run(stop, ready)

    server = Server(settings, where, has_agent=has_agent, has_nodes=has_nodes)
    uvloop.run(serve_until_stopped())
    return 0


def _announcer(*, as_json: bool) -> Callable[[dict[str, Any]], None]:
    """A function that reports the start: to the parent of a daemon, or on stdout."""
    descriptor = os.environ.pop(READY_FD, "")
    if not descriptor:
        return _show_json if as_json else show_started
    # Child processes must not keep the pipe open.
    os.set_inheritable(int(descriptor), False)

    def report(facts: dict[str, Any]) -> None:
        with os.fdopen(int(descriptor), "w") as pipe:
            json.dump(facts, pipe)

    return report


def show_started(facts: dict[str, Any]) -> None:
    """Print what was started, and its addresses."""
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
    """Print the contents of server.json."""
    from gpu_scheduler.cli.text.tables import print_json

    print_json(facts)
    sys.stdout.flush()


def _next_step(facts: dict[str, Any]) -> str:
    """The command to type next; it names the server if other commands do not find it."""
    import shlex

    from gpu_scheduler.client.address import SERVER_VARIABLE, candidates
    from gpu_scheduler.model.errors import InvalidRequest

    if not facts["node"]:
        return f"tgpu agent --server {facts['nodes']}, on each node"
    has_gpus = facts["hardware"].get("gpus", 1)
    step = f"tgpu submit {'--gpus 1 ' if has_gpus else ''}-- python train.py"
    try:
        is_default = facts["socket"] in [address.path for address in candidates()]
    except InvalidRequest:
        is_default = False
    return step if is_default else f"export {SERVER_VARIABLE}={shlex.quote(facts['state'])}; {step}"


def _run_as_daemon(args: Namespace, where: Paths) -> int:
    """Start this program again without a terminal, and wait until it is up or fails."""
    import subprocess

    from gpu_scheduler.server.state_directory import prepare

    prepare(where)
    log = f"{where.state}/{DAEMON_LOG}"
    reader, writer = os.pipe()
    command = [sys.executable, "-P", "-m", "gpu_scheduler", "up"]
    for name in ("config", "state_dir", *UP_FLAGS):
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
        show_started(json.loads(answer))
        print(f"  log      {log}")
        return 0
    code = server.wait()
    with open(log, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        lines.seek(began)
        sys.stderr.write(lines.read())
    return code or 1


AGENT_FLAGS = {
    "server": "agent.servers",
    "token_file": "agent.token_file",
    "name": "agent.node_name",
    "simulate": "gpu.simulate",
    "work_dir": "agent.work_directory",
    "rack": "agent.rack",
    "address": "agent.address",
    "cpus": "agent.cpu_cores",
    "log_level": "logging.level",
}
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SERVER_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})|unix:/\S+")
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
LAST_PORT = 65_535


def register_agent(parser: ArgumentParser) -> None:
    """Add the options of `tgpu agent`."""
    add = Options(parser)
    add.value("--server", text, "HOST:PORT,...", "the servers, tried in this order")
    token = "token from 'tgpu node token create'; needed once, to join"  # noqa: S105
    add.value("--token", text, "TOKEN", token)
    add.value("--token-file", text, "FILE", "file with the token, mode 600")
    add.value("--config", text, "FILE", "settings; see 'tgpu config sample'")
    add.value("--name", text, "NODE", "name of this node; default: the host name")
    add.value("--simulate", text, "GPUS", "declare GPUs, such as 8xH100; jobs really run")
    add.value("--work-dir", text, "DIR", "directory for state, logs and scratch files")
    add.value("--labels", text, "K=V,...", "labels that jobs can select")
    add.value("--rack", text, "RACK", "rack of this machine")
    add.value("--address", text, "ADDRESS", "address at which other nodes reach this one")
    add.value("--cpus", None, "N", "CPU cores to offer")
    add.value("--memory", size_mb, "SIZE", "memory to offer, such as 64G")
    add.value("--log-level", None, "LEVEL", "DEBUG, INFO, WARNING or ERROR")


def run_agent(args: Namespace) -> int:
    """Run the agent until a signal stops it; jobs keep running."""
    from gpu_scheduler.settings.sources import load

    flags: dict[str, object] = {key: getattr(args, name) for name, key in AGENT_FLAGS.items()}
    if args.memory:
        flags["agent.memory_gb"] = args.memory / 1024
    loaded = load(args.config, flags=flags)
    settings = loaded.settings
    labels = settings.agent.labels | _labels(args.labels or "")
    config = _config(settings, labels, args.token or "")
    _check_token(config)
    import structlog
    import uvloop

    from gpu_scheduler.agent.main import exclusive_lock
    from gpu_scheduler.agent.main import run_agent as run_agent_loop
    from gpu_scheduler.server.state_directory import prepare
    from gpu_scheduler.settings.file_paths import agent_paths

    prepare(agent_paths(settings.agent.work_directory, config.node))
    with exclusive_lock(config):
        open_log(settings, "")
        log = structlog.get_logger("agent")
        for notice in loaded.notices:
            log.warning("unused setting", note=notice)
        servers = ",".join(config.targets)
        log.info("agent starting", node=config.node, servers=servers, directory=config.dir)
        uvloop.run(run_agent_loop(config))
    return 0


def _config(settings: Settings, labels: dict[str, str], token: str) -> AgentConfig:
    """The configuration of the agent; raises if it is invalid."""
    from dataclasses import replace

    from gpu_scheduler.agent.devices.declared import parse_declared
    from gpu_scheduler.model.errors import InvalidRequest
    from gpu_scheduler.server.agent_process import agent_config_of, node_name
    from gpu_scheduler.settings.file_paths import agent_paths

    node = node_name(settings)
    if not NODE_NAME.fullmatch(node):
        raise InvalidRequest(
            f"the node name '{node}' is invalid; use letters, digits, '.', '_' and '-', at most 63"
        )
    if not settings.agent.servers:
        raise InvalidRequest("no server given; use --server HOST:9090, or set agent.servers")
    settings.agent.check()
    if settings.gpu.simulate:
        parse_declared(settings.gpu.simulate)
    where = agent_paths(settings.agent.work_directory, node)
    for server in settings.agent.servers:
        match = SERVER_ADDRESS.fullmatch(server)
        if match is None or (match[2] and not 0 < int(match[2]) <= LAST_PORT):
            raise InvalidRequest(
                f"'{server}' is not an address of a server; write HOST:PORT, such as "
                "head.example:9090"
            )
    return replace(
        agent_config_of(settings, where),
        targets=tuple(settings.agent.servers),
        labels=labels,
        logs_days=settings.retention.logs_days,
        token=token,
        token_file=settings.agent.token_file,
        client_certificate=settings.grpc.client_certificate,
        client_key=settings.grpc.client_key,
    )


def _check_token(config: AgentConfig) -> None:
    """Reject an empty token file; an agent that has joined before needs no token."""
    from gpu_scheduler.agent.enrollment import token_in

    file = config.token_file
    if not file or config.token or token_in(file):
        return
    from pathlib import Path

    from gpu_scheduler.agent.enrollment import IDENTITY_FILE
    from gpu_scheduler.model.errors import InvalidRequest

    if not (Path(config.dir) / IDENTITY_FILE).exists():
        raise InvalidRequest(
            f"the token file {file} is missing or empty, and node '{config.node}' has not joined; "
            "write a token from 'tgpu node token create' to it (mode 600), or give it with --token"
        )


def _labels(text: str) -> dict[str, str]:
    from gpu_scheduler.model.errors import InvalidRequest

    labels = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not LABEL.fullmatch(name):
            raise InvalidRequest(f"invalid label '{part}'; write NAME=VALUE, such as ib=yes")
        labels[name] = value
    return labels


SERVER_FLAGS = {
    "simulate": "gpu.simulate",
    "host": "api.host",
    "http_port": "api.http_port",
    "grpc_port": "api.grpc_port",
    "metrics_port": "api.metrics_port",
    "policy": "policy.preset",
    "node_name": "agent.node_name",
    "log_level": "logging.level",
}


def register_server(parser: ArgumentParser) -> None:
    """Add the options of `tgpu server`."""
    add = Options(parser)
    add.value("--config", text, "FILE", "settings; see 'tgpu config sample'")
    add.value("--state-dir", text, "DIR", "directory for all state")
    add.value("--host", text, "ADDRESS", "address to listen on; default 127.0.0.1")
    add.value("--http-port", _port, "PORT", "0 uses a free port")
    add.value("--grpc-port", _port, "PORT", "for agents; 0 uses a free port")
    add.value("--metrics-port", _port, "PORT", "0 uses a free port")
    add.value("--policy", text, "NAME", "scheduling policy, such as fair or fifo")
    add.value("--log-level", text, "LEVEL", "DEBUG, INFO, WARNING or ERROR")
    add.flag("--with-agent", "run jobs on this machine as well")
    add.value("--node-name", text, "NAME", "name of this machine, with --with-agent")
    add.value("--simulate", text, "GPUS", "declare GPUs of this machine, with --with-agent")


def run_server(args: Namespace) -> int:
    """Run the server in the foreground until a signal stops it."""
    from gpu_scheduler.cli.admin.config import checked_settings
    from gpu_scheduler.model.errors import InvalidRequest
    from gpu_scheduler.settings.file_paths import paths

    flags = {key: getattr(args, name) for name, key in SERVER_FLAGS.items()}
    settings = checked_settings(args.config, flags=flags, has_nodes=True)[0].settings
    if not args.with_agent and (args.simulate or args.node_name):
        raise InvalidRequest("--simulate and --node-name need --with-agent")
    where = paths(args.state_dir or settings.files.state_dir or None)
    return serve(settings, where, show_started, has_agent=args.with_agent, has_nodes=True)
