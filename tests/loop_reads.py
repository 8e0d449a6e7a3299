"""A plugin: a test fails when the code under test reads the store on the thread of an event loop.

A slow disk or database would stop every other request for as long as the read takes. The guard
wraps every read of the SQL databases and of the store in memory. It looks at the caller: tests
themselves may read the store wherever they want, and so may code that runs before the event loop
serves anything.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import FrameType
from typing import Any

import pytest

from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.sql_reader import SqlReader

NOT_READS = {"commit", "archive", "delete_expired", "unavailable_reason", "full_reason", "close"}
READS = sorted(name for name in vars(Store) if not name.startswith("_") and name not in NOT_READS)
CHECKED = (
    "gpu_scheduler.control.",
    "gpu_scheduler.api.",
    "gpu_scheduler.notify.",
    "gpu_scheduler.server.background.",
    "gpu_scheduler.server.from_settings",
)
"""The packages that must not read on an event loop."""
NOT_ON_LOOP = {
    ("gpu_scheduler.control.loop", "__init__"),
    ("gpu_scheduler.control.nodes.reconcile", "__init__"),
    ("gpu_scheduler.server.background.clock_watch", "resume_clock"),
    ("gpu_scheduler.server.in_process.components", "form"),
    ("tests.faults.disk", "do"),
    ("tests.properties.test_gang_commits", "do"),
}
"""Functions that may read: the server calls them in a thread, or before it serves; a scheduler
inside a program answers only that program; those of tests take the place of the commit thread on
virtual time."""


class ReadOnLoop(AssertionError):
    """The store was read on the thread of an event loop."""


def callers(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """Module and name of the calling functions, the innermost first."""
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame.f_code.co_name
        frame = frame.f_back


def guarded(read: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a read of a store."""

    @wraps(read)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if asyncio._get_running_loop() is not None:
            _check(read.__name__, list(callers(sys._getframe(1))))
        return read(*args, **kwargs)

    return checked


def _check(name: str, found: list[tuple[str, str]]) -> None:
    module, function = next(
        (caller for caller in found if not caller[0].startswith("gpu_scheduler.store")), ("", "")
    )
    if module.startswith(CHECKED) and not NOT_ON_LOOP.intersection(found):
        raise ReadOnLoop(f"{module}.{function} calls store.{name} on the event loop's thread")


@pytest.fixture(autouse=True, scope="session")
def _no_reads_on_loops() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for store in (SqlReader, MemoryStore):
            for name in READS:
                patch.setattr(store, name, guarded(getattr(store, name)))
        yield
