"""Run-time prediction from the history of similar jobs.

A geometric mean per group of jobs orders the queue; quantiles of a distribution correct jobs that
run longer than expected and serve forecasts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import mul
from typing import Generic, NamedTuple, TypeVar

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.interface import NOTHING_KNOWN, RunTimeBasis
from gpu_scheduler.predict.likeness import GroupKey, Likeness, like_groups

MAX_GROUPS = 50_000

Group = TypeVar("Group")


class LruGroups(Generic[Group]):
    """A bounded cache of groups of similar jobs.

    Every run of a sweep can have its own name, so the number of fine groups is unbounded. The group
    that has not learnt for the longest time is dropped first; `get` does not count as a use.
    """

    def __init__(self, most: int = MAX_GROUPS) -> None:
        """Start empty."""
        self._groups: OrderedDict[Hashable, Group] = OrderedDict()
        self._most = most
        self.get = self._groups.get

    def __contains__(self, key: Hashable) -> bool:
        """Tell whether the group exists."""
        return key in self._groups

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def learning(self, key: Hashable, new: Callable[[], Group]) -> Group:
        """The group with this key, created if missing, and marked as just used."""
        group = self._groups.get(key)
        if group is not None:
            self._groups.move_to_end(key)
            return group
        group = self._groups[key] = new()
        if len(self._groups) > self._most:
            self._groups.popitem(last=False)
        return group


KEPT_GROUPS = 30
PRIOR_WEIGHT = 0.25
FIRST_GUESS_MS = 10_000_000
LONGEST_NAME = 500
ENOUGH = 4
"""This many runs of the same size make more than a guess; of the same name, one does."""


class MeanPredictor:
    """The mean of the logarithms of run times, by group.

    Groups go from coarse to fine: the tenant, its jobs with as many GPUs, the user, the user's jobs
    with as many GPUs, and those with the same name or command. Each finer group corrects the guess
    of the coarser one, weighted by its number of runs. Jobs of the user that already run longer
    than the guess count as well.
    """

    def __init__(self) -> None:
        """Start without history. Start times of running jobs are kept by job and by account."""
        self._groups: LruGroups[_MeanGroup] = LruGroups()
        self._running: dict[str, list[int]] = {}
        self._starts: dict[tuple[str, str], list[int]] = {}

    def expect(self, job: Job, now_ms: int) -> int:
        """The expected run time of a job."""
        log, seen = self._guess(_mean_keys(job))
        return self._corrected_by_running(job, log, seen, now_ms)

    def knows(self, job: Job) -> bool:
        """Tell whether there is enough history for more than a guess."""
        tenant, user, gpus = job.tenant, job.user, job.gpu_milli
        # Coarse groups first: they are quick to find and mostly sufficient.
        return (
            self._seen((tenant, user, gpus)) >= ENOUGH
            or self._seen((tenant, gpus)) >= ENOUGH
            or self._seen(_mean_keys(job)[-1]) > 0
        )

    def _seen(self, key: Hashable) -> int:
        group = self._groups.get(key)
        return 0 if group is None else len(group.logs)

    def expect_alike(self, jobs: Sequence[Job], now_ms: int) -> list[int]:
        """Expected run times of jobs that differ only in number, name and command.

        Jobs with unknown names share one prediction.
        """
        first = jobs[0]
        tenant, user, gpus = first.tenant, first.user, first.gpu_milli
        log, seen = self._guess(_coarse_keys(first))
        unknown_ms = self._corrected_by_running(first, log, 0, now_ms)
        nameless_ms = self._corrected_by_running(first, log, seen, now_ms)
        groups = self._groups
        expected = []
        for job in jobs:
            name = name_of(job)
            if not name:
                expected.append(nameless_ms)
            elif (tenant, user, gpus, name) in groups:
                expected.append(self.expect(job, now_ms))
            else:
                expected.append(unknown_ms)
        return expected

    def _guess(self, keys: list[Hashable]) -> tuple[float, int]:
        """The first guess corrected by these groups, and the number of runs in the last one."""
        log, seen = math.log(FIRST_GUESS_MS), 0
        for key in keys:
            group = self._groups.get(key)
            seen = 0
            if group is not None:
                seen = len(group.logs)
                log = (group.total + PRIOR_WEIGHT * log) / (seen + PRIOR_WEIGHT)
        return log, seen

    def group_means(self, job: Job) -> list[tuple[float, int]]:
        """The mean logarithm and the number of runs of each group, from coarse to fine."""
        found = []
        for key in _mean_keys(job):
            group = self._groups.get(key)
            runs = 0 if group is None else len(group.logs)
            found.append((group.total / runs if group is not None and runs else -1.0, runs))
        return found

    def _corrected_by_running(self, job: Job, log: float, seen: int, now_ms: int) -> int:
        """The guess corrected by jobs of the user that already run longer."""
        starts = self._starts.get((job.tenant, job.user))
        if starts:
            longer = starts[: bisect_left(starts, now_ms - math.exp(log))]
            if longer:
                weight = PRIOR_WEIGHT + seen
                logs = sum(map(math.log, [now_ms - start_ms for start_ms in longer]))
                log = (log * weight + logs) / (weight + len(longer))
        return max(1, round(math.exp(log)))

    def begin(self, job: Job, now_ms: int) -> None:
        """A job, or a task of an array, of the user has started."""
        insort(self._starts.setdefault((job.tenant, job.user), []), now_ms)
        self._running.setdefault(job.id, []).append(now_ms)

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """A job or task has ended.

        The task of an array is identified by its start time, otherwise the oldest one is assumed.
        """
        running = self._running.get(job.id)
        if not running:
            return
        begun_ms = 0 if run_ms is None else now_ms - run_ms
        start_ms = min(running, key=lambda start: (abs(start - begun_ms), start))
        running.remove(start_ms)
        if not running:
            del self._running[job.id]
        account = (job.tenant, job.user)
        starts = self._starts[account]
        del starts[bisect_left(starts, start_ms)]
        if not starts:
            del self._starts[account]

    def learn(self, job: Job, run_ms: int) -> None:
        """A job ended by itself after this time."""
        log = math.log(max(1, run_ms))
        for key in _mean_keys(job):
            self._groups.learning(key, _MeanGroup).add(log)


class _MeanGroup:
    """The last run times of a group, as logarithms."""

    __slots__ = ("logs", "total")

    def __init__(self) -> None:
        self.logs: list[float] = []
        self.total = 0.0

    def add(self, log: float) -> None:
        if len(self.logs) == KEPT_GROUPS:
            self.total -= self.logs.pop(0)
        self.logs.append(log)
        self.total += log


def _mean_keys(job: Job) -> list[Hashable]:
    keys = _coarse_keys(job)
    name = name_of(job)
    if name:
        keys.append((job.tenant, job.user, job.gpu_milli, name))
    return keys


def _coarse_keys(job: Job) -> list[Hashable]:
    gpus = job.gpu_milli
    return [
        (job.tenant,),
        (job.tenant, gpus),
        (job.tenant, job.user, "all"),
        (job.tenant, job.user, gpus),
    ]


def name_of(job: Job) -> str:
    """The name of a job for grouping: its name, or the beginning of its command."""
    return job.name or " ".join(job.command)[:LONGEST_NAME]


KEPT = (16, 40, 64, 128)
RECENCY = (0.6, 0.9, 0.97, 0.997)
DOUBT = 4.0
"""The weight of history at which a group counts as much as all coarser ones."""
PRIOR_ATOMS = 8
LEAST_PRIOR = 0.001
PRIOR_WHEN_RUNNING = 0.2
SHORTEST_MS = 10_000
LONGEST_MS = 86_400_000
LONGER = 8
MAX_VIEWS = 1_000
"""The number of cached distributions."""

Atom = tuple[float, float]
"""A run time in milliseconds and its weight."""


class QuantilePredictor:
    """Quantiles of the run time, from the last run times of four groups.

    `groups_of` gives the groups of a job from fine to coarse. Recent run times weigh more. A group
    with little history passes weight on to the next coarser one. Coarse groups may learn the run
    time as a fraction of the limit. For a running job only longer run times count, so an exceeded
    estimate is corrected upward. The sorted distribution of each kind of job is cached until one of
    its groups learns.
    """

    def __init__(self, groups_of: Callable[[Job], tuple[GroupKey, ...]] | None = None) -> None:
        """Start without history."""
        self._groups_of = groups_of or all_groups
        self._groups: LruGroups[_Group] = LruGroups()
        self._views: OrderedDict[Hashable, _View] = OrderedDict()

    def quantile(self, job: Job, percent: int, elapsed_ms: int = 0) -> int:
        """The run time that `percent` of such jobs do not exceed, given the elapsed time."""
        limit_ms = float(job.max_runtime_ms) if job.max_runtime_ms > elapsed_ms else math.inf
        view = self._view(job)
        longer = bisect_right(view.atoms, (elapsed_ms, math.inf)) if elapsed_ms else 0
        atoms = [*view.atoms[longer:], *_unseen(view.left, elapsed_ms, limit_ms)]
        atoms.sort()
        if atoms[-1][0] > limit_ms:
            cut = bisect_left(atoms, (limit_ms, 0.0))
            atoms[cut:] = sorted((limit_ms, weight) for _, weight in atoms[cut:])
        reached = list(accumulate(weight for _, weight in atoms))
        place = bisect_left(reached, reached[-1] * percent / 100)
        return max(1, round(atoms[min(place, len(atoms) - 1)][0]))

    def half_power_mean(self, job: Job, elapsed_ms: int = 0) -> int | None:
        """The mean of the remaining run time, taken over square roots, plus the elapsed time.

        For a long-tailed distribution that is between its median and its mean. Only the known run
        times that are longer count; None if there is none.
        """
        view = self._view(job)
        limit_ms = float(job.max_runtime_ms) if job.max_runtime_ms > elapsed_ms else math.inf
        key = elapsed_ms, limit_ms
        if key in view.means:
            return view.means[key]
        longer = bisect_right(view.atoms, (elapsed_ms, math.inf)) if elapsed_ms else 0
        atoms = view.atoms[longer:]
        weight = sum(weight for _, weight in atoms)
        mean = None
        if weight:
            left = [(min(run_ms, limit_ms) - elapsed_ms, weight) for run_ms, weight in atoms]
            root = sum(math.sqrt(left_ms) * part for left_ms, part in left) / weight
            mean = elapsed_ms + round(root * root)
        if not elapsed_ms:
            view.means[key] = mean
        return mean

    def learn(self, job: Job, run_ms: int) -> None:
        """A job ended by itself after this time."""
        for level, group_key in enumerate(self._groups_of(job)):
            group = self._groups.learning(group_key.key, _Group)
            group.runs.insert(0, run_ms / _scale(job, group_key))
            del group.runs[KEPT[level] :]
            group.learnt += 1

    def basis(self, job: Job) -> tuple[Likeness, int] | None:
        """How alike the most alike remembered runs are, and how many there are."""
        for group_key in self._groups_of(job):
            group = self._groups.get(group_key.key)
            if group is not None:
                return group_key.likeness, len(group.runs)
        return None

    def longer_runs(self, job: Job, elapsed_ms: int) -> int:
        """How many runs in the most alike group with any were longer than this."""
        for group_key in self._groups_of(job):
            group = self._groups.get(group_key.key)
            if group is not None:
                least = elapsed_ms / _scale(job, group_key)
                longer = sum(run > least for run in group.runs)
                if longer:
                    return longer
        return 0

    def _view(self, job: Job) -> _View:
        """The cached distribution, rebuilt when one of its groups has learnt."""
        keys = self._groups_of(job)
        groups = [self._groups.get(one.key) for one in keys]
        learnt = [0 if group is None else group.learnt for group in groups]
        # The finest key implies the coarser ones, so it identifies the distribution.
        view = self._views.get(keys[0].key)
        if view is None or view.learnt != learnt:
            scales = [_scale(job, one) for one in keys]
            view = self._views[keys[0].key] = _seen(scales, groups, learnt)
            if len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)
        return view


class _Group:
    """The last run times of a group, the latest first, and a counter of all runs."""

    __slots__ = ("learnt", "runs")

    def __init__(self) -> None:
        self.runs: list[float] = []
        self.learnt = 0


class _View(NamedTuple):
    """The known distribution of one kind of job, and the weight left for unknown run times.

    `means` are those worked out so far, by the elapsed time and the limit.
    """

    learnt: list[int]
    atoms: list[Atom]
    left: float
    means: dict[tuple[int, float], int | None]


def _seen(scales: list[float], groups: list[_Group | None], learnt: list[int]) -> _View:
    """The part of the distribution that the groups know."""
    atoms: list[Atom] = []
    left = 1.0
    for level, group in enumerate(groups):
        if group is None:
            continue
        recency = RECENCY[level]
        total = (1 - recency ** len(group.runs)) / (1 - recency)
        part = left / (total + DOUBT)
        scale = scales[level]
        parts = accumulate(repeat(recency, len(group.runs) - 1), mul, initial=part)
        atoms += zip([run * scale for run in group.runs], parts, strict=True)
        left *= DOUBT / (total + DOUBT)
    atoms.sort()
    return _View(learnt, atoms, left, {})


def _unseen(left: float, elapsed_ms: int, limit_ms: float) -> Iterator[Atom]:
    """The unknown part of the distribution: spread evenly on a logarithmic scale."""
    prior = max(LEAST_PRIOR, left if not elapsed_ms else left * PRIOR_WHEN_RUNNING)
    low = max(elapsed_ms + 1, SHORTEST_MS)
    high = max(LONGEST_MS, LONGER * elapsed_ms) if math.isinf(limit_ms) else limit_ms
    ratio = max(1.0, high / low)
    for step in range(PRIOR_ATOMS):
        yield low * ratio ** ((step + 0.5) / PRIOR_ATOMS), prior / PRIOR_ATOMS


def all_groups(job: Job) -> tuple[GroupKey, ...]:
    """The groups of a job for the order of the queue, also of unlike jobs.

    The same work of the user (by name or command, GPUs and CPUs, or by the time limit if there is
    one), all jobs of the user, all jobs of the tenant with as many GPUs (or the same limit), and
    all jobs of the tenant.
    """
    name = name_of(job)
    limit = job.max_runtime_ms
    request = job.members[0]
    size: Hashable = ("limit", limit) if limit else (job.gpu_milli, request.cpu_milli)
    has_limit = bool(limit)
    return (
        GroupKey(Likeness.COMMAND, ("kind", job.tenant, job.user, name, size)),
        GroupKey(Likeness.USER, ("user", job.tenant, job.user, has_limit), has_limit),
        GroupKey(Likeness.TENANT, ("size", job.tenant, limit or job.gpu_milli, has_limit)),
        GroupKey(Likeness.TENANT, ("tenant", job.tenant, has_limit), has_limit),
    )


def _scale(job: Job, group_key: GroupKey) -> float:
    """The limit, for a group that learns fractions of it; else 1."""
    return float(job.max_runtime_ms) if group_key.of_limit else 1.0


MEDIAN = 50


class History:
    """Learns from every job that ends by itself. Never predicts more than the time limit."""

    def __init__(self) -> None:
        """Start without history."""
        self._mean = MeanPredictor()
        self._quantiles = QuantilePredictor()
        self._alike = QuantilePredictor(like_groups)

    def expect(self, job: Job, now_ms: int) -> int:
        """The expected run time at submission; without similar jobs, the estimate of the user."""
        stated_ms = _stated_ms(job)
        if stated_ms and not self._mean.knows(job):
            return stated_ms
        expected_ms = self._mean.expect(job, now_ms)
        return min(expected_ms, job.max_runtime_ms) if job.max_runtime_ms else expected_ms

    def expect_alike(self, jobs: Sequence[Job], now_ms: int) -> list[int]:
        """Expected run times of jobs that differ only in number, name and command."""
        stated_ms = _stated_ms(jobs[0])
        if stated_ms and not self._mean.knows(jobs[0]):
            # Each job may have its own name, and so its own history.
            return [self.expect(job, now_ms) for job in jobs]
        expected = self._mean.expect_alike(jobs, now_ms)
        most_ms = jobs[0].max_runtime_ms
        return [min(expected_ms, most_ms) for expected_ms in expected] if most_ms else expected

    def is_guess(self, job: Job, elapsed_ms: int) -> bool:
        """Tell whether there is neither a user estimate nor history of like jobs."""
        return _stated_ms(job) <= elapsed_ms and self._alike.basis(job) is None

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:  # noqa: ARG002
        """The median of jobs like it that ran longer than it has."""
        return self.quantile(job, MEDIAN, elapsed_ms)

    def quantile(self, job: Job, percent: int, elapsed_ms: int = 0) -> int:
        """The run time that `percent` of such jobs do not exceed, given the elapsed time."""
        return max(elapsed_ms + 1, self._quantiles.quantile(job, percent, elapsed_ms))

    def group_means(self, job: Job) -> list[tuple[float, int]]:
        """The mean logarithm and the number of runs of each group, from coarse to fine."""
        return self._mean.group_means(job)

    def begin(self, job: Job, now_ms: int) -> None:
        """An attempt has started."""
        self._mean.begin(job, now_ms)

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """Learn from a job that ended by itself."""
        self._mean.end(job, run_ms, now_ms)
        if run_ms is not None:
            self._mean.learn(job, run_ms)
            self._quantiles.learn(job, run_ms)
            self._alike.learn(job, run_ms)

    def run_time(self, job: Job, elapsed_ms: int) -> tuple[int, RunTimeBasis]:
        """The total run time that users are told, from like jobs only, and what it is based on.

        For a job that has run for some time, only runs count that were longer. A job of which
        nothing is known runs as long as its user says, or up to its limit.
        """
        alike = self._alike.basis(job)
        if alike is not None:
            runs = self._alike.longer_runs(job, elapsed_ms) if elapsed_ms else alike[1]
            expected_ms = self._alike.quantile(job, MEDIAN, elapsed_ms)
            return max(elapsed_ms + 1, expected_ms), RunTimeBasis(alike[0].value, runs)
        if elapsed_ms < job.estimate_ms:
            return _stated_ms(job), RunTimeBasis("estimate")
        if elapsed_ms < job.max_runtime_ms:
            return job.max_runtime_ms, RunTimeBasis("limit")
        return self.quantile(job, MEDIAN, elapsed_ms), NOTHING_KNOWN

    def forecast_run_time(self, job: Job, elapsed_ms: int) -> int:
        """The total run time that forecasts of starts count with.

        What is ahead of a job adds up, so long runs count more than in a median; but the next end
        comes from the shorter ones, so they count less than in a mean.
        """
        if self._alike.basis(job) is not None:
            mean_ms = self._alike.half_power_mean(job, elapsed_ms)
            if mean_ms is not None:
                return max(elapsed_ms + 1, mean_ms)
        return self.run_time(job, elapsed_ms)[0]


def _stated_ms(job: Job) -> int:
    """The estimate of the user, or the time limit; 0 without both."""
    stated_ms = job.estimate_ms or job.max_runtime_ms
    return min(stated_ms, job.max_runtime_ms) if job.max_runtime_ms else stated_ms
