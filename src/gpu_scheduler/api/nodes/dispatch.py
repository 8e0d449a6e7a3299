"""Dispatch of orders: committed effects of the control loop go to the agents of their nodes."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial

from gpu_scheduler.api.nodes.reports import ReportHandler
from gpu_scheduler.api.nodes.sessions import Sessions
from gpu_scheduler.control.effects import (
    CommitOrder,
    DisconnectOrder,
    Effect,
    NodeGone,
    StartOrder,
    StopOrder,
    TrustDeviceOrder,
    WarnOrder,
)
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Ended
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.wire.orders import start_order, warn_order

NO_LAUNCH = "its launch description is missing"
NO_ENVIRONMENT = (
    "the environment that was captured with it is dropped by now (retention.environments_days); "
    "submit it again"
)

StoredLaunch = tuple[Launch, dict[str, str] | None]
"""How a job is run, and the environment that was captured with it, if there is one."""


class OrderDispatcher:
    """Sends each effect of the loop through the session of its node.

    `disconnected` are the nodes whose agents have left; `suspect` is called for such a node that
    gets work.
    """

    def __init__(
        self,
        loop: Loop,
        sessions: Sessions,
        reports: ReportHandler,
        *,
        disconnected: Container[str],
        suspect: Callable[[str], None],
    ) -> None:
        """`reports` receives attempts that cannot be started."""
        self._loop = loop
        self._sessions = sessions
        self._reports = reports
        self._disconnected = disconnected
        self._suspect = suspect
        self._last_environment: tuple[str, dict[str, str] | None] = ("", None)

    async def dispatch(self, effects: list[Effect]) -> None:
        """Send committed effects to their nodes."""
        starting = [effect.job.id for effect in effects if isinstance(effect, StartOrder)]
        launches = await self.read_launches(starting) if starting else {}
        for effect in effects:
            match effect:
                case StartOrder():
                    self.send_start(effect, launches.get(effect.job.id))
                case CommitOrder():
                    self._reports.gangs.commit(effect)
                case NodeGone(node_id):
                    self._reports.gangs.stop_waiting_for(node_id)
                case StopOrder():
                    self.send_stop(effect)
                case WarnOrder():
                    self._send_warning(effect)
                case DisconnectOrder() | TrustDeviceOrder():
                    # A node that is not connected gets this when it reconnects.
                    session = self._sessions.by_node.get(effect.node_id)
                    if session is not None and isinstance(effect, DisconnectOrder):
                        session.close()
                    elif session is not None and isinstance(effect, TrustDeviceOrder):
                        session.send_trust(effect.index, effect.mark)

    async def read_launches(self, job_ids: Sequence[str]) -> dict[str, StoredLaunch]:
        """Read how these jobs are run, as far as that is stored."""
        return await self._loop.read(partial(self._read_launches, job_ids))

    def _read_launches(self, job_ids: Sequence[str]) -> dict[str, StoredLaunch]:
        launches = self._loop.store.launches(job_ids)
        return {
            job_id: (launch, self._read_environment(launch.captured))
            for job_id, launch in launches.items()
        }

    def _read_environment(self, name: str) -> dict[str, str] | None:
        """Read a captured environment; the last one is cached, as jobs often share one.

        Only the thread of the writer calls this.
        """
        if not name:
            return None
        last_name, environment = self._last_environment
        if last_name != name or environment is None:
            environment = self._loop.store.environment(name)
            self._last_environment = (name, environment)
        return environment

    def _return_undelivered(self, order: StartOrder) -> bool:
        """Return an attempt to the queue if its only node has just disconnected."""
        allocation = order.allocation
        node_id = allocation.placements[0].node_id
        if (
            allocation.spans_nodes
            or node_id in self._sessions.by_node
            or node_id not in self._disconnected
        ):
            return False
        if self._loop.core.state.cluster.index.resources(node_id).node.state is NodeState.ONLINE:
            self._suspect(node_id)
        detail = f"node {node_id} was not connected, so it was never started there"
        lost = Ended(allocation.id, exit_code=None, ran=False, lost=True, detail=detail)
        self._reports.post(lost)
        return True

    def send_start(
        self, order: StartOrder, stored: StoredLaunch | None, *, only: str | None = None
    ) -> None:
        """Order the nodes of an attempt, or `only` one of them, to start it."""
        allocation, job = order.allocation, order.job
        if only is None and self._return_undelivered(order):
            return
        launch, captured = stored or (None, None)
        if launch is None or (launch.captured and captured is None):
            detail = NO_LAUNCH if launch is None else NO_ENVIRONMENT
            self._reports.post(Ended(allocation.id, exit_code=None, ran=False, detail=detail))
            return
        state = self._loop.core.state
        limit_ms = state.cluster.limit_ms(job)
        record = state.jobs.get(job.id)
        digest = "" if record is None else record.image_digest
        for placement in allocation.placements:
            session = self._sessions.by_node.get(placement.node_id)
            if session is None or only not in {None, placement.node_id}:
                continue
            # A session that is not accepted has no lease; it gets its orders once it is.
            if session.is_accepted:
                session.ordered.add(allocation.id)
                start = start_order(
                    allocation, placement, job, launch, captured, limit_ms, image_digest=digest
                )
                self._reports.gangs.complete_start(start, allocation, placement)
                session.send(start)

    def send_stop(self, order: StopOrder) -> None:
        """Order the nodes of an attempt to stop it."""
        running = self._loop.core.state.cluster.running.get(order.allocation_id)
        if running is not None:
            allocation = running.running.allocation
            members = [placement.member for placement in allocation.placements]
            self._sessions.stop_members(allocation, members, order.why)
            self._reports.gangs.on_stopping(allocation, order.why)

    def _send_warning(self, order: WarnOrder) -> None:
        running = self._loop.core.state.cluster.running.get(order.allocation_id)
        for placement in () if running is None else running.running.allocation.placements:
            warning = warn_order(order.allocation_id, placement.member, order.text)
            self._sessions.send(placement.node_id, warning)
