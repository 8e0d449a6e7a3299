"""Tenants in JSON and back."""

from typing import Any

import msgspec
import pytest

from gpu_scheduler.api.routes.tenants import tenant_form
from gpu_scheduler.engine.quota.admission import Amounts
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.tenant import Quota, Tenant, Tier
from gpu_scheduler.wire.tenants import TenantPatch, TenantRequest, read_tenant


def patched(known: Tenant, **fields: Any) -> Tenant:
    return read_tenant(msgspec.convert(fields, TenantPatch), known)


def test_omitted_limits_do_not_limit() -> None:
    asked = msgspec.convert({"name": "A", "max_gpus": 4}, TenantRequest)
    tenant = read_tenant(asked, Tenant(id="tenant-1"))
    assert tenant.quota == Quota(gpu_milli=4000)
    assert tenant_form(tenant, Amounts(), 0).max_cpu_cores is None


def test_tenant_round_trips() -> None:
    fields = {
        "name": "A",
        "max_gpus": 4.5,
        "max_gpu_memory_mb": 1000,
        "max_cpu_cores": 2,
        "max_memory_mb": 500,
        "max_concurrent_jobs": 3,
        "max_gpu_hours": 1.5,
        "priority_tier": "high",
        "fair_share_weight": 2.5,
        "allow_preemption": False,
        "can_preempt_others": False,
        "max_preemptions": 7,
        "elastic": True,
    }
    tenant = patched(Tenant(id="t"), **fields)
    assert tenant.tier is Tier.HIGH
    written = msgspec.to_builtins(tenant_form(tenant, Amounts(), 0))
    assert {name: written[name] for name in fields} == fields


def test_patch_changes_only_named_fields_and_null_removes_limit() -> None:
    known = patched(Tenant(id="t", name="A"), max_gpus=4, max_memory_mb=100)
    changed = patched(known, max_gpus=None)
    assert (changed.quota.gpu_milli, changed.quota.memory_mb, changed.name) == (None, 100, "A")


@pytest.mark.parametrize(("name", "why"), [("a\nb", "control character"), ("a/b", "slash")])
def test_name_unusable_in_path_is_rejected(name: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        patched(Tenant(id="t"), name=name)


@pytest.mark.parametrize(
    "fields", [{"max_gpus": -1}, {"fair_share_weight": 0}, {"priority_tier": "top"}, {"x": 1}]
)
def test_invalid_values_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, TenantPatch)
