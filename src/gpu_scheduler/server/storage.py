"""Which store the settings mean, opened: an SQLite file on this machine, or PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.groups import Settings
from gpu_scheduler.settings.places import Paths
from gpu_scheduler.store.rows import Store
from gpu_scheduler.store.sqlite import SqliteStore


def open_store(settings: Settings, paths: Paths) -> Store:
    """The store, of the newest form; it is made if it is not there."""
    return SqliteStore(sqlite_file(settings, paths))


def sqlite_file(settings: Settings, paths: Paths) -> Path:
    """The file that the settings name, by a URL or by a name in the state directory."""
    if not settings.database.url:
        return Path(paths.state) / settings.files.state_file
    scheme, _, path = settings.database.url.partition("://")
    if scheme != "sqlite" or not path.startswith("/"):
        raise InvalidRequest(
            f"database.url begins with '{scheme}://'; write sqlite:///path/of/the/file or "
            "postgresql://user@host:port/database"
        )
    return Path(path)
