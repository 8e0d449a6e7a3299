"""JSON codecs for values that have no columns of their own.

Values of the model are encoded to text and decoded without any loss. Fields that an old row lacks
get their defaults; unknown fields are ignored.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from gpu_scheduler.model.identity import Authority, Identity, JoinToken, NodeKey
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.store.rows import SUBMITTED, EventRow, JobRow, NewJobs, TaskRow

T = TypeVar("T")

_CACHED = 8192
MAX_CHUNK_EVENTS = 1000
"""How many events one row of `history` holds; a chunk is read as a whole."""
_encoder = msgspec.json.Encoder()


class JsonCodec(Generic[T]):
    """Encodes a whole value as one JSON text."""

    def __init__(self, kind: Any) -> None:
        """Make a codec for values of this type, which may be generic."""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def encode(self, value: T) -> str:
        """Return the text of a value."""
        return _encoder.encode(value).decode()

    def decode(self, text: str) -> T:
        """Return the value of a text."""
        return self._decoder.decode(text)


class FieldsCodec:
    """Encodes some fields of a dataclass as one JSON object, without those at their defaults."""

    def __init__(self, kind: type, *, columns: frozenset[str], optional: str = "") -> None:
        """Take all fields of the type that have no column; the `optional` one may be None."""
        members = [
            (name, hint | None, None) if name == optional else (name, hint, *default)
            for name, hint, *default in _struct_fields(kind, columns)
        ]
        self.names = tuple(item[0] for item in members)
        self.values = attrgetter(*self.names)
        self._struct = msgspec.defstruct(f"{kind.__name__}Fields", members, omit_defaults=True)
        self._decoder = msgspec.json.Decoder(self._struct)

    def decode(self, text: str) -> dict[str, Any]:
        """Return the fields of a text by name."""
        return msgspec.structs.asdict(self._decoder.decode(text))

    def encode(self, values: tuple[Any, ...]) -> str:
        """Return the text of these values, in the order of `names`."""
        return _encoder.encode(self._struct(*values)).decode()


def _struct_fields(kind: type, excluded: frozenset[str] = frozenset()) -> list[Any]:
    """Return the fields of a dataclass for `msgspec.defstruct`: name, type and default."""
    hints = get_type_hints(kind)
    found: list[Any] = []
    for field in fields(kind):
        if field.name in excluded:
            continue
        if field.default is MISSING:
            found.append((field.name, hints[field.name]))
        else:
            found.append((field.name, hints[field.name], field.default))
    return found


LIFE_COLUMNS = (
    "state",
    "attempt",
    "preemptions",
    "failures",
    "exit_code",
    "signal",
    "first_start_ms",
    "start_ms",
    "end_ms",
)
"""The progress of a job or task that has columns; the rest is JSON in the column `life`."""
SPEC = FieldsCodec(
    Job,
    columns=frozenset(
        {
            "id",
            "number",
            "submit_ms",
            "tenant",
            "user",
            "name",
            "command",
            "priority",
        }
    ),
)
JOB_LIFE = FieldsCodec(JobRow, columns=frozenset(LIFE_COLUMNS) | {"job", "reason"})
TASK_LIFE = FieldsCodec(TaskRow, columns=frozenset(LIFE_COLUMNS) | {"job_id", "task"})
LAUNCH = FieldsCodec(Launch, columns=frozenset(), optional="argv")

STRINGS: JsonCodec[tuple[str, ...]] = JsonCodec(tuple[str, ...])

decode_command = lru_cache(maxsize=_CACHED)(STRINGS.decode)
"""Decodes a command; equal commands of many jobs are one object."""

event_values = attrgetter(*(field.name for field in fields(EventRow)))
"""Returns the fields of an event as a tuple, the form in which `history` stores it."""
_events: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(
    list[msgspec.defstruct("StoredEvent", _struct_fields(EventRow), array_like=True)]  # type: ignore[misc]
)


def history_chunks(
    rows: list[EventRow | NewJobs], last_event: int
) -> list[tuple[int, int, int, str]]:
    """Return the rows of the table `history` for new events; a new job has one event.

    Each row holds the events of one chunk: first and last sequence number, newest time, JSON.
    """
    values: list[tuple[Any, ...]] = []
    for row in rows:
        if isinstance(row, NewJobs):
            at_ms, user = row.at_ms, row.jobs[0].user
            values += [(at_ms, SUBMITTED, job.id, None, user, ()) for job in row.jobs]
        else:
            values.append(event_values(row))
    chunks = []
    for start in range(0, len(values), MAX_CHUNK_EVENTS):
        chunk = values[start : start + MAX_CHUNK_EVENTS]
        newest_ms = max(event[0] for event in chunk)
        text = _encoder.encode(chunk).decode()
        chunks.append((last_event + 1, last_event + len(chunk), newest_ms, text))
        last_event += len(chunk)
    return chunks


def expired_history(
    chunks: list[tuple[int, int, int]], before_ms: int, limit: int
) -> tuple[int, int]:
    """Return up to which sequence number history can be deleted, and how many events that are.

    `chunks` are the first ones: first and last sequence number and newest time. A chunk is deleted
    as a whole, when its newest event is old.
    """
    last = count = 0
    for first_sequence, last_sequence, newest_ms in chunks:
        size = last_sequence - first_sequence + 1
        if newest_ms >= before_ms or (count and count + size > limit):
            break
        last, count = last_sequence, count + size
    return last, count


def decode_events(text: str) -> list[EventRow]:
    """Return the events of one chunk of history."""
    return [EventRow(**msgspec.structs.asdict(form)) for form in _events.decode(text)]


STATES = {state.value: state for state in JobState}

# The table `identities`: the certificate authority, join tokens and keys of nodes.

_IDENTITY_KINDS: dict[type, str] = {Authority: "authority", JoinToken: "join", NodeKey: "key"}
_IDENTITY_CODECS = {name: JsonCodec[Identity](kind) for kind, name in _IDENTITY_KINDS.items()}


def identity_key(identity: Identity) -> tuple[str, str]:
    """Return the kind of an identity, and its id within that kind."""
    own = identity.node if isinstance(identity, NodeKey) else identity.id
    return _IDENTITY_KINDS[type(identity)], own


def identity_values(identity: Identity) -> tuple[str, str, str]:
    """Return the columns of an identity: kind, id, JSON."""
    kind, own = identity_key(identity)
    return kind, own, _IDENTITY_CODECS[kind].encode(identity)


def decode_identity(row: tuple[Any, ...]) -> Identity:
    """Return the identity of a row: kind, JSON."""
    return _IDENTITY_CODECS[row[0]].decode(row[1])
