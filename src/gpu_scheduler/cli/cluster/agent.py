"""`tgpu agent`: runs jobs on this machine for a server elsewhere.

Everything heavy is imported late: a wrong option should not cost a second.
"""

from __future__ import annotations

import re

from gpu_scheduler.cli.text.values import size_mb, text

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gpu_scheduler.agent.config import AgentConfig
    from gpu_scheduler.settings.schema import Settings

FLAGS = {
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
SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})|unix:/\S+")
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
LAST_PORT = 65_535


def register(parser: ArgumentParser) -> None:
    """The options."""

    def add(option: str, metavar: str, about: str) -> None:
        parser.add_argument(option, type=text(option), metavar=metavar, help=about)

    add("--server", "HOST:PORT,...", "the servers, tried one after the other")
    add("--token", "TOKEN", "of 'tgpu node token create'; needed once, to join")
    add("--token-file", "FILE", "a file with it, mode 600")
    add("--config", "FILE", "settings; see 'tgpu config sample'")
    add("--name", "NODE", "of this node; default: the host name")
    add("--simulate", "GPUS", "declare GPUs, such as 8xH100; jobs are real")
    add("--work-dir", "DIR", "for state, logs and scratch files")
    add("--labels", "K=V,...", "that jobs can ask for")
    add("--rack", "RACK", "where this machine stands")
    add("--address", "ADDRESS", "where other nodes reach this one")
    parser.add_argument("--cpus", metavar="N", help="give out so many CPU cores")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        type=size_mb("--memory"),
        help="give out so much memory, such as 64G",
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR")


def run(args: Namespace) -> int:
    """Work until told to stop; running jobs continue."""
    from gpu_scheduler.settings.sources import load

    flags: dict[str, object] = {key: getattr(args, name) for name, key in FLAGS.items()}
    if args.memory:
        flags["agent.memory_gb"] = args.memory / 1024
    loaded = load(args.config, flags=flags)
    settings = loaded.settings
    labels = settings.agent.labels | _labels(args.labels or "")
    config = _config(settings, labels, args.token or "")
    _check_token(config)
    return _work(settings, config, loaded.notices)


def _config(settings: Settings, labels: dict[str, str], token: str) -> AgentConfig:
    """What the agent has to know; refused where it could never work."""
    from dataclasses import replace

    from gpu_scheduler.agent.devices.declared import parse_declared
    from gpu_scheduler.model.errors import InvalidRequest
    from gpu_scheduler.server.agent_process import agent_config_of, node_name
    from gpu_scheduler.settings.file_paths import agent_paths

    node = node_name(settings)
    if not NODE_NAME.fullmatch(node):
        raise InvalidRequest(
            f"the node would be called '{node}'; use letters, digits, '.', '_' and '-', at most 63"
        )
    if not settings.agent.servers:
        raise InvalidRequest("no server is named; say --server HOST:9090, or set agent.servers")
    settings.agent.check()
    if settings.gpu.simulate:
        parse_declared(settings.gpu.simulate)
    where = agent_paths(settings.agent.work_directory, node)
    targets = tuple(_target(server) for server in settings.agent.servers)
    config = agent_config_of(settings, where)
    return replace(
        config,
        targets=targets,
        labels=labels,
        logs_days=settings.retention.logs_days,
        token=token,
        token_file=settings.agent.token_file,
        client_certificate=settings.grpc.client_certificate,
        client_key=settings.grpc.client_key,
    )


def _check_token(config: AgentConfig) -> None:
    """Refuse to join with a file that holds no token; who has a key of its own needs none."""
    from gpu_scheduler.agent.identity import token_in

    file = config.token_file
    if not file or config.token or token_in(file):
        return
    from pathlib import Path

    from gpu_scheduler.agent.identity import IDENTITY_FILE
    from gpu_scheduler.model.errors import InvalidRequest

    if not (Path(config.dir) / IDENTITY_FILE).exists():
        raise InvalidRequest(
            f"the token file {file} is not there or empty, and node '{config.node}' has not joined "
            "yet; write a token of 'tgpu node token create' to it (mode 600), or give it with "
            "--token"
        )


def _target(server: str) -> str:
    """A server's address as gRPC reads it."""
    from gpu_scheduler.model.errors import InvalidRequest

    match = SERVER.fullmatch(server)
    if match is None or (match[2] and not 0 < int(match[2]) <= LAST_PORT):
        raise InvalidRequest(
            f"the server '{server}' cannot be reached like that; write HOST:PORT, such as "
            "head.example:9090"
        )
    return server


def _labels(text: str) -> dict[str, str]:
    from gpu_scheduler.model.errors import InvalidRequest

    labels = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not LABEL.fullmatch(name):
            raise InvalidRequest(f"label '{part}' cannot be read; write NAME=VALUE, such as ib=yes")
        labels[name] = value
    return labels


def _work(settings: Settings, config: AgentConfig, notices: tuple[str, ...]) -> int:
    import structlog
    import uvloop

    from gpu_scheduler.agent.main import exclusive_lock, run_agent
    from gpu_scheduler.cli.admin.up import open_log
    from gpu_scheduler.server.state_directory import prepare
    from gpu_scheduler.settings.file_paths import agent_paths

    prepare(agent_paths(settings.agent.work_directory, config.node))
    with exclusive_lock(config):
        open_log(settings, "")
        log = structlog.get_logger("agent")
        for notice in notices:
            log.warning("a setting has no use", note=notice)
        log.info(
            "the agent starts",
            node=config.node,
            servers=",".join(config.targets),
            directory=config.dir,
        )
        uvloop.run(run_agent(config))
    return 0


# --- `tgpu server`: a server to which agents of other machines come.
#
# Everything heavy is imported late: a wrong option should not cost a second.

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
    """The options."""
    add = parser.add_argument

    def add_text(option: str, metavar: str, about: str) -> None:
        add(option, type=text(option), metavar=metavar, help=about)

    add_text("--config", "FILE", "settings; see 'tgpu config sample'")
    add_text("--state-dir", "DIR", "where all state is kept")
    add_text("--host", "ADDRESS", "to listen on; default 127.0.0.1")
    add("--http-port", metavar="PORT", type=int, help="0 takes a free one")
    add("--grpc-port", metavar="PORT", type=int, help="for agents; 0 takes a free one")
    add("--metrics-port", metavar="PORT", type=int, help="0 takes a free one")
    add_text("--policy", "NAME", "who comes first, such as fair or fifo")
    add_text("--log-level", "LEVEL", "DEBUG, INFO, WARNING or ERROR")
    add("--with-agent", action="store_true", help="run jobs on this machine as well")
    add_text("--node-name", "NAME", "of this machine, with --with-agent")
    add_text("--simulate", "GPUS", "declare GPUs of this machine, with --with-agent")


def server(args: Namespace) -> int:
    """Serve in the foreground until told to stop."""
    from gpu_scheduler.cli.admin.config import checked_settings
    from gpu_scheduler.cli.admin.up import serve, show
    from gpu_scheduler.model.errors import InvalidRequest
    from gpu_scheduler.settings.file_paths import paths

    flags = {key: getattr(args, name) for name, key in SERVER_FLAGS.items()}
    settings = checked_settings(args.config, flags=flags, has_nodes=True)[0].settings
    if not args.with_agent and (args.simulate or args.node_name):
        raise InvalidRequest("--simulate and --node-name are about this machine; add --with-agent")
    where = paths(args.state_dir or settings.files.state_dir or None)
    return serve(settings, where, show, has_agent=args.with_agent, has_nodes=True)
