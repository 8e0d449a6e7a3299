"""The server trains the model of run times in a process of its own, and stores it safely."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.predict.selection import LEAST_ROWS, SelectedPredictor
from gpu_scheduler.predict.training import TrainingRows
from gpu_scheduler.predict.trees import Model
from gpu_scheduler.server.background import model_training
from gpu_scheduler.server.background.model_training import FILE, ModelTraining, selected_predictor
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import MINUTE, a_job


def a_predictor() -> SelectedPredictor:
    """One that has seen jobs whose run time is proportional to an argument."""
    predictor = SelectedPredictor()
    for number in range(1, LEAST_ROWS + 1):
        epochs = 1 + number % 7
        command = ("python", "train.py", "--epochs", str(epochs))
        job = a_job(number=number, command=command, submit_ms=number * MINUTE)
        predictor.begin(job, number * MINUTE)
        predictor.end(job, epochs * MINUTE, (number + epochs) * MINUTE)
    return predictor


def a_training(predictor: SelectedPredictor, directory: Path) -> ModelTraining:
    loop = Loop(MemoryStore(), lambda: Core(preset("fair"), predictor), lambda: 10**12)
    return ModelTraining(loop, str(directory))


def test_training_process_gives_model_that_next_start_goes_on_with(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    predictor = a_predictor()
    assert predictor.is_training_due
    assert asyncio.run(a_training(predictor, tmp_path).train(predictor))
    assert (predictor.trainings, predictor.training_error) == (1, "")
    file = tmp_path / FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    again = selected_predictor(str(tmp_path))
    assert again.model is not None
    assert predictor.model is not None
    assert again.model.stored == predictor.model.stored
    assert again.scores() == predictor.scores()


def test_failing_training_leaves_history_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_library(rows: TrainingRows) -> Model:
        raise ClusterError("the process ended with 1: no module named 'lightgbm'")

    monkeypatch.setattr(model_training, "_train", no_library)
    predictor = a_predictor()
    assert not asyncio.run(a_training(predictor, tmp_path).train(predictor))
    assert predictor.model is None
    assert "lightgbm" in predictor.training_error
    assert list(tmp_path.iterdir()) == []
    assert predictor.is_training_due


def test_process_that_cannot_be_started_is_a_failed_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    predictor = a_predictor()
    assert not asyncio.run(a_training(predictor, tmp_path).train(predictor))
    assert "cannot be started" in predictor.training_error


def test_rows_that_process_cannot_read_are_an_error_with_its_last_words() -> None:
    broken = TrainingRows(rows=[(0.0,)] * 40, logs=[1.0], until_ms=0)
    with pytest.raises(ClusterError, match="ended with 1: "):
        asyncio.run(model_training._train(broken))


@pytest.mark.parametrize("text", [b"", b"{}", b"\x80\x04.", b"[" * 10_000])
def test_damaged_file_is_ignored(tmp_path: Path, text: bytes) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / FILE
    file.write_bytes(text)
    file.chmod(0o600)
    assert selected_predictor(str(tmp_path)).model is None


def test_file_that_others_may_write_is_ignored(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    predictor = a_predictor()
    asyncio.run(a_training(predictor, tmp_path).train(predictor))
    (tmp_path / FILE).chmod(0o666)
    assert selected_predictor(str(tmp_path)).model is None


def test_nothing_is_stored_without_model_or_change(tmp_path: Path) -> None:
    predictor = SelectedPredictor()
    training = a_training(predictor, tmp_path)
    asyncio.run(training.store(predictor))
    assert list(tmp_path.iterdir()) == []
    assert msgspec.json.encode(predictor.stored(0)) == b"null"
