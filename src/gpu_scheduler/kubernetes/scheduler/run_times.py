"""How long pods run, learnt from pods that have ended: runs come in, expected run times go out.

Pods are alike by the program and arguments of their first container, or by its image if it names
none, as jobs of a workstation are (`predict/likeness`). The newest runs are kept, so that the next
leader can learn them again; the same runs in the same order give the same run times.
"""

from collections.abc import Iterable, Iterator

import msgspec

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.history import History

MOST_RUNS = 1_000


class Run(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A job that has ended by itself; of a gang, from its first pod to its last."""

    uid: str
    """Of its first pod."""
    queue: str
    namespace: str
    command: tuple[str, ...]
    limit_ms: int
    start_ms: int
    end_ms: int


class RunTimes:
    """What is known about run times."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        """Learn from the runs of a record."""
        self._history = History()
        self._runs: dict[str, Run] = {}
        for run in sorted(runs, key=lambda one: (one.end_ms, one.uid)):
            self._learn(run)

    def __len__(self) -> int:
        """How many runs are kept."""
        return len(self._runs)

    def learn(self, runs: Iterable[Run]) -> bool:
        """Learn from those that are new, and tell whether there are any."""
        oldest_ms = next(iter(self._runs.values())).end_ms if len(self) >= MOST_RUNS else -1
        new = [
            run
            for run in runs
            if run.uid not in self._runs and run.end_ms > max(oldest_ms, run.start_ms)
        ]
        for run in sorted(new, key=lambda one: (one.end_ms, one.uid)):
            self._learn(run)
        return bool(new)

    def _learn(self, run: Run) -> None:
        if run.end_ms <= run.start_ms:
            return
        job = Job(
            id=run.uid,
            number=1,
            submit_ms=run.start_ms,
            tenant=run.queue,
            user=run.namespace,
            command=run.command,
            max_runtime_ms=run.limit_ms,
        )
        self._history.end(job, run.end_ms - run.start_ms, run.end_ms)
        self._runs[run.uid] = run
        if len(self._runs) > MOST_RUNS:
            del self._runs[next(iter(self._runs))]

    def newest_first(self) -> Iterator[Run]:
        """The runs that are kept."""
        return reversed(self._runs.values())

    def run_ms(self, job: Job, elapsed_ms: int) -> int:
        """How long a job runs in all that has run so long; never longer than its limit."""
        expected_ms = self._history.forecast_run_time(job, elapsed_ms)
        limit_ms = job.max_runtime_ms
        return max(elapsed_ms + 1, min(expected_ms, limit_ms) if limit_ms else expected_ms)

    def is_guess(self, job: Job, elapsed_ms: int) -> bool:
        """Tell whether there is neither a time limit nor a run of a like job."""
        return self._history.is_guess(job, elapsed_ms)
