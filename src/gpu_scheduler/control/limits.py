"""Caps and budgets of tenants and users: what has been spent, and what is refused at submission.

Over a limit just now means waiting, which the engine sees to. More than a whole limit, or more
waiting jobs than allowed, is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.control.book import Book
from gpu_scheduler.engine.admit import HOURS, never_admitted, user_quota_of
from gpu_scheduler.ledger.periods import Period
from gpu_scheduler.ledger.shares import Account, tenant_and_user
from gpu_scheduler.model.errors import QuotaTooSmall, TooManyJobs
from gpu_scheduler.model.job import Job, called
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.snapshot import Standing
from gpu_scheduler.model.tenant import BudgetPeriod, Quota


def period_of(book: Book, tenant_id: str) -> BudgetPeriod:
    """For how long budgets in a tenant last."""
    tenant = book.picture.tenants.get(tenant_id)
    return (None if tenant is None else tenant.budget_period) or book.policy.budget_period


def spent(book: Book, account: Account, now_ms: int) -> tuple[int, int]:
    """GPU time that counts against a budget, and when it counts no more (0: never)."""
    period = period_of(book, tenant_and_user(account)[0])
    if period is BudgetPeriod.WEEK:
        return book.weeks.spent(account, now_ms), Period.WEEK.next_after(now_ms)
    if period is BudgetPeriod.MONTH:
        used = book.accounts.total_in(account, now_ms)
        return used.gpu_milli_ms, Period.MONTH.next_after(now_ms)
    return book.accounts.total(account).gpu_milli_ms, 0


def user_quota(book: Book, tenant_id: str) -> Quota:
    """What each user of a tenant may hold."""
    return user_quota_of(book.picture.tenants.get(tenant_id), book.policy.user_quota)


def check_pending(book: Book, jobs: Iterable[tuple[Job, int]]) -> None:
    """Refuse more waiting jobs (tasks of arrays) than a user, or a tenant, may have."""
    if not book.picture.has_limits:
        return
    new: dict[Account, int] = {}
    for job, tasks in jobs:
        for account in ((job.tenant, job.user), job.tenant):
            new[account] = new.get(account, 0) + tasks
    for account, tasks in new.items():
        tenant_id, user = tenant_and_user(account)
        tenant = book.picture.tenants.get(tenant_id)
        own = Quota() if tenant is None else tenant.quota
        most = (own if user is None else user_quota(book, tenant_id)).pending_jobs
        waiting = waiting_of(book, account)
        if most is not None and waiting + tasks > most:
            owner = f"tenant '{tenant_id}'" if user is None else f"user '{user}'"
            raise TooManyJobs(
                f"{owner} may have {most} jobs waiting and has {waiting}, so {tasks} more do not "
                f"fit; submit {max(0, most - waiting)} or fewer, or wait until some have started"
            )


def waiting_of(book: Book, account: Account) -> int:
    """How many jobs (tasks of arrays) of an account wait."""
    tenant, user = tenant_and_user(account)
    if user is not None:
        return book.queued_of.get((tenant, user), 0)
    return sum(count for (owner, _), count in book.queued_of.items() if owner == tenant)


def check_limits(book: Book, job: Job, now_ms: int) -> None:
    """More than a whole quota, budget or pool is refused; over it just now only waits."""
    if not book.picture.has_limits:
        return
    used, turns_ms = spent(book, job.tenant, now_ms)
    standing = Standing(spent_gpu_milli_ms=used, turns_ms=turns_ms)
    refused = never_admitted(book.picture, job, standing)
    if refused is not None:
        error = QuotaTooSmall(_never(job, refused))
        error.data = refused.data
        raise error


def _never(job: Job, refused: Reason) -> str:
    if refused.code not in {ReasonCode.USER_LIMIT, ReasonCode.BUDGET}:
        return str(refused)
    wanted, limit = refused.get("requested"), refused.get("limit")
    if refused.get("resource") == HOURS:
        return (
            f"{called(job.id)} may use {wanted} GPU-hours (its GPUs for its whole time limit), and "
            f"the whole budget of user '{job.user}' in tenant '{job.tenant}' is {limit}; ask for "
            "fewer GPUs or a shorter --time, or have user_max_gpu_hours raised"
        )
    return (
        f"{called(job.id)} asks for {wanted} {refused.get('resource')}, and user '{job.user}' may "
        f"hold {limit} at once in tenant '{job.tenant}'; ask for {limit} or fewer, or have the "
        "limit raised"
    )
