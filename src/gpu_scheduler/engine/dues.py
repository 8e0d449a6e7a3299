"""What each pool is due of all GPUs, while some of them are out of use.

Online work is due its part of all GPUs, whatever is out of use: services are wanted as much when
nodes are drained. So what is missing is missing to batch work, which is due what is left of its
part. Where nothing is lent, that would leave GPUs idle, and batch work is due its part of those
that can be used.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.snapshot import PoolQuota

WHOLE_PERCENT = 100


def dues_of(
    pools: Mapping[Pool, PoolQuota], *, total_milli: int, usable_milli: int
) -> dict[Pool, int]:
    """What the pools with a part are due; `usable_milli` is what can be used or is held."""
    parts = {pool: total_milli * quota.percent // WHOLE_PERCENT for pool, quota in pools.items()}
    found = {pool: min(part, usable_milli) for pool, part in parts.items()}
    batch = pools.get(Pool.BATCH)
    if batch is not None and not batch.elastic:
        found[Pool.BATCH] = usable_milli * batch.percent // WHOLE_PERCENT
    elif batch is not None:
        # What neither pool has a part in is the first to be missed.
        spare = max(0, total_milli - sum(parts.values()))
        missing = max(0, total_milli - usable_milli - spare)
        found[Pool.BATCH] = max(0, parts[Pool.BATCH] - missing)
    return found
