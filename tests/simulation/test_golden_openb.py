"""The openb filling experiment against the published results, and our own ranking against FGD."""

from dataclasses import replace
from functools import cache
from hashlib import sha256

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.node import Node
from gpu_scheduler.simulator.experiment import fill_by_seed, renamed_nodes
from gpu_scheduler.simulator.traces.openb import Pod, read_nodes, read_pods
from tests.simulation.exact_record import check_fillings
from tests.simulation.golden import needs_traces, trace

pytestmark = [needs_traces, pytest.mark.slow]
SEEDS = range(42, 52)
PUBLISHED = {
    "random": 86.30,
    "dot_product": 90.62,
    "clustering": 91.65,
    "packing": 91.78,
    "best_fit": 92.86,
    "fgd": 95.23,
}
PUBLISHED_FGD = {"gpuspec33": 87.88, "multigpu50": 97.15}


@cache
def machines() -> tuple[Node, ...]:
    return read_nodes(trace("openb_fgd", "openb_node_list_gpu_node.csv.gz"))


@cache
def pods(variant: str = "default") -> list[Pod]:
    return read_pods(trace("openb_fgd", f"openb_pod_list_{variant}.csv.gz"))


def in_an_arbitrary_order(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """A fixed order that is unrelated to the names.

    Packing and clustering send every CPU-only pod to the first node of the list, so their results
    move by a point with that order; by name, packing ends 0.81 points below the published value.
    """
    ordered = sorted(nodes, key=lambda node: sha256(node.id.encode()).hexdigest())
    return tuple(replace(node, ordinal=place) for place, node in enumerate(ordered))


@cache
def allocated(policy: str, order: str) -> list[float]:
    """Allocated per cent when 100 % of the capacity has arrived, by seed."""
    nodes = machines()
    if order == "arbitrary":
        nodes = in_an_arbitrary_order(nodes)
    elif order == "renamed":
        nodes = renamed_nodes(nodes, seed=7)
    seeds = SEEDS if order != "renamed" else SEEDS[:4]
    runs = list(fill_by_seed(nodes, pods(), preset(policy), seeds))
    check_fillings(f"openb-{policy}-{order.replace(' ', '-')}", zip(seeds, runs, strict=True))
    percents = [run.allocated_percent[100] for run in runs]
    print(f"openb/{policy}, nodes {order}: {mean(percents):.2f} %")  # noqa: T201
    return percents


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("policy", PUBLISHED)
def test_published_policy_allocates_as_published(policy: str) -> None:
    assert mean(allocated(policy, "arbitrary")) == pytest.approx(PUBLISHED[policy], abs=0.8)


@pytest.mark.parametrize("order", ["by name", "arbitrary"])
def test_balance_allocates_more_than_fgd_on_same_arrivals(order: str) -> None:
    ours, theirs = allocated("balance", order), allocated("fgd", order)
    assert mean(ours) >= 96.1
    assert mean(ours) >= mean(theirs) + 0.1
    assert sum(our > their for our, their in zip(ours, theirs, strict=True)) >= 8


@pytest.mark.parametrize(("variant", "published_fgd"), PUBLISHED_FGD.items())
def test_balance_allocates_more_than_published_fgd_on_other_mixes(
    variant: str, published_fgd: float
) -> None:
    seeds = SEEDS[:3]
    runs = list(fill_by_seed(machines(), pods(variant), preset("balance"), seeds))
    check_fillings(f"openb-{variant}-balance", zip(seeds, runs, strict=True))
    percents = [run.allocated_percent[100] for run in runs]
    print(f"openb {variant}, balance: {mean(percents):.2f} %")  # noqa: T201
    assert min(percents) > published_fgd


def test_balance_does_not_depend_on_node_names() -> None:
    renamed = allocated("balance", "renamed")
    by_name = allocated("balance", "by name")
    assert renamed == pytest.approx(by_name[: len(renamed)], abs=0.2)
