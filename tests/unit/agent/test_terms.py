"""A node obeys the newest leader it has heard of, and no older one."""

from pathlib import Path

import pytest

from gpu_scheduler.agent.stream import NOT_THE_LEADER, SentAway, Servers
from gpu_scheduler.agent.terms import Terms


def test_an_older_term_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    terms = Terms(tmp_path)
    terms.check(0)
    terms.check(4)
    terms.check(4)
    with pytest.raises(SentAway, match="term 3"):
        terms.check(3)
    again = Terms(tmp_path)
    assert again.newest == 4
    with pytest.raises(SentAway, match="has obeyed term 4"):
        again.check(3)
    again.check(5)


def test_a_term_that_cannot_be_kept_is_not_obeyed(tmp_path: Path) -> None:
    terms = Terms(tmp_path / "gone")
    with pytest.raises(SentAway, match="cannot be written"):
        terms.check(1)
    assert terms.newest == 0


def test_an_agent_asks_the_server_that_it_is_sent_to_if_that_is_one_of_its_own() -> None:
    servers = Servers(["a:1", "b:1", "c:1"])
    assert SentAway(f"{NOT_THE_LEADER}c:1").ask == "c:1"
    assert SentAway("too old").ask == ""
    turns = []

    def turn() -> str:
        target = servers._targets[servers._turn]
        servers()
        turns.append(target)
        return target

    assert [turn(), turn()] == ["a:1", "b:1"]
    servers.prefer("b:1")
    assert turn() == "b:1"
    servers.prefer("evil:1")
    assert turn() == "c:1"
