"""Event kinds with the fields that each carries, compared wherever a test makes events happen.

The labs of the scenario tests hand all writes to `check_events`. An event of an unknown kind, with
an unknown field or without a promised field fails the test. With UPDATE_SNAPSHOTS=1 it is added to
the record instead. The record only grows: to drop a kind or a field, edit the file.
"""

import json
import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from gpu_scheduler.store.rows import EventRow, Write
from tests.interface.stored import FOLDER
from tests.snapshots import UPDATE_VARIABLE, as_json

PATH = FOLDER / "events.json"
COMMAND = f"{UPDATE_VARIABLE}=1 pytest tests/interface tests/scenarios"
ANY_FIELD = frozenset({"updated"})
"""Kinds whose data are the fields of a job that were changed."""


@cache
def recorded() -> dict[str, Any]:
    return dict(json.loads(PATH.read_text())) if PATH.exists() else {}


def check_events(writes: Iterable[Write]) -> None:
    """Compare every event among these writes with the record of its kind."""
    for write in writes:
        if isinstance(write, EventRow):
            _check(write)


def _check(event: EventRow) -> None:
    fields = {f"data.{name}" for name, _ in event.data}
    for name in ("job_id", "task", "user"):
        if getattr(event, name) not in (None, ""):
            fields.add(name)
    if event.kind in ANY_FIELD:
        fields = {name for name in fields if not name.startswith("data.")}
    known = recorded().get(event.kind)
    if known is not None and set(known["always"]) <= fields <= _all(known):
        return
    if os.environ.get(UPDATE_VARIABLE):
        _add(event.kind, fields)
        return
    pytest.fail(
        f"an event '{event.kind}' with {sorted(fields)} is not as {PATH.name} says: {known}. "
        f"If that is intended, run\n    {COMMAND}\nand commit the new file."
    )


def _all(known: dict[str, list[str]]) -> set[str]:
    return {*known["always"], *known["sometimes"]}


def _add(kind: str, fields: set[str]) -> None:
    found = recorded()
    known = found.get(kind, {"always": sorted(fields), "sometimes": []})
    always = set(known["always"]) & fields
    found[kind] = {
        "always": sorted(always),
        "sometimes": sorted((_all(known) | fields) - always),
    }
    PATH.write_text(as_json(found))
