"""The documented examples of KAI-Scheduler as quota trees: quota, limit, weights, reclaim.

A queue is a node; its deserved quota is the guarantee, its limit the maximum. Where the outcome
differs from KAI's, the test's name says what happens here; docs/explanation/quota-tree.md has the
reasons.
"""

from gpu_scheduler.control.messages import Submit
from gpu_scheduler.model.tenant import Tier
from tests.builders import HOUR, a_cluster, a_job, a_node, a_policy, a_tenant
from tests.quota_lab import QuotaLab, a_quota, gpus
from tests.scenarios.lab import Lab

TWO_LEVELS = (
    a_quota("department-1", gpus(8)),
    a_quota("team-a", gpus(4), parent="department-1"),
    a_quota("team-b", gpus(4), parent="department-1"),
    a_quota("department-2", gpus(8)),
    a_quota("team-c", gpus(8), parent="department-2"),
)


def test_deserved_quota_is_given_at_every_level_before_anything_is_over_quota() -> None:
    lab = QuotaLab(*TWO_LEVELS)
    for team in ("team-a", "team-b", "team-c"):
        lab.submit(team, 16)
    lab.settle()
    assert lab.held() == {"team-a": 4, "team-b": 4, "team-c": 8}


def test_limit_holds_however_much_is_idle() -> None:
    lab = QuotaLab(a_quota("team-a", gpus(4, most=6)))
    lab.submit("team-a", 16)
    lab.settle()
    assert lab.held() == {"team-a": 6}


def test_over_quota_weight_counts_all_use_and_not_only_what_is_over_quota() -> None:
    lab = QuotaLab(
        a_quota("team-a", gpus(2), weight_milli=1000),
        a_quota("team-b", gpus(2), weight_milli=3000),
    )
    lab.use({"team-a": 1000, "team-b": 3000})
    lab.submit("team-a", 16)
    lab.submit("team-b", 16)
    lab.settle()
    # By weight of all 16 GPUs; KAI would divide only the 12 over quota, which gives 5 and 11.
    assert lab.held() == {"team-a": 4, "team-b": 12}


def test_queue_below_its_quota_reclaims_from_one_that_is_over_quota() -> None:
    lab = QuotaLab(*TWO_LEVELS)
    lab.submit("team-a", 16)
    lab.settle()
    lab.submit("team-c", 8)
    lab.settle()
    assert lab.held() == {"team-a": 8, "team-c": 8}
    lab.submit("team-b", 4)
    lab.settle()
    assert lab.held() == {"team-a": 4, "team-b": 4, "team-c": 8}


def test_reclaim_leaves_the_victims_queue_its_quota() -> None:
    lab = QuotaLab(a_quota("team-a", gpus(6)), a_quota("team-b", gpus(4)))
    lab.submit("team-a", 4, gpus=4)
    lab.settle()
    (waits,) = lab.submit("team-b", gpus=4)
    lab.settle()
    assert lab.held() == {"team-a": 12, "team-b": 4}
    assert len(lab.evictions()) == 1
    assert waits in lab.running()
    # The next eviction would leave team-b within its quota and team-a with 8: nothing flips back.
    lab.settle()
    assert len(lab.evictions()) == 1


def test_queue_below_its_fair_share_but_above_its_quota_waits_until_jobs_end() -> None:
    lab = QuotaLab(a_quota("team-a", gpus(2)), a_quota("team-b", gpus(2)))
    lab.use({"team-a": 1000, "team-b": 1000})
    first = lab.submit("team-a", 16)
    lab.settle()
    lab.submit("team-b", 16)
    lab.settle()
    # KAI would also evict for the fair share of 8; here only the quota is got back at once.
    assert lab.held() == {"team-a": 14, "team-b": 2}
    lab.use({"team-a": 2000, "team-b": 1000})
    lab.end(*[job for job in first if job in lab.running()][:6])
    lab.settle()
    assert lab.held() == {"team-a": 8, "team-b": 8}


def test_queue_of_higher_priority_gets_idle_gpus_first() -> None:
    lab = QuotaLab(
        a_quota("research", gpus(2)),
        a_quota("production", gpus(2)),
        tenants=[a_tenant(id="production", tier=Tier.HIGH), a_tenant(id="research")],
    )
    lab.submit("research", 16)
    lab.submit("production", 12)
    lab.settle()
    assert lab.held() == {"production": 12, "research": 4}


def test_work_that_cannot_be_preempted_stays_within_the_deserved_quota() -> None:
    lab = QuotaLab(*TWO_LEVELS)
    lab.submit("team-a", 16, preemptible=False)
    lab.settle()
    assert lab.held() == {"team-a": 4}


def test_fraction_of_a_gpu_is_reclaimed_within_the_quota() -> None:
    lab = QuotaLab(
        a_quota("team-a", gpus(0.5)), a_quota("team-b", gpus(1.5)), nodes=[a_node(gpus=2)]
    )
    lab.submit("team-b", 4, gpus=0.5)
    lab.settle()
    lab.submit("team-a", 1, gpus=0.5)
    lab.settle()
    assert lab.held() == {"team-a": 0.5, "team-b": 1.5}
    assert len(lab.evictions()) == 1


def test_time_based_fair_share_alternates_two_queues_of_whole_cluster_jobs() -> None:
    """KAI's plot: 16 GPUs, two queues without quota, weight 1 each, jobs of 16 GPUs."""
    lab = Lab(nodes=a_cluster(nodes=1, gpus=16), policy=a_policy(name="fair"))
    for number in range(1, 9):
        tenant = "queue-1" if number <= 4 else "queue-2"
        lab.tell(Submit(a_job(number=number, tenant=tenant, user=tenant, gpus=16)))
    lab.cycle()
    order = []
    for hour in range(1, 9):
        (job,) = lab.running()
        order.append("queue-1" if int(job[1:]) <= 4 else "queue-2")
        lab.at(hour * HOUR)
        lab.ends(job)
    assert order == ["queue-1", "queue-2"] * 4
