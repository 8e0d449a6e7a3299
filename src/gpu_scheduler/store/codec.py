"""The JSON forms of values that have no columns of their own.

Values of the model come in, text comes out, and the other way round without any loss. Fields that
an old row does not have get their defaults; fields that are not known any more are passed over.
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
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Placement, Rendezvous, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.rows import SUBMITTED, EventRow, JobRow, NewJobs, TaskRow

T = TypeVar("T")

_CACHED = 8192
_encoder = msgspec.json.Encoder()


class Whole(Generic[T]):
    """A value as one JSON text."""

    def __init__(self, kind: Any) -> None:
        """For values of this type, which may be a generic one."""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def encode(self, value: T) -> str:
        """The text of a value."""
        return _encoder.encode(value).decode()

    def decode(self, text: str) -> T:
        """The value of a text."""
        return self._decoder.decode(text)


class Part:
    """Some fields of a dataclass as one JSON object; fields at their defaults are left out."""

    def __init__(self, kind: type, *, columns: frozenset[str], optional: str = "") -> None:
        """All fields of the type but those that have columns; the optional one may be None."""
        form = [
            (name, hint | None, None) if name == optional else (name, hint, *default)
            for name, hint, *default in _form(kind, columns)
        ]
        self.names = tuple(item[0] for item in form)
        self.values = attrgetter(*self.names)
        self._form = msgspec.defstruct(f"{kind.__name__}Part", form, omit_defaults=True)
        decoder = msgspec.json.Decoder(self._form)

        @lru_cache(maxsize=_CACHED)
        def decode(text: str) -> dict[str, Any]:
            return msgspec.structs.asdict(decoder.decode(text))

        self.decode = decode
        """The fields of a text by name, as shared values: they must not be changed."""

    def encode(self, values: tuple[Any, ...]) -> str:
        """The text of these values, in the order of `names`."""
        return _encoder.encode(self._form(*values)).decode()


def _form(kind: type, left_out: frozenset[str] = frozenset()) -> list[Any]:
    """The fields of a dataclass as msgspec wants them: name, type and default."""
    hints = get_type_hints(kind)
    form: list[Any] = []
    for field in fields(kind):
        if field.name in left_out:
            continue
        if field.default is MISSING:
            form.append((field.name, hints[field.name]))
        else:
            form.append((field.name, hints[field.name], field.default))
    return form


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
"""Where a job or task is in its life, as far as one asks for it; the rest goes into `life`."""
SPEC = Part(
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
JOB_LIFE = Part(JobRow, columns=frozenset(LIFE_COLUMNS) | {"job", "reason"})
TASK_LIFE = Part(TaskRow, columns=frozenset(LIFE_COLUMNS) | {"job_id", "task"})
LAUNCH = Part(Launch, columns=frozenset(), optional="argv")

WORDS: Whole[tuple[str, ...]] = Whole(tuple[str, ...])
PLACEMENTS: Whole[tuple[Placement, ...]] = Whole(tuple[Placement, ...])
MEETING: Whole[Rendezvous] = Whole(Rendezvous)
VARIABLES: Whole[tuple[tuple[str, str], ...]] = Whole(tuple[tuple[str, str], ...])
TOTALS: Whole[tuple[int, ...]] = Whole(tuple[int, ...])
MODELS: Whole[tuple[tuple[str, int], ...]] = Whole(tuple[tuple[str, int], ...])
NODE: Whole[Node] = Whole(Node)
PROMISE: Whole[Reservation] = Whole(Reservation)
TENANT: Whole[Tenant] = Whole(Tenant)
WINDOW: Whole[AdvanceReservation] = Whole(AdvanceReservation)
SERVICE: Whole[Service] = Whole(Service)

words = lru_cache(maxsize=_CACHED)(WORDS.decode)
"""Like `WORDS.decode`; equal commands of many jobs are one object."""

event_values = attrgetter(*(field.name for field in fields(EventRow)))
"""An event as the array that is kept."""
_events: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(
    list[msgspec.defstruct("EventForm", _form(EventRow), array_like=True)]  # type: ignore[misc]
)


def encode_events(events: list[tuple[Any, ...]]) -> str:
    """A piece of history, of events as arrays, as one text."""
    return _encoder.encode(events).decode()


def values_of_events(rows: list[EventRow | NewJobs]) -> list[tuple[Any, ...]]:
    """Events as the arrays that are kept; new jobs have one each."""
    values: list[tuple[Any, ...]] = []
    for row in rows:
        if isinstance(row, NewJobs):
            at_ms, user = row.at_ms, row.jobs[0].user
            values += [(at_ms, SUBMITTED, job.id, None, user, ()) for job in row.jobs]
        else:
            values.append(event_values(row))
    return values


def decode_events(text: str) -> list[EventRow]:
    """A piece of history from its text."""
    return [EventRow(**msgspec.structs.asdict(form)) for form in _events.decode(text)]


STATES = {state.value: state for state in JobState}


# --- The rows of how nodes are known: one table for the authority, for join tokens and for keys.

_FORMS: dict[str, Whole[Any]] = {
    "authority": Whole(Authority),
    "join": Whole(JoinToken),
    "key": Whole(NodeKey),
}
_KINDS: dict[type, str] = {Authority: "authority", JoinToken: "join", NodeKey: "key"}


def identity_key(identity: Identity) -> tuple[str, str]:
    """The kind of an identity, and its id in that kind."""
    own = identity.node if isinstance(identity, NodeKey) else identity.id
    return _KINDS[type(identity)], own


def identity_values(identity: Identity) -> tuple[str, str, str]:
    """The columns: kind, id and the whole of it."""
    kind, own = identity_key(identity)
    return kind, own, _FORMS[kind].encode(identity)


def identity_of(row: tuple[Any, ...]) -> Identity:
    """What was kept."""
    found: Identity = _FORMS[row[0]].decode(row[1])
    return found
