"""Start orders for agents."""

import pytest

from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.plan import Allocation, Placement
from gpu_scheduler.wire.orders import start_order
from tests.builders import a_job


@pytest.mark.parametrize(
    ("is_limited", "cpu_milli", "told"),
    [(True, 1000, 1000), (False, 1000, 0), (False, 32_000, 32_000)],
)
def test_default_core_is_no_cpu_limit_and_requested_cores_are(
    is_limited: bool, cpu_milli: int, told: int
) -> None:
    """As for another member, or after an update."""
    placement = Placement(member=0, node_id="n0", devices=(), cpu_milli=cpu_milli, memory_mb=0)
    allocation = Allocation(
        id="j1.1", job_id="j1", attempt=1, placements=(placement,), start_ms=0, task=None
    )
    launch = Launch(argv=("true",), limits_cpu=is_limited)
    order = start_order(allocation, placement, a_job(number=1), launch, None, 1000)
    assert order.start.cpu_milli == told
