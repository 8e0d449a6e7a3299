"""How a command reaches the server, and the options that every such command has."""

from __future__ import annotations

import os
import sys

from gpu_scheduler.cli.text.tables import in_local_time
from gpu_scheduler.client.client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


ME = "@me"


def add_server_options(parser: ArgumentParser, *, json: bool = True) -> None:
    """`--server` and `--json`."""
    parser.add_argument(
        "--server",
        type=_address,
        metavar="ADDRESS",
        help="unix:/path, a state directory or https://host:port; default $TGPU_SERVER, your own "
        "server, that of the machine",
    )
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _address(word: str) -> str:
    from gpu_scheduler.cli.text.values import text  # only now: it takes its time to load

    return text("--server")(word)


def client_for(args: Namespace) -> Client:
    """A client for the server that the options name."""
    return Client(args.server)


def my_name() -> str:
    """The name of the account that runs this."""
    import pwd

    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def mine() -> str:
    """Whose jobs are one's own, in a question to the server: with a token only that knows it."""
    if os.environ.get("GPU_SCHEDULER_TOKEN") or os.environ.get("GPU_SCHEDULER_TOKEN_FILE"):
        return ME
    return my_name()


def warn(message: str) -> None:
    """A line on stderr that is not an error."""
    sys.stdout.flush()  # what was said before comes first, also where both go to one file
    print(f"tgpu: {in_local_time(message)}", file=sys.stderr)
