"""`tgpu down`: stop a server on this machine, and wait until it has stopped.

The server is chosen as for other commands: `--server` or TGPU_SERVER, else one's own. It is stopped
by a signal to the process that its state directory names, and to no other; a server on another
machine must be stopped there.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress

from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import print_json
from gpu_scheduler.cli.text.values import text
from gpu_scheduler.client.address import SERVER_VARIABLE, Address, candidates, read_address
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.server.state_directory import running
from gpu_scheduler.settings.file_paths import ROOT_STATE, Paths, paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

STOP_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
POLL_S = 0.05
ANY_HOST = ("0.0.0.0", "::")  # noqa: S104
EXIT_NO_SERVER = 3
EXIT_NOT_PERMITTED = 5


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = Options(parser)
    add.value("--state-dir", text, "DIR", "state directory of the server")
    server = "address of the server, on this machine; default $TGPU_SERVER, else your own server"
    add.value("--server", text, "ADDRESS", server)
    add.flag("--json", "print JSON instead of text")


def run(args: Namespace) -> int:
    """Stop the server that the options name, or the one of this user."""
    if args.state_dir and args.server:
        raise InvalidRequest("--state-dir and --server both choose a server; leave out one")
    named = args.server or ("" if args.state_dir else os.environ.get(SERVER_VARIABLE, ""))
    if not named:
        where = paths(args.state_dir)
        return _stop(where, f"uses {where.state}", as_json=args.json)
    addresses = candidates(named)
    if len(addresses) != 1:
        raise InvalidRequest(
            f"'{named}' names {len(addresses)} servers; choose the one to stop with --server or "
            "--state-dir"
        )
    (address,) = addresses
    host = _answering(address)
    if host is None:
        print(f"tgpu: no server answers at {address}", file=sys.stderr)
        return EXIT_NO_SERVER
    return _stop(_paths_of(address, host), f"answers at {address}", as_json=args.json)


def _stop(where: Paths, what: str, *, as_json: bool = False) -> int:
    server = running(where)
    if server is None:
        print(f"tgpu: no server {what}", file=sys.stderr)
        return EXIT_NO_SERVER
    pid = server["pid"]
    try:
        process = os.pidfd_open(pid)
        try:
            # Checked again: the pid may have been reused before it was opened.
            if running(where) == server:
                signal.pidfd_send_signal(process, signal.SIGTERM)
        finally:
            os.close(process)
    except ProcessLookupError:
        pass
    except PermissionError:
        print(
            f"tgpu: server {pid}, which {what}, belongs to another user; only that user and root "
            "can stop it",
            file=sys.stderr,
        )
        return EXIT_NOT_PERMITTED
    give_up = time.monotonic() + STOP_TIMEOUT_S
    while running(where) == server:
        if time.monotonic() > give_up:
            print(f"tgpu: server {pid} has not stopped yet", file=sys.stderr)
            return 1
        time.sleep(POLL_S)
    if as_json:
        print_json({"pid": pid, "state": where.state, "status": "stopped"})
        return 0
    again = "tgpu server" if server.get("nodes") else "tgpu up"
    print(f"server {pid} stopped; running jobs go on, '{again}' finds them again")
    return 0


def _answering(address: Address) -> str | None:
    """The address of this machine at which the server answers; None if none does."""
    try:
        if address.path:
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(CONNECT_TIMEOUT_S)
                one.connect(address.path)
            return ""
        with socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S) as one:
            host = str(one.getpeername()[0])
    except OSError:
        return None
    if not _is_local(host):
        raise InvalidRequest(
            f"the server at {address} is on another machine ({host}); stop it there, with "
            "'tgpu down'"
        )
    return host


def _is_local(host: str) -> bool:
    """Whether an address belongs to this machine: only then can we bind to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as one:
            one.bind((host, 0))
    except OSError:
        return False
    return True


def _paths_of(address: Address, host: str) -> Paths:
    """The paths of the server that listens at this address."""
    for state in dict.fromkeys(_state_directories(address)):
        where = Paths(state, state)
        server = running(where)
        if server is not None and _listens_at(server, address, host):
            return where
    raise InvalidRequest(
        f"the server at {address} cannot be stopped from here: it belongs to another user, or runs "
        "in a container or behind a tunnel; stop it where it runs, as its user"
    )


def _listens_at(server: dict[str, Any], address: Address, host: str) -> bool:
    """Whether this server listens at the address."""
    if address.path:
        return os.path.realpath(str(server["socket"])) == os.path.realpath(address.path)
    listens = read_address(server["http"])
    if listens.port != address.port:
        return False
    if listens.host in ANY_HOST:
        return True
    with suppress(OSError):
        return host in {found[4][0] for found in socket.getaddrinfo(listens.host, None)}
    return False


def _state_directories(address: Address) -> Iterator[str]:
    """State directories to try: that of the socket, the default ones, and all in use."""
    if address.path:
        yield os.path.dirname(os.path.realpath(address.path))  # noqa: PTH120
    yield paths().state
    yield ROOT_STATE
    lock = f"/{os.path.basename(paths().server_lock)}"  # noqa: PTH119
    for entry in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):  # noqa: PTH208
        # Other users' processes are not readable, and processes may end meanwhile.
        with suppress(OSError):
            for name in os.listdir(f"/proc/{entry}/fd"):  # noqa: PTH208
                with suppress(OSError):
                    file = os.readlink(f"/proc/{entry}/fd/{name}")  # noqa: PTH115
                    if file.endswith(lock):
                        yield file.removesuffix(lock)
