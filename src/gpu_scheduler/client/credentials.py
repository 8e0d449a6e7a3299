"""Credentials of a client: the bearer token and the CA file, from variables or files.

A program that loaded the client before an upgrade imports this module late, with the modules of the
old version beside it, so it imports nothing of the client at run time.
"""

from __future__ import annotations

import os
import stat

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from gpu_scheduler.client.address import Address

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
