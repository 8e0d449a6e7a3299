"""`tgpu jupyter`: a notebook server with GPUs, and the address at which it is found.

The token is made here and travels with the captured environment, so that it stands in no command
line and in no list of jobs.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.interactive.attach import is_near
from gpu_scheduler.cli.interactive.shell import shell_body, submitted, wait_for_start
from gpu_scheduler.cli.submit.options import add_options, add_terminal_options
from gpu_scheduler.cli.text.values import whole
from gpu_scheduler.client.requests import ENDED, exit_code_of
from gpu_scheduler.model.errors import ClusterError, InvalidRequest

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

TAKES_WORDS = True
TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - the name of the variable
EXIT_INTERRUPTED = 128 + 2
_ADDRESS = re.compile(r"https?://[^\s:/]+:(\d+)(/[^\s?]*)")
_READY_S = 120.0
_LOOK_S = 0.2


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    parser.usage = "%(prog)s [options] [-- options of jupyter ...]"
    parser.epilog = "One GPU unless --gpus says otherwise."
    add_terminal_options(parser)
    group = parser.add_argument_group("the notebook server")
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument("--lab", action="store_const", dest="kind", const="lab", help="JupyterLab")
    kinds.add_argument(
        "--notebook", action="store_const", dest="kind", const="notebook", help="the classic one"
    )
    group.add_argument(
        "--port", type=whole("--port"), default=0, metavar="N", help="default 0: any that is free"
    )
    group.add_argument(
        "--ip", metavar="ADDRESS", default="127.0.0.1", help="where it listens; default 127.0.0.1"
    )
    group.add_argument(
        "--detach", action="store_true", help="print the address and leave it running"
    )
    add_server_options(parser, json=False)
    parser.add_argument("-q", "--quiet", action="store_true", help="only the address")


def run(args: Namespace) -> int:
    """Submit, wait until it answers, print where; stay until it ends."""
    token = secrets.token_hex(24)
    body = notebook_body(args, token)
    if args.dry_run:
        from gpu_scheduler.cli.submit.dry_run import show_dry_run

        return show_dry_run(args, [body])
    with client_for(args) as client:
        job = submitted(client, body, quiet=args.quiet)
        found = wait_for_start(client, job, quiet=args.quiet)
        if found is None:
            return EXIT_INTERRUPTED
        try:
            place = Place(client, found, args.ip)
            address = _wait_until_ready(client, job, token, place)
            _tell(args, job, address, place)
            return 0 if args.detach else _stay(client, job)
        except KeyboardInterrupt:
            return _end(client, job)


def notebook_body(args: Namespace, token: str) -> dict[str, Any]:
    """The request for the job."""
    kind = args.kind or _kind_here()
    if not args.conda and not args.image and not shutil.which("jupyter"):
        raise InvalidRequest(
            "there is no 'jupyter' in this environment; install it with 'pip install jupyterlab', "
            "or activate the environment that has it"
        )
    root = ["--allow-root"] if os.geteuid() == 0 else []
    port = args.port or _free_port()
    args.words = [
        *("jupyter", kind, "--no-browser", f"--ip={args.ip}", f"--port={port}"),
        *root,
        *args.words,
    ]
    args.after_dashes = True
    args.gpus = 1 if args.gpus is None else args.gpus
    args.name = args.name or f"jupyter-{kind}"
    body = shell_body(args)
    body["terminal"]["attach_within_seconds"] = 0
    body["captured_environment"] = body.get("captured_environment", {}) | {TOKEN: token}
    return body


def _kind_here() -> str:
    for kind in ("lab", "notebook", "server"):
        if shutil.which(f"jupyter-{kind}"):
            return kind
    return "lab"


def _free_port() -> int:
    """A port that nobody has now; jupyter takes the next one if somebody was quicker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Place:
    """Where the notebook server is, seen from here, and where a browser finds it.

    One that listens on the loopback interface of another machine is reached through `ssh -L`, and
    has said in its log that it is ready; any other one is asked itself.
    """

    def __init__(self, client: Client, job: dict[str, Any], ip: str) -> None:
        """`ip` is where it listens."""
        node = job["allocation"][0]["node"] if job.get("allocation") else ""
        said = next((one["address"] for one in client.nodes() if one["id"] == node), "") or node
        self.node = node
        self.user = str(job["user"])
        server = client.connection.address
        is_far = server is not None and bool(server.host) and not server.is_loopback
        if is_far and server is not None and _is_loopback(said):
            said = server.host  # the server's own machine, as that calls itself
        is_here = (is_near(client) and bool(job.get("attach"))) or _is_loopback(said)
        self.login = socket.gethostname() if is_here else said
        self.is_tunnelled = _is_loopback(ip) and not is_here
        self.host = "127.0.0.1"
        if not _is_loopback(ip) and not self.is_tunnelled:
            anywhere = ip in ("0.0.0.0", "::", "*", "")  # noqa: S104 - what it was told, not told here
            self.host = ip if not anywhere else "127.0.0.1" if is_here else said

    @property
    def is_local(self) -> bool:
        """Whether only this machine, or one that has a tunnel, reaches it."""
        return _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _wait_until_ready(client: Client, job: str, token: str, place: Place) -> str:
    """The address, once the server behind it answers to the token."""
    give_up = time.monotonic() + _READY_S
    while time.monotonic() < give_up:
        found = client.get(job)
        text = b"".join(client.log_bytes(job)).decode("utf-8", "replace")
        if found["state"] in ENDED:
            why = f" ({found['reason']})" if found.get("reason") else ""
            raise ClusterError(
                f"{job} {found['state']} before it could be used{why}; it said: {_last(text)}"
            )
        for port, path in _ADDRESS.findall(text):
            if place.is_tunnelled or _answers(place.host, int(port), token):
                return f"http://{place.host}:{port}{path}?token={token}"
        time.sleep(_LOOK_S)
    raise ClusterError(
        f"{job} runs, but its notebook server has not answered for {_READY_S:.0f} s; "
        f"'tgpu logs {job}' shows what it says, 'tgpu cancel {job}' ends it"
    )


def _answers(host: str, port: int, token: str) -> bool:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, port, timeout=5)
    try:
        headers = {"Authorization": f"token {token}"}
        connection.request("GET", "/api/status", headers=headers)
        answered = connection.getresponse().status
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
    return answered < 400


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"


def _tell(args: Namespace, job: str, address: str, place: Place) -> None:
    port = address.partition("//")[2].partition("/")[0].rpartition(":")[2]
    if not args.quiet:
        warn(f"{job} serves notebooks{f' on {place.node}' if place.is_tunnelled else ''} at")
    print(address, flush=True)
    if args.quiet:
        return
    if place.is_local:
        where = "on the machine of your browser" if place.is_tunnelled else "from another machine"
        warn(f"{where}, first:")
        print(f"  ssh -L {port}:127.0.0.1:{port} {place.user}@{place.login}", file=sys.stderr)
    how = f"'tgpu cancel {job}'" if args.detach else "Ctrl-C"
    warn(f"{how} ends it; 'tgpu shell --job {job}' opens a shell beside it")


def _stay(client: Client, job: str) -> int:
    """Until it ends, or the person has had enough."""
    from gpu_scheduler.cli.submit.run import ask

    while True:
        try:
            ended = client.wait(job)
        except KeyboardInterrupt:
            decided = ask(client, job)
            if decided is not None:
                return decided
            continue
        code = exit_code_of(ended)
        if code:
            reason = f": {ended['reason']}" if ended.get("reason") else ""
            warn(f"{job} {ended['state']}{reason}")
        return code


def _end(client: Client, job: str) -> int:
    client.cancel(job)
    warn(f"{job} cancelled")
    return EXIT_INTERRUPTED
