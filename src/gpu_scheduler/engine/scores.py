"""Rankings that score every feasible place, as the literature on GPU fragmentation does.

Nodes that are free in exactly the same way have the same score, so each distinct free vector is
scored once per request and remembered. Scores are integers; the highest wins, and a tie goes to
the lowest ordinal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_scheduler.engine.fragment import Fragments
from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.engine.shape import Shape
from gpu_scheduler.engine.slot import Hold, Vector
from gpu_scheduler.model.request import WHOLE_MILLI

if TYPE_CHECKING:
    from gpu_scheduler.engine.picture import Picture

CPU_NORM = 128_000
GPU_NORM = 8_000
Score = Callable[[Vector, Shape], int]


def needs_vectors(ranking: Ranking) -> bool:
    """Tell whether the index must keep nodes with the same free vector together."""
    return ranking not in {Ranking.PACK, Ranking.SPREAD}


class Scorer:
    """Finds the best place by score for one cycle; what it learns is kept in the picture."""

    def __init__(self, picture: Picture) -> None:
        """Choose the policy's score."""
        self._index = picture.index
        self._ranking = picture.policy.ranking
        self._seed = picture.policy.seed
        memory = picture.score_memory
        if memory.fragments is None:
            memory.fragments = Fragments(picture.policy.typical_shapes, picture.index.kinds)
        self._fragments = memory.fragments
        self._memory = memory

    def find(self, shape: Shape, within: int | None) -> Hold | None:
        """The place with the highest score."""
        if shape.kinds_seen != len(self._index.kinds):
            shape.learn(self._index.kinds)
        if shape.labelled:
            selected = self._index.selected(shape.request) or 0
            within = selected if within is None else within & selected
        if self._ranking is Ranking.RANDOM:
            return self._find_random(shape, within)
        best: tuple[int, int] | None = None
        device = -1
        scores = self._memory.scores.setdefault(shape.id, {})
        for vector, bits in self._index.vectors.items():
            found = scores.get(vector)
            if found is None:
                found = scores[vector] = self._score(vector, shape)
            if found[0] < 0 or (best is not None and -found[0] > best[0]):
                continue
            if within is not None:
                bits &= within
                if not bits:
                    continue
            ordinal = (bits & -bits).bit_length() - 1
            if best is None or (-found[0], ordinal) < best:
                best, device = (-found[0], ordinal), found[1]
        if best is None:
            return None
        return self._hold(best[1], shape, device)

    def _hold(self, ordinal: int, shape: Shape, device: int) -> Hold | None:
        slot = self._index.slots[ordinal]
        if device < 0:
            return slot.choose_any(shape)
        return slot.choose_device(shape, device)

    def _score(self, vector: Vector, shape: Shape) -> tuple[int, int]:
        """(score, device for a share or -1); a score of -1 means that it does not fit."""
        slot = self._index.slots[self._lowest(vector)]
        hold = slot.choose_any(shape)
        if hold is None:
            return (-1, -1)
        if self._ranking is Ranking.FGD:
            return self._fragments.gradient(vector, shape)
        if self._ranking is Ranking.BALANCE:
            return self._fragments.gradient(vector, shape)
        return (_SCORES[self._ranking](vector, shape), -1)

    def _lowest(self, vector: Vector) -> int:
        bits = self._index.vectors[vector]
        return (bits & -bits).bit_length() - 1

    def _find_random(self, shape: Shape, within: int | None) -> Hold | None:
        """A feasible node, and for a share a feasible device, by a fixed pseudo-random draw."""
        feasible = 0
        for vector, bits in self._index.vectors.items():
            if self._index.slots[self._lowest(vector)].choose_any(shape) is not None:
                feasible |= bits
        if within is not None:
            feasible &= within
        if not feasible:
            return None
        self._memory.draws += 1
        draw = mixed(self._seed, self._memory.draws)
        slots = list(self._index.slots_in(feasible))
        slot = slots[draw % len(slots)]
        if not shape.one_part:
            return slot.choose_any(shape)
        devices = [
            position
            for position in range(slot.kind.size)
            if slot.choose_device(shape, position) is not None
        ]
        return slot.choose_device(shape, devices[(draw >> 32) % len(devices)])


class ScoreMemory:
    """What was scored before, by shape and vector. Draws number the random choices."""

    __slots__ = ("draws", "fragments", "scores")

    def __init__(self) -> None:
        """Start with nothing known."""
        self.scores: dict[int, dict[Vector, tuple[int, int]]] = {}
        self.fragments: Fragments | None = None
        self.draws = 0


def mixed(seed: int, number: int) -> int:
    """A 64-bit mix of two numbers (the finaliser of SplitMix64): chance that repeats."""
    value = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


_MASK = (1 << 64) - 1


def dot_product(vector: Vector, shape: Shape) -> int:
    """Small if the free vector points where the request points."""
    gpu_left = sum(left for left in vector[3] if left > 0)
    cpu = vector[1] * shape.cpu / CPU_NORM**2
    gpu = gpu_left * shape.request.gpu_milli / GPU_NORM**2
    return int(100 * (1 - (cpu + gpu) / 2))


def best_fit(vector: Vector, shape: Shape) -> int:
    """High if little CPU and GPU is left over."""
    gpu_left = sum(left for left in vector[3] if left > 0)
    cpu = (vector[1] - shape.cpu) / CPU_NORM
    gpu = (gpu_left - shape.request.gpu_milli) / GPU_NORM
    return int(100 * (1 - 0.5 * cpu - 0.5 * gpu))


def packing(vector: Vector, shape: Shape) -> int:
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


def clustering(vector: Vector, shape: Shape) -> int:
    """Requests of the same size keep together."""
    if not shape.uses_gpus:
        return 0
    sizes = vector[4]
    if size_of(shape) in sizes:
        kinship = 75 if len(sizes) == 1 else 50
    else:
        kinship = 0 if sizes else 25
    gpu_left = sum(rest for rest in vector[3] if rest > 0)
    return kinship + 25 * (GPU_NORM - gpu_left) // GPU_NORM


def size_of(shape: Shape) -> int:
    """Shares are one size; whole devices are a size by their number."""
    return 0 if shape.one_part else shape.count


_SCORES: dict[Ranking, Score] = {
    Ranking.DOT_PRODUCT: dot_product,
    Ranking.BEST_FIT: best_fit,
    Ranking.PACKING: packing,
    Ranking.CLUSTERING: clustering,
}
