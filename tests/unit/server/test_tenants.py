"""Tenants of the settings are created and updated at the start."""

import asyncio

import pytest

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import DEFAULT_TENANT
from gpu_scheduler.server.from_settings import set_up_tenants
from gpu_scheduler.settings.groups.network import TenantEntry
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.wire.tenants import TenantPatch
from tests.builders import a_core


def entry(tenant_id: str, **fields: object) -> TenantEntry:
    return TenantEntry(tenant_id, TenantPatch(**fields), "config.yaml, line 3")  # type: ignore[arg-type]


def set_up(store: MemoryStore, *entries: TenantEntry) -> None:
    async def run() -> None:
        loop = Loop(store, a_core, lambda: 1_000)
        loop.start()
        try:
            await set_up_tenants(loop, entries)
        finally:
            await loop.close()

    asyncio.run(run())


def test_missing_tenant_is_created() -> None:
    store = MemoryStore()
    set_up(store, entry("vision", linux_groups=["vision"], max_gpus=8))
    default, tenant = store.tenants()
    assert default.id == DEFAULT_TENANT
    assert (tenant.name, tenant.linux_groups, tenant.quota.gpu_milli) == (
        "vision",
        ("vision",),
        8000,
    )


def test_fields_absent_from_settings_are_unchanged() -> None:
    store = MemoryStore()
    set_up(store, entry("vision", max_gpus=8, admins=["ann"]))
    set_up(store, entry("vision", max_gpus=4))
    default, tenant = store.tenants()
    assert default.id == DEFAULT_TENANT
    assert (tenant.quota.gpu_milli, tenant.admins) == (4000, ("ann",))


def test_two_tenants_of_one_name_are_rejected() -> None:
    store = MemoryStore()
    set_up(store, entry("vision"))
    with pytest.raises(
        InvalidRequest, match=r"config\.yaml, line 3: tenant vision already has the name"
    ):
        set_up(store, entry("other", name="vision"))
