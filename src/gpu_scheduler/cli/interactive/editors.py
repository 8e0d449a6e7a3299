"""`tgpu jupyter` and `tgpu code`: notebook servers and editors that run in a job with GPUs.

The token of a notebook is made here and sent with the captured environment, so it appears in no
command line and in no list of jobs. An editor connects through `code tunnel` in the job, or through
ssh with an entry that opens a shell in the job.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.connection import add_server_options, client_for, my_name, warn
from gpu_scheduler.cli.interactive.shell import (
    is_local,
    shell_body,
    submitted,
    wait_and_attach,
    wait_for_start,
)
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.submit.options import add_options, add_terminal_options
from gpu_scheduler.cli.text.values import whole
from gpu_scheduler.client.address import candidates
from gpu_scheduler.client.requests import ENDED, exit_code_of
from gpu_scheduler.model.errors import ClusterError, InvalidRequest

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from gpu_scheduler.client.client import Client


TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - the name of the variable
EXIT_INTERRUPTED = 128 + 2
_ADDRESS = re.compile(r"https?://[^\s:/]+:(\d+)(/[^\s?]*)")
_READY_S = 120.0
_POLL_S = 0.2


def register_jupyter(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    parser.usage = "%(prog)s [options] [-- options of jupyter ...]"
    parser.epilog = "One GPU unless --gpus says otherwise."
    add_terminal_options(parser)
    group = parser.add_argument_group("the notebook server")
    kinds = {"lab": "JupyterLab", "notebook": "the classic notebook"}
    _add_constants(group, "kind", kinds)
    add = Options(group)
    add.value("--port", whole, "N", "port; default 0: a free one", default=0)
    listen = "address to listen on; default 127.0.0.1"
    add.value("--ip", None, "ADDRESS", listen, default="127.0.0.1")
    add.flag("--detach", "print the address and leave it running")
    add_server_options(parser, json=False)
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the address")


def _add_constants(group: _ArgumentGroup, dest: str, options: dict[str, str]) -> None:
    """Add options of which at most one may be given, with their help; `dest` is its name."""
    exclusive = group.add_mutually_exclusive_group()
    for name, about in options.items():
        exclusive.add_argument(f"--{name}", action="store_const", dest=dest, const=name, help=about)


def run_jupyter(args: Namespace) -> int:
    """Submit, wait until the notebook server answers, print its address; wait until it ends."""
    token = secrets.token_hex(24)
    body = notebook_body(args, token)
    if args.dry_run:
        from gpu_scheduler.cli.submit.submit import show_dry_run

        return show_dry_run(args, [body])
    with client_for(args) as client:
        job = submitted(client, body, quiet=args.quiet)
        found = wait_for_start(client, job, quiet=args.quiet)
        if found is None:
            return EXIT_INTERRUPTED
        try:
            endpoint = Endpoint(client, found, args.ip)
            address = _wait_until_ready(client, job, token, endpoint)
            _print_address(args, job, address, endpoint)
            return 0 if args.detach else _wait_for_end(client, job)
        except KeyboardInterrupt:
            client.cancel(job)
            warn(f"{job} cancelled")
            return EXIT_INTERRUPTED


def notebook_body(args: Namespace, token: str) -> dict[str, Any]:
    """The request for the notebook job."""
    installed = (name for name in ("lab", "notebook", "server") if shutil.which(f"jupyter-{name}"))
    kind = args.kind or next(installed, "lab")
    if not args.conda and not args.image and not shutil.which("jupyter"):
        raise InvalidRequest(
            "'jupyter' not found in this environment; install it with 'pip install jupyterlab', "
            "or activate the environment that has it"
        )
    root = ["--allow-root"] if os.geteuid() == 0 else []
    with socket.socket() as probe:
        # A free port; jupyter takes the next one if it is in use by then.
        probe.bind(("127.0.0.1", 0))
        port = args.port or probe.getsockname()[1]
    command = ["jupyter", kind, "--no-browser", f"--ip={args.ip}", f"--port={port}"]
    body = _gpu_body(args, [*command, *root, *args.words], f"jupyter-{kind}")
    body["terminal"]["attach_within_seconds"] = 0
    body["captured_environment"] = body.get("captured_environment", {}) | {TOKEN: token}
    return body


class Endpoint:
    """Where the notebook server is, and the address for a browser.

    A server on the loopback interface of another machine is reached through `ssh -L`; its log says
    when it is ready. It asks any other server over HTTP.
    """

    def __init__(self, client: Client, job: dict[str, Any], ip: str) -> None:
        """`ip` is the address on which it listens."""
        node = job["allocation"][0]["node"] if job.get("allocation") else ""
        host = next((one["address"] for one in client.nodes() if one["id"] == node), "") or node
        self.node = node
        self.user = str(job["user"])
        server = client.connection.address
        is_far = server is not None and bool(server.host) and not server.is_loopback
        if is_far and server is not None and _is_loopback(host):
            host = server.host  # the job runs on the server's machine
        is_here = (is_local(client) and bool(job.get("attach"))) or _is_loopback(host)
        self.login = socket.gethostname() if is_here else host
        self.is_tunnelled = _is_loopback(ip) and not is_here
        self.host = "127.0.0.1"
        if not _is_loopback(ip) and not self.is_tunnelled:
            is_any = ip in ("0.0.0.0", "::", "*", "")  # noqa: S104 - compared, not bound
            self.host = ip if not is_any else "127.0.0.1" if is_here else host

    @property
    def is_local(self) -> bool:
        """Whether it is reached only from this machine or through a tunnel."""
        return _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _wait_until_ready(client: Client, job: str, token: str, endpoint: Endpoint) -> str:
    """Wait until the notebook server answers to the token; its address."""
    give_up = time.monotonic() + _READY_S
    while time.monotonic() < give_up:
        found = client.get(job)
        text = b"".join(client.log_bytes(job)).decode("utf-8", "replace")
        if found["state"] in ENDED:
            why = f" ({found['reason']})" if found.get("reason") else ""
            lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing"]
            raise ClusterError(
                f"{job} {found['state']} before it was ready{why}; last output: {lines[-1]}"
            )
        for port, path in _ADDRESS.findall(text):
            if endpoint.is_tunnelled or _answers(endpoint.host, int(port), token):
                return f"http://{endpoint.host}:{port}{path}?token={token}"
        time.sleep(_POLL_S)
    raise ClusterError(
        f"{job} runs, but its notebook server has not answered for {_READY_S:.0f} s; "
        f"'tgpu logs {job}' shows its output, 'tgpu cancel {job}' ends it"
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


def _print_address(args: Namespace, job: str, address: str, endpoint: Endpoint) -> None:
    port = address.partition("//")[2].partition("/")[0].rpartition(":")[2]
    if not args.quiet:
        warn(f"{job} serves notebooks{f' on {endpoint.node}' if endpoint.is_tunnelled else ''} at")
    print(address, flush=True)
    if args.quiet:
        return
    if endpoint.is_local:
        where = (
            "on the machine of your browser" if endpoint.is_tunnelled else "from another machine"
        )
        warn(f"{where}, first:")
        print(f"  ssh -L {port}:127.0.0.1:{port} {endpoint.user}@{endpoint.login}", file=sys.stderr)
    how = f"'tgpu cancel {job}'" if args.detach else "Ctrl-C"
    warn(f"{how} ends it; 'tgpu shell --job {job}' opens a shell beside it")


def _wait_for_end(client: Client, job: str) -> int:
    """Wait until the job ends or the user detaches; the exit code."""
    from gpu_scheduler.cli.submit.run import ask, ending_text

    while True:
        try:
            ended = client.wait(job)
        except KeyboardInterrupt:
            decision = ask(client, job)
            if decision is not None:
                return decision
            continue
        if ended["state"] != "completed":
            warn(f"{job} {ending_text(ended)}")
        return exit_code_of(ended)


PLACEHOLDER = ["sleep", "infinity"]
"""The command of the job while editors connect and disconnect."""


def register_code(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    parser.usage = "%(prog)s [options] [-- options of 'code tunnel' ...]"
    parser.epilog = (
        "One GPU unless --gpus says otherwise. Set --time: the job holds its GPUs until then."
    )
    add_terminal_options(parser)
    group = parser.add_argument_group("connection")
    _add_constants(group, "method", {"tunnel": "through 'code tunnel'", "ssh": "through ssh"})
    host = "name of this machine for ssh; default: its host name"
    Options(group).value("--host", None, "NAME", host)
    add_server_options(parser, json=False)
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the ssh entry")


def run_code(args: Namespace) -> int:
    """Start the job, and open a tunnel or print the ssh entry."""
    method = args.method or ("tunnel" if shutil.which("code") else "ssh")
    if method == "tunnel" and not shutil.which("code"):
        raise InvalidRequest(
            "'code' is not on your PATH; install the VS Code command line, or use --ssh"
        )
    _check_words(args, method)
    server = candidates(args.server)[0] if method == "ssh" else None
    is_far = server is not None and bool(server.host) and not server.is_loopback
    if is_far and not args.host:
        raise InvalidRequest(
            "the server is on another machine; name the machine to which your editor connects with "
            "--host, or run this command there"
        )
    tunnel = ["code", "tunnel", "--accept-server-license-terms", *args.words]
    body = _gpu_body(args, tunnel if method == "tunnel" else PLACEHOLDER, f"code-{method}")
    if method == "ssh":
        body["terminal"]["attach_within_seconds"] = 0
    if args.dry_run:
        from gpu_scheduler.cli.submit.submit import show_dry_run

        return show_dry_run(args, [body])
    with client_for(args) as client:
        job = submitted(client, body, quiet=args.quiet)
        if method == "tunnel":
            if not args.quiet:
                warn(
                    "follow the instructions of 'code'; Enter ~ d leaves the tunnel open, "
                    "Ctrl-C closes it"
                )
            return wait_and_attach(client, job, quiet=args.quiet)
        found = wait_for_start(client, job, quiet=args.quiet)
    if found is None:
        return EXIT_INTERRUPTED
    if found["state"] in ENDED:
        warn(f"{job} {found['state']}: {found.get('reason') or 'it never started'}")
        return exit_code_of(found)
    _print_ssh_entry(args, job, ["tgpu"] if is_far else _program())
    return 0


def _check_words(args: Namespace, method: str) -> None:
    """Reject words, except options of `code tunnel` after `--`."""
    if not args.words:
        return
    word = args.words[0]
    if args.after_dashes and method == "tunnel":
        return
    if args.after_dashes:
        raise InvalidRequest(
            f"'{word}' is an option of 'code tunnel'; leave it out with --ssh"
            if args.method
            else f"'{word}' is an option of 'code tunnel', but 'code' is not on your PATH; "
            "install the VS Code command line, or leave it out to use ssh"
        )
    if re.fullmatch(r"(job-)?\d+(_\d+)?|last|@(~\d+)?", word, re.ASCII):
        raise InvalidRequest(
            f"'tgpu code' starts a new job and cannot use '{word}'; to open a shell in a running "
            f"job, use 'tgpu shell --job {word}'"
        )
    raise InvalidRequest(
        f"unexpected argument '{word}'; write options of 'code tunnel' after '--'; "
        "'tgpu code --help' shows the usage"
    )


def _gpu_body(args: Namespace, command: list[str], name: str) -> dict[str, Any]:
    """The request for a job on a terminal that runs this command, by default on one GPU."""
    args.words, args.after_dashes = command, True
    args.gpus = 1 if args.gpus is None else args.gpus
    args.name = args.name or name
    return shell_body(args)


def _print_ssh_entry(args: Namespace, job: str, program: list[str]) -> None:
    host = args.host or socket.gethostname()
    print(ssh_entry(job, host, args.server, program), end="", flush=True)
    if args.quiet:
        return
    name = _name(job)
    warn("what to do:")
    for line in (
        "1. put the lines above into ~/.ssh/config of your own machine",
        f"2. a shell there: 'ssh -t {name}'",
        "3. VS Code there: set remote.SSH.enableRemoteCommand and remote.SSH.useLocalServer to",
        f"   true, then 'Remote-SSH: Connect to Host...' and {name}",
        f"4. 'tgpu cancel {job}' ends the job",
    ):
        print(f"  {line}", file=sys.stderr)


def ssh_entry(job: str, host: str, server: str | None, program: list[str]) -> str:
    """An entry for ~/.ssh/config that opens a shell in a job, with its GPUs and limits."""
    words = [*program, "shell"]
    address = server or os.environ.get("TGPU_SERVER")
    if address:
        is_path = address.startswith(("/", "./", "~"))
        words += ["--server", os.path.abspath(address) if is_path else address]  # noqa: PTH100
    # ssh expands %, so it is escaped.
    command = shlex.join([*words, "--job", job]).replace("%", "%%")
    return f"Host {_name(job)}\n  HostName {host}\n  User {my_name()}\n  RemoteCommand {command}\n"


def _name(job: str) -> str:
    return f"tgpu-{job.removeprefix('job-')}"


def _program() -> list[str]:
    """The full path of this program: PATH differs in an ssh session."""
    found = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "tgpu" else None  # noqa: PTH119
    return [os.path.abspath(found)] if found else [sys.executable, "-P", "-m", "gpu_scheduler"]  # noqa: PTH100
