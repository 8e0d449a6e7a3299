"""Placements per second on 10,000 nodes with 8 GPUs each, 70 % of them held.

A placement is a search (feasible, then rank; CPU, memory and model respected), the booking and
the giving back. Patterns: `pair` gives back at once; `churn` places a batch and gives it back in
random order. The value is the slowest of all kinds and patterns.
"""

from __future__ import annotations

from random import Random

from benchmarks.cluster import (
    distinct,
    fraction_request,
    free_devices_histogram,
    large_cluster,
    used_index,
    whole_request,
)
from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from benchmarks.stopwatch import Stopwatch
from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.model.request import Request

TARGET = 200_000
PERCENT = 70
SEED = 1
SHAPES = 16
LAP = 2_000
"""Placements in a lap: short, so that some laps run without being interrupted."""
LAPS = 10
"""Laps for each repeat."""
BATCHES = {"one_gpu": 1_000, "eight_gpus": 200, "fraction": 1_000}


def measure(repeats: int) -> Result:
    """Take the figure of every kind of request and both patterns."""
    show("placement: filling 10,000 nodes")
    index = used_index(large_cluster(), PERCENT, SEED)
    free_before = index.free_devices
    histogram = free_devices_histogram(index)
    figures: dict[str, dict[str, float]] = {}
    for node_class, batch in BATCHES.items():
        chance = Random(SEED)
        shapes = [index.shape(request) for request in _requests(node_class, chance)]
        work = [chance.choice(shapes) for _ in range(LAP)]
        figures[f"{node_class}_pair"] = _figure(_pairs(index, work, repeats * LAPS))
        figures[f"{node_class}_churn"] = _figure(_churn(index, work, batch, chance, repeats * LAPS))
    if index.free_devices != free_before:
        raise AssertionError("not everything was given back")
    floor = _figure(_empty_calls(repeats * LAPS))
    slowest = min(figures, key=lambda name: figures[name]["per_second"])
    return result(
        "placement",
        figures[slowest]["per_second"],
        "placements/s",
        target=TARGET,
        floor=floor["per_second"],
        repeats=repeats,
        slowest=slowest,
        cpu_value=figures[slowest]["per_cpu_second"],
        figures=figures,
        nodes_by_free_devices=histogram,
    )


def _requests(node_class: str, chance: Random) -> list[Request]:
    if node_class == "fraction":
        return distinct(lambda: fraction_request(chance), SHAPES)
    gpus = 1 if node_class == "one_gpu" else 8
    return distinct(lambda: whole_request(chance, gpus), SHAPES)


def _pairs(index: NodeIndex, work: list[RequestShape], laps: int) -> Stopwatch:
    watch = Stopwatch()
    for lap in range(laps):
        show(f"placement: pairs, {lap + 1} of {laps}")
        with watch.lap():
            for shape in work:
                grant = index.find(shape)
                if grant is None:
                    raise AssertionError(f"no place for {shape.request}")
                index.take(grant)
                index.give(grant)
    return watch


def _churn(
    index: NodeIndex, work: list[RequestShape], batch: int, chance: Random, laps: int
) -> Stopwatch:
    """The shuffle between placing and giving back is not timed."""
    watch = Stopwatch()
    for lap in range(laps):
        show(f"placement: churn, {lap + 1} of {laps}")
        parts = Stopwatch()
        for first in range(0, len(work), batch):
            grants: list[Grant] = []
            with parts.lap():
                for shape in work[first : first + batch]:
                    grant = index.find(shape)
                    if grant is None:
                        raise AssertionError(f"no place for {shape.request}")
                    index.take(grant)
                    grants.append(grant)
            chance.shuffle(grants)
            with parts.lap():
                for grant in grants:
                    index.give(grant)
        watch.walls.append(sum(parts.walls))
        watch.cpus.append(sum(parts.cpus))
    return watch


def _empty_calls(laps: int) -> Stopwatch:
    """The floor: three calls that do nothing, in the same loop."""
    watch = Stopwatch()
    for _ in range(laps):
        with watch.lap():
            for item in range(LAP):
                found = _nothing(item)
                if found is None:
                    raise AssertionError
                _nothing(found)
                _nothing(found)
    return watch


def _nothing(item: int) -> int:
    return item


def _figure(watch: Stopwatch) -> dict[str, float]:
    return {
        "per_second": rounded(LAP / watch.wall),
        "per_cpu_second": rounded(LAP / watch.cpu),
        "usual_per_second": rounded(LAP / watch.usual_wall),
    }
