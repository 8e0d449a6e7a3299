"""The settings of a local scheduler: by name, or from the same file as those of the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.catalogue import ITEMS, plain_values, unknown_key
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.sources import load


class SchedulerConfig:
    """`SchedulerConfig(num_gpus=2, queue_size_limit=10)`, or `SchedulerConfig.from_file(path)`.

    A setting is named alone (`num_gpus`), or with its group before it where the name alone means
    several (`gpu_monitor_interval_s`, `files_monitor_interval_s`). Values are checked.
    """

    def __init__(self, settings: Settings | None = None, /, **values: Any) -> None:
        """Defaults, or the given settings, with some values changed."""
        found = settings or Settings()
        for name, value in values.items():
            item = ITEMS[_key_of(name)]
            group = replace(getattr(found, item.group), **{item.name: item.checked(value)})
            found = replace(found, **{item.group: group})
        self.settings = found

    @classmethod
    def from_file(cls, path: str, **values: Any) -> SchedulerConfig:
        """The settings of a JSON or YAML file; values that are given win."""
        return cls(load(str(path), environ={}).settings, **values)

    def to_dict(self) -> dict[str, Any]:
        """Every setting by `group.name`."""
        return plain_values(self.settings)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "settings":
            raise AttributeError(name)
        try:
            item = ITEMS[_key_of(name)]
        except InvalidRequest as error:
            raise AttributeError(str(error)) from None
        return getattr(getattr(self.settings, item.group), item.name)

    def __repr__(self) -> str:
        defaults = plain_values(Settings())
        changed = {
            key: value for key, value in self.to_dict().items() if value != defaults.get(key)
        }
        return f"SchedulerConfig({changed})"


def _key_of(name: str) -> str:
    """`num_gpus` is scheduler.num_gpus; `gpu_monitor_interval_s` is gpu.monitor_interval_s."""
    alone = [item.key for item in ITEMS.values() if item.name == name]
    if len(alone) == 1:
        return alone[0]
    grouped = [item.key for item in ITEMS.values() if f"{item.group}_{item.name}" == name]
    if grouped:
        return grouped[0]
    if alone:
        ways = " or ".join(key.replace(".", "_") for key in alone)
        raise InvalidRequest(f"'{name}' could be several settings; write {ways}")
    raise InvalidRequest(unknown_key(f"scheduler.{name}"))
