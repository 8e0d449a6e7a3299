"""Orders to the agents: what the core decided goes out once it is committed."""

from __future__ import annotations

from collections.abc import Callable, Container

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

NO_LAUNCH = "how to run it was not submitted with it"
NO_ENVIRONMENT = (
    "the environment that was captured with it is dropped by now (retention.environments_days); "
    "submit it anew"
)


class OrderDispatcher:
    """Carries out the effects of the loop, each by the session of its node.

    `left` are the nodes whose agents have gone; one that is given work is `suspect`.
    """

    def __init__(
        self,
        loop: Loop,
        sessions: Sessions,
        hearing: ReportHandler,
        *,
        left: Container[str],
        suspect: Callable[[str], None],
    ) -> None:
        """Nothing is sent before somebody is connected."""
        self._loop = loop
        self._sessions = sessions
        self._hearing = hearing
        self._left = left
        self._suspect = suspect
        self._last_environment: tuple[str, dict[str, str] | None] = ("", None)

    def carry_out(self, effects: list[Effect]) -> None:
        """Send what was decided and committed."""
        starting = [effect.job.id for effect in effects if isinstance(effect, StartOrder)]
        launches = self._loop.store.launches(starting) if starting else {}
        for effect in effects:
            match effect:
                case StartOrder():
                    self.send_start(effect, launches.get(effect.job.id))
                case CommitOrder():
                    self._hearing.gangs.commit(effect)
                case NodeGone(node_id):
                    self._hearing.gangs.node_gone(node_id)
                case StopOrder():
                    self.send_stop(effect)
                case WarnOrder():
                    self._send_warning(effect)
                case DisconnectOrder() | TrustDeviceOrder():
                    self._tell_node(effect)

    def _tell_node(self, effect: DisconnectOrder | TrustDeviceOrder) -> None:
        """What concerns a node as a whole; one that is away is told when it comes back."""
        session = self._sessions.by_node.get(effect.node_id)
        if session is None:
            return
        if isinstance(effect, DisconnectOrder):
            session.close()
        else:
            session.trust(effect.index, effect.mark)

    def _is_given_back(self, order: StartOrder) -> bool:
        """What was decided for a node that has just left was never ordered: it goes elsewhere."""
        allocation = order.allocation
        node_id = allocation.placements[0].node_id
        if allocation.spans_nodes or node_id in self._sessions.by_node or node_id not in self._left:
            return False
        if self._loop.core.state.cluster.index.resources(node_id).node.state is NodeState.ONLINE:
            self._suspect(node_id)
        detail = f"node {node_id} was not connected, so it was never ordered there"
        lost = Ended(allocation.id, exit_code=None, ran=False, lost=True, detail=detail)
        self._hearing.tell(lost)
        return True

    def send_start(
        self, order: StartOrder, launch: Launch | None, *, only: str | None = None
    ) -> None:
        """Let the nodes of an attempt start it, or `only` one of them; or tell why nobody can."""
        allocation, job = order.allocation, order.job
        if only is None and self._is_given_back(order):
            return
        captured = None if launch is None else self._environment(launch.captured)
        if launch is None or (launch.captured and captured is None):
            detail = NO_LAUNCH if launch is None else NO_ENVIRONMENT
            self._hearing.tell(Ended(allocation.id, exit_code=None, ran=False, detail=detail))
            return
        limit_ms = self._loop.core.state.cluster.limit_ms(job)
        for placement in allocation.placements:
            session = self._sessions.by_node.get(placement.node_id)
            if session is None or only not in {None, placement.node_id}:
                continue
            # Before, it has been granted no lease: what it is to start is told with its welcome.
            if session.is_welcome:
                session.ordered.add(allocation.id)
                start = start_order(allocation, placement, job, launch, captured, limit_ms)
                self._hearing.gangs.complete_start(start, allocation, placement)
                session.send(start)

    def _environment(self, name: str) -> dict[str, str] | None:
        """A captured environment; the last one is remembered, as jobs come in series."""
        if not name:
            return None
        last, found = self._last_environment
        if last != name or found is None:
            found = self._loop.store.environment(name)
            self._last_environment = (name, found)
        return found

    def send_stop(self, order: StopOrder) -> None:
        """Let the nodes of an attempt stop it."""
        running = self._loop.core.state.cluster.running.get(order.allocation_id)
        if running is not None:
            allocation = running.running.allocation
            members = [placement.member for placement in allocation.placements]
            self._sessions.stop_members(allocation, members, order.why)
            self._hearing.gangs.stopping(allocation, order.why)

    def _send_warning(self, order: WarnOrder) -> None:
        running = self._loop.core.state.cluster.running.get(order.allocation_id)
        for placement in () if running is None else running.running.allocation.placements:
            warning = warn_order(order.allocation_id, placement.member, order.text)
            self._sessions.send(placement.node_id, warning)
