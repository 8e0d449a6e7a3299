"""How much of what is free is good for nothing: fragmentation as in FGD (USENIX ATC'23).

The fragment of a node for a typical shape is all its idle GPU if the shape cannot run there, else
the rests that are too small for it. Weighted over the typical shapes, that is the node's expected
fragment; a placement is good if it makes that grow the least.
"""

from __future__ import annotations

import math

from gpu_scheduler.engine.policy import TypicalShape
from gpu_scheduler.engine.state.node_class import NodeClass
from gpu_scheduler.engine.state.node_resources import Vector
from gpu_scheduler.engine.state.request_shape import RequestShape
from gpu_scheduler.model.request import WHOLE_MILLI

SIGMOID_SCALE = 1000.0
SIGMOID_LIMIT = 700.0
MOST_KNOWN = 100_000
"""So many fragments are remembered; then it starts anew, as old ones seldom come again."""


class Fragmentation:
    """Expected fragments of free vectors; many are remembered."""

    def __init__(self, typical: tuple[TypicalShape, ...], node_classes: list[NodeClass]) -> None:
        """Take the typical shapes and their weights."""
        total = sum(shape.count for shape in typical)
        self._typical = [(shape, shape.count / total) for shape in typical]
        self._kinds = node_classes
        self._known: dict[tuple[int, int, tuple[int, ...]], float] = {}

    def of(self, class_id: int, cpu_milli: int, left: tuple[int, ...]) -> float:
        """The expected fragment of a node in milli-GPU."""
        key = (class_id, cpu_milli, left)
        fragment = self._known.get(key)
        if fragment is None:
            models = self._kinds[class_id].models
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


# --- The `balance` ranking: keep what is left worth something.
#
# Four costs, in words: idle GPUs that are short of CPU are stranded; a rest of a GPU is worth only
# what the usual small requests can use of it; breaking a free GPU (or an empty node) costs a
# little;
# and then best fit. Integers only, and no node's name or number has a say: nodes that are free in
# the
# same way are alike (docs/explanation/placement.md has the formulas and how the constants behave).

STRANDED = 40
UNUSABLE = 40
REST = 3
LEFT_OVER = 1
BREAKS_DEVICE = 4_000
BREAKS_NODE = 1_000
WIDE_NODE_GPUS = 8
USUAL_CPU_MILLI = 5_500
CPU_STEP_MILLI = 500
LARGE_SHARE_MILLI = 667

Cost = tuple[int, tuple[int, int, tuple[int, ...], tuple[str, ...]], int]
"""Cost, a tie rule that depends only on what is free, and the device for a share (or -1)."""


class BalanceCost:
    """Costs of places, given what is usually asked for."""

    def __init__(self, typical: tuple[TypicalShape, ...], node_classes: list[NodeClass]) -> None:
        """Learn what the rests of GPUs are good for, and how much CPU a GPU usually wants."""
        self._kinds = node_classes
        self._usable = usable_rests(typical)
        self._cpu_per_gpu = usual_cpu_milli(typical)

    def cost(self, vector: Vector, shape: RequestShape, devices: int = -1) -> Cost:
        """What it costs to place a request that fits on a node with this free vector.

        `devices` are the positions that the request may use, as a mask.
        """
        class_id, cpu, memory, left = vector[:4]
        rests = tuple(sorted(rest for rest in left if rest > 0))
        idle = sum(rests)
        asked = 0 if shape.request.mig_profile else shape.request.gpu_milli
        cost = LEFT_OVER * (idle - asked) + STRANDED * (
            self._stranded(cpu - shape.cpu, idle - asked) - self._stranded(cpu, idle)
        )
        if idle == WIDE_NODE_GPUS * WHOLE_MILLI and shape.count < WIDE_NODE_GPUS:
            cost += BREAKS_NODE
        device = -1
        if shape.one_part:
            rest_cost, device = self._best_rest(left, shape.share, devices)
            cost += rest_cost
        return cost, (cpu, memory, rests, self._kinds[class_id].models), device

    def _stranded(self, cpu_milli: int, idle_milli: int) -> int:
        """Idle milli-GPU that lack the CPU that usually goes with them."""
        if not idle_milli:
            return 0
        wanted = idle_milli * self._cpu_per_gpu
        return idle_milli * wanted // (wanted + WHOLE_MILLI * cpu_milli)

    def _best_rest(self, left: tuple[int, ...], share: int, devices: int) -> tuple[int, int]:
        """The device where the share does the least harm; the smaller rest on a tie."""
        best: tuple[int, int, int] | None = None
        for device, rest in enumerate(left):
            if rest < share or not devices >> device & 1:
                continue
            after = rest - share
            cost = UNUSABLE * (self._usable[rest] - self._usable[after]) + REST * after
            if rest == WHOLE_MILLI:
                cost += BREAKS_DEVICE
            if best is None or (cost, rest) < best[:2]:
                best = (cost, rest, device)
        return (0, -1) if best is None else (best[0], best[2])


def usual_cpu_milli(typical: tuple[TypicalShape, ...]) -> int:
    """Half the CPU that GPU work asks for per GPU, rounded to half a core."""
    cpu = sum(shape.count * shape.cpu_milli for shape in typical if shape.gpu_count)
    gpu = sum(shape.count * shape.gpu_count * shape.gpu_share_milli for shape in typical)
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
