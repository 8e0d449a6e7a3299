"""The synchronous core: `Core.apply(message, now_ms)` returns writes and effects.

A message is a command of a user or a fact from a node. `HANDLERS` maps each message type to the
one function that handles it. The server and the simulator drive the same core. It does no I/O: the
caller stores the writes, and carries out the effects only after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu_scheduler.control import gang_commit, services
from gpu_scheduler.control import messages as m
from gpu_scheduler.control.access import credentials
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs import (
    attempt_events,
    attempt_progress,
    commands,
    queueing,
    submit,
)
from gpu_scheduler.control.nodes import admin, inventory, lost_nodes
from gpu_scheduler.control.scheduling import cycle, reservation_commands, wall_clock_step
from gpu_scheduler.control.state import ControlState, CoreLimits
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.model.errors import InternalError, SchedulerError
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.store.rows import ShareRow, UsageRow, WeekUsageRow, Write

Handler = Callable[[ControlState, Any, int, Outcome], None]
"""Takes the state, the message, the time and the outcome to add to; raises before any change."""


class Core:
    """The only writer of the control state. A rejected message leaves the state unchanged.

    After any other error the state may be half changed: the core then accepts no more messages, and
    its driver must read a new one from the store. A rejection after a change is such an error.
    """

    def __init__(
        self, policy: Policy, predictor: Predictor, limits: CoreLimits | None = None
    ) -> None:
        """Start without nodes and jobs."""
        self.state = ControlState(policy, predictor, limits or CoreLimits())
        self._half_applied = ""
        """The kind of the message that is being applied, or that failed."""

    def apply(self, message: m.Command | m.Fact, now_ms: int) -> Outcome:
        """Apply one message and return everything to write for it."""
        outcome = self.apply_in_batch(message, now_ms)
        outcome.add_array_rows()
        return outcome

    def apply_in_batch(self, message: m.Command | m.Fact, now_ms: int) -> Outcome:
        """Apply one of several messages of a commit; the caller adds the rows of arrays."""
        kind = type(message)
        handler = HANDLERS.get(kind)
        if handler is None:
            raise InternalError(f"the core has no handler for {kind.__name__}")
        if self._half_applied:
            raise InternalError(
                f"{self._half_applied} failed while it changed the state; read it from the store"
            )
        outcome = Outcome()
        self._half_applied = kind.__name__
        try:
            handler(self.state, message, now_ms, outcome)
            if kind in CHANGES_NODES:
                self.state.services_to_reconcile |= dict.fromkeys(self.state.services)
            services.reconcile(self.state, now_ms, outcome)
            if len(self.state.stored_reservations) != len(self.state.cluster.reservations):
                # A job that had a reservation left the queue.
                cycle.store_reservations(self.state, outcome)
        except InternalError:
            raise
        except SchedulerError as error:
            if outcome.writes or outcome.effects or outcome.arrays:
                raise InternalError(f"{kind.__name__} was rejected after a change") from error
            self._half_applied = ""
            raise
        self._half_applied = ""
        return outcome

    def next_timer_ms(self) -> int | None:
        """The deadline for `RunCycle`; None if no timer is set."""
        return self.state.next_timer_ms()

    @property
    def wants_cycle(self) -> bool:
        """Tell whether something has changed that may let a job start."""
        state = self.state
        if state.new_nodes and state.unplaced:
            return True
        return (state.changed or state.sweep.continues) and len(state.cluster.queue) > 0

    def ledger_writes(self) -> list[Write]:
        """The rows of accounts that changed since the last call."""
        state = self.state
        writes: list[Write] = [UsageRow(*row) for row in state.usage_totals.take_changed()]
        writes += [WeekUsageRow(*row) for row in state.weekly_usage.take_changed()]
        writes += [ShareRow(*state.decayed_usage.row_of(account)) for account in state.charged]
        state.charged.clear()
        return writes


def _set_tenant(state: ControlState, message: m.SetTenant, _now: int, outcome: Outcome) -> None:
    state.set_tenant(message.tenant)
    state.changed = True
    outcome.writes.append(message.tenant)


def _set_pools(state: ControlState, message: m.SetPools, _now: int, outcome: Outcome) -> None:
    state.cluster.set_pools(message.pools)
    state.changed = True
    outcome.writes += message.pools


def _record(_state: ControlState, message: m.Record, now_ms: int, outcome: Outcome) -> None:
    outcome.writes += [replace(event, at_ms=now_ms) for event in message.events]


HANDLERS: dict[type, Handler] = {
    # jobs
    m.Submit: submit.submit,
    m.SubmitSeries: submit.submit,
    m.SubmitAll: submit.submit_all,
    m.Hold: commands.hold,
    m.Release: commands.release,
    m.Reprioritise: commands.reprioritise,
    m.Update: commands.update,
    m.Cancel: commands.cancel,
    m.Retry: commands.retry,
    m.CorrectUsage: commands.correct_usage,
    # attempts, as nodes report them
    m.Prepared: gang_commit.on_prepared,
    m.Started: attempt_events.on_started,
    m.Ended: attempt_events.on_ended,
    m.ContainerProgress: attempt_progress.on_container_progress,
    m.Checkpointed: attempt_events.on_checkpointed,
    m.ReplicaChecked: services.on_replica_checked,
    # scheduling
    m.RunCycle: cycle.run_cycle,
    m.Reserve: reservation_commands.reserve,
    m.CancelReservation: reservation_commands.cancel,
    m.NoteEstimates: queueing.note_estimates,
    m.SetCalendar: wall_clock_step.set_calendar,
    # services
    m.CreateService: services.apply,
    m.UpdateService: services.apply,
    m.ScaleService: services.apply,
    m.DeleteService: services.apply,
    # nodes
    m.SetNode: inventory.on_set_node,
    m.NodeReported: inventory.on_node_reported,
    m.DevicesSampled: inventory.on_devices_sampled,
    m.PauseDevice: inventory.set_paused,
    m.ResumeDevice: inventory.set_paused,
    m.Cordon: admin.apply,
    m.Drain: admin.apply,
    m.Uncordon: admin.apply,
    m.LabelNode: admin.apply,
    m.RemoveNode: admin.apply,
    m.NodeSilent: lost_nodes.on_node_silent,
    m.NodeLost: lost_nodes.on_node_lost,
    m.NodeFenced: lost_nodes.on_node_fenced,
    m.LeasesExpired: lost_nodes.on_leases_expired,
    m.ConfirmDead: lost_nodes.confirm_dead,
    # tenants and pools
    m.SetTenant: _set_tenant,
    m.RemoveTenant: commands.remove_tenant,
    m.SetPools: _set_pools,
    # credentials
    m.MakeToken: credentials.change_token,
    m.RevokeToken: credentials.change_token,
    m.UseToken: credentials.change_token,
    m.KeepAuthority: credentials.change_node_credentials,
    m.MakeJoinToken: credentials.change_node_credentials,
    m.RevokeJoinToken: credentials.change_node_credentials,
    m.JoinNode: credentials.change_node_credentials,
    m.RenewNode: credentials.change_node_credentials,
    m.RevokeNode: credentials.change_node_credentials,
    m.Record: _record,
}
"""The function that handles each message type."""

CHANGES_NODES = frozenset(
    {
        *(m.SetNode, m.NodeReported, m.NodeSilent, m.NodeLost, m.NodeFenced, m.LeasesExpired),
        *(m.Cordon, m.Drain, m.Uncordon, m.LabelNode, m.RemoveNode, m.ConfirmDead),
    }
)
"""After these messages every service checks where its replicas may run."""
