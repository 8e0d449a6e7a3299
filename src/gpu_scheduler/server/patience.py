"""How long a silent node is waited for: from settings, checked against each other at the start."""

from __future__ import annotations

from gpu_scheduler.api.silence import Patience
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.cluster import AgentSettings, NodeSettings

LEAST_BEATS = 3
"""A node that is well may lose so many heartbeats less one, and nobody takes offence."""


def patience_of(nodes: NodeSettings) -> Patience:
    """The deadlines of the settings, as the session layer counts with them."""
    return Patience(
        suspect_s=nodes.suspect_after_s, lost_s=nodes.lost_after_s, margin_s=nodes.lease_margin_s
    )


def check_patience(nodes: NodeSettings, agent: AgentSettings) -> None:
    """Refuse deadlines that contradict each other, with what would do."""
    beat_s, suspect_s, lost_s = (
        agent.heartbeat_interval_s,
        nodes.suspect_after_s,
        nodes.lost_after_s,
    )
    if suspect_s < LEAST_BEATS * beat_s:
        raise InvalidRequest(
            f"nodes.suspect_after_s is {suspect_s:g} and agents speak every {beat_s:g} s "
            f"(agent.heartbeat_interval_s): one late word would make a node suspect; "
            f"set it to {LEAST_BEATS * beat_s:g} or more"
        )
    if lost_s <= suspect_s:
        raise InvalidRequest(
            f"nodes.lost_after_s is {lost_s:g} and nodes.suspect_after_s is {suspect_s:g}: a node "
            f"is suspect before it is lost; set the first to more than {suspect_s:g}"
        )
    if nodes.lease_s and nodes.lease_s <= lost_s:
        raise InvalidRequest(
            f"nodes.lease_s is {nodes.lease_s:g} and nodes.lost_after_s is {lost_s:g}: jobs would "
            f"be stopped on nodes that are not even lost; set it to more than {lost_s:g}, or to 0 "
            "for no leases"
        )
    if nodes.lease_s and nodes.lease_margin_s < nodes.lease_s / 100:
        raise InvalidRequest(
            f"nodes.lease_margin_s is {nodes.lease_margin_s:g} and nodes.lease_s is "
            f"{nodes.lease_s:g}: clocks of two machines differ, and killing takes its time; set "
            f"the margin to {nodes.lease_s / 100:g} or more"
        )
