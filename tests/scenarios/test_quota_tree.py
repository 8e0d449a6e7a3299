"""The quota tree: guarantees, borrowing, lending and reclaiming over several levels."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.quota.admission import never_admitted
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import AccountUsage
from gpu_scheduler.model.quota_tree import checked_tree
from tests.builders import HOUR, a_cluster, a_job, a_node, a_policy, a_tenant
from tests.quota_lab import QuotaLab, a_quota, gpus
from tests.scenarios.lab import Lab

LAB = (
    a_quota("science", gpus(12)),
    a_quota("physics", gpus(8), parent="science"),
    a_quota("optics", gpus(4), parent="physics"),
    a_quota("lasers", gpus(2), parent="physics"),
    a_quota("biology", gpus(4), parent="science"),
    a_quota("industry", gpus(4)),
)


def test_idle_guarantees_are_lent_along_the_whole_tree() -> None:
    lab = QuotaLab(*LAB)
    lab.submit("lasers", 20)
    lab.settle()
    assert lab.held() == {"lasers": 16}


def test_guaranteed_gpus_are_got_back_in_one_cycle() -> None:
    lab = QuotaLab(*LAB)
    lab.submit("lasers", 20)
    lab.settle()
    industry = lab.submit("industry", gpus=4)
    lab.cycle()
    assert lab.cycle().starts[0].job_id == industry[0]
    assert lab.held() == {"industry": 4, "lasers": 12}


def test_department_gets_its_guarantee_from_outside_and_a_team_from_its_siblings() -> None:
    lab = QuotaLab(*LAB)
    lab.submit("industry", 8)
    lab.submit("lasers", 8)
    lab.settle()
    assert lab.held() == {"industry": 8, "lasers": 8}
    lab.submit("optics", 4)
    lab.settle()
    # Physics as a whole holds its guarantee, so optics gets back what lasers borrowed from it.
    assert lab.held() == {"industry": 8, "lasers": 4, "optics": 4}
    lab.submit("biology", 4)
    lab.settle()
    assert lab.held() == {"biology": 4, "industry": 4, "lasers": 4, "optics": 4}


def test_no_job_within_a_guarantee_is_reclaimed() -> None:
    lab = QuotaLab(*LAB)
    lab.submit("industry", 20)
    lab.submit("biology", 20)
    lab.submit("optics", 20)
    lab.submit("lasers", 20)
    for _ in range(5):
        lab.settle()
    held = lab.held()
    assert held["industry"] == 4
    assert held["biology"] == 4
    assert held["optics"] >= 4
    assert held["lasers"] >= 2


def test_higher_class_takes_nothing_from_within_a_guarantee() -> None:
    lab = QuotaLab(*LAB)
    lab.submit("industry", 4)
    lab.submit("biology", 4)
    lab.submit("optics", 8)
    lab.settle()
    urgent = lab.submit("nobody", gpus=4, priority=100)
    lab.settle()
    assert urgent[0] not in lab.running()
    assert not lab.evictions()


@pytest.mark.parametrize("name", ["industry", "batch"])
def test_higher_class_within_its_guarantee_leaves_others_theirs(name: str) -> None:
    """Also if the other tenant is named like the pool of all jobs."""
    lab = QuotaLab(a_quota(name, gpus(10)), a_quota("optics", gpus(6)))
    lab.submit(name, 2, gpus=5)
    lab.settle()
    urgent = lab.submit("optics", gpus=6, priority=5_000)
    lab.settle()
    assert urgent[0] not in lab.running()
    assert not lab.evictions()


def test_job_that_cannot_be_preempted_does_not_borrow() -> None:
    lab = QuotaLab(*LAB)
    firm = lab.submit("industry", 6, preemptible=False)
    lab.settle()
    assert lab.held() == {"industry": 4}
    waits = next(job for job in firm if job not in lab.running())
    assert lab.why(waits) == (
        "node industry of the quota tree is guaranteed 4 GPUs and holds 4, so 1 more wait until "
        "jobs of industry end: a job that cannot be preempted does not borrow"
    )


def test_jobs_of_tenants_that_forbid_preemption_do_not_borrow() -> None:
    lab = QuotaLab(*LAB, tenants=[a_tenant(id="industry", allow_preemption=False)])
    lab.submit("industry", 6)
    lab.settle()
    assert lab.held() == {"industry": 4}


def test_tenant_outside_the_tree_gets_what_is_idle_and_gives_it_back() -> None:
    lab = QuotaLab(*LAB)
    lab.submit("guests", 16)
    lab.settle()
    assert lab.held() == {"guests": 16}
    lab.submit("industry", 4)
    lab.submit("optics", 4)
    lab.settle()
    assert lab.held() == {"guests": 8, "industry": 4, "optics": 4}


def test_maximum_of_a_department_holds_for_all_its_teams() -> None:
    lab = QuotaLab(
        a_quota("physics", gpus(6, most=8)),
        a_quota("optics", gpus(4), parent="physics"),
        a_quota("lasers", gpus(2), parent="physics"),
    )
    jobs = lab.submit("lasers", 9)
    lab.settle()
    assert lab.held() == {"lasers": 8}
    waits = next(job for job in jobs if job not in lab.running())
    assert lab.why(waits) == (
        "node physics of the quota tree may hold 8 GPUs and holds 8, so 1 more wait until jobs of "
        "physics end"
    )


def test_jobs_behind_one_that_is_over_a_maximum_have_its_reason_without_being_examined() -> None:
    lab = QuotaLab(a_quota("physics", gpus(4, most=8)))
    lab.submit("physics", 8)
    lab.settle()
    waiting = [lab.submit("physics", gpus=size)[0] for size in (1, 2, 4, 8)]
    small = lab.submit("physics", gpus=0)
    lab.cycle()
    assert lab.plan.examined == 2
    assert small[0] in lab.running()
    for job, size in zip(waiting, (1, 2, 4, 8), strict=True):
        assert f"may hold 8 GPUs and holds 8, so {size} more wait" in lab.why(job)


def test_team_gets_its_guarantee_back_at_the_maximum_of_its_department() -> None:
    lab = QuotaLab(
        a_quota("physics", gpus(6, most=8)),
        a_quota("optics", gpus(4), parent="physics"),
        a_quota("lasers", gpus(2), parent="physics"),
    )
    lab.submit("lasers", 8)
    lab.settle()
    lab.submit("optics", 4)
    lab.settle()
    assert lab.held() == {"lasers": 4, "optics": 4}
    assert {ground for _, _, ground in lab.evictions()} == {"lent"}


def test_tenant_that_may_preempt_no_others_reclaims_nothing_at_a_maximum_either() -> None:
    lab = QuotaLab(
        a_quota("physics", gpus(6, most=8)),
        a_quota("optics", gpus(4), parent="physics"),
        a_quota("lasers", gpus(2), parent="physics"),
        tenants=[a_tenant(id="optics", can_preempt_others=False)],
    )
    lab.submit("lasers", 8)
    lab.settle()
    lab.submit("optics", 4)
    lab.settle()
    assert lab.held() == {"lasers": 8}
    assert lab.evictions() == []


def test_user_of_a_tenant_has_a_node_of_its_own() -> None:
    lab = QuotaLab(
        a_quota("optics", gpus(8, most=8)),
        a_quota("optics/ann", gpus(2), parent="optics"),
        a_quota("optics/bob", gpus(0, most=3), parent="optics"),
    )
    bobs = lab.submit("optics", 5, user="bob")
    lab.submit("optics", 5, user="cid")
    lab.settle()
    users = lab.state.holdings.users
    assert (users["optics", "bob"].gpu_milli, users["optics", "cid"].gpu_milli) == (3000, 5000)
    waits = next(job for job in bobs if job not in lab.running())
    assert "node optics/bob of the quota tree may hold 3 GPUs" in lab.why(waits)
    lab.submit("optics", 2, user="ann")
    lab.settle()
    assert users["optics", "ann"].gpu_milli == 2000


def test_budget_of_a_department_holds_for_all_its_teams() -> None:
    lab = QuotaLab(
        a_quota("physics", gpus(8), budget_gpu_milli_ms=48 * 1000 * 3_600_000),
        a_quota("optics", parent="physics"),
        a_quota("lasers", parent="physics"),
    )
    lab.submit("optics", max_runtime_ms=24 * 3_600_000)
    lab.submit("lasers", max_runtime_ms=24 * 3_600_000)
    late = lab.submit("lasers", max_runtime_ms=3_600_000)
    lab.settle()
    assert lab.held() == {"lasers": 1, "optics": 1}
    assert "node physics of the quota tree has a budget of 48 GPU-hours" in lab.why(late[0])


def test_budget_of_a_node_also_holds_in_a_copy_of_the_state() -> None:
    """A cycle that fails decides again on copies, without the job that made it fail."""
    lab = QuotaLab(
        a_quota("physics", gpus(8), budget_gpu_milli_ms=10 * 1000 * HOUR),
        a_quota("optics", gpus(4), parent="physics"),
    )
    lab.submit("optics", max_runtime_ms=HOUR, estimate_ms=HOUR)

    def starts() -> int:
        copy = ClusterState.from_snapshot(lab.state.snapshot(), lab.state.policy)
        return len(decide(copy, copy.policy, 0).starts)

    assert starts() == 1
    lab.state.node_usage["physics"] = AccountUsage(spent_gpu_milli_ms=10 * 1000 * HOUR)
    assert starts() == 0


def test_budget_of_a_department_is_renewed_with_its_period() -> None:
    tree = checked_tree(
        [
            a_quota("physics", gpus(8), budget_gpu_milli_ms=10 * 1000 * HOUR),
            a_quota("optics", parent="physics"),
            a_quota("lasers", parent="physics"),
        ]
    )
    lab = Lab(nodes=a_cluster(nodes=1), policy=replace(a_policy(name="fair"), quota_tree=tree))
    lab.submit(a_job(number=1, tenant="optics", max_runtime_ms=5 * HOUR))
    lab.at(4 * HOUR)
    lab.ends("j1")
    lab.submit(a_job(number=2, tenant="lasers", max_runtime_ms=7 * HOUR))
    assert not lab.running()
    reasons = dict(lab.last_plan.job_reasons) if lab.last_plan else {}
    assert "node physics of the quota tree" in str(reasons["j2"])
    lab.at(31 * 24 * HOUR)
    lab.cycle()
    assert lab.running() == ["j2"]


# --- quotas of GPU models

MIXED = (a_node(ordinal=0), a_node(ordinal=1, device={"model": "H100"}))
BY_MODEL = (
    a_quota("vision", gpus(8, model="H100")),
    a_quota("speech", gpus(8, model="A100")),
)


def test_model_is_reclaimed_from_the_team_that_borrowed_it() -> None:
    lab = QuotaLab(*BY_MODEL, nodes=MIXED)
    lab.submit("speech", 16)
    lab.settle()
    assert lab.held_by_model() == {("speech", "A100"): 8, ("speech", "H100"): 8}
    lab.submit("vision", 3, gpu_models=("H100",))
    lab.settle()
    assert lab.held_by_model()["vision", "H100"] == 3
    assert lab.held_by_model()["speech", "A100"] == 8


def test_job_without_a_model_goes_where_its_quota_has_room() -> None:
    lab = QuotaLab(
        a_quota("vision", gpus(4, model="H100", most=4), gpus(8, model="A100")), nodes=MIXED
    )
    lab.submit("vision", 16)
    lab.settle()
    assert lab.held_by_model() == {("vision", "A100"): 8, ("vision", "H100"): 4}
    assert "node vision of the quota tree is guaranteed 8 GPUs of A100 and holds 8" in lab.why(
        "j16"
    )


def test_job_that_cannot_be_preempted_uses_only_models_of_its_guarantee() -> None:
    lab = QuotaLab(*BY_MODEL, nodes=MIXED)
    lab.submit("speech", 12, preemptible=False)
    lab.settle()
    assert lab.held_by_model() == {("speech", "A100"): 8}


def test_job_without_a_model_reclaims_only_models_that_its_quota_allows() -> None:
    lab = QuotaLab(
        a_quota("dept", gpus(2, model="H100", most=2), gpus(8)),
        a_quota(
            "team",
            gpus(model="A100", most=0),
            gpus(1, model="H100", most=1),
            gpus(4),
            parent="dept",
        ),
        nodes=[a_node(ordinal=0, gpus=4), a_node(ordinal=1, gpus=4, device={"model": "H100"})],
    )
    lab.submit("dept", 2, member_models=("A100", "H100"))
    lab.settle()
    (own,) = lab.submit("team", preemptible=False)
    lab.settle()
    assert own in lab.running()
    assert lab.held_by_model()["team", "H100"] == 1
    assert ("team", "A100") not in lab.held_by_model()


def test_guarantee_of_a_model_comes_before_one_of_all_models() -> None:
    lab = QuotaLab(a_quota("vision", gpus(8, model="H100")), a_quota("any", gpus(8)), nodes=MIXED)
    lab.submit("any", 8, gpu_models=("H100",))
    lab.settle()
    lab.submit("vision", 8, gpu_models=("H100",))
    lab.settle()
    assert lab.held_by_model() == {("vision", "H100"): 8}


OPTICS = a_quota("optics", gpus(4), gpus(2, model="H100"), parent="physics")
AT_MOST_8 = (
    a_quota("physics", gpus(8, most=8), gpus(2, model="H100")),
    OPTICS,
    a_quota("lasers", gpus(4), parent="physics"),
)


def test_guarantee_of_a_model_is_got_back_where_other_models_fill_the_maximum_in_total() -> None:
    lab = QuotaLab(*AT_MOST_8, nodes=MIXED)
    lab.submit("lasers", 8, gpu_models=("A100",))
    lab.settle()
    assert lab.held() == {"lasers": 8}
    lab.submit("optics", 4, gpu_models=("H100",))
    lab.settle()
    assert lab.held_by_model() == {("lasers", "A100"): 4, ("optics", "H100"): 4}
    assert {ground for _, _, ground in lab.evictions()} == {"lent"}


def test_borrowers_of_a_model_and_of_the_total_make_room_together() -> None:
    lab = QuotaLab(*AT_MOST_8, nodes=MIXED)
    lab.submit("lasers", 8, gpu_models=("A100",))
    lab.submit("guests", 8, gpu_models=("H100",))
    lab.settle()
    assert lab.held() == {"guests": 8, "lasers": 8}
    lab.submit("optics", 2, gpu_models=("H100",))
    lab.settle()
    # Guests hold the GPUs of the model, lasers fill the maximum in total.
    assert lab.held_by_model()["optics", "H100"] == 2
    assert lab.held() == {"guests": 6, "lasers": 6, "optics": 2}


def test_maximum_in_total_takes_no_other_model_from_within_a_guarantee() -> None:
    lab = QuotaLab(
        a_quota("physics", gpus(8, most=8), gpus(2, model="H100"), gpus(6, model="A100")),
        OPTICS,
        a_quota("lasers", gpus(4, model="A100"), gpus(4), parent="physics"),
        a_quota("guests", gpus(2)),
        nodes=MIXED,
    )
    lab.submit("lasers", 4, gpu_models=("A100",))
    lab.submit("physics", 4, gpu_models=("A100",))
    lab.settle()
    lab.submit("optics", 8, gpu_models=("H100",))
    lab.settle()
    assert lab.held_by_model() == {("lasers", "A100"): 4, ("optics", "H100"): 4}


def test_job_of_a_model_beyond_the_guarantee_in_total_waits_at_the_maximum() -> None:
    lab = QuotaLab(*AT_MOST_8, nodes=MIXED)
    lab.submit("optics", 4, gpu_models=("A100",))
    lab.submit("lasers", 4, gpu_models=("A100",))
    lab.settle()
    lab.submit("optics", gpu_models=("H100",))
    lab.settle()
    assert lab.held() == {"lasers": 4, "optics": 4}
    assert not lab.evictions()


def test_no_job_leaves_at_the_maximum_in_total_if_the_model_has_no_room() -> None:
    lab = QuotaLab(*AT_MOST_8, a_quota("vision", gpus(6, model="H100")), nodes=MIXED)
    lab.submit("vision", 6, gpu_models=("H100",), preemptible=False)
    lab.submit("optics", 2, gpu_models=("H100",))
    lab.submit("lasers", 8, gpu_models=("A100",))
    lab.settle()
    assert lab.held() == {"lasers": 6, "optics": 2, "vision": 6}
    lab.submit("optics", gpu_models=("H100",))
    lab.settle()
    assert not lab.evictions()


def test_two_nodes_wait_for_gangs_without_evictions_in_vain() -> None:
    lab = QuotaLab(*LAB, nodes=a_cluster(nodes=2))
    lab.submit("lasers", 4, gpus=4)
    lab.settle()
    lab.submit("industry", gpus=8)
    lab.settle()
    # 8 GPUs are more than industry is guaranteed, so no job is evicted for it.
    assert not lab.evictions()


# --- what can never start


def never(lab: QuotaLab, tenant: str, gpus: int, **changes: Any) -> str:
    refused = never_admitted(lab.state, a_job(number=1, tenant=tenant, gpus=gpus, **changes))
    assert refused is not None
    return f"{refused.get('owner')} {refused.get('found')}; at most {refused.get('left')}"


def test_request_that_can_never_borrow_enough_names_the_node_that_does_not_lend() -> None:
    lab = QuotaLab(
        a_quota("science", gpus(12, lend=4)),
        a_quota("optics", gpus(8, lend=2), parent="science"),
        a_quota("industry", gpus(4)),
    )
    assert never(lab, "industry", 12) == (
        "node industry of the quota tree is guaranteed 4 GPUs, and node science lends all but 8 of "
        "its 12 GPUs; at most 8"
    )
    assert never(lab, "guests", 9) == (
        "the cluster has 16 GPUs, and node science lends all but 8 of its 12 GPUs; at most 8"
    )
    assert never(lab, "science", 14, preemptible=False) == (
        "node science of the quota tree is guaranteed 12 GPUs, and a job that cannot be preempted "
        "gets nothing that others are guaranteed; at most 4"
    )


def test_request_above_a_maximum_says_what_fits() -> None:
    physics = a_quota("physics", gpus(4, most=8))
    lab = QuotaLab(physics, a_quota("optics", gpus(2), parent="physics"))
    assert never(lab, "optics", 9) == "node physics of the quota tree may hold 8 GPUs; at most 8"


def test_job_larger_than_the_idle_guarantee_says_what_would_be_within_it() -> None:
    lab = QuotaLab(*LAB)
    lab.submit("lasers", 16)
    lab.settle()
    (job,) = lab.submit("industry", gpus=6)
    lab.cycle()
    assert lab.why(job).endswith("; 4 GPUs or fewer would be within the guarantee")


def test_firm_job_leaves_others_their_guarantee_below_a_maximum() -> None:
    lab = QuotaLab(
        a_quota("optics", gpus(2, most=2)), a_quota("optics/ann", gpus(2), parent="optics")
    )
    lab.submit("optics", user="bob", preemptible=False)
    lab.settle()
    assert lab.held() == {}
    lab.submit("optics", 2, user="ann", preemptible=False)
    lab.settle()
    assert lab.held() == {"optics": 2}
