"""What the launcher and the shim of a session say to each other: one order, one word."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

MOST_WORD_BYTES = 65_536


class Session:
    """What the shim will be told, and the log to hand over."""

    def __init__(
        self,
        environment: dict[str, str],
        argv: tuple[str, ...],
        log: int,
        recorded: Callable[[str], None],
    ) -> None:
        self.environment = environment
        self.argv = argv
        self.log = log
        self.unsent = b""
        self._heard = b""
        self._recorded: Callable[[str], None] | None = recorded
        self.shim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def send(self) -> None:
        """As much of the order as goes, and with its first part the log."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", self.log))]
        try:
            sent = self.shim.sendmsg([self.unsent], rights if self.log >= 0 else [])
        except OSError:
            return
        self.unsent = self.unsent[sent:]

    def word(self) -> bytes | None:
        """The first line that came; None while there is none, and what there is at the end."""
        try:
            part = self.shim.recv(MOST_WORD_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        self._heard += part
        if part and b"\n" not in self._heard and len(self._heard) < MOST_WORD_BYTES:
            return None
        return self._heard.partition(b"\n")[0]

    def finish(self) -> None:
        """The log is handed over or not needed; whoever waits for the record is told."""
        if self.log >= 0:
            os.close(self.log)
            self.log = -1
        if self._recorded is not None:
            self._recorded("")
            self._recorded = None
