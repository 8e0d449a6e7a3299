"""Addresses of servers: names, environment variables and files in, addresses to try in turn out."""

from __future__ import annotations

import os

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.file_paths import ROOT_RUNTIME, SOCKET_NAME, STATE_VARIABLE, paths

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER_VARIABLE = "TGPU_SERVER"
DEFAULT_PORT = 8080


class Address:
    """A Unix socket by its path, or a host and port, with TLS or without."""

    __slots__ = ("host", "path", "port", "tls")

    def __init__(self, *, path: str = "", host: str = "", port: int = 0, tls: bool = False) -> None:
        self.path = path
        self.host = host
        self.port = port
        self.tls = tls

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self._place}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def host_header(self) -> str:
        """The value of the Host header."""
        return "localhost" if self.path else self._place

    @property
    def _place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Tell whether the address is on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def candidates(
    server: str | None = None, environ: Mapping[str, str] | None = None
) -> list[Address]:
    """Return the addresses to try: the named ones, or the user's server, then the machine's.

    The servers of one cluster are separated by commas. The user's own server comes first, because
    the user started it on purpose.
    """
    variables = os.environ if environ is None else environ
    named = server or variables.get(SERVER_VARIABLE)
    if named:
        return [read_address(one.strip()) for one in named.split(",") if one.strip()]
    own = Address(path=paths(environ=variables).server_socket)
    if variables.get(STATE_VARIABLE):
        return [own]
    shared = Address(path=f"{ROOT_RUNTIME}/{SOCKET_NAME}")
    return [own] if own == shared else [own, shared]


def read_address(text: str) -> Address:
    """Parse `unix:/path`, `/path` of a socket or a state directory, or a network address.

    A network address is `https://host:port`, `http://host:port` or `host:port`.
    """
    if text.startswith(("unix:", "/", "./", "~")):
        path = text.removeprefix("unix:").removeprefix("//")
        path = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
        return Address(path=f"{path}/{SOCKET_NAME}" if os.path.isdir(path) else path)  # noqa: PTH112
    tls = text.startswith("https://")
    rest = text.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, port = _split_port(rest)
    if not host or "/" in rest or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidRequest(
            f"server '{text}' is not an address; write unix:/path/server.sock or https://host:port"
        )
    return Address(host=host, port=int(port), tls=tls)


def _split_port(rest: str) -> tuple[str, str]:
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        return host, port.removeprefix(":") or str(DEFAULT_PORT)
    host, _, port = rest.partition(":")
    return host, port or str(DEFAULT_PORT)
