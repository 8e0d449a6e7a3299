"""Every store implementation, each with a function that opens an empty one in a directory."""

from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.sealing import Cipher, new_key
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.postgres import address_of, shared_server

_EMPTY = """
DO $$
DECLARE name text;
BEGIN
    FOR name IN
        SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'meta'
    LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
    UPDATE meta SET next_number = 1, last_event = 0;
    ALTER SEQUENCE audit_number_seq RESTART;
END $$
"""
_free: list[str] = []


class EmptyPostgresStore(PostgresStore):
    """A store on a reused database, because creating one takes longer than most tests."""

    def __init__(self) -> None:
        server = shared_server()
        self._url = _free.pop() if _free else server.make_database()
        super().__init__(address_of(self._url))
        server.execute(_EMPTY, self._url)
        self.cipher = Cipher([new_key()])

    def close(self) -> None:
        super().close()
        _free.append(self._url)


def _sealed_sqlite(folder: Path) -> Store:
    store = SqliteStore(folder / "scheduler.db")
    store.use_cipher(Cipher([new_key()]))
    return store


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": _sealed_sqlite,
    "postgres": lambda _: EmptyPostgresStore(),
}
