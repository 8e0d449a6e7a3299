"""From history to what is to be told: events come in, rows for the outbox go out.

Deterministic: the same events and settings give the same rows with the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.notification import Notice, NotifyRule
from gpu_scheduler.model.plan import Placement
from gpu_scheduler.notify import message
from gpu_scheduler.settings.groups.operations import NotificationSettings
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import AttemptRow, EventRow, JobRow, NoticeRow

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
"""What an event of a job can be told as; a target that wants both gets the first."""
WARNINGS = frozenset({"gpu_idle_warning", "gpu_memory_warning"})
ARRAY_PAUSE_MS = 24 * 3_600_000
"""Of tasks of one array an owner who did not ask hears no more often than this."""
MOST_ARRAYS = 10_000


class Reader:
    """Knows who wants to be told what."""

    def __init__(self, settings: NotificationSettings, store: Store) -> None:
        """Read from the store only; it is used in a thread of its own."""
        self._settings = settings
        self._store = store
        self._jobs_may_ask = settings.allow_job_webhooks or any(
            target.for_jobs for target in settings.targets.values()
        )
        self._told_always = {kind for target in settings.targets.values() for kind in target.events}
        self._held: dict[tuple[str, int | None], tuple[Placement, ...]] | None = None
        self._told_arrays: dict[tuple[str, Notice], tuple[int, int]] = {}

    def rows(self, events: Iterable[tuple[int, EventRow]], oldest_ms: int) -> list[NoticeRow]:
        """What is to be told of these events, if they are not older than that."""
        found: list[NoticeRow] = []
        self._held = None
        for sequence, event in events:
            if event.at_ms >= oldest_ms:
                found += self._of_event(sequence, event)
        return found

    def to_all(
        self, notice: Notice, told: dict[str, Any], at_ms: int, key: str
    ) -> Iterator[NoticeRow]:
        """A row for each target that wants to hear of this, of any job or of none."""
        tenant = str(told.get("tenant") or "")
        for name in self._listeners((notice,), tenant):
            rule = self._settings.targets[name].to
            needs_user = "{user}" in rule and not told.get("user")
            needs_tenant = "{tenant}" in rule and not tenant
            if not (needs_user or needs_tenant):
                yield row_of(key, name, told, at_ms)

    def _of_event(self, sequence: int, event: EventRow) -> Iterator[NoticeRow]:
        if event.kind in message.TROUBLE and not event.job_id:
            told = message.of_machine(event)
            yield from self.to_all(Notice.TROUBLE, told, event.at_ms, f"event-{sequence}")
            return
        notices = NOTICES.get(event.kind)
        if notices is None or not event.job_id:
            return
        # Of an array its end is told, and not what becomes of each task; warnings always are.
        if event.task is not None and event.kind not in WARNINGS:
            return
        if not self._jobs_may_ask and not self._told_always.intersection(notices):
            return
        row = self._store.job(event.job_id)
        if row is not None and (wanted := self._wanted(notices, row.job, sequence, event)):
            yield from self._told(sequence, event, row, wanted)

    def _wanted(
        self, notices: Sequence[Notice], job: Job, sequence: int, event: EventRow
    ) -> dict[str, Notice]:
        """Which target hears of it as what."""
        wanted = dict(self._listeners(notices, job.tenant))
        default = default_target(self._settings, job.tenant)
        for notice in notices:
            targets = [rule.target or default for rule in job.notify if notice in rule.notices]
            if self._is_for_owner(notice, job, sequence, event):
                targets.append(default)
            for target in targets:
                if target:
                    wanted.setdefault(target, notice)
        return wanted

    def _is_for_owner(self, notice: Notice, job: Job, sequence: int, event: EventRow) -> bool:
        """Tell whether the owner hears of it without having asked."""
        if notice.value not in self._settings.owner_events or not _leaves_it_to_us(job, notice):
            return False
        if event.task is None:
            return True
        told = self._told_arrays.get((job.id, notice))
        if told is not None and event.at_ms - told[1] < ARRAY_PAUSE_MS:
            # The same event comes again when what it led to could not be kept.
            return told[0] == sequence
        if len(self._told_arrays) >= MOST_ARRAYS:
            del self._told_arrays[next(iter(self._told_arrays))]
        self._told_arrays[job.id, notice] = (sequence, event.at_ms)
        return True

    def _listeners(self, notices: Sequence[Notice], tenant: str) -> dict[str, Notice]:
        found = {}
        for name, target in self._settings.targets.items():
            if target.tenants and tenant not in target.tenants:
                continue
            heard = next((notice for notice in notices if notice.value in target.events), None)
            if heard is not None:
                found[name] = heard
        return found

    def _told(
        self, sequence: int, event: EventRow, row: JobRow, wanted: dict[str, Notice]
    ) -> Iterator[NoticeRow]:
        attempts = self._store.attempts(event.job_id, event.task) if row.job.array is None else []
        attempt = attempts[-1] if attempts and row.start_ms is not None else None
        placements = self._placements(event, attempt)
        for target, notice in wanted.items():
            told = message.of_job(notice, event, row, attempt, placements)
            yield row_of(f"event-{sequence}", target, told, event.at_ms)

    def _placements(self, event: EventRow, attempt: AttemptRow | None) -> tuple[Placement, ...]:
        """What it holds, or held. All that is held is read once for all events."""
        if self._held is None:
            self._held = {(a.job_id, a.task): a.placements for a in self._store.allocations()}
        held = self._held.get((event.job_id, event.task))
        if held is not None:
            return held
        return () if attempt is None else attempt.placements


def row_of(key: str, target: str, told: dict[str, Any], at_ms: int) -> NoticeRow:
    """A notification for one target. Its id is made of what it is about, so it never doubles."""
    # An address is a secret to others, and too long for a name.
    is_address = target.startswith("https://")
    name = hashlib.sha256(target.encode()).hexdigest()[:12] if is_address else target
    notice_id = f"{key}-{name}"
    text = json.dumps({"id": notice_id, **told}, ensure_ascii=False)
    return NoticeRow(id=notice_id, target=target, at_ms=at_ms, document=text, next_ms=at_ms)


def _leaves_it_to_us(job: Job, notice: Notice) -> bool:
    """Tell whether a job says nothing of this itself: neither whom to tell, nor that it is not."""
    return all(rule.notices and notice not in rule.notices for rule in job.notify)


def default_target(settings: NotificationSettings, tenant: str) -> str:
    """Where a job of this tenant tells what it names no target for; empty if nothing says so."""
    open_targets = targets_for(settings, tenant)
    if settings.default_target in open_targets:
        return settings.default_target
    own = [name for name in open_targets if settings.targets[name].tenants]
    return next((names[0] for names in (own, open_targets) if len(names) == 1), "")


def targets_for(settings: NotificationSettings, tenant: str) -> list[str]:
    """The targets that jobs of this tenant may name."""
    return [
        name
        for name, target in settings.targets.items()
        if target.for_jobs and (not target.tenants or tenant in target.tenants)
    ]


def unheard(settings: NotificationSettings) -> list[str]:
    """Of what admins should be warned: whom jobs would tell of nothing, and why."""
    return [*_bad_default(settings), *_undecided(settings)]


def _bad_default(settings: NotificationSettings) -> Iterator[str]:
    name = settings.default_target
    target = settings.targets.get(name)
    said = f"notifications.default_target is '{name}', "
    if name and target is None:
        known = ", ".join(settings.targets) or "none"
        yield f"{said}and there is no such target (there are: {known}); correct the name"
    elif target is not None and not target.for_jobs:
        yield f"{said}which is not for jobs; set its for_jobs, or name another one"


def _undecided(settings: NotificationSettings) -> Iterator[str]:
    """Tenants with several targets of which none is the default, those with the same together."""
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
    lost = "'--notify end' is refused without a target"
    if settings.owner_events:
        lost += f", and owners are not told of {', '.join(settings.owner_events)}"
    for names, tenants in alike.items():
        others = "all other tenants" if named else "all tenants"
        whose = ", ".join(f"tenant '{tenant}'" if tenant else others for tenant in tenants)
        listed = ", ".join(names)
        yield (
            f"jobs of {whose} have several targets ({listed}) and no default one: {lost}; "
            "name one of them in notifications.default_target"
        )


def why_not(rule: NotifyRule, job: Job, settings: NotificationSettings) -> str:
    """Why a job must not ask for this; empty if it may."""
    if not rule.notices:
        return ""
    open_targets = targets_for(settings, job.tenant)
    known = f"can be named here: {', '.join(open_targets)}" if open_targets else "none is set up"
    if rule.target.startswith(("http://", "https://")):
        return _why_no_address(rule.target, settings)
    target = rule.target or default_target(settings, job.tenant)
    if not target:
        return f"it names no target and there is no default one ({known})"
    if target not in open_targets:
        return f"there is no target '{target[:60]}' for jobs of tenant '{job.tenant}' ({known})"
    return ""


def _why_no_address(url: str, settings: NotificationSettings) -> str:
    from gpu_scheduler.notify.message import DeliveryFailed  # noqa: PLC0415
    from gpu_scheduler.notify.webhook import checked_url  # noqa: PLC0415

    if not settings.allow_job_webhooks:
        return "addresses of one's own are not allowed here (notifications.allow_job_webhooks)"
    try:
        checked_url(url, public_only=True)
    except DeliveryFailed as error:
        return str(error)
    return ""
