"""The quota tree of a fleet in the form of GET /quota/tree, from what the GpuQueues say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_scheduler.kubernetes.crds.queue import ANY_MODEL, GpuQueue
from gpu_scheduler.kubernetes.scheduler.objects_view import Key


def quota_documents(queues: Mapping[Key, GpuQueue]) -> list[dict[str, Any]]:
    """A line for each queue and model, each queue below its parent."""
    by_name = {queue.metadata.name: queue for queue in queues.values()}
    children: dict[str, list[str]] = {}
    for name, queue in sorted(by_name.items()):
        parent = queue.spec.parent if queue.spec.parent in by_name else ""
        children.setdefault(parent, []).append(name)
    found: list[dict[str, Any]] = []
    shown: set[str] = set()

    def add(names: list[str], level: int) -> None:
        for name in names:
            if name not in shown:  # queues that are below themselves come at the end
                shown.add(name)
                found.extend(_lines(by_name[name], level))
                add(children.get(name, []), level + 1)

    add(children.get("", []), 0)
    add(sorted(by_name), 0)
    return found


def _lines(queue: GpuQueue, level: int) -> list[dict[str, Any]]:
    quotas = {quota.model: quota for quota in queue.spec.quotas}
    uses = {use.model: use for use in queue.status.usage}
    lines = []
    for model in sorted({ANY_MODEL, *quotas, *uses}):
        quota, use = quotas.get(model), uses.get(model)
        guaranteed = 0 if quota is None else quota.guaranteed
        if model == ANY_MODEL and quota is None:
            guaranteed = sum(one.guaranteed for one in quotas.values())
        limit = None if quota is None else quota.borrowing_limit
        lines.append(
            {
                "name": queue.metadata.name,
                "parent": queue.spec.parent,
                "level": level,
                "model": model,
                "used_gpus": 0.0 if use is None else use.allocated,
                "guaranteed_gpus": float(guaranteed),
                "max_gpus": None if limit is None else float(guaranteed + limit),
                "borrowed_gpus": 0.0 if use is None else use.borrowed,
                "lent_gpus": 0.0 if use is None else use.lent,
            }
        )
    return lines
