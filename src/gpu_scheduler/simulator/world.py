"""One partition on virtual time: jobs of a trace come in, outcomes and samples go out.

The world plays the nodes: it carries out the control core's orders and reports starts and ends.
At the same time stamp, jobs end first, then jobs arrive, then the scheduling cycle runs, as in the
published simulators. `check_accepted` finds the jobs that the core would reject, before a run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from zlib import crc32

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Outcome as Answer
from gpu_scheduler.control.effects import StartOrder, StopOrder
from gpu_scheduler.control.jobs.submit import would_accept
from gpu_scheduler.control.messages import Ended, RunCycle, SetNode, SetTenant, Started, Submit
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.arrivals import NO_ARRIVALS
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.explain import Reasons
from gpu_scheduler.engine.forecast import forecast_start
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.quota.tree import HOURS
from gpu_scheduler.model.errors import CallerError, InternalError, InvalidInput
from gpu_scheduler.model.job import ENDED, Job
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.simulator.outcomes import NO_PROMISE, Outcome, Run, Sample
from gpu_scheduler.simulator.predictors import AsTold, Oracle, Stated
from gpu_scheduler.simulator.traces.collector import Reading
from gpu_scheduler.simulator.workload import Partition, TraceJob
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import JobRow

MAX_SAMPLES = 2_000
WIDE_GPUS = 8
PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """How the simulated cluster behaves. Preemption costs time, and may cost progress.

    A job that keeps its progress saves its work when it is stopped, or with `checkpoint_every_ms`
    at these intervals since its start only.
    """

    preemption_cost_ms: int = 40_000
    wide_preemption_cost_ms: int = 60_000
    keeps_progress: bool = True
    checkpoint_every_ms: int = 0
    refuse_misfits: bool = True


@dataclass(slots=True, kw_only=True)
class _TaskProgress:
    """The state of a task that has not ended: remaining run time, waits, preemptions, losses.

    `used` is the GPU time over all `held_ms`, in milli-GPU times milliseconds; the number of GPUs
    may change between starts, because an elastic gang may start with fewer members. `since_ms` is
    the beginning of the current wait.
    """

    submit_ms: int
    run_ms: int
    left_ms: int
    gpu_milli: int
    since_ms: int
    start_ms: int = -1
    first_start_ms: int = -1
    used: int = 0
    held_ms: int = 0
    wait_ms: int = 0
    lost_ms: int = 0
    preemptions: int = 0
    promised_ms: int = NO_PROMISE

    def release(self, now_ms: int) -> int:
        """Record that the task released its GPUs; returns how long it held them since its start."""
        elapsed_ms = now_ms - self.start_ms
        self.held_ms += elapsed_ms
        self.used += self.gpu_milli * elapsed_ms
        return elapsed_ms


class World:
    """A simulated cluster with its jobs and its clock."""

    def __init__(
        self,
        partition: Partition,
        policy: Policy,
        predictor: Predictor,
        physics: Physics,
        run: Run,
        *,
        promises_by: Predictor | None = None,
        promise_every: int = 1,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """Register nodes and tenants. With `promises_by`, every job that has to wait (or one in
        `promise_every`) gets a forecast start when it arrives, based on the run times that this
        predictor expects.
        """
        self.core = Core(policy, predictor, CoreLimits(max_queued_tasks=1 << 40))
        self._store = MemoryStore(keep_ended=False)
        self._partition = partition
        self._policy = policy
        self._predictor = predictor
        self._physics = physics
        self._run = run
        self._promises_by = promises_by
        self._promise_every = promise_every
        self._on_progress = on_progress
        self._ends: list[tuple[int, int, str]] = []
        self._sequence = 0
        self._unfinished: dict[tuple[str, int | None], _TaskProgress] = {}
        self._waiting_gpu_milli = 0
        self._sample_ms = 1
        self._next_sample_ms = 0
        self._samples: list[Sample] = []
        for message in _registrations(partition):
            self._apply(message, 0)

    def run(self) -> None:
        """Advance the clock until all jobs have ended."""
        arrivals: Iterator[TraceJob] = iter(self._partition.jobs)
        arrival = next(arrivals, None)
        now_ms = 0
        # A stopped job leaves its planned end in `_ends`, maybe after the last real end; ignore it.
        while arrival is not None or self._unfinished or self.core.wants_cycle:
            now_ms = self._next_moment(arrival, now_ms)
            while self._ends and self._ends[0][0] <= now_ms:
                _, _, allocation_id = heappop(self._ends)
                self._end(allocation_id, now_ms)
            arrived = []
            while arrival is not None and arrival.job.submit_ms <= now_ms:
                if self._arrive(arrival, now_ms):
                    arrived.append(arrival.job)
                arrival = next(arrivals, None)
            self._cycle(now_ms)
            if self._promises_by is not None:
                self._promise(arrived, self._promises_by, now_ms)
            self._sample(now_ms)
        self._run.samples[self._partition.name] = self._samples

    def _next_moment(self, arrival: TraceJob | None, now_ms: int) -> int:
        moments = []
        if arrival is not None:
            moments.append(arrival.job.submit_ms)
        if self._ends:
            moments.append(self._ends[0][0])
        timer_ms = self.core.next_timer_ms()
        if timer_ms is not None:
            moments.append(timer_ms)
        if not moments:
            if self._budgets_are_spent(now_ms):
                return now_ms
            stuck = sorted(job_id for job_id, _ in self._unfinished)[:5]
            raise InternalError(
                f"no event is left, but {len(self._unfinished)} jobs wait, such as {stuck}"
            )
        return max(now_ms, min(moments))

    def _arrive(self, trace: TraceJob, now_ms: int) -> bool:
        job = trace.job
        if isinstance(self._predictor, Oracle):
            self._predictor.run_ms[job.id] = trace.run_ms
        try:
            self._apply(Submit(job), now_ms)
        except CallerError:
            if self._physics.refuse_misfits:
                raise
            self._run.dropped_jobs += 1
            return False
        if job.id not in self.core.state.jobs:
            self._never_ran(job.task_count)  # Its dependency can no longer be met.
            return False
        tasks: list[int | None] = [None] if job.array is None else list(job.array.tasks)
        for task in tasks:
            self._unfinished[job.id, task] = _TaskProgress(
                submit_ms=job.submit_ms,
                run_ms=trace.run_ms,
                left_ms=trace.run_ms,
                gpu_milli=job.gpu_milli,
                since_ms=now_ms,
            )
        self._waiting_gpu_milli += job.gpu_milli * len(tasks)
        return True

    def _cycle(self, now_ms: int) -> None:
        """Run cycles until the core gives no more orders at this time stamp."""
        answer = self._apply(RunCycle(), now_ms)
        while answer.effects:
            self._run.cycles += 1
            stopped = False
            for effect in answer.effects:
                if isinstance(effect, StartOrder):
                    self._start(effect, now_ms)
                elif isinstance(effect, StopOrder):
                    stopped = True
                    self._stop(effect, now_ms)
            if not stopped:
                return
            answer = self._apply(RunCycle(), now_ms)

    def _start(self, order: StartOrder, now_ms: int) -> None:
        progress = self._unfinished[order.job.id, order.allocation.task]
        progress.start_ms = now_ms
        progress.gpu_milli = order.allocation.gpu_milli
        progress.wait_ms += now_ms - progress.since_ms
        if progress.first_start_ms < 0:
            progress.first_start_ms = now_ms
        self._waiting_gpu_milli -= order.job.gpu_milli
        self._sequence += 1
        heappush(self._ends, (now_ms + progress.left_ms, self._sequence, order.allocation.id))
        self._apply(Started(order.allocation.id), now_ms)
        if self._promises_by is not None:
            self._promises_by.begin(order.job, now_ms)

    def _stop(self, order: StopOrder, now_ms: int) -> None:
        """Stop a job at once, as an ideal node would."""
        found = self.core.state.running(order.allocation_id)
        if found is None:
            return
        record, number, _ = found
        progress = self._unfinished[record.job.id, number]
        elapsed_ms = progress.release(now_ms)
        progress_ms = 0
        if self._promises_by is not None:
            self._promises_by.end(record.job, None, now_ms)
        if order.why == PREEMPTED:
            physics = self._physics
            wide = record.job.gpu_milli > WIDE_GPUS * WHOLE_MILLI
            cost_ms = physics.wide_preemption_cost_ms if wide else physics.preemption_cost_ms
            if physics.keeps_progress:
                progress_ms = elapsed_ms - elapsed_ms % (physics.checkpoint_every_ms or 1)
            progress.left_ms += cost_ms - progress_ms
            progress.lost_ms += cost_ms + elapsed_ms - progress_ms
            progress.preemptions += 1
            progress.since_ms = now_ms
            self._waiting_gpu_milli += record.job.gpu_milli
            self._apply(Ended(order.allocation_id, None, 15, progress_ms), now_ms)
            return
        self._run.failed_jobs += 1
        progress.run_ms = max(0, progress.held_ms - progress.lost_ms)
        self._apply(Ended(order.allocation_id, None, 15, 0), now_ms)
        self._record(record.job, number, now_ms)

    def _end(self, allocation_id: str, now_ms: int) -> None:
        """End a job that ran to its end; ignore one that was stopped before."""
        found = self.core.state.running(allocation_id)
        if found is None:
            return
        record, number, _ = found
        progress = self._unfinished[record.job.id, number]
        progress.release(now_ms)
        self._apply(Ended(allocation_id), now_ms)
        if self._promises_by is not None:
            self._promises_by.end(record.job, progress.run_ms, now_ms)
        self._record(record.job, number, now_ms)

    def _record(self, job: Job, task: int | None, now_ms: int) -> None:
        progress = self._unfinished.pop((job.id, task))
        held_ms = progress.held_ms
        gpu_milli = round(progress.used / held_ms) if held_ms else job.gpu_milli
        self._run.outcomes.add(
            Outcome(
                partition=self._partition.name,
                tenant=job.tenant,
                user=job.user,
                gpu_milli=gpu_milli,
                submit_ms=progress.submit_ms,
                first_start_ms=progress.first_start_ms,
                end_ms=now_ms,
                wait_ms=progress.wait_ms,
                run_ms=progress.run_ms,
                preemptions=progress.preemptions,
                lost_ms=progress.lost_ms,
                promised_start_ms=progress.promised_ms,
            )
        )
        if self._on_progress is not None:
            self._on_progress(1)

    def _never_ran(self, tasks: int) -> None:
        self._run.never_ran_jobs += tasks
        if self._on_progress is not None:
            self._on_progress(tasks)

    def _drop_unmet_dependents(self, writes: Sequence[object]) -> None:
        """Forget jobs that the core ended before their start, as a dependency was not met."""
        for row in writes:
            if isinstance(row, JobRow) and row.state in ENDED and row.job.dependencies:
                array = row.job.array
                for task in [None] if array is None else array.tasks:
                    progress = self._unfinished.get((row.job.id, task))
                    if progress is not None and progress.first_start_ms < 0:
                        del self._unfinished[row.job.id, task]
                        self._waiting_gpu_milli -= row.job.gpu_milli
                        self._never_ran(1)

    def _budgets_are_spent(self, now_ms: int) -> bool:
        """Whether every queued job waits for GPU hours that its tenant has used up.

        If so, counts these jobs and those that depend on them as never run.
        """
        cluster = self.core.state.cluster
        reasons = Reasons(cluster, decide(cluster, self._policy, now_ms))
        waiting = [reasons.brief(number) for number in cluster.queue.entries]
        if not waiting or any(reason.get("resource") != HOURS for reason in waiting):
            return False
        self._never_ran(len(self._unfinished))
        self._unfinished.clear()
        return True

    def _promise(self, arrived: list[Job], predictor: Predictor, now_ms: int) -> None:
        """Forecast the start of every job that has just begun to wait."""

        def run_ms_of(job: Job, elapsed_ms: int) -> int:
            if isinstance(predictor, AsTold):
                return predictor.forecast_run_time(job, elapsed_ms)
            if elapsed_ms:
                return predictor.exceed(job, elapsed_ms, now_ms)
            return predictor.expect(job, now_ms)

        state = self.core.state
        arrivals = state.recent_arrivals if isinstance(predictor, AsTold) else NO_ARRIVALS
        for job in arrived:
            record = state.jobs.get(job.id)
            if record is not None and record.queued and self._is_chosen(job):
                number = record.job.number
                at_ms = forecast_start(state.cluster, now_ms, number, run_ms_of, arrivals)
                if at_ms is not None:
                    self._unfinished[job.id, None].promised_ms = at_ms

    def _is_chosen(self, job: Job) -> bool:
        """Whether the job is one of those whose start is forecast: by its id, as if at random."""
        return job.array is None and crc32(job.id.encode()) % self._promise_every == 0

    def _sample(self, now_ms: int) -> None:
        """Take a sample. If there are too many, drop every second one."""
        if now_ms < self._next_sample_ms:
            return
        cluster = self.core.state.cluster
        allocated = sum(held for held in cluster.holdings.pools.values())
        free = cluster.total_gpu_milli - allocated
        # A job that waits for a start time, another job or only for CPUs needs no free GPU.
        wanted = any(entry.waiting.job.gpu_milli for entry in cluster.queue.entries.values())
        self._samples.append(
            Sample(
                at_ms=now_ms,
                waiting_jobs=len(cluster.queue),
                waiting_gpu_milli=self._waiting_gpu_milli,
                running_jobs=len(cluster.running),
                allocated_gpu_milli=allocated,
                fragmented_gpu_milli=free if wanted else 0,
            )
        )
        if len(self._samples) > MAX_SAMPLES:
            del self._samples[1::2]
            self._sample_ms = 2 * max(
                self._sample_ms, (now_ms - self._samples[0].at_ms) // MAX_SAMPLES
            )
        self._next_sample_ms = now_ms + self._sample_ms

    def _apply(self, message: object, now_ms: int) -> Answer:
        answer = self.core.apply(message, now_ms)  # type: ignore[arg-type]
        self._store.commit(answer.writes)
        self._drop_unmet_dependents(answer.writes)
        return answer


def _registrations(partition: Partition) -> Iterator[SetNode | SetTenant]:
    yield from map(SetNode, partition.nodes)
    yield from map(SetTenant, partition.tenants)


def check_accepted(reading: Reading, policy: Policy) -> None:
    """Raise `InvalidInput` with the line of the first job that the core would reject."""
    for partition in reading.workload.partitions:
        core = Core(policy, Stated())
        for message in _registrations(partition):
            core.apply(message, 0)
        limited_tenants = {
            tenant.id for tenant in partition.tenants if tenant.quota.gpu_milli_ms is not None
        }
        accepted: set[Hashable] = set()
        for entry in partition.jobs:
            job = entry.job
            kind = _submission_kind(job)
            if kind in accepted:
                continue
            try:
                # Whether a dependency is known was checked when the trace was read.
                would_accept(core.state, Submit(replace(job, dependencies=())), job.submit_ms)
            except CallerError as error:
                hint = ""
                if not job.max_runtime_ms and job.tenant in limited_tenants:
                    hint = (
                        "; a job counts with its limit and this one has none, "
                        "so give limit_s or --default-limit"
                    )
                line = reading.lines.get(job.id)
                raise InvalidInput(f"{error}{hint}", file=reading.file, line=line) from error
            accepted.add(kind)


def _submission_kind(job: Job) -> Hashable:
    """The properties that decide whether a job is rejected; equal jobs get the same answer."""
    return (
        job.tenant,
        job.user,
        job.members,
        job.min_members,
        job.same_rack,
        job.pool,
        job.preemptible,
        job.max_runtime_ms,
        0 < job.deadline_ms <= job.submit_ms,
    )
