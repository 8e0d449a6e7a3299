"""Interactive jobs preempt batch jobs of the same tenant, within a cap."""

from gpu_scheduler.model.job import Job, JobState, Pool
from tests.builders import a_job, a_node, a_policy, a_tenant
from tests.scenarios.lab import Lab

POLICY = a_policy(name="fair", interactive_gpu_milli=1_000)


def a_lab(**tenant: object) -> Lab:
    tenants = [a_tenant(id="vision", **tenant), a_tenant(id="nlp")]
    return Lab(policy=POLICY, nodes=[a_node(gpus=2)], tenants=tenants)


def batch(name: str, **changes: object) -> Job:
    return a_job(id=name, user="ben", **changes)


def shell(name: str, **changes: object) -> Job:
    return a_job(id=name, user="ann", interactive=True, **changes)


def test_interactive_job_preempts_batch_job_of_same_tenant() -> None:
    lab = a_lab()
    lab.submit(batch("b1", gpus=2))
    lab.submit(shell("s1"))
    assert lab.running() == ["s1"]
    assert lab.stopped() == [("b1.1", "preempted")]
    assert lab.state("b1") is JobState.PENDING
    evicting = [row.data for _, row in lab.store.events() if row.kind == "evicting"]
    assert evicting == [(("for", "s1"), ("ground", "interactive"))]


def test_interactive_job_does_not_preempt_other_tenants() -> None:
    lab = a_lab()
    lab.submit(batch("b1", gpus=2, tenant="nlp"))
    lab.submit(shell("s1"))
    assert lab.running() == ["b1"]


def test_interactive_job_preempts_no_online_interactive_or_protected_job() -> None:
    for kept in (
        batch("b1", gpus=2, pool=Pool.ONLINE),
        batch("b1", gpus=2, interactive=True),
        batch("b1", gpus=2, preemptible=False),
    ):
        lab = a_lab()
        lab.submit(kept)
        lab.submit(shell("s1"))
        assert lab.running() == ["b1"]


def test_tenant_that_forbids_preemption_is_respected() -> None:
    lab = a_lab(allow_preemption=False)
    lab.submit(batch("b1", gpus=2))
    lab.submit(shell("s1"))
    assert lab.running() == ["b1"]


def test_tenant_without_preemption_right_may_preempt_its_own_jobs() -> None:
    lab = a_lab(can_preempt_others=False)
    lab.submit(batch("b1", gpus=2))
    lab.submit(shell("s1"))
    assert lab.running() == ["s1"]


def test_interactive_job_beyond_cap_waits() -> None:
    lab = a_lab()
    lab.submit(batch("b1"), batch("b2"))
    lab.submit(shell("s1"), shell("s2"))
    assert lab.running() == ["b1", "s1"] or lab.running() == ["b2", "s1"]
    assert lab.state("s2") is JobState.PENDING
    lab.submit(a_job(id="other", user="eve", interactive=True))
    assert "other" in lab.running()


def test_batch_job_that_could_preempt_it_back_is_not_preempted() -> None:
    lab = a_lab()
    lab.submit(batch("b1", gpus=2, priority=1249))
    lab.submit(shell("s1", priority=750))
    assert lab.running() == ["b1"]
    lab = a_lab()
    lab.submit(batch("b1", gpus=2, priority=1248))
    lab.submit(shell("s1", priority=750))
    assert lab.running() == ["s1"]


def test_queued_batch_jobs_do_not_exhaust_preemption_attempts_of_interactive_job() -> None:
    lab = a_lab()
    lab.submit(batch("b0", gpus=2))
    lab.submit(*(batch(f"w{n}", gpus=2, cpus=n, priority=751 + n) for n in range(8)))
    lab.submit(shell("s1", cpus=0.5))
    assert "s1" in lab.running()


def test_interactive_jobs_preempt_nothing_without_policy() -> None:
    lab = Lab(policy=a_policy(name="fair"), nodes=[a_node(gpus=2)])
    lab.submit(batch("b1", gpus=2))
    lab.submit(shell("s1"))
    assert lab.running() == ["b1"]
