"""Settings of a cluster: the database, the agents and their nodes.

One machine uses some of them as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.field import setting

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """Where state is kept."""

    url: str = setting(
        "", "A database as `sqlite:///path`; empty: `files.state_file` in the state directory."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The process that runs jobs on this machine."""

    node_name: str = setting("", "Name of this machine; empty: its host name.")
    heartbeat_interval_s: float = setting(
        5.0, "How often the agent reports even if nothing happened.", least=0.1, most=600
    )
    lost_after_s: float = setting(
        60.0, "An agent that was silent for this long is lost.", least=1, most=DAY_S
    )
