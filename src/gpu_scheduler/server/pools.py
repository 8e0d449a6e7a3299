"""The parts of the pools: from the settings on the first start, later on as they were set."""

from __future__ import annotations

import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import SetPools
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.settings.policy import PolicySettings

WHOLE = 100
log = structlog.get_logger("server")


async def set_up_pools(loop: Loop, policy: PolicySettings) -> None:
    """Set what the settings say if nothing is stored; if that differs, say which of them holds."""
    wanted = [
        PoolQuota(pool=pool, percent=percent, elastic=policy.elastic)
        for pool, percent in (
            (Pool.ONLINE, policy.online_percent),
            (Pool.BATCH, policy.batch_percent),
        )
        if percent < WHOLE
    ]
    if len(wanted) == 1 and policy.elastic:
        wanted.append(_the_rest(wanted[0]))
    stored = [quota for quota in loop.store.pools() if quota.percent < WHOLE]
    if not loop.store.pools():
        if wanted:
            await loop.apply(SetPools(tuple(wanted)))
    elif wanted and _by_pool(wanted) != _by_pool(stored):
        log.warning(
            "the settings of the pools are not used, as others were set before; "
            "change those with PUT /api/v1/quota",
            settings=_text(wanted),
            in_use=_text(stored),
        )


def _the_rest(quota: PoolQuota) -> PoolQuota:
    """What the other pool is sure of, if only one was set: with all it could never give back."""
    other = Pool.BATCH if quota.pool is Pool.ONLINE else Pool.ONLINE
    return PoolQuota(pool=other, percent=WHOLE - quota.percent, elastic=quota.elastic)


def _by_pool(quotas: list[PoolQuota]) -> dict[Pool, PoolQuota]:
    return {quota.pool: quota for quota in quotas}


def _text(quotas: list[PoolQuota]) -> str:
    parts = [
        f"{quota.pool.value} {quota.percent} %{'' if quota.elastic else ', not elastic'}"
        for quota in quotas
    ]
    return "; ".join(parts) or "no limits"
