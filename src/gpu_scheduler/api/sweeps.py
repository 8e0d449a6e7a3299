"""Sweeps: jobs that were submitted as one, counted by their states."""

from __future__ import annotations

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.exchange import Answer, Call, answer
from gpu_scheduler.api.operations import V1, Operation
from gpu_scheduler.store.questions import SweepCount
from gpu_scheduler.wire.answers import SweepForm, SweepList
from gpu_scheduler.wire.times import write_time


async def list_sweeps(context: Context, call: Call) -> Answer:
    """The caller's own sweeps, the newest first."""
    context.query(call)
    by_name: dict[str, list[SweepCount]] = {}
    caller = call.caller
    within = caller.tenants if caller.confined else None
    for count in context.service.store.sweeps(caller.user, within):
        by_name.setdefault(count.name, []).append(count)
    newest_first = sorted(by_name.values(), key=lambda counts: -max(c.last for c in counts))
    return answer(SweepList([_form(caller.user, counts) for counts in newest_first]))


def _form(user: str, counts: list[SweepCount]) -> SweepForm:
    return SweepForm(
        name=counts[0].name,
        user=user,
        jobs=sum(count.jobs for count in counts),
        states={count.state.value: count.jobs for count in counts},
        first_job_id=f"job-{min(count.first for count in counts)}",
        last_job_id=f"job-{max(count.last for count in counts)}",
        submitted_at=write_time(min(count.submit_ms for count in counts)),
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/sweeps",
        handler=list_sweeps,
        name="list_sweeps",
        summary="Your sweeps, the newest first; their jobs are `/jobs?sweep=NAME`.",
        tag="jobs",
        answer=SweepList,
    ),
)
