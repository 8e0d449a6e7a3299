"""A machine: processes on its GPUs, a disk, clocks, a launcher model and the real agent.

It can lose power, restart, have its agent or launcher killed, and its agent frozen. The machine
itself reports each start and end of a process to the audit.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.source import DetectedDevice, NodeInventory
from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.machine import Account
from gpu_scheduler.agent.service import Agent
from tests.faults.audit import Audit, Run
from tests.faults.launcher import Journal, LauncherClient, ModelLauncher
from tests.faults.virtual_loop import Part, VirtualLoop

Key = tuple[str, int]
WALL_MS = 1_700_000_000_000
GPU_MB = 80_000


class VirtualMachine:
    """The clocks of a machine. `skew_ms` is the error of its time of day."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._booted_s = 0.0
        self.boots = 0
        self.skew_ms = 0

    def boot(self) -> None:
        self.boots += 1
        self._booted_s = self._loop.time()

    def wall_ms(self) -> int:
        return WALL_MS + round(self._loop.time() * 1000) + self.skew_ms

    def boot_ms(self) -> int:
        return round((self._loop.time() - self._booted_s) * 1000)

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def cached_account(self, uid: int) -> Account:
        return Account(name=f"user-{uid}")

    async def account(self, uid: int) -> Account:
        return self.cached_account(uid)

    async def disk_problem(self, directory: Path, *, test_write: bool) -> str:
        return ""


@dataclass(slots=True, eq=False)
class Process:
    """A running command, and what it does when it is told to stop."""

    run: Run
    boot: int
    exit_code: int
    stop_ms: int
    listens_s: float = 0.0
    """When a replica of a service becomes ready."""
    is_alive: bool = True
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """What all nodes of a world share."""

    loop: VirtualLoop
    audit: Audit
    directory: Path
    connect: Callable[[str], Any]


class VirtualNode:
    """One node."""

    def __init__(self, site: Site, name: str, gpus: int, random: Random) -> None:
        self.loop = site.loop
        self.name = name
        self.gpus = gpus
        self.journal = Journal()
        self.machine = VirtualMachine(site.loop)
        self.is_on = False
        self.slow_disk = 1.0
        self.prolog: tuple[str, ...] = ()
        self.broken_hooks: set[str] = set()
        """Which of prolog and epilog fail here."""
        self.busy = random.choice((0.0, 0.1, 0.5))
        """How often its launcher reads an order late."""
        self.launcher: ModelLauncher | None = None
        self.client: LauncherClient | None = None
        self.agent: Part | None = None
        self._site = site
        self._random = random
        self._processes: dict[Key, Process] = {}
        self.leases: dict[Key, int] = {}
        """The leases that the watchdog knows: until when a process may run."""
        site.audit.rules.device_memory_mb.update({(name, index): GPU_MB for index in range(gpus)})

    # --- power

    def power_on(self) -> None:
        """Start launcher and agent from the contents of the disk."""
        if not self.is_on:
            self.is_on = True
            self.machine.boot()
            self._site.audit.note("power on", self.name)
            self.start_launcher()
            self.start_agent()

    def power_off(self) -> None:
        """Immediate: processes are gone, and unsynced data may be."""
        if not self.is_on:
            return
        self.is_on = False
        self._site.audit.note("power off", self.name)
        self.kill_agent()
        self.kill_launcher()
        for process in self._processes.values():
            if process.is_alive:
                process.is_alive = False
                self._site.audit.ended(process.run, None, None)
        self.leases.clear()
        self.journal.lose_power(self._random)

    def wipe(self) -> None:
        """Replace it by another machine with an empty disk."""
        self.journal = Journal()

    # --- the agent

    def start_agent(self) -> None:
        if not self.is_on or self.agent is not None:
            return
        self._site.audit.note("agent starts", self.name)
        part = self.agent = Part(f"{self.name}/agent")
        self.loop.tell(part, 0.0, self._run_agent, part)

    def _run_agent(self, part: Part) -> None:
        client = self.client = LauncherClient(self, part, self._random)
        if self.launcher is not None:
            client.join(self.launcher)
        directory = self._site.directory / self.name
        directory.mkdir(exist_ok=True)
        config = AgentConfig(
            node=self.name,
            targets=("virtual",),
            dir=str(directory),
            logs_dir=str(directory / "logs"),
            scratch_dir=str(directory / "scratch"),
            prolog=self.prolog,
        )
        devices = tuple(
            DetectedDevice(index=index, uuid=f"{self.name}-{index}", model="A100", memory_mb=GPU_MB)
            for index in range(self.gpus)
        )
        found = NodeInventory(
            cpu_milli=64_000, memory_mb=512_000, devices=devices, detection="declared"
        )
        launcher: Any = client
        connect = partial(self._site.connect, self.name)
        agent = Agent(config, launcher, found, None, connect, machine=self.machine)
        self.loop.start(part, agent.run())

    def kill_agent(self) -> None:
        if self.agent is not None:
            self._site.audit.note("agent dies", self.name)
            self.loop.kill(self.agent)
            self.agent = self.client = None
            if self.launcher is not None:
                self.launcher.client = None

    # --- the launcher

    def start_launcher(self) -> None:
        if self.is_on and self.launcher is None:
            self.launcher = ModelLauncher(self, self._random)
            if self.client is not None:
                self.client.join(self.launcher)

    def kill_launcher(self) -> None:
        """Processes continue, and their exit codes will never be known."""
        if self.launcher is not None:
            self._site.audit.note("launcher dies", self.name)
            self.loop.kill(self.launcher.part)
            self.launcher = None
            for process in self._processes.values():
                self._site.audit.unwatched(process.run)

    def sync_delay_s(self) -> float:
        return self._random.expovariate(200.0) * self.slow_disk

    # --- processes

    def begin(self, work: Work) -> None:
        """Run a command: `act RUN_MS CODES STOP_MS`, with an exit code for each attempt.

        `serve RUN_MS CODES STOP_MS WARM_MS` is ready after a while, and after as many attempts as
        it has codes it runs for ever. `meet RUN_MS CODES STOP_MS MEMBER` is a gang: when that
        member fails, the others wait for it until they are stopped.
        """
        kind, run_ms, codes, stop_ms, *more = work.argv
        choices = [int(code) for code in filter(None, codes.split(","))]
        is_settled = kind == "serve" and work.attempt > len(choices)
        exit_code = 0 if is_settled else choices[min(work.attempt, len(choices)) - 1]
        is_endless = is_settled or (kind == "meet" and exit_code and work.member != int(more[0]))
        run = self._site.audit.began(self.name, work)
        warm_ms = int(more[0]) if kind == "serve" else 0
        listens_s = self.loop.time() + warm_ms / 1000
        process = Process(run, self.machine.boots, exit_code, int(stop_ms), listens_s)
        self._processes[run.key] = process
        if not is_endless:
            self.loop.tell(None, int(run_ms) / 1000, self._end, process, exit_code, None)

    def listens(self, port: int) -> bool:
        """Whether a process listens on the port."""
        return any(
            process.is_alive and process.run.port == port and process.listens_s <= self.loop.time()
            for process in self._processes.values()
        )

    def mend(self) -> None:
        """Hooks succeed again."""
        self.broken_hooks.clear()

    def prolog_failed(self, key: Key) -> None:
        self._site.audit.prolog_failed(self.name, key)

    def prepared(self, key: Key) -> None:
        self._site.audit.prepared(key)

    def signal(self, key: Key, number: int) -> None:
        process = self._processes.get(key)
        if process is None or not process.is_alive:
            return
        if number == signal.SIGKILL:
            self._end(process, None, number)
        elif not process.is_stopping:
            process.is_stopping = True
            self.loop.tell(None, process.stop_ms / 1000, self._end, process, None, number)

    def _end(self, process: Process, exit_code: int | None, number: int | None) -> None:
        if process.is_alive:
            process.is_alive = False
            self._site.audit.ended(process.run, exit_code, number)
            if self.launcher is not None:
                launcher, key = self.launcher, process.run.key
                self.loop.tell(launcher.part, 0.0, launcher.process_gone, key, exit_code, number)

    def lease(self, key: Key, until_ms: int) -> None:
        """The watchdog kills what runs longer, even if launcher or agent are dead or frozen."""
        self.leases[key] = until_ms
        left_s = (until_ms - self.machine.boot_ms()) / 1000
        self.loop.tell(None, max(0.0, left_s), self._guard, key, until_ms, self.machine.boots)

    def _guard(self, key: Key, until_ms: int, boot: int) -> None:
        if boot == self.machine.boots and self.leases.get(key) == until_ms:
            self.signal(key, signal.SIGKILL)

    def runs(self, key: Key) -> bool:
        return key in self._processes and self._processes[key].is_alive

    def has_begun(self, key: Key) -> bool:
        return key in self._processes

    def began_in_this_boot(self, key: Key) -> bool:
        return self._processes[key].boot == self.machine.boots
