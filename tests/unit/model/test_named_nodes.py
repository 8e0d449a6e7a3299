"""Required and excluded node names, beside labels."""

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.node import (
    TERMINAL_LABEL,
    describe_labels,
    label_mismatch,
    matches_labels,
    node_name_labels,
    runner_label,
    user_labels,
)


@pytest.mark.parametrize(
    ("only", "excluded", "suited"),
    [
        pytest.param((), (), ["a", "b", "ab"], id="all"),
        pytest.param(("a", "b"), (), ["a", "b"], id="only"),
        pytest.param((), ("a",), ["b", "ab"], id="excluded"),
        pytest.param(("a", "b"), ("ab",), ["a", "b"], id="both"),
        pytest.param(("x",), (), [], id="unknown"),
    ],
)
def test_node_name_must_match_exactly(
    only: tuple[str, ...], excluded: tuple[str, ...], suited: list[str]
) -> None:
    wanted = node_name_labels(only, excluded)
    assert [name for name in ("a", "b", "ab") if matches_labels(wanted, name, ())] == suited


def test_names_and_labels_count_together() -> None:
    wanted = (("disk", "ssd"), *node_name_labels(["a", "b"], []))
    assert matches_labels(wanted, "a", (("disk", "ssd"), ("zone", "1")))
    assert not matches_labels(wanted, "a", (("disk", "hdd"),))
    assert not matches_labels(wanted, "c", (("disk", "ssd"),))
    assert describe_labels(wanted) == ["labels disk=ssd", "on a or b"]


def test_node_both_required_and_excluded_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="node 'b' is in both 'nodes' and 'exclude_nodes'"):
        node_name_labels(["a", "b"], ["b"])


@pytest.mark.parametrize("name", ["", "a,b", "a\nb"], ids=["empty", "list", "line"])
def test_invalid_node_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the name of a node"):
        node_name_labels([name], [])


def test_label_mismatch_is_explained_as_requested() -> None:
    (only,), (excluded,) = node_name_labels(["a"], []), node_name_labels([], ["b"])
    told = [label_mismatch(label) for label in (only, excluded, ("disk", "ssd"))]
    assert told == ["not named by --nodelist", "excluded by name", "without label disk=ssd"]


def test_internal_labels_are_described_in_words() -> None:
    engine, terminals = (runner_label("container"), "yes"), (TERMINAL_LABEL, "yes")
    told = [label_mismatch(label) for label in (engine, (runner_label("tmux"), "yes"), terminals)]
    assert told == [
        "without a container engine",
        "without tmux",
        "without terminals through the server",
    ]
    wanted = (("disk", "ssd"), engine)
    assert describe_labels(wanted) == ["labels disk=ssd", "with a container engine"]
    assert describe_labels(user_labels(wanted)) == ["labels disk=ssd"]
