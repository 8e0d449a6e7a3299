"""Trains the model of run times from the site's own ended jobs, and stores it.

The training is a process of its own at the lowest priority, bounded in memory and time; the control
loop only copies the rows of the jobs and installs the result. Without the optional extra, or when
a training fails, the statistics of the history go on predicting.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import ClusterError, SchedulerError
from gpu_scheduler.predict.selection import SelectedPredictor, StoredPredictor
from gpu_scheduler.predict.training import TrainingRows
from gpu_scheduler.predict.trees import MOST_BYTES, Model, read_model
from gpu_scheduler.settings.trusted_files import read_trusted

FILE = "run-times.json"
CHECK_S = 30.0
STORE_S = 600.0
LONGEST_S = 900.0
"""A training that takes longer is stopped: the machine is busy."""
RETRY_S = 3600.0
MOST_ERROR = 300
log = structlog.get_logger("server")


class ModelTraining:
    """Trains when there are enough new jobs, and stores model and scores for the next start."""

    def __init__(self, loop: Loop, directory: str) -> None:
        """Keep the file in this directory, which is private to the server."""
        self._loop = loop
        self._file = Path(directory) / FILE
        self._stored_jobs = 0

    async def run(self) -> None:
        """Train and store until cancelled."""
        waited_s = pause_s = 0.0
        while True:
            await asyncio.sleep(CHECK_S)
            waited_s += CHECK_S
            pause_s -= CHECK_S
            predictor = self._loop.core.state.predictor
            if not isinstance(predictor, SelectedPredictor):
                continue
            is_due = predictor.is_training_due and pause_s <= 0
            if is_due and not await self.train(predictor):
                pause_s = RETRY_S
            if waited_s >= STORE_S:
                waited_s = 0.0
                await self.store(predictor)

    async def train(self, predictor: SelectedPredictor) -> bool:
        """Train once; tell whether there is a new model."""
        rows = predictor.training_rows()
        try:
            model = await _train(rows)
        except SchedulerError as error:
            predictor.training_failed(str(error))
            log.warning("training of run times failed; the history predicts", error=str(error))
            return False
        predictor.install(model)
        log.info("model of run times trained", jobs=model.stored.jobs)
        await self.store(predictor)
        return True

    async def store(self, predictor: SelectedPredictor) -> None:
        """Store the model and its scores, unless nothing has changed."""
        stored = predictor.stored(self._loop.now_ms())
        if stored is None or self._stored_jobs == predictor.scored_jobs + predictor.trainings:
            return
        try:
            await asyncio.to_thread(_write, self._file, msgspec.json.encode(stored))
        except OSError as error:
            log.warning("cannot store the model of run times", error=str(error))
            return
        self._stored_jobs = predictor.scored_jobs + predictor.trainings


def selected_predictor(directory: str) -> SelectedPredictor:
    """A predictor with the stored model and its scores, if there are any and they can be read."""
    predictor = SelectedPredictor()
    file = Path(directory) / FILE
    if not file.exists():
        return predictor
    try:
        text = read_trusted(str(file), MOST_BYTES, secret=True)
        predictor.restore(msgspec.json.decode(text, type=StoredPredictor))
    except (SchedulerError, OSError, msgspec.MsgspecError) as error:
        log.warning("stored model of run times ignored; it is trained again", error=str(error))
        return SelectedPredictor()
    return predictor


async def _train(rows: TrainingRows) -> Model:
    """Run the training process; it is killed if it takes too long or this task is cancelled."""
    text = await asyncio.to_thread(msgspec.msgpack.encode, rows)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gpu_scheduler.predict.training"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            limit=MOST_BYTES,
        )
    except OSError as error:
        raise ClusterError(f"the process cannot be started: {error}") from error
    try:
        async with asyncio.timeout(LONGEST_S):
            answer, errors = await process.communicate(text)
    except TimeoutError:
        raise ClusterError(f"it took more than {LONGEST_S:g} s and was stopped") from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        said = errors.decode(errors="replace").strip().rpartition("\n")[2][:MOST_ERROR]
        raise ClusterError(f"the process ended with {process.returncode}: {said or 'no message'}")
    return await asyncio.to_thread(read_model, answer)


def _write(file: Path, text: bytes) -> None:
    """Replace the file; a crash leaves the old one or the new one."""
    beside = file.with_suffix(".new")
    with suppress(FileNotFoundError):
        beside.unlink()
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as new:
        new.write(text)
        new.flush()
        os.fsync(new.fileno())
    beside.replace(file)
