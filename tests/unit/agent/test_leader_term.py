"""A node obeys the newest leader term and no older one."""

from pathlib import Path
from typing import Any, cast

import pytest

from gpu_scheduler.agent.server_link import LeaderTerm, ServerConnector, ServerRejected
from gpu_scheduler.wire.handshake import not_leader_reason


def test_older_term_is_rejected_also_after_restart(tmp_path: Path) -> None:
    terms = LeaderTerm(tmp_path)
    terms.check(0)
    terms.check(4)
    terms.check(4)
    with pytest.raises(ServerRejected, match="term 3"):
        terms.check(3)
    again = LeaderTerm(tmp_path)
    assert again.newest == 4
    with pytest.raises(ServerRejected, match="has obeyed term 4"):
        again.check(3)
    again.check(5)


def test_term_that_cannot_be_stored_is_not_obeyed(tmp_path: Path) -> None:
    terms = LeaderTerm(tmp_path / "gone")
    with pytest.raises(ServerRejected, match="cannot be written"):
        terms.check(1)
    assert terms.newest == 0


class AKeeper:
    """A key that may be presented at addresses with this prefix."""

    def __init__(self, prefix: str) -> None:
        self.identity: Any = self
        self._prefix = prefix

    def may_redirect_to(self, target: str) -> bool:
        return target.startswith(self._prefix)


def turns_of(servers: ServerConnector, count: int) -> list[str]:
    return [servers._next() for _ in range(count)]


def test_agent_follows_redirect_to_configured_server() -> None:
    servers = ServerConnector(["a:1", "b:1", "c:1"])
    assert ServerRejected(not_leader_reason("c:1")).leader == "c:1"
    assert ServerRejected(not_leader_reason("")).leader == ""
    assert ServerRejected("too old").leader == ""
    assert turns_of(servers, 2) == ["a:1", "b:1"]
    servers.prefer("b:1")
    assert turns_of(servers, 1) == ["b:1"]
    servers.prefer("evil:1")
    assert turns_of(servers, 1) == ["c:1"]


def test_agent_follows_redirect_once_to_server_that_proves_membership() -> None:
    servers = ServerConnector(["standby:1"], cast(Any, AKeeper("leader")))
    assert turns_of(servers, 1) == ["standby:1"]
    servers.prefer("leader:1")
    assert turns_of(servers, 2) == ["leader:1", "standby:1"]
    servers.prefer("evil:1")
    assert turns_of(servers, 1) == ["standby:1"]
