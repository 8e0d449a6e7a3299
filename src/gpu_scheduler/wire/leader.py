"""How a standby tells an agent where the leader is: in the reason for which it sends it away."""

from __future__ import annotations

_ASK = "not the leader; ask "


def not_the_leader(address: str) -> str:
    """The reason, with the leader's address for agents; without, if that is not known."""
    return f"{_ASK}{address}" if address else "not the leader, and it knows of no other yet"


def leader_named(reason: str) -> str:
    """The address in a reason; empty if there is none."""
    return reason.removeprefix(_ASK) if reason.startswith(_ASK) else ""
