"""Where the server may be: a name, variables and files in, addresses to try out."""

from __future__ import annotations

import os
import stat

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.settings.file_paths import ROOT_RUNTIME, SOCKET_NAME, STATE_VARIABLE, paths

TYPE_CHECKING = False

if TYPE_CHECKING:
    import ssl
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
        """What the server is called in requests."""
        return "localhost" if self.path else self._place

    @property
    def _place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def candidates(
    server: str | None = None, environ: Mapping[str, str] | None = None
) -> list[Address]:
    """The addresses to try in turn: those that are named, or one's own server, then the machine's.

    Several servers of one cluster are named with commas between them. A server of one's own was
    started on purpose, so it comes before the one of the machine.
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
    """`unix:/path`, `/path` of a socket or a state directory, or an address.

    That is `https://host:port`, `http://host:port` or `host:port`.
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
            f"server '{text}' is no address; write unix:/path/server.sock or https://host:port"
        )
    return Address(host=host, port=int(port), tls=tls)


def _split_port(rest: str) -> tuple[str, str]:
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        return host, port.removeprefix(":") or str(DEFAULT_PORT)
    host, _, port = rest.partition(":")
    return host, port or str(DEFAULT_PORT)


# --- What a client shows to a server elsewhere: a token from a variable or a file, and whom it
# trusts.
#
# On the machine itself nothing is shown: over a Unix socket the kernel says who is calling.

TOKEN_VARIABLE = "GPU_SCHEDULER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "GPU_SCHEDULER_TOKEN_FILE"  # noqa: S105
CA_VARIABLE = "GPU_SCHEDULER_CA_FILE"
CLIENT_VARIABLES = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, CA_VARIABLE)
TOKEN_NAME = "gpu-scheduler/token"  # noqa: S105
LARGEST_TOKEN = 16 << 10
_OTHERS = 0o077


def headers_for(
    address: Address | None, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The header that shows the token, for a server that is reached over the network."""
    if address is None or address.path:
        return {}
    token = token_of(os.environ if environ is None else environ)
    if not token:
        return {}
    if not address.tls and not address.is_loopback:
        raise InvalidRequest(f"the token would be readable on its way to {address}; use https://")
    return {"Authorization": f"Bearer {token}"}


def token_of(environ: Mapping[str, str]) -> str:
    """The token of a variable, of the file that one names, or of the usual file; else nothing."""
    token = environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        named = environ.get(TOKEN_FILE_VARIABLE, "")
        path = named or _usual_file(environ)
        token = _read(path, needed=bool(named))
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("the token holds characters that no token has; copy it again")
    return token


def tls_context(environ: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """Believe the system's authorities, or those in the file that a variable names."""
    import ssl  # noqa: PLC0415

    variables = os.environ if environ is None else environ
    file = variables.get(CA_VARIABLE) or None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"holds no certificates: {error}", file=file or "") from error


def _usual_file(environ: Mapping[str, str]) -> str:
    home = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '')}/.config"
    return f"{home}/{TOKEN_NAME}"


def _read(path: str, *, needed: bool) -> str:
    """A token from a file that nobody else can read."""
    try:
        with open(path, encoding="ascii", errors="replace") as stream:  # noqa: PTH123
            mode = os.fstat(stream.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InvalidInput("is not a file", file=path)
            if mode & _OTHERS:
                raise InvalidInput(
                    f"others may read or write this file, which holds a token; "
                    f"use 'chmod 600 {path}', and make a new token if others were here",
                    file=path,
                )
            return stream.read(LARGEST_TOKEN).strip()
    except OSError as error:
        if needed:
            raise InvalidInput(f"cannot be read: {error.strerror}", file=path) from error
        return ""
