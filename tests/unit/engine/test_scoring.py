"""Published placement formulas against results computed by hand; every feasible place is found."""

from random import Random

import pytest

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.placement.scoring import (
    CPU_STEP_MILLI,
    NO_PLACE,
    SPARE_PLACES,
    USUAL_CPU_MILLI,
    BalanceCost,
    Fragmentation,
    ScoreMemory,
    Scorer,
    best_fit,
    clustering,
    dot_product,
    lost_room,
    mixed,
    model_prices,
    nth_bit,
    packing,
    usable_rests,
    usual_cpu_milli,
    wide_demand,
)
from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.equivalence_classes import NodeClass, RequestShape
from gpu_scheduler.engine.state.node_resources import Vector
from gpu_scheduler.model.request import TypicalShape
from tests.builders import (
    GPU_MB,
    a_cluster,
    a_device,
    a_job,
    a_mig_device,
    a_node,
    a_policy,
    a_request,
    a_state,
    on,
    places,
    running,
    started,
)

SCORED = [
    Ranking.RANDOM,
    Ranking.DOT_PRODUCT,
    Ranking.CLUSTERING,
    Ranking.PACKING,
    Ranking.BEST_FIT,
    Ranking.FGD,
    Ranking.BALANCE,
]
EMPTY = (1000,) * 8


def a_shape(**fields) -> RequestShape:
    return RequestShape(0, a_request(**fields))


def a_vector(left=EMPTY, *, cpus: int = 64, sizes: tuple[int, ...] = ()) -> Vector:
    return (0, cpus * 1000, 0, tuple(left), sizes)


def typical(gpus: int = 1, share: int = 1000, count: int = 1, cpus: int = 0, models=()):
    return TypicalShape(
        cpu_milli=cpus * 1000,
        memory_mb=0,
        gpu_count=gpus,
        gpu_share_milli=share,
        gpu_models=models,
        count=count,
    )


KINDS = [NodeClass(0, a_node(gpus=8), 0)]


# --- four scores of a node


def test_dot_product() -> None:
    # CPU 64 x 8 / 128^2 = 1/32, GPU 8 x 1 / 8^2 = 1/8: 100 x (1 - 5/64) = 92.1875
    assert dot_product(a_vector(), a_shape(gpus=1, cpus=8)) == 92
    assert dot_product(a_vector([0] * 8, cpus=0), a_shape(gpus=1, cpus=8)) == 100


def test_best_fit() -> None:
    # CPU (64 - 8) / 128 = 7/16, GPU (8 - 1) / 8 = 7/8: 100 x (1 - 7/32 - 7/16) = 34.375
    assert best_fit(a_vector(), a_shape(gpus=1, cpus=8)) == 34
    assert best_fit(a_vector([1000], cpus=8), a_shape(gpus=1, cpus=8)) == 100


@pytest.mark.parametrize(
    ("left", "fields", "score"),
    [
        ([500, 1000], {"gpus": 0.5}, 95),
        ([600, 900], {"gpus": 0.5}, 94),
        ([300, 1000], {"gpus": 0.5}, 49),
        ([0, 1000, 1000, 1000], {"gpus": 2}, 48),
        ([0, *[1000] * 20], {"gpus": 18}, 33),
        (EMPTY, {"gpus": 1}, 25),
        ([1000] * 2, {"gpus": 1}, 31),
        (EMPTY, {"gpus": 0, "cpus": 1}, 0),
    ],
)
def test_packing(left, fields, score) -> None:
    assert packing(a_vector(left), a_shape(**fields)) == score


@pytest.mark.parametrize(
    ("sizes", "left", "fields", "score"),
    [
        ((2,), [0, 0, *[1000] * 6], {"gpus": 2}, 75 + 6),
        ((0, 2), [0, 0, *[1000] * 6], {"gpus": 2}, 50 + 6),
        ((), EMPTY, {"gpus": 2}, 25),
        ((1,), [0, *[1000] * 7], {"gpus": 2}, 3),
        ((0,), [500, *[1000] * 7], {"gpus": 0.5}, 75 + 1),
        ((0,), [500, *[1000] * 7], {"gpus": 0, "cpus": 1}, 0),
    ],
)
def test_clustering(sizes, left, fields, score) -> None:
    assert clustering(a_vector(left, sizes=sizes), a_shape(**fields)) == score


def test_random_scores_are_reproducible_and_spread() -> None:
    draws = [mixed(7, number) for number in range(1000)]
    assert draws == [mixed(7, number) for number in range(1000)]
    assert len(set(draws)) == 1000
    assert draws != [mixed(8, number) for number in range(1000)]
    assert 400 < sum(draw % 2 for draw in draws) < 600


def test_nth_set_bit_is_found() -> None:
    bits = 0b1011_0000_0000_0000_0001_0110
    assert [nth_bit(bits, number) for number in range(6)] == [1, 2, 4, 20, 21, 23]
    assert nth_bit(1, 0) == 0
    assert nth_bit(1 << 1212, 0) == 1212


def test_places_of_outdated_node_vectors_are_forgotten() -> None:
    memory = ScoreMemory()
    now = {a_vector(cpus=1): 1}
    for cpus in range(2 * SPARE_PLACES):
        memory.places_of(a_shape(), now)[a_vector(cpus=cpus)] = NO_PLACE
    places = memory.places_of(a_shape(), now)
    assert len(places) <= SPARE_PLACES + 2
    assert a_vector(cpus=1) in places


# --- fragments


def test_remainder_too_small_is_fragment() -> None:
    fragments = Fragmentation((typical(share=1000), typical(share=500)), KINDS)
    # For a whole GPU the half is lost, for a half nothing is.
    assert fragments.of(0, 64_000, (500, 1000)) == 250
    # Neither fits anywhere: all 600 are lost to both.
    assert fragments.of(0, 64_000, (300, 300)) == 600
    assert fragments.of(0, 64_000, (-1, 0)) == 0


def test_idle_capacity_is_lost_to_shapes_that_cannot_run() -> None:
    idle = (500, 1000)
    assert Fragmentation((typical(cpus=65),), KINDS).of(0, 64_000, idle) == 1500
    assert Fragmentation((typical(models=("H100",)),), KINDS).of(0, 64_000, idle) == 1500
    assert Fragmentation((typical(models=("A100",)),), KINDS).of(0, 64_000, idle) == 500
    assert Fragmentation((typical(gpus=0, share=0),), KINDS).of(0, 64_000, idle) == 1500
    assert Fragmentation((typical(gpus=2),), KINDS).of(0, 64_000, idle) == 1500


def test_typical_shapes_are_weighted_by_frequency() -> None:
    often = Fragmentation((typical(share=1000, count=3), typical(share=500, count=1)), KINDS)
    assert often.of(0, 64_000, (500, 1000)) == 375


def test_share_goes_where_fragmentation_grows_least() -> None:
    fragments = Fragmentation((typical(share=1000), typical(share=500)), KINDS)
    # On the half: 250 -> 0, sigmoid(0.25) = 0.562; on the whole one: 250 -> 500, 0.437.
    assert fragments.gradient(a_vector((500, 1000)), a_shape(gpus=0.5)) == (56, 0)
    assert fragments.gradient(a_vector((300, 1000)), a_shape(gpus=0.5))[1] == 1


def test_whole_devices_have_one_score_per_node() -> None:
    fragments = Fragmentation((typical(share=1000), typical(share=500)), KINDS)
    # (500, 1000) -> (500, 0): for a whole GPU and for a half 500 and 0 are lost, so 250 as before.
    assert fragments.gradient(a_vector((500, 1000)), a_shape(gpus=1)) == (50, -1)


# --- balance cost


def test_usual_cpu_per_gpu_is_half_of_requests_in_half_core_steps() -> None:
    assert usual_cpu_milli(()) == USUAL_CPU_MILLI
    assert usual_cpu_milli((typical(cpus=8),)) == 4000
    assert usual_cpu_milli((typical(cpus=9), typical(gpus=0, share=0, cpus=99))) == 4500
    assert usual_cpu_milli((typical(cpus=8), typical(cpus=16, count=3))) == 7000
    assert usual_cpu_milli((typical(cpus=0),)) == CPU_STEP_MILLI


def test_remainder_is_worth_what_usual_shares_can_fill() -> None:
    assert usable_rests(())[350] == 350
    halves = usable_rests((typical(share=500),))
    assert [halves[rest] for rest in (0, 499, 500, 999, 1000)] == [0, 0, 500, 500, 1000]
    mixed_shares = usable_rests((typical(share=300), typical(share=500)))
    assert [mixed_shares[rest] for rest in (299, 300, 600, 800, 900)] == [0, 300, 600, 800, 900]


def test_large_share_counts_as_whole_device() -> None:
    large = usable_rests((typical(share=700),))
    assert [large[rest] for rest in (300, 699, 700)] == [0, 0, 1000]
    with_small = usable_rests((typical(share=700), typical(share=200, count=10)))
    assert [with_small[rest] for rest in (200, 700, 900)] == [200, 700, 900]


def test_share_cost_matches_manual_computation() -> None:
    cost, _, device = BalanceCost((), KINDS, {}).cost(a_vector((500, 1000)), a_shape(gpus=0.5))
    # 1,000 milli-GPU are left over; stranded go from 171 to 79; the half of the used GPU costs
    # 40 x 500, where a fresh one would cost 20,000 + 3 x 500 + 4,000.
    assert (cost, device) == (1000 + 40 * (79 - 171) + 40 * 500, 0)


def test_opening_empty_node_costs_what_wide_requests_lose() -> None:
    def difference(worth: BalanceCost) -> int:
        fresh, _, _ = worth.cost(a_vector(EMPTY, cpus=0), a_shape(gpus=1))
        used, _, _ = worth.cost(a_vector((0, *EMPTY[1:]), cpus=0), a_shape(gpus=1))
        return fresh - used

    # Without CPU everything idle is stranded before and after: what is left over differs by 1,000.
    assert difference(BalanceCost((), KINDS, {})) == 1000
    assert difference(BalanceCost((typical(gpus=1, count=9),), KINDS, {})) == 1000
    # Half of the demand is for 8 GPUs, so 8 x 1,500 / 2 is lost.
    half = (typical(gpus=8), typical(gpus=1, count=8))
    assert difference(BalanceCost(half, KINDS, {})) == 1000 + 8 * 1500 // 2
    whole, _, _ = BalanceCost((), KINDS, {}).cost(a_vector(EMPTY, cpus=0), a_shape(gpus=8))
    assert whole == 40 * -8000


def test_wide_requests_lose_what_their_number_no_longer_divides() -> None:
    wide = wide_demand((typical(gpus=4), typical(gpus=2, count=2), typical(count=12)), ("H100",))
    assert wide == [(2, 200), (4, 200)], "a fifth of all GPUs is asked for in twos, and in fours"
    assert lost_room(wide, 8, 7) == 200 * 2 + 200 * 4
    assert lost_room(wide, 7, 6) == 0
    assert lost_room(wide, 6, 4) == 200 * 2
    assert wide_demand((typical(gpus=4, models=("A100",)),), ("H100",)) == []


def test_model_costs_as_much_as_its_gpus_are_in_demand_by_name() -> None:
    capacity = {"A100": 8_000, "H100": 2_000, "T4": 6_000}
    named = typical(gpus=1, models=("H100",), count=1)
    anything = typical(gpus=1, count=7)
    # An eighth of the demand names an eighth of the GPUs: as much as the cluster could bear.
    assert model_prices((named, anything), capacity) == {"H100": 1000}
    either = typical(gpus=1, models=("A100", "H100"), count=1)
    assert model_prices((either, anything), capacity) == {"A100": 200, "H100": 200}
    assert model_prices((anything,), capacity) == {}
    assert model_prices((typical(models=("B200",)),), capacity) == {}


def test_balance_keeps_models_for_jobs_that_ask_for_them() -> None:
    nodes = (a_node(ordinal=0, gpus=2, device={"model": "T4"}), a_node(ordinal=1, gpus=2))
    policy = a_policy(name="balance")
    state = a_state(policy=policy, nodes=nodes, queue=[a_job(number=1)])
    assert decide(state, policy, 0).starts[0].placements[0].node_id == "n1", "a tie"

    state.set_demand((typical(models=("A100",)), typical()))

    assert decide(state, policy, 0).starts[0].placements[0].node_id == "n0"
    rebuilt = ClusterState.from_snapshot(state.snapshot(), policy)
    assert decide(rebuilt, policy, 0) == decide(state, policy, 0)


def test_tie_rule_depends_only_on_free_capacity() -> None:
    one = BalanceCost((), KINDS, {}).cost(a_vector((500, 1000)), a_shape(gpus=1))
    other = BalanceCost((), KINDS, {}).cost(a_vector((1000, 500)), a_shape(gpus=1))
    assert one == other


# --- choice of places


@pytest.mark.parametrize("ranking", SCORED)
def test_every_ranking_places_all_jobs_that_fit(ranking: Ranking) -> None:
    policy = a_policy(name=ranking.value, typical_shapes=(typical(), typical(share=500)))
    jobs = [
        a_job(number=n, gpus=g) for n, g in enumerate((8, 0.5, 0.5, 4, 1.5, 1.5, 0, 1), start=1)
    ]
    state = a_state(policy=policy, nodes=a_cluster(nodes=3), queue=jobs)
    assert started(decide(state, policy, 0)) == [job.id for job in jobs]


@pytest.mark.parametrize("ranking", SCORED)
def test_nodes_with_equal_shares_may_differ_in_memory(ranking: Ranking) -> None:
    """Half of each GPU is free, but most of the memory of the first one is used."""
    policy = a_policy(name=ranking.value, typical_shapes=(typical(share=500),))
    held = [
        running(a_job(number=8, gpus=0.5), on("n0", {0: 500}, gpu_memory_mb=GPU_MB - 1000)),
        running(a_job(number=9, gpus=0.5), on("n1", {0: 500}, gpu_memory_mb=1000)),
    ]
    state = a_state(
        policy=policy,
        nodes=a_cluster(nodes=2, gpus=1),
        held=held,
        queue=[a_job(number=1, gpus=0.5, gpu_memory_mb=40_000)],
    )
    assert places(decide(state, policy, 0), "j1") == {"n1": [0]}


@pytest.mark.parametrize("ranking", SCORED)
def test_devices_with_equal_shares_may_differ_in_memory(ranking: Ranking) -> None:
    policy = a_policy(name=ranking.value, typical_shapes=(typical(share=500),))
    held = [
        running(a_job(number=8, gpus=0.5), on("n0", {0: 500}, gpu_memory_mb=GPU_MB - 1000)),
        running(a_job(number=9, gpus=0.5), on("n0", {1: 500}, gpu_memory_mb=1000)),
    ]
    state = a_state(
        policy=policy,
        nodes=[a_node(gpus=2)],
        held=held,
        queue=[a_job(number=1, gpus=0.5, gpu_memory_mb=40_000)],
    )
    assert places(decide(state, policy, 0), "j1") == {"n0": [1]}


@pytest.mark.parametrize("ranking", SCORED)
def test_nodes_with_equal_vectors_may_differ_in_slices(ranking: Ranking) -> None:
    policy = a_policy(name=ranking.value, typical_shapes=(typical(),))
    nodes = [a_node(ordinal=n, devices=[a_mig_device(slices={"3g.40gb": 1})]) for n in range(2)]
    jobs = [a_job(number=n, mig_profile="3g.40gb") for n in (1, 2)]
    state = a_state(policy=policy, nodes=nodes, queue=jobs)
    assert started(decide(state, policy, 0)) == ["j1", "j2"]


@pytest.mark.parametrize("ranking", SCORED)
def test_share_stays_on_allowed_devices(ranking: Ranking) -> None:
    policy = a_policy(name=ranking.value, typical_shapes=(typical(share=500),))
    held = [running(a_job(number=9, gpus=0.5), on("n0", {0: 500}))]
    state = a_state(
        policy=policy,
        nodes=[a_node(gpus=4)],
        held=held,
        queue=[a_job(number=1, gpus=0.5, device_ids=(2,))],
    )
    assert places(decide(state, policy, 0), "j1") == {"n0": [2]}


@pytest.mark.parametrize("ranking", SCORED)
def test_device_with_held_memory_is_not_free(ranking: Ranking) -> None:
    policy = a_policy(name=ranking.value, typical_shapes=(typical(),))
    held = [running(a_job(number=9, gpus=0, gpu_memory_mb=4), on("n0", {0: 0}, gpu_memory_mb=4))]
    state = a_state(
        policy=policy,
        nodes=a_cluster(nodes=2, gpus=1),
        held=held,
        queue=[a_job(number=1), a_job(number=2, gpus=0.99)],
    )
    plan = decide(state, policy, 0)
    assert (places(plan, "j1"), places(plan, "j2")) == ({"n1": [0]}, {"n0": [0]})


@pytest.mark.parametrize("ranking", SCORED)
@pytest.mark.parametrize("seed", range(5))
def test_place_is_found_if_and_only_if_one_exists(ranking: Ranking, seed: int) -> None:
    """Compared with asking every node, while shares, memory, slices and whole devices change."""
    chance = Random(seed)
    state = a_state(
        policy=a_policy(name=ranking.value, typical_shapes=(typical(), typical(share=500))),
        nodes=[
            a_node(
                ordinal=ordinal,
                cpus=16,
                devices=[
                    a_device(index=0),
                    a_device(index=1, memory_mb=40_000),
                    a_mig_device(index=2),
                ],
            )
            for ordinal in range(3)
        ],
    )
    fields = [
        {"gpus": 1},
        {"gpus": 2},
        {"gpus": 1.5},
        {"gpus": 0.5},
        {"gpus": 0.3, "gpu_memory_mb": 39_000},
        {"gpus": 0, "gpu_memory_mb": 25_000},
        {"gpus": 0.2, "device_ids": (1,)},
        {"gpus": 3, "mig_profile": "1g.10gb"},
        {"gpus": 0, "cpus": 5},
    ]
    index = state.index
    shapes = [index.shape(a_request(**field)) for field in fields]
    scorer = Scorer(state)
    held = []
    for _ in range(300):
        shape = chance.choice(shapes)
        grant = scorer.find(shape, None)
        fits = any(resources.choose_any(shape) is not None for resources in index.by_id.values())
        assert (grant is not None) == fits
        if grant is not None:
            index.take(grant)
            held.append(grant)
        if held and (grant is None or chance.random() < 0.3):
            index.give(held.pop(chance.randrange(len(held))))


@pytest.mark.parametrize("ranking", SCORED)
def test_labels_hold_for_scored_rankings(ranking: Ranking) -> None:
    policy = a_policy(name=ranking.value, typical_shapes=(typical(),))
    nodes = [a_node(ordinal=0), a_node(ordinal=1, labels=(("zone", "a"),))]
    jobs = [a_job(number=n, gpus=4, node_labels=(("zone", "a"),)) for n in (1, 2, 3)]
    state = a_state(policy=policy, nodes=nodes, queue=jobs)
    plan = decide(state, policy, 0)
    assert started(plan) == ["j1", "j2"]
    assert list(places(plan, "j1")) == ["n1"]


@pytest.mark.parametrize(
    ("ranking", "node"),
    [
        (Ranking.BEST_FIT, "n1"),
        (Ranking.PACKING, "n1"),
        (Ranking.CLUSTERING, "n1"),
        (Ranking.FGD, "n1"),
        (Ranking.BALANCE, "n1"),
        (Ranking.DOT_PRODUCT, "n1"),
    ],
)
def test_small_job_joins_used_node(ranking: Ranking, node: str) -> None:
    policy = a_policy(name=ranking.value, typical_shapes=(typical(gpus=8), typical(gpus=1)))
    held = [running(a_job(number=9, gpus=1), on("n1", [0]))]
    state = a_state(
        policy=policy, nodes=a_cluster(nodes=2), held=held, queue=[a_job(number=1, gpus=1)]
    )
    assert list(places(decide(state, policy, 0), "j1")) == [node]


def test_registration_order_does_not_matter() -> None:
    policy = a_policy(name="fgd", typical_shapes=(typical(), typical(share=500)))
    jobs = [a_job(number=n, gpus=g) for n, g in enumerate((0.5, 1, 2, 0.5, 4), start=1)]
    nodes = a_cluster(nodes=3, gpus=4)
    plans = [
        decide(a_state(policy=policy, nodes=order, queue=jobs), policy, 0).to_json()
        for order in (nodes, nodes[::-1])
    ]
    assert plans[0] == plans[1]
