"""Expected run times from the history of ended jobs."""

import pytest

from gpu_scheduler.predict.history import History
from tests.builders import DAY, HOUR, MINUTE, a_job, an_array


def seen(*runs: tuple[int, dict]) -> History:
    """A predictor that has seen these run times of such jobs."""
    history = History()
    for number, (run_ms, wishes) in enumerate(runs, start=1):
        job = a_job(number=number, **wishes)
        history.begin(job, 0)
        history.end(job, run_ms, run_ms)
    return history


def close(expected_ms: int) -> object:
    return pytest.approx(expected_ms, rel=0.35)


def test_empty_history_gives_guess_within_limit() -> None:
    assert 1 <= History().expect(a_job(), 0) <= DAY
    assert History().expect(a_job(max_runtime_ms=MINUTE), 0) <= MINUTE


def test_repeated_run_time_is_expected_again() -> None:
    history = seen(*[(HOUR, {"name": "train"})] * 20)
    assert history.expect(a_job(name="train"), 0) == close(HOUR)


def test_same_name_is_better_predictor_than_same_user() -> None:
    history = seen(*[(HOUR, {"name": "train"})] * 20, *[(MINUTE, {"name": "test"})] * 20)
    assert history.expect(a_job(name="train"), 0) == close(HOUR)
    assert history.expect(a_job(name="test"), 0) == close(MINUTE)


def test_unnamed_jobs_are_grouped_by_whole_command() -> None:
    training, testing = ("python", "train.py", "--seed", "3"), ("python", "test.py", "--seed", "3")
    history = seen(*[(HOUR, {"command": training})] * 20, *[(MINUTE, {"command": testing})] * 20)
    assert history.expect(a_job(command=training), 0) == close(HOUR)
    assert history.expect(a_job(command=testing), 0) == close(MINUTE)
    assert history.quantile(a_job(command=training), 80) == close(HOUR)
    assert history.quantile(a_job(command=testing), 80) == close(MINUTE)


def test_unknown_user_is_predicted_by_tenant() -> None:
    history = seen(*[(2 * HOUR, {"user": "ada"})] * 30)
    assert history.expect(a_job(user="bob"), 0) == close(2 * HOUR)
    other = history.expect(a_job(user="bob", tenant="speech"), 0)
    assert other == History().expect(a_job(), 0)


def test_recent_runs_count_and_old_ones_are_forgotten() -> None:
    history = seen(*[(DAY, {})] * 50, *[(MINUTE, {})] * 100)
    assert history.expect(a_job(), 0) == close(MINUTE)


def test_stopped_job_is_not_learned_from() -> None:
    history = History()
    job = a_job()
    before = history.expect(job, 0)
    history.begin(job, 0)
    history.end(job, None, 5)
    assert history.expect(job, 0) == before


def test_overrunning_job_is_expected_to_run_longer() -> None:
    history = seen(*[(HOUR, {})] * 10, *[(5 * HOUR, {})] * 10)
    for elapsed_ms in (0, MINUTE, HOUR, 4 * HOUR, 9 * HOUR, 9 * DAY):
        assert history.exceed(a_job(), elapsed_ms, elapsed_ms) > elapsed_ms
    assert history.exceed(a_job(), 2 * HOUR, 2 * HOUR) == close(5 * HOUR)


def test_higher_quantile_is_never_earlier() -> None:
    history = seen(*[(minutes * MINUTE, {}) for minutes in range(1, 60)])
    quantiles = [history.quantile(a_job(), percent) for percent in (5, 25, 50, 75, 95)]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] < quantiles[-1]


def test_expectation_stays_within_limit_while_job_does() -> None:
    history = seen(*[(DAY, {"max_runtime_ms": 2 * DAY})] * 10)
    job = a_job(max_runtime_ms=HOUR)
    assert history.expect(job, 0) <= HOUR
    assert history.exceed(job, 30 * MINUTE, 0) <= HOUR
    assert history.quantile(job, 99) <= HOUR


def test_running_jobs_of_user_affect_next_expectation() -> None:
    history = seen(*[(MINUTE, {})] * 3)
    before = history.expect(a_job(number=9), 0)
    for number in range(10, 20):
        history.begin(a_job(number=number), 0)
    assert history.expect(a_job(number=9), 5 * HOUR) > before
    for number in range(10, 20):
        history.end(a_job(number=number), None, 5 * HOUR)
    assert history.expect(a_job(number=9), 5 * HOUR) == before


def test_every_running_array_task_counts() -> None:
    history = seen(*[(MINUTE, {})] * 3)
    array = an_array(number=9, tasks="0-1")
    history.begin(array, 0)
    one = history.expect(a_job(number=8), 5 * HOUR)
    history.begin(array, 0)
    two = history.expect(a_job(number=8), 5 * HOUR)
    assert two > one
    history.end(array, None, 5 * HOUR)
    assert history.expect(a_job(number=8), 5 * HOUR) == one


def test_learned_run_changes_next_answer() -> None:
    history = seen(*[(HOUR, {})] * 10)
    before = history.quantile(a_job(), 50)
    assert history.quantile(a_job(), 50) == before
    for _ in range(20):
        history.end(a_job(), 5 * HOUR, 5 * HOUR)
    assert history.quantile(a_job(), 50) == close(5 * HOUR)


def test_same_history_gives_same_expectations() -> None:
    runs = [(minutes * MINUTE, {"gpus": 1 + minutes % 3}) for minutes in range(1, 40)]
    one, other = seen(*runs), seen(*runs)
    assert [one.expect(a_job(gpus=g), 7) for g in (1, 2, 3)] == [
        other.expect(a_job(gpus=g), 7) for g in (1, 2, 3)
    ]


def test_estimate_or_limit_is_used_without_history() -> None:
    assert History().expect(a_job(max_runtime_ms=DAY, estimate_ms=0), 0) == DAY
    assert History().expect(a_job(max_runtime_ms=DAY, estimate_ms=HOUR), 0) == HOUR
    assert History().expect_alike([a_job(max_runtime_ms=DAY, estimate_ms=0)] * 2, 0) == [DAY, DAY]
    history = seen((MINUTE, {}))
    assert history.expect(a_job(max_runtime_ms=DAY, estimate_ms=0), 0) < HOUR


@pytest.mark.parametrize(
    ("runs", "known"),
    [
        ([], False),
        ([{"gpus": 8, "name": "train"}], True),
        ([{"gpus": 8, "name": "hello"}] * 3, False),
        ([{"gpus": 8, "name": "hello"}] * 9, False),
        ([{"gpus": 1, "name": "train"}], True),
        ([{"gpus": 8, "user": "bob", "name": "hello"}] * 9, False),
        ([{"gpus": 8, "user": "bob", "name": "train"}], True),
    ],
    ids=["nothing", "same", "unlike", "unlike_often", "smaller", "unlike_of_others", "of_others"],
)
def test_guess_is_distinguished_from_knowledge(runs: list[dict], known: bool) -> None:
    history = seen(*[(MINUTE, wishes) for wishes in runs])
    assert history.is_guess(a_job(gpus=8, name="train", estimate_ms=0), 0) is not known


def test_estimate_or_limit_counts_until_exceeded() -> None:
    assert not History().is_guess(a_job(max_runtime_ms=HOUR, estimate_ms=0), MINUTE)
    assert not History().is_guess(a_job(estimate_ms=HOUR), MINUTE)
    assert History().is_guess(a_job(estimate_ms=HOUR), HOUR)
