"""Rankings that score every feasible place, as the literature on GPU fragmentation does.

Nodes that are free in exactly the same way have the same score, so each distinct free vector is
scored once per request and remembered. A score becomes a cost (its negative); the lowest cost wins,
and a tie goes to the lowest ordinal, or first to the tie rule of the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.engine.state.equivalence_classes import NodeClass, RequestShape
from gpu_scheduler.engine.state.node_resources import Grant, Vector
from gpu_scheduler.model.request import WHOLE_MILLI, TypicalShape

if TYPE_CHECKING:
    from gpu_scheduler.engine.state.cluster_state import ClusterState

CPU_NORM = 128_000
GPU_NORM = 8_000
Score = Callable[[Vector, RequestShape], int]
Place = tuple[int, tuple[object, ...], int]
SPARE_PLACES = 1_000
NO_PLACE: Place = (0, (), -1)
SOME_PLACE: Place = (0, (0,), -1)
"""Two constants that are compared by identity."""


def needs_vectors(ranking: Ranking) -> bool:
    """Tell whether the index must keep nodes with the same free vector together."""
    return ranking not in {Ranking.PACK, Ranking.SPREAD}


class Scorer:
    """Finds the best place by score for one cycle; what it learns is kept in the cluster state."""

    def __init__(self, state: ClusterState) -> None:
        """Choose the policy's score."""
        self._index = state.index
        self._ranking = state.policy.ranking
        self._seed = state.policy.seed
        self._draw = 0
        if self._ranking is Ranking.RANDOM:
            self._draw = len(state.running) + sum(state.queue.entries)
        self._memory = state.score_memory
        if self._memory.fragments is None:
            demand, node_classes = state.demand, state.index.node_classes
            self._memory.fragments = Fragmentation(demand, node_classes)
            self._memory.worth = BalanceCost(demand, node_classes, state.model_milli())
        self._fragments = self._memory.fragments
        self._worth = self._memory.worth

    def find(self, shape: RequestShape, within: int | None, starts: int = 0) -> Grant | None:
        """The place with the lowest cost. `starts` tells random draws of one cycle apart."""
        if shape.node_classes_seen != len(self._index.node_classes):
            shape.learn(self._index.node_classes)
        if shape.labelled:
            selected = self._index.selected(shape.request) or 0
            within = selected if within is None else within & selected
        if self._ranking is Ranking.RANDOM:
            return self._find_random(shape, within, starts)
        best: Place | None = None
        chosen = 0
        vectors = self._index.vectors
        places = self._memory.places_of(shape, vectors)
        for number, bits in vectors.items():
            place = places.get(number)
            if place is None:
                place = places[number] = self._place(bits, shape)
            if place is NO_PLACE or (best is not None and place[0] > best[0]):
                continue
            allowed = bits if within is None else bits & within
            if not allowed:
                continue
            ordinal = self._index.first_in(allowed)
            if best is None or (place[0], place[1], ordinal) < (best[0], best[1], chosen):
                best, chosen = place, ordinal
        if best is None:
            return None
        resources = self._index.nodes[chosen]
        return (
            resources.choose_any(shape) if best[2] < 0 else resources.choose_device(shape, best[2])
        )

    def _place(self, bits: int, shape: RequestShape) -> Place:
        """Cost, tie rule and device for a share (or -1) on these nodes of one free vector."""
        resources = self._index.nodes[self._index.first_in(bits)]
        vector = resources.vector
        if vector is None or resources.choose_any(shape) is None:
            return NO_PLACE
        if self._ranking is Ranking.BALANCE:
            return self._worth.cost(vector, shape, resources.devices_for(shape))
        if self._ranking is Ranking.FGD:
            score, device = self._fragments.gradient(vector, shape, resources.devices_for(shape))
            return (-score, (), device)
        if self._ranking is Ranking.RANDOM:
            return SOME_PLACE
        return (-_SCORES[self._ranking](vector, shape), (), -1)

    def _find_random(self, shape: RequestShape, within: int | None, starts: int) -> Grant | None:
        """A feasible node, and for a share a feasible device, by a fixed pseudo-random draw."""
        feasible = 0
        vectors = self._index.vectors
        places = self._memory.places_of(shape, vectors)
        for number, bits in vectors.items():
            place = places.get(number)
            if place is None:
                place = places[number] = self._place(bits, shape)
            if place is not NO_PLACE:
                feasible |= bits
        if within is not None:
            feasible &= within
        if not feasible:
            return None
        draw = mixed(self._seed, self._draw + starts)
        count = feasible.bit_count()
        bit = nth_bit(feasible, count - 1 - draw % count)
        resources = self._index.nodes[self._index.first_in(1 << bit)]
        if not shape.one_part:
            return resources.choose_any(shape)
        devices = [
            position
            for position in range(resources.node_class.size)
            if resources.choose_device(shape, position) is not None
        ]
        return resources.choose_device(shape, devices[(draw >> 32) % len(devices)])


class ScoreMemory:
    """Cached scores, by shape and number of a vector."""

    __slots__ = ("fragments", "places", "worth")

    fragments: Fragmentation | None
    worth: BalanceCost

    def __init__(self) -> None:
        """Start with nothing known."""
        self.places: dict[int, dict[int, Place]] = {}
        self.fragments = None

    def places_of(self, shape: RequestShape, vectors: dict[int, int]) -> dict[int, Place]:
        """What is known of a shape; of vectors that no node has now, not more than of others."""
        places = self.places.setdefault(shape.id, {})
        if len(places) > SPARE_PLACES + 2 * len(vectors):
            places = {number: place for number, place in places.items() if number in vectors}
            self.places[shape.id] = places
        return places

    def forget_shapes(self, kept: set[int]) -> None:
        """Remember only these shapes."""
        self.places = {shape: known for shape, known in self.places.items() if shape in kept}


def mixed(seed: int, number: int) -> int:
    """A 64-bit mix of two numbers (the finaliser of SplitMix64): chance that repeats."""
    value = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def nth_bit(bits: int, number: int) -> int:
    """The position of one of the set bits, counted from the lowest, which is number 0."""
    low, width = 0, bits.bit_length()
    while width > 1:
        half = width // 2
        lower = bits & (1 << half) - 1
        count = lower.bit_count()
        if number < count:
            bits, width = lower, half
        else:
            number -= count
            bits >>= half
            low += half
            width -= half
    return low


_MASK = (1 << 64) - 1


def dot_product(vector: Vector, shape: RequestShape) -> int:
    """Small if the free vector points where the request points."""
    gpu_left = sum(left for left in vector[3] if left > 0)
    cpu = vector[1] * shape.cpu / CPU_NORM**2
    gpu = gpu_left * shape.request.gpu_milli / GPU_NORM**2
    return int(100 * (1 - (cpu + gpu) / 2))


def best_fit(vector: Vector, shape: RequestShape) -> int:
    """High if little CPU and GPU is left over."""
    gpu_left = sum(left for left in vector[3] if left > 0)
    cpu = (vector[1] - shape.cpu) / CPU_NORM
    gpu = (gpu_left - shape.request.gpu_milli) / GPU_NORM
    return int(100 * (1 - 0.5 * cpu - 0.5 * gpu))


def packing(vector: Vector, shape: RequestShape) -> int:
    """Devices in use first, then free devices of used nodes, then empty nodes."""
    if not shape.uses_gpus:
        return 0
    left = vector[3]
    if shape.one_part:
        enough = [rest for rest in left if shape.share <= rest < WHOLE_MILLI]
        if enough:
            return max(100 - min(enough) // 100, 50)
    free = sum(1 for rest in left if rest == WHOLE_MILLI)
    if free < len(left):
        return max(50 - shape.count, 33)
    return max(33 - free, free)


def clustering(vector: Vector, shape: RequestShape) -> int:
    """Requests of the same size keep together."""
    if not shape.uses_gpus:
        return 0
    sizes = vector[4]
    kinship = 0 if sizes else 25
    if size_of(shape) in sizes:
        kinship = 75 if len(sizes) == 1 else 50
    gpu_left = sum(rest for rest in vector[3] if rest > 0)
    return kinship + 25 * (GPU_NORM - gpu_left) // GPU_NORM


def size_of(shape: RequestShape) -> int:
    """Shares are one size; whole devices are a size by their number."""
    return 0 if shape.one_part else shape.count


_SCORES: dict[Ranking, Score] = {
    Ranking.DOT_PRODUCT: dot_product,
    Ranking.BEST_FIT: best_fit,
    Ranking.PACKING: packing,
    Ranking.CLUSTERING: clustering,
}


# Fragmentation as in FGD (USENIX ATC'23): how much of what is free no usual request can use.
#
# The fragment of a node for a typical shape is all its idle GPU if the shape cannot run there, else
# the rests that are too small for it. Weighted over the typical shapes, that is the node's expected
# fragment; a placement is good if it makes that grow the least.

SIGMOID_SCALE = 1000.0
SIGMOID_LIMIT = 700.0
MOST_KNOWN = 100_000
"""So many fragments are remembered; then all are dropped, as old ones seldom come again."""


class Fragmentation:
    """Expected fragments of free vectors; many are remembered."""

    def __init__(self, typical: tuple[TypicalShape, ...], node_classes: list[NodeClass]) -> None:
        """Take the typical shapes and their weights."""
        total = sum(shape.count for shape in typical)
        self._typical = [(shape, shape.count / total) for shape in typical]
        self._node_classes = node_classes
        self._known: dict[tuple[int, int, tuple[int, ...]], float] = {}

    def of(self, class_id: int, cpu_milli: int, left: tuple[int, ...]) -> float:
        """The expected fragment of a node in milli-GPU."""
        key = (class_id, cpu_milli, left)
        fragment = self._known.get(key)
        if fragment is None:
            models = self._node_classes[class_id].models
            fragment = 0.0
            for shape, weight in self._typical:
                fragment += weight * _fragment_for(shape, cpu_milli, left, models)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = fragment
        return fragment

    def gradient(self, vector: Vector, shape: RequestShape, devices: int = -1) -> tuple[int, int]:
        """FGD's score of the best place on such a node, and the device for a share (else -1).

        `devices` are the positions that the request may use, as a mask.
        """
        class_id, cpu, left = vector[0], vector[1], vector[3]
        before = self.of(class_id, cpu, left)
        if not shape.one_part:
            changed = _without_whole(left, shape.least, devices)
            return (_sigmoid(before - self.of(class_id, cpu - shape.cpu, changed)), -1)
        best = (-1, -1)
        for device, rest in enumerate(left):
            if rest >= shape.share and devices >> device & 1:
                changed = (*left[:device], rest - shape.share, *left[device + 1 :])
                score = _sigmoid(before - self.of(class_id, cpu - shape.cpu, changed))
                if score > best[0]:
                    best = (score, device)
        return best


def _fragment_for(
    shape: TypicalShape, cpu_milli: int, left: tuple[int, ...], models: tuple[str, ...]
) -> int:
    idle = sum(rest for rest in left if rest > 0)
    if not shape.gpu_count or cpu_milli < shape.cpu_milli:
        return idle
    if shape.gpu_models and not set(shape.gpu_models) & set(models):
        return idle
    enough = sum(1 for rest in left if rest >= shape.gpu_share_milli)
    if enough < shape.gpu_count:
        return idle
    return sum(rest for rest in left if 0 < rest < shape.gpu_share_milli)


def _without_whole(left: tuple[int, ...], count: int, devices: int) -> tuple[int, ...]:
    """The rest after the request has taken the first wholly free usable devices."""
    changed = list(left)
    for device, rest in enumerate(left):
        if count and rest == WHOLE_MILLI and devices >> device & 1:
            changed[device] = 0
            count -= 1
    return tuple(changed)


def _sigmoid(gain: float) -> int:
    x = max(-SIGMOID_LIMIT, min(SIGMOID_LIMIT, gain / SIGMOID_SCALE))
    return int(100 / (1 + math.exp(-x)))


# The `balance` ranking: keep what is left usable.
#
# It adds six costs: idle GPUs that are short of CPU are stranded; a rest of a GPU is worth only
# what the usual small requests can use of it; breaking a free GPU costs little; requests for
# several GPUs may lose room; a GPU model that jobs ask for by name has a price; and then best fit.
# Integers only, and a node's name or number does not matter (docs/explanation/placement.md has the
# formulas and how the constants behave).

STRANDED = 40
UNUSABLE = 40
REST = 3
LEFT_OVER = 1
LOSES_WIDE = 1_500
MODEL_PRICE = 40
BREAKS_DEVICE = 4_000
USUAL_CPU_MILLI = 5_500
CPU_STEP_MILLI = 500
LARGE_SHARE_MILLI = 667
MICRO = 1_000_000

Cost = tuple[int, tuple[int, int, tuple[int, ...], tuple[str, ...]], int]
"""Cost, a tie rule that depends only on what is free, and the device for a share (or -1)."""


class BalanceCost:
    """Costs of places, given the usual requests and the GPUs of the cluster by model."""

    def __init__(
        self,
        typical: tuple[TypicalShape, ...],
        node_classes: list[NodeClass],
        model_milli: Mapping[str, int],
    ) -> None:
        """Learn what the rests of GPUs are good for, and how much CPU a GPU usually wants."""
        self._node_classes = node_classes
        self._typical = typical
        self._usable = usable_rests(typical)
        self._cpu_per_gpu = usual_cpu_milli(typical)
        self._prices = model_prices(typical, model_milli)
        self._of_class: dict[int, tuple[int, list[tuple[int, int]]]] = {}

    def cost(self, vector: Vector, shape: RequestShape, devices: int = -1) -> Cost:
        """The cost of placing a request that fits on a node with this free vector.

        `devices` are the positions that the request may use, as a mask.
        """
        class_id, cpu, memory, left = vector[:4]
        rests = tuple(sorted(rest for rest in left if rest > 0))
        idle = sum(rests)
        asked = 0 if shape.request.mig_profile else shape.request.gpu_milli
        cost = LEFT_OVER * (idle - asked) + STRANDED * (
            self._stranded(cpu - shape.cpu, idle - asked) - self._stranded(cpu, idle)
        )
        price, wide = self._of_node_class(class_id)
        cost += MODEL_PRICE * price * asked // WHOLE_MILLI
        free = rests.count(WHOLE_MILLI)
        device = -1
        if shape.one_part:
            breaks = BREAKS_DEVICE + LOSES_WIDE * lost_room(wide, free, free - 1) // WHOLE_MILLI
            rest_cost, device = self._best_rest(left, shape.share, devices, breaks)
            cost += rest_cost
        else:
            cost += LOSES_WIDE * lost_room(wide, free, free - shape.least) // WHOLE_MILLI
        return cost, (cpu, memory, rests, self._node_classes[class_id].models), device

    def _of_node_class(self, class_id: int) -> tuple[int, list[tuple[int, int]]]:
        """The price of its GPUs, and the parts of the demand for several of them."""
        found = self._of_class.get(class_id)
        if found is None:
            models = self._node_classes[class_id].models
            price = max((self._prices.get(model, 0) for model in models), default=0)
            found = self._of_class[class_id] = (price, wide_demand(self._typical, models))
        return found

    def _stranded(self, cpu_milli: int, idle_milli: int) -> int:
        """Idle milli-GPU that lack the CPU that usually goes with them."""
        if not idle_milli:
            return 0
        wanted = idle_milli * self._cpu_per_gpu
        return idle_milli * wanted // (wanted + WHOLE_MILLI * cpu_milli)

    def _best_rest(
        self, left: tuple[int, ...], share: int, devices: int, breaks: int
    ) -> tuple[int, int]:
        """The device where the share does the least harm; the smaller rest on a tie."""
        best: tuple[int, int, int] | None = None
        for device, rest in enumerate(left):
            if rest < share or not devices >> device & 1:
                continue
            after = rest - share
            cost = UNUSABLE * (self._usable[rest] - self._usable[after]) + REST * after
            if rest == WHOLE_MILLI:
                cost += breaks
            if best is None or (cost, rest) < best[:2]:
                best = (cost, rest, device)
        return (0, -1) if best is None else (best[0], best[2])


def model_prices(
    typical: tuple[TypicalShape, ...], model_milli: Mapping[str, int]
) -> dict[str, int]:
    """The price of a GPU by model: demand by name, in thousandths of what the cluster could bear.

    A request that names several models counts for each of them, against the GPUs of all of them.
    """
    total = sum(_gpu_milli(shape) for shape in typical)
    capacity = sum(model_milli.values())
    prices: dict[str, int] = {}
    for shape in typical:
        usable = sum(model_milli.get(model, 0) for model in shape.gpu_models)
        if not usable or not total:
            continue
        price = MICRO * _gpu_milli(shape) * capacity // (total * usable)
        for model in shape.gpu_models:
            prices[model] = prices.get(model, 0) + price
    return {model: price * WHOLE_MILLI // MICRO for model, price in prices.items()}


def wide_demand(
    typical: tuple[TypicalShape, ...], models: tuple[str, ...]
) -> list[tuple[int, int]]:
    """Requests for several whole GPUs of these models: how many, and their part of all demand.

    The part is in thousandths of the GPUs that all typical requests together ask for.
    """
    total = sum(_gpu_milli(shape) for shape in typical)
    milli: dict[int, int] = {}
    for shape in typical:
        if shape.gpu_count <= 1 or shape.gpu_share_milli < WHOLE_MILLI:
            continue
        if not shape.gpu_models or not set(models).isdisjoint(shape.gpu_models):
            milli[shape.gpu_count] = milli.get(shape.gpu_count, 0) + _gpu_milli(shape)
    return [(count, part * WHOLE_MILLI // total) for count, part in sorted(milli.items())]


def lost_room(wide: list[tuple[int, int]], free: int, after: int) -> int:
    """The milli-GPU that wide requests can no longer use, weighted by their part of the demand."""
    return sum(part * (free // count - after // count) * count for count, part in wide)


def _gpu_milli(shape: TypicalShape) -> int:
    return shape.count * shape.gpu_count * shape.gpu_share_milli


def usual_cpu_milli(typical: tuple[TypicalShape, ...]) -> int:
    """Half the CPU that GPU work asks for per GPU, rounded to half a core."""
    cpu = sum(shape.count * shape.cpu_milli for shape in typical if shape.gpu_count)
    gpu = sum(_gpu_milli(shape) for shape in typical)
    if not gpu:
        return USUAL_CPU_MILLI
    half = cpu * WHOLE_MILLI // gpu // 2
    return max(CPU_STEP_MILLI, (half + CPU_STEP_MILLI // 2) // CPU_STEP_MILLI * CPU_STEP_MILLI)


def usable_rests(typical: tuple[TypicalShape, ...]) -> list[int]:
    """For every rest of a GPU, how much of it the usual shares can fill.

    Large shares leave room that nothing fits into, so from some size on a share counts as the
    whole device and what would fit beside it as nothing; the size is the one that counts for most.
    """
    counts: dict[int, int] = {}
    for shape in typical:
        if shape.gpu_count == 1 and shape.gpu_share_milli < WHOLE_MILLI:
            counts[shape.gpu_share_milli] = counts.get(shape.gpu_share_milli, 0) + shape.count
    if not counts:
        return list(range(WHOLE_MILLI + 1))
    worth: dict[int, int] = {}
    best = -1
    for large in [WHOLE_MILLI + 1, *sorted(size for size in counts if size > LARGE_SHARE_MILLI)]:
        values = {size: _counted(size, large) for size in counts}
        total = sum(counts[size] * value for size, value in values.items())
        if total > best:
            best, worth = total, values
    pieces = [(size, value) for size, value in sorted(worth.items()) if value]
    usable = [0] * (WHOLE_MILLI + 1)
    for rest in range(1, WHOLE_MILLI + 1):
        most = usable[rest - 1]
        for size, value in pieces:
            if size <= rest:
                most = max(most, usable[rest - size] + value)
        usable[rest] = most
    usable[WHOLE_MILLI] = WHOLE_MILLI
    return usable


def _counted(size: int, large: int) -> int:
    if size >= large:
        return WHOLE_MILLI
    return 0 if size <= WHOLE_MILLI - large else size
