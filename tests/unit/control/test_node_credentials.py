"""A node joins once, however often it asks, and no other node can take its place."""

import pytest

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import JoinNode, MakeJoinToken, RevokeJoinToken, RevokeNode
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.identity import JoinToken
from tests.builders import DAY, a_core


def a_core_with_a_token(uses: int) -> Core:
    core = a_core(nodes=[])
    token = JoinToken(
        id="t", secret_hash="h", uses=uses, created_by="root", created_ms=0, expires_ms=DAY
    )
    core.apply(MakeJoinToken(token), 0)
    return core


def join(core: Core, fingerprint: str, *, now_ms: int = 1, node: str = "n7") -> None:
    core.apply(JoinNode(node, "t", fingerprint, now_ms + DAY), now_ms)


@pytest.mark.parametrize("uses", [1, 20])
def test_repeated_join_with_same_key_is_answered_and_counted_once(uses: int) -> None:
    core = a_core_with_a_token(uses)
    join(core, "mine", now_ms=1)
    join(core, "mine", now_ms=2)
    keys = core.state.node_keys
    assert keys.tokens["t"].used == 1
    assert (keys.nodes["n7"].fingerprint, keys.nodes["n7"].expires_ms) == ("mine", 2 + DAY)


@pytest.mark.parametrize("uses", [1, 20])
def test_another_key_cannot_replace_joined_node(uses: int) -> None:
    core = a_core_with_a_token(uses)
    join(core, "mine")
    with pytest.raises(Forbidden):
        join(core, "theirs")
    assert core.state.node_keys.nodes["n7"].fingerprint == "mine"


def test_exhausted_token_is_rejected_for_other_node_with_same_key() -> None:
    core = a_core_with_a_token(1)
    join(core, "mine")
    with pytest.raises(Forbidden, match="is used up"):
        join(core, "mine", node="n8")


def test_revoked_node_cannot_rejoin_by_repeating_request() -> None:
    core = a_core_with_a_token(1)
    join(core, "mine")
    core.apply(RevokeNode("n7"), 2)
    with pytest.raises(Forbidden, match="is used up"):
        join(core, "mine", now_ms=3)


def test_revoked_token_is_rejected_on_repeat() -> None:
    core = a_core_with_a_token(1)
    join(core, "mine")
    core.apply(RevokeJoinToken("t"), 2)
    with pytest.raises(Forbidden, match="has been revoked"):
        join(core, "mine", now_ms=3)
