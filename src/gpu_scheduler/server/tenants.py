"""The tenants that the settings name: made if they are not there, changed where they differ."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import SetTenant
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.settings.access import TenantEntry
from gpu_scheduler.wire.tenants import read_tenant

log = structlog.get_logger("server")


async def set_up_tenants(loop: Loop, entries: Iterable[TenantEntry]) -> None:
    """Set what the settings name of each; what they do not name stays as it was set before."""
    for entry in entries:
        stored = {tenant.id: tenant for tenant in loop.store.tenants()}
        known = stored.get(entry.id)
        tenant = read_tenant(entry.patch, known or Tenant(id=entry.id, name=entry.id))
        if tenant == known:
            continue
        for other in stored.values():
            if other.id != tenant.id and tenant.name in {other.name, other.id}:
                raise InvalidRequest(
                    f"{entry.origin}: the name '{tenant.name}' is taken by tenant {other.id}; "
                    "give another name"
                )
        await loop.apply(SetTenant(tenant))
        log.info("tenant set up" if known is None else "tenant changed", tenant=tenant.id)
