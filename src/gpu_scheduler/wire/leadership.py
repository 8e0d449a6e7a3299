"""Which of several servers leads, as it is told to people."""

from __future__ import annotations

from msgspec import Struct

from gpu_scheduler.model.leadership import Lead, Member


class StandbyForm(Struct):
    """A server that does not lead. `seen_seconds_ago` is when it last said that it is there."""

    name: str
    address: str
    version: str
    seen_seconds_ago: float


class LeadershipForm(Struct):
    """What this server is (leader, standby, or `unsure` whether it still leads) and who leads.

    Without a leader, `leader` is empty.
    """

    role: str
    name: str
    term: int
    leader: str
    leader_address: str
    standbys: list[StandbyForm]
    trouble: str = ""


def leadership_form(
    me: Member, lead: Lead, *, term: int, is_held: bool, trouble: str
) -> LeadershipForm:
    """The form; `term` is the one in which this server leads, 0 if it does not."""
    role = "standby" if not term else "leader" if is_held else "unsure"
    return LeadershipForm(
        role=role,
        name=me.name,
        term=lead.term,
        leader=lead.holder if lead.is_held else "",
        leader_address=lead.address if lead.is_held else "",
        standbys=[
            StandbyForm(one.name, one.address, one.version, round(max(0.0, one.seen_s), 1))
            for one in lead.standbys
            if one.name != lead.holder or not lead.is_held
        ],
        trouble=trouble,
    )
