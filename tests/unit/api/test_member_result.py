"""Results of members as a node reports them."""

import pytest

from gpu_scheduler.api.nodes.reports import member_result
from gpu_scheduler.wire import agent_pb2 as pb


@pytest.mark.parametrize(
    ("over", "ended_ms"),
    [
        (pb.Over(ran=True, exit_code=0, ago_ms=400), 600),
        (pb.Over(ran=True, signal=9, ago_ms=400), 600),
        (pb.Over(ran=False, ago_ms=400), 600),
        (pb.Over(ran=True, ago_ms=400), None),
    ],
)
def test_end_time_is_that_of_node_or_unknown(over: pb.Over, ended_ms: int | None) -> None:
    """After a reboot the node may have found the job over by a wrong clock."""
    assert member_result(pb.Fact(over=over), 1_000).ended_ms == ended_ms
