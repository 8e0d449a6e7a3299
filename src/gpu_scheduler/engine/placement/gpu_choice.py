"""Which GPUs of a node a request gets, by NVLink topology and contiguity.

GPUs are bits of a mask, numbered by rising index. An island is a group of GPUs that NVLink joins.
"""

from __future__ import annotations

from gpu_scheduler.model.request import Topology


def choose_gpus(
    free: int, islands: tuple[int, ...], count: int, topology: Topology, *, contiguous: bool
) -> int:
    """Choose from the free GPUs; 0 if the topology or contiguity cannot be met.

    The tightest island that has enough comes first; over several islands, the fullest first.
    """
    choices = [
        (mask.bit_count(), order, mask)
        for order, island in enumerate(islands)
        if (mask := island & free)
    ]
    for _, _, mask in sorted(choice for choice in choices if choice[0] >= count):
        picked = _run(mask, count) if contiguous else lowest_bits(mask, count)
        if picked:
            return picked
    if topology is Topology.REQUIRE_ISLAND:
        return 0
    if contiguous:
        return _run(free, count)
    picked = 0
    for size, _, mask in sorted(choices, key=lambda choice: (-choice[0], choice[1])):
        wanted = min(size, count - picked.bit_count())
        picked |= lowest_bits(mask, wanted)
    return picked if picked.bit_count() == count else 0


def lowest_bits(mask: int, count: int) -> int:
    """The lowest `count` bits that are set."""
    picked = 0
    for _ in range(count):
        low = mask & -mask
        picked |= low
        mask ^= low
    return picked


def _run(mask: int, count: int) -> int:
    """The lowest `count` neighbouring bits, or 0 if there are none."""
    wanted = (1 << count) - 1
    for position in range(mask.bit_length() - count + 1):
        if mask >> position & wanted == wanted:
            return wanted << position
    return 0
