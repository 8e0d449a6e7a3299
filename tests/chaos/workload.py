"""Random jobs from a seed: short and mixed, each with its own record file."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

CODES = (0, 0, 0, 0, 0, 0, 1, 3, 77, 130, 137, 143, 255)
"""137 and 143 are what a shell reports for SIGKILL and SIGTERM: here they are plain codes."""
SIGNALS = (1, 2, 9, 10, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job to submit, and its expected behaviour."""

    token: str
    body: dict[str, Any]
    ends: tuple[str, ...] = ("exit:0",)
    ranks: int = 1
    tasks: int = 1
    to_cancel: bool = False
    needs: str = ""
    undisturbed_ms: int = 0
    """If more than 0: it runs once, for at least this long, whatever is killed meanwhile."""


@dataclass(slots=True)
class Workload:
    """Draws plans. The same seed draws the same ones, except for the jobs that they depend on."""

    directory: Path
    chance: Random
    drawn: int = 0
    acknowledged: list[str] = field(default_factory=list)

    def draw(self) -> Plan:
        """The next plan, of any kind."""
        kinds = (
            (self.plain, 30),
            (self.signalled, 10),
            (self.sleeper, 14),
            (self.fraction, 14),
            (self.two_gpus, 8),
            (self.no_gpu, 4),
            (self.gang, 10),
            (self.failing_gang, 5),
            (self.array, 6),
            (self.retried, 8),
            (self.dependent, 8),
            (self.session, 2),
            (self.urgent, 3),
            (self.cancelled, 5),
        )
        makers, weights = zip(*kinds, strict=True)
        plan: Plan = self.chance.choices(makers, weights)[0]()
        return plan

    # --- kinds of jobs

    def plain(self) -> Plan:
        return self._plan("plain", (f"exit:{self.chance.choice(CODES)}",), gpu_count=1)

    def signalled(self) -> Plan:
        return self._plan("signal", (f"signal:{self.chance.choice(SIGNALS)}",), gpu_count=1)

    def sleeper(self) -> Plan:
        return self._plan("sleep", ms=self.chance.randrange(50, 1500), gpu_count=1)

    def fraction(self) -> Plan:
        share = self.chance.choice((0.1, 0.25, 0.5, 0.75))
        return self._plan("part", ms=self.chance.randrange(0, 800), gpu_count=share)

    def two_gpus(self) -> Plan:
        return self._plan("two", ms=self.chance.randrange(0, 400), gpu_count=2)

    def no_gpu(self) -> Plan:
        return self._plan("none", ms=self.chance.randrange(0, 200), gpu_count=0)

    def gang(self) -> Plan:
        ranks = self.chance.randrange(2, 5)
        ms = self.chance.randrange(0, 500)
        more = {"gang_scheduling": True, "members": ranks, "gpu_count": 1}
        return self._plan("gang", ms=ms, ranks=ranks, **more)

    def failing_gang(self) -> Plan:
        """One rank fails; the others would run for long, and have to be stopped."""
        ranks = self.chance.randrange(2, 4)
        failing = {"WITNESS_RANK": str(self.chance.randrange(ranks)), "WITNESS_OTHERS_MS": "900000"}
        ends = (self.chance.choice(("exit:5", "signal:9")),)
        more = {"gang_scheduling": True, "members": ranks, "gpu_count": 0.5, "grace_seconds": 5}
        ms = self.chance.randrange(0, 300)
        return self._plan("half", ends, ms=ms, ranks=ranks, variables=failing, **more)

    def array(self) -> Plan:
        tasks = self.chance.randrange(2, 7)
        ends = (self.chance.choice(("exit:0", "exit:0", "exit:4", "signal:9")),)
        text = f"0-{tasks - 1}%3"
        ms = self.chance.randrange(0, 200)
        return self._plan("array", ends, ms=ms, tasks=tasks, array=text, gpu_count=1)

    def retried(self) -> Plan:
        ends = self.chance.choice(
            (("exit:7", "exit:0"), ("signal:9", "exit:5", "exit:0"), ("exit:1", "exit:1", "exit:6"))
        )
        return self._plan("again", ends, gpu_count=0.5, retries=2)

    def dependent(self) -> Plan:
        if not self.acknowledged:
            return self.plain()
        needs = self.chance.choice(self.acknowledged[-20:])
        kind = self.chance.choice(("afterany", "afterok"))
        return self._plan("after", gpu_count=0.5, dependencies=[f"{kind}:{needs}"], needs=needs)

    def session(self) -> Plan:
        """A job that a user could attach to."""
        runner = next((name for name in ("tmux", "screen") if shutil.which(name)), "process")
        ends = (self.chance.choice(("exit:0", "exit:3", "signal:9")),)
        ms = self.chance.randrange(0, 800)
        return self._plan("session", ends, ms=ms, gpu_count=1, runner=runner)

    def urgent(self) -> Plan:
        """Others have to be preempted."""
        ms = self.chance.randrange(0, 300)
        return self._plan("urgent", ms=ms, gpu_count=4, priority=2500, preemptible=False)

    def cancelled(self) -> Plan:
        """Would run for long, and is cancelled soon."""
        return self._plan("cancel", ms=900_000, gpu_count=0.5, to_cancel=True, grace_seconds=5)

    def undisturbed(self, ms: int, end: str) -> Plan:
        """Runs while everything around it is killed."""
        return self._plan(
            *("long", (end,)), ms=ms, gpu_count=0.5, preemptible=False, undisturbed_ms=ms
        )

    def until_told(self, end: str) -> Plan:
        """Runs until `SingleServer.release_jobs`, however slow everything else is."""
        told = {"WITNESS_UNTIL": str(self.directory / "end")}
        return self._plan("told", (end,), gpu_count=0.5, preemptible=False, variables=told)

    def _plan(
        self,
        kind: str,
        ends: tuple[str, ...] = ("exit:0",),
        *,
        ms: int = 0,
        ranks: int = 1,
        tasks: int = 1,
        to_cancel: bool = False,
        needs: str = "",
        undisturbed_ms: int = 0,
        variables: dict[str, str] | None = None,
        **fields: Any,
    ) -> Plan:
        self.drawn += 1
        token = f"{kind}-{self.drawn}"
        environment = {
            "WITNESS_FILE": str(self.directory / "notes" / token),
            "WITNESS_ENDS": ",".join(ends),
            "WITNESS_MS": str(ms),
        }
        # One command for all: a device on which different commands keep failing is quarantined.
        body = {
            "name": token,
            "command": [str(self.directory / "witness")],
            "working_directory": "/",
            "environment": environment | (variables or {}),
        }
        return Plan(
            token=token,
            body=body | fields,
            ends=ends,
            ranks=ranks,
            tasks=tasks,
            to_cancel=to_cancel,
            needs=needs,
            undisturbed_ms=undisturbed_ms,
        )
