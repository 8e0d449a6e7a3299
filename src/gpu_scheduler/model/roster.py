"""Who belongs to which tenants: by Linux group, by name, or else to the default tenant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_scheduler.model.caller import DEFAULT_TENANT
from gpu_scheduler.model.tenant import Tenant

_Ids = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Belonging:
    """One user's tenants: the one that is meant if none is named, all, and those to look after."""

    tenant: str
    tenants: frozenset[str]
    administers: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """The tenants by what leads to them. A new one is made whenever a tenant changes."""

    by_group: Mapping[str, _Ids]
    by_user: Mapping[str, _Ids]
    by_admin: Mapping[str, _Ids]

    @classmethod
    def of(cls, tenants: Iterable[Tenant]) -> Roster:
        """The roster of these tenants."""
        by_group: dict[str, _Ids] = {}
        by_user: dict[str, _Ids] = {}
        by_admin: dict[str, _Ids] = {}
        for tenant in sorted(tenants, key=lambda one: one.id):
            for names, found in (
                (tenant.linux_groups, by_group),
                (tenant.users, by_user),
                (tenant.admins, by_admin),
            ):
                for name in names:
                    found[name] = (*found.get(name, ()), tenant.id)
        return cls(by_group, by_user, by_admin)

    def belonging(self, user: str, groups: Sequence[str]) -> Belonging:
        """Where a user of these groups, the primary one first, belongs.

        The first tenant is the one of the primary group, then by the user's own name, then of the
        other groups; whoever belongs to none belongs to the default tenant.
        """
        found: list[str] = []
        if groups:
            found += self.by_group.get(groups[0], ())
        found += self.by_user.get(user, ())
        for group in groups[1:]:
            found += self.by_group.get(group, ())
        administers = self.by_admin.get(user, ())
        found += administers
        first = found[0] if found else DEFAULT_TENANT
        return Belonging(first, frozenset(found or (DEFAULT_TENANT,)), frozenset(administers))
