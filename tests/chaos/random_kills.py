"""Kill processes at random while jobs are submitted; then wait for all jobs and audit them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from gpu_scheduler import Client
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import WrongState
from tests.chaos.audit import ENDED, Answers, audit, audit_accounts, read_notes
from tests.chaos.single_server import (
    AWAY,
    TRY_AGAIN_S,
    SingleServer,
    submit_until_acknowledged,
    wait_for_change,
)
from tests.chaos.workload import Plan, Workload

MOST_UNFINISHED = 60
LONGEST_DRAIN_S = 180.0


@dataclass(slots=True)
class Chaos:
    """One run: a server, a seed, and everything that was submitted and killed."""

    scheduler: SingleServer
    seed: int
    targets: tuple[str, ...] = ("server", "server", "agent", "agent", "both")
    plans: list[Plan] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    launcher_kills_ns: list[int] = field(default_factory=list)

    def run(self, kills: int, *, undisturbed_ms: int) -> None:
        """Submit and kill; returns after the last kill, when all jobs are acknowledged."""
        workload = Workload(self.scheduler.directory, Random(self.seed))
        self.scheduler.start()
        for end in ("exit:42", "signal:10", "exit:0"):
            plan = workload.undisturbed(undisturbed_ms, end)
            self.plans.append(plan)
            self.ids[plan.token] = self.scheduler.submit(plan.body)
        self.scheduler.until(lambda: len(self.scheduler.witnesses()) == 3, "the long jobs run")
        over = threading.Event()
        submitter = threading.Thread(
            target=submit_until,
            args=(over, self.scheduler.client(), workload, self.plans, self.ids),
        )
        submitter.start()
        try:
            chance = Random(self.seed + 1)
            while self.kills.total() < kills:
                self._kill_one(chance)
        finally:
            over.set()
            submitter.join()

    def drain(self) -> None:
        """Wait until every job has ended."""
        if self.scheduler.server is not None and self.scheduler.server.poll() is not None:
            self.scheduler.spawn()
        self.scheduler.until(self.scheduler.is_up, "the server is up after the last kill")
        self.scheduler.until(self._all_ended, "every job has ended", LONGEST_DRAIN_S)

    def violations(self) -> list[str]:
        """All violations, seen from outside; the server is stopped for that."""
        with self.scheduler.client() as client:
            answers = answers_of(client)
        runs, wrong = read_notes(self.scheduler.notes)
        wrong += self.problems
        wrong += audit(
            self.plans, self.ids, answers, runs, launcher_kills_ns=self.launcher_kills_ns
        )
        self.scheduler.stop()
        wrong += audit_accounts(self.scheduler.state / "scheduler.db")
        wrong += self.scheduler.tracebacks()
        # Helpers of the launcher notice its end, and exit as well.
        self.scheduler.until(
            lambda: not self._left(), f"the end of {self._left()}, as it has stopped"
        )
        return wrong

    def _left(self) -> list[int]:
        return self.scheduler.agents() + self.scheduler.launchers()

    # --- kills

    def _kill_one(self, chance: Random) -> None:
        """Wait for a random moment, possibly while the server starts, and kill."""
        scheduler = self.scheduler
        assert scheduler.server is not None
        if chance.random() < 0.5:
            scheduler.until(scheduler.is_up, "the server is up before it is killed")
        wait_for_change(scheduler.server, chance.uniform(0.0, 0.8))
        if (code := scheduler.server.poll()) is not None:
            self.problems.append(f"the server ended by itself with {code}")
        target = chance.choice(self.targets)
        if target in {"server", "both"}:
            scheduler.kill_server()
        if (
            target in {"agent", "both"}
            and not scheduler.kill(scheduler.agents)
            and target == "agent"
        ):
            return
        if target == "launcher" and not self._kill_launcher(chance):
            return
        self.kills[target] += 1
        if scheduler.server.poll() is not None:
            scheduler.spawn()

    def _kill_launcher(self, chance: Random) -> int:
        """All processes of the launcher, or any of them."""
        found = self.scheduler.launchers()
        some = chance.choice([found, *([pid] for pid in found)])
        self.launcher_kills_ns.append(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        return self.scheduler.kill(lambda: some)

    # --- queries

    def _all_ended(self) -> bool:
        jobs = self.scheduler.jobs()
        return all(job["state"] in ENDED for job in jobs)


def submit_until(
    over: threading.Event,
    client: Client,
    workload: Workload,
    plans: list[Plan],
    ids: dict[str, str],
) -> None:
    """Submit one job after another, with a bounded number of waiting ones."""
    with client:
        while not over.is_set():
            plan = workload.draw()
            plans.append(plan)
            job_id = submit_until_acknowledged(client, plan.body)
            ids[plan.token] = job_id
            workload.acknowledged.append(job_id)
            if plan.to_cancel:
                cancel_until_acknowledged(client, job_id)
            while not over.is_set() and unfinished(client) >= MOST_UNFINISHED:
                over.wait(TRY_AGAIN_S)


def answers_of(client: Client) -> Answers:
    """All jobs and attempts, as a server reports them."""
    answers = Answers()
    for job in client.list():
        answers.jobs[job["id"]] = job
    for job_id in answers.jobs:
        for attempt in client.attempts(job_id)["attempts"]:
            answers.attempts[job_id, attempt["task"], attempt["attempt"]] = attempt
    return answers


def unfinished(client: Client) -> int:
    """The number of jobs that have not ended; a large number if no server answers."""
    with contextlib.suppress(*AWAY):
        status = client.call("GET", f"{API}/cluster/status")
        return int(status["pending_jobs"] + status["running_jobs"] + status["scheduled_jobs"])
    client.close()
    return MOST_UNFINISHED


def cancel_until_acknowledged(client: Client, job_id: str) -> None:
    """Repeat the cancel until it is acknowledged or the job has ended."""
    while True:
        try:
            client.cancel(job_id)
        except WrongState:
            return
        except AWAY:
            client.close()
            time.sleep(TRY_AGAIN_S)
        else:
            return
