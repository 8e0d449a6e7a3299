"""Champion and challenger: statistics of the history, and a trained model that must earn its place.

Jobs that start and end come in; expected run times go out. The history predicts from the first job.
As jobs start, both predict them; as these end, both are scored by pinball loss, for the site and
for each tenant. The model is used where it was better by a margin over enough jobs, and no longer
than that. It is trained elsewhere, from `training_rows`, and installed when it is ready. All state
is bounded. The same jobs, models and times give the same predictions.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gpu_scheduler.model.errors import InternalError, InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.features import Row, after, row_of
from gpu_scheduler.predict.history import MEDIAN, History
from gpu_scheduler.predict.interface import RunTimeBasis
from gpu_scheduler.predict.training import TrainingRows
from gpu_scheduler.predict.trees import LEVELS, Logs, Model, StoredModel, quantile_ms

LEAST_ROWS = 500
"""Jobs before the first training."""
MOST_ROWS = 10_000
"""Training uses the last jobs."""
GROWTH_PERCENT = 25
"""A new training needs so many new jobs, compared with the rows of the last one."""
SAMPLED_PER_S = 20
"""Of the jobs that start within a second, so many are scored and learnt from."""
MOST_STARTED = 20_000
"""Started jobs whose predictions are kept until they end."""
MOST_TOLD = 20_000
"""Jobs whose prediction is kept, as forecasts ask again and again."""
MOST_ALIKE = 200
"""Of jobs submitted at once the model predicts so many; the rest by their history."""
MOST_TENANTS = 500
LEAST_SCORED = 200
"""Jobs before the model can be used."""
MEMORY = 1_000
"""Scores of earlier jobs fade: this many count about as much as all before them."""
GAIN_TO_USE = 0.05
"""The model is used once its loss is smaller by this share, and by twice the standard error."""
GAIN_TO_KEEP = 0.01
"""It is used until its gain is smaller than this."""
CERTAIN = 2.0
MOST_REGRET = 0.01
"""The losses that using the model adds stay below this share of all the history's losses; of the
first `MEMORY` jobs, below this share of what these would have."""
ATOMS = ((0, 0.3), (1, 0.4), (2, 0.3))
"""Weights of the three quantiles that give mean and variance of usual distributions (Keefer and
Bodily)."""

Trainer = Callable[[TrainingRows], Model]


class StoredComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sums of a comparison."""

    jobs: int
    weight: float
    history: float
    model: float
    squares: float
    all_history: float
    regret: float
    is_used: bool


class StoredPredictor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server stores: the model and its scores at a time. The history is in the database."""

    model: StoredModel
    at_ms: int
    site: StoredComparison
    tenants: dict[str, StoredComparison]


@dataclass(slots=True, kw_only=True)
class ScoreTotals:
    """Sums of losses over all scored jobs: of both predictors, and of the one that was used."""

    jobs: int = 0
    history: float = 0.0
    model: float = 0.0
    used: float = 0.0
    trainings: int = 0

    def add(self, other: ScoreTotals) -> None:
        """Add those of another site."""
        self.jobs += other.jobs
        self.history += other.history
        self.model += other.model
        self.used += other.used
        self.trainings += other.trainings


class Score(NamedTuple):
    """How both predictors did on jobs of a tenant, or of all (`tenant` is None)."""

    tenant: str | None
    jobs: int
    history_loss: float
    model_loss: float
    is_used: bool

    @property
    def gain(self) -> float:
        """The share by which the model's loss is smaller."""
        return 1 - self.model_loss / self.history_loss if self.history_loss else 0.0


class _Comparison:
    """Losses of both predictors on the same jobs; recent jobs count more.

    All jobs count the same in `all_history`, and in `regret`: what using the model has cost. If it
    has cost more than a small share, the history is used, so that the model never costs more.
    """

    __slots__ = (
        *("all_history", "history", "is_used", "jobs", "model", "regret", "squares", "weight"),
    )

    def __init__(self) -> None:
        self.jobs = 0
        self.all_history = self.regret = 0.0
        self.weight = self.history = self.model = self.squares = 0.0
        self.is_used = False

    def add(self, history_loss: float, model_loss: float) -> None:
        """Count a job, and decide again which predictor is used."""
        keep = 1 - 1 / MEMORY
        self.jobs += 1
        self.all_history += history_loss
        self.regret += model_loss - history_loss if self.is_used else 0.0
        self.weight = self.weight * keep + 1
        self.history = self.history * keep + history_loss
        self.model = self.model * keep + model_loss
        self.squares = self.squares * keep + (history_loss - model_loss) ** 2
        gain = self.history - self.model
        if self.regret > MOST_REGRET * self.all_history * max(1.0, MEMORY / self.jobs):
            self.is_used = False
        elif self.is_used:
            self.is_used = gain >= GAIN_TO_KEEP * self.history
        elif self.jobs >= LEAST_SCORED and gain >= GAIN_TO_USE * self.history:
            error = math.sqrt(max(0.0, self.squares - gain * gain / self.weight))
            self.is_used = gain > CERTAIN * error

    def stored(self) -> StoredComparison:
        return StoredComparison(
            jobs=self.jobs,
            weight=self.weight,
            history=self.history,
            model=self.model,
            squares=self.squares,
            all_history=self.all_history,
            regret=self.regret,
            is_used=self.is_used,
        )

    @classmethod
    def restored(cls, stored: StoredComparison) -> _Comparison:
        sums = (stored.weight, stored.history, stored.model, stored.squares)
        totals = (stored.all_history, stored.regret)
        if (
            stored.jobs < 0
            or not all(0 <= one < math.inf for one in sums)
            or not all(map(math.isfinite, totals))
        ):
            raise InvalidRequest("the stored scores of predictors are damaged")
        new = cls()
        new.jobs, new.is_used = stored.jobs, stored.is_used
        new.weight, new.history, new.model, new.squares = sums
        new.all_history, new.regret = totals
        return new

    def score(self, tenant: str | None) -> Score:
        weight = self.weight or 1.0
        return Score(tenant, self.jobs, self.history / weight, self.model / weight, self.is_used)


class _Start(NamedTuple):
    """What was known and predicted when a job started; the row is packed, which takes less room."""

    row: array[float]
    history: Logs | None
    model: Logs | None


class SelectedPredictor:
    """Predicts by the history, or by the model where that has proven better."""

    def __init__(self, trainer: Trainer | None = None) -> None:
        """With a `trainer`, train here as soon as there are enough new jobs (in simulations)."""
        self.history = History()
        self.model: Model | None = None
        self.trainings = 0
        self.training_error = ""
        """Why the last training failed."""
        self.totals = ScoreTotals()
        """Over all jobs since the start, none of which fades."""
        self._scored_after_ms = 0
        self._trainer = trainer
        self._rows: deque[tuple[array[float], float]] = deque(maxlen=MOST_ROWS)
        self._new_rows = self._rows_in_training = 0
        self._until_ms = 0
        self._started: OrderedDict[str, _Start] = OrderedDict()
        self._told: OrderedDict[str, Logs] = OrderedDict()
        self._second, self._sampled = 0, 0
        self._site = _Comparison()
        self._tenants: OrderedDict[str, _Comparison] = OrderedDict()

    def expect(self, job: Job, now_ms: int) -> int:
        """The expected run time at submission."""
        if not self._uses_model(job):
            return self.history.expect(job, now_ms)
        return _limited(job, quantile_ms(self._logs(job, 0, now_ms), MEDIAN))

    def expect_alike(self, jobs: Sequence[Job], now_ms: int) -> list[int]:
        """Expected run times of jobs that differ only in number, name and command."""
        if not self._uses_model(jobs[0]):
            return self.history.expect_alike(jobs, now_ms)
        first = [self.expect(job, now_ms) for job in jobs[:MOST_ALIKE]]
        rest = jobs[MOST_ALIKE:]
        return first + (self.history.expect_alike(rest, now_ms) if rest else [])

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        """The expected total run time of a job that runs longer than expected."""
        if not self._uses_model(job):
            return self.history.exceed(job, elapsed_ms, now_ms)
        return self._later(
            job, elapsed_ms, quantile_ms(self._logs(job, elapsed_ms, now_ms), MEDIAN)
        )

    def is_guess(self, job: Job, elapsed_ms: int) -> bool:
        """Tell whether nothing is known of such jobs."""
        return not self._uses_model(job) and self.history.is_guess(job, elapsed_ms)

    def run_time(self, job: Job, elapsed_ms: int) -> tuple[int, RunTimeBasis]:
        """The total run time that users are told, and what it is based on."""
        model = self.model
        if model is None or not self._uses_model(job):
            return self.history.run_time(job, elapsed_ms)
        expected_ms = quantile_ms(self._logs(job, elapsed_ms, 0), MEDIAN)
        return self._later(job, elapsed_ms, expected_ms), RunTimeBasis("model", model.stored.jobs)

    def forecast_run_time(self, job: Job, elapsed_ms: int) -> int:
        """The total run time that forecasts of starts count with: between median and mean."""
        if not self._uses_model(job):
            return self.history.forecast_run_time(job, elapsed_ms)
        logs = self._logs(job, elapsed_ms, 0)
        left = [max(0, quantile_ms(logs, LEVELS[place] * 100) - elapsed_ms) for place, _ in ATOMS]
        root = sum(
            math.sqrt(left_ms) * weight for left_ms, (_, weight) in zip(left, ATOMS, strict=True)
        )
        return self._later(job, elapsed_ms, elapsed_ms + round(root * root))

    def begin(self, job: Job, now_ms: int) -> None:
        """An attempt has started: note what both predict."""
        second = now_ms // 1000
        if second != self._second:
            self._second, self._sampled = second, 0
        if self._sampled < SAMPLED_PER_S and not job.service and job.id not in self._started:
            self._sampled += 1
            row = self._row(job, now_ms)
            history = model = None
            if self.model is not None and now_ms > self._scored_after_ms:
                model = self.model.logs(row)
                history = self._history_logs(job, row)
            self._started[job.id] = _Start(array("d", row), history, model)
            if len(self._started) > MOST_STARTED:
                self._started.popitem(last=False)
        self.history.begin(job, now_ms)

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """Score both, and learn from a job that ended by itself."""
        self.history.end(job, run_ms, now_ms)
        self._told.pop(job.id, None)
        start = self._started.pop(job.id, None)
        if start is None or run_ms is None:
            return
        log = math.log(max(1, run_ms))
        if start.history is not None and start.model is not None:
            self.score(job.tenant, _loss(start.history, log), _loss(start.model, log))
        self._rows.append((start.row, log))
        self._new_rows += 1
        self._until_ms = max(self._until_ms, now_ms)
        if self._trainer is not None and self.is_training_due:
            self.install(self._trainer(self.training_rows()))

    @property
    def is_training_due(self) -> bool:
        """Tell whether there are enough new jobs for a new model."""
        known = 0 if self.model is None else min(self.model.stored.jobs, MOST_ROWS)
        least = max(LEAST_ROWS, known * GROWTH_PERCENT // 100)
        return len(self._rows) >= LEAST_ROWS and self._new_rows >= least

    @property
    def jobs_learnt(self) -> int:
        """How many ended jobs a training would use now."""
        return len(self._rows)

    def training_rows(self) -> TrainingRows:
        """What a training needs; the jobs count as used unless it fails."""
        self._new_rows, self._rows_in_training = 0, self._new_rows
        return TrainingRows(
            rows=[tuple(row) for row, _ in self._rows],
            logs=[log for _, log in self._rows],
            until_ms=self._until_ms,
        )

    def training_failed(self, error: str) -> None:
        """Note why, and count the jobs as new again, so that they are trained on later."""
        self.training_error = error
        self._new_rows += self._rows_in_training
        self._rows_in_training = 0

    def install(self, model: Model) -> None:
        """Predict by a new model from now on; what is known of the last one's gain stays."""
        self.model = model
        self.training_error = ""
        self._rows_in_training = 0
        self.trainings += 1
        self.totals.trainings += 1
        # A job that began earlier may be among those that the model was trained on.
        self._scored_after_ms = max(self._scored_after_ms, model.stored.trained_until_ms)
        self._told.clear()

    def stored(self, now_ms: int) -> StoredPredictor | None:
        """What to store for the next start; None without a model."""
        if self.model is None:
            return None
        return StoredPredictor(
            model=self.model.stored,
            at_ms=now_ms,
            site=self._site.stored(),
            tenants={tenant: one.stored() for tenant, one in self._tenants.items()},
        )

    def restore(self, stored: StoredPredictor) -> None:
        """Go on with a stored model; jobs that began before it was stored are not scored again."""
        if len(stored.tenants) > MOST_TENANTS:
            raise InvalidRequest("the stored scores of predictors are of too many tenants")
        self.install(Model(stored.model))
        self.trainings = 0
        self._scored_after_ms = max(self._scored_after_ms, stored.at_ms)
        self._site = _Comparison.restored(stored.site)
        for tenant, one in stored.tenants.items():
            self._tenants[tenant] = _Comparison.restored(one)

    @property
    def scored_jobs(self) -> int:
        """How many jobs both predictors were scored on."""
        return self._site.jobs

    def scores(self) -> list[Score]:
        """The scores of all jobs, then of each tenant."""
        tenants = [self._tenants[tenant].score(tenant) for tenant in sorted(self._tenants)]
        return [self._site.score(None), *tenants]

    def uses_model_for(self, tenant: str) -> bool:
        """Tell whether the model predicts the jobs of the tenant.

        A tenant without enough jobs of its own gets the predictor of the site.
        """
        if self.model is None:
            return False
        own = self._tenants.get(tenant)
        return (self._site if own is None or own.jobs < LEAST_SCORED else own).is_used

    def why(self, score: Score) -> str:
        """Why the history or the model predicts jobs like those of this score."""
        if self.model is None:
            return f"no model yet: {len(self._rows)} of {LEAST_ROWS} ended jobs"
        if score.jobs < LEAST_SCORED:
            seen = f"{score.jobs} of {LEAST_SCORED} jobs scored"
            return seen if score.tenant is None else f"{seen}; as for all tenants"
        than = "less" if score.gain > 0 else "more"
        gain = f"the model's loss is {100 * abs(score.gain):.1f} % {than}"
        if score.is_used:
            return f"{gain}; it is used while that is at least {100 * GAIN_TO_KEEP:.0f} %"
        if score.gain < GAIN_TO_USE:
            return f"{gain}; it is used from {100 * GAIN_TO_USE:.0f} %"
        return f"{gain}, but that may be chance, or its use has cost too much before"

    def _uses_model(self, job: Job) -> bool:
        return self.model is not None and self.uses_model_for(job.tenant)

    def score(self, tenant: str, history_loss: float, model_loss: float) -> None:
        """Count the losses of both on one job of the tenant."""
        used_loss = model_loss if self.uses_model_for(tenant) else history_loss
        self.totals.add(ScoreTotals(jobs=1, history=history_loss, model=model_loss, used=used_loss))
        own = self._tenants.get(tenant)
        if own is None:
            own = self._tenants[tenant] = _Comparison()
            if len(self._tenants) > MOST_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        for comparison in (self._site, own):
            comparison.add(history_loss, model_loss)

    def _row(self, job: Job, now_ms: int) -> Row:
        return row_of(job, self.history.expect(job, now_ms), self.history.group_means(job))

    def _history_logs(self, job: Job, row: Row) -> Logs:
        """What the history expects, as three quantiles."""
        low, high = (
            math.log(self.history.quantile(job, round(level * 100))) for level in LEVELS[::2]
        )
        return low, row[1], high

    def _logs(self, job: Job, elapsed_ms: int, now_ms: int) -> Logs:
        """The model's quantiles; kept for a job that has not run, as forecasts ask often."""
        model = self.model
        if model is None:
            raise InternalError("predicted by a model of run times, but none is installed")
        if elapsed_ms:
            start = self._started.get(job.id)
            row = self._row(job, now_ms) if start is None else tuple(start.row)
            return model.logs(after(row, elapsed_ms))
        logs = self._told.get(job.id)
        if logs is None:
            logs = self._told[job.id] = model.logs(self._row(job, now_ms))
            if len(self._told) > MOST_TOLD:
                self._told.popitem(last=False)
        return logs

    @staticmethod
    def _later(job: Job, elapsed_ms: int, expected_ms: int) -> int:
        """The expected run time, within the limit and after what has passed."""
        return max(elapsed_ms + 1, _limited(job, expected_ms))


def _limited(job: Job, expected_ms: int) -> int:
    return min(expected_ms, job.max_runtime_ms) if job.max_runtime_ms else expected_ms


def _loss(predicted: Logs, log: float) -> float:
    """The mean pinball loss of the quantiles, in logarithms."""
    total = 0.0
    for level, quantile in zip(LEVELS, predicted, strict=True):
        off = log - quantile
        total += level * off if off >= 0 else (level - 1) * off
    return total / len(LEVELS)
