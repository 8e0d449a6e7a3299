"""Tenant membership."""

from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.tenant import Tenant, TenantDirectory, TenantMembership

VISION = Tenant(id="vision", linux_groups=("vision", "cameras"), admins=("ann",))
AUDIO = Tenant(id="audio", linux_groups=("audio",), users=("ben",))
ROSTER = TenantDirectory.of([VISION, AUDIO])


def test_linux_group_maps_to_tenant() -> None:
    found = ROSTER.membership("eve", ("eve", "cameras"))
    assert found == TenantMembership("vision", frozenset({"vision"}), frozenset())


def test_user_without_tenant_belongs_to_default_tenant() -> None:
    assert ROSTER.membership("eve", ("eve",)).tenants == {"default"}
    assert ROSTER.membership("eve", ()).tenant == "default"


def test_user_with_tenant_does_not_belong_to_default_tenant() -> None:
    assert "default" not in ROSTER.membership("ben", ("ben",)).tenants


def test_primary_group_precedes_name_which_precedes_other_groups() -> None:
    assert ROSTER.membership("ben", ("vision", "audio")).tenant == "vision"
    assert ROSTER.membership("ben", ("ben", "vision")).tenant == "audio"
    assert ROSTER.membership("ben", ("ben", "vision")).tenants == {"audio", "vision"}


def test_tenant_admin_belongs_to_tenant() -> None:
    found = ROSTER.membership("ann", ("ann",))
    assert (found.tenant, found.administers) == ("vision", {"vision"})


def test_roles_are_ordered() -> None:
    assert sorted(Role, key=lambda role: role.rank) == [
        Role.VIEWER,
        Role.USER,
        Role.TENANT_ADMIN,
        Role.ADMIN,
    ]


def test_confined_caller_does_not_see_its_jobs_in_other_tenants() -> None:
    token = Caller(user="ann", tenants=frozenset({"vision"}), confined=True)
    assert token.may_touch("ann", "vision")
    assert not token.may_see("ann", "audio")
    assert Caller(user="ann").may_see("ann", "audio")


def test_viewer_sees_its_own_and_changes_nothing() -> None:
    viewer = Caller(user="ann", role=Role.VIEWER)
    assert viewer.may_see("ann", "default")
    assert not viewer.may_touch("ann", "default")
    assert not viewer.may_submit_to("default")
