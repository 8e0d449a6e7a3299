"""From events to notifications: events in; targets and texts of notifications out.

Events come in, rows for the outbox go out. Deterministic: the same events and settings give the
same rows with the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.notification import Notice, NotifyRule
from gpu_scheduler.model.plan import Placement
from gpu_scheduler.notify.retry_queue import DeliveryFailed
from gpu_scheduler.notify.webhook import checked_url
from gpu_scheduler.settings.groups.operations import NotificationSettings
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import AttemptRow, EventRow, JobRow, NoticeRow
from gpu_scheduler.wire.times import write_time

NOTICES: dict[str, tuple[Notice, ...]] = {
    "running": (Notice.START,),
    JobState.COMPLETED.value: (Notice.END,),
    JobState.CANCELLED.value: (Notice.END,),
    JobState.FAILED.value: (Notice.FAIL, Notice.END),
    JobState.PREEMPTED.value: (Notice.PREEMPTED,),
    "gpu_idle_warning": (Notice.IDLE,),
    "gpu_memory_warning": (Notice.MEMORY,),
    "service_not_ready": (Notice.NOT_READY,),
    "service_restart": (Notice.RESTART,),
}
"""The notifications for an event of a job; a target that wants several gets the first."""
WARNINGS = frozenset({"gpu_idle_warning", "gpu_memory_warning"})
ARRAY_PAUSE_MS = 24 * 3_600_000
"""Shortest time between two unrequested warnings about tasks of the same array."""
MAX_ARRAYS = 10_000
_LONGEST_NAME = 80
_TROUBLE = {
    "gpu_unhealthy": "GPU {gpu} of {node} is unhealthy and gets no new work",
    "gpu_quarantined": "GPU {gpu} of {node} was quarantined: several jobs failed on it at once",
    "gpu_leak": "GPU {gpu} of {node} is still in use although its job has ended",
    "node_silent": "node {node} sends no heartbeats",
    "node_set_aside": "node {node} was cordoned and gets no new work: {reason}",
}
_WARNING_FIELDS = ("minutes", "used_mb", "given_mb", "service", "replica", "restarts")
TROUBLE = frozenset(_TROUBLE)
"""Events about problems of nodes and GPUs."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """GPU-hours that a tenant, or one of its users, has used of a budget."""

    tenant: str
    user: str
    used_hours: float
    limit_hours: float

    @property
    def percent(self) -> float:
        """The used percentage; 100 if the budget is 0."""
        return 100 * self.used_hours / self.limit_hours if self.limit_hours else 100.0


class EventRules:
    """Turns events into notifications for the targets that want them."""

    def __init__(self, settings: NotificationSettings, store: Store) -> None:
        """The store is only read; `rows` runs in a thread of its own."""
        self._settings = settings
        self._store = store
        self._jobs_may_ask = settings.allow_job_webhooks or any(
            target.for_jobs for target in settings.targets.values()
        )
        self._subscribed_events = {
            kind for target in settings.targets.values() for kind in target.events
        }
        self._held: dict[tuple[str, int | None], tuple[Placement, ...]] | None = None
        self._warned_arrays: dict[tuple[str, Notice], tuple[int, int]] = {}

    def rows(self, events: Iterable[tuple[int, EventRow]], oldest_ms: int) -> list[NoticeRow]:
        """The notifications for these events, except for events before `oldest_ms`."""
        self._held = None
        return [
            row
            for sequence, event in events
            if event.at_ms >= oldest_ms
            for row in self._of_event(sequence, event)
        ]

    def to_all(
        self, notice: Notice, document: dict[str, Any], at_ms: int, key: str
    ) -> Iterator[NoticeRow]:
        """A row for each target that subscribes to this notification."""
        tenant = str(document.get("tenant") or "")
        for name in self._subscribers((notice,), tenant):
            rule = self._settings.targets[name].to
            needs_user = "{user}" in rule and not document.get("user")
            needs_tenant = "{tenant}" in rule and not tenant
            if not (needs_user or needs_tenant):
                yield row_of(key, name, document, at_ms)

    def _of_event(self, sequence: int, event: EventRow) -> Iterator[NoticeRow]:
        if event.kind in TROUBLE and not event.job_id:
            document = trouble_document(event)
            yield from self.to_all(Notice.TROUBLE, document, event.at_ms, f"event-{sequence}")
            return
        notices = NOTICES.get(event.kind)
        if notices is None or not event.job_id:
            return
        # The end of an array is notified, not that of each task; warnings always are.
        if event.task is not None and event.kind not in WARNINGS:
            return
        if not self._jobs_may_ask and not self._subscribed_events.intersection(notices):
            return
        row = self._store.job(event.job_id)
        wanted = self._wanted(notices, row.job, sequence, event) if row is not None else {}
        if row is None or not wanted:
            return
        attempts = self._store.attempts(event.job_id, event.task) if row.job.array is None else []
        attempt = attempts[-1] if attempts and row.start_ms is not None else None
        placements = self._placements(event, attempt)
        for target, notice in wanted.items():
            document = job_document(notice, event, row, attempt, placements)
            yield row_of(f"event-{sequence}", target, document, event.at_ms)

    def _wanted(
        self, notices: Sequence[Notice], job: Job, sequence: int, event: EventRow
    ) -> dict[str, Notice]:
        """The targets of an event, each with its kind of notification."""
        wanted = dict(self._subscribers(notices, job.tenant))
        default = default_target(self._settings, job.tenant)
        for notice in notices:
            targets = [rule.target or default for rule in job.notify if notice in rule.notices]
            if self._warns_owner(notice, job, sequence, event):
                targets.append(default)
            for target in targets:
                if target:
                    wanted.setdefault(target, notice)
        return wanted

    def _warns_owner(self, notice: Notice, job: Job, sequence: int, event: EventRow) -> bool:
        """Whether the owner gets this without having asked for it (`owner_events`)."""
        job_decides = any(not rule.notices or notice in rule.notices for rule in job.notify)
        if notice.value not in self._settings.owner_events or job_decides:
            return False
        if event.task is None:
            return True
        last = self._warned_arrays.get((job.id, notice))
        if last is not None and event.at_ms - last[1] < ARRAY_PAUSE_MS:
            # The same event comes again if its rows could not be committed.
            return last[0] == sequence
        if len(self._warned_arrays) >= MAX_ARRAYS:
            del self._warned_arrays[next(iter(self._warned_arrays))]
        self._warned_arrays[job.id, notice] = (sequence, event.at_ms)
        return True

    def _subscribers(self, notices: Sequence[Notice], tenant: str) -> dict[str, Notice]:
        found = {}
        for name, target in self._settings.targets.items():
            if target.tenants and tenant not in target.tenants:
                continue
            wanted = next((notice for notice in notices if notice.value in target.events), None)
            if wanted is not None:
                found[name] = wanted
        return found

    def _placements(self, event: EventRow, attempt: AttemptRow | None) -> tuple[Placement, ...]:
        """The placements that it holds or held. Current allocations are read once per batch."""
        if self._held is None:
            self._held = {(a.job_id, a.task): a.placements for a in self._store.allocations()}
        held = self._held.get((event.job_id, event.task))
        if held is not None:
            return held
        return () if attempt is None else attempt.placements


def row_of(key: str, target: str, document: dict[str, Any], at_ms: int) -> NoticeRow:
    """A notification for one target. Its id comes from the event, so there is only one."""
    # A URL is a secret, and too long for an id.
    is_url = target.startswith("https://")
    name = hashlib.sha256(target.encode()).hexdigest()[:12] if is_url else target
    notice_id = f"{key}-{name}"
    text = json.dumps({"id": notice_id, **document}, ensure_ascii=False)
    return NoticeRow(id=notice_id, target=target, at_ms=at_ms, document=text, next_ms=at_ms)


def default_target(settings: NotificationSettings, tenant: str) -> str:
    """The target of a rule without a target, for jobs of this tenant; empty if there is none."""
    open_targets = targets_for(settings, tenant)
    if settings.default_target in open_targets:
        return settings.default_target
    own = [name for name in open_targets if settings.targets[name].tenants]
    return next((names[0] for names in (own, open_targets) if len(names) == 1), "")


def targets_for(settings: NotificationSettings, tenant: str) -> list[str]:
    """The targets that jobs of this tenant may use."""
    return [
        name
        for name, target in settings.targets.items()
        if target.for_jobs and (not target.tenants or tenant in target.tenants)
    ]


def target_warnings(settings: NotificationSettings) -> list[str]:
    """Warnings for admins about jobs whose notifications would reach no target."""
    warnings: list[str] = []
    default = settings.default_target
    target = settings.targets.get(default)
    prefix = f"notifications.default_target is '{default}', "
    if default and target is None:
        known = ", ".join(settings.targets) or "none"
        warnings.append(
            f"{prefix}but there is no such target (there are: {known}); correct the name"
        )
    elif target is not None and not target.for_jobs:
        warnings.append(f"{prefix}which is not for jobs; set its for_jobs, or name another one")
    # One warning for all tenants with the same several targets and no default among them.
    named = {
        tenant
        for target in settings.targets.values()
        if target.for_jobs
        for tenant in target.tenants
    }
    alike: dict[tuple[str, ...], list[str]] = {}
    for tenant in (*sorted(named), ""):
        names = tuple(targets_for(settings, tenant))
        if len(names) > 1 and not default_target(settings, tenant):
            alike.setdefault(names, []).append(tenant)
    effect = "'--notify end' is rejected without a target"
    if settings.owner_events:
        effect += f", and owners are not notified of {', '.join(settings.owner_events)}"
    for names, tenants in alike.items():
        others = "all other tenants" if named else "all tenants"
        whose = ", ".join(f"tenant '{tenant}'" if tenant else others for tenant in tenants)
        listed = ", ".join(names)
        warnings.append(
            f"jobs of {whose} have several targets ({listed}) and no default one: {effect}; "
            "name one of them in notifications.default_target"
        )
    return warnings


def why_not(rule: NotifyRule, job: Job, settings: NotificationSettings) -> str:
    """Why a job may not use this rule; empty if it may."""
    if not rule.notices:
        return ""
    open_targets = targets_for(settings, job.tenant)
    known = f"can be named here: {', '.join(open_targets)}" if open_targets else "none is set up"
    if rule.target.startswith(("http://", "https://")):
        if not settings.allow_job_webhooks:
            return "URLs of jobs are not allowed here (notifications.allow_job_webhooks)"
        try:
            checked_url(rule.target, public_only=True)
        except DeliveryFailed as error:
            return str(error)
        return ""
    target = rule.target or default_target(settings, job.tenant)
    if not target:
        advice = "" if open_targets else "; docs/howto/notifications.md shows one of your own"
        return f"it names no target, and there is no default one ({known}{advice})"
    if target not in open_targets:
        return f"there is no target '{target[:60]}' for jobs of tenant '{job.tenant}' ({known})"
    return ""


def job_document(
    notice: Notice,
    event: EventRow,
    row: JobRow,
    attempt: AttemptRow | None,
    placements: Sequence[Placement],
) -> dict[str, Any]:
    """The notification about a job, as a JSON document."""
    job = row.job
    run_ms = attempt.end_ms - attempt.start_ms if attempt is not None else None
    is_end = notice in (Notice.END, Notice.FAIL)
    text = _job_text(notice, event, row, run_ms if is_end else None, placements)
    return {
        "text": text,
        "event": notice.value,
        "at": write_time(event.at_ms),
        "job_id": job.id,
        "job_name": job.name,
        "user": job.user,
        "tenant": job.tenant,
        "state": event.kind,
        "reason": row.reason if is_end else "",
        "exit_code": row.exit_code if is_end else None,
        "signal": row.signal if is_end else None,
        "attempt": row.attempt,
        "wait_seconds": row.waited_ms / 1000,
        "run_seconds": None if run_ms is None or not is_end else run_ms / 1000,
        "gpu_count": job.gpu_milli / 1000,
        "nodes": sorted({placement.node_id for placement in placements}),
        "gpus": sorted({share.index for place in placements for share in place.devices}),
    } | {name: value for name, value in event.data if name in _WARNING_FIELDS}


def _job_text(
    notice: Notice,
    event: EventRow,
    row: JobRow,
    run_ms: int | None,
    placements: Sequence[Placement],
) -> str:
    """One sentence about a job."""
    job = row.job
    name = "".join(char if char.isprintable() else " " for char in job.name)[:_LONGEST_NAME]
    subject = f"{job.id}{f' ({name})' if name else ''} of {job.user}"
    if notice is Notice.START:
        return f"{subject} started{_place(placements)} after {spell(row.waited_ms)} in the queue"
    if notice is Notice.PREEMPTED:
        return f"{subject} was preempted by another job and waits again"
    if notice in (Notice.NOT_READY, Notice.RESTART):
        return _replica_text(notice, event, job.user)
    if notice in (Notice.IDLE, Notice.MEMORY):
        return f"{subject}: {dict(event.data).get('text') or event.kind}"
    after = "" if run_ms is None else f" after {spell(run_ms)}"
    if event.kind == JobState.FAILED.value:
        how = f" with exit code {row.exit_code}" if row.exit_code else ""
        how = f" by signal {row.signal}" if row.signal else how
        why = f": {row.reason}" if row.reason else ""
        return f"{subject} failed{how}{after}{why}"
    return (
        f"{subject} was cancelled{after}"
        if event.kind == "cancelled"
        else f"{subject} completed{after}"
    )


def _replica_text(notice: Notice, event: EventRow, user: str) -> str:
    """One sentence about a replica of a service."""
    data = dict(event.data)
    subject = f"replica {data.get('replica', '?')} of service {data.get('name', '?')} of {user}"
    why = f": {data['detail']}" if data.get("detail") else ""
    if notice is Notice.RESTART:
        return (
            f"{subject} has ended and is started again (restart {data.get('restarts', '?')}){why}"
        )
    return f"{subject} is not ready{why}"


def trouble_document(event: EventRow) -> dict[str, Any]:
    """The notification about a GPU or node with a problem."""
    data = {name: str(value) for name, value in event.data}
    facts = {name: data.get(name, "?") for name in ("gpu", "node", "reason")}
    return {
        "text": _TROUBLE[event.kind].format(**facts),
        "event": Notice.TROUBLE.value,
        "at": write_time(event.at_ms),
        "kind": event.kind,
    } | data


def free_gpus_document(free: int, at_ms: int) -> dict[str, Any]:
    """The notification about GPUs that became free."""
    text = "1 GPU is free" if free == 1 else f"{free} GPUs are free"
    return {
        "text": text,
        "event": Notice.GPU_FREE.value,
        "at": write_time(at_ms),
        "free_gpus": free,
    }


def budget_document(use: BudgetUse, at_ms: int) -> dict[str, Any]:
    """The notification about a budget that is nearly or fully used."""
    owner = f"user {use.user} of tenant {use.tenant}" if use.user else f"tenant {use.tenant}"
    return {
        "text": f"{owner} has used {int(use.percent)} % of {use.limit_hours:g} GPU-hours",
        "event": Notice.BUDGET.value,
        "at": write_time(at_ms),
        "tenant": use.tenant,
        "user": use.user,
        "used_gpu_hours": round(use.used_hours, 3),
        "limit_gpu_hours": use.limit_hours,
        "percent": int(use.percent),
    }


def spell(milliseconds: int) -> str:
    """A duration with at most two units: 3 h 20 min."""
    seconds = max(0, milliseconds) // 1000
    for size, unit, below, small in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            rest = seconds % size // below
            return f"{seconds // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{seconds} s"


def _place(placements: Sequence[Placement]) -> str:
    places = [
        f"{placement.node_id} GPU {','.join(str(share.index) for share in placement.devices)}"
        if placement.devices
        else placement.node_id
        for placement in placements
    ]
    return f" on {', '.join(places[:4])}" if places else ""
