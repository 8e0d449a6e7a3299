"""Answers questions about the future in processes of their own, a bounded number at a time.

`question_of` copies what a question needs from the state of the control loop. This is the only part
of an answer that runs on the control loop, so it is bounded: it copies references to frozen values,
and of a long queue only the jobs that come first.

The forecast of everything is kept for a while, so that many watchers cost as much as one.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

import structlog

from gpu_scheduler.api.http.errors import TooMany
from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.api.planning.worker import read_answer, write_question
from gpu_scheduler.control.scheduling.cycle import (
    expected_end_ms,
    usage_of_tenant,
    usage_of_user,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.queue import Merge
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.what_if import Answer, Changes, Question
from gpu_scheduler.model.cluster_snapshot import Running, Snapshot, Waiting
from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.interface import Predictor, is_guess

SECONDS = 4.0
"""A roll-out ends after this time with what it has found."""
MOST_SECONDS = 60.0
"""A process that has not answered after this time is killed."""
MOST_QUESTIONS = 8
"""So many callers may wait for answers to what-if questions."""
LEAST_PAUSE_S = 2.0
PAUSE_FACTOR = 5
"""The forecast of everything is made again after so many times the time that it took."""
_THREADS = ThreadPoolExecutor(thread_name_prefix="planning")
"""Others wait for the answer too, so it must not wait for other reads of the caller."""
log = structlog.get_logger("planning")


@dataclass(frozen=True, slots=True)
class Forecast:
    """A question without a supposition, and its answer."""

    question: Question
    answer: Answer
    waiting: int
    fresh_until: float


class Planner:
    """Asks about the future of one service."""

    def __init__(
        self,
        service: Service,
        *,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without a forecast."""
        self._service = service
        self._seconds = seconds
        self._clock = clock
        self._forecast: Forecast | None = None
        self._failure = ""
        self._retry_at = 0.0
        self._forecasting = asyncio.Lock()
        self._asking = asyncio.Semaphore(1)
        self._questions = 0

    async def forecast(self) -> Forecast:
        """Return the forecast of everything; one that is a few seconds old will do.

        If it failed, so do the calls in the next seconds: those that waited do not each repeat it.
        """
        async with self._forecasting:
            found = self._forecast
            began = self._clock()
            if self._failure and began < self._retry_at:
                raise ClusterError(self._failure)
            if found is None or began >= found.fresh_until:
                state = self._service.core.state
                waiting = len(state.cluster.queue)
                question = question_of(state, self._service.now_ms())
                try:
                    answer = await run(question, self._seconds)
                except ClusterError as error:
                    self._failure, self._retry_at = str(error), self._clock() + LEAST_PAUSE_S
                    raise
                self._failure, ended = "", self._clock()
                fresh_until = ended + max(LEAST_PAUSE_S, PAUSE_FACTOR * (ended - began))
                found = self._forecast = Forecast(question, answer, waiting, fresh_until)
        return found

    async def ask(self, question: Question) -> Answer:
        """Answer a what-if question; one at a time."""
        if self._questions >= MOST_QUESTIONS:
            raise TooMany(f"{MOST_QUESTIONS} what-if questions wait already; try again in a moment")
        self._questions += 1
        try:
            async with self._asking:
                return await run(question, self._seconds)
        finally:
            self._questions -= 1


async def run(question: Question, seconds: float) -> Answer:
    """Answer a question in a process of its own; raises `ClusterError` if that fails.

    A thread talks to the process: it only pickles frozen values and waits for pipes.
    """
    process = _start(seconds)
    talk = asyncio.get_running_loop().run_in_executor(_THREADS, _exchange, process, question)
    try:
        async with asyncio.timeout(MOST_SECONDS):
            return await asyncio.shield(talk)
    except TimeoutError:
        raise ClusterError(
            f"the forecast took more than {MOST_SECONDS:g} s, so it was stopped; the machine is "
            "busy. Try again later"
        ) from None
    finally:
        # Killing it ends the thread as well; it has ended already unless it is late.
        process.kill()
        with suppress(ClusterError):
            await asyncio.shield(talk)


def _start(seconds: float) -> subprocess.Popen[bytes]:
    """Start the process; that takes about a millisecond, as nothing is copied for it.

    With -P, files of the current directory (a `queue.py`) do not replace modules of Python.
    """
    return subprocess.Popen(  # noqa: S603 - our own module
        (sys.executable, "-P", "-m", "gpu_scheduler.api.planning.worker", str(seconds)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def _exchange(process: subprocess.Popen[bytes], question: Question) -> Answer:
    """Write the question piece by piece, and read the answer; wait for the end of the process."""
    if process.stdin is None or process.stdout is None:
        raise ClusterError("the forecast process has no pipes")
    # One that fails early closes its pipe; closing ours writes what is left, and fails again.
    with suppress(BrokenPipeError), process:
        with suppress(BrokenPipeError):
            for piece in write_question(question):
                process.stdin.write(piece)
            process.stdin.close()
        data = process.stdout.read()
    if process.returncode:
        log.error("a forecast failed", exit_code=process.returncode)
        raise ClusterError("the forecast failed; the standard error of the server says why")
    answer = read_answer(data)
    for trace in answer.traces:
        log.error("a forecast failed", trace=trace)
    return answer


MOST_WAITING = 5_000
"""So many waiting jobs are rolled forward, those that come first."""


def question_of(
    state: ControlState, now_ms: int, *, jobs: Iterable[Job] = (), changes: Changes | None = None
) -> Question:
    """The question what happens, with each of these jobs submitted now, and with the changes."""
    cluster, predictor = state.cluster, state.predictor
    snapshot = cluster.snapshot(islice(_in_order(cluster), MOST_WAITING))
    running = tuple(_with_expected_end(predictor, one, now_ms) for one in snapshot.running)
    supposed = tuple(
        _as_waiting(predictor, job, state.next_number + place, now_ms)
        for place, job in enumerate(jobs)
    )
    snapshot = replace(snapshot, running=running)
    return Question(
        snapshot=_with_accounts(state, snapshot, supposed, now_ms),
        policy=state.policy,
        now_ms=now_ms,
        quota_nodes=tuple(cluster.quota_nodes.values()),
        guesses=frozenset(_guesses(predictor, snapshot, supposed, now_ms)),
        jobs=supposed,
        changes=changes,
    )


def _in_order(cluster: ClusterState) -> Iterator[Waiting]:
    """Yield the waiting jobs as a cycle would consider them."""
    if len(cluster.queue) <= MOST_WAITING:
        yield from (entry.waiting for _, entry in sorted(cluster.queue.entries.items()))
        return
    merge = Merge(cluster.queue, FairShare(cluster).penalty_ms)
    while (entry := merge.next()) is not None:
        yield entry.waiting
        merge.leave()


def _with_expected_end(predictor: Predictor, running: Running, now_ms: int) -> Running:
    end_ms = expected_end_ms(predictor, running, now_ms)
    return (
        running if end_ms == running.expected_end_ms else replace(running, expected_end_ms=end_ms)
    )


def _as_waiting(predictor: Predictor, job: Job, number: int, now_ms: int) -> Waiting:
    """A job as it would wait if it were submitted now."""
    return Waiting(
        job=replace(job, id=f"job-{number}", number=number, submit_ms=now_ms),
        expected_ms=predictor.expect(job, now_ms),
        tasks=None if job.array is None else job.array.tasks,
        since_ms=now_ms,
    )


def _with_accounts(
    state: ControlState, snapshot: Snapshot, supposed: tuple[Waiting, ...], now_ms: int
) -> Snapshot:
    """Add the usage of accounts of which only a supposed job waits."""
    users, tenants = dict(snapshot.user_usage), dict(snapshot.tenant_usage)
    for waiting in supposed:
        tenant, user = waiting.job.tenant, waiting.job.user
        if (tenant, user) not in users:
            users[tenant, user] = usage_of_user(state, tenant, user, now_ms)
        if tenant not in tenants:
            tenants[tenant] = usage_of_tenant(state, tenant, now_ms)
    return replace(snapshot, user_usage=tuple(users.items()), tenant_usage=tuple(tenants.items()))


def _guesses(
    predictor: Predictor, snapshot: Snapshot, supposed: tuple[Waiting, ...], now_ms: int
) -> Iterator[int]:
    """Yield the numbers of the jobs whose run time is unknown; services are meant to run on."""
    for running in snapshot.running:
        ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
        if (
            not running.stopping
            and not running.job.service
            and is_guess(predictor, running.job, ran_ms)
        ):
            yield running.job.number
    for waiting in (*snapshot.waiting, *supposed):
        job = waiting.job
        if not job.service and is_guess(predictor, job, waiting.attained_ms):
            yield job.number
