"""Pool quotas of the settings, at the first start and at later ones."""

import asyncio
from collections.abc import Sequence

from structlog.testing import capture_logs

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.server.from_settings import set_up_pools
from gpu_scheduler.settings.groups.policy import PolicySettings
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import a_core


def started_with(*starts: PolicySettings) -> tuple[dict[str, int], Sequence[dict[str, object]]]:
    """The pools after these starts of one server, and its log of the last one."""

    async def run() -> tuple[dict[str, int], Sequence[dict[str, object]]]:
        store = MemoryStore()
        last: Sequence[dict[str, object]] = []
        for policy in starts:
            loop = Loop(store, lambda: a_core(nodes=[]), lambda: 1_000)
            loop.start()
            with capture_logs() as said:
                await set_up_pools(loop, policy)
            await loop.close()
            last = said
        return {quota.pool.value: quota.percent for quota in store.pools()}, last

    return asyncio.run(run())


def test_first_start_takes_pool_quotas_from_settings() -> None:
    wanted = PolicySettings(online_percent=30, batch_percent=70)
    assert started_with(wanted, wanted) == ({"batch": 70, "online": 30}, [])


def test_later_changed_pool_settings_give_warning() -> None:
    first, later = PolicySettings(online_percent=30), PolicySettings(online_percent=50)
    pools, said = started_with(first, later)
    assert pools == {"batch": 70, "online": 30}
    assert [line["log_level"] for line in said] == ["warning"]
    in_use = "batch 70 %; online 30 %"
    assert (said[0]["settings"], said[0]["in_use"]) == ("online 50 %; batch 50 %", in_use)


def test_absent_pool_settings_give_no_warning() -> None:
    pools = {"batch": 70, "online": 30}
    assert started_with(PolicySettings(online_percent=30), PolicySettings()) == (pools, [])


def test_other_pool_gets_rest_unless_quotas_are_strict() -> None:
    assert started_with(PolicySettings(batch_percent=60))[0] == {"batch": 60, "online": 40}
    strict = PolicySettings(online_percent=30, elastic=False)
    assert started_with(strict)[0] == {"online": 30}
