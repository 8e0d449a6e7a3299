"""Why a job waits, in full: reasons are kept per shape and expanded only on request."""

from __future__ import annotations

from gpu_scheduler.engine.placement.capacity import described
from gpu_scheduler.engine.placement.gangs import most_members, place_gang
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.quota.admission import for_gpus
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.errors import UnknownThing
from gpu_scheduler.model.node import Node, NodeState, label_mismatch, matches_labels
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.model.reasons import Reason, ReasonCode


def explain(state: ClusterState, plan: Plan, number: int) -> Reason:
    """The reason of one queued job, from the last plan and the cluster state as it is now."""
    return Reasons(state, plan).of(number)


OFFLINE = "not online"
_NO_ROOM = Reason(ReasonCode.RESOURCES)


class Reasons:
    """The reasons of a plan, for questions about many jobs."""

    def __init__(self, state: ClusterState, plan: Plan) -> None:
        """Prepare the look-ups once."""
        self._state = state
        self._of_jobs = dict(plan.job_reasons)
        self._of_shapes = dict(plan.shape_reasons)
        self._of_tenants: dict[tuple[str, str], list[Reason]] = {}
        for tenant, shape, reason in plan.tenant_reasons:
            self._of_tenants.setdefault((tenant, shape), []).append(reason)
        self._of_accounts = {
            (tenant, user, pool): (milli, reason)
            for tenant, user, pool, milli, reason in plan.account_reasons
        }
        self._is_up = any(resources.bucket >= 0 for resources in state.index.by_id.values())
        self._expanded: dict[str, Reason] = {}
        """What is missing for jobs of one shape; looking at all nodes again would say the same."""

    def of(self, number: int) -> Reason:
        """The whole reason: the number of nodes by the resource they lack."""
        entry, found = self._found(number)
        if found.code is not ReasonCode.RESOURCES:
            return found
        name = entry.shape.name
        if name not in self._expanded:
            self._expanded[name] = _expanded(self._state, entry)
        return self._expanded[name]

    def brief(self, number: int) -> Reason:
        """The reason without the details of the nodes."""
        entry, found = self._found(number)
        if found.code is not ReasonCode.RESOURCES:
            return found
        return Reason(ReasonCode.RESOURCES, (("found", ""), ("needs", _needs(entry))))

    def _found(self, number: int) -> tuple[Entry, Reason]:
        entry = self._state.queue.entries.get(number)
        if entry is None:
            raise UnknownThing(f"job number {number} does not wait")
        if not self._is_up:
            return entry, self._no_open_node()
        found = self._of_jobs.get(entry.waiting.job.id) or self._tenant_reason(entry)
        if found is None:
            found = self._of_shapes.get(entry.shape.name)
        if found is None:
            found = Reason(ReasonCode.NOT_EXAMINED) if self._has_room(entry) else _NO_ROOM
        return entry, found

    def _has_room(self, entry: Entry) -> bool:
        """Tell whether a job without a reason in the plan would have a place now."""
        with self._state.trial() as transaction:
            return place_gang(entry.shape, transaction, self._state.index.find) is not None

    def _no_open_node(self) -> Reason:
        """Why no node at all takes work."""
        whys = [_why_closed(resources.node) for resources in self._state.index.by_id.values()]
        if all(why == OFFLINE for why in whys):
            return Reason(ReasonCode.NO_NODES)
        found = ", ".join(f"{whys.count(why)} x {why}" for why in sorted(set(whys)))
        return Reason(ReasonCode.NODES_CLOSED, (("found", found),))

    def _tenant_reason(self, entry: Entry) -> Reason | None:
        """What holds back jobs of a tenant with one shape: all, those of a user, or of a pool."""
        job = entry.waiting.job
        for reason in self._of_tenants.get((job.tenant, entry.shape.name), ()):
            of_pool, of_user = reason.get("pool"), reason.get("user")
            if of_pool in {None, job.pool.value} and of_user in {None, job.user}:
                return reason
        for user in (job.user, ""):
            milli, refused = self._of_accounts.get((job.tenant, user, job.pool), (0, None))
            if refused is not None and milli <= entry.shape.least_gpu_milli:
                return for_gpus(refused, entry.shape.least_gpu_milli)
        return None


def _expanded(state: ClusterState, entry: Entry) -> Reason:
    """Count the nodes by the resource they lack, for the member that fits least."""
    for shape in dict.fromkeys(entry.shape.members):
        misses = _misses(state, shape)
        if misses.get("nothing", 0) == 0:
            break
    found = _sentence(state, misses, entry.shape.min_members)
    if entry.shape.same_rack and entry.shape.min_members > 1:
        found += f"{'; ' if found else ''}{_by_rack(state, entry)}"
    return Reason(ReasonCode.RESOURCES, (("found", found), ("needs", _needs(entry, shape))))


def _needs(entry: Entry, shape: RequestShape | None = None) -> str:
    """The resources requested, and the number of members and places."""
    job_shape = entry.shape
    needs = described(shape or job_shape.members[0], as_asked=True)
    count = len(job_shape.members)
    if count == 1:
        return needs
    least = job_shape.min_members
    many = f"{count} members" if least == count else f"{least} to {count} members"
    return f"{needs} for each of {many}" + (" in one rack" * job_shape.same_rack)


def _by_rack(state: ClusterState, entry: Entry) -> str:
    """How many members the rack with the most room could take now."""
    least = entry.shape.min_members
    wanted = entry.shape.members[:least]
    with state.trial() as transaction:
        rooms = [
            (-most_members(transaction, wanted, state.index.find, bits), name)
            for name, bits in state.index.racks().items()
        ]
    room, name = min(rooms, default=(0, ""))
    return (
        f"the rack with the most room, {name or 'which has no name'}, could take {-room} of {least}"
    )


def _misses(state: ClusterState, shape: RequestShape) -> dict[str, int]:
    """How many nodes fail first at what."""
    selected = state.index.selected(shape.request)
    misses: dict[str, int] = {}
    for resources in state.index.by_id.values():
        miss = _first_miss(resources, shape, selected)
        misses[miss] = misses.get(miss, 0) + 1
    return misses


def _first_miss(resources: NodeResources, shape: RequestShape, selected: int | None) -> str:
    if resources.bucket < 0:
        return _why_closed(resources.node)
    if selected is not None and not selected & resources.bit:
        return _why_not_chosen(resources.node, shape)
    fits = shape.by_node_class.get(resources.node_class.id)
    if not fits:
        return "too small or of another model"
    if resources.free_cpu < shape.cpu:
        return "too little free CPU"
    if resources.free_memory < shape.memory:
        return "too little free memory"
    if resources.choose_any(shape) is None:
        allowed = fits[0].allowed
        if (allowed & resources.usable).bit_count() < shape.request.device_count:
            return "GPUs paused, hot, unhealthy or in foreign use"
        return "too few free GPUs"
    return "nothing"


def _why_not_chosen(node: Node, shape: RequestShape) -> str:
    """By its name, or by the first label that the job requires and the node does not have."""
    for label in shape.request.node_labels:
        if not matches_labels((label,), node.id, node.labels):
            return label_mismatch(label)
    return "without the labels"


def _why_closed(node: Node) -> str:
    """Why a node takes no work at all."""
    if node.state is not NodeState.ONLINE or node.closed is None:
        return OFFLINE
    if node.closed.heals:
        return "set aside as they cannot begin work now"
    if node.closed.is_fault:
        return "set aside as a prolog or epilog failed there"
    return "being drained" if node.closed.drains else "cordoned"


def _sentence(state: ClusterState, misses: dict[str, int], members: int) -> str:
    fits = misses.pop("nothing", 0)
    nodes = len(state.index.by_id)
    parts = [f"{count} x {miss}" if nodes > 1 else miss for miss, count in sorted(misses.items())]
    where = f"of {nodes} nodes" if nodes > 1 else "the one node"
    text = f"{where}: {', '.join(parts)}" if parts else ""
    if fits:
        could = f"{fits} node{'s' * (fits > 1)} could take a member"
        text += f"{'; ' if text else ''}{could}, {members} are wanted"
    return text
