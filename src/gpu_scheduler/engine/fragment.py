"""How much of what is free is good for nothing: fragmentation as in FGD (USENIX ATC'23).

The fragment of a node for a typical shape is all its idle GPU if the shape cannot run there, else
the rests that are too small for it. Weighted over the typical shapes, that is the node's expected
fragment; a placement is good if it makes that grow the least.
"""

from __future__ import annotations

import math

from gpu_scheduler.engine.kind import Kind
from gpu_scheduler.engine.policy import TypicalShape
from gpu_scheduler.engine.shape import Shape
from gpu_scheduler.engine.slot import Vector
from gpu_scheduler.model.request import WHOLE_MILLI

SIGMOID_SCALE = 1000.0
SIGMOID_LIMIT = 700.0
MOST_KNOWN = 100_000
"""So many fragments are remembered; then it starts anew, as old ones seldom come again."""


class Fragments:
    """Expected fragments of free vectors; many are remembered."""

    def __init__(self, typical: tuple[TypicalShape, ...], kinds: list[Kind]) -> None:
        """Take the typical shapes and their weights."""
        total = sum(shape.count for shape in typical)
        self._typical = [(shape, shape.count / total) for shape in typical]
        self._kinds = kinds
        self._known: dict[tuple[int, int, tuple[int, ...]], float] = {}

    def of(self, kind_id: int, cpu_milli: int, left: tuple[int, ...]) -> float:
        """The expected fragment of a node in milli-GPU."""
        key = (kind_id, cpu_milli, left)
        fragment = self._known.get(key)
        if fragment is None:
            models = self._kinds[kind_id].models
            fragment = 0.0
            for shape, weight in self._typical:
                fragment += weight * _fragment_for(shape, cpu_milli, left, models)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = fragment
        return fragment

    def gradient(self, vector: Vector, shape: Shape, devices: int = -1) -> tuple[int, int]:
        """FGD's score of the best place on such a node, and the device for a share (else -1).

        `devices` are the positions that the request may use, as a mask.
        """
        kind_id, cpu, left = vector[0], vector[1], vector[3]
        before = self.of(kind_id, cpu, left)
        if not shape.one_part:
            changed = _without_whole(left, shape.least, devices)
            return (_sigmoid(before - self.of(kind_id, cpu - shape.cpu, changed)), -1)
        best = (-1, -1)
        for device, rest in enumerate(left):
            if rest >= shape.share and devices >> device & 1:
                changed = (*left[:device], rest - shape.share, *left[device + 1 :])
                score = _sigmoid(before - self.of(kind_id, cpu - shape.cpu, changed))
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
    """What is left when the first wholly free devices that may be used are taken."""
    changed = list(left)
    for device, rest in enumerate(left):
        if count and rest == WHOLE_MILLI and devices >> device & 1:
            changed[device] = 0
            count -= 1
    return tuple(changed)


def _sigmoid(gain: float) -> int:
    x = max(-SIGMOID_LIMIT, min(SIGMOID_LIMIT, gain / SIGMOID_SCALE))
    return int(100 / (1 + math.exp(-x)))
