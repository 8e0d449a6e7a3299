"""The store in one SQLite file: for a workstation, and for everything that fits on one machine.

Batches come in and are durable when `commit` returns (write-ahead log, synchronous=FULL). Reads
come from connections that cannot write, as many as there are threads reading at once; they see
what has been committed and nothing else. `commit`, `archive` and `forget` are for one thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.store.contract import Cutoffs
from gpu_scheduler.store.reader import NOTHING, SqlReads, Values
from gpu_scheduler.store.rows import Write
from gpu_scheduler.store.sql_files import SQLITE, migrations
from gpu_scheduler.store.sqlite.files import Steps, open_reader, open_writer, understood
from gpu_scheduler.store.sqlite.writer import Writer

T = TypeVar("T")

BUSY_MS = 5_000


class SqliteStore(SqlReads):
    """One file. It is made if it is not there, and refused if it is damaged or too new."""

    _dialect = SQLITE

    def __init__(
        self, path: str | Path, *, busy_ms: int = BUSY_MS, steps: Steps | None = None
    ) -> None:
        """Open the file; wait at most so long for other processes that hold it locked."""
        self.path = Path(path)
        self._busy_ms = busy_ms
        writer = open_writer(self.path, migrations() if steps is None else steps, busy_ms=busy_ms)
        self._writer = Writer(writer, self.path)
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    # --- writing

    def commit(self, writes: list[Write]) -> int:
        """Keep a batch, and return the sequence number of the last event so far."""
        return self._writer.commit(writes)

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then out of the way, the oldest end first; says how many."""
        return self._writer.archive(ended_before_ms=ended_before_ms, limit=limit)

    def forget(self, before: Cutoffs, *, limit: int = 10_000) -> int:
        """Drop what is old: answers, events, hours, records, environments. Says how many."""
        return self._writer.forget(before, limit=limit)

    def trouble(self) -> str:
        """A file is there, or each statement says why not."""
        return ""

    def close(self) -> None:
        """Let go of the file. A reader that is at work lets go when it is done."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        self._writer.close()

    # --- connections

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses at this moment."""
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} has been closed")
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = open_reader(self.path, busy_ms=self._busy_ms)
        try:
            with understood(self.path):
                yield reader
        finally:
            self._give_back(reader)

    def _give_back(self, reader: sqlite3.Connection) -> None:
        if self._closed:
            reader.close()
        else:
            self._idle.append(reader)

    def _rows(self, make: Callable[[Any], T], statement: str, values: Values = NOTHING) -> list[T]:
        with self._reader() as reader:
            return [make(row) for row in reader.execute(statement, values)]

    def _row(self, statement: str, values: Values = NOTHING) -> Any:
        with self._reader() as reader:
            # All of it: a statement that is not read to its end would hold its snapshot.
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
