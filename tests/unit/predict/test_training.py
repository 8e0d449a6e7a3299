"""Training by the real library, in a process of its own as the server runs it."""

import math
import subprocess
import sys
from random import Random

import msgspec
import pytest

from gpu_scheduler.predict.features import row_of
from gpu_scheduler.predict.training import TrainingRows, is_available, train
from gpu_scheduler.predict.trees import Model, read_model
from tests.builders import HOUR, a_job

JOBS = 600


def rows_of_arguments() -> TrainingRows:
    """Jobs that take a minute for each epoch, and three times as long with the larger model."""
    chance = Random(1)
    rows, logs = [], []
    for number in range(1, JOBS + 1):
        epochs, model = chance.choice((1, 5, 20, 80)), chance.choice(("small", "large"))
        rows.append(row_of(job_of(number, epochs, model), HOUR, [(15.0, number)]))
        run_ms = 60_000 * epochs * (3 if model == "large" else 1)
        logs.append(math.log(run_ms) + chance.gauss(0, 0.05))
    return TrainingRows(rows=rows, logs=logs, until_ms=JOBS)


def job_of(number: int, epochs: int, model: str):
    command = ("python", "train.py", "--epochs", str(epochs), "--model", model)
    return a_job(number=number, command=command)


def test_development_environment_has_library() -> None:
    assert is_available()


def test_trained_model_knows_what_arguments_do_and_is_same_again() -> None:
    stored = train(rows_of_arguments())
    assert msgspec.json.encode(stored) == msgspec.json.encode(train(rows_of_arguments()))
    model = Model(stored)
    for epochs, name, minutes in ((1, "small", 1), (20, "large", 60), (80, "small", 80)):
        low, middle, high = model.logs(row_of(job_of(1, epochs, name), HOUR, [(15.0, JOBS)]))
        assert math.exp(middle) == pytest.approx(60_000 * minutes, rel=0.35)
        assert low <= middle <= high


def test_evaluation_without_library_equals_that_of_library() -> None:
    import lightgbm
    import numpy

    chance = Random(2)
    table = [
        [chance.choice((-1.0, chance.random() * 9)), float(chance.randrange(-1, 30))]
        for _ in range(900)
    ]
    goals = [row[0] + (row[1] % 3) for row in table]
    from gpu_scheduler.predict import training, trees

    data = lightgbm.Dataset(numpy.array(table), goals, categorical_feature=[1])
    booster = lightgbm.train(training.PARAMETERS | {"alpha": 0.5}, data, num_boost_round=20)
    forest = [training._tree(one["tree_structure"]) for one in booster.dump_model()["tree_info"]]
    assert any(some for tree in forest for some in tree.categories)
    walkable = [
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
    for row, expected in zip(table, booster.predict(numpy.array(table)), strict=True):
        assert trees._sum(walkable, row) == pytest.approx(expected, abs=1e-6)


def test_process_trains_within_its_bounds() -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-m", "gpu_scheduler.predict.training"],
        input=msgspec.msgpack.encode(rows_of_arguments()),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    assert read_model(run.stdout).stored.jobs == JOBS


def test_server_loads_no_library_for_predictions() -> None:
    code = (
        "import sys, gpu_scheduler.predict.selection, gpu_scheduler.predict.training as t; "
        "t.is_available(); sys.exit(any(n in sys.modules for n in ('lightgbm', 'numpy', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
