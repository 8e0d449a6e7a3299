"""Containers that an engine could not remove are recorded, also for the next launcher."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_scheduler.agent.launcher import journal
from gpu_scheduler.agent.launcher.context import LauncherContext
from gpu_scheduler.agent.launcher.journal import Journal
from gpu_scheduler.agent.launcher.lifecycle import containers
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher.lifecycle.containers import (
    GIVE_UP_AFTER_MS,
    MAX_REMOVAL_PAUSE_MS,
    PendingRemovals,
)
from gpu_scheduler.agent.launcher.loop import Timer
from gpu_scheduler.agent.launcher_protocol import Over, Work

SILENT = "it took longer than 30 s"
NONE = "Error: no such container tgpu-a"


class Node:
    """Parts of a launcher on virtual time, and an engine that answers when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.now_ms = 1_000_000
        monkeypatch.setattr(containers, "now_ms", lambda: self.now_ms)
        monkeypatch.setattr(containers, "wall_ms", lambda: self.now_ms)
        self.path = directory / "attempts"
        self.path.mkdir()
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.restart()

    def restart(self) -> PendingRemovals:
        """The start of the next launcher: all but the journal is new."""
        self.timers: list[Timer] = []
        self.asked: list[tuple[tuple[str, ...], Callable[[bool, str], None]]] = []
        self.journal = Journal(str(self.path))
        context = SimpleNamespace(
            attempts=self.attempts,
            journal=self.journal,
            loop=self,
            helpers=SimpleNamespace(run_engine=self._run_engine),
        )
        self.removals = PendingRemovals(cast(LauncherContext, context))
        others = [r for r in self.records() if not self.removals.replay(r)]
        self.journal.rewrite([*others, *self.removals.records()])
        self.removals.resume()
        return self.removals

    def records(self) -> list[dict[str, Any]]:
        return journal.read(self.journal.path).records

    def after(self, wait_ms: int, callback: Callable[..., None], *arguments: object) -> Timer:
        self.timers.append(Timer(self.now_ms + wait_ms, callback, arguments))
        return self.timers[-1]

    def passes(self, wait_ms: int) -> None:
        """Advance the time."""
        self.now_ms += wait_ms
        for timer in [timer for timer in self.timers if timer.due_ms <= self.now_ms]:
            self.timers.remove(timer)
            if timer.callback is not None:
                timer.callback(*timer.arguments)
        self.journal.commit()

    def left(self, name: str) -> Attempt:
        """A job is over whose container could not be removed."""
        attempt = an_attempt(name)
        self.attempts[attempt.key] = attempt
        self.removals.add(attempt, ("engine", "rm", name))
        self.journal.commit()
        attempt.over = an_end(name)
        return attempt

    def answer(self, well: bool, text: str = "") -> str:
        """The engine answers; returns the container in question."""
        argv, done = self.asked.pop(0)
        done(well, text)
        return argv[-1]

    def _run_engine(
        self,
        argv: tuple[str, ...],
        done: Callable[..., None],
        *arguments: object,
        timeout_ms: int,
    ) -> None:
        self.asked.append((argv, partial(done, *arguments)))


def an_attempt(name: str) -> Attempt:
    return Attempt(Work(allocation_id=name, engine_timeout_ms=1_000))


def an_end(name: str) -> Over:
    return Over(
        allocation_id=name,
        member=0,
        exit_code=None,
        signal=None,
        ran=True,
        at_ms=1,
        run_ms=1,
        stopped_by="",
        detail="",
    )


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    return Node(monkeypatch, tmp_path)


def test_removal_is_retried_until_engine_answers(node: Node) -> None:
    node.left("a")
    for _ in range(20):
        assert node.answer(False, SILENT) == "a"
        assert not node.asked
        node.passes(MAX_REMOVAL_PAUSE_MS)
    node.answer(False, NONE)
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert not node.asked


def test_next_launcher_continues_with_same_command(node: Node) -> None:
    node.left("a")
    node.attempts.clear()
    node.restart()
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert node.answer(True) == "a"
    node.left("b")  # its record is written together with the end of the first one
    assert node.answer(True) == "b"
    node.restart()
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert [argv[-1] for argv, _ in node.asked] == ["b"]


def test_rewritten_journal_keeps_pending_removals(node: Node) -> None:
    node.left("a")
    node.restart()
    node.restart()
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert node.answer(True) == "a"


def test_containers_are_removed_one_by_one(node: Node) -> None:
    for name in "abc":
        node.left(name)
    found = []
    while node.asked:
        assert len(node.asked) == 1
        found.append(node.answer(True))
    assert found == ["a", "b", "c"]


def test_failed_removal_does_not_delay_next(node: Node) -> None:
    node.left("a")
    node.left("b")
    assert node.answer(False, SILENT) == "a"
    assert node.answer(True) == "b"
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert node.answer(True) == "a"


def test_container_of_unfinished_job_is_never_removed(node: Node) -> None:
    node.left("a")
    assert node.answer(False, SILENT) == "a"
    another = node.attempts["a", 0] = an_attempt("a")
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert not node.asked
    node.restart()
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert not node.asked
    another.over = an_end("a")
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert node.answer(True) == "a"


def test_removal_is_abandoned_after_thirty_days(node: Node) -> None:
    node.left("a")
    node.now_ms += GIVE_UP_AFTER_MS
    node.answer(False, SILENT)
    node.passes(MAX_REMOVAL_PAUSE_MS)
    assert not node.asked
    assert node.removals.records() == []


def test_record_rejected_by_full_disk_is_written_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(Journal, "_write", lambda *_: "cannot write: No space left on device")
        node.left("a")
    assert not node.records()
    node.passes(containers.WRITE_RETRY_MS)
    node.passes(0)
    assert [record["kind"] for record in node.records()] == ["container"]


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "container"},
        {"kind": "container", "of": ["a", 0], "argv": "rm -rf /", "at_ms": 1, "call_ms": 1},
        {"kind": "container", "of": ["a", 0], "argv": [], "at_ms": 1, "call_ms": 1},
        {"kind": "removed", "of": 7},
    ],
    ids=["empty", "string command", "no command", "no user"],
)
def test_invalid_record_is_skipped(node: Node, record: dict[str, Any]) -> None:
    assert node.removals.replay(record)
    assert node.removals.records() == []


def test_job_records_are_left_to_recovery(node: Node) -> None:
    assert not node.removals.replay({"kind": "began", "allocation_id": "a", "member": 0})
