"""Addresses of servers, and the credentials for them: token and trusted certificates.

A name, environment variables and files come in; addresses to try in turn and headers go out. Over a
Unix socket no credentials are sent: the kernel identifies the caller.
"""

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


TOKEN_VARIABLE = "GPU_SCHEDULER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "GPU_SCHEDULER_TOKEN_FILE"  # noqa: S105
CA_VARIABLE = "GPU_SCHEDULER_CA_FILE"
CLIENT_VARIABLES = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, CA_VARIABLE)
TOKEN_NAME = "gpu-scheduler/token"  # noqa: S105
MAX_TOKEN_BYTES = 16 << 10
_GROUP_AND_OTHERS = 0o077


def headers_for(
    address: Address | None, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the header with the token, for a server that is reached over the network."""
    if address is None or address.path:
        return {}
    token = token_of(os.environ if environ is None else environ)
    if not token:
        return {}
    if not address.tls and not address.is_loopback:
        raise InvalidRequest(f"the token would be sent unencrypted to {address}; use https://")
    return {"Authorization": f"Bearer {token}"}


def token_of(environ: Mapping[str, str]) -> str:
    """Return the token of a variable, of the file that a variable names, or of the default file."""
    token = environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        named = environ.get(TOKEN_FILE_VARIABLE, "")
        path = named or _default_file(environ)
        token = _read_token(path, required=bool(named))
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("the token contains invalid characters; copy it again")
    return token


def tls_context(environ: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """Trust the system's authorities, or those in `GPU_SCHEDULER_CA_FILE`."""
    import ssl  # noqa: PLC0415

    variables = os.environ if environ is None else environ
    file = variables.get(CA_VARIABLE) or None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"contains no certificates: {error}", file=file or "") from error


def _default_file(environ: Mapping[str, str]) -> str:
    home = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '')}/.config"
    return f"{home}/{TOKEN_NAME}"


def _read_token(path: str, *, required: bool) -> str:
    """Read a token from a file, which must not be readable by other users."""
    try:
        with open(path, encoding="ascii", errors="replace") as stream:  # noqa: PTH123
            mode = os.fstat(stream.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InvalidInput("is not a file", file=path)
            if mode & _GROUP_AND_OTHERS:
                raise InvalidInput(
                    f"other users may read or write this file, which contains a token; use "
                    f"'chmod 600 {path}', and create a new token if others may have read it",
                    file=path,
                )
            return stream.read(MAX_TOKEN_BYTES).strip()
    except OSError as error:
        if required:
            raise InvalidInput(f"cannot be read: {error.strerror}", file=path) from error
        return ""
