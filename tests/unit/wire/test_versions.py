"""Negotiation of the protocol version between agent and server."""

import pytest

from gpu_scheduler.wire.handshake import NoCommonProtocol, negotiate_protocol


@pytest.mark.parametrize(
    ("newest", "least", "own", "agreed"),
    [(1, 0, (1, 1), 1), (2, 1, (1, 1), 1), (1, 1, (1, 3), 1), (5, 2, (3, 4), 4), (3, 3, (1, 3), 3)],
)
def test_newest_common_version_is_used(
    newest: int, least: int, own: tuple[int, int], agreed: int
) -> None:
    assert negotiate_protocol(newest, least, who="agent 'n1'", own=own) == agreed


@pytest.mark.parametrize(
    ("newest", "least", "own", "words"),
    [
        (
            1,
            0,
            (2, 3),
            "agent 'n1' supports version 1 .* this server versions 2 to 3; update agent",
        ),
        (4, 3, (1, 2), "versions 3 to 4 .* this server versions 1 to 2; update this server"),
        (2, 0, (1, 1), "supports version 2 .* update this server"),
        (0, 0, (1, 1), "supports version 0 .* update agent 'n1'"),
    ],
)
def test_sides_without_common_version_are_told_which_to_update(
    newest: int, least: int, own: tuple[int, int], words: str
) -> None:
    with pytest.raises(NoCommonProtocol, match=words):
        negotiate_protocol(newest, least, who="agent 'n1'", own=own)
