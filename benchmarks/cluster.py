"""A large cluster and a mix of work for it, the same in every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import WHOLE_MILLI, Request
from gpu_scheduler.simulator.workload import NodeGroup, nodes_of

MODELS = ("A100", "H100", "L40S")
SIZES = ((1, 50), (2, 12), (4, 9), (8, 14))
FRACTIONS = ((100, 5), (250, 5), (500, 5))
CORES_PER_GPU = ((2, 20), (4, 30), (8, 30), (12, 20))
HEAVY_CORES_PER_GPU = ((2, 20), (4, 30), (8, 25), (12, 15), (24, 10))
"""Some jobs want more than their part of the node's CPU, so GPUs are left without CPU."""
MEMORY_PER_GPU_MB = ((8_192, 30), (32_768, 40), (98_304, 30))


def large_cluster(nodes: int = 10_000) -> tuple[Node, ...]:
    """Nodes of 8 GPUs, 128 cores and 1 TiB: half A100 in islands of four, then H100 and L40S."""
    half, third = nodes // 2, nodes * 3 // 10
    return nodes_of(
        [
            NodeGroup(id="a", count=half, model="A100", island_size=4, island_gbps=600),
            NodeGroup(id="h", count=third, model="H100", island_gbps=900),
            NodeGroup(id="l", count=nodes - half - third, model="L40S", gpu_memory_mb=49_152),
        ]
    )


def whole_request(chance: Random, gpus: int, *, cpu_heavy: bool = False) -> Request:
    """So many whole GPUs with CPU and memory; three of ten requests name their models."""
    cores = drawn(chance, HEAVY_CORES_PER_GPU if cpu_heavy and gpus < 8 else CORES_PER_GPU)
    return Request(
        gpu_count=gpus,
        gpu_models=_models(chance),
        cpu_milli=cores * gpus * 1000,
        memory_mb=drawn(chance, MEMORY_PER_GPU_MB) * gpus,
    )


def fraction_request(chance: Random, *, cpu_heavy: bool = False) -> Request:
    """A share of one GPU."""
    share = drawn(chance, FRACTIONS)
    whole = whole_request(chance, 1, cpu_heavy=cpu_heavy)
    return Request(
        gpu_count=1,
        gpu_share_milli=share,
        gpu_models=whole.gpu_models,
        cpu_milli=whole.cpu_milli * share // WHOLE_MILLI,
        memory_mb=whole.memory_mb * share // WHOLE_MILLI,
    )


def any_request(chance: Random, *, cpu_heavy: bool = False) -> Request:
    """One GPU, several or a share, as they come."""
    size = drawn(chance, (*SIZES, (0, sum(weight for _, weight in FRACTIONS))))
    if not size:
        return fraction_request(chance, cpu_heavy=cpu_heavy)
    return whole_request(chance, size, cpu_heavy=cpu_heavy)


def distinct(draw: Callable[[], Request], count: int) -> list[Request]:
    """So many different requests."""
    found: dict[Request, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


def used_index(nodes: tuple[Node, ...], percent: int, seed: int) -> NodeIndex:
    """An index with this much of all GPUs held, as after long use.

    Filled to 95 %, then emptied in random order, then a fifth of the work replaced by other work,
    so that nodes are left free in many different ways.
    """
    chance = Random(seed)
    index = NodeIndex()
    for node in nodes:
        index.add_node(node)
    total = sum(node.gpu_count for node in nodes) * WHOLE_MILLI
    requests = [any_request(chance, cpu_heavy=True) for _ in range(2_000)]
    grants: list[Grant] = []
    held = _take_until(index, chance, requests, grants, 0, total * 95 // 100)
    for _ in range(5):
        chance.shuffle(grants)
        held = _give_until(index, grants, held, total * percent * 96 // 10_000)
        held = _take_until(index, chance, requests, grants, held, total * percent // 100)
    return index


def free_devices_histogram(index: NodeIndex) -> dict[int, int]:
    """How many nodes have so many wholly free devices."""
    counts = Counter(resources.free_mask.bit_count() for resources in index.by_id.values())
    return dict(sorted(counts.items()))


def gpu_milli(grant: Grant) -> int:
    """What a hold has of GPUs."""
    return grant.mask.bit_count() * WHOLE_MILLI + sum(share for _, share, _ in grant.parts)


def drawn(chance: Random, weights: tuple[tuple[int, int], ...]) -> int:
    """One of the values, by weight."""
    return chance.choices([value for value, _ in weights], [weight for _, weight in weights])[0]


def _models(chance: Random) -> tuple[str, ...]:
    if chance.random() < 0.7:
        return ()
    return tuple(sorted(chance.sample(MODELS, chance.choice((1, 2)))))


def _take_until(
    index: NodeIndex,
    chance: Random,
    requests: list[Request],
    grants: list[Grant],
    held: int,
    wanted: int,
) -> int:
    misses = 0
    while held < wanted and misses < 1_000:
        grant = index.find(index.shape(chance.choice(requests)))
        if grant is None:
            misses += 1
            continue
        index.take(grant)
        grants.append(grant)
        held += gpu_milli(grant)
    return held


def _give_until(index: NodeIndex, grants: list[Grant], held: int, wanted: int) -> int:
    while held > wanted:
        grant = grants.pop()
        index.give(grant)
        held -= gpu_milli(grant)
    return held
