"""`tgpu dashboard`: open the web page of the server, or say how to reach it from another machine.

The page is on the HTTP port of the server, on loopback unless the settings say otherwise. There the
kernel tells the server who the caller is, also through `ssh -L`: the far end of the connection then
belongs to the sshd process of the user.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from gpu_scheduler.cli.connection import add_server_options, client_for, print_answer
from gpu_scheduler.client.address import DEFAULT_PORT
from gpu_scheduler.settings.file_paths import paths

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gpu_scheduler.client.client import Client

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
SERVER_FILE = "server.json"


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("job", nargs="?", default="", help="open the page of this job")
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="do not open a browser"
    )
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Open the page where there is a display, else print how to reach it."""
    with client_for(args) as client:
        page = f"#/jobs/{client.get(args.job)['id']}" if args.job else ""
        client.health()  # without a server, this error says what to do
        base = base_address(client)
    address = f"{base}/{page}"
    tunnel = tunnel_command(base)

    def show() -> None:
        print(address, flush=True)
        has_display = sys.platform == "darwin" or any(map(os.environ.get, DISPLAYS))
        is_open = has_display and not args.only_print and webbrowser.open(address)
        if tunnel and not is_open:
            print("from another machine, first:", file=sys.stderr)
            print(f"  {tunnel}", file=sys.stderr)

    return print_answer(args, {"address": address, "tunnel": tunnel}, show)


def base_address(client: Client) -> str:
    """Return the address of the page without a path.

    A server that was called through its socket has written its HTTP address into its directory; a
    caller who may not read that gets the port of the settings.
    """
    called = client.connection.address
    if called is None or not called.path:
        return str(called)
    for file in (Path(called.path).with_name(SERVER_FILE), Path(paths().server_file)):
        with suppress(OSError, ValueError, KeyError):
            return _reachable(json.loads(file.read_text("utf-8"))["http"])
    return f"http://127.0.0.1:{_configured_port()}"


def _reachable(base: str) -> str:
    """Replace the address that stands for all interfaces by that of this machine."""
    return base.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _configured_port() -> int:
    from gpu_scheduler.model.errors import SchedulerError
    from gpu_scheduler.settings.sources import load

    try:
        return load().settings.api.http_port or DEFAULT_PORT
    except SchedulerError:
        return DEFAULT_PORT


def tunnel_command(base: str) -> str:
    """Return the ssh command that forwards the port to another machine; empty if none is needed."""
    parts = urlsplit(base)
    host = parts.hostname or ""
    if not (host in {"localhost", "::1"} or host.startswith("127.")):
        return ""
    port = parts.port or DEFAULT_PORT
    return f"ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}"
