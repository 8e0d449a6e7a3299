"""The quota tree of a cluster: every resource that it limits, and the nodes of each job.

Tenants with an elastic quota and the nodes of the configured tree are nodes of accounts. The two
pools divide the same GPUs a second time: they are the nodes of a column of their own, and a job
counts in one node of accounts and in its pool. In: tenants, pools, nodes and what is held. Out:
whether a job may start, may reclaim, or can be reclaimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_scheduler.engine.quota.resource_limits import (
    ROOT,
    Column,
    Entitlement,
    Key,
    Node,
    NodeLimits,
    Reclaimed,
)
from gpu_scheduler.model.cluster_snapshot import AccountUsage, PoolQuota
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.quota_tree import ANY_MODEL, QuotaNode
from gpu_scheduler.model.tenant import Tenant

if TYPE_CHECKING:
    from gpu_scheduler.engine.queue import GroupKey
    from gpu_scheduler.engine.quota.admission import Amounts, Holdings

HOURS = "GPU-hours"
POOLS = "pools"
_NO_USAGE = AccountUsage()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLimits:
    """What the tree is built from.

    `capacity` are the GPUs of the cluster by model. `node_usage` is the use of budgets by node.
    """

    tenants: Mapping[str, Tenant]
    nodes: Mapping[str, QuotaNode] = field(default_factory=dict)
    pools: Mapping[Pool, PoolQuota] = field(default_factory=dict)
    pool_guarantees: Mapping[Pool, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    node_usage: Mapping[str, AccountUsage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Right:
    """The right of a job to reclaim one resource."""

    resource: str
    entitlement: Entitlement


class QuotaTree:
    """The columns of all resources; `models` have one each. A cycle works on its own copy."""

    def __init__(self, limits: TreeLimits, kept: Mapping[str, int] | None = None) -> None:
        """`kept` is what elastic tenants do not lend."""
        self._nodes = limits.nodes
        self._users: dict[str, list[Key]] = {}
        for name in limits.nodes:
            tenant, is_of_user, _ = name.partition("/")
            if is_of_user:
                self._users.setdefault(tenant, []).append(name)
        self.pools = Column(
            POOLS,
            [
                NodeLimits(
                    key=pool,
                    guaranteed=limits.pool_guarantees[pool],
                    maximum=None if quota.elastic else limits.pool_guarantees[pool],
                    kept=0 if quota.elastic else limits.pool_guarantees[pool],
                    yields=pool is Pool.BATCH,
                )
                for pool, quota in limits.pools.items()
            ],
        )
        self.accounts: dict[str, Column] = {}
        self.models: list[str] = []
        elastic = {
            tenant.id: tenant.quota.gpu_milli
            for tenant in limits.tenants.values()
            if tenant.elastic and tenant.quota.gpu_milli is not None
        }
        if limits.nodes or elastic:
            self._add_gpus(limits, elastic, kept or {})
        budgets = [node for node in limits.nodes.values() if node.budget_gpu_milli_ms is not None]
        if budgets:
            self._add_hours(limits)

    def _add_gpus(
        self, limits: TreeLimits, elastic: dict[str, int], kept: Mapping[str, int]
    ) -> None:
        models = {ANY_MODEL: None, **{m: None for n in limits.nodes.values() for m in n.by_model}}
        for model in models:
            nodes = []
            for node in limits.nodes.values():
                quota = node.by_model.get(model)
                guaranteed = 0 if quota is None else quota.guaranteed_milli
                if model == ANY_MODEL and not node.quotas:
                    guaranteed = elastic.get(node.name, 0)
                lends = None if quota is None else quota.lending_limit_milli
                nodes.append(
                    NodeLimits(
                        key=node.name,
                        parent=node.parent or ROOT,
                        guaranteed=guaranteed,
                        maximum=None if quota is None else quota.most_milli,
                        kept=0 if lends is None else guaranteed - lends,
                    )
                )
            if model == ANY_MODEL:
                nodes += [
                    NodeLimits(key=tenant, guaranteed=milli, kept=kept.get(tenant, 0))
                    for tenant, milli in elastic.items()
                    if tenant not in limits.nodes
                ]
            capacity = limits.capacity.get(model, 0) if limits.nodes else None
            self.accounts[model] = Column(model, nodes, capacity)
        self.models = [model for model in models if model != ANY_MODEL]

    def _add_hours(self, limits: TreeLimits) -> None:
        nodes = []
        for node in limits.nodes.values():
            most = node.budget_gpu_milli_ms
            if most is not None:
                spent = limits.node_usage.get(node.name, _NO_USAGE).spent_gpu_milli_ms
                most = max(0, most - spent)
            nodes.append(NodeLimits(key=node.name, parent=node.parent or ROOT, maximum=most))
        self.accounts[HOURS] = Column(HOURS, nodes)

    def copy(self) -> QuotaTree:
        """A copy that can be changed without changing this."""
        copy = QuotaTree(TreeLimits(tenants={}, nodes={}))
        copy._nodes, copy._users, copy.models = self._nodes, self._users, self.models
        copy.pools = self.pools.copy()
        copy.accounts = {name: column.copy() for name, column in self.accounts.items()}
        return copy

    def leaf(self, tenant: str, user: str) -> Key | None:
        """The node of a user's jobs in a tenant; None if no node limits them."""
        if not self.accounts:
            return None
        if tenant in self._users and (of_user := f"{tenant}/{user}") in self._nodes:
            return of_user
        if tenant in self.accounts[ANY_MODEL].nodes:
            return tenant
        return ROOT if self._nodes else None

    def has_users(self, tenant: str) -> bool:
        """Tell whether users of a tenant have nodes of their own."""
        return tenant in self._users

    def leaves(self, tenant: str) -> list[Key]:
        """All nodes of a tenant's jobs."""
        leaf = self.leaf(tenant, "")
        users = self._users.get(tenant, [])
        return users if leaf is None else [leaf, *users]

    def add(self, job: Job, amounts: Amounts, sign: int = 1) -> None:
        """A job holds so much more (or less)."""
        for column, node in self._held(job):
            node.add(sign * amounts.of(column.name))

    def load(self, holdings: Holdings, waiting: Mapping[GroupKey, int]) -> None:
        """Begin with what all accounts hold, and the GPUs that their waiting jobs need."""
        pools = self.pools.nodes
        online = sum(milli for (_, _, pool), milli in waiting.items() if pool is Pool.ONLINE)
        self.pools.load(
            {pool: milli for pool, milli in holdings.pools.items() if pool in pools},
            {Pool.ONLINE: online} if Pool.ONLINE in pools else {},
        )
        held = [(tenant, "", amounts) for tenant, amounts in holdings.tenants.items()]
        for (tenant, user), amounts in holdings.users.items():
            if f"{tenant}/{user}" in self._nodes:
                held.append((tenant, user, amounts))
        needed: dict[Key, int] = {}
        for (tenant, user, _), milli in waiting.items():
            leaf = self.leaf(tenant, user)
            if leaf in self._nodes:
                needed[leaf] = needed.get(leaf, 0) + milli
        for resource, column in self.accounts.items():
            in_leaf: dict[Key, int] = {}
            for tenant, user, amounts in held:
                leaf = self.leaf(tenant, user)
                if leaf is not None:
                    milli = amounts.of(resource)
                    in_leaf[leaf] = in_leaf.get(leaf, 0) + milli
                    if user:
                        of_rest = self.leaf(tenant, "")
                        in_leaf[of_rest] = in_leaf.get(of_rest, 0) - milli
            column.load(in_leaf, needed if resource == ANY_MODEL else {})

    def wait(self, tenant: str, user: str, pool: Pool, milli: int) -> None:
        """So much more of an account waits (or less): what it needs of its guarantee is not lent.

        Batch work waits for nothing that it could not reclaim.
        """
        if pool is Pool.ONLINE and pool in self.pools.nodes:
            self.pools.at(pool).wait(milli)
        leaf = self.leaf(tenant, user)
        if leaf in self._nodes:
            self.accounts[ANY_MODEL].at(leaf).wait(milli)

    def _held(self, job: Job) -> Iterator[tuple[Column, Node]]:
        """The columns that count a job, each with its node."""
        if job.pool in self.pools.nodes:
            yield self.pools, self.pools.at(job.pool)
        leaf = self.leaf(job.tenant, job.user)
        if leaf is not None:
            for column in self.accounts.values():
                yield column, column.at(leaf)

    def reclaim(self, reclaimed: Reclaimed, job: Job, amounts: Amounts) -> None:
        """Count what is being reclaimed from a job."""
        for column, leaf in self._held(job):
            milli = amounts.of(column.name)
            for node in leaf.path if milli else ():
                key = (column.name, node.key)
                reclaimed[key] = reclaimed.get(key, 0) + milli

    def path(self, job: Job) -> frozenset[Key]:
        """The nodes of accounts that a job counts in; a tenant may be named like a pool."""
        leaf = self.leaf(job.tenant, job.user)
        if leaf is None:
            return frozenset()
        return frozenset(node.key for node in self.accounts[ANY_MODEL].at(leaf).path)

    def _reclaimable(self, amounts: Amounts) -> str:
        """What a job reclaims: a guarantee of its GPU model comes before one of all models."""
        own = [model for model in self.models if model in amounts.models]
        return own[0] if len(own) == 1 else ANY_MODEL

    def has_right(self, job: Job, amounts: Amounts) -> bool:
        """Tell whether a waiting job is within a guarantee, so that it may reclaim."""
        leaf = self.leaf(job.tenant, job.user)
        if leaf is None or not amounts.gpu_milli:
            return False
        resource = self._reclaimable(amounts)
        return self.accounts[resource].is_entitled(leaf, amounts.of(resource))

    def right(self, job: Job, amounts: Amounts, resource: str = "") -> Right | None:
        """The right of a waiting job to reclaim a resource, or None.

        Without a `resource`, that of its GPU model comes before that of all models.
        """
        resource = resource or self._reclaimable(amounts)
        leaf = self.leaf(job.tenant, job.user)
        if leaf is None or not amounts.of(resource):
            return None
        found = self.accounts[resource].entitlement(leaf, amounts.of(resource))
        return None if found is None else Right(resource, found)

    def lends(self, pool: Pool) -> bool:
        """Tell whether a pool is elastic: it lends, borrows and reclaims."""
        node = self.pools.nodes.get(pool)
        return node is not None and node.limits.maximum is None

    def pool_right(self, job: Job, amounts: Amounts) -> Right | None:
        """The right of a waiting job to reclaim what its pool lent, or None."""
        if not self.lends(job.pool):
            return None
        found = self.pools.entitlement(job.pool, amounts.gpu_milli)
        return None if found is None else Right(POOLS, found)

    def may_reclaim(self, tenant: str, user: str, milli: int = 1) -> bool:
        """Tell whether jobs of a user with so many GPUs are within a guarantee.

        Those of some model may be; if more than the least is asked for, those of all models are.
        """
        leaf = self.leaf(tenant, user)
        found = (
            self.accounts[resource].is_entitled(leaf, milli)
            for resource in (ANY_MODEL, *self.models)
        )
        return leaf is not None and (any(found) if milli == 1 else all(found))

    def is_at_maximum(self, tenant: str, user: str, milli: int) -> bool:
        """Tell whether a node is at its maximum for a job of so many GPUs."""
        leaf = self.leaf(tenant, user)
        return leaf is not None and any(
            column.over_maximum(leaf, milli) is not None
            for name, column in self.accounts.items()
            if name != HOURS
        )

    def is_lent(self, right: Right, job: Job, amounts: Amounts, reclaimed: Reclaimed) -> bool:
        """Tell whether a running job holds what the entitled one may reclaim.

        What a pool lent is taken from any account. Otherwise nothing is taken from within a
        guarantee of a model, nor, unless a model is reclaimed, from within one of all models.
        """
        milli, entitlement = amounts.of(right.resource), right.entitlement
        if right.resource == POOLS:
            return bool(milli) and self.pools.is_lent(entitlement, job.pool, milli, reclaimed)
        leaf = self.leaf(job.tenant, job.user)
        if leaf is None or not milli:
            return False
        if not self.accounts[right.resource].is_lent(entitlement, leaf, milli, reclaimed):
            return False
        return all(
            self.accounts[model].leaves_guarantees(
                leaf, amounts.of(model), entitlement.path, reclaimed
            )
            for model in self.models
            if model != right.resource and amounts.of(model)
        )

    def is_guaranteed(
        self, job: Job, amounts: Amounts, path: frozenset[Key], reclaimed: Reclaimed
    ) -> bool:
        """Tell whether a running job is within the guarantee of a node that is not on the path."""
        leaf = self.leaf(job.tenant, job.user)
        return leaf is not None and not all(
            column.leaves_guarantees(leaf, amounts.of(name), path, reclaimed)
            for name, column in self.accounts.items()
            if name != HOURS and amounts.of(name)
        )

    def is_guaranteed_to_pool(
        self, job: Job, amounts: Amounts, pool: Pool, reclaimed: Reclaimed
    ) -> bool:
        """Tell whether a running job uses the guarantee of another pool than this one.

        Jobs without GPUs do so while their pool holds no more than that.
        """
        if job.pool is pool or job.pool not in self.pools.nodes:
            return False
        milli, path = max(1, amounts.gpu_milli), frozenset((pool,))
        return not (
            self.lends(job.pool) and self.pools.leaves_guarantees(job.pool, milli, path, reclaimed)
        )

    def lends_to(self, right: Right, tenant: str, pool: Pool) -> bool:
        """Tell whether some job of a tenant in a pool may hold what can be reclaimed."""
        if right.resource == POOLS:
            return self.pools.is_lent(right.entitlement, pool, 1, {})
        column = self.accounts[right.resource]
        return any(column.is_lent(right.entitlement, leaf, 1, {}) for leaf in self.leaves(tenant))
