"""`tgpu server`: a server to which agents of other machines come.

Everything heavy is imported late: a wrong option should not cost a second.
"""

from __future__ import annotations

from gpu_scheduler.cli.durations import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

FLAGS = {
    "simulate": "gpu.simulate",
    "host": "api.host",
    "http_port": "api.http_port",
    "grpc_port": "api.grpc_port",
    "metrics_port": "api.metrics_port",
    "policy": "policy.preset",
    "node_name": "agent.node_name",
    "log_level": "logging.level",
}


def register(parser: ArgumentParser) -> None:
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


def run(args: Namespace) -> int:
    """Serve in the foreground until told to stop."""
    from gpu_scheduler.cli.start_settings import checked_settings
    from gpu_scheduler.cli.up import serve, show
    from gpu_scheduler.model.errors import InvalidRequest
    from gpu_scheduler.settings.places import paths

    flags = {key: getattr(args, name) for name, key in FLAGS.items()}
    settings = checked_settings(args.config, flags=flags, has_nodes=True)[0].settings
    if not args.with_agent and (args.simulate or args.node_name):
        raise InvalidRequest("--simulate and --node-name are about this machine; add --with-agent")
    where = paths(args.state_dir or settings.files.state_dir or None)
    return serve(settings, where, show, has_agent=args.with_agent, has_nodes=True)
