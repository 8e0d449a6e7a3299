"""Guarantee: interactive jobs preempt only batch jobs of their tenant, within a cap, and finitely.

Tenants here allow any number of preemptions, so only the preemption rules prevent cycles.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.plan import Plan
from tests.effort import examples
from tests.properties.rig import Rig, StopBehaviour
from tests.properties.strategies import BRISK, Scenario, Step, Work, scenarios

CAP_MILLI = 2_000
POLICY = replace(BRISK["fair"], interactive_gpu_milli=CAP_MILLI)


@st.composite
def shared(draw: st.DrawFn) -> Scenario:
    """A history in which about half of the jobs are interactive."""
    scenario = draw(scenarios(limits=False, changes=False))
    steps = []
    for step in scenario.steps:
        deed = step.deed
        if isinstance(deed, Work):
            deed = replace(deed, job=replace(deed.job, interactive=draw(st.booleans())))
        steps.append(Step(step.pause_ms, deed))
    tenants = tuple(replace(tenant, max_preemptions=1_000) for tenant in scenario.tenants)
    return replace(scenario, steps=tuple(steps), tenants=tenants)


class Witness:
    """Checks every eviction before it is executed."""

    def __call__(self, rig: Rig, plan: Plan) -> None:
        state = rig.core.state
        # A job that starts in the same plan may rank behind: it preempts nothing.
        new = {start.job_id for start in plan.starts}
        for eviction in plan.evictions:
            if eviction.ground != "interactive":
                continue
            victim = state.job(eviction.job_id).job
            job = state.job(eviction.for_job_id).job
            assert victim.tenant == job.tenant
            assert victim.pool is Pool.BATCH
            assert job.interactive
            assert not victim.interactive
            assert victim.preemptible
            assert job.gpu_milli <= CAP_MILLI
            held = sum(
                allocation.gpu_milli
                for other, allocation in rig.audit.held.values()
                if other.interactive
                and other.id not in new
                and (other.tenant, other.user) == (job.tenant, job.user)
            )
            assert held + job.gpu_milli <= CAP_MILLI, f"{job.id} is over the cap with {held}"


@settings(max_examples=examples(60))
@given(scenario=shared(), keeps=st.booleans())
def test_interactive_job_preempts_only_allowed_jobs_and_everything_ends(
    scenario: Scenario, keeps: bool
) -> None:
    rig = Rig(scenario, POLICY, StopBehaviour(keeps_progress=keeps), watch=Witness())

    rig.run()

    assert rig.waiting() == []
