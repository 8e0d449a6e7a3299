"""The penalty that an account's usage adds to the keys of its jobs."""

from dataclasses import replace

from gpu_scheduler.engine.fair_share import PROJECTED_MS, FairShare, deserved_ppm
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import AccountUsage
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.quota_tree import QuotaNode
from tests.builders import DAY, HOUR, a_job, a_policy, a_state, a_tenant

A, B = ("a", "ada", Pool.BATCH), ("b", "ada", Pool.BATCH)
FAIR = a_policy(name="fair", fair_ms=DAY, user_fair_ms=0, fair_cap=4)


GPU_HOUR = 1000 * 3_600_000


def two_tenants(*, a: int, b: int, weight_a: int = 1000, policy=FAIR) -> ClusterState:
    return a_state(
        policy=policy,
        tenants=[a_tenant(id="a", weight_milli=weight_a), a_tenant(id="b")],
        queue=[a_job(number=1, tenant="a"), a_job(number=2, tenant="b")],
        tenant_usage={"a": AccountUsage(usage=a * GPU_HOUR), "b": AccountUsage(usage=b * GPU_HOUR)},
    )


def test_usage_penalty_is_weight_times_fair_share_ratio() -> None:
    fair_share = FairShare(two_tenants(a=100, b=100))
    assert (fair_share.penalty_ms(A), fair_share.penalty_ms(B)) == (DAY, DAY)
    fair_share = FairShare(two_tenants(a=200, b=0))
    assert (fair_share.penalty_ms(A), fair_share.penalty_ms(B)) == (2 * DAY, 0)


def test_tenant_with_higher_weight_may_use_more() -> None:
    fair_share = FairShare(two_tenants(a=200, b=100, weight_a=2000))
    assert fair_share.penalty_ms(A) == fair_share.penalty_ms(B)


def test_usage_penalty_is_capped() -> None:
    policy = a_policy(name="fair", fair_ms=DAY, user_fair_ms=0, fair_cap=1)
    assert FairShare(two_tenants(a=200, b=0, policy=policy)).penalty_ms(A) == DAY


def test_users_are_compared_within_tenant() -> None:
    policy = a_policy(name="fair", fair_ms=0, user_fair_ms=HOUR)
    state = a_state(
        policy=policy,
        queue=[a_job(number=1, user="ada"), a_job(number=2, user="bob")],
        user_usage={
            ("vision", "ada"): AccountUsage(usage=300 * GPU_HOUR),
            ("vision", "bob"): AccountUsage(usage=100 * GPU_HOUR),
        },
    )
    fair_share = FairShare(state)
    assert fair_share.penalty_ms(("vision", "ada", Pool.BATCH)) == 1.5 * HOUR
    assert fair_share.penalty_ms(("vision", "bob", Pool.BATCH)) == 0.5 * HOUR


def test_start_counts_at_once_as_up_to_one_hour() -> None:
    assert GPU_HOUR == 1000 * PROJECTED_MS
    fair_share = FairShare(two_tenants(a=1, b=1))
    fair_share.add_start(a_job(tenant="a"), 1000, DAY)
    assert fair_share.penalty_ms(A) == 2 * DAY
    assert fair_share.penalty_ms(B) == DAY


def test_start_counts_when_there_is_no_usage_yet() -> None:
    fair_share = FairShare(two_tenants(a=0, b=0))
    assert fair_share.penalty_ms(A) == fair_share.penalty_ms(B) == 0
    fair_share.add_start(a_job(tenant="a"), 1000, HOUR)
    assert fair_share.penalty_ms(A) > fair_share.penalty_ms(B)


def test_usage_costs_nothing_without_weights() -> None:
    policy = a_policy(name="easy")
    fair_share = FairShare(two_tenants(a=200, b=0, policy=policy))
    fair_share.add_start(a_job(tenant="a"), 1000, HOUR)
    assert fair_share.penalty_ms(A) == 0


def test_departments_are_compared_before_their_teams() -> None:
    tree = (
        QuotaNode(name="one"),
        QuotaNode(name="two", weight_milli=3000),
        QuotaNode(name="a", parent="one"),
        QuotaNode(name="b", parent="two"),
        QuotaNode(name="c", parent="two"),
    )
    usage = {"a": 100, "b": 200, "c": 100}
    state = a_state(
        policy=replace(FAIR, quota_tree=tree),
        queue=[a_job(number=n, tenant=name) for n, name in enumerate("abc", start=1)],
        tenant_usage={name: AccountUsage(usage=hours * GPU_HOUR) for name, hours in usage.items()},
    )
    fair_share = FairShare(state)
    penalties = [fair_share.penalty_ms((name, "ada", Pool.BATCH)) for name in "abc"]
    # Department one had 100 of 400 GPU-hours with a quarter of the weights, and so has its only
    # team had its share. In department two, b had 200 of 300 and c 100 of 300.
    assert penalties == [2 * DAY, DAY + DAY * 1333 // 1000, DAY + DAY * 666 // 1000]


def test_idle_team_counts_in_the_usage_of_its_department() -> None:
    tree = (QuotaNode(name="one"), QuotaNode(name="two"))
    teams = (QuotaNode(name="a", parent="one"), QuotaNode(name="idle", parent="one"))
    state = a_state(
        policy=replace(FAIR, quota_tree=(*tree, *teams, QuotaNode(name="b", parent="two"))),
        queue=[a_job(number=1, tenant="a"), a_job(number=2, tenant="b")],
        tenant_usage={"idle": AccountUsage(usage=100 * GPU_HOUR)},
    )
    fair_share = FairShare(state)
    assert fair_share.penalty_ms(A) > fair_share.penalty_ms(B)


def test_start_counts_for_all_teams_of_a_department() -> None:
    tree = (
        QuotaNode(name="one"),
        QuotaNode(name="a", parent="one"),
        QuotaNode(name="b", parent="one"),
    )
    state = a_state(
        policy=replace(FAIR, quota_tree=tree),
        queue=[a_job(number=n, tenant=name) for n, name in enumerate("abz", start=1)],
    )
    fair_share = FairShare(state)
    before = fair_share.penalty_ms(B)
    fair_share.add_start(a_job(tenant="a"), 1000, DAY)
    assert fair_share.penalty_ms(A) > fair_share.penalty_ms(B) > before


def test_user_node_has_its_own_weight() -> None:
    policy = a_policy(name="fair", fair_ms=0, user_fair_ms=HOUR)
    tree = (
        QuotaNode(name="vision"),
        QuotaNode(name="vision/ada", parent="vision", weight_milli=3000),
    )
    state = a_state(
        policy=replace(policy, quota_tree=tree),
        queue=[a_job(number=1, user="ada"), a_job(number=2, user="bob")],
        user_usage={
            ("vision", "ada"): AccountUsage(usage=300 * GPU_HOUR),
            ("vision", "bob"): AccountUsage(usage=100 * GPU_HOUR),
        },
    )
    fair_share = FairShare(state)
    assert fair_share.penalty_ms(("vision", "ada", Pool.BATCH)) == HOUR
    assert fair_share.penalty_ms(("vision", "bob", Pool.BATCH)) == HOUR


def test_deserved_part_follows_weights_level_by_level_among_those_who_take_part() -> None:
    nodes = {
        "science": QuotaNode(name="science", weight_milli=3000),
        "vision": QuotaNode(name="vision", parent="science"),
        "speech": QuotaNode(name="speech", parent="science", weight_milli=1000),
    }
    weights = {"vision": 3000, "speech": 9000, "guests": 1000}
    assert deserved_ppm(nodes, weights, ["vision", "speech", "guests"]) == {
        "vision": 562_500,
        "speech": 187_500,
        "guests": 250_000,
    }
    assert deserved_ppm(nodes, weights, ["vision"]) == {"vision": 1_000_000}
    assert deserved_ppm({}, {}, ["one", "other"]) == {"one": 500_000, "other": 500_000}
