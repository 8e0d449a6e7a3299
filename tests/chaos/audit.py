"""Compare what the jobs themselves recorded with what the server reports about them.

Input: the jobs' records, the plans and the server's answers. Output: violations, ideally none.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.chaos.workload import Plan

WHOLE_MILLI = 1000
NOTICED_WITHIN_NS = 10_000_000_000
"""Between fork and first record of a job, and between its end and the launcher's record of it."""
CAUSES_OF_LAUNCHER_KILLS = ("the launcher that began it had died", "its record was damaged")
ENDED = {"completed", "failed", "cancelled"}
Document = dict[str, Any]
Key = tuple[str, int | None, int, int]
"""Job, task, attempt and rank."""


@dataclass(slots=True)
class Run:
    """One process of a job, by its own record."""

    token: str
    key: Key
    devices: tuple[int, ...]
    share_milli: int
    pid: int
    begin_ns: int
    end_ns: int | None = None
    how: str = ""
    port: str = "-"

    @property
    def attempt(self) -> tuple[str, int | None, int]:
        return self.key[:3]


@dataclass(slots=True)
class Answers:
    """The server's reports: jobs by id, and attempts by job, task and number."""

    jobs: dict[str, Document] = field(default_factory=dict)
    attempts: dict[tuple[str, int | None, int], Document] = field(default_factory=dict)


def read_notes(directory: Path) -> tuple[list[Run], list[str]]:
    """All runs, and errors in the records: a doubled start, or an end without a start."""
    runs: dict[Key, Run] = {}
    violations = []
    for file in sorted(directory.iterdir()):
        for line in file.read_text(encoding="ascii").splitlines():
            run = _run(file.name, line)
            before = runs.get(run.key)
            if line.startswith("begin"):
                if before is not None:
                    violations.append(f"{run.key} ran twice: pids {before.pid} and {run.pid}")
                runs[run.key] = run
            elif before is None or before.pid != run.pid:
                violations.append(f"{run.key} ended as pid {run.pid} without having begun")
            else:
                before.end_ns, before.how = run.begin_ns, run.how
    return list(runs.values()), violations


def _run(token: str, line: str) -> Run:
    _, job, task, attempt, rank, devices, share, pid, at_ns, how, port = line.split()
    return Run(
        token=token,
        key=(job, None if task == "-" else int(task), int(attempt), int(rank)),
        devices=() if devices == "-" else tuple(map(int, devices.split(","))),
        share_milli=round(float(share) * WHOLE_MILLI),
        pid=int(pid),
        begin_ns=int(at_ns),
        how=how,
        port=port,
    )


def audit(
    plans: Iterable[Plan],
    ids: dict[str, str],
    answers: Answers,
    runs: list[Run],
    *,
    launcher_kills_ns: Sequence[int] = (),
) -> list[str]:
    """Every violation. A result may be unknown only if nothing ran, or a launcher was killed.

    The kills are times of the boot-time clock. The job must have run then, and name the cause.
    """
    plans = list(plans)
    return [
        *_lost_or_doubled(plans, ids, answers),
        *_not_ended(answers),
        *_unknown_attempts(ids, answers, runs),
        *_wrong_ends(answers, runs, launcher_kills_ns),
        *_unnamed_causes(answers),
        *_wrong_devices(answers, runs),
        *_over_capacity(answers, runs),
        *_overlaps(runs),
        *_incomplete_gangs(plans, ids, answers, runs),
        *_wrong_outcomes(plans, ids, answers, bool(launcher_kills_ns)),
        *_disturbed(plans, ids, answers, runs),
        *_too_early(plans, ids, runs),
        *_invalid_times(answers),
    ]


def _lost_or_doubled(plans: list[Plan], ids: dict[str, str], answers: Answers) -> Iterator[str]:
    by_name = Counter(job["name"] for job in answers.jobs.values())
    for plan in plans:
        job_id = ids.get(plan.token)
        if job_id is not None and job_id not in answers.jobs:
            yield f"{plan.token}: acknowledged as {job_id}, and lost"
        elif job_id is not None and answers.jobs[job_id]["name"] != plan.token:
            yield f"{plan.token}: {job_id} is another job, {answers.jobs[job_id]['name']}"
        if by_name[plan.token] > 1:
            yield f"{plan.token}: submitted once, and there {by_name[plan.token]} times"


def _not_ended(answers: Answers) -> Iterator[str]:
    for job in answers.jobs.values():
        if job["state"] not in ENDED:
            yield f"{job['id']} ({job['name']}) has not ended: {job['state']}, {job['reason']}"


def _unknown_attempts(ids: dict[str, str], answers: Answers, runs: list[Run]) -> Iterator[str]:
    for run in runs:
        if ids.get(run.token, run.key[0]) != run.key[0]:
            yield f"{run.key} ran as {run.token}, which is {ids[run.token]}"
        if run.attempt not in answers.attempts:
            yield f"{run.key} ran, and the server knows no such attempt"


def _said(attempt: Document) -> str:
    """The reported end of an attempt, in the terms of the job's record."""
    if attempt["signal"] is not None:
        return f"signal:{attempt['signal']}"
    return "unknown" if attempt["exit_code"] is None else f"exit:{attempt['exit_code']}"


def _by_attempt(runs: list[Run]) -> dict[tuple[str, int | None, int], list[Run]]:
    found: dict[tuple[str, int | None, int], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.attempt].append(run)
    return found


def _wrong_ends(answers: Answers, runs: list[Run], kills_ns: Sequence[int]) -> Iterator[str]:
    """The exit code is that of the run; for a gang, that of the member that failed by itself."""
    ran = _by_attempt(runs)
    for key, attempt in answers.attempts.items():
        said = _said(attempt)
        if attempt["exit_code"] is not None and attempt["signal"] is not None:
            yield f"{attempt['id']}: both an exit code and a signal"
        if key not in ran:
            # A stopped process may have had no time to write a record.
            if said != "unknown" and attempt["state"] not in {"cancelled", "preempted"}:
                yield f"{attempt['id']} ({attempt['state']}): {said}, and it never ran"
            continue
        if any(run.end_ns is None for run in ran[key]):
            yield f"{attempt['id']}: a process of it did not reach its end"
            continue
        hows = {run.how for run in ran[key]}
        failed = hows - {"exit:0"} or hows
        was_stopped = attempt["state"] in {"cancelled", "preempted"}
        if not was_stopped:
            # Members stopped because another one failed do not decide the result of the gang.
            failed = (failed - {"signal:15"}) or failed
        if said == "unknown" and _is_explained(attempt, ran[key], kills_ns):
            continue
        all_ran = len(ran[key]) == len(attempt["allocation"])
        is_told = was_stopped or attempt["detail"].startswith("member ")
        if said == "unknown" and not all_ran and is_told:
            # Such a gang has the result of the member that never started.
            continue
        if said not in failed:
            told = f"{attempt['state']} {attempt['detail']!r}, {len(ran[key])} ran"
            yield f"{attempt['id']}: {said}, but it was {' and '.join(sorted(failed))} ({told})"


def _is_explained(attempt: Document, runs: list[Run], kills_ns: Sequence[int]) -> bool:
    """A launcher was killed between the start of the job and the moment its end was seen."""
    begin_ns = min(run.begin_ns for run in runs) - NOTICED_WITHIN_NS
    end_ns = max(run.end_ns or run.begin_ns for run in runs) + NOTICED_WITHIN_NS
    is_named = any(cause in attempt["detail"] for cause in CAUSES_OF_LAUNCHER_KILLS)
    return is_named and any(begin_ns <= at_ns <= end_ns for at_ns in kills_ns)


def _unnamed_causes(answers: Answers) -> Iterator[str]:
    """An unknown end of a job that was not stopped says why it is unknown."""
    for attempt in answers.attempts.values():
        was_stopped = attempt["state"] in {"cancelled", "preempted"}
        if _said(attempt) == "unknown" and not was_stopped and not attempt["detail"]:
            yield f"{attempt['id']}: its end is unknown, and no cause is named"


def _wrong_devices(answers: Answers, runs: list[Run]) -> Iterator[str]:
    """The devices that a process was given are those that the server allocated."""
    for run in runs:
        attempt = answers.attempts.get(run.attempt)
        for place in () if attempt is None else attempt["allocation"]:
            if place["member"] != run.key[3]:
                continue
            given = sorted((gpu["index"], gpu["share"]) for gpu in place["gpus"])
            share = sum(share for _, share in given)
            if tuple(index for index, _ in given) != run.devices:
                yield f"{run.key} saw devices {run.devices}, and was given {given}"
            elif round(share * WHOLE_MILLI) != run.share_milli:
                yield f"{run.key} saw a share of {run.share_milli}, and was given {given}"


def _node(answers: Answers, run: Run) -> str:
    """The node on which the server reports a process."""
    attempt = answers.attempts.get(run.attempt, {"allocation": ()})
    return next((p["node"] for p in attempt["allocation"] if p["member"] == run.key[3]), "")


def _over_capacity(answers: Answers, runs: list[Run]) -> Iterator[str]:
    """Sweep over time: no device is ever used beyond its capacity."""
    changes: dict[tuple[str, int], list[tuple[int, int, Key]]] = defaultdict(list)
    for run in runs:
        if run.end_ns is None:
            continue
        for index in run.devices:
            device = (_node(answers, run), index)
            share = run.share_milli // len(run.devices)
            changes[device].append((run.begin_ns, share, run.key))
            changes[device].append((run.end_ns, -share, run.key))
    for (node, index), moments in sorted(changes.items()):
        used = 0
        held: set[Key] = set()
        for _, share, key in sorted(moments):
            used += share
            held = held | {key} if share > 0 else held - {key}
            if used > WHOLE_MILLI:
                who = sorted(held, key=str)
                yield f"GPU {index} of {node} was used to {used / WHOLE_MILLI:.0%} by {who}"


def _overlaps(runs: list[Run]) -> Iterator[str]:
    """An attempt starts only after all of the previous one has ended."""
    spans: dict[tuple[str, int | None], dict[int, list[int]]] = defaultdict(dict)
    for run in runs:
        span = spans[run.key[:2]].setdefault(run.key[2], [run.begin_ns, run.begin_ns])
        span[0] = min(span[0], run.begin_ns)
        span[1] = max(span[1], run.end_ns or run.begin_ns)
    for task, by_attempt in spans.items():
        ordered = [by_attempt[number] for number in sorted(by_attempt)]
        for before, after in pairwise(ordered):
            if after[0] < before[1]:
                yield f"attempts of {task} overlap"


def _incomplete_gangs(
    plans: list[Plan], ids: dict[str, str], answers: Answers, runs: list[Run]
) -> Iterator[str]:
    """All ranks of an attempt ran, or one of them failed, or it was stopped before."""
    ran = _by_attempt(runs)
    ranks = {ids[plan.token]: plan.ranks for plan in plans if plan.token in ids}
    for key, attempt in answers.attempts.items():
        wanted = set(range(ranks.get(key[0], 1)))
        found = {run.key[3] for run in ran.get(key, ())}
        if attempt["state"] == "completed" and found != wanted:
            yield f"{attempt['id']}: completed, but of ranks {wanted} only {found} ran"
        if len(ports := {run.port for run in ran.get(key, ())}) > 1:
            yield f"{attempt['id']}: its ranks were to meet at different ports: {sorted(ports)}"
        if found - wanted:
            yield f"{attempt['id']}: ranks {found} ran, of {wanted}"


def _wrong_outcomes(
    plans: list[Plan], ids: dict[str, str], answers: Answers, launcher_killed: bool
) -> Iterator[str]:
    """Jobs end as designed, after the expected number of attempts."""
    last = _last_attempts(answers)
    for plan in plans:
        job = answers.jobs.get(ids.get(plan.token, ""))
        if job is None or job["state"] not in ENDED:
            continue
        ends = last[job["id"]]
        if plan.to_cancel:
            if job["state"] != "cancelled":
                yield f"{job['id']} ({plan.token}) was cancelled and is {job['state']}"
        elif not ends:
            if not plan.needs:
                yield f"{job['id']} ({plan.token}) is {job['state']} and had no attempt"
        elif len(ends) != plan.tasks:
            yield f"{job['id']} ({plan.token}) has {plan.tasks} tasks, and {len(ends)} were tried"
        elif not launcher_killed:
            yield from _wrong_last(plan, job, ends)


def _last_attempts(answers: Answers) -> dict[str, list[Document]]:
    """The last attempt of each task, by job."""
    by_task: dict[tuple[str, int | None], Document] = {}
    for (job_id, task, number), attempt in answers.attempts.items():
        before = by_task.get((job_id, task))
        if before is None or before["attempt"] < number:
            by_task[job_id, task] = attempt
    found: dict[str, list[Document]] = defaultdict(list)
    for (job_id, _), attempt in by_task.items():
        found[job_id].append(attempt)
    return found


def _wrong_last(plan: Plan, job: Document, ends: list[Document]) -> Iterator[str]:
    for end in ends:
        if _said(end) not in plan.ends:
            yield f"{end['id']} ({plan.token}): {_said(end)}, expected one of {plan.ends}"
        good = _said(end) == "exit:0"
        if (end["state"] == "completed") != good:
            yield f"{end['id']} ({plan.token}): {end['state']} with {_said(end)}"
    if plan.tasks == 1 and (job["exit_code"], job["signal"]) != (
        ends[0]["exit_code"],
        ends[0]["signal"],
    ):
        yield f"{job['id']} ({plan.token}): differs from its last attempt"
    well = all(end["state"] == "completed" for end in ends)
    if (job["state"] == "completed") != well:
        yield f"{job['id']} ({plan.token}) is {job['state']}"


def _disturbed(
    plans: list[Plan], ids: dict[str, str], answers: Answers, runs: list[Run]
) -> Iterator[str]:
    """Long jobs ran once, for their full time, and ended by themselves."""
    for plan in plans:
        if not plan.undisturbed_ms:
            continue
        own = [run for run in runs if run.token == plan.token]
        attempts = [key for key in answers.attempts if key[0] == ids.get(plan.token)]
        if len(own) != 1 or len(attempts) != 1:
            yield f"{plan.token}: {len(own)} runs and {len(attempts)} attempts, one was wanted"
        elif own[0].end_ns is None or own[0].how != plan.ends[0]:
            yield f"{plan.token}: ended by {own[0].how or 'force'}"
        elif own[0].end_ns - own[0].begin_ns < plan.undisturbed_ms * 1_000_000:
            yield f"{plan.token}: ran for less than {plan.undisturbed_ms} ms"


def _too_early(plans: list[Plan], ids: dict[str, str], runs: list[Run]) -> Iterator[str]:
    """A dependent job starts after the end of its dependency."""
    spans: dict[str, tuple[int, int]] = {}
    for run in runs:
        begin_ns, end_ns = spans.get(run.key[0], (run.begin_ns, run.begin_ns))
        spans[run.key[0]] = min(begin_ns, run.begin_ns), max(end_ns, run.end_ns or run.begin_ns)
    for plan in plans:
        own, other = spans.get(ids.get(plan.token, "")), spans.get(plan.needs)
        if plan.needs and own is not None and other is not None and own[0] < other[1]:
            yield f"{plan.token} began before {plan.needs} had ended"


def _invalid_times(answers: Answers) -> Iterator[str]:
    for attempt in answers.attempts.values():
        if attempt["ended_at"] and attempt["ended_at"] < attempt["started_at"]:
            yield f"{attempt['id']}: ended before it started"
    for job in answers.jobs.values():
        times = [job[name] for name in ("submitted_at", "started_at", "ended_at") if job[name]]
        if times != sorted(times):
            yield f"{job['id']}: its times go backwards: {times}"


# --- database records


def audit_accounts(database: Path) -> list[str]:
    """Every attempt is charged once and recorded once in the history."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return [*_wrong_charges(connection), *_wrong_history(connection)]


def _wrong_charges(connection: sqlite3.Connection) -> Iterator[str]:
    used = 0
    ends: Counter[str] = Counter()
    for state, start_ms, end_ms, placements in connection.execute(
        "SELECT state, start_ms, end_ms, placements FROM attempts"
    ):
        shares = [
            gpu["share_milli"] for place in json.loads(placements) for gpu in place["devices"]
        ]
        used += sum(shares) * (end_ms - start_ms)
        ends[state] += 1
    charged = 0
    for (totals,) in connection.execute(
        "SELECT totals FROM usage WHERE period_ms IS NULL AND user IS NULL"
    ):
        charged += json.loads(totals)[0]
    if charged != used:
        yield f"attempts used {used} milli-GPU x ms, and {charged} were charged"
    (held,) = connection.execute("SELECT count(*) FROM allocations").fetchone()
    if held:
        yield f"{held} allocations are still held"


def _wrong_history(connection: sqlite3.Connection) -> Iterator[str]:
    """Submitted once; scheduled once for each attempt; sequence numbers without a gap."""
    numbers = [number for (number,) in connection.execute("SELECT sequence FROM events")]
    if sorted(numbers) != list(range(1, len(numbers) + 1)):
        yield "the numbers of events have gaps or repeat"
    told = Counter(connection.execute("SELECT kind, job_id, task FROM events"))
    for (job_id,) in connection.execute("SELECT id FROM jobs"):
        if told["submitted", job_id, None] != 1:
            yield f"{job_id}: submitted {told['submitted', job_id, None]} times"
    for job_id, task, attempts in connection.execute(
        "SELECT job_id, task, count(*) FROM attempts GROUP BY job_id, task"
    ):
        starts = told["scheduled", job_id, task]
        if starts != attempts:
            yield f"{job_id} {task}: {attempts} attempts, and scheduled {starts} times"
