"""Servers of one cluster, and which of them leads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A server of the cluster: its name, where people and other servers reach it, and agents.

    `home` is the installation that it runs from, the same when it is started again.
    """

    name: str
    address: str
    agents: str = ""
    version: str = ""
    home: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A server that does not lead, and how long ago it said that it is there."""

    name: str
    address: str
    version: str
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Who leads, as it was read. `left_s` is how long that still holds; not positive: nobody."""

    term: int = 0
    holder: str = ""
    address: str = ""
    agents: str = ""
    left_s: float = 0.0
    standbys: tuple[Standby, ...] = ()
    database_ms: int = 0

    @property
    def is_held(self) -> bool:
        """Tell whether somebody led when this was read."""
        return bool(self.holder) and self.left_s > 0
