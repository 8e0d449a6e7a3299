"""What an agent is told to start."""

import pytest

from gpu_scheduler.model.allocation import Allocation, Placement
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.wire.orders import start_order
from tests.builders import a_job


@pytest.mark.parametrize(("is_limited", "told"), [(True, 2000), (False, 0)])
def test_cores_that_are_only_counted_are_no_limit_for_the_job(is_limited: bool, told: int) -> None:
    placement = Placement(member=0, node_id="n0", devices=(), cpu_milli=2000, memory_mb=0)
    allocation = Allocation(
        id="j1.1", job_id="j1", attempt=1, placements=(placement,), start_ms=0, task=None
    )
    launch = Launch(argv=("true",), limits_cpu=is_limited)
    order = start_order(allocation, placement, a_job(number=1), launch, None, 1000)
    assert order.start.cpu_milli == told
