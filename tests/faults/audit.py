"""Record what really happened, as reported by the simulated machines, and check the guarantees.

The scheduler's own state is read only at the end, when everything has settled and the stored state
must agree with the observations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.model.job import DependencyKind, Job
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.request import WHOLE_MILLI

Key = tuple[str, int]
"""Allocation id and member."""
WRITTEN_S = 0.5
"""The time after its end by which an exit code is on disk."""


@dataclass(slots=True)
class Run:
    """One process, from start to end."""

    node: str
    key: Key
    job_id: str
    task: int | None
    attempt: int
    devices: tuple[tuple[int, int, int], ...]
    began_s: float
    job: Job | None = None
    port: int = 0
    """The port on which a replica of a service listens."""
    ended_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    unwatched: bool = False
    """Its exit code is lost: its launcher or machine had died."""

    @property
    def tenant(self) -> str:
        return "" if self.job is None else self.job.tenant

    @property
    def service(self) -> str:
        return "" if self.job is None else self.job.service

    @property
    def gpu_milli(self) -> int:
        return sum(share for _, share, _ in self.devices)


@dataclass(slots=True)
class Rules:
    """What the audit must know: sizes of nodes, and quotas."""

    device_memory_mb: dict[tuple[str, int], int] = field(default_factory=dict)
    tenant_milli: dict[str, int] = field(default_factory=dict)


class Audit:
    """The record of one run of the world."""

    def __init__(self, *, keep_trace: bool = False) -> None:
        self.rules = Rules()
        self.problems: list[str] = []
        self.runs: list[Run] = []
        self._alive: dict[Key, Run] = {}
        self._ever: dict[Key, Run] = {}
        self._hash = hashlib.sha256()
        self.trace: list[str] | None = [] if keep_trace else None
        self.now = lambda: 0.0
        self.counts: dict[str, int] = {}
        self.is_closed = False
        self._prepared: set[Key] = set()
        self.failed_prologs: set[str] = set()
        self.stored: Callable[[str], Allocation | None] = lambda _: None
        """The committed allocation, read when one of its processes starts."""
        self.job_of: Callable[[str], Job | None] = lambda _: None
        """The submitted job, as committed."""
        self.forbidden: Callable[[Allocation, Job | None], str] = lambda *_: ""
        """Why a process must not be where it is; checked at its start."""

    # --- observations

    def note(self, kind: str, *details: object) -> None:
        """Record an event; the hash of all events is the fingerprint of the run."""
        if self.is_closed:
            return
        line = f"{self.now():.6f} {kind} {' '.join(map(str, details))}"
        self._hash.update(line.encode() + b"\n")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.trace is not None:
            self.trace.append(line)

    def problem(self, text: str) -> None:
        """Record a broken guarantee."""
        if self.is_closed:
            return
        self.problems.append(f"at {self.now():.3f} s: {text}")
        self.note("PROBLEM", text)

    @property
    def fingerprint(self) -> str:
        return self._hash.hexdigest()[:16]

    def began(self, node: str, work: Work) -> Run:
        """A process has started on a node."""
        key = (work.allocation_id, work.member)
        devices = tuple((d.index, d.share_milli, d.memory_mb) for d in work.devices)
        run = Run(node, key, work.job_id, work.task, work.attempt, devices, self.now())
        run.job = self.job_of(work.job_id)
        run.port = int(work.environment.get("TGPU_SERVICE_PORT", 0))
        self.note("began", node, *key, work.job_id, work.task, devices)
        self._check_once(run)
        self._check_alone(run)
        self._alive[key] = run
        self._ever[key] = run
        self.runs.append(run)
        self._check_devices(run)
        self._check_quota(run)
        self._check_array(run)
        self._check_dependencies(run)
        self._check_place(run)
        self._check_port(run)
        if run.key[0] in self.failed_prologs:
            self.problem(f"{run.key[0]} began on {run.node}, and a prolog of it had failed")
        return run

    def prepared(self, key: Key) -> None:
        """A member of a gang over several nodes is ready, and waits for the others."""
        self.note("prepared", *key)
        self._prepared.add(key)

    def prolog_failed(self, node: str, key: Key) -> None:
        """A prolog has failed: nothing of this attempt may run on any node."""
        self.note("prolog failed", node, *key)
        self.failed_prologs.add(key[0])
        for run in self.member_runs(key[0]):
            self.problem(f"{key[0]} ran on {run.node}, and the prolog of member {key[1]} failed")

    def ended(self, run: Run, exit_code: int | None, signal: int | None) -> None:
        """A process is gone."""
        run.ended_s, run.exit_code, run.signal = self.now(), exit_code, signal
        if self._alive.get(run.key) is run:
            del self._alive[run.key]
        self.note("ended", run.node, *run.key, exit_code, signal)

    def unwatched(self, run: Run) -> None:
        """The parent of a process is gone: its exit code may not have been recorded yet."""
        if run.ended_s is None or run.ended_s > self.now() - WRITTEN_S:
            run.unwatched = True

    @property
    def alive(self) -> list[Run]:
        return list(self._alive.values())

    def run_of(self, allocation_id: str, member: int) -> Run | None:
        return self._ever.get((allocation_id, member))

    # --- promises, checked with every beginning

    def _check_once(self, run: Run) -> None:
        before = self._ever.get(run.key)
        if before is not None:
            self.problem(
                f"{run.key[0]} member {run.key[1]} began a second time, on {run.node}; "
                f"the first was on {before.node} at {before.began_s:.3f} s"
            )

    def _check_alone(self, run: Run) -> None:
        for other in self._alive.values():
            if (other.job_id, other.task) == (run.job_id, run.task) and other.key[0] != run.key[0]:
                self.problem(
                    f"{run.key[0]} began on {run.node} while {other.key[0]} of the same job "
                    f"still runs on {other.node}"
                )

    def _check_devices(self, run: Run) -> None:
        for index, _, _ in run.devices:
            held = [
                device
                for other in self._alive.values()
                if other.node == run.node
                for device in other.devices
                if device[0] == index
            ]
            share = sum(device[1] for device in held)
            memory_mb = sum(device[2] for device in held)
            if share > WHOLE_MILLI:
                self.problem(f"GPU {index} of {run.node} bears {share} thousandths of itself")
            limit_mb = self.rules.device_memory_mb[run.node, index]
            if memory_mb > limit_mb:
                self.problem(f"GPU {index} of {run.node} bears {memory_mb} of {limit_mb} MiB")

    def _check_quota(self, run: Run) -> None:
        tenant = run.tenant
        quota = self.rules.tenant_milli.get(tenant)
        if quota is None:
            return
        used = sum(other.gpu_milli for other in self._alive.values() if other.tenant == tenant)
        if used > quota:
            self.problem(f"tenant {tenant} runs on {used} of {quota} thousandths of a GPU")

    def _check_array(self, run: Run) -> None:
        array = None if run.job is None else run.job.array
        most = 0 if array is None else array.max_running
        running = {other.key[0] for other in self._alive.values() if other.job_id == run.job_id}
        if most and len(running) > most:
            self.problem(f"{len(running)} tasks of {run.job_id} run, and {most} may")

    def _check_dependencies(self, run: Run) -> None:
        dependencies = () if run.job is None else run.job.dependencies
        for job_id in (d.job_id for d in dependencies if d.kind is DependencyKind.AFTER_OK):
            before = self.job_of(job_id)
            tasks = {None} if before is None or before.array is None else set(before.array.tasks)
            runs = [other for other in self.runs if other.job_id == job_id]
            if tasks - {other.task for other in runs if other.exit_code == 0}:
                self.problem(f"{run.job_id} began, and {job_id} before it has not ended well")

    def _check_place(self, run: Run) -> None:
        """What starts is stored, and on an allowed node.

        A command of a gang over nodes starts when all are prepared and that is stored.
        """
        allocation = self.stored(run.key[0])
        if allocation is None:
            self.problem(f"{run.key[0]} began on {run.node}, and is not stored")
            return
        if why := self.forbidden(allocation, run.job):
            self.problem(why)
        if allocation.spans_nodes:
            if allocation.rendezvous is None:
                self.problem(f"{run.key[0]} began on {run.node}, and no commit is stored")
            for placement in allocation.placements:
                if (allocation.id, placement.member) not in self._prepared:
                    self.problem(
                        f"{run.key[0]} began on {run.node}, and member {placement.member} was "
                        "never prepared"
                    )

    def _check_port(self, run: Run) -> None:
        for other in self._alive.values():
            if run.port and (other.node, other.port) == (run.node, run.port) and other is not run:
                self.problem(
                    f"port {run.port} of {run.node} was given to {run.key[0]} while {other.key[0]} "
                    "has it"
                )

    def member_runs(self, allocation_id: str) -> Iterable[Run]:
        return [run for key, run in self._ever.items() if key[0] == allocation_id]
