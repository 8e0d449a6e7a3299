"""An independent audit: plain sums over the orders, without any engine code."""

from collections import Counter, defaultdict

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.node import Device, DeviceMode, Node, NodeState
from gpu_scheduler.model.plan import Allocation, DeviceShare, Placement
from gpu_scheduler.model.request import Request, Topology
from gpu_scheduler.model.tenant import Tenant


class Audit:
    """Follows every start and end, and fails as soon as a guarantee is broken."""

    def __init__(self) -> None:
        """Nothing is known or held yet."""
        self.nodes: dict[str, Node] = {}
        self.tenants: dict[str, Tenant] = {}
        self.pools: dict[Pool, PoolQuota] = {}
        self.held: dict[str, tuple[Job, Allocation]] = {}
        self.gpu_milli_ms: Counter[str] = Counter()
        self.ids: set[str] = set()

    def start(self, job: Job, allocation: Allocation) -> None:
        """An attempt starts: it must fit its nodes and match the request of its job."""
        assert allocation.id not in self.ids, f"the id {allocation.id} was given out before"
        self.ids.add(allocation.id)
        live = [(a.job_id, a.task) for _, a in self.held.values()]
        assert (job.id, allocation.task) not in live, "two attempts of one task at once"
        check_gang(job, allocation, self.nodes)
        for placement in allocation.placements:
            node = self.nodes[placement.node_id]
            assert node.state is NodeState.ONLINE, f"{node.id} takes no work"
            check_placement(job.members[placement.member], placement, node)
        self.held[allocation.id] = (job, allocation)
        for placement in allocation.placements:
            self.check_node(self.nodes[placement.node_id])
        if job.array is not None and job.array.max_running:
            tasks = sum(1 for _, a in self.held.values() if a.job_id == job.id)
            assert tasks <= job.array.max_running, "more tasks of the array than its own limit"

    def end(self, allocation_id: str, now_ms: int) -> None:
        """An attempt has ended."""
        job, allocation = self.held.pop(allocation_id)
        used = allocation.gpu_milli * (now_ms - allocation.start_ms)
        self.gpu_milli_ms[job.tenant] += used

    def check_node(self, node: Node) -> None:
        """No device and no node exceeds its capacity."""
        on_device: dict[int, list[DeviceShare]] = defaultdict(list)
        cpu = memory = 0
        for _, allocation in self.held.values():
            for placement in allocation.placements:
                if placement.node_id == node.id:
                    cpu += placement.cpu_milli
                    memory += placement.memory_mb
                    for share in placement.devices:
                        on_device[share.index].append(share)
        assert cpu <= node.cpu_milli, f"{node.id}: {cpu} of {node.cpu_milli} milli-CPU"
        assert memory <= node.memory_mb, f"{node.id}: {memory} of {node.memory_mb} MiB"
        for device in node.devices:
            check_device(device, on_device.pop(device.index, []))
        assert not on_device, f"{node.id} has no devices {sorted(on_device)}"

    # --- quotas

    def held_by(self, tenant: str) -> Counter[str]:
        """The holdings of a tenant, by the names of the quota."""
        total: Counter[str] = Counter()
        for job, allocation in self.held.values():
            if job.tenant == tenant:
                requests = [job.members[p.member] for p in allocation.placements]
                total["gpu_milli"] += allocation.gpu_milli
                total["gpu_memory_mb"] += sum(r.gpu_memory_total_mb for r in requests)
                total["cpu_milli"] += sum(p.cpu_milli for p in allocation.placements)
                total["memory_mb"] += sum(p.memory_mb for p in allocation.placements)
                total["concurrent_jobs"] += 1
        return total

    def check_quota(self, tenant: Tenant) -> None:
        """A strict quota is a ceiling; only the GPUs of an elastic quota may be exceeded."""
        held = self.held_by(tenant.id)
        for name in ("gpu_milli", "gpu_memory_mb", "cpu_milli", "memory_mb", "concurrent_jobs"):
            limit = getattr(tenant.quota, name)
            if limit is not None and not (name == "gpu_milli" and tenant.elastic):
                assert held[name] <= limit, f"{tenant.id} holds {held[name]} {name} of {limit}"

    def check_loan(self, tenant: Tenant) -> None:
        """What all tenants borrow together is left idle by others."""
        mine = self.held_by(tenant.id)["gpu_milli"]
        limit = tenant.quota.gpu_milli
        if not tenant.elastic or limit is None or mine <= limit:
            return
        borrowed = idle = 0
        for other in self.tenants.values():
            if other.elastic and other.quota.gpu_milli is not None:
                rest = other.quota.gpu_milli - self.held_by(other.id)["gpu_milli"]
                idle += max(0, rest)
                borrowed += max(0, -rest)
        assert borrowed <= idle, f"{borrowed} milli-GPU are borrowed, {idle} are left idle"

    def check_pool(self, pool: PoolQuota) -> None:
        """A strict pool stays within its share; an elastic one borrows what others leave idle."""
        total = sum(1000 * node.gpu_count for node in self.nodes.values())
        held: Counter[Pool] = Counter()
        for job, allocation in self.held.values():
            held[job.pool] += allocation.gpu_milli
        limit = total * pool.percent // 100
        if pool.elastic:
            limit += sum(
                max(0, total * other.percent // 100 - held[other.pool])
                for other in self.pools.values()
                if other.pool is not pool.pool
            )
        assert held[pool.pool] <= limit, f"{pool.pool} holds {held[pool.pool]} of {limit}"


def check_device(device: Device, shares: list[DeviceShare]) -> None:
    """Exclusive to one job, shared within its share and memory, or split within its slices."""
    if device.mode is DeviceMode.MIG:
        used = Counter(share.mig_profile for share in shares)
        for profile, count in used.items():
            offered = dict(device.mig_slices).get(profile, 0)
            assert count <= offered, f"{count} of {offered} slices '{profile}'"
        return
    assert not any(share.mig_profile for share in shares), "a slice of a device that is not split"
    if any(share.share_milli == 1000 for share in shares):
        assert len(shares) == 1, "a whole device was given out twice"
    assert sum(share.share_milli for share in shares) <= 1000, "more than the whole share"
    memory = sum(share.memory_mb for share in shares)
    assert memory <= device.memory_mb, f"{memory} of {device.memory_mb} MiB of GPU memory"


def check_gang(job: Job, allocation: Allocation, nodes: dict[str, Node]) -> None:
    """At least the minimum of members, and each member once."""
    members = [placement.member for placement in allocation.placements]
    assert members == list(range(len(members)))
    assert job.min_members <= len(members) <= len(job.members), "a gang in parts"
    if job.same_rack:
        racks = {nodes[placement.node_id].rack for placement in allocation.placements}
        assert len(racks) == 1, f"a gang for one rack lies in {sorted(racks)}"


def check_placement(request: Request, placement: Placement, node: Node) -> None:
    """The member gets what it requested, from available devices."""
    assert placement.cpu_milli == request.cpu_milli
    assert placement.memory_mb == request.memory_mb
    assert set(request.node_labels) <= set(node.labels)
    by_index = {device.index: device for device in node.devices}
    used = [by_index[share.index] for share in placement.devices]
    assert all(device.takes_work for device in used)
    assert len({device.model for device in used}) <= 1, "GPUs of two models"
    for device in used:
        assert not request.gpu_models or device.model in request.gpu_models
        assert not request.device_ids or device.index in request.device_ids
        assert device.bandwidth_gbps >= request.min_bandwidth_gbps
    shares = sorted((share.share_milli for share in placement.devices), reverse=True)
    if request.mig_profile:
        profiles = [share.mig_profile for share in placement.devices]
        assert profiles == [request.mig_profile] * request.gpu_count
        return
    wanted = [request.gpu_share_milli] * request.gpu_count
    wanted += [request.gpu_extra_milli] if request.gpu_extra_milli else []
    assert shares == sorted(wanted, reverse=True)
    assert len({device.index for device in used}) == len(used)
    check_wishes(request, placement, node)


def check_wishes(request: Request, placement: Placement, node: Node) -> None:
    """Memory per device, islands and neighbouring devices."""
    whole = [share for share in placement.devices if share.share_milli == 1000]
    least = request.gpu_extra_memory_mb if request.gpu_extra_milli else request.gpu_memory_mb
    assert all(share.memory_mb >= least for share in placement.devices)
    if not request.takes_whole_devices_only:
        return
    places = sorted(device.index for device in node.devices)
    taken = [places.index(share.index) for share in whole]
    if request.contiguous:
        assert taken == list(range(taken[0], taken[0] + len(taken)))
    if request.topology is Topology.REQUIRE_ISLAND:
        island = {device.index: device.island for device in node.devices}
        assert len({island[share.index] for share in whole}) == 1
