"""The messages of the core: commands of users and admins, and facts from nodes.

The name of a command class is its action in the audit log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_scheduler.control.clock import Calendar
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.identity import Authority, JoinToken, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import HookFailure, Launch
from gpu_scheduler.model.measurements import DeviceProcess
from gpu_scheduler.model.node import Adapter, Device, Node
from gpu_scheduler.model.plan import ReservationSpec
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.rows import AttemptRow, EnvironmentRow, EventRow


class Command:
    """A request of a user, of an admin or of the scheduler itself; the core may reject it."""

    __slots__ = ()


class Fact:
    """A report of a node: it has happened, so the core does not reject it."""

    __slots__ = ()


# Commands about nodes.


@dataclass(frozen=True, slots=True)
class Cordon(Command):
    """Give a node no new work; its jobs keep running. `by` is the user who asks for it."""

    node_id: str
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drain(Command):
    """Empty a node: no new work; jobs that still run after `within_ms` are stopped and requeued.

    Without `within_ms` they run to their end.
    """

    node_id: str
    by: str = ""
    reason: str = ""
    within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Uncordon(Command):
    """Undo a cordon or drain."""

    node_id: str


@dataclass(frozen=True, slots=True)
class LabelNode(Command):
    """Set labels of a node, which override those of its agent; None removes a label."""

    node_id: str
    labels: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class RemoveNode(Command):
    """Remove a node; rejected while its agent is connected or a job may run on it."""

    node_id: str


@dataclass(frozen=True, slots=True)
class ConfirmDead(Command):
    """An admin confirms that a silent node is dead, so that its jobs may run elsewhere.

    With `silent_ms` this holds only if the node has been silent since then.
    """

    node_id: str
    by: str
    silent_ms: int = 0


NodeCommand = Cordon | Drain | Uncordon | LabelNode | RemoveNode


# Commands about jobs, tenants, services, reservations and credentials.


@dataclass(frozen=True, slots=True)
class Submit(Command):
    """Submit a job.

    The core sets its number and submission time, and its id if that is empty. It stores `launch`
    and `environment` without reading them.
    """

    job: Job
    launch: Launch | None = None
    environment: EnvironmentRow | None = None

    @property
    def job_count(self) -> int:
        """The number of jobs; see `SubmitSeries`."""
        return 1


@dataclass(frozen=True, slots=True)
class SubmitSeries(Command):
    """Submit jobs that differ only in name and command; `job` has everything else.

    The command of each job is also what its launch runs.
    """

    job: Job
    launch: Launch
    environment: EnvironmentRow | None
    names: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]

    @property
    def job_count(self) -> int:
        """The number of jobs."""
        return len(self.names)

    def each(self) -> Iterator[Submit]:
        """The same jobs as single submissions."""
        environment = self.environment
        for name, command in zip(self.names, self.commands, strict=True):
            job = replace(self.job, name=name, command=command)
            yield Submit(job, replace(self.launch, argv=command), environment)
            environment = None


@dataclass(frozen=True, slots=True)
class SubmitAll(Command):
    """Submit many jobs: all of them, or none. A `dry_run` only checks them."""

    submissions: tuple[Submit | SubmitSeries, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Cancel(Command):
    """Cancel a job, or some tasks of an array; an empty set of tasks cancels nothing."""

    job_id: str
    tasks: IntervalSet | None = None


@dataclass(frozen=True, slots=True)
class Hold(Command):
    """Keep a waiting job, or the waiting tasks of an array, from starting."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Release(Command):
    """Undo a hold."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Reprioritise(Command):
    """Change the priority of a waiting job, or of the waiting tasks of an array."""

    job_id: str
    priority: int


@dataclass(frozen=True, slots=True)
class Update(Command):
    """Change fields of a job that has never started: all of them, or none."""

    job_id: str
    changes: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Retry(Command):
    """Requeue a failed or cancelled job, or the failed tasks of an array.

    With `cancelled`, and if an ended array has no failed task, also cancelled tasks.
    """

    job_id: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class CorrectUsage(Command):
    """Charge an ended attempt for another run time, for example after a fault of a clock.

    `attempt` is its stored row, `job` its job.
    """

    job_id: str
    job: Job
    attempt: AttemptRow
    run_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetNode(Command):
    """Add or replace a node; used by the simulator and by tests."""

    node: Node


@dataclass(frozen=True, slots=True)
class SetTenant(Command):
    """Add or replace a tenant."""

    tenant: Tenant


@dataclass(frozen=True, slots=True)
class RemoveTenant(Command):
    """Remove a tenant; rejected while it has jobs, services or reservations."""

    tenant_id: str


@dataclass(frozen=True, slots=True)
class SetPools(Command):
    """Set the quotas of all pools."""

    pools: tuple[PoolQuota, ...]


@dataclass(frozen=True, slots=True)
class Reserve(Command):
    """Make an advance reservation; `made_by` is the user who asks for it."""

    wish: ReservationSpec
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class CancelReservation(Command):
    """Cancel an advance reservation, before or during its time."""

    reservation_id: str


@dataclass(frozen=True, slots=True)
class CreateService(Command):
    """Create a service; the core sets id, number and times."""

    service: Service


@dataclass(frozen=True, slots=True)
class UpdateService(Command):
    """Change a service, and replace its replicas one after the other.

    `wanted` has the new specification; id, name, tenant and user stay.
    """

    service_id: str
    wanted: Service


@dataclass(frozen=True, slots=True)
class ScaleService(Command):
    """Change the number of replicas."""

    service_id: str
    replicas: int


@dataclass(frozen=True, slots=True)
class DeleteService(Command):
    """Stop all replicas; the service is removed with the last one."""

    service_id: str


@dataclass(frozen=True, slots=True)
class PauseDevice(Command):
    """Give a device no new work; its jobs keep running."""

    node_id: str
    index: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResumeDevice(Command):
    """Undo a pause or a quarantine of a device."""

    node_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Record(Command):
    """Write events from outside the core, with the current time."""

    events: tuple[EventRow, ...] = ()


@dataclass(frozen=True, slots=True)
class SetCalendar(Command):
    """Calendar times relate to scheduler time in another way, since the wall clock was set."""

    calendar: Calendar


@dataclass(frozen=True, slots=True)
class MakeToken(Command):
    """Create an API token; only the hash of its secret is known here."""

    token: Token


@dataclass(frozen=True, slots=True)
class RevokeToken(Command):
    """Revoke an API token."""

    token_id: str


@dataclass(frozen=True, slots=True)
class UseToken(Command):
    """Update the last use of a token; sent now and then, not for each request."""

    token_id: str


@dataclass(frozen=True, slots=True)
class KeepAuthority(Command):
    """Store the certificate authority of nodes; sent once, by the first server."""

    authority: Authority


@dataclass(frozen=True, slots=True)
class MakeJoinToken(Command):
    """Create a join token for nodes; only the hash of its secret is known here."""

    token: JoinToken


@dataclass(frozen=True, slots=True)
class RevokeJoinToken(Command):
    """Revoke a join token; nodes that have joined with it keep their keys."""

    token_id: str


@dataclass(frozen=True, slots=True)
class JoinNode(Command):
    """A node joins with a join token and the fingerprint of its own key."""

    node_id: str
    token_id: str
    fingerprint: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class RenewNode(Command):
    """A node replaces its key, `former`, by a new one."""

    node_id: str
    former: str
    fingerprint: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class RevokeNode(Command):
    """Revoke the key of a node and close its session."""

    node_id: str


NodeKeyMessage = KeepAuthority | MakeJoinToken | RevokeJoinToken | JoinNode | RenewNode | RevokeNode


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated start of a waiting job, and the method of the estimate.

    `forecast_ms` is the start before calibration, and `earliest_ms` to `latest_ms` its range; None
    without a range.
    """

    job_id: str
    start_ms: int
    basis: str
    forecast_ms: int | None = None
    earliest_ms: int | None = None
    latest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NoteEstimates(Command):
    """Store the first estimates of waiting jobs, to compare them with the real starts."""

    estimates: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class RunCycle(Command):
    """Handle due timers, and run the engine if anything has changed."""


WORK_ON_FULL_DISK = (
    *(Cancel, Hold, Cordon, Drain, PauseDevice, RemoveNode, ConfirmDead),
    *(CancelReservation, DeleteService, RevokeToken, RevokeJoinToken, RevokeNode),
)
"""Commands that end work or access; they are accepted on a full disk, and facts are as well."""


# Facts from nodes.


@dataclass(frozen=True, slots=True)
class Prepared(Fact):
    """Every member of a gang over several nodes is prepared, and none runs yet.

    `port` is free on the node of the first member; `hosts` are the node addresses by rank.
    """

    allocation_id: str
    port: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Started(Fact):
    """Every member of an allocation runs."""

    allocation_id: str


@dataclass(frozen=True, slots=True)
class Ended(Fact):
    """An attempt ended. `progress_ms` is run time that the next attempt need not repeat.

    Without exit code and signal the result is unknown, and `detail` says why. An attempt that never
    `ran` was rejected by its node, and would be again, unless a failed hook is the cause (`hooks`).
    A `lost` attempt never reached its node, so it can be started again. It ended at `at_ms` (None:
    now) and ran for at least `run_ms`. `image_digest` is that of the image that a container engine
    of root ran, if it is known.
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
    image_digest: str = ""


@dataclass(frozen=True, slots=True)
class ContainerProgress(Fact):
    """How far the container engine of a member is: a key of `CONTAINER_PHASES`, or `begun`."""

    allocation_id: str
    member: int
    node_id: str
    phase: str


@dataclass(frozen=True, slots=True)
class Checkpointed(Fact):
    """A job saved its work `ago_ms` ago, by the clock of its node."""

    allocation_id: str
    ago_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaChecked(Fact):
    """The readiness of a replica changed; with its port if the node has chosen one."""

    allocation_id: str
    is_ready: bool
    port: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported(Fact):
    """An agent reports the hardware and labels of its node.

    A node that is `unfit`, for this reason, gets no new work until the agent reports otherwise.
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
class NodeSilent(Fact):
    """A node has sent no heartbeat for `for_ms`: it gets no new work. Its jobs may still run."""

    node_id: str
    for_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """The measurements of one device.

    `load_percent` is the current load, `utilisation_percent` that of the last interval; None if the
    device does not report it. `processes` are those of jobs, by allocation, and relevant others.
    `unexplained_mb` is used memory without a process. `trusted` is the mark of the last
    `TrustDeviceOrder` that the node has carried out.
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
class DevicesSampled(Fact):
    """Samples of the devices of a node; not `fresh` if the agent repeats the last ones."""

    node_id: str
    readings: tuple[DeviceSample, ...]
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class NodeLost(Fact):
    """A node has been silent for longer than the timeout. Its jobs may still run."""

    node_id: str


@dataclass(frozen=True, slots=True)
class LeasesExpired(Fact):
    """No lease was renewed on a silent node for `waited_ms`."""

    node_id: str
    waited_ms: int


@dataclass(frozen=True, slots=True)
class NodeFenced(Fact):
    """A node is known to be dead: its jobs have ended.

    Jobs that ran only there may run elsewhere at once; a gang only after its members on other nodes
    have stopped.
    """

    node_id: str


ServiceCommand = CreateService | UpdateService | ScaleService | DeleteService
