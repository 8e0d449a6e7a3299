"""The quota tree: organisations, departments, teams and users with their part of the GPUs.

A node whose name is the id of a tenant holds the jobs of that tenant, and `TENANT/USER` those of
one user in it; all other nodes are groups. A guarantee of a node includes those of its children.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import BudgetPeriod

ANY_MODEL = "*"
"""Stands for GPUs of all models together."""
CLUSTER = "cluster"
"""The name of the root in tables."""
WHOLE_CLUSTER = "the cluster"
"""The name of the root in reasons."""
MOST_LEVELS = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(/[A-Za-z0-9_][A-Za-z0-9._@$-]{0,255})?")


class InvalidNode(InvalidRequest):
    """A node of the quota tree contradicts itself or another one."""

    def __init__(self, node: str, message: str) -> None:
        super().__init__(message)
        self.node = node


def check_node_name(name: str) -> None:
    """Reject a name that is neither an id like that of a tenant nor TENANT/USER."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidNode(
            name,
            f"'{name[:80]}' is not the name of a node; use letters, digits, '.', '_', '-', and "
            "TENANT/USER for one user",
        )
    if name == CLUSTER:
        raise InvalidNode(name, f"'{CLUSTER}' is the name of the root; choose another name")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuota:
    """The part of a node in the GPUs of one model, or of all models together; None: no limit.

    It can always have what is `guaranteed`. With idle GPUs of others it may hold up to
    `borrowing_limit_milli` more, and never more than `maximum_milli`. Of its own idle guarantee it
    lends up to `lending_limit_milli`.
    """

    model: str = ANY_MODEL
    guaranteed_milli: int = 0
    maximum_milli: int | None = None
    borrowing_limit_milli: int | None = None
    lending_limit_milli: int | None = None

    @property
    def most_milli(self) -> int | None:
        """The most that the node may hold, with what it borrows."""
        limits = [] if self.maximum_milli is None else [self.maximum_milli]
        if self.borrowing_limit_milli is not None:
            limits.append(self.guaranteed_milli + self.borrowing_limit_milli)
        return min(limits, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNode:
    """A node of the quota tree. Without a parent it is below the root, which is the cluster.

    `quotas` has one entry for each GPU model, or one for all models. The weight is that of its fair
    share among the children of its parent (None: that of its tenant). `budget_gpu_milli_ms` is GPU
    time for each period. `origin` says where it was declared, for warnings.
    """

    name: str
    parent: str = ""
    quotas: tuple[NodeQuota, ...] = ()
    weight_milli: int | None = None
    budget_gpu_milli_ms: int | None = None
    budget_period: BudgetPeriod = BudgetPeriod.MONTH
    origin: str = field(default="", repr=False, compare=False)
    by_model: dict[str, NodeQuota] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the quotas by model; without one for all models, that is their sum."""
        by_model = {quota.model: quota for quota in self.quotas}
        if ANY_MODEL not in by_model:
            total = sum(quota.guaranteed_milli for quota in self.quotas)
            by_model[ANY_MODEL] = NodeQuota(guaranteed_milli=total)
        object.__setattr__(self, "by_model", by_model)

    def guaranteed_milli(self, model: str = ANY_MODEL) -> int:
        """What is guaranteed of one model, or of all together."""
        quota = self.by_model.get(model)
        return 0 if quota is None else quota.guaranteed_milli


def ancestors(nodes: Mapping[str, QuotaNode], name: str) -> Iterator[str]:
    """The names of the nodes above a node, the lowest first."""
    node = nodes.get(name)
    while node is not None and node.parent:
        yield node.parent
        node = nodes[node.parent]


def unmatched_names(
    nodes: Iterable[QuotaNode], *, tenants: Collection[str], models: Collection[str]
) -> list[str]:
    """Warnings about nodes that hold no tenant's jobs, and about GPU models that no device has.

    Without any model, as no node has registered yet, models are not checked.
    """
    by_name = {node.name: node for node in nodes}
    parents = {node.parent for node in by_name.values()}
    of_users = {name.partition("/")[0] for name in by_name if "/" in name}
    free = sorted(set(tenants) - by_name.keys())
    found = []
    for name, node in sorted(by_name.items()):
        place = f"{node.origin}: " if node.origin else ""
        if "/" not in name and name not in tenants and (name in of_users or name not in parents):
            why = "users of a tenant" if name in of_users else "no children"
            advice = _did_you_mean(name, free) or "create the tenant, or give the node children"
            found.append(
                f"{place}node '{name}' of quota_tree has {why} and is not the id of a tenant, so "
                f"no job counts in it; {advice}"
            )
        for model in sorted({quota.model for quota in node.quotas} - {ANY_MODEL, *models}):
            if models:
                advice = _did_you_mean(model, sorted(models)) or f"there are {_list(models)}"
                found.append(
                    f"{place}node '{name}' of quota_tree limits GPUs of model '{model}', and no "
                    f"node has such GPUs; {advice}"
                )
    return found


def _did_you_mean(name: str, known: list[str]) -> str:
    lower = {each.lower(): each for each in reversed(known)}
    close = get_close_matches(name.lower(), lower, n=1)
    return f"did you mean '{lower[close[0]]}'?" if close else ""


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def checked_tree(nodes: Iterable[QuotaNode]) -> tuple[QuotaNode, ...]:
    """The nodes in the order of their names; an error names the node and what is wrong with it."""
    by_name: dict[str, QuotaNode] = {}
    for node in nodes:
        if node.name in by_name:
            raise InvalidNode(node.name, f"node '{node.name}' is there twice; remove one")
        by_name[node.name] = node
    for node in by_name.values():
        _check_parents(node, by_name)
        for quota in node.quotas:
            _check_quota(node, quota)
        _check_total(node)
    for node in by_name.values():
        _check_children(node, [child for child in by_name.values() if child.parent == node.name])
    return tuple(by_name[name] for name in sorted(by_name))


def _check_parents(node: QuotaNode, by_name: dict[str, QuotaNode]) -> None:
    tenant, slash, _ = node.name.partition("/")
    if slash and node.parent != tenant:
        raise InvalidNode(
            node.name,
            f"node '{node.name}' is for one user of tenant '{tenant}', and its parent is "
            f"'{node.parent}'; write parent: {tenant}",
        )
    seen = [node.name]
    parent = node.parent
    while parent:
        if parent not in by_name:
            raise InvalidNode(
                node.name,
                f"node '{seen[-1]}' has parent '{parent}', which is not in the tree; add a node "
                f"'{parent}' or leave out the parent",
            )
        if parent in seen:
            path = " -> ".join([*seen, parent])
            raise InvalidNode(
                node.name, f"node '{node.name}' is below itself ({path}); change a parent"
            )
        seen.append(parent)
        parent = by_name[parent].parent
    if len(seen) > MOST_LEVELS:
        raise InvalidNode(
            node.name,
            f"node '{node.name}' is on level {len(seen)}; at most {MOST_LEVELS} levels are allowed",
        )


def _check_quota(node: QuotaNode, quota: NodeQuota) -> None:
    of = "" if quota.model == ANY_MODEL else f" of {quota.model}"
    most = quota.maximum_milli
    if most is not None and most < quota.guaranteed_milli:
        raise InvalidNode(
            node.name,
            f"node '{node.name}' is guaranteed {_gpus(quota.guaranteed_milli)}{of}, and its "
            f"maximum is {_gpus(most)}; the maximum must not be less",
        )
    lends = quota.lending_limit_milli
    if lends is not None and lends > quota.guaranteed_milli:
        raise InvalidNode(
            node.name,
            f"node '{node.name}' may lend {_gpus(lends)}{of}, and is guaranteed "
            f"{_gpus(quota.guaranteed_milli)}; it cannot lend more than it is guaranteed",
        )


def _check_total(node: QuotaNode) -> None:
    models = [quota for quota in node.quotas if quota.model != ANY_MODEL]
    if len({quota.model for quota in node.quotas}) < len(node.quotas):
        raise InvalidNode(node.name, f"node '{node.name}' has two quotas for one model; remove one")
    total = sum(quota.guaranteed_milli for quota in models)
    if total > node.guaranteed_milli():
        raise InvalidNode(
            node.name,
            f"node '{node.name}' is guaranteed {_gpus(node.guaranteed_milli())} in total, and "
            f"{_gpus(total)} by model; the total must not be less",
        )


def _check_children(node: QuotaNode, children: list[QuotaNode]) -> None:
    models = {model for each in (node, *children) for model in each.by_model}
    for model in sorted(models):
        parts = sum(child.guaranteed_milli(model) for child in children)
        own = node.guaranteed_milli(model)
        if parts > own:
            of = "" if model == ANY_MODEL else f" of {model}"
            raise InvalidNode(
                node.name,
                f"node '{node.name}' is guaranteed {_gpus(own)}{of}, and its children "
                f"{_gpus(parts)} together; a guarantee includes those of the children",
            )


def _gpus(milli: int) -> str:
    return f"{milli / WHOLE_MILLI:g} GPUs"
