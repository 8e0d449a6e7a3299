"""`Core.apply(command or fact, now) -> writes, effects`: the synchronous heart of every driver."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control import gangs, services
from gpu_scheduler.control.access import credentials
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs import attempt_events, commands
from gpu_scheduler.control.jobs.submit import submit, submit_all
from gpu_scheduler.control.messages import (
    Cancel,
    CancelReservation,
    Checkpointed,
    Command,
    ConfirmDead,
    Cordon,
    CreateService,
    DeleteService,
    DevicesSampled,
    Drain,
    Ended,
    Fact,
    Hold,
    JoinNode,
    KeepAuthority,
    LabelNode,
    LeasesExpired,
    MakeJoinToken,
    MakeToken,
    NodeFenced,
    NodeLost,
    NodeReported,
    NodeSilent,
    NoteEstimates,
    PauseDevice,
    Prepared,
    Record,
    Release,
    RemoveNode,
    RemoveTenant,
    RenewNode,
    ReplicaChecked,
    Reprioritise,
    Reserve,
    ResumeDevice,
    Retry,
    RevokeJoinToken,
    RevokeNode,
    RevokeToken,
    RunCycle,
    ScaleService,
    SetNode,
    SetPools,
    SetTenant,
    Started,
    Submit,
    SubmitAll,
    SubmitSeries,
    Uncordon,
    Update,
    UpdateService,
    UseToken,
)
from gpu_scheduler.control.nodes import admin, inventory, lost_nodes
from gpu_scheduler.control.nodes.lost_nodes import NodeLossFact
from gpu_scheduler.control.scheduling import advance_reservations, forecast_audit
from gpu_scheduler.control.scheduling.cycle import run_cycle, store_reservations
from gpu_scheduler.control.state import ControlState, CoreLimits
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.store.rows import ShareRow, UsageRow, WeekUsageRow, Write


class Core:
    """One writer. An error leaves everything as it was before the message."""

    def __init__(
        self, policy: Policy, predictor: Predictor, limits: CoreLimits | None = None
    ) -> None:
        """Start empty."""
        self.state = ControlState(policy, predictor, limits or CoreLimits())

    def apply(self, message: Command | Fact, now_ms: int) -> Outcome:
        """Take in one message."""
        outcome = self.apply_in_batch(message, now_ms)
        outcome.settle()
        return outcome

    def apply_in_batch(self, message: Command | Fact, now_ms: int) -> Outcome:
        """One of many messages that are kept together: whoever does that settles them together."""
        outcome = Outcome()
        match message:
            case Submit() | SubmitSeries():
                submit(self.state, message, now_ms, outcome)
            case SubmitAll(submissions, dry_run):
                submit_all(self.state, submissions, now_ms, outcome, dry_run=dry_run)
            case RunCycle():
                run_cycle(self.state, now_ms, outcome)
            case Prepared() | Started() | Ended() | Checkpointed() | ReplicaChecked():
                self._hear_of_attempt(message, now_ms, outcome)
            case (
                NodeReported()
                | DevicesSampled()
                | NodeSilent()
                | NodeLost()
                | NodeFenced()
                | LeasesExpired()
            ):
                self._hear_of_node(message, now_ms, outcome)
            case SetNode() | SetTenant() | RemoveTenant() | SetPools():
                self._set(message, now_ms, outcome)
            case _:
                self._command(message, now_ms, outcome)
        services.settle(self.state, now_ms, outcome)
        if len(self.state.promises) != len(self.state.cluster.reservations):
            # A job that was promised a place waits for it no more.
            store_reservations(self.state, outcome)
        return outcome

    def next_timer_ms(self) -> int | None:
        """When `RunCycle` should come at the latest."""
        return self.state.next_timer_ms()

    @property
    def wants_cycle(self) -> bool:
        """Tell whether something has changed that may let a job start."""
        state = self.state
        if state.new_nodes and state.unplaced:
            return True
        return state.changed and len(state.cluster.queue) > 0

    def ledger_writes(self) -> list[Write]:
        """What became of the accounts since this was last asked, for a store that keeps them."""
        state = self.state
        writes: list[Write] = [UsageRow(*row) for row in state.accounts.take_changed()]
        writes += [WeekUsageRow(*row) for row in state.weeks.take_changed()]
        writes += [ShareRow(*state.shares.row_of(account)) for account in state.charged]
        state.charged.clear()
        return writes

    def _hear_of_attempt(
        self,
        message: Prepared | Started | Ended | Checkpointed | ReplicaChecked,
        now_ms: int,
        outcome: Outcome,
    ) -> None:
        match message:
            case Prepared():
                gangs.commit(self.state, message, now_ms, outcome)
            case Started(allocation_id):
                attempt_events.started(self.state, allocation_id, now_ms, outcome)
            case Ended():
                attempt_events.ended(self.state, message, now_ms, outcome)
            case Checkpointed():
                attempt_events.saved(self.state, message, now_ms, outcome)
            case ReplicaChecked():
                services.checked(self.state, message, now_ms, outcome)

    def _hear_of_node(
        self,
        message: NodeReported | DevicesSampled | NodeLossFact,
        now_ms: int,
        outcome: Outcome,
    ) -> None:
        match message:
            case NodeReported():
                inventory.found(self.state, message, now_ms, outcome)
            case DevicesSampled():
                inventory.read(self.state, message, now_ms, outcome)
            case _:
                lost_nodes.hear(self.state, message, now_ms, outcome)
        if not isinstance(message, DevicesSampled):
            services.nodes_changed(self.state)

    def _set(
        self, message: SetNode | SetTenant | RemoveTenant | SetPools, now_ms: int, outcome: Outcome
    ) -> None:
        """What the cluster is made of, and who may have how much of it."""
        state = self.state
        match message:
            case SetNode(node):
                inventory.set_node(state, node, outcome)
                services.nodes_changed(state)
            case SetTenant(tenant):
                state.set_tenant(tenant)
                outcome.writes.append(tenant)
            case RemoveTenant(tenant_id):
                commands.remove_tenant(state, tenant_id, now_ms, outcome)
            case SetPools(pools):
                state.cluster.set_pools(pools)
                outcome.writes += pools
        state.changed = True

    def _command(self, message: Command | Fact, now_ms: int, outcome: Outcome) -> None:
        state = self.state
        match message:
            case Hold(job_id):
                commands.hold(state, state.job(job_id), now_ms, outcome)
            case Release(job_id):
                commands.release(state, state.job(job_id), now_ms, outcome)
            case Reprioritise(job_id, priority):
                commands.reprioritise(state, state.job(job_id), priority, now_ms, outcome)
            case Update(job_id, changes):
                commands.update(state, state.job(job_id), dict(changes), now_ms, outcome)
            case Cancel():
                commands.cancel(state, message, now_ms, outcome)
            case Retry():
                commands.retry(state, message, now_ms, outcome)
            case _:
                self._not_about_a_job(message, now_ms, outcome)

    def _not_about_a_job(self, message: Command | Fact, now_ms: int, outcome: Outcome) -> None:
        match message:
            case PauseDevice(node_id, index):
                inventory.pause(self.state, node_id, index, now_ms, outcome, paused=True)
            case ResumeDevice(node_id, index):
                inventory.pause(self.state, node_id, index, now_ms, outcome, paused=False)
            case CreateService() | UpdateService() | ScaleService() | DeleteService():
                services.apply(self.state, message, now_ms, outcome)
            case Cordon() | Drain() | Uncordon() | LabelNode() | RemoveNode():
                admin.change(self.state, message, now_ms, outcome)
                services.nodes_changed(self.state)
            case ConfirmDead():
                lost_nodes.confirm_dead(self.state, message, now_ms, outcome)
                services.nodes_changed(self.state)
            case Reserve() | CancelReservation():
                advance_reservations.apply(self.state, message, now_ms, outcome)
            case NoteEstimates(found):
                forecast_audit.note(self.state, found, now_ms, outcome)
            case MakeToken() | RevokeToken() | UseToken():
                credentials.change_token(self.state, message, now_ms, outcome)
            case Record(events):
                outcome.writes += [replace(event, at_ms=now_ms) for event in events]
            case _:
                self._keys_of_nodes(message, now_ms, outcome)

    def _keys_of_nodes(self, message: Command | Fact, now_ms: int, outcome: Outcome) -> None:
        match message:
            case KeepAuthority() | MakeJoinToken() | RevokeJoinToken():
                credentials.change(self.state, message, now_ms, outcome)
            case JoinNode() | RenewNode() | RevokeNode():
                credentials.change(self.state, message, now_ms, outcome)
            case _:
                raise InternalError(f"the core does not know {type(message).__name__}")
