"""Several servers, a PostgreSQL and many agents, all real, under faults of every kind.

Jobs record their own runs; faults come at random moments, several at once. As root, some agents
run in their own network namespaces, whose cable can be pulled, and some on a small disk, which can
be filled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.audit import ENDED, audit, read_notes
from tests.chaos.random_kills import answers_of, submit_until
from tests.chaos.single_server import build_witness, submit_until_acknowledged
from tests.chaos.test_full_disk import fill_directory
from tests.chaos.workload import Plan, Workload
from tests.cluster import Process
from tests.ha_cluster import QUICK, Servers
from tests.postgres import OwnPostgres, a_server

GPUS = "4xH100"
DISK_MB = 64
LONGEST_DRAIN_S = 240.0
SETTINGS = QUICK | {"jobs_assignment_retry_wait_s": "0.2", "grpc_host": "0.0.0.0"}


class Cable:
    """A network namespace with one cable to this machine."""

    def __init__(self, number: int) -> None:
        self.name = f"tgpu{os.getpid() % 100_000}n{number}"
        self._link = f"tg{os.getpid() % 100_000}l{number}"
        self.here = f"10.{os.getpid() % 250}.{number}.1"
        self.there = f"10.{os.getpid() % 250}.{number}.2"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("addr", "add", f"{self.here}/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        _ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", self.name, "link", "set", device, "up")

    def pull(self) -> None:
        _ip("link", "set", self._link, "down")

    def plug(self) -> None:
        _ip("link", "set", self._link, "up")

    def remove(self) -> None:
        for words in (("link", "del", self._link), ("netns", "del", self.name)):
            subprocess.run(["ip", *words], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def can_cut_cables() -> bool:
    """Tell whether network namespaces can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"tgpu{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


class SmallDisk:
    """A directory on a small disk that can be filled."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(mode=0o755)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=755", "tgpu", str(place)]
        subprocess.run(mount, check=True, capture_output=True)

    def fill(self) -> None:
        fill_directory(self.place)

    def make_room(self) -> None:
        (self.place / "ballast").unlink()

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.place)], check=True, capture_output=True)


def can_mount() -> bool:
    """Tell whether small disks can be mounted here."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory:
        try:
            SmallDisk(Path(directory) / "try").remove()
        except subprocess.CalledProcessError:
            return False
    return True


class Fleet(Servers):
    """Servers and agents that can be killed, frozen or disconnected."""

    def __init__(self, directory: Path, postgres: OwnPostgres, **settings: str) -> None:
        super().__init__(directory, **settings)
        self.postgres = postgres
        self.notes = directory / "notes"
        self.notes.mkdir()
        self.cables: dict[str, Cable] = {}
        self.disks: dict[str, SmallDisk] = {}

    def add_agent(
        self, name: str, cable: Cable | None = None, *, has_small_disk: bool = False
    ) -> None:
        """Start an agent, in this machine's network or at the end of a cable."""
        if has_small_disk:
            self.disks[name] = SmallDisk(self.directory / name)
        process = self.agent(name, gpus=GPUS, server=self._servers_seen_from(cable))
        if cable is not None:
            self.cables[name] = cable
            process.command = ["ip", "netns", "exec", cable.name, *process.command]
        self.agents[name] = process
        process.start()

    def _servers_seen_from(self, cable: Cable | None) -> str:
        host = "127.0.0.1" if cable is None else cable.here
        ports = (one.rpartition(":")[2] for one in self.nodes_address.split(","))
        return ",".join(f"{host}:{port}" for port in ports)

    def witnesses(self) -> int:
        """The number of running job processes."""
        name = os.fsencode(self.directory / "witness") + b"\0"
        found = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    found += (entry / "cmdline").read_bytes() == name
        return found

    def tracebacks(self) -> list[str]:
        """Unexpected tracebacks in the logs."""
        logs = [*self.directory.glob("*.log"), *self.directory.glob("*/*.log")]
        texts = {str(log): log.read_text(encoding="utf-8", errors="replace") for log in logs}
        return [
            f"{name}: {text[text.index('Traceback') :][:3000]}"
            for name, text in texts.items()
            if "Traceback" in text
        ]

    def close(self) -> None:
        super().close()
        for part in (*self.cables.values(), *self.disks.values()):
            part.remove()


@contextlib.contextmanager
def a_fleet(agents: int, cables: int, disks: int) -> Iterator[Fleet]:
    """Three servers and so many agents: the first with a cable, the last on a small disk."""
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    directory.chmod(0o755)
    with a_server(fsync="on", full_page_writes="on") as postgres:
        fleet = Fleet(directory, postgres, **SETTINGS, database_url=postgres.make_database())
        try:
            build_witness(directory / "witness")
            for name in ("a", "b", "c"):
                fleet.start(name)
            fleet.token = fleet.until(fleet._join_token, "a join token")
            for number in range(agents):
                cable = Cable(number) if number < cables else None
                has_small_disk = number >= agents - disks
                fleet.add_agent(f"n{number:02d}", cable, has_small_disk=has_small_disk)
            fleet.wait_for_nodes()
            yield fleet
        finally:
            fleet.close()


@dataclass(slots=True)
class FleetChaos:
    """One run: a fleet, a seed, and everything that was submitted and broken."""

    fleet: Fleet
    seed: int
    plans: list[Plan] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def run(self, faults: int, *, undisturbed_ms: int) -> None:
        """Submit and inject faults; returns when all is repaired and all is acknowledged."""
        workload = Workload(self.fleet.directory, Random(self.seed))
        for end in ("exit:42", "signal:10", "exit:0"):
            plan = workload.undisturbed(undisturbed_ms, end)
            self.plans.append(plan)
            with self.fleet.client() as client:
                self.ids[plan.token] = submit_until_acknowledged(client, plan.body)
        self.fleet.until(lambda: self.fleet.witnesses() == 3, "the long jobs run")
        over = threading.Event()
        submitter = threading.Thread(
            target=submit_until, args=(over, self.fleet.client(), workload, self.plans, self.ids)
        )
        submitter.start()
        try:
            chance = Random(self.seed + 1)
            while self.faults.total() < faults:
                self._break_one(chance)
        finally:
            over.set()
            submitter.join()

    def drain(self) -> None:
        """Wait until every job has ended."""
        self.fleet.until(self._all_ended, "every job has ended", LONGEST_DRAIN_S)

    def violations(self) -> list[str]:
        """All violations, seen from outside."""
        runs, wrong = read_notes(self.fleet.notes)
        wrong += self.problems
        with self.fleet.client() as client:
            wrong += audit(self.plans, self.ids, answers_of(client), runs)
        wrong += self.fleet.tracebacks()
        if self.fleet.witnesses():
            wrong.append("all jobs have ended, and processes of them still run")
        return wrong

    # --- faults

    def _break_one(self, chance: Random) -> None:
        """Break something for a moment, and repair it."""
        time.sleep(chance.uniform(0.0, 1.0))
        kinds: list[tuple[Callable[[Random], None], int]] = [
            (self._kill_server, 6),
            (self._freeze_server, 4),
            (self._kill_agent, 6),
            (self._freeze_agent, 4),
            (self._restart_database, 2),
            (self._freeze_database, 2),
        ]
        if self.fleet.cables:
            kinds.append((self._pull_cable, 4))
        if self.fleet.disks:
            kinds.append((self._fill_disk, 3))
        fault = chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        fault(chance)
        self.faults[fault.__name__.strip("_")] += 1

    def _one(self, chance: Random, parts: dict[str, Process]) -> tuple[str, Process]:
        name = chance.choice(sorted(parts))
        process = parts[name]
        assert process.process is not None
        if (code := process.process.poll()) is not None:
            self.problems.append(f"{name} ended by itself with {code}")
            self._again(name)
        return name, process

    def _again(self, name: str) -> None:
        if name in self.fleet.servers:
            self.fleet.start(name)
        else:
            self.fleet.agents[name].start()

    def _kill_server(self, chance: Random) -> None:
        name, process = self._one(chance, self.fleet.servers)
        process.kill()
        time.sleep(chance.choice((0.0, 0.5, 3.0)))
        self._again(name)

    def _freeze_server(self, chance: Random) -> None:
        _, process = self._one(chance, self.fleet.servers)
        process.freeze()
        time.sleep(chance.uniform(0.5, 5.0))
        process.thaw()

    def _kill_agent(self, chance: Random) -> None:
        name, process = self._one(chance, self.fleet.agents)
        process.kill()
        time.sleep(chance.choice((0.0, 0.3, 2.0)))
        self._again(name)

    def _freeze_agent(self, chance: Random) -> None:
        _, process = self._one(chance, self.fleet.agents)
        process.freeze()
        time.sleep(chance.uniform(0.5, 4.0))
        process.thaw()

    def _restart_database(self, chance: Random) -> None:
        self.fleet.postgres.stop()
        time.sleep(chance.uniform(0.0, 2.0))
        self.fleet.postgres.start()

    def _freeze_database(self, chance: Random) -> None:
        self.fleet.postgres.freeze()
        time.sleep(chance.uniform(0.5, 3.0))
        self.fleet.postgres.thaw()

    def _pull_cable(self, chance: Random) -> None:
        cable = self.fleet.cables[chance.choice(sorted(self.fleet.cables))]
        cable.pull()
        time.sleep(chance.uniform(1.0, 8.0))
        cable.plug()

    def _fill_disk(self, chance: Random) -> None:
        disk = self.fleet.disks[chance.choice(sorted(self.fleet.disks))]
        disk.fill()
        time.sleep(chance.uniform(1.0, 8.0))
        disk.make_room()

    # --- queries

    def _all_ended(self) -> bool:
        with self.fleet.client() as client:
            return all(job["state"] in ENDED for job in client.list())
