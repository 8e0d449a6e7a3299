"""Guarantee: a job that can run does not wait beside free capacity."""

from hypothesis import given, settings

from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Plan
from tests.effort import examples
from tests.properties.rig import Rig
from tests.properties.strategies import Scenario, policies, scenarios


def plainly_fits(rig: Rig, job: Job, node: Node) -> bool:
    """Whether an empty, healthy node is more than enough for one whole-GPU job."""
    request = job.members[0]
    if any(p.node_id == node.id for _, a in rig.audit.held.values() for p in a.placements):
        return False
    return (
        node.state.value == "online"
        and all(device.takes_work and device.model == "A100" for device in node.devices)
        and not any(device.mig_slices for device in node.devices)
        and request.takes_whole_devices_only
        and not (request.gpu_models or request.device_ids or request.node_labels)
        and request.gpu_count <= node.gpu_count
        and request.cpu_milli <= node.cpu_milli
        and request.memory_mb <= node.memory_mb
    )


@settings(max_examples=examples(100))
@given(scenario=scenarios(limits=False), policy=policies())
def test_single_queued_job_does_not_wait_beside_empty_node_that_fits(
    scenario: Scenario, policy: str
) -> None:
    def check(rig: Rig, plan: Plan) -> None:
        entries = list(rig.core.state.cluster.queue.entries.values())
        if len(entries) != 1 or plan.evictions:
            return
        job = entries[0].waiting.job
        if job.is_gang or (job.array is not None and job.array.max_running):
            return
        empty = [node.id for node in rig.audit.nodes.values() if plainly_fits(rig, job, node)]
        assert not empty, f"{job.id} waits beside {empty}"

    rig = Rig(scenario, policy, watch=check)
    for _ in range(150):
        if not rig.advance():
            return


@settings(max_examples=examples(100))
@given(scenario=scenarios(limits=False, changes=False), policy=policies())
def test_something_starts_when_nothing_runs(scenario: Scenario, policy: str) -> None:
    def check(rig: Rig, plan: Plan) -> None:
        ready = all(d.takes_work for node in rig.audit.nodes.values() for d in node.devices)
        if ready and len(rig.core.state.cluster.queue) and not plan.evictions:
            assert rig.audit.held, f"an empty cluster, and {rig.waiting()} wait"

    rig = Rig(scenario, policy, watch=check)
    for _ in range(150):
        if not rig.advance():
            return
