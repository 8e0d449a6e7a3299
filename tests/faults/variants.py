"""Schedulers that are broken on purpose, each in one way, to show that the audit would notice.

Each variant patches a single decision of the real code, or of what stands for a real part, for as
long as its block lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from gpu_scheduler.api.agents import Agents
from gpu_scheduler.api.silence import Silence
from gpu_scheduler.control.members import Members
from gpu_scheduler.control.messages import NodeFenced, Outcome
from gpu_scheduler.control.reconcile import Repairs
from gpu_scheduler.model.allocation import Allocation
from tests.faults.disk import Disk, DiskWriter
from tests.faults.launcher import Attempt, ModelLauncher
from tests.faults.world import Verdict, run_world

Variant = Callable[[], AbstractContextManager[None]]


@contextmanager
def acknowledge_before_commit() -> Iterator[None]:
    """Whoever submits is told so at once, and the commit follows."""
    run = DiskWriter.run

    def run_later(self: DiskWriter, work: Callable[[], Any]) -> asyncio.Future[Any]:
        run(self, work)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(0)
        return answer

    with patch.object(DiskWriter, "run", run_later):
        yield


@contextmanager
def forget_before_commit() -> Iterator[None]:
    """A node may forget an end as soon as the server has heard of it."""
    over = Agents._member_over

    def forget_first(
        self: Agents, allocation: Allocation, member: int, end: Any, saved: Any
    ) -> None:
        heard: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        heard.set_result(Outcome())
        self._forget_members(allocation, heard)
        over(self, allocation, member, end, saved)

    with patch.object(Agents, "_member_over", forget_first):
        yield


@contextmanager
def orders_not_idempotent() -> Iterator[None]:
    """An order that is said again is followed again."""

    def start_again(self: ModelLauncher, work: Any, done: Callable[..., None]) -> None:
        key = (work.allocation_id, work.member)
        attempt = self.attempts[key] = Attempt(key, work)
        attempt.recorded.append(done)
        self._later(0.01, self._record, attempt)

    with patch.object(ModelLauncher, "_do_start", start_again):
        yield


@contextmanager
def begin_before_the_record() -> Iterator[None]:
    """A command begins at once, and its record follows."""

    def begin(self: ModelLauncher, attempt: Attempt) -> None:
        if attempt.over is None:
            attempt.is_recorded = True
            self._answer(attempt)
            self._go(attempt)
            self._later(0.5, self._journal.write, "accepted", attempt.key, attempt.work)

    with patch.object(ModelLauncher, "_record", begin):
        yield


@contextmanager
def requeue_what_is_silent() -> Iterator[None]:
    """A node of which nothing is heard is taken for dead."""
    suspect = Silence.suspect

    def fence(self: Silence, node_id: str) -> None:
        suspect(self, node_id)
        self._tell(NodeFenced(node_id))

    with patch.object(Silence, "suspect", fence):
        yield


@contextmanager
def requeue_before_the_lease_ends() -> Iterator[None]:
    """Jobs with a lease are started elsewhere when a quarter of it is over."""
    later = Silence._later

    def sooner(self: Silence, wait_s: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        is_lease = wait_s > self._patience.lost_s
        return later(self, wait_s / 4 if is_lease else wait_s, act)

    with patch.object(Silence, "_later", sooner):
        yield


@contextmanager
def no_fencing() -> Iterator[None]:
    """Commits and orders of a server that does not lead any more are taken all the same."""
    init = Agents.__init__

    def may_always_order(self: Agents, *args: Any, **values: Any) -> None:
        init(self, *args, **{**values, "may_order": lambda: True})

    with (
        patch.object(Disk, "check_term", lambda self, term: None),
        patch.object(Agents, "__init__", may_always_order),
    ):
        yield


@contextmanager
def commit_before_all_are_prepared() -> Iterator[None]:
    """A gang over several nodes runs as soon as its first member is ready."""
    prepared = Members.prepared

    def any_is_enough(self: Members, allocation: Allocation, member: int, port: int) -> int | None:
        prepared(self, allocation, member, port)
        return port

    with patch.object(Members, "prepared", any_is_enough):
        yield


@contextmanager
def orders_are_not_repeated() -> Iterator[None]:
    """What an agent holds when it comes back is not compared with what it should."""

    def nothing(*_: object) -> Any:
        return Repairs()

    with patch("gpu_scheduler.api.agents.reconcile", nothing):
        yield


VARIANTS: dict[str, Variant] = {
    "acknowledge-before-commit": acknowledge_before_commit,
    "forget-before-commit": forget_before_commit,
    "orders-not-idempotent": orders_not_idempotent,
    "begin-before-the-record": begin_before_the_record,
    "requeue-before-the-lease-ends": requeue_before_the_lease_ends,
    "requeue-what-is-silent": requeue_what_is_silent,
    "commit-before-all-are-prepared": commit_before_all_are_prepared,
    "no-fencing": no_fencing,
    "orders-are-not-repeated": orders_are_not_repeated,
}


def one(seed: int, *, climate: tuple[str, ...], trace: bool, variant: str | None) -> Verdict:
    """One world, of a scheduler that may be broken on purpose."""
    with ExitStack() as stack:
        if variant is not None:
            stack.enter_context(VARIANTS[variant]())
        return run_world(seed, keep_trace=trace, climate=climate)
