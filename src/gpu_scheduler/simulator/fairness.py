"""Fairness between tenants: outcomes of a run in, Jain's index of GPU time per weight out.

Over a whole run every tenant receives all the GPU time it requested, under any policy. So fairness
is measured only while all tenants have waiting jobs and compete for the same GPUs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI
from gpu_scheduler.simulator.outcomes import Outcomes

# Plain tuples for speed: a run of a million jobs creates a million of them.
Span = tuple[int, int]
"""Time in milliseconds from the first up to, but not including, the second."""
Holding = tuple[str, float, int, int]
"""A tenant, the milli-GPUs it held, from when, and until when."""


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 if all values are equal (also if all are 0), 1/n if only one is not 0."""
    numbers = list(values)
    squares = sum(number * number for number in numbers)
    if not squares:
        return 1.0
    return float(sum(numbers) ** 2 / (len(numbers) * squares))


def jain_by_weight(received: Mapping[str, float], weights_milli: Mapping[str, int]) -> float:
    """Jain's index of the amount each tenant received per weight (1.0 if it has no weight)."""
    return jain(
        amount / weights_milli.get(tenant, WEIGHT_ONE_MILLI)
        for tenant, amount in sorted(received.items())
    )


def jain_while_backlogged(
    holdings: Iterable[Holding],
    backlogs: Mapping[str, Iterable[Span]],
    weights_milli: Mapping[str, int],
) -> float | None:
    """Jain's index while every tenant of `backlogs` waits; `None` if there is no such time."""
    windows = shared_backlog(backlogs)
    if not windows:
        return None
    received = dict.fromkeys(sorted(backlogs), 0.0) | received_within(holdings, windows)
    return jain_by_weight(received, weights_milli)


def shared_backlog(backlogs: Mapping[str, Iterable[Span]]) -> list[Span]:
    """The spans in which every tenant has waiting jobs, sorted and without overlap."""
    shared: list[Span] | None = None
    for _, spans in sorted(backlogs.items()):
        merged = _merged(spans)
        shared = merged if shared is None else _overlap(shared, merged)
    return shared or []


def received_within(holdings: Iterable[Holding], windows: Sequence[Span]) -> dict[str, float]:
    """GPU-time (milli-GPU times milliseconds) that each tenant held inside the windows.

    The windows must be in order and must not overlap.
    """
    if not windows:
        return {}
    starts = [start_ms for start_ms, _ in windows]
    ends = [end_ms for _, end_ms in windows]
    before = [0, *accumulate(end_ms - start_ms for start_ms, end_ms in windows)]

    def covered(at_ms: int) -> int:
        """The total length of the windows before `at_ms`."""
        place = bisect_right(starts, at_ms) - 1
        if place < 0:
            return 0
        end_ms = ends[place]
        return before[place] + (at_ms if at_ms < end_ms else end_ms) - starts[place]

    received: dict[str, float] = defaultdict(float)
    for tenant, gpu_milli, start_ms, end_ms in holdings:
        received[tenant] += gpu_milli * (covered(end_ms) - covered(start_ms))
    return dict(received)


def holdings_of(outcomes: Outcomes) -> Iterator[Holding]:
    """The GPUs that each job held, from its first start to its end.

    The outcome of a preempted job does not say when it waited again; its GPU time is spread evenly.
    """
    numbers = outcomes.numbers
    tenants = outcomes.known["tenant"]
    for code, gpu_milli, start_ms, end_ms, run_ms, lost_ms in zip(
        outcomes.names["tenant"],
        numbers["gpu_milli"],
        numbers["first_start_ms"],
        numbers["end_ms"],
        numbers["run_ms"],
        numbers["lost_ms"],
        strict=True,
    ):
        if end_ms > start_ms:
            held_ms = run_ms + lost_ms
            span_ms = end_ms - start_ms
            held_milli = gpu_milli if held_ms >= span_ms else gpu_milli * held_ms / span_ms
            yield tenants[code], held_milli, start_ms, end_ms


def backlogs_of(outcomes: Outcomes) -> dict[str, list[Span]]:
    """When each tenant had a job that waited for its first start."""
    tenants = outcomes.known["tenant"]
    spans: list[list[Span]] = [[] for _ in tenants]
    for code, submit_ms, start_ms in zip(
        outcomes.names["tenant"],
        outcomes.numbers["submit_ms"],
        outcomes.numbers["first_start_ms"],
        strict=True,
    ):
        if start_ms > submit_ms:
            known = spans[code]
            # Jobs that end in sequence mostly waited at the same time, so few spans remain.
            if known and submit_ms <= known[-1][1] and start_ms >= known[-1][0]:
                known[-1] = (min(submit_ms, known[-1][0]), max(start_ms, known[-1][1]))
            else:
                known.append((submit_ms, start_ms))
    return dict(zip(tenants, spans, strict=True))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start_ms, end_ms in sorted(spans):
        if merged and start_ms <= merged[-1][1]:
            if end_ms > merged[-1][1]:
                merged[-1] = (merged[-1][0], end_ms)
        else:
            merged.append((start_ms, end_ms))
    return merged


def _overlap(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    both: list[Span] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start_ms = max(left[i][0], right[j][0])
        end_ms = min(left[i][1], right[j][1])
        if start_ms < end_ms:
            both.append((start_ms, end_ms))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return both
