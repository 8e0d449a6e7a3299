"""What goes into the core: commands of people, and facts from nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_scheduler.model.identity import Authority, JoinToken, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import HookFailure, Launch
from gpu_scheduler.model.measurements import DeviceProcess
from gpu_scheduler.model.node import Adapter, Device, Node
from gpu_scheduler.model.plan import ReservationSpec
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.rows import EnvironmentRow, EventRow

# --- What people decide about nodes, for the core.


@dataclass(frozen=True, slots=True)
class Cordon:
    """Give a node no new work; what runs there goes on. `by` is who asks for it."""

    node_id: str
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a node become empty: no new work, and what still runs after `within_ms` is stopped.

    That waits again for a place elsewhere. Without `within_ms` it may end in its own time.
    """

    node_id: str
    by: str = ""
    reason: str = ""
    within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Uncordon:
    """Give a node work again that was cordoned or drained."""

    node_id: str


@dataclass(frozen=True, slots=True)
class LabelNode:
    """Set labels of a node, whatever its agent says; None takes one away."""

    node_id: str
    labels: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Forget a node; refused while its agent is there or something may run on it."""

    node_id: str


@dataclass(frozen=True, slots=True)
class ConfirmDead:
    """Somebody knows that a silent node is dead: what it ran may run elsewhere.

    With `silent_ms` they know it of the silence that began then, and of no later one.
    """

    node_id: str
    by: str
    silent_ms: int = 0


NodeCommand = Cordon | Drain | Uncordon | LabelNode | RemoveNode


# --- What goes into the core: commands of people, and facts from nodes.

# --- commands


@dataclass(frozen=True, slots=True)
class Submit:
    """Let a job wait for its turn.

    The job's number and submission time are set by the core, and its id too if that is empty.
    How it is run, and what was captured for that, is written and not looked at.
    """

    job: Job
    launch: Launch | None = None
    environment: EnvironmentRow | None = None

    @property
    def job_count(self) -> int:
        """How many jobs these are; see `SubmitSeries`."""
        return 1


@dataclass(frozen=True, slots=True)
class SubmitSeries:
    """Jobs that are alike but for their names and commands, which come instead of the job's own.

    The command of each is what its launch runs, too.
    """

    job: Job
    launch: Launch
    environment: EnvironmentRow | None
    names: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]

    @property
    def job_count(self) -> int:
        """How many jobs these are."""
        return len(self.names)

    def each(self) -> Iterator[Submit]:
        """The same as single submissions."""
        environment = self.environment
        for name, command in zip(self.names, self.commands, strict=True):
            job = replace(self.job, name=name, command=command)
            yield Submit(job, replace(self.launch, argv=command), environment)
            environment = None


@dataclass(frozen=True, slots=True)
class SubmitAll:
    """Let many jobs wait for their turns: all of them, or none.

    A `dry_run` is checked just like that, and nothing is changed.
    """

    submissions: tuple[Submit | SubmitSeries, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a job, or some tasks of an array; an empty set of tasks ends nothing."""

    job_id: str
    tasks: IntervalSet | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep a waiting job, or the waiting tasks of an array, from starting."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """Let a held job start again."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Reprioritise:
    """Give a waiting job, or the waiting tasks of an array, another priority."""

    job_id: str
    priority: int


@dataclass(frozen=True, slots=True)
class Update:
    """Change a waiting job: these fields of `Job` get these values, all of them or none."""

    job_id: str
    changes: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """Let a failed or cancelled job, or such tasks of an array, wait again.

    Of an array those that failed, and with `cancelled` those that were cancelled, too; if it has
    ended and none failed, these. A job that has ended can be retried as long as its end is
    remembered.
    """

    job_id: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class SetNode:
    """A node appeared or changed."""

    node: Node


@dataclass(frozen=True, slots=True)
class SetTenant:
    """A tenant appeared or changed."""

    tenant: Tenant


@dataclass(frozen=True, slots=True)
class RemoveTenant:
    """A tenant is gone; refused while it has jobs."""

    tenant_id: str


@dataclass(frozen=True, slots=True)
class SetPools:
    """The parts of all GPUs that pools may have changed: all of these, or none."""

    pools: tuple[PoolQuota, ...]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Keep devices for a tenant or user for a while; `made_by` is who asks for it."""

    wish: ReservationSpec
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class CancelReservation:
    """Give back what was reserved, before or during its time."""

    reservation_id: str


@dataclass(frozen=True, slots=True)
class CreateService:
    """Keep so many replicas running; id, number and times are set by the core."""

    service: Service


@dataclass(frozen=True, slots=True)
class UpdateService:
    """Replace the replicas of a service by others, one after the other.

    Of `wanted` counts all that its owner says; its identity stays as it is.
    """

    service_id: str
    wanted: Service


@dataclass(frozen=True, slots=True)
class ScaleService:
    """Have more or fewer replicas."""

    service_id: str
    replicas: int


@dataclass(frozen=True, slots=True)
class DeleteService:
    """Stop all replicas; the service goes with the last of them."""

    service_id: str


@dataclass(frozen=True, slots=True)
class PauseDevice:
    """Give out a device no more; what runs there goes on."""

    node_id: str
    index: int


@dataclass(frozen=True, slots=True)
class ResumeDevice:
    """Give out a device again that was paused or set aside."""

    node_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write down what happened beside the core; each event gets the time of now."""

    events: tuple[EventRow, ...] = ()


@dataclass(frozen=True, slots=True)
class MakeToken:
    """Let whoever shows a new secret call; only its hash comes here."""

    token: Token


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """Believe a token no more."""

    token_id: str


@dataclass(frozen=True, slots=True)
class UseToken:
    """A token was used; said now and then, not each time."""

    token_id: str


@dataclass(frozen=True, slots=True)
class KeepAuthority:
    """Vouch for nodes with this from now on; said once, by the first server."""

    authority: Authority


@dataclass(frozen=True, slots=True)
class MakeJoinToken:
    """Let nodes join that show a new secret; only its hash comes here."""

    token: JoinToken


@dataclass(frozen=True, slots=True)
class RevokeJoinToken:
    """Let nobody join with a token any more; nodes that did keep their keys."""

    token_id: str


@dataclass(frozen=True, slots=True)
class JoinNode:
    """A node has shown a token and a key of its own, of which this is the fingerprint."""

    node_id: str
    token_id: str
    fingerprint: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class RenewNode:
    """A node has shown its key, `former`, and another one that it wants to be known by."""

    node_id: str
    former: str
    fingerprint: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class RevokeNode:
    """Believe the key of a node no more, and end its session at once."""

    node_id: str


NodeKeyMessage = KeepAuthority | MakeJoinToken | RevokeJoinToken | JoinNode | RenewNode | RevokeNode


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a waiting job should start, and how that was found."""

    job_id: str
    start_ms: int
    basis: str


@dataclass(frozen=True, slots=True)
class NoteEstimates:
    """Remember what waiting jobs were first told, so that it can be judged when they start."""

    estimates: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class RunCycle:
    """Handle what is due and decide, if anything has changed."""


# --- facts


@dataclass(frozen=True, slots=True)
class Prepared:
    """Every member of a gang over several nodes is prepared, and none of them runs yet.

    `port` is free on the node of the first member, `hosts` are their nodes' addresses by rank.
    """

    allocation_id: str
    port: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """Every member of an allocation runs."""

    allocation_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt ended. `progress_ms` is what of its run time the next attempt need not repeat.

    Without exit code and signal, how it ended is not known, and `detail` says why. If it never
    `ran`, it was refused and will be each time, unless one of the `hooks` that failed is to blame.
    If it is `lost`, its order never arrived, so it can be ordered again as if nothing had been.
    It was over at `at_ms`, if that was before it is told, and had run for at least `run_ms`.
    """

    allocation_id: str
    exit_code: int | None = 0
    signal: int | None = None
    progress_ms: int = 0
    stopped_by: str = ""
    detail: str = ""
    ran: bool = True
    lost: bool = False
    hooks: tuple[HookFailure, ...] = ()
    at_ms: int | None = None
    run_ms: int = 0


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A job saved its work, so long ago by the clock of its node."""

    allocation_id: str
    ago_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaChecked:
    """A replica of a service can be used, or cannot; with its port if the node has chosen one."""

    allocation_id: str
    is_ready: bool
    port: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported:
    """An agent says what its node has. What people and readings decided about it stays.

    A node that is `unfit`, for this reason, gets no new work until its agent says otherwise.
    """

    node_id: str
    cpu_milli: int
    memory_mb: int
    devices: tuple[Device, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    rack: str = ""
    address: str = ""
    version: str = ""
    numa_nodes: int = 0
    direct_storage: bool = False
    adapters: tuple[Adapter, ...] = ()
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """Nothing is heard of a node for `for_ms`: it gets no new work. What it runs may well go on."""

    node_id: str
    for_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """What was measured on one device.

    `load_percent` is how busy it is at this moment, `utilisation_percent` for the last while; None
    if it does not say. `processes` are those of our jobs, by allocation, and those of others that
    matter; `unexplained_mb` is memory that was not given back and that nobody holds. `trusted` is
    the mark of the last order to trust the device that its node has carried out.
    """

    index: int
    temperature_c: int = 0
    healthy: bool = True
    why: str = ""
    xid: int = 0
    load_percent: int | None = None
    utilisation_percent: int | None = None
    memory_used_mb: int = 0
    power_mw: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    unexplained_mb: int = 0
    trusted: int = 0


@dataclass(frozen=True, slots=True)
class DevicesSampled:
    """Readings of the devices of a node; if they are not `fresh`, they are the last ones again."""

    node_id: str
    readings: tuple[DeviceSample, ...]
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node has been silent for so long that it is taken for lost. What it runs may go on."""

    node_id: str


@dataclass(frozen=True, slots=True)
class LeasesExpired:
    """For so long no lease was renewed on a node that is silent."""

    node_id: str
    waited_ms: int


@dataclass(frozen=True, slots=True)
class NodeFenced:
    """A node is known to be dead: what it ran has ended.

    What ran only there may run elsewhere at once; a gang only when `Ended` says that its members
    on other nodes have stopped too.
    """

    node_id: str


ServiceCommand = CreateService | UpdateService | ScaleService | DeleteService
Command = (
    Submit
    | SubmitSeries
    | SubmitAll
    | Cancel
    | Hold
    | Release
    | Reprioritise
    | Update
    | Retry
    | SetNode
    | SetTenant
    | RemoveTenant
    | SetPools
    | Reserve
    | CancelReservation
    | NoteEstimates
    | ServiceCommand
    | PauseDevice
    | ResumeDevice
    | NodeCommand
    | ConfirmDead
    | Record
    | MakeToken
    | RevokeToken
    | UseToken
    | KeepAuthority
    | MakeJoinToken
    | RevokeJoinToken
    | JoinNode
    | RenewNode
    | RevokeNode
    | RunCycle
)
Fact = (
    Prepared
    | Started
    | Ended
    | Checkpointed
    | ReplicaChecked
    | NodeReported
    | NodeSilent
    | NodeLost
    | LeasesExpired
    | DevicesSampled
    | NodeFenced
)
