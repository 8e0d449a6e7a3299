"""A bulk submission has exactly the effect of single submissions."""

from collections.abc import Callable
from typing import Any

import pytest

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import Ended, RunCycle, SetNode, Submit, SubmitAll, SubmitSeries
from gpu_scheduler.control.restore import restore
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.errors import NeverFits, QueueFull
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Job
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.request import Request
from gpu_scheduler.predict.history import History
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import EnvironmentRow
from tests.builders import a_node

ONE_GPU = (Request.for_gpus(1000),)
NAMES = ("a", "known", "", "b", "known")


def a_core(policy: str) -> tuple[Core, MemoryStore]:
    """A full cluster with a job called `known` in its history."""
    core, store = Core(preset(policy), History()), MemoryStore()
    for message in (SetNode(a_node()), Submit(a_job(name="known"))):
        kept(core, store, message, 0)
    for order in kept(core, store, RunCycle(), 1).effects:
        kept(core, store, Ended(order.allocation.id), 5000)
    kept(core, store, Submit(a_job(members=(Request.for_gpus(8000),))), 5000)
    kept(core, store, RunCycle(), 5000)
    return core, store


def kept(core: Core, store: MemoryStore, message: Any, now_ms: int) -> Outcome:
    outcome = core.apply(message, now_ms)
    store.commit([*outcome.writes, *core.ledger_writes()])
    return outcome


def a_job(**fields: Any) -> Job:
    given = {"id": "", "number": 0, "submit_ms": 0, "user": "ada", "members": ONE_GPU}
    return Job(**(given | fields))


def a_series(**fields: Any) -> SubmitSeries:
    launch = Launch(argv=("x",), workdir="/home/ada", captured="env-1", uid=1000)
    commands = tuple(("run", str(number)) for number in range(len(NAMES)))
    environment = EnvironmentRow("env-1", (("A", "1"),))
    return SubmitSeries(a_job(**fields), launch, environment, NAMES, commands)


def everything(core: Core, store: MemoryStore) -> list[Any]:
    return [
        core.state.cluster.snapshot(),
        core.state.queued_tasks,
        core.state.next_number,
        [record.row() for record in core.state.jobs.values()],
        store.jobs(),
        [store.launch(row.job.id) for row in store.jobs()],
        store.environment("env-1"),
        store.events(),
        core.next_timer_ms(),
    ]


@pytest.mark.parametrize("policy", ["easy", "fair", "feedback", "sjf"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"hold": True},
        {"begin_ms": 10_000_000},
        {"array": Array(tasks=IntervalSet.parse("0-3"))},
        {"max_runtime_ms": 60_000, "priority": 2000},
        {"members": (Request.for_gpus(16_000),)},
    ],
)
def test_bulk_submission_equals_single_submissions(policy: str, fields: dict[str, Any]) -> None:
    series = a_series(**fields)
    found = []
    submissions: list[Callable[[], tuple[Any, ...]]] = [
        lambda: (series,),
        lambda: tuple(series.each()),
    ]
    for submitted in submissions:
        core, store = a_core(policy)
        try:
            kept(core, store, SubmitAll(submitted()), 6000)
        except NeverFits as error:
            found.append([str(error), error.index])
            continue
        before = everything(core, store)
        kept(core, store, RunCycle(), 7000)
        found.append([*before, *everything(core, store)])
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", ["easy", "fair", "feedback", "sjf"])
def test_bulk_restore_equals_single_restore(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core, store = a_core(policy)
    several = [a_series(), a_series(hold=True), a_series(priority=2000), a_series(user="bob")]
    for number, series in enumerate((*several, several[0])):
        kept(core, store, SubmitAll((series,)), 6000 + number // 2)
    found = []
    for alone in (False, True):
        if alone:
            each = lambda rows, _: ([row] for row in rows)  # noqa: E731
            monkeypatch.setattr("gpu_scheduler.control.restore.similar_rows", each)
        again = Core(preset(policy), History())
        restore(again.state, store, 9000)
        before = everything(again, store)
        again.apply(SetNode(a_node()), 9000)
        again.apply(RunCycle(), 9500)
        found.append([*before, *everything(again, store)])
    assert found[0] == found[1]


def test_bulk_submission_for_missing_runner_waits() -> None:
    core, store = a_core("easy")
    launch = Launch(argv=("x",), runner=Runner.TMUX)
    series = SubmitSeries(a_job(), launch, None, ("a", "b"), (("x",), ("y",)))
    kept(core, store, SubmitAll((series,)), 6000)
    assert len(core.state.unplaced) == 2


def test_bulk_submission_over_queue_limit_leaves_nothing() -> None:
    core, store = a_core("easy")
    before = everything(core, store)
    core.state.queued_tasks += 999_997
    with pytest.raises(QueueFull, match="5 tasks"):
        core.apply(SubmitAll((a_series(),)), 6000)
    core.state.queued_tasks -= 999_997
    assert everything(core, store) == before
