"""Settings: their declaration, their sources, and the paths of files.

A file, variables and flags come in; one frozen `Settings` goes out, read once at the start and
passed down. Modules load on first use, because a client needs only `paths`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_scheduler.settings.catalogue import json_schema, reference_page, sample
    from gpu_scheduler.settings.file_paths import Paths, paths
    from gpu_scheduler.settings.schema import Settings
    from gpu_scheduler.settings.sources import Loaded, load

__all__ = [
    "Loaded",
    "Paths",
    "Settings",
    "json_schema",
    "load",
    "paths",
    "reference_page",
    "sample",
]

_MODULES = {
    "Loaded": "sources",
    "Paths": "file_paths",
    "Settings": "schema",
    "json_schema": "catalogue",
    "load": "sources",
    "paths": "file_paths",
    "reference_page": "catalogue",
    "sample": "catalogue",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
