"""Trains the model of run times by gradient boosting: rows of ended jobs in, a model as JSON out.

The only module that uses LightGBM, the extra "learned"; it is imported when training begins.
A server runs this module as a process of its own, `python -m gpu_scheduler.predict.training`, which
reads `TrainingRows` from stdin and writes the model to stdout. The same rows and the same version
of the library give the same model.
"""

from __future__ import annotations

import importlib.util
import math
import os
import resource
import sys
from random import Random
from typing import Any

import msgspec

from gpu_scheduler.predict.features import CATEGORIES, NAMES, Row, after
from gpu_scheduler.predict.trees import (
    FORMAT,
    LEVELS,
    Model,
    StoredModel,
    Tree,
    base_of,
)

LIBRARY = "lightgbm"
MOST_ROUNDS = 120
HELD_BACK = 0.15
"""The last part of the rows decides after how many rounds training stops."""
PARAMETERS = {
    "objective": "quantile",
    "learning_rate": 0.1,
    "num_leaves": 24,
    "min_data_in_leaf": 20,
    "feature_fraction": 0.7,
    "lambda_l2": 1.0,
    "max_bin": 63,
    "cat_smooth": 20.0,
    "max_cat_threshold": 16,
    "use_missing": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}
MEMORY_BYTES = 2 * 1024**3
CPU_S = 300
NICE = 19


class TrainingRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of jobs in the order of their ends, with the logarithms of their run times."""

    rows: list[Row]
    logs: list[float]
    until_ms: int
    seed: int = 0


def is_available() -> bool:
    """Tell whether the library is installed; does not load it."""
    return importlib.util.find_spec(LIBRARY) is not None


def train(training: TrainingRows) -> StoredModel:
    """Train one forest for each quantile."""
    # Heavy and optional: nothing but a training loads them.
    import lightgbm  # noqa: PLC0415
    import numpy  # noqa: PLC0415

    rows, targets = _examples(training)
    table = numpy.array(rows, dtype=numpy.float32)
    goals = numpy.array(targets, dtype=numpy.float32)
    cut = round(len(rows) * (1 - HELD_BACK))
    forests = []
    for level in LEVELS:
        known = lightgbm.Dataset(table[:cut], goals[:cut], categorical_feature=sorted(CATEGORIES))
        held_back = lightgbm.Dataset(table[cut:], goals[cut:], reference=known)
        booster = lightgbm.train(
            {**PARAMETERS, "alpha": level, "seed": training.seed},
            known,
            num_boost_round=MOST_ROUNDS,
            valid_sets=[held_back],
            callbacks=[lightgbm.early_stopping(12, verbose=False)],
        )
        dump = booster.dump_model(num_iteration=booster.best_iteration)
        forests.append([_tree(one["tree_structure"]) for one in dump["tree_info"]])
    return StoredModel(
        format=FORMAT,
        features=list(NAMES),
        jobs=len(training.rows),
        trained_until_ms=training.until_ms,
        forests=forests,
    )


def train_here(training: TrainingRows) -> Model:
    """Train in this process, for simulations."""
    return Model(train(training))


def _examples(training: TrainingRows) -> tuple[list[Row], list[float]]:
    """Each job as it began, and as it was at a random later moment of its run."""
    chance = Random(training.seed)
    rows, targets = [], []
    for row, log in zip(training.rows, training.logs, strict=True):
        later = after(row, int(math.exp(log) * chance.random()))
        for one in (row, later):
            rows.append(one)
            targets.append(log - base_of(one))
    return rows, targets


def _tree(structure: dict[str, Any]) -> Tree:
    """A tree of the library as columns, with parents before their children."""
    tree = Tree(feature=[], threshold=[], categories=[], left=[], right=[], value=[])

    def add(node: dict[str, Any]) -> int:
        if "split_feature" not in node:
            tree.value.append(float(node["leaf_value"]))
            return ~(len(tree.value) - 1)
        place = len(tree.feature)
        is_category = node["decision_type"] == "=="
        words = str(node["threshold"]).split("||") if is_category else []
        tree.feature.append(int(node["split_feature"]))
        tree.threshold.append(0.0 if is_category else float(node["threshold"]))
        tree.categories.append([int(word) for word in words] if is_category else None)
        tree.left.append(0)
        tree.right.append(0)
        tree.left[place] = add(node["left_child"])
        tree.right[place] = add(node["right_child"])
        return place

    add(structure)
    return tree


def main() -> int:
    """Train within bounds of memory and time, at the lowest priority."""
    os.nice(NICE)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    training = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TrainingRows)
    sys.stdout.buffer.write(msgspec.json.encode(train(training)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
