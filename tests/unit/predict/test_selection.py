"""The model of run times is used where it has proven better than the history, and nowhere else."""

import math
from random import Random

import msgspec
import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.predict.features import MISSING, NAMES, _number, row_of
from gpu_scheduler.predict.history import History
from gpu_scheduler.predict.selection import (
    LEAST_ROWS,
    LEAST_SCORED,
    MOST_REGRET,
    MOST_TENANTS,
    SAMPLED_PER_S,
    SelectedPredictor,
    StoredPredictor,
)
from gpu_scheduler.predict.trees import FORMAT, Model, StoredModel, Tree, quantile_ms, read_model
from tests.builders import HOUR, MINUTE, SECOND, a_job

MOST_LOSS = 4.5
"""The largest loss of one job in the test of random losses."""
FLAT = Tree(feature=[], threshold=[], categories=[], left=[], right=[], value=[0.0])


def a_model(*logs: float, until_ms: int = 0, **changes) -> Model:
    """A model that adds these numbers to the logarithm of the guess."""
    forests = [[msgspec.structs.replace(FLAT, value=[log])] for log in logs or (-1.0, 0.0, 1.0)]
    values = {
        "format": FORMAT,
        "features": list(NAMES),
        "jobs": 10,
        "trained_until_ms": until_ms,
        "forests": forests,
    }
    return Model(StoredModel(**(values | changes)))


DOUBLING = [MINUTE * 2**step for step in range(8)]
"""Run times for which a model that adds to the guess of the history is better."""


class Site:
    """Jobs of one name that run one after the other, for as long as each test says."""

    def __init__(self, predictor: SelectedPredictor | None = None) -> None:
        self.predictor = predictor or SelectedPredictor()
        self.now_ms, self.number = HOUR, 0

    def run(self, *runs_ms: int, **wishes) -> None:
        for run_ms in runs_ms:
            self.number += 1
            job = a_job(number=self.number, name="train", estimate_ms=0, **wishes)
            self.predictor.begin(job, self.now_ms)
            self.now_ms += run_ms
            self.predictor.end(job, run_ms, self.now_ms)


def of_constant_run_time(jobs: int) -> Site:
    """A site whose history expects ten minutes."""
    site = Site()
    site.run(*[10 * MINUTE] * jobs)
    return site


def drift(site: Site, jobs: int, **wishes) -> None:
    """The run time doubles with every job, and starts again: history expects the mean."""
    site.run(*([MINUTE, 2 * MINUTE, 4 * MINUTE, 8 * MINUTE] * (jobs // 4)), **wishes)


def test_without_model_every_prediction_is_that_of_history() -> None:
    history, site = History(), of_constant_run_time(3)
    for number in range(1, 4):
        job = a_job(number=number, name="train", estimate_ms=0)
        history.begin(job, 0)
        history.end(job, 10 * MINUTE, 10 * MINUTE)
    job = a_job(number=9, name="train", estimate_ms=0)
    selected = site.predictor
    assert selected.expect(job, site.now_ms) == history.expect(job, site.now_ms)
    assert selected.exceed(job, HOUR, 0) == history.exceed(job, HOUR, 0)
    assert selected.run_time(job, 0) == history.run_time(job, 0)
    assert selected.forecast_run_time(job, 0) == history.forecast_run_time(job, 0)
    assert selected.expect_alike([job], 0) == history.expect_alike([job], 0)
    assert selected.is_guess(job, 0) == history.is_guess(job, 0)


def test_model_without_gain_is_never_used() -> None:
    site = of_constant_run_time(20)
    site.predictor.install(a_model(-3.0, -2.0, -1.0))
    site.run(*[10 * MINUTE] * (2 * LEAST_SCORED))
    score = site.predictor.scores()[0]
    assert score.jobs == 2 * LEAST_SCORED
    assert score.model_loss > score.history_loss
    assert not site.predictor.uses_model_for("vision")
    assert "more" in site.predictor.why(score)


def test_better_model_is_used_after_enough_jobs_and_no_longer_than_it_is_better() -> None:
    site = Site()
    site.run(*DOUBLING)
    site.predictor.install(a_model(1.0, 2.0, 3.0))
    while site.predictor.scored_jobs < LEAST_SCORED - 1:
        site.run(*(run_ms * 50 for run_ms in DOUBLING), user=f"u{site.number}")
        if site.predictor.scored_jobs > LEAST_SCORED - 10:
            break
    assert not site.predictor.scores()[0].is_used
    while not site.predictor.scores()[0].is_used and site.number < 4 * LEAST_SCORED:
        site.run(*(run_ms * 50 for run_ms in DOUBLING), user=f"u{site.number}")
    assert site.predictor.uses_model_for("vision")
    job = a_job(number=9_999, name="train", estimate_ms=0)
    assert site.predictor.run_time(job, 0)[1].kind == "model"
    assert site.predictor.exceed(job, 50 * HOUR, 0) > 50 * HOUR
    site.run(*[MINUTE] * 3_000)
    assert not site.predictor.uses_model_for("vision")
    assert site.predictor.run_time(job, 0)[1].kind == "command"


def test_whatever_losses_come_using_model_costs_at_most_a_small_share() -> None:
    chance = Random(3)
    for _ in range(5):
        predictor = SelectedPredictor()
        predictor.install(a_model())
        for _ in range(12):  # The model is alternately better and much worse.
            for factor in (0.5, 3.0):
                for _ in range(chance.randrange(50, 700)):
                    predictor.score("vision", 1.0, factor * chance.uniform(0.5, 1.5))
        totals = predictor.totals
        assert totals.used <= (1 + MOST_REGRET) * totals.history + MOST_LOSS


def test_tenant_with_enough_jobs_of_its_own_gets_its_own_better_predictor() -> None:
    site = Site()
    site.run(*[10 * MINUTE] * 20, tenant="steady")
    site.run(*DOUBLING, tenant="doubling")
    site.predictor.install(a_model(1.0, 2.0, 3.0))
    for _ in range(LEAST_SCORED // 4):
        site.run(*[10 * MINUTE] * 8, tenant="steady")
        site.run(*(run_ms * 50 for run_ms in DOUBLING), tenant="doubling", user=f"u{site.number}")
    assert [site.predictor.uses_model_for(name) for name in ("steady", "doubling")] == [False, True]


def test_jobs_that_began_before_training_are_not_scored() -> None:
    site = of_constant_run_time(5)
    job = a_job(number=99, name="train")
    site.predictor.begin(job, site.now_ms)
    site.predictor.install(a_model(until_ms=site.now_ms))
    site.predictor.end(job, MINUTE, site.now_ms + MINUTE)
    assert site.predictor.scored_jobs == 0


def test_burst_of_starts_costs_bounded_work() -> None:
    predictor = SelectedPredictor()
    jobs = [a_job(number=number) for number in range(1, 1_000)]
    for job in jobs:
        predictor.begin(job, HOUR)
    for job in jobs:
        predictor.end(job, MINUTE, HOUR + MINUTE)
    assert predictor.jobs_learnt == SAMPLED_PER_S


def test_training_waits_for_enough_jobs_and_then_for_new_ones() -> None:
    site = of_constant_run_time(LEAST_ROWS - 1)
    assert not site.predictor.is_training_due
    site.run(MINUTE)
    assert site.predictor.is_training_due
    assert len(site.predictor.training_rows().rows) == LEAST_ROWS
    assert not site.predictor.is_training_due


def test_stored_predictor_goes_on_with_model_and_scores() -> None:
    site = of_constant_run_time(20)
    assert site.predictor.stored(site.now_ms) is None
    site.predictor.install(a_model())
    drift(site, 80)
    text = msgspec.json.encode(site.predictor.stored(site.now_ms))
    again = SelectedPredictor()
    again.restore(msgspec.json.decode(text, type=StoredPredictor))
    assert again.scores() == site.predictor.scores()
    job = a_job(number=1)
    again.begin(job, site.now_ms - 1)  # The database gives the jobs of before once more.
    again.end(job, MINUTE, site.now_ms)
    assert again.scores() == site.predictor.scores()


def test_stored_predictor_that_is_damaged_or_too_large_is_rejected() -> None:
    site = of_constant_run_time(20)
    site.predictor.install(a_model())
    stored = site.predictor.stored(site.now_ms)
    assert stored is not None
    damaged = [
        msgspec.structs.replace(stored, site=msgspec.structs.replace(stored.site, weight=math.inf)),
        msgspec.structs.replace(
            stored, tenants=dict.fromkeys(map(str, range(MOST_TENANTS + 1)), stored.site)
        ),
        msgspec.structs.replace(stored, model=msgspec.structs.replace(stored.model, format=0)),
    ]
    for one in damaged:
        with pytest.raises(InvalidRequest):
            SelectedPredictor().restore(one)


@pytest.mark.parametrize(
    "tree",
    [
        {"feature": [0], "threshold": [0.0], "categories": [None], "left": [0], "right": [-1]},
        {"feature": [999], "threshold": [0.0], "categories": [None], "left": [-1], "right": [-2]},
        {"feature": [0], "threshold": [0.0], "categories": [None], "left": [-9], "right": [-2]},
        {"feature": [0], "threshold": [], "categories": [None], "left": [-1], "right": [-2]},
        {"value": [math.inf]},
        {"value": []},
    ],
    ids=["loop", "no such feature", "no such leaf", "short column", "endless", "no leaf"],
)
def test_forged_tree_is_rejected_before_use(tree: dict) -> None:
    values = {"feature": [], "threshold": [], "categories": [], "left": [], "right": []}
    leaves = {"value": [0.0] * (len(tree.get("feature", [])) + 1)}
    forged = Tree(**(values | leaves | tree))
    with pytest.raises(InvalidRequest):
        a_model(forests=[[FLAT], [forged], [FLAT]])


@pytest.mark.parametrize("text", [b"", b"[]", b'{"format": 1}', b"\x80\x04K\x01."])
def test_text_that_is_no_model_is_rejected(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_model(text)


def test_quantiles_between_those_of_model_follow_its_logarithms() -> None:
    logs = (math.log(MINUTE), math.log(10 * MINUTE), math.log(100 * MINUTE))
    assert [quantile_ms(logs, percent) for percent in (10, 50, 90)] == [
        MINUTE,
        10 * MINUTE,
        100 * MINUTE,
    ]
    assert MINUTE < quantile_ms(logs, 30) < 10 * MINUTE < quantile_ms(logs, 70) < 100 * MINUTE


def arguments(*command: str) -> dict[str, float]:
    row = row_of(a_job(command=("python", "train.py", *command)), HOUR, [])
    assert len(row) == len(NAMES)
    pairs = zip(NAMES, row, strict=True)
    return {name: value for name, value in pairs if name[:6] in {"number", "word_0"} and value > 0}


def test_row_has_numbers_of_options_however_they_are_written() -> None:
    plain = arguments("--epochs", "30")
    assert 30.0 in plain.values()
    assert plain == arguments("--epochs=30") == arguments("epochs=30")
    assert 7e9 in arguments("--model", "llama-7b").values()
    assert 0.001 in arguments("--lr", "1e-3").values()
    assert arguments("--epochs", "30") != arguments("--steps", "30")


def test_number_in_a_very_long_word_is_searched_in_linear_time() -> None:
    assert _number("1" * 200_000 + "x") == MISSING
    assert _number("1" * 200_000) > 0
    assert [_number(word) for word in ("llama-7b", "3.5x", "1e-3", "x12k")] == [7e9, 3, 1e-3, 12e3]


def test_row_of_any_command_has_same_length() -> None:
    for command in ((), ("",), ("bash", "-c", "x " * 5_000), ("a", "--", "-", "--=", "=", "\x00é")):
        assert len(row_of(a_job(command=command), SECOND, [])) == len(NAMES)
