"""Permissions: which caller may send which message, and the submission rules of the site.

Waiting and running jobs of other users are visible, but must not be changed. Ended jobs of other
users are treated as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpu_scheduler.control.messages import (
    Cancel,
    CancelReservation,
    Command,
    CreateService,
    Fact,
    Hold,
    MakeToken,
    Release,
    Reprioritise,
    Retry,
    RevokeToken,
    ServiceCommand,
    Submit,
    SubmitAll,
    SubmitSeries,
    Update,
    UpdateService,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, SchedulerError, UnknownThing
from gpu_scheduler.model.identity import Caller, Role, Token
from gpu_scheduler.model.job import Dependency, display_name
from gpu_scheduler.model.service import Service

MOST_USABLE_TOKENS, MOST_TOKENS, MOST_SERVICES = 200, 10_000, 1_000
"""What a user who is no admin may have. A service without replicas is in no share of the queue."""


def check(state: ControlState, caller: Caller, message: Command | Fact) -> None:
    """Raise if the caller may not send this message."""
    if caller.is_admin:
        return
    if not caller.may_change:
        raise Forbidden(f"'{caller.user}' has the role viewer, which may not change anything")
    if isinstance(message, ServiceCommand):
        _check_service(state, caller, message)
        return
    match message:
        case Submit() | SubmitSeries():
            _check_own(state, caller, (message,))
        case SubmitAll(submissions):
            _check_own(state, caller, submissions)
        case Cancel() | Hold() | Release() | Reprioritise() | Update() | Retry():
            _check_owner(state, caller, message.job_id)
            _check_change(state, caller, message)
        case MakeToken(token):
            _check_token(caller, token)
            _check_number_of_tokens(state, token)
        case RevokeToken(token_id):
            known = state.tokens.get(token_id)
            if known is None or not sees_token(caller, known):
                raise UnknownThing(
                    f"token '{token_id}' is not known; 'tgpu token list' shows yours"
                )
        case CancelReservation(reservation_id):
            _check_reservation(state, caller, reservation_id)
        case _:
            raise Forbidden(
                f"user '{caller.user}' may not do this, only an admin may "
                f"({type(message).__name__}); ask the person who runs the scheduler"
            )


def _check_token(caller: Caller, token: Token) -> None:
    """A caller may only create tokens of their own, with at most their own role."""
    if token.user != caller.user:
        raise Forbidden(
            f"user '{caller.user}' asked for a token of '{token.user}', whose jobs would run with "
            "it; only an admin may make that"
        )
    if token.tenant not in caller.tenants:
        raise not_a_member(caller, token.tenant)
    most = Role.TENANT_ADMIN if token.tenant in caller.administers else Role.USER
    if token.role.rank > most.rank:
        raise Forbidden(
            f"user '{caller.user}' asked for a token with role {token.role.value} and may have "
            f"{most.value} in tenant '{token.tenant}'"
        )


def _check_number_of_tokens(state: ControlState, token: Token) -> None:
    """Bound the tokens of a user, which the server holds in memory, and never deletes."""
    own = [one for one in state.tokens.values() if one.user == token.user]
    usable = sum(not one.revoked_ms and one.expires_ms > token.created_ms for one in own)
    if usable >= MOST_USABLE_TOKENS:
        raise Forbidden(
            f"user '{token.user}' has {usable} tokens, which is the limit; revoke some "
            "('tgpu token list')"
        )
    if len(own) >= MOST_TOKENS:
        raise Forbidden(
            f"{len(own)} tokens of user '{token.user}' are stored, with those that have ended; "
            "only an admin may make more"
        )


def sees_token(caller: Caller, token: Token) -> bool:
    """Tell whether the caller may see and revoke a token."""
    is_own = caller.user in {token.user, token.created_by}
    is_near = not caller.confined or token.tenant in caller.tenants
    return caller.is_admin or (is_own and is_near)


def _check_owner(state: ControlState, caller: Caller, job_id: str) -> None:
    """Ended jobs of other users are reported as unknown, active ones as forbidden."""
    if caller.may_touch(*owner_of(state, job_id)):
        return
    if job_id not in state.jobs:
        raise UnknownThing(f"{display_name(job_id)} is not known")
    raise Forbidden(
        f"{display_name(job_id)} belongs to '{state.jobs[job_id].job.user}'; only that user, "
        "admins of its tenant and admins may change it"
    )


def _check_service(state: ControlState, caller: Caller, message: ServiceCommand) -> None:
    """Services of other users are reported as unknown; only the owner may change what one runs."""
    if isinstance(message, CreateService):
        _check_own(state, caller, (Submit(message.service.job, message.service.launch),))
        if sum(one.user == caller.user for one in state.services.values()) >= MOST_SERVICES:
            raise Forbidden(
                f"user '{caller.user}' has {MOST_SERVICES} services, which is the limit; delete "
                "some"
            )
        return
    service = state.services.get(message.service_id)
    if service is None or not caller.may_touch(service.user, service.tenant):
        raise UnknownThing(
            f"service '{message.service_id}' is not known; 'tgpu service list' shows yours"
        )
    if isinstance(message, UpdateService):
        _check_own(state, caller, (Submit(message.wanted.job, message.wanted.launch),))


def _check_reservation(state: ControlState, caller: Caller, reservation_id: str) -> None:
    """A tenant admin may cancel reservations of that tenant."""
    reservation = state.cluster.advance_reservations.get(reservation_id)
    if reservation is None or not caller.may_touch("", reservation.tenant):
        raise Forbidden(
            f"user '{caller.user}' may not cancel reservation '{reservation_id}'; only admins, "
            "and admins of the tenant that it is for, may do this"
        )


def _check_dependencies(
    state: ControlState, caller: Caller, dependencies: tuple[Dependency, ...]
) -> None:
    """Reject dependencies on jobs of other users, which would reveal how these end."""
    for dependency in dependencies:
        if not caller.may_see(*owner_of(state, dependency.job_id)):
            raise InvalidRequest(
                f"the job depends on {display_name(dependency.job_id)}, which is not known; "
                "submit that one first"
            )


def owner_of(state: ControlState, job_id: str) -> tuple[str, str]:
    """User and tenant of a job; empty if it is unknown."""
    record = state.jobs.get(job_id)
    if record is not None:
        return record.job.user, record.job.tenant
    end = state.ended.get(job_id)
    return (end.user, end.tenant) if end is not None else ("", "")


def _check_own(
    state: ControlState, caller: Caller, submissions: tuple[Submit | SubmitSeries, ...]
) -> None:
    for submission in submissions:
        job, launch = submission.job, submission.launch
        _check_dependencies(state, caller, job.dependencies)
        if job.user != caller.user or (launch is not None and launch.uid != caller.uid):
            raise Forbidden(
                f"user '{caller.user}' tried to submit a job as '{job.user}'; "
                "jobs run as the user who submits them"
            )
        if not caller.may_submit_to(job.tenant):
            raise not_a_member(caller, job.tenant)
        _check_priority(state, job.priority)


def _check_change(state: ControlState, caller: Caller, message: Command) -> None:
    """Check what a caller may change of an own job as at its submission."""
    if isinstance(message, Reprioritise):
        _check_priority(state, message.priority)
    if isinstance(message, Update):
        changes = dict(message.changes)
        _check_dependencies(state, caller, changes.get("dependencies", ()))
        _check_priority(state, changes.get("priority", 0))


def _check_priority(state: ControlState, priority: int) -> None:
    most = state.limits.user_max_priority
    if priority > most:
        raise Forbidden(
            f"the priority is {priority}, and users may give at most {most} "
            "(limits.user_max_priority); ask an admin"
        )


def not_a_member(caller: Caller, tenant: str) -> Forbidden:
    """The error for a tenant that is unknown, or that the caller does not belong to."""
    own = ", ".join(sorted(caller.tenants)) or "none"
    return Forbidden(
        f"user '{caller.user}' does not belong to tenant '{tenant}', and may submit to: {own}; "
        "ask an admin"
    )


Rules = Callable[[Submit | SubmitSeries], Submit | SubmitSeries]
"""The site's submission rules: return the submission, changed or not, or raise."""


def jobs_named_in(message: Command | Fact) -> list[str]:
    """Ids of jobs that the message names and that may have ended."""
    if isinstance(message, Submit | SubmitSeries):
        return [dependency.job_id for dependency in message.job.dependencies]
    if isinstance(message, SubmitAll):
        return [d.job_id for s in message.submissions for d in s.job.dependencies]
    if isinstance(message, Retry):
        return [message.job_id]
    if isinstance(message, Update):
        dependencies = dict(message.changes).get("dependencies", ())
        return [dependency.job_id for dependency in dependencies]
    return []


def submissions_in(
    state: ControlState, message: Command | Fact
) -> tuple[Submit | SubmitSeries, ...]:
    """The submissions in a message, for the rules of the site."""
    if isinstance(message, Submit | SubmitSeries):
        return (message,)
    if isinstance(message, SubmitAll):
        return message.submissions
    if isinstance(message, CreateService):
        return (Submit(message.service.job, message.service.launch),)
    if isinstance(message, UpdateService):
        return (Submit(message.wanted.job, message.wanted.launch),)
    if isinstance(message, Update) and message.job_id in state.jobs:
        job = state.jobs[message.job_id].job
        return (Submit(replace(job, **dict(message.changes))),)
    return ()


def apply_rules(state: ControlState, message: Command | Fact, rules: Rules) -> Command | Fact:
    """The message after the site's rules; or raise with the `index` of the first bad job."""
    submitted = submissions_in(state, message)
    allowed: list[Submit | SubmitSeries] = []
    index = 0
    for submission in submitted:
        try:
            allowed.append(rules(submission))
        except SchedulerError as error:
            error.index = index + (error.index or 0)
            raise
        index += submission.job_count
    is_same = all(one is other for one, other in zip(submitted, allowed, strict=True))
    return message if is_same else _with_submissions(message, allowed)


def _with_submissions(
    message: Command | Fact, allowed: Sequence[Submit | SubmitSeries]
) -> Command | Fact:
    """The same message with these submissions."""
    if isinstance(message, Submit | SubmitSeries):
        return allowed[0]
    if isinstance(message, SubmitAll):
        return replace(message, submissions=tuple(allowed))
    if isinstance(message, CreateService):
        return replace(message, service=_with_launch(message.service, allowed[0]))
    if isinstance(message, UpdateService):
        return replace(message, wanted=_with_launch(message.wanted, allowed[0]))
    return message


def _with_launch(service: Service, allowed: Submit | SubmitSeries) -> Service:
    return replace(service, launch=allowed.launch or service.launch)
