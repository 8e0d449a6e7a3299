"""Like commands are found by program, script, arguments and name."""

import pytest

from gpu_scheduler.predict import likeness
from gpu_scheduler.predict.history import History
from gpu_scheduler.predict.likeness import CommandIdentity, identity_of
from tests.builders import HOUR, MINUTE, a_job


@pytest.mark.parametrize(
    ("command", "program", "arguments"),
    [
        ("echo hi", "echo", "hi"),
        ("python3.11 -u ./train.py --lr 1", "python train.py", "--lr 1"),
        ("python -m pkg.train --lr 1", "python -m pkg.train", "--lr 1"),
        ("/usr/bin/python3 -W ignore train.py", "python train.py", ""),
        ("env A=1 torchrun --nproc_per_node 4 train.py x", "python train.py", "x"),
        ("accelerate launch --num_processes 4 train.py", "python train.py", ""),
        ("timeout -k 5 3600 ./run.sh", "run.sh", ""),
        ("uv run python train.py", "python train.py", ""),
        ("bash run.sh 3", "bash run.sh", "3"),
        ("bash", "bash", ""),
    ],
)
def test_program_is_what_a_command_runs(command: str, program: str, arguments: str) -> None:
    assert identity_of(command.split()) == CommandIdentity(program, arguments)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("cd /x && . venv/bin/activate && python train.py --lr 1; echo done", "python train.py"),
        ("echo hi", "echo"),
        ("python a.py | tee log", "python a.py; tee"),
        ("python 'a.py", "python 'a.py"),
        ("", ""),
    ],
)
def test_shell_line_is_known_by_what_it_runs(line: str, program: str) -> None:
    assert identity_of(["bash", "-c", line]).program == program


def history_of(*runs: tuple[str, int]) -> History:
    history = History()
    for command, run_ms in runs:
        history.end(a_job(command=tuple(command.split()), name="", estimate_ms=0), run_ms, run_ms)
    return history


def told(history: History, command: str, elapsed_ms: int = 0, limit_ms: int = 0) -> tuple:
    job = a_job(command=tuple(command.split()), name="", estimate_ms=0, max_runtime_ms=limit_ms)
    run_ms, basis = history.run_time(job, elapsed_ms)
    return run_ms, basis.kind, basis.runs


def test_unlike_commands_say_nothing_about_a_new_one() -> None:
    history = history_of(*[("echo hi", MINUTE)] * 50)
    assert told(history, "python train.py", limit_ms=2 * HOUR) == (2 * HOUR, "limit", 0)
    assert told(history, "python train.py")[1] == ""
    assert history.is_guess(a_job(command=("python", "train.py"), name="", estimate_ms=0), 0)


def test_runs_of_the_command_count_most_then_those_of_its_script() -> None:
    history = history_of(*[("python train.py --lr 1", HOUR)] * 12)
    run_ms, kind, runs = told(history, "python train.py --lr 1")
    assert (run_ms, kind, runs) == (HOUR, "command", 12)
    run_ms, kind, runs = told(history, "python train.py --lr 2")
    assert (run_ms, kind, runs) == (HOUR, "script", 12)


def test_rest_comes_from_the_runs_that_were_longer() -> None:
    history = history_of(*[("train", 3 * HOUR)] * 4, *[("train", MINUTE)] * 10)
    assert told(history, "train")[0] == MINUTE
    assert told(history, "train", elapsed_ms=HOUR) == (3 * HOUR, "command", 4)
    run_ms, kind, runs = told(history, "train", elapsed_ms=4 * HOUR)
    assert run_ms > 4 * HOUR
    assert (kind, runs) == ("command", 0)


@pytest.mark.parametrize("prefix", ["nohup", "A=1", "env -i"])
def test_only_the_beginning_of_a_long_command_is_read(prefix: str) -> None:
    launchers = prefix.split() * 1_000
    assert identity_of([*launchers, "train"]) == identity_of([*launchers, "echo"])
    line = f"{prefix} " * 4_000
    assert identity_of(["bash", "-c", f"{line} train"]) == identity_of(["bash", "-c", line])


def test_line_for_a_shell_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forecast asks for the identity of every job, on the loop that also answers users."""
    parsed: list[str] = []

    def words(line: str) -> list[str]:
        parsed.append(line)
        return line.split()

    monkeypatch.setattr(likeness, "_words", words)
    command = ["bash", "-c", "python only_in_this_test.py"]
    assert identity_of(command) == identity_of(command)
    assert parsed == command[2:]


def forecast(history: History, command: str, elapsed_ms: int = 0, limit_ms: int = 0) -> int:
    job = a_job(command=tuple(command.split()), name="", estimate_ms=0, max_runtime_ms=limit_ms)
    return history.forecast_run_time(job, elapsed_ms)


def test_forecasts_count_long_runs_more_than_a_median_and_less_than_a_mean() -> None:
    history = history_of(*[("train", MINUTE), ("train", MINUTE), ("train", 4 * HOUR)] * 10)
    assert told(history, "train")[0] == MINUTE
    assert 10 * MINUTE < forecast(history, "train") < 80 * MINUTE
    assert forecast(history_of(*[("train", HOUR)] * 12), "train") == HOUR


def test_forecast_of_a_running_job_comes_from_the_runs_that_were_longer() -> None:
    history = history_of(*[("train", 3 * HOUR)] * 4, *[("train", MINUTE)] * 10)
    assert forecast(history, "train", elapsed_ms=HOUR) == 3 * HOUR
    assert forecast(history, "train", elapsed_ms=4 * HOUR) > 4 * HOUR
    assert forecast(history, "train", elapsed_ms=HOUR, limit_ms=2 * HOUR) == 2 * HOUR


def test_forecast_of_an_unknown_command_uses_its_limit() -> None:
    history = history_of(*[("echo hi", MINUTE)] * 50)
    assert forecast(history, "python train.py", limit_ms=2 * HOUR) == 2 * HOUR
