"""Jobs in text: the job ids that users write, and the columns and short texts that show a job.

A job is a dictionary as the server sends it.
"""

from __future__ import annotations

import re

from gpu_scheduler.cli.connection import mine
from gpu_scheduler.cli.text.tables import counted, in_local_time, print_table
from gpu_scheduler.client.requests import ACTIVE
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from gpu_scheduler.client.client import Client

HEADINGS = ("JOBID", "NAME", "USER", "ST", "TIME", "LIMIT", "GPUS", "NODELIST(REASON)")
RIGHT = ("TIME", "LIMIT", "GPUS", "END")
NARROW = ("NAME", "USER")
SPARE = ("LIMIT", "END", "USER", "TIME")
"""Columns that a narrow terminal leaves out, in this order."""
SPARE_OF_ALL = ("LIMIT", "TIME", "END", "USER")
"""The same for tables with jobs of several users."""
STATES = {
    "pending": "PD",
    "scheduled": "SC",
    "running": "R",
    "completed": "CD",
    "failed": "F",
    "cancelled": "CA",
    "preempted": "PR",
}
WH_PER_KWH = 1000
NOTES = (
    *("on a lost node since ", "warned: ", "being cancelled", "being stopped: "),
    *("pulling its container image on ", "creating its container on "),
)
"""Prefixes of the server's reasons for jobs that have their GPUs, shown beside their place."""


def row(job: Mapping[str, Any], now: float) -> list[str]:
    """The columns of `tgpu list`."""
    return [
        id_text(job),
        short_name(job),
        str(job.get("user", "")),
        state_code(job),
        elapsed_text(job, now),
        limit_text(job),
        gpus_text(job),
        "; ".join(filter(None, (place_text(job), progress_text(job)))),
    ]


def with_end(cells: Sequence[str], end: str) -> list[str]:
    """The columns of a job, or the headings, with the expected end after the limit."""
    place = HEADINGS.index("LIMIT") + 1
    return [*cells[:place], end, *cells[place:]]


def id_text(job: Mapping[str, Any]) -> str:
    """The job number; for an array with its tasks."""
    number = str(job.get("id", "?")).removeprefix("job-")
    array = job.get("array")
    return f"{number}_[{array['tasks']}]" if array and array.get("tasks") else number


def short_name(job: Mapping[str, Any]) -> str:
    """The name; a dash for a job of another user."""
    return "-" if job.get("redacted") else full_name(job)


def full_name(job: Mapping[str, Any]) -> str:
    """The name, or the name of the program for a job without one."""
    if job.get("name") or not job.get("command"):
        return str(job.get("name") or "")
    from gpu_scheduler.cli.submit.body import default_name

    return default_name([str(word) for word in job["command"]])


def state_code(job: Mapping[str, Any]) -> str:
    """PD, H (held), SC, R, CD, F, TO, CA or PR."""
    if job.get("state") == "pending" and job.get("hold"):
        return "H"
    if job.get("state") == "failed" and "time limit" in str(job.get("reason") or ""):
        return "TO"
    return STATES.get(str(job.get("state")), str(job.get("state")))


def seconds_at(text: str | None) -> float | None:
    """A time from the server in seconds since 1970."""
    if not text:
        return None
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def elapsed_s(job: Mapping[str, Any], now: float) -> float:
    """How long the job has run, or ran; 0 for one that waits for its next attempt."""
    start = seconds_at(job.get("started_at"))
    if start is None or job.get("state") in ("pending", "preempted", "PD", "PR"):
        return 0.0
    end = seconds_at(job.get("ended_at"))
    return max(0.0, (now if end is None else end) - start)


def elapsed_text(job: Mapping[str, Any], now: float) -> str:
    """The elapsed time as `1:02:03`."""
    from gpu_scheduler.cli.text.values import clock_text

    return clock_text(elapsed_s(job, now))


def limit_text(job: Mapping[str, Any]) -> str:
    """The time limit as `1:02:03`, its own or the default; a dash if it is not shown to you."""
    from gpu_scheduler.cli.text.values import clock_text

    minutes = job.get("max_runtime_minutes") or job.get("time_limit_minutes") or 0
    return clock_text(minutes * 60) if minutes else "-"


def end_text(job: Mapping[str, Any], now: float) -> str:
    """The expected end, if known: a time today, else with the date."""
    at = seconds_at(job.get("expected_end"))
    if at is None:
        return "-"
    return "soon" if at <= now + 1 else _moment_text(at, now)


def _moment_text(at: float, now: float) -> str:
    from datetime import datetime

    moment = datetime.fromtimestamp(at).astimezone()
    is_today = moment.date() == datetime.fromtimestamp(now).astimezone().date()
    return f"{moment:%H:%M}" if is_today else f"{moment:%Y-%m-%d %H:%M}"


NARROW_RANGE_S = 600
"""A narrower range of expected starts is shown as a point."""


def start_range(answer: Mapping[str, Any]) -> tuple[float, float] | None:
    """The earliest and latest of four in five starts; None if that is a point, or unknown."""
    earliest = seconds_at(answer.get("expected_start_earliest"))
    latest = seconds_at(answer.get("expected_start_latest"))
    if earliest is None or latest is None or latest - earliest < NARROW_RANGE_S:
        return None
    return earliest, latest


def start_text(job: Mapping[str, Any], now: float) -> str:
    """The expected start and the range around it: `14:20 (13:10 to 17:00)`."""
    text = end_text({"expected_end": job.get("expected_start")}, now)
    found = start_range(job)
    if text == "-" or found is None:
        return text
    return f"{text} ({_moment_text(found[0], now)} to {_moment_text(found[1], now)})"


def gpus_text(job: Mapping[str, Any]) -> str:
    """`2`, `0.5`, or for a gang `4x2`; the total where members differ.

    An elastic gang that runs, or ran, with fewer members than it may have shows their GPUs.
    """
    total = job.get("gpu_count") or 0
    members = job.get("members")
    count = len(members) if isinstance(members, list) else members
    if not isinstance(count, int) or count < 2:
        return f"{total:g}"
    if is_shrunk(job):
        count = job["placed_members"]
        gpus = (gpu for part in job["allocation"] for gpu in part.get("gpus", []))
        total = round(sum(gpu["share"] for gpu in gpus), 2)
    each = round(total / count, 2)
    return f"{count}x{each:g}" if round(each * count, 2) == total else f"{total:g}"


def is_shrunk(job: Mapping[str, Any]) -> bool:
    """Whether an elastic gang runs with fewer members than it may have."""
    placed = job.get("placed_members")
    return placed is not None and placed < job["members"]


def progress_text(job: Mapping[str, Any]) -> str:
    """`3 of 12 done` for an array with tasks that have ended."""
    states = (job.get("array") or {}).get("states") or {}
    done = [states[name] for name in ("completed", "failed", "cancelled") if states.get(name)]
    if not done:
        return ""
    from gpu_scheduler.model.intervals import IntervalSet

    return f"{sum(len(IntervalSet.parse(tasks)) for tasks in done)} of {job['array']['count']} done"


def place_text(job: Mapping[str, Any]) -> str:
    """Where the job runs, as `box[0,1]`; else the reason why not, in parentheses."""
    devices: dict[str, set[int]] = {}
    for part in job.get("allocation") or []:
        indices = devices.setdefault(str(part["node"]), set())
        indices.update(gpu["index"] for gpu in part.get("gpus", []))
    places = [
        f"{node}[{','.join(map(str, sorted(indices)))}]" if indices else node
        for node, indices in devices.items()
    ]
    reason = job.get("reason") or ""
    if places and job.get("state") in ("running", "scheduled", "completed"):
        return " ".join(filter(None, (*places, note_text(reason))))
    if places and not reason:
        return " ".join(places)
    return f"({in_local_time(reason)})" if reason else ""


def note_text(reason: str) -> str:
    """What to know of a job that has its GPUs, in parentheses; else nothing."""
    note = reason.partition(";")[0].partition(": it was told")[0]
    return f"({in_local_time(note)})" if reason.startswith(NOTES) else ""


def exit_text(job: Mapping[str, Any]) -> str:
    """`0`, `1`, `SIG9`, or a dash when it is not known."""
    if job.get("signal"):
        return f"SIG{job['signal']}"
    return "-" if job.get("exit_code") is None else str(job["exit_code"])


def energy_text(job: Mapping[str, Any]) -> str:
    """`1.25 kWh`, `3.4 Wh`, or a dash if the GPUs do not report their power."""
    energy_wh = (job.get("measured") or {}).get("energy_wh")
    if energy_wh is None:
        return "-"
    return f"{energy_wh / 1000:.2f} kWh" if energy_wh >= WH_PER_KWH else f"{energy_wh:.2g} Wh"


def local_time(text: str | None) -> str:
    """A time from the server in the local time zone, to the second."""
    at = seconds_at(text)
    if at is None:
        return "-"
    from datetime import datetime

    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def minute_text(text: str | None) -> str:
    """A time from the server as it was sent (UTC), to the minute."""
    return "-" if not text else text[:16].replace("T", " ")


def _after(key: str) -> Callable[[Mapping[str, Any], float], str]:
    """A column with a time from the server."""
    return lambda job, _: local_time(job.get(key))


def _plain(key: str) -> Callable[[Mapping[str, Any], float], str]:
    """A column with a field as it is."""
    return lambda job, _: "" if job.get(key) is None else f"{job[key]}"


COLUMNS: dict[str, Callable[[Mapping[str, Any], float], str]] = {
    "JOBID": lambda job, _: id_text(job),
    "NAME": lambda job, _: short_name(job),
    "USER": _plain("user"),
    "ST": lambda job, _: state_code(job),
    "STATE": _plain("state"),
    "TIME": elapsed_text,
    "LIMIT": lambda job, _: limit_text(job),
    "GPUS": lambda job, _: gpus_text(job),
    "CPUS": _plain("cpu_cores"),
    "MEMORY_MB": _plain("memory_mb"),
    "TENANT": _plain("tenant_id"),
    "PRIORITY": lambda job, _: priority_text(job),
    "POOL": _plain("pool"),
    "SUBMITTED": _after("submitted_at"),
    "STARTED": _after("started_at"),
    "ENDED": _after("ended_at"),
    "START": start_text,
    "END": end_text,
    "EXIT": lambda job, _: exit_text(job),
    "ATTEMPT": _plain("attempt"),
    "SWEEP": _plain("sweep"),
    "ENERGY": lambda job, _: energy_text(job),
    "NODES": lambda job, _: " ".join(
        dict.fromkeys(str(part["node"]) for part in job.get("allocation") or [])
    ),
    "COMMAND": lambda job, _: " ".join(map(str, job.get("command") or [])),
    "REASON": lambda job, _: in_local_time(str(job.get("reason") or "")),
    "NODELIST(REASON)": lambda job, _: "; ".join(
        filter(None, (place_text(job), progress_text(job)))
    ),
}
"""The columns of `--columns`."""
COLUMN_ALIASES = {
    "NODELIST": "NODELIST(REASON)",
    "JOB": "JOBID",
    "ID": "JOBID",
    "JOBNAME": "NAME",
    "ELAPSED": "TIME",
    "TIMELIMIT": "LIMIT",
    "ALLOCCPUS": "CPUS",
    "ACCOUNT": "TENANT",
    "SUBMIT": "SUBMITTED",
    "EXITCODE": "EXIT",
    "CONSUMEDENERGY": "ENERGY",
}
"""Other names of columns, among them those of `sacct`; the heading is the usual one."""
COLUMNS_HELP = "columns, such as jobid,name,st,priority,submitted,reason"
RIGHT_COLUMNS = (*RIGHT, "CPUS", "MEMORY_MB", "PRIORITY", "ATTEMPT", "EXIT", "ENERGY")


def chosen_columns(text: str) -> list[str]:
    """The columns that `--columns` names."""
    chosen = []
    for word in text.split(","):
        upper = word.strip().upper()
        name = COLUMN_ALIASES.get(upper, upper)
        if name not in COLUMNS:
            from difflib import get_close_matches

            near = get_close_matches(name, COLUMNS, n=1)
            hint = f"did you mean '{near[0].lower()}'? " if near else ""
            known = ", ".join(COLUMNS).lower()
            raise InvalidRequest(f"--columns has '{word}'; {hint}expected {known}")
        chosen.append(name)
    return chosen


def user_advice(client: Client, name: str) -> str:
    """Why no job of user `name` was found: the name is unknown, with the nearest known name.

    Empty if the user has jobs here (whatever their state), or an account on this machine.
    """
    import pwd
    from difflib import get_close_matches

    try:
        pwd.getpwnam(name)
        return ""
    except (KeyError, ValueError):
        pass
    if client.page(user=name, limit=1)["jobs"]:
        return ""
    known = {job["user"] for job in client.page(state=",".join(ACTIVE), limit=1000)["jobs"]}
    near = get_close_matches(name, sorted(known.union(one.pw_name for one in pwd.getpwall())), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"user '{name}' has no jobs here and no account on this machine{hint}"


def print_columns(text: str, jobs: Iterable[Mapping[str, Any]], now: float) -> None:
    """A table of jobs with the columns that `--columns` names."""
    names = chosen_columns(text)
    rows = [[COLUMNS[name](job, now) for name in names] for job in jobs]
    print_table(names, rows, right=RIGHT_COLUMNS, narrow=NARROW)


def priority_text(job: Mapping[str, Any]) -> str:
    """The priority as users write it: a name, 0 to 10, or a larger number."""
    from gpu_scheduler.cli.submit.body import SHORT_SCALE_STEP, SHORT_SCALE_TOP
    from gpu_scheduler.model.job import MAX_PRIORITY, PRIORITY_NAMES

    value = job.get("priority")
    if value is None:
        return ""
    for name, number in PRIORITY_NAMES.items():
        if value == number:
            return name
    short, rest = divmod(value, SHORT_SCALE_STEP)
    if not rest and short <= SHORT_SCALE_TOP:
        return str(short)
    # A job of the REST API may have a number that on the command line means another one.
    return f"{value}/{MAX_PRIORITY}" if value <= SHORT_SCALE_TOP else str(value)


# Job ids as users write them: `12`, `job-12`, `1-3,7`, `12_4`, `12_[1-3]`, `last`, `last_4`, `@~1`
# (the one before the last), `all`.

MOST_JOBS = 100_000
NONE = "you have no pending or running jobs"
EXPECTED = "write 12, job-12, 1-3,7, 12_4, 12_[1-3], last, last_4, @~1 or all"
_TASKS = r"(?:_(?:(\d{1,18})|\[([\d,:-]+)\]|(\d+-\d+)))?"
_ONE = rf"(?:job-)?(\d{{1,18}}){_TASKS}"
_RANGE = r"(?:job-)?(\d{1,18})-(?:job-)?(\d{1,18})"
_BACK = rf"(?:last|@(?:~(\d{{1,9}}))?){_TASKS}"


class Reference:
    """A job, or some tasks of one."""

    __slots__ = ("job_id", "tasks")

    def __init__(self, job_id: str, tasks: str | None = None) -> None:
        self.job_id = job_id
        self.tasks = tasks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return f"Reference({str(self)!r})"

    def __str__(self) -> str:
        """As the server writes it; several tasks are in brackets."""
        if self.tasks is None:
            return self.job_id
        one = self.tasks.isdecimal()
        return f"{self.job_id}_{self.tasks}" if one else f"{self.job_id}_[{self.tasks}]"


def references(client: Client, words: Iterable[str]) -> list[Reference]:
    """The jobs that the words name, each once, in the order of the words."""
    found: dict[Reference, None] = {}
    for word in words:
        for part in _split(word):
            for reference in _read(client, part):
                found[reference] = None
    if len(found) > MOST_JOBS:
        raise InvalidRequest(f"more than {MOST_JOBS:,} jobs named; name fewer at once")
    return list(found)


def one_reference(client: Client, word: str) -> Reference:
    """The one job that the word names; several are rejected."""
    found = references(client, [word])
    if len(found) != 1:
        raise InvalidRequest(f"'{word}' names {len(found)} jobs; name one")
    return found[0]


def _split(word: str) -> list[str]:
    """Split at commas that are not in brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", word)]


def _read(client: Client, part: str) -> Iterator[Reference]:
    if match := re.fullmatch(_ONE, part, re.ASCII):
        yield Reference(f"job-{int(match[1])}", match[2] or match[3] or match[4])
    elif match := re.fullmatch(_RANGE, part, re.ASCII):
        first, last = int(match[1]), int(match[2])
        if not first <= last < first + MOST_JOBS:
            raise InvalidRequest(f"'{part}' is not a range of at most {MOST_JOBS:,} jobs")
        for number in range(first, last + 1):
            yield Reference(f"job-{number}")
    elif match := re.fullmatch(_BACK, part, re.ASCII):
        yield Reference(_recent(client, int(match[1] or 0)), match[2] or match[3] or match[4])
    elif part == "all":
        for job in client.list(state=ACTIVE, user=mine()):
            yield Reference(job["id"])
    else:
        raise InvalidRequest(f"'{part}' is not a job; {EXPECTED}")


def _recent(client: Client, back: int) -> str:
    page = client.page(user=mine(), sort="-number", limit=1, offset=back)
    if not page["jobs"]:
        total = int(page.get("total") or 0)
        raise UnknownThing(
            f"you have submitted only {counted(total, 'job')}" if total else "you have no jobs yet"
        )
    return str(page["jobs"][0]["id"])
