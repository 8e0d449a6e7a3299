"""Pool guarantees while GPUs are unavailable."""

import pytest

from gpu_scheduler.engine.quota.admission import pool_guarantees
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.job import Pool


def guarantees(online: int, batch: int, usable: int, *, elastic: bool = True) -> tuple[int, int]:
    """The guarantees of 32 GPUs, in GPUs."""
    pools = {
        Pool.ONLINE: PoolQuota(pool=Pool.ONLINE, percent=online, elastic=elastic),
        Pool.BATCH: PoolQuota(pool=Pool.BATCH, percent=batch, elastic=elastic),
    }
    found = pool_guarantees(pools, total_milli=32_000, usable_milli=usable * 1000)
    return found[Pool.ONLINE] // 1000, found[Pool.BATCH] // 1000


@pytest.mark.parametrize(
    ("online", "batch", "usable", "expected"),
    [
        (25, 75, 32, (8, 24)),
        (25, 75, 24, (8, 16)),
        (25, 75, 4, (4, 0)),
        (25, 50, 24, (8, 16)),
        (25, 50, 16, (8, 8)),
        (50, 50, 0, (0, 0)),
    ],
)
def test_missing_capacity_reduces_batch_guarantee_first(
    online: int, batch: int, usable: int, expected: tuple[int, int]
) -> None:
    assert guarantees(online, batch, usable) == expected


def test_strict_batch_keeps_its_share_of_remaining_capacity() -> None:
    assert guarantees(50, 50, 16, elastic=False) == (16, 8)


def test_single_pool_gets_its_share_up_to_usable_capacity() -> None:
    pools = {Pool.BATCH: PoolQuota(pool=Pool.BATCH, percent=50)}
    assert pool_guarantees(pools, total_milli=32_000, usable_milli=24_000) == {Pool.BATCH: 16_000}
    assert pool_guarantees({}, total_milli=32_000, usable_milli=24_000) == {}
