"""Every setting: its type, default, range, choices, environment variable and aliases."""

from gpu_scheduler.settings.catalogue import ITEMS, json_schema
from gpu_scheduler.settings.sources import ALIASES, UNUSED, VALUE_ALIASES
from tests.interface.stored import check_snapshot
from tests.interface.test_rest import without_prose


def test_settings() -> None:
    properties = json_schema()["properties"]
    found = {
        key: {
            "variable": item.variable,
            "secret": item.secret,
            "schema": properties[item.group]["properties"][item.name],
        }
        for key, item in ITEMS.items()
    }
    assert {f"{group}.{name}" for group in properties for name in names(properties[group])} == set(
        found
    )
    check_snapshot("settings.json", without_prose(found))


def test_settings_aliases() -> None:
    found = {"read": sorted(ALIASES), "ignored": sorted(UNUSED), "values": VALUE_ALIASES}
    check_snapshot("settings_aliases.json", found)


def names(group: dict[str, dict[str, object]]) -> list[str]:
    return list(group.get("properties", {}))
