"""The rule for names of nodes, tenants, users, labels, reservations, services, tokens and GPUs."""

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.names import MAX_NAME, check_name, clean_text

BAD = {
    "empty": "",
    "newline": "a\nb",
    "escape": "\x1b[2J",
    "C1 control": "a\x9bb",
    "line separator": "a\u2028b",
    "direction override": "a\u202eb",
    "slash": "a/b",
    "parent": "..",
    "inner parent": "a..b",
    "here": ".",
    "leading space": " a",
    "trailing space": "a ",
    "too long": "a" * (MAX_NAME + 1),
    "half a character": "a\ud800",
}


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_bad_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest, match="the name of a node"):
        check_name(name, "the name of a node")


@pytest.mark.parametrize("name", ["n1", "ML Research Team", "Zoë", "a.b-c_d", "日本", "DOM\\ann"])
def test_good_name_is_accepted(name: str) -> None:
    check_name(name, "the name of a node")


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "a/b/c"])
def test_label_may_have_parts(name: str) -> None:
    check_name(name, "the name of a label", parts=True)


@pytest.mark.parametrize("name", ["/a", "a/", "a//b", "../a", "a/../b", "a/ b"])
def test_each_part_of_label_follows_the_rule(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name, "the name of a label", parts=True)


def test_message_shows_no_control_character() -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_name("a\x1b[2Jb", "the name of a node")
    assert str(raised.value).isprintable()


def test_reported_text_is_cleaned() -> None:
    assert clean_text("AMD Instinct MI250X / MI250") == "AMD Instinct MI250X / MI250"
    assert clean_text(" A100\n\x1b[2J ") == "A100??[2J"
    assert len(clean_text("x" * 10_000)) == MAX_NAME
