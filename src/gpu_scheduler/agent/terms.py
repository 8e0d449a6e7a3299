"""The newest term whose leader this node has obeyed. What an older leader says is not obeyed.

It is on disk before the first order of a term is carried out, so that an agent which is started
again still refuses what a server says that was frozen meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpu_scheduler.agent.stream import SentAway

FILE = "term"


class Terms:
    """The terms that one node has seen."""

    def __init__(self, directory: Path | None) -> None:
        """Read what is known; without a directory nothing is kept."""
        self._file = None if directory is None else directory / FILE
        self.newest = 0
        if self._file is not None and self._file.exists():
            text = self._file.read_text(encoding="ascii", errors="replace").strip()
            self.newest = int(text) if text.isdecimal() else 0

    def check(self, term: int) -> None:
        """Go on only if there is no newer one; raises `SentAway`."""
        if term < self.newest:
            raise SentAway(
                f"the server leads in term {term}, and this node has obeyed term {self.newest}; if "
                f"that is over for good, remove {self._file}"
            )
        if term > self.newest:
            try:
                self._keep(term)
            except OSError as error:
                raise SentAway(f"term {term} cannot be written to {self._file}: {error}") from error
            self.newest = term

    def _keep(self, term: int) -> None:
        if self._file is None:
            return
        fresh = self._file.with_name(f"{FILE}.new")
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{term}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
        directory = os.open(self._file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
