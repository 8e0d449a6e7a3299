"""The tables by row type: name, key, columns, and how a row becomes a tuple of values and back.

The writers and the reader of all databases use it. Jobs, launches and history have code of their
own; every other row is inserted, or replaces the row with the same key. The queries in `read.sql`
name the columns of a table in the same order as the table here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields
from enum import Enum
from operator import attrgetter
from typing import Any, get_origin, get_type_hints

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.identity import Authority, JoinToken, NodeKey, Token
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Rendezvous, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.codec import (
    LIFE_COLUMNS,
    STATES,
    TASK_LIFE,
    JsonCodec,
    decode_identity,
    identity_values,
)
from gpu_scheduler.store.rows import (
    AttemptRow,
    AuditRow,
    CursorRow,
    EnvironmentRow,
    EstimateRow,
    EventRow,
    JobRow,
    LaunchRow,
    NewJobs,
    NoticeRow,
    Removed,
    ReservationRow,
    ResponseRow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
    Write,
)

Columns = tuple[Any, ...]
"""The values of one row of a table."""


@dataclass(frozen=True, slots=True)
class Table:
    """The table for one row type; without a key, rows are only added."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    values: Callable[[Any], Columns]
    decode: Callable[[Columns], Any]

    def latest(self, rows: Iterable[Any]) -> list[Columns]:
        """Return the values of rows; of several with one key, the last counts."""
        if not self.key:
            return [self.values(row) for row in rows]
        places = [self.columns.index(name) for name in self.key]
        found = {}
        for values in map(self.values, rows):
            found[tuple([values[place] for place in places])] = values
        return list(found.values())


def _fields_table(kind: type, name: str, key: tuple[str, ...], **renamed: str) -> Table:
    """Return a table with a column for each field, which has the field's name unless `renamed`.

    Enums and flags are stored by value, tuples and nested dataclasses as JSON; an empty text is
    stored for a missing dataclass.
    """
    hints = get_type_hints(kind)
    names = tuple(field.name for field in fields(kind))
    codecs = [
        (place, *codec)
        for place, field_name in enumerate(names)
        if (codec := _codec(hints[field_name])) is not None
    ]
    plain_values: Callable[[Any], Columns] = attrgetter(*names)

    def encoded_values(row: Any) -> Columns:
        values = list(plain_values(row))
        for place, encode, _ in codecs:
            values[place] = encode(values[place])
        return tuple(values)

    def decode(row: Columns) -> Any:
        values = dict(zip(names, row, strict=True))
        for place, _, decode_value in codecs:
            values[names[place]] = decode_value(row[place])
        return kind(**values)

    return Table(
        name,
        key=key,
        columns=tuple(renamed.get(field_name, field_name) for field_name in names),
        values=encoded_values if codecs else plain_values,
        decode=decode,
    )


def _codec(hint: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | None:
    """Return how values of a type are stored and read; None if they are stored as they are."""
    if hint is bool:
        return int, bool
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value"), hint
    if get_origin(hint) is tuple:
        json = JsonCodec[Any](hint)
        return json.encode, json.decode
    if hint == Rendezvous | None:
        json = JsonCodec[Any](Rendezvous)
        return (
            lambda value: "" if value is None else json.encode(value),
            lambda text: json.decode(text) if text else None,
        )
    return None


def _document_table(kind: type, name: str, document: str, *indexed: str) -> Table:
    """Return a table that stores a whole value as JSON in the column `document`.

    The columns before it repeat attributes for indexes; the first one is the key. Only the document
    is read.
    """
    codec = JsonCodec[Any](kind)
    return Table(
        name,
        key=indexed[:1],
        columns=(*indexed, document),
        values=lambda row: (*(getattr(row, column) for column in indexed), codec.encode(row)),
        decode=lambda row: codec.decode(row[0]),
    )


_task_values = attrgetter("job_id", "task", "state.value", *LIFE_COLUMNS[1:])
_measure_columns = tuple(field.name for field in fields(Measure))
_node: JsonCodec[Node] = JsonCodec(Node)
_reservation: JsonCodec[Reservation] = JsonCodec(Reservation)


def _decode_task(row: Columns) -> TaskRow:
    values = dict(zip(LIFE_COLUMNS, row[2:-1], strict=True))
    values["state"] = STATES[row[2]]
    return TaskRow(job_id=row[0], task=row[1], **values, **TASK_LIFE.decode(row[-1]))


def decode_measure(values: Columns) -> Measure:
    """Return the measurements in these columns."""
    return Measure(**dict(zip(_measure_columns, values, strict=True)))


def _decode_attempt_measure(row: Columns) -> AttemptMeasure:
    allocation_id, job_id, task, attempt, warning, *measure = row
    return AttemptMeasure(
        allocation_id=allocation_id,
        job_id=job_id,
        task=task,
        attempt=attempt,
        warning=warning,
        measure=decode_measure(tuple(measure)),
    )


TABLES: dict[type, Table] = {
    TaskRow: Table(
        "tasks",
        key=("job_id", "task"),
        columns=("job_id", "task", *LIFE_COLUMNS, "life"),
        values=lambda row: (*_task_values(row), TASK_LIFE.encode(TASK_LIFE.values(row))),
        decode=_decode_task,
    ),
    AttemptRow: _fields_table(AttemptRow, "attempts", ("allocation_id",)),
    AttemptMeasure: Table(
        "attempt_measures",
        key=("allocation_id",),
        columns=("allocation_id", "job_id", "task", "attempt", "warning", *_measure_columns),
        values=lambda row: (
            row.allocation_id,
            row.job_id,
            row.task,
            row.attempt,
            row.warning,
            *astuple(row.measure),
        ),
        decode=_decode_attempt_measure,
    ),
    DeviceHour: _fields_table(
        DeviceHour, "device_hours", ("hour_ms", "node_id", "device"), index="device"
    ),
    EnvironmentRow: _fields_table(EnvironmentRow, "environments", ("name",)),
    UsageRow: _fields_table(UsageRow, "usage", ("period_ms", "tenant", "user")),
    ShareRow: _fields_table(ShareRow, "shares", ("tenant", "user")),
    WeekUsageRow: _fields_table(WeekUsageRow, "week_usage", ("tenant", "user")),
    ResponseRow: _fields_table(ResponseRow, "answers", ("user", "key")),
    NoticeRow: _fields_table(NoticeRow, "notices", ("id",)),
    CursorRow: _fields_table(CursorRow, "cursors", ("name",)),
    EstimateRow: _fields_table(EstimateRow, "estimates", ("job_id",)),
    Token: _fields_table(Token, "tokens", ("id",)),
    PoolQuota: _fields_table(PoolQuota, "pools", ("pool",)),
    Allocation: _fields_table(Allocation, "allocations", ("id",), rendezvous="meeting"),
    AuditRow: Table(
        "audit",
        key=(),
        columns=tuple("count" if name == "times" else name for name in AuditRow._fields),
        values=tuple,
        decode=lambda row: (row[0], AuditRow(*row[1:])),
    ),
    ReservationRow: Table(
        "promises",
        key=("job_id",),
        columns=("job_id", "number", "at_ms", "promise"),
        values=lambda row: (
            row.id,
            row.reservation.job_number,
            row.reservation.at_ms,
            _reservation.encode(row.reservation),
        ),
        decode=lambda row: _reservation.decode(row[0]),
    ),
    Node: Table(
        "nodes",
        key=("id",),
        columns=("id", "ordinal", "state", "cpu_milli", "memory_mb", "node"),
        values=lambda row: (
            row.id,
            row.ordinal,
            row.state.value,
            row.cpu_milli,
            row.memory_mb,
            _node.encode(row),
        ),
        decode=lambda row: _node.decode(row[0]),
    ),
    Tenant: _document_table(Tenant, "tenants", "tenant", "id"),
    Service: _document_table(Service, "services", "service", "id", "number"),
    AdvanceReservation: _document_table(
        AdvanceReservation, "reservations", "reservation", "id", "number"
    ),
    **dict.fromkeys(
        (Authority, JoinToken, NodeKey),
        Table(
            "identities",
            key=("kind", "id"),
            columns=("kind", "id", "identity"),
            values=identity_values,
            decode=decode_identity,
        ),
    ),
}

REMOVABLE = frozenset(
    {
        *(Allocation, NoticeRow, ReservationRow, EstimateRow),
        *(Node, Tenant, Service, AdvanceReservation),
    }
)
"""Row types whose rows can be removed; all of them have an `id`."""
_WRITTEN = frozenset({JobRow, LaunchRow, NewJobs, EventRow, *TABLES})


Groups = dict[type, list[Any]]


def group_by_type(writes: list[Write]) -> Groups:
    """Return writes by row type, with their removals; new jobs are also among the events."""
    groups: Groups = {}
    for write in writes:
        kind: type = type(write)
        if kind is NewJobs:
            groups.setdefault(EventRow, []).append(write)
        elif isinstance(write, Removed) and write.kind in REMOVABLE:
            kind = write.kind  # in one group, because the order of rows and removals matters
        if kind not in _WRITTEN:
            raise InternalError(f"the store has no table for rows of type {kind.__name__}")
        if kind in groups:
            groups[kind].append(write)
        else:
            groups[kind] = [write]
    return groups


def split_removals(kind: type, rows: list[Any]) -> tuple[list[Any], list[str]]:
    """Return the rows that exist after a batch, and the ids of those that were removed."""
    latest = {row.id: row for row in rows}
    existing = [row for row in latest.values() if type(row) is kind]
    return existing, [row.id for row in latest.values() if type(row) is not kind]
