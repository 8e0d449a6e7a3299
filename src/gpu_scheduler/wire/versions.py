"""Which version of the agents' protocol two sides speak: the newest that both know.

A side that was made before the other learns of nothing that it does not know: fields and messages
that are new are passed over. A version is raised only when the same message means something else.
"""

from __future__ import annotations

from gpu_scheduler.model.errors import WrongState

PROTOCOL = 1
"""The newest version that is spoken here."""
LEAST_PROTOCOL = 1
"""The oldest version that is still spoken here."""
TERMINALS = "terminals"
"""An ability that an agent names: it brings terminals of jobs to the server.

What is new and must be answered is an ability: who does not name it is not asked for it.
"""
TRUSTS = "trusts"
"""An ability that an agent names: its readings say which orders to trust a device were followed."""


class NoCommonProtocol(WrongState):
    """Two sides cannot talk to each other."""

    code = "no_common_protocol"


def agreed_protocol(
    newest: int, least: int, *, who: str, own: tuple[int, int] = (LEAST_PROTOCOL, PROTOCOL)
) -> int:
    """The version to speak with somebody who knows `least` (0: just `newest`) to `newest`.

    `own` are the oldest and the newest version of this side.
    """
    oldest = least or newest
    agreed = min(newest, own[1])
    if agreed < max(oldest, own[0]):
        older = who if newest < own[0] else "this server"
        raise NoCommonProtocol(
            f"{who} speaks {_span(oldest, newest)} of the agents' protocol and this server "
            f"{_span(*own)}; update {older}"
        )
    return agreed


def _span(oldest: int, newest: int) -> str:
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
