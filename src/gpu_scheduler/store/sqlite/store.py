"""The store in one SQLite file: for a workstation, and for everything that fits on one machine.

Batches come in and are durable when `commit` returns (write-ahead log, synchronous=FULL). Reads use
read-only connections, one for each thread that reads at the same time, and see only committed rows.
`commit`, `archive` and `delete_expired` are for one thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.store.interface import Cutoffs
from gpu_scheduler.store.rows import Write
from gpu_scheduler.store.sealing import Cipher, sealed_key_ids
from gpu_scheduler.store.sql_queries import SQLITE, Migrations, migrations
from gpu_scheduler.store.sql_reader import NO_VALUES, SqlReader, Values
from gpu_scheduler.store.sqlite.database_file import open_reader, open_writer, translate_read_errors
from gpu_scheduler.store.sqlite.writer import Writer

T = TypeVar("T")

BUSY_MS = 5_000
MOST_IDLE = 8
"""So many connections stay open between reads: each has its own cache of pages and statements."""


class SqliteStore(SqlReader):
    """One file. A missing file is created; a damaged file or a newer schema is rejected."""

    _dialect = SQLITE

    def __init__(
        self, path: str | Path, *, busy_ms: int = BUSY_MS, steps: Migrations | None = None
    ) -> None:
        """Open the file; wait at most `busy_ms` for a lock of another process."""
        self.path = Path(path)
        self._busy_ms = busy_ms
        writer = open_writer(self.path, migrations() if steps is None else steps, busy_ms=busy_ms)
        self._writer = Writer(writer, self.path)
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    def commit(self, writes: list[Write]) -> int:
        """Write a batch, and return the sequence number of the last event so far."""
        return self._writer.commit(self.cipher.seal_writes(writes))

    def use_cipher(self, cipher: Cipher) -> int:
        """Seal secrets from now on, also those that are stored; returns how many rows changed."""
        self.cipher = cipher
        return self._writer.reseal(cipher)

    def sealed_key_ids(self) -> set[str]:
        """Return the ids of the keys with which secrets are sealed."""
        return sealed_key_ids(lambda statement: self._rows(tuple, statement))

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then to the archive, the oldest first; returns how many."""
        return self._writer.archive(ended_before_ms=ended_before_ms, limit=limit)

    def delete_expired(self, before: Cutoffs, *, limit: int = 10_000) -> int:
        """Delete rows that are older than the cut-offs; returns how many."""
        return self._writer.delete_expired(before, limit=limit)

    def unavailable_reason(self) -> str:
        """Return nothing: each statement reports its own failure."""
        return ""

    def full_reason(self) -> str:
        """Why only commands that end work should be committed: the disk is full."""
        return self._writer.reserve.full_reason()

    def close(self) -> None:
        """Close the file. A connection in use is closed when its read is done."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        self._writer.close()

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection that no other thread uses meanwhile."""
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} has been closed")
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = open_reader(self.path, busy_ms=self._busy_ms)
        try:
            with translate_read_errors(self.path):
                yield reader
        finally:
            self._give_back(reader)

    def _give_back(self, reader: sqlite3.Connection) -> None:
        if self._closed or len(self._idle) >= MOST_IDLE:
            reader.close()
        else:
            self._idle.append(reader)

    def _rows(
        self, decode: Callable[[Any], T], statement: str, values: Values = NO_VALUES
    ) -> list[T]:
        with self._reader() as reader:
            return [decode(row) for row in reader.execute(statement, values)]

    def _row(self, statement: str, values: Values = NO_VALUES) -> Any:
        with self._reader() as reader:
            # Read all rows: an unfinished statement would keep its snapshot open.
            return next(iter(reader.execute(statement, values).fetchall()), None)

    def _scan(
        self, statement: str, values: Values, read: Callable[[Iterator[tuple[Any, ...]]], T]
    ) -> T:
        with self._reader() as reader:
            rows = reader.execute(statement, values)
            try:
                return read(rows)
            finally:
                rows.close()
