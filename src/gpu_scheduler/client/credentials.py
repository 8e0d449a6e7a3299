"""What a client shows to a server elsewhere: a token from a variable or a file, and whom it trusts.

On the machine itself nothing is shown: over a Unix socket the kernel says who is calling.
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
