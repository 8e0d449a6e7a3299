"""Audit log of accepted commands: a command and its outcome come in, an audit row goes out."""

from __future__ import annotations

import re

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import (
    Command,
    Cordon,
    CorrectUsage,
    CreateService,
    Drain,
    Fact,
    KeepAuthority,
    LabelNode,
    MakeJoinToken,
    MakeToken,
    PauseDevice,
    ResumeDevice,
    ScaleService,
    SetTenant,
    Submit,
    SubmitAll,
    SubmitSeries,
    Update,
)
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.store.rows import AuditRow

DONE, REFUSED = "done", "refused"
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def record(caller: Caller, message: Command | Fact, outcome: Outcome, now_ms: int) -> AuditRow:
    """The audit row of an accepted command."""
    kind = type(message)
    if kind is Submit or kind is SubmitSeries or kind is SubmitAll:
        jobs = outcome.jobs
        action, target, detail, times = "submit", jobs[0].id if jobs else "", "", len(jobs)
        if isinstance(message, SubmitAll) and message.dry_run:
            target, detail = "", "dry run"
            times = sum(submission.job_count for submission in message.submissions)
        elif times > 1:
            target = f"{target} to {jobs[-1].id}"
    else:
        action, target, detail, times = _action(kind), _target(message), _detail(message), 1
    who = (caller.user, caller.origin, caller.via)
    return AuditRow(now_ms, *who, action, target, DONE, "", detail, times)


def _action(kind: type) -> str:
    return _WORDS.sub("_", kind.__name__).lower()


def _target(message: Command | Fact) -> str:
    match message:
        case SetTenant(tenant):
            return tenant.id
        case MakeToken(token) | MakeJoinToken(token):
            return token.id
        case CreateService(service):
            return service.name
        case KeepAuthority(authority):
            return authority.id
        case PauseDevice(node_id, index, _) | ResumeDevice(node_id, index):
            return f"{node_id}/{index}"
    # For other commands the first text field is the target.
    for name in getattr(message, "__slots__", ()):
        value = getattr(message, name)
        if isinstance(value, str):
            return value
    return ""


def _detail(message: Command | Fact) -> str:
    text = ""
    match message:
        case Update(_, changes):
            text = ", ".join(name for name, _ in changes)
        case CorrectUsage(_, _, attempt, run_ms, reason):
            text = f"attempt {attempt.attempt}: {run_ms / 1000:g} s; {reason}"
        case CreateService(service):
            text = f"tenant {service.tenant}, replicas {service.replicas}"
        case ScaleService(_, replicas):
            text = f"replicas {replicas}"
        case Cordon(_, _, reason) | Drain(_, _, reason):
            text = reason
        case LabelNode(_, labels):
            text = ", ".join(name if value is None else f"{name}={value}" for name, value in labels)
        case MakeJoinToken(token):
            text = f"for {token.uses} node{'s' * (token.uses != 1)}"
        case MakeToken(token):
            text = f"user {token.user}, tenant {token.tenant}, role {token.role.value}"
    return text
