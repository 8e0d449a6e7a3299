"""A trained model of run times: quantiles from three forests of decision trees.

The model comes in as JSON from the training process (`training`) or from the server's state
directory, and is checked completely before use: a damaged or forged file can make wrong predictions
but run no code and no endless loop. Rows of `features` come in, logarithms of run times go out.
Evaluation is plain Python, so a server needs no library for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.predict.features import GUESS, NAMES, Row

FORMAT = 1
LEVELS = (0.1, 0.5, 0.9)
"""The quantiles that a model predicts."""
MOST_BYTES = 32 * 1024 * 1024
MOST_TREES = 400
MOST_NODES = 1_024
MOST_LOG = 60.0
"""No run time has a larger logarithm."""

Logs = tuple[float, float, float]
"""Logarithms of the run times at `LEVELS`, in milliseconds."""


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tree as columns: a child below 0 is the leaf `~child`.

    A row goes left if its number at `feature` is at most `threshold`, or one of `categories`.
    Children come after their parents, so every walk ends.
    """

    feature: list[int]
    threshold: list[float]
    categories: list[list[int] | None]
    left: list[int]
    right: list[int]
    value: list[float]


class StoredModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as JSON. `trained_until_ms` is the latest end among the `jobs` it was trained on."""

    format: int
    features: list[str]
    jobs: int
    trained_until_ms: int
    forests: list[list[Tree]]


_Walkable = tuple[
    list[int], list[float], list[frozenset[int] | None], list[int], list[int], list[float]
]


class Model:
    """A model that predicts."""

    def __init__(self, stored: StoredModel) -> None:
        """Check the model and use it."""
        check_model(stored)
        self.stored = stored
        self._forests: list[list[_Walkable]] = [
            [
                (
                    tree.feature,
                    tree.threshold,
                    [None if some is None else frozenset(some) for some in tree.categories],
                    tree.left,
                    tree.right,
                    tree.value,
                )
                for tree in forest
            ]
            for forest in stored.forests
        ]

    def logs(self, row: Row) -> Logs:
        """The quantiles for a row; its base is the longer of guess and elapsed time."""
        base = base_of(row)
        low, middle, high = sorted(base + _sum(forest, row) for forest in self._forests)
        return low, middle, high


def base_of(row: Row) -> float:
    """What the trees correct: the guess from history, or the elapsed time if that is longer."""
    return max(row[GUESS], row[0])


def quantile_ms(logs: Logs, percent: float) -> int:
    """The run time that `percent` of such jobs do not exceed, between the quantiles of a model."""
    place = (percent / 100 - LEVELS[1]) / (LEVELS[2] - LEVELS[1])
    low, middle, high = logs
    log = middle + place * ((high - middle) if place > 0 else (middle - low))
    return max(1, round(math.exp(min(log, MOST_LOG))))


def read_model(text: bytes) -> Model:
    """Read and check a model."""
    if len(text) > MOST_BYTES:
        raise InvalidRequest(f"the model has {len(text)} bytes; expected at most {MOST_BYTES}")
    try:
        stored = msgspec.json.decode(text, type=StoredModel)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the model of run times cannot be read: {error}") from error
    return Model(stored)


def check_model(stored: StoredModel) -> None:
    """Reject a model of another version, and one whose trees are not trees."""
    if stored.format != FORMAT or tuple(stored.features) != NAMES:
        raise InvalidRequest("the model of run times is of another version; it is trained again")
    if len(stored.forests) != len(LEVELS) or stored.jobs < 0:
        raise InvalidRequest(f"the model of run times has no {len(LEVELS)} forests")
    for forest in stored.forests:
        if len(forest) > MOST_TREES or not all(map(_is_tree, forest)):
            raise InvalidRequest("a tree of the model of run times is damaged")


def _is_tree(tree: Tree) -> bool:
    nodes = len(tree.feature)
    columns = (tree.threshold, tree.categories, tree.left, tree.right)
    if nodes > MOST_NODES or any(len(column) != nodes for column in columns):
        return False
    if len(tree.value) != nodes + 1 or not all(map(_is_sane, tree.value)):
        return False
    children = (
        (node, child) for node in range(nodes) for child in (tree.left[node], tree.right[node])
    )
    return all(0 <= feature < len(NAMES) for feature in tree.feature) and all(
        node < child < nodes if child >= 0 else ~child <= nodes for node, child in children
    )


def _is_sane(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= MOST_LOG


def _sum(forest: Sequence[_Walkable], row: Row) -> float:
    total = 0.0
    for feature, threshold, categories, left, right, value in forest:
        node = 0 if feature else -1
        while node >= 0:
            number = row[feature[node]]
            among = categories[node]
            goes_left = number <= threshold[node] if among is None else number in among
            node = left[node] if goes_left else right[node]
        total += value[~node]
    return total
