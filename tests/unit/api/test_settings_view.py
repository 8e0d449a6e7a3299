"""The settings of the running server: for admins only, and without secrets."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.settings.catalogue import plain_values
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.schema import Settings
from tests.unit.api.lab import ApiLab


class ByHeader:
    def caller(self, peer: Any, headers: Mapping[bytes, bytes]) -> Caller | None:
        role = Role(headers.get(b"x-role", b"admin").decode())
        return Caller(user="ada", uid=5000, role=role)


def test_settings_are_for_admins() -> None:
    with ApiLab(authenticators=[ByHeader()]) as lab:
        for role in (Role.VIEWER, Role.USER, Role.TENANT_ADMIN):
            assert lab.get("/settings", headers={"X-Role": role.value}).status == 403
        found = lab.get("/settings").json["settings"]
        assert [one["key"] for one in found] == list(plain_values(Settings()))
        assert not any(one["changed"] for one in found)


def test_secrets_and_addresses_of_webhooks_are_hidden() -> None:
    chat = Target(kind="webhook", events=(), url="https://hooks.example/path")
    default = Settings()
    settings = replace(
        default,
        database=replace(default.database, password="hunter2"),
        notifications=replace(default.notifications, targets={"chat": chat}),
    )
    with ApiLab(running=settings) as lab:
        found = {one["key"]: one for one in lab.get("/settings").json["settings"]}
    assert found["database.password"]["value"] == '"(hidden)"'
    assert '"url":"(hidden)"' in found["notifications.targets"]["value"]
    assert not any("hunter2" in one["value"] or "hooks" in one["value"] for one in found.values())
