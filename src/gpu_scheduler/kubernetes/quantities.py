"""Quantities of Kubernetes, such as 500m, 2Gi or 1e3, as exact integers; and what pods request."""

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from gpu_scheduler.kubernetes.objects import Container, Pod, once_per_object

CPU = "cpu"
MEMORY = "memory"
PODS_RESOURCE = "pods"
MILLI = 1000

_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(\d+\.?\d*|\.\d+))([eE](?P<exponent>[+-]?\d+))?"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i)?"
)

LARGEST = 2**63 - 1
"""Kubernetes takes every larger quantity for this one."""
LARGEST_EXPONENT = 100

Amounts = dict[str, int]
"""Amounts by resource: CPU in milli-cores, all others in their own unit (bytes or pieces)."""


class InvalidQuantity(ValueError):
    """The text is no quantity; the API server does not let such a one pass."""


def parse_quantity(text: str) -> Decimal:
    """The exact value of a quantity."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise InvalidQuantity(f"'{text}' is no quantity; write for example 500m, 2 or 16Gi")
    # Users may write 1e999999999, which nothing here could compute with.
    exponent = min(max(int(found["exponent"] or 0), -LARGEST_EXPONENT), LARGEST_EXPONENT)
    return Decimal(found["number"]).scaleb(exponent) * _SUFFIXES[found["suffix"] or ""]


def amount(resource: str, text: str, *, up: bool = True) -> int:
    """A quantity as an integer; requests are rounded up, and what a node has down."""
    value = min(parse_quantity(text), Decimal(LARGEST))
    if resource == CPU:
        value *= MILLI
    return int(value.to_integral_value(ROUND_CEILING if up else ROUND_FLOOR))


def amounts(quantities: Mapping[str, str], *, up: bool = True) -> Amounts:
    """Several quantities as integers."""
    return {resource: amount(resource, text, up=up) for resource, text in quantities.items()}


@once_per_object
def pod_requests(pod: Pod) -> Amounts:
    """What a pod takes of its node, as Kubernetes counts it.

    The sum over containers and sidecars, or more if one init container needs more together with the
    sidecars that were started before it; resources of the whole pod replace the sum; then the
    overhead. A container that is being resized counts with the larger of both sizes.
    """
    given = {
        one.name: one
        for one in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    }

    def of(container: Container) -> Amounts:
        # A limit without a request is a request: the API server fills it in, except for templates.
        spec = container.resources
        found = amounts({**spec.limits, **spec.requests})
        status = given.get(container.name)
        if status is not None:
            found = _larger(found, amounts(status.allocated_resources))
            if status.resources is not None:
                found = _larger(found, amounts(status.resources.requests))
        return found

    running = _sum(of(container) for container in pod.spec.containers)
    sidecars: Amounts = {}
    start: Amounts = {}
    for container in pod.spec.init_containers:
        needed = of(container)
        if container.restart_policy == "Always":
            sidecars = _sum((sidecars, needed))
            start = _larger(start, sidecars)
        else:
            start = _larger(start, _sum((sidecars, needed)))
    whole = _larger(_sum((running, sidecars)), start)
    whole |= amounts({**pod.spec.resources.limits, **pod.spec.resources.requests})
    return _sum((whole, amounts(pod.spec.overhead)))


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        for resource, number in part.items():
            total[resource] = total.get(resource, 0) + number
    return total


def _larger(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
