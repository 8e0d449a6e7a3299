"""Every store there is, each behind a function that opens an empty one in a folder."""

from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import Store
from gpu_scheduler.store.sqlite import SqliteStore

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "scheduler.db"),
}
