"""Why a job waits, can never run, or has ended.

A reason is a code with data; its sentence is made when it is shown. Only `NEVER` reasons are final.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.utc import format_utc


class ReasonCode(StrEnum):
    """Why a job waits, is rejected or ended; each code has one sentence in `SENTENCES`.

    `WINDOW` and `WINDOW_AHEAD` are advance reservations that have begun, or are about to.
    """

    RESOURCES = "resources"
    RESERVED = "reserved"
    WINDOW = "window"
    WINDOW_AHEAD = "window_ahead"
    BEHIND = "behind"
    QUOTA = "quota"
    USER_LIMIT = "user_limit"
    BUDGET = "budget"
    POOL = "pool"
    QUOTA_NODE = "quota_node"
    MOST_JOBS = "most_jobs"
    ARRAY_LIMIT = "array_limit"
    HELD = "held"
    INTERNAL_ERROR = "internal_error"
    UNEXPLAINED = "unexplained"
    BEGIN_TIME = "begin_time"
    DEPENDENCY = "dependency"
    BACKOFF = "backoff"
    CLAIMED = "claimed"
    OWN_WORK = "own_work"
    PORT_TAKEN = "port_taken"
    STOPPING = "stopping"
    ON_LOST_NODE = "on_lost_node"
    CANCELLING = "cancelling"
    BEING_STOPPED = "being_stopped"
    PULLING_IMAGE = "pulling_image"
    CREATING_CONTAINER = "creating_container"
    NO_NODES = "no_nodes"
    NODES_CLOSED = "nodes_closed"
    NO_RUNNER = "no_runner"
    NOT_EXAMINED = "not_examined"
    PREPARING = "preparing"
    DEPENDENCY_FAILED = "dependency_failed"
    NEVER_FITS = "never_fits"
    TIME_LIMIT = "time_limit"
    NODE_LOST = "node_lost"
    GPU_MEMORY = "gpu_memory"
    GPU_IDLE = "gpu_idle"
    NOT_STARTED = "not_started"
    EXIT_UNKNOWN = "exit_unknown"
    ENDED_BY = "ended_by"


NEVER = frozenset({ReasonCode.DEPENDENCY_FAILED, ReasonCode.NEVER_FITS})
"""Reasons of jobs that can never start. The codes after them say why a job ended."""


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """A code with data in a fixed order, so that equal reasons compare equal."""

    code: ReasonCode
    data: tuple[tuple[str, str | int], ...] = ()

    @property
    def is_final(self) -> bool:
        """Tell whether the job can never start; otherwise it waits."""
        return self.code in NEVER

    def get(self, name: str) -> str | int | None:
        """One value of the data, or None."""
        return dict(self.data).get(name)

    def besides(self, remark: str) -> Reason:
        """The same reason with a remark at the end of its sentence."""
        data = {**dict(self.data), "besides": remark}
        return Reason(self.code, tuple(sorted(data.items())))

    def __str__(self) -> str:
        """The sentence that users see."""
        sentence = SENTENCES[self.code].format_map(_Shown(self.data)).removesuffix("; ")
        remark = self.get("besides")
        return sentence if remark is None else f"{sentence}; {remark}"


class _Shown(dict[str, str | int]):
    """Data for a sentence; a missing value is shown as a question mark."""

    def __init__(self, data: tuple[tuple[str, str | int], ...]) -> None:
        super().__init__(data)
        if "job" in self:
            self["job"] = str(self["job"]).removeprefix("job-")
        if "victims" in self:
            self["victims"] = f"{self['victims']} job{'s' * (self['victims'] != 1)}"
        for name, value in data:
            if name.endswith("_ms") and isinstance(value, int):
                self[name] = format_utc(value)

    def __missing__(self, key: str) -> str:
        return "?"


SENTENCES = {
    ReasonCode.RESOURCES: "waiting for {needs}; {found}",
    ReasonCode.RESERVED: "starting now would push back the reservation of job {job}",
    ReasonCode.WINDOW: "{gpus} GPUs are reserved for {owner} until {until_ms} ({reservation})",
    ReasonCode.WINDOW_AHEAD: (
        "{gpus} GPUs are reserved for {owner} from {from_ms} until {until_ms} ({reservation}), "
        "and the job may still run then; a shorter --time helps"
    ),
    ReasonCode.BEHIND: "waiting behind job {job}, which is first in line",
    ReasonCode.QUOTA: (
        "quota exceeded for tenant {tenant}: {resource} requested={requested}, "
        "quota={limit}, current={held}"
    ),
    ReasonCode.USER_LIMIT: (
        "user {user} may hold {limit} {resource} and holds {held}, so {requested} more do not fit; "
        "{left} would"
    ),
    ReasonCode.BUDGET: (
        "the budget of {owner} is {limit} GPU-hours a {period}: {held} are used or set aside for "
        "what runs, so {requested} more do not fit; {left} are left, and the next {period} begins "
        "at {turns_ms}"
    ),
    ReasonCode.POOL: "the {pool} pool {found} and holds {held}, so {requested} more {remedy}",
    ReasonCode.QUOTA_NODE: (
        "{owner} {found} and holds {held}, so {requested} more wait until jobs of {node} {remedy}"
    ),
    ReasonCode.MOST_JOBS: "{limit} jobs run, which is the most that may run at once",
    ReasonCode.ARRAY_LIMIT: "{running} tasks of the array run, which is its own limit",
    ReasonCode.HELD: "held; release it to let it start",
    ReasonCode.INTERNAL_ERROR: (
        "set aside after an internal error of the scheduler: {error}; the server's log has the "
        "trace, and `tgpu release` tries the job again"
    ),
    ReasonCode.UNEXPLAINED: "unknown, after an internal error; the server's log has the trace",
    ReasonCode.BEGIN_TIME: "asked not to begin before {begin_ms}",
    ReasonCode.DEPENDENCY: "waiting for job {job} ({kind})",
    ReasonCode.BACKOFF: "waiting until {until_ms} before the next attempt",
    ReasonCode.CLAIMED: "its place is being cleared of {victims} {whose}",
    ReasonCode.OWN_WORK: "stops {jobs} of its own tenant, and starts when that has ended",
    ReasonCode.PORT_TAKEN: "its port is taken on every node that has room",
    ReasonCode.STOPPING: "its last attempt is still stopping",
    ReasonCode.ON_LOST_NODE: (
        "on a lost node since {silent_ms}; nothing is heard of {node}, where it may still run; "
        "{then}"
    ),
    ReasonCode.CANCELLING: "being cancelled: it was told to stop, and has not ended yet",
    ReasonCode.BEING_STOPPED: "being stopped: {cause}",
    ReasonCode.PULLING_IMAGE: "pulling its container image on {nodes}",
    ReasonCode.CREATING_CONTAINER: "creating its container on {nodes}",
    ReasonCode.NO_NODES: "no node is online",
    ReasonCode.NODES_CLOSED: "no node takes work: {found}",
    ReasonCode.NO_RUNNER: "no node has a {runner}; install one, or submit it without",
    ReasonCode.NOT_EXAMINED: "not looked at yet; the next cycle goes on here",
    ReasonCode.PREPARING: (
        "its {members} members are being prepared on {nodes}; they run when the last one is ready, "
        "and are given up at {until_ms} if one is not"
    ),
    ReasonCode.DEPENDENCY_FAILED: "job {job} ended as {state}, so {kind} can never be met",
    ReasonCode.NEVER_FITS: "no known node could run it even when empty: {found}",
    ReasonCode.TIME_LIMIT: "stopped at its time limit",
    ReasonCode.NODE_LOST: "its node was lost",
    ReasonCode.GPU_MEMORY: "stopped for its GPU memory: {detail}",
    ReasonCode.GPU_IDLE: "stopped for idle GPUs: {detail}",
    ReasonCode.NOT_STARTED: "could not be started: {detail}",
    ReasonCode.EXIT_UNKNOWN: "exit code unknown: {detail}",
    ReasonCode.ENDED_BY: "{detail}",
}
