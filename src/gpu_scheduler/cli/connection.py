"""The connection of a command to the server: its options, its requests and the printed answer."""

from __future__ import annotations

import os
import sys

from gpu_scheduler.cli.text.tables import in_local_time, print_json
from gpu_scheduler.client.client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Any


ME = "@me"


def add_server_options(parser: ArgumentParser, *, json: bool = True, table: bool = False) -> None:
    """`--server`, `--json`, and for commands that print tables `--tabs`."""
    parser.add_argument(
        "--server",
        type=_address,
        metavar="ADDRESS",
        help="unix:/path, a state directory or https://host:port; default $TGPU_SERVER, else your "
        "own server, else the server of this machine",
    )
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    if table:
        add_tabs(parser)


def add_tabs(parser: ArgumentParser) -> None:
    """`--tabs`."""
    parser.add_argument("--tabs", action="store_true", help="tables with tabs, nothing cut")


def add_kube_options(parser: ArgumentParser, *, namespaced: bool = True) -> None:
    """`--kube`, and which cluster and namespace it means, as kubectl names them."""
    add = parser.add_argument
    add("--kube", action="store_true", help="show a Kubernetes fleet instead of a server")
    add("--context", metavar="NAME", help="with --kube: context of the kubeconfig")
    config = "with --kube: default $KUBECONFIG, in a pod its account, else ~/.kube/config"
    add("--kubeconfig", metavar="FILE", help=config)
    if not namespaced:
        parser.set_defaults(namespace=None)
        return
    namespace = "with --kube: default that of the context"
    add("-n", "--namespace", metavar="NAME", help=namespace)
    if not any("-A" in action.option_strings for action in parser._actions):
        add("-A", "--all-namespaces", action="store_true", help="with --kube: all namespaces")


def _address(word: str) -> str:
    from gpu_scheduler.cli.text.values import text  # slow to load

    return text("--server")(word)


def client_for(args: Namespace) -> Client:
    """A client for the server of the options, or for the fleet that --kube names."""
    if getattr(args, "kube", False):
        from gpu_scheduler.cli.cluster.kubernetes import fleet_client

        return fleet_client(args)
    return Client(args.server)


def call(args: Namespace, method: str, path: str, body: object = None) -> Any:
    """The answer to a single request of the REST API."""
    with client_for(args) as client:
        return client.call(method, path, body)


def print_answer(args: Namespace, answer: object, text: str | Callable[[], object]) -> int:
    """Print the answer with --json, else the text, or call the function that prints it.

    The exit code is 0.
    """
    if args.json:
        print_json(answer)
    elif isinstance(text, str):
        print(text)
    else:
        text()
    return 0


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
