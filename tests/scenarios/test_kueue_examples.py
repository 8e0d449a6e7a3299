"""The documented examples of Kueue as quota trees: cohorts, limits, preemption, fair sharing.

A ClusterQueue is a node with the id of a tenant, its nominal quota the guarantee, a cohort the node
above. Where the outcome differs from Kueue's, the test's name says what happens here;
docs/explanation/quota-tree.md has the reasons.
"""

from typing import Any

import pytest

from gpu_scheduler.model.quota_tree import QuotaNode
from tests.builders import a_node, a_policy, a_tenant
from tests.quota_lab import QuotaLab, a_quota, gpus

ONE_NODE = (a_node(gpus=21),)


def cohort(
    *, team_a: dict[str, Any] | None = None, team_b: dict[str, Any] | None = None
) -> tuple[QuotaNode, ...]:
    """The cohort of two queues with nominal quotas of 9 and 12."""
    return (
        a_quota("team-ab", gpus(21)),
        a_quota("team-a-cq", gpus(9, **(team_a or {})), parent="team-ab"),
        a_quota("team-b-cq", gpus(12, **(team_b or {})), parent="team-ab"),
    )


def test_cohort_lets_one_queue_use_the_nominal_quota_of_all() -> None:
    lab = QuotaLab(*cohort(), nodes=ONE_NODE)
    lab.submit("team-a-cq", 30)
    lab.settle()
    assert lab.held() == {"team-a-cq": 21}


def test_nominal_quota_is_what_each_queue_holds_when_both_are_busy() -> None:
    lab = QuotaLab(*cohort(), nodes=ONE_NODE)
    lab.submit("team-a-cq", 30)
    lab.submit("team-b-cq", 30)
    lab.settle()
    assert lab.held() == {"team-a-cq": 9, "team-b-cq": 12}


def test_borrowing_limit_is_added_to_the_nominal_quota() -> None:
    lab = QuotaLab(*cohort(team_a={"borrow": 1}), nodes=ONE_NODE)
    lab.submit("team-a-cq", 30)
    lab.settle()
    assert lab.held() == {"team-a-cq": 10}


def test_lending_limit_keeps_the_rest_for_its_queue() -> None:
    lab = QuotaLab(*cohort(team_b={"lend": 1}), nodes=ONE_NODE)
    lab.submit("team-a-cq", 30)
    lab.settle()
    assert lab.held() == {"team-a-cq": 10}
    lab.submit("team-b-cq", 12)
    lab.cycle()
    # Eleven start at once, on what was never lent.
    assert lab.held() == {"team-a-cq": 9, "team-b-cq": 11}


def test_reclaim_within_cohort_any_takes_what_was_borrowed_whatever_its_priority() -> None:
    lab = QuotaLab(*cohort(), nodes=ONE_NODE)
    lab.submit("team-a-cq", 30, priority=1000)
    lab.settle()
    lab.submit("team-b-cq", 30, priority=0)
    lab.settle()
    assert lab.held() == {"team-a-cq": 9, "team-b-cq": 12}
    assert {ground for _, _, ground in lab.evictions()} == {"lent"}


def test_reclaim_within_cohort_never_is_a_tenant_that_preempts_no_others() -> None:
    lab = QuotaLab(
        *cohort(), nodes=ONE_NODE, tenants=[a_tenant(id="team-b-cq", can_preempt_others=False)]
    )
    lab.submit("team-a-cq", 21)
    lab.settle()
    lab.submit("team-b-cq", 12)
    lab.settle()
    assert lab.held() == {"team-a-cq": 21}


def test_reclaim_takes_the_most_recently_started_of_equal_jobs() -> None:
    lab = QuotaLab(*cohort(), nodes=ONE_NODE)
    lab.submit("team-a-cq", 20)
    lab.settle()
    (late,) = lab.submit("team-a-cq")
    lab.settle()
    (job,) = lab.submit("team-b-cq")
    lab.settle()
    assert lab.evictions() == [(late, job, "lent")]


def test_reclaim_takes_the_cheapest_job_not_the_one_of_lowest_priority() -> None:
    lab = QuotaLab(*cohort(), nodes=ONE_NODE)
    lab.submit("team-a-cq", 20, priority=0)
    lab.settle()
    (late,) = lab.submit("team-a-cq", priority=1000)
    lab.settle()
    (job,) = lab.submit("team-b-cq")
    lab.settle()
    assert lab.evictions() == [(late, job, "lent")]


def test_within_cluster_queue_an_urgent_job_waits_at_the_nominal_quota_and_goes_first() -> None:
    lab = QuotaLab(*cohort(), nodes=ONE_NODE)
    lab.submit("team-b-cq", 12)
    first, *_ = lab.submit("team-a-cq", 9, priority=0)
    lab.settle()
    lab.submit("team-a-cq", priority=0)
    (urgent,) = lab.submit("team-a-cq", priority=1000)
    lab.settle()
    # Kueue would preempt a job of the same queue; a limit is freed only for interactive jobs here.
    assert urgent not in lab.running()
    lab.end(first)
    lab.settle()
    assert urgent in lab.running()
    assert lab.evictions() == []


def test_within_cluster_queue_an_interactive_job_preempts_batch_work_at_the_nominal_quota() -> None:
    lab = QuotaLab(
        *cohort(), nodes=ONE_NODE, policy=a_policy(name="fair", interactive_gpu_milli=1000)
    )
    lab.submit("team-b-cq", 12)
    lab.submit("team-a-cq", 9)
    lab.settle()
    (shell,) = lab.submit("team-a-cq", interactive=True)
    lab.settle()
    assert shell in lab.running()
    assert lab.held() == {"team-a-cq": 9, "team-b-cq": 12}


def test_borrow_within_cohort_preempts_lower_classes_that_borrow_and_no_others() -> None:
    lab = QuotaLab(
        *cohort(), a_quota("rest"), nodes=(a_node(gpus=21),), tenants=[a_tenant(id="rest")]
    )
    lab.submit("rest", 12, priority=0)
    lab.submit("team-a-cq", 9, priority=0)
    lab.settle()
    assert lab.held() == {"rest": 12, "team-a-cq": 9}
    lab.submit("team-a-cq", 3, priority=1000)
    lab.settle()
    assert lab.held() == {"rest": 9, "team-a-cq": 12}
    lab.submit("team-b-cq", 12)
    lab.settle()
    lab.submit("rest", 3, priority=2000)
    lab.settle()
    assert lab.held() == {"team-a-cq": 9, "team-b-cq": 12}


def test_quota_of_a_cohort_is_shared_by_queues_without_a_nominal_quota() -> None:
    lab = QuotaLab(
        a_quota("hello-cohort", gpus(12)),
        a_quota("my-cluster-queue", parent="hello-cohort"),
        a_quota("other-cohort", gpus(9)),
        nodes=ONE_NODE,
    )
    lab.submit("my-cluster-queue", 15, preemptible=False)
    lab.settle()
    # Within the quota of the cohort nothing is borrowed: jobs that cannot be preempted may use it.
    assert lab.held() == {"my-cluster-queue": 12}


def test_hierarchical_cohorts_lend_to_the_nearest_relatives_and_reclaim_from_the_farthest() -> None:
    lab = QuotaLab(
        a_quota("root-cohort", gpus(16)),
        a_quota("important-org", gpus(12), parent="root-cohort"),
        a_quota("regular-org", gpus(4), parent="root-cohort"),
        a_quota("ads", gpus(6), parent="important-org"),
        a_quota("search", gpus(6), parent="important-org"),
        a_quota("interns", gpus(4), parent="regular-org"),
    )
    lab.submit("ads", 12)
    lab.submit("interns", 8)
    lab.settle()
    assert lab.held() == {"ads": 12, "interns": 4}
    lab.submit("search", 6)
    lab.settle()
    assert lab.held() == {"ads": 6, "interns": 4, "search": 6}


@pytest.mark.parametrize(("weight", "share"), [(1, 8), (3, 12)])
def test_fair_sharing_gives_out_idle_gpus_by_weight(weight: int, share: int) -> None:
    lab = QuotaLab(
        a_quota("important-org", weight_milli=weight * 1000),
        a_quota("regular-org", weight_milli=1000),
    )
    # Both have had their fair share of the past.
    lab.use({"important-org": 1000 * weight, "regular-org": 1000})
    lab.submit("regular-org", 16)
    lab.submit("important-org", 16)
    lab.settle()
    assert lab.held() == {"important-org": share, "regular-org": 16 - share}


def test_fair_sharing_does_not_preempt_for_borrowed_gpus() -> None:
    lab = QuotaLab(a_quota("important-org"), a_quota("regular-org"))
    lab.use({"important-org": 1000, "regular-org": 1000})
    first = lab.submit("regular-org", 16)
    lab.settle()
    lab.submit("important-org", 16)
    lab.settle()
    assert lab.held() == {"regular-org": 16}
    lab.end(*first[:8])
    lab.settle()
    assert lab.held() == {"important-org": 8, "regular-org": 8}


def test_nominal_quota_by_flavor_is_a_quota_by_gpu_model() -> None:
    lab = QuotaLab(
        a_quota("team-a-cq", gpus(6, model="A100"), gpus(2, model="H100", most=2)),
        a_quota("team-b-cq", gpus(2, model="A100"), gpus(6, model="H100")),
        nodes=(a_node(ordinal=0), a_node(ordinal=1, device={"model": "H100"})),
    )
    lab.submit("team-a-cq", 16)
    lab.settle()
    assert lab.held_by_model() == {("team-a-cq", "A100"): 8, ("team-a-cq", "H100"): 2}
    lab.submit("team-b-cq", 8, gpu_models=("A100",))
    lab.submit("team-b-cq", 8, gpu_models=("H100",))
    lab.settle()
    assert lab.held_by_model() == {
        ("team-a-cq", "A100"): 6,
        ("team-a-cq", "H100"): 2,
        ("team-b-cq", "A100"): 2,
        ("team-b-cq", "H100"): 6,
    }
