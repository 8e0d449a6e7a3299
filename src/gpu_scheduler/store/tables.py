"""The tables by row type: name, key, columns and how a row becomes a tuple of values.

The writers of all databases use it. Jobs, launches and history have code of their own; every other
row is inserted, or replaces the row with the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.identity import Authority, JoinToken, NodeKey, Token
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.codec import (
    ADVANCE_RESERVATION,
    LIFE_COLUMNS,
    MEETING,
    MODELS,
    NODE,
    PLACEMENTS,
    RESERVATION,
    SERVICE,
    TASK_LIFE,
    TENANT,
    TOTALS,
    VARIABLES,
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
    RemovedAdvanceReservation,
    RemovedAllocation,
    RemovedEstimate,
    RemovedNode,
    RemovedNotice,
    RemovedReservation,
    RemovedService,
    RemovedTenant,
    ReservationRow,
    ResponseRow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
    Write,
)


@dataclass(frozen=True, slots=True)
class Table:
    """The table for one row type; without a key, rows are only added."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]

    def latest(self, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Return the values of rows; of several with one key, the last counts."""
        if not self.key:
            return [self.values(row) for row in rows]
        places = [self.columns.index(name) for name in self.key]
        found = {}
        for values in map(self.values, rows):
            found[tuple([values[place] for place in places])] = values
        return list(found.values())


Groups = dict[type, list[Any]]


def group_by_type(writes: list[Write]) -> Groups:
    """Return writes by row type, with their removals; new jobs are also among the events."""
    groups: Groups = {}
    for write in writes:
        kind = type(write)
        if kind is NewJobs:
            groups.setdefault(EventRow, []).append(write)
        group = _GROUP_OF.get(kind)
        if group is None:
            raise InternalError(f"the store has no table for rows of type {kind.__name__}")
        if group in groups:
            groups[group].append(write)
        else:
            groups[group] = [write]
    return groups


def split_removals(kind: type, rows: list[Any]) -> tuple[list[Any], list[str]]:
    """Return the rows that exist after a batch, and the ids of those that were removed."""
    latest = {row.id: row for row in rows}
    existing = [row for row in latest.values() if type(row) is kind]
    return existing, [row.id for row in latest.values() if type(row) is not kind]


TABLES: dict[type, Table] = {
    TaskRow: Table(
        "tasks",
        key=("job_id", "task"),
        columns=("job_id", "task", *LIFE_COLUMNS, "life"),
        values=lambda row: (
            row.job_id,
            row.task,
            row.state.value,
            row.attempt,
            row.preemptions,
            row.failures,
            row.exit_code,
            row.signal,
            row.first_start_ms,
            row.start_ms,
            row.end_ms,
            TASK_LIFE.encode(TASK_LIFE.values(row)),
        ),
    ),
    AttemptRow: Table(
        "attempts",
        key=("allocation_id",),
        columns=(
            "allocation_id",
            "job_id",
            "task",
            "attempt",
            "placements",
            "start_ms",
            "end_ms",
            "state",
            "exit_code",
            "signal",
            "detail",
            "gpu_models",
        ),
        values=lambda row: (
            row.allocation_id,
            row.job_id,
            row.task,
            row.attempt,
            PLACEMENTS.encode(row.placements),
            row.start_ms,
            row.end_ms,
            row.state.value,
            row.exit_code,
            row.signal,
            row.detail,
            MODELS.encode(row.gpu_models),
        ),
    ),
    AttemptMeasure: Table(
        "attempt_measures",
        key=("allocation_id",),
        columns=(
            "allocation_id",
            "job_id",
            "task",
            "attempt",
            "warning",
            "gpu_ms",
            "busy_percent_ms",
            "peak_percent",
            "power_ms",
            "energy_uj",
            "peak_memory_mb",
        ),
        values=lambda row: (
            row.allocation_id,
            row.job_id,
            row.task,
            row.attempt,
            row.warning,
            *astuple(row.measure),
        ),
    ),
    DeviceHour: Table(
        "device_hours",
        key=("hour_ms", "node_id", "device"),
        columns=(
            "hour_ms",
            "node_id",
            "device",
            "read_ms",
            "gpu_ms",
            "busy_percent_ms",
            "peak_percent",
            "memory_mb_ms",
            "peak_memory_mb",
            "power_ms",
            "energy_uj",
            "peak_power_mw",
            "peak_temperature_c",
            "held_milli_ms",
        ),
        values=astuple,
    ),
    EnvironmentRow: Table(
        "environments",
        key=("name",),
        columns=("name", "variables"),
        values=lambda row: (row.name, VARIABLES.encode(row.variables)),
    ),
    UsageRow: Table(
        "usage",
        key=("period_ms", "tenant", "user"),
        columns=("period_ms", "tenant", "user", "totals"),
        values=lambda row: (row.period_ms, row.tenant, row.user, TOTALS.encode(row.totals)),
    ),
    ShareRow: Table(
        "shares",
        key=("tenant", "user"),
        columns=("tenant", "user", "usage", "recent", "rate", "as_of_ms"),
        values=lambda row: (row.tenant, row.user, row.usage, row.recent, row.rate, row.as_of_ms),
    ),
    ResponseRow: Table(
        "answers",
        key=("user", "key"),
        columns=("user", "key", "request_hash", "status", "body", "at_ms"),
        values=lambda row: (row.user, row.key, row.request_hash, row.status, row.body, row.at_ms),
    ),
    NoticeRow: Table(
        "notices",
        key=("id",),
        columns=("id", "target", "at_ms", "document", "next_ms", "tries", "error"),
        values=lambda row: (
            row.id,
            row.target,
            row.at_ms,
            row.document,
            row.next_ms,
            row.tries,
            row.error,
        ),
    ),
    CursorRow: Table(
        "cursors",
        key=("name",),
        columns=("name", "sequence", "note"),
        values=lambda row: (row.name, row.sequence, row.note),
    ),
    Allocation: Table(
        "allocations",
        key=("id",),
        columns=("id", "job_id", "task", "attempt", "start_ms", "placements", "meeting"),
        values=lambda row: (
            row.id,
            row.job_id,
            row.task,
            row.attempt,
            row.start_ms,
            PLACEMENTS.encode(row.placements),
            "" if row.rendezvous is None else MEETING.encode(row.rendezvous),
        ),
    ),
    ReservationRow: Table(
        "promises",
        key=("job_id",),
        columns=("job_id", "number", "at_ms", "promise"),
        values=lambda row: (
            row.id,
            row.reservation.job_number,
            row.reservation.at_ms,
            RESERVATION.encode(row.reservation),
        ),
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
            NODE.encode(row),
        ),
    ),
    Tenant: Table(
        "tenants",
        key=("id",),
        columns=("id", "tenant"),
        values=lambda row: (row.id, TENANT.encode(row)),
    ),
    **dict.fromkeys(
        (Authority, JoinToken, NodeKey),
        Table(
            "identities",
            key=("kind", "id"),
            columns=("kind", "id", "identity"),
            values=identity_values,
        ),
    ),
    Token: Table(
        "tokens",
        key=("id",),
        columns=(
            "id",
            "secret_hash",
            "name",
            "user",
            "uid",
            "tenant",
            "role",
            "created_by",
            "created_ms",
            "expires_ms",
            "last_used_ms",
            "revoked_ms",
        ),
        values=lambda row: (
            row.id,
            row.secret_hash,
            row.name,
            row.user,
            row.uid,
            row.tenant,
            row.role.value,
            row.created_by,
            row.created_ms,
            row.expires_ms,
            row.last_used_ms,
            row.revoked_ms,
        ),
    ),
    AuditRow: Table(
        "audit",
        key=(),
        columns=(
            "at_ms",
            "user",
            "origin",
            "via",
            "action",
            "target",
            "outcome",
            "code",
            "detail",
            "count",
        ),
        values=tuple,
    ),
    WeekUsageRow: Table(
        "week_usage",
        key=("tenant", "user"),
        columns=("tenant", "user", "week_ms", "gpu_milli_ms"),
        values=lambda row: (row.tenant, row.user, row.week_ms, row.gpu_milli_ms),
    ),
    EstimateRow: Table(
        "estimates",
        key=("job_id",),
        columns=("job_id", "tenant", "user", "made_ms", "promised_ms", "basis", "start_ms"),
        values=lambda row: (
            row.job_id,
            row.tenant,
            row.user,
            row.made_ms,
            row.promised_ms,
            row.basis,
            row.start_ms,
        ),
    ),
    Service: Table(
        "services",
        key=("id",),
        columns=("id", "number", "service"),
        values=lambda row: (row.id, row.number, SERVICE.encode(row)),
    ),
    AdvanceReservation: Table(
        "reservations",
        key=("id",),
        columns=("id", "number", "reservation"),
        values=lambda row: (row.id, row.number, ADVANCE_RESERVATION.encode(row)),
    ),
    PoolQuota: Table(
        "pools",
        key=("pool",),
        columns=("pool", "percent", "elastic"),
        values=lambda row: (row.pool.value, row.percent, int(row.elastic)),
    ),
}

REMOVALS: dict[type, type] = {
    RemovedAllocation: Allocation,
    RemovedNotice: NoticeRow,
    RemovedReservation: ReservationRow,
    RemovedNode: Node,
    RemovedTenant: Tenant,
    RemovedAdvanceReservation: AdvanceReservation,
    RemovedService: Service,
    RemovedEstimate: EstimateRow,
}
"""Removals and the row type they remove; both are one group, because their order matters."""
REMOVABLE = frozenset(REMOVALS.values())
_GROUP_OF: dict[type, type] = {
    kind: kind for kind in (JobRow, LaunchRow, NewJobs, EventRow, *TABLES)
} | REMOVALS
