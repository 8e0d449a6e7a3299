"""The connection of a command to the server, and the options for it."""

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
        help="unix:/path, a state directory or https://host:port; default $TGPU_SERVER, else your "
        "own server, else the server of this machine",
    )
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _address(word: str) -> str:
    from gpu_scheduler.cli.text.values import text  # slow to load

    return text("--server")(word)


def client_for(args: Namespace) -> Client:
    """A client for the server of the options."""
    return Client(args.server)


def my_name() -> str:
    """The user name of this process."""
    import pwd

    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def mine() -> str:
    """The user for queries about one's own jobs; with a token, only the server knows the name."""
    if os.environ.get("GPU_SCHEDULER_TOKEN") or os.environ.get("GPU_SCHEDULER_TOKEN_FILE"):
        return ME
    return my_name()


def warn(message: str) -> None:
    """Print a line on stderr that is not an error."""
    sys.stdout.flush()  # keep the order if both go to one file
    print(f"tgpu: {in_local_time(message)}", file=sys.stderr)
