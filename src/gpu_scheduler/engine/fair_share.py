"""Fair share: decayed usage of tenants and users in, a penalty on their waiting jobs out.

In a quota tree every level counts: a node is compared with the other children of its parent, and
the penalties of all levels are added up. Tenants outside the tree are children of the root.

The penalty is in milliseconds of waiting, like every other weight of the order, so that aging wins
in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_scheduler.engine.policy import HOUR_MS
from gpu_scheduler.engine.queue import Entry, GroupKey
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.quota_tree import QuotaNode, ancestors
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI

MILLI = 1000
PROJECTED_MS = HOUR_MS
"""A job that starts counts at once as if it had run for up to an hour; later, control adds that."""
LEAST_USAGE = WHOLE_MILLI * HOUR_MS
"""Shares are measured against at least a GPU-hour each, so that a cold start is fair as well."""


def fair_ratio_milli(usage: int, weight_milli: int, total_usage: int, total_weight: int) -> int:
    """How many fair shares an account has had: 1000 is exactly its fair share."""
    if total_usage <= 0:
        return 0
    return usage * total_weight * MILLI // (weight_milli * total_usage)


def subtree_usage(state: ClusterState, tenants: Iterable[str]) -> dict[str, int]:
    """The decayed usage of these tenants, and of every node of the tree with all below it."""
    found: dict[str, int] = {}
    for tenant in dict.fromkeys((*tenants, *state.quota_nodes)):
        usage = state.tenant_usage.get(tenant)
        if usage is not None:
            for name in (tenant, *ancestors(state.quota_nodes, tenant)):
                found[name] = found.get(name, 0) + usage.usage
    return found


def deserved_ppm(
    nodes: Mapping[str, QuotaNode], tenants: Mapping[str, int], names: Iterable[str]
) -> dict[str, int]:
    """The part of all GPUs, in millionths, that is fair for each of these tenants by weight.

    `tenants` are the weights of tenants; those of the tree's nodes take precedence. Only `names`
    take part: what others leave is divided among them, level by level.
    """
    paths = {name: [name, *ancestors(nodes, name)] for name in names}
    weights: dict[str, dict[str, int]] = {}
    for path in paths.values():
        for name in path:
            node = nodes.get(name)
            own = None if node is None else node.weight_milli
            weight = tenants.get(name, WEIGHT_ONE_MILLI) if own is None else own
            weights.setdefault("" if node is None else node.parent, {})[name] = weight
    found = {}
    for tenant, path in paths.items():
        part = 1_000_000
        for name in path:
            siblings = weights[nodes[name].parent if name in nodes else ""]
            part = part * siblings[name] // sum(siblings.values())
        found[tenant] = part
    return found


@dataclass(slots=True)
class _Level:
    """The children of one parent that have waiting jobs: their usage and weights together."""

    usage: int = 0
    weight_milli: int = 0
    count: int = 0

    def add(self, usage: int, weight_milli: int) -> None:
        """Count one more child."""
        self.usage += usage
        self.weight_milli += weight_milli
        self.count += 1

    def ratio_milli(self, usage: int, weight_milli: int) -> int:
        """How many fair shares a child with this usage has had."""
        total = max(self.usage, LEAST_USAGE * self.count)
        return fair_ratio_milli(usage, weight_milli, total, self.weight_milli)


class FairShare:
    """What the decayed usage of each account adds to the keys of its waiting jobs, in milliseconds.

    It only grows during a cycle, as the cycle starts jobs.
    """

    def __init__(self, state: ClusterState) -> None:
        """Sum up the usage of all accounts that have waiting jobs."""
        order = state.policy.order
        self._order = order
        self._state = state
        self._on = order.is_fair
        self._added: dict[str | tuple[str, str], int] = {}
        self._parts: dict[str | tuple[str, str], int] = {}
        self._cache: dict[tuple[str, str], int] = {}
        if not self._on:
            return
        accounts = dict.fromkeys((key[0], key[1]) for key in state.queue.groups)
        active = dict.fromkeys(tenant for tenant, _ in accounts)
        nodes = state.quota_nodes
        self._path = {tenant: [tenant, *ancestors(nodes, tenant)] for tenant in active}
        self._usage = subtree_usage(state, active)
        self._levels: dict[str, _Level] = {}
        for name in dict.fromkeys(name for path in self._path.values() for name in path):
            parent = nodes[name].parent if name in nodes else ""
            level = self._levels.setdefault(parent, _Level())
            level.add(self._usage.get(name, 0), self._weight(name))
        self._users: dict[str, _Level] = {}
        for tenant, user in accounts:
            level = self._users.setdefault(tenant, _Level())
            level.add(self._user_usage(tenant, user), self._user_weight(tenant, user))

    def penalty_ms(self, group: GroupKey) -> int:
        """How far back an account's use puts its jobs now."""
        if not self._on:
            return 0
        account = (group[0], group[1])
        penalty = self._cache.get(account)
        if penalty is None:
            penalty = self._cache[account] = self._penalty(*account)
        return penalty

    def penalties_ms(self) -> tuple[tuple[tuple[str, str], int], ...]:
        """The penalties of all accounts with waiting jobs; empty without fair share."""
        if not self._on:
            return ()
        accounts = {(tenant, user): pool for tenant, user, pool in self._state.queue.groups}
        return tuple((key, self.penalty_ms((*key, accounts[key]))) for key in sorted(accounts))

    def order_value(self, entry: Entry) -> int:
        """The place of a job in the order now: its static key and the penalty of its account."""
        return entry.key + self.penalty_ms(entry.group.key)

    def add_start(self, job: Job, gpu_milli: int, expected_ms: int) -> None:
        """Count a job that the cycle starts, so that one account does not get everything."""
        if not self._on:
            return
        usage = gpu_milli * min(expected_ms, PROJECTED_MS)
        path = self._path[job.tenant]
        accounts: list[str | tuple[str, str]] = [*path, (job.tenant, job.user)]
        for account in accounts:
            self._added[account] = self._added.get(account, 0) + usage
            self._parts.pop(account, None)
        # What a node above the tenant has used counts for all tenants below it.
        self._cache.clear()

    def _weight(self, name: str) -> int:
        """The weight of a node among the children of its parent."""
        node = self._state.quota_nodes.get(name)
        if node is not None and node.weight_milli is not None:
            return node.weight_milli
        return self._state.tenant(name).weight_milli

    def _user_weight(self, tenant: str, user: str) -> int:
        node = self._state.quota_nodes.get(f"{tenant}/{user}")
        weight = None if node is None else node.weight_milli
        return WEIGHT_ONE_MILLI if weight is None else weight

    def _user_usage(self, tenant: str, user: str) -> int:
        usage = self._state.user_usage.get((tenant, user))
        return self._added.get((tenant, user), 0) + (usage.usage if usage else 0)

    def _penalty(self, tenant: str, user: str) -> int:
        found = 0
        if self._order.fair_ms:
            found += sum(self._part_of_node(name) for name in self._path[tenant])
        if self._order.user_fair_ms:
            found += self._part_of_user(tenant, user)
        return found

    def _part_of_node(self, name: str) -> int:
        """What the use of a node adds to all jobs below it."""
        part = self._parts.get(name)
        if part is None:
            nodes = self._state.quota_nodes
            level = self._levels[nodes[name].parent if name in nodes else ""]
            usage = self._usage.get(name, 0) + self._added.get(name, 0)
            ratio = level.ratio_milli(usage, self._weight(name))
            part = self._parts[name] = self._order.fair_ms * self._capped(ratio) // MILLI
        return part

    def _part_of_user(self, tenant: str, user: str) -> int:
        """What the use of a user adds to its jobs."""
        part = self._parts.get((tenant, user))
        if part is None:
            usage = self._user_usage(tenant, user)
            ratio = self._users[tenant].ratio_milli(usage, self._user_weight(tenant, user))
            part = self._order.user_fair_ms * self._capped(ratio) // MILLI
            self._parts[tenant, user] = part
        return part

    def _capped(self, ratio_milli: int) -> int:
        return min(self._order.fair_cap * MILLI, ratio_milli)
