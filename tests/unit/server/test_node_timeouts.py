"""Timeouts of silent nodes are checked against each other when a server starts."""

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.server.from_settings import check_node_timeouts, node_timeouts_of
from gpu_scheduler.settings.groups.cluster import AgentSettings, NodeSettings


def test_default_timeouts_are_consistent() -> None:
    check_node_timeouts(NodeSettings(), AgentSettings())
    timeouts = node_timeouts_of(NodeSettings())
    assert (timeouts.suspect_s, timeouts.lost_s, timeouts.margin_s) == (15, 60, 30)


@pytest.mark.parametrize(
    ("nodes", "refusal"),
    [
        ({"suspect_after_s": 10}, "agents send heartbeats every 5 s .* set it to 15 or more"),
        ({"lost_after_s": 15}, "a node must be suspect before it is lost; .* more than 15"),
        ({"lease_s": 60}, "not lost yet; set it to more than 60, or to 0 for no leases"),
        ({"lease_s": 86_400}, "set the margin to 864 or more"),
    ],
)
def test_contradictory_timeouts_are_rejected_with_valid_values(
    nodes: dict[str, float], refusal: str
) -> None:
    with pytest.raises(InvalidRequest, match=refusal):
        check_node_timeouts(NodeSettings(**nodes), AgentSettings())


def test_no_leases_need_no_margin() -> None:
    check_node_timeouts(NodeSettings(lease_s=0), AgentSettings())
