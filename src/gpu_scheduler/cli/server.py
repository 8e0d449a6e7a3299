"""`tgpu server`: a server to which agents of other machines come.

Everything heavy is imported late: a wrong option should not cost a second.
"""

from __future__ import annotations

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
    parser.add_argument("--config", metavar="FILE", help="settings; see 'tgpu config sample'")
    parser.add_argument("--state-dir", metavar="DIR", help="where all state is kept")
    parser.add_argument("--host", metavar="ADDRESS", help="to listen on; default 127.0.0.1")
    parser.add_argument("--http-port", metavar="PORT", type=int, help="0 takes a free one")
    parser.add_argument(
        "--grpc-port", metavar="PORT", type=int, help="for agents; 0 takes a free one"
    )
    parser.add_argument("--metrics-port", metavar="PORT", type=int, help="0 takes a free one")
    parser.add_argument("--policy", metavar="NAME", help="who comes first, such as fair or fifo")
    parser.add_argument("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR")
    parser.add_argument(
        "--with-agent", action="store_true", help="run jobs on this machine as well"
    )
    parser.add_argument("--node-name", metavar="NAME", help="of this machine, with --with-agent")
    parser.add_argument(
        "--simulate", metavar="GPUS", help="declare GPUs of this machine, with --with-agent"
    )


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
