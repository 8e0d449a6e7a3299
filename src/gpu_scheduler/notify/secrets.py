"""Files that hold a secret: refused if others could read them."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_scheduler.notify.failures import DeliveryFailed

LARGEST = 4096
_OTHERS = 0o007


def read_secret(path: str, what: str) -> str:
    """The first line of a file. Read each time, so that a new secret holds at once."""
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & _OTHERS:
                raise DeliveryFailed(
                    f"{what} {path} can be read by everybody; use 'chmod 600 {path}'"
                )
            if status.st_uid not in (0, os.geteuid()):
                raise DeliveryFailed(
                    f"{what} {path} belongs to uid {status.st_uid}; it must belong to root or to "
                    "the user who runs the server"
                )
            text = file.read(LARGEST).decode("utf-8", "replace")
    except OSError as error:
        raise DeliveryFailed(f"{what} {path} cannot be read: {error.strerror}") from error
    line = text.split("\n", 1)[0].strip()
    if not line:
        raise DeliveryFailed(f"{what} {path} is empty")
    return line
