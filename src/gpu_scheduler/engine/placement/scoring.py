"""Rankings that score every feasible place, as the literature on GPU fragmentation does.

Nodes that are free in exactly the same way have the same score, so each distinct free vector is
scored once per request and remembered. A score becomes a cost (its negative); the lowest wins, and
a tie goes to the lowest ordinal, or first to what `worth` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_scheduler.engine.placement.fragmentation import BalanceCost, Fragmentation
from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.engine.state.node_resources import Grant, Vector
from gpu_scheduler.engine.state.request_shape import RequestShape
from gpu_scheduler.model.request import WHOLE_MILLI

if TYPE_CHECKING:
    from gpu_scheduler.engine.state.cluster_state import ClusterState

CPU_NORM = 128_000
GPU_NORM = 8_000
Score = Callable[[Vector, RequestShape], int]
Place = tuple[int, tuple[object, ...], int]
SPARE_PLACES = 1_000
NO_PLACE: Place = (0, (), -1)
SOME_PLACE: Place = (0, (0,), -1)
"""Two constants that are told apart by identity."""


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
            typical = state.policy.typical_shapes
            self._memory.fragments = Fragmentation(typical, state.index.node_classes)
            self._memory.worth = BalanceCost(typical, state.index.node_classes)
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
    """What was found before, by shape and number of a vector."""

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
