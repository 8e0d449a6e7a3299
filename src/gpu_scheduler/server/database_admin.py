"""What an administrator does to the database: upgrade, check, back up, copy.

Settings or URLs come in; what was done comes out, for the command line to tell.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_scheduler.model.errors import InvalidRequest, StoreUnavailable
from gpu_scheduler.server.storage import file_of_url, postgres_address, sqlite_file
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.groups.cluster import POSTGRESQL_SCHEMES
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.copy import sqlite
from gpu_scheduler.store.copy.copier import Copied, Side, copy, problems, sizes
from gpu_scheduler.store.postgres.connection import Address
from gpu_scheduler.store.sql_files import migrations
from gpu_scheduler.store.sqlite.store import SqliteStore

Place = Path | Address
"""A file, or a database of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found: facts for people, rows by table, and what is wrong."""

    place: str
    form: int
    facts: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def place_of(settings: Settings, paths: Paths, url: str = "") -> Place:
    """The database that a URL names; without one, that of the settings."""
    if url.startswith(POSTGRESQL_SCHEMES):
        return postgres_address(replace(settings.database, url=url))
    if url:
        return file_of_url(url)
    if settings.database.is_postgresql:
        return postgres_address(settings.database)
    return sqlite_file(settings, paths)


def upgrade(place: Place) -> int:
    """Bring a database to the newest form, which is returned; an empty one is made."""
    if isinstance(place, Path):
        SqliteStore(place).close()
        return migrations()[-1][0]
    from gpu_scheduler.store.postgres.store import upgrade as upgrade_postgres  # noqa: PLC0415

    upgrade_postgres(place)
    return migrations("postgres")[-1][0]


def check(place: Place) -> Checked:
    """Look whether all fits together, and change nothing; only the newest form can be looked at."""
    with _looking(place) as side:
        form = int(side.ask("SELECT schema_version FROM meta")[0][0])
        facts = _facts(place, side)
        return Checked(side.name, form, facts, sizes(side), tuple(problems(side)))


def back_up(place: Place, target: Path) -> None:
    """Everything into one new SQLite file, as of one moment, also while a server runs.

    A file is copied as it is; a database of PostgreSQL must be of the newest form.
    """
    if isinstance(place, Path):
        sqlite.back_up(place, target)
        return
    with sqlite.draft_of(target) as draft:
        draft.unlink()
        with _looking(place) as source, sqlite.writing_side(draft) as copied:
            copy(source, copied)
        sqlite.finish_backup(draft)


def copy_between(source: Place, target: Place) -> list[Copied]:
    """Everything from one database into another, empty one, and compared row by row."""
    if source == target:
        raise InvalidRequest(f"both sides are {source}; name two databases")
    with _looking(source) as ours, _writing(target) as theirs:
        return copy(ours, theirs)


def _facts(place: Place, side: Side) -> dict[str, str]:
    if isinstance(place, Path):
        return {"sqlite": str(side.ask("PRAGMA integrity_check")[0][0])}
    names = ("server_version", "fsync", "full_page_writes", "synchronous_commit")
    facts = {name: str(side.ask(f"SHOW {name}")[0][0]) for name in names}
    encrypted = side.ask("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    facts["encrypted"] = str(encrypted[0][1]) if encrypted and encrypted[0][0] else "no"
    return facts


def _looking(place: Place) -> AbstractContextManager[Side]:
    """A database of the newest form, to be read and left as it is."""
    if isinstance(place, Path):
        if not place.exists():
            raise StoreUnavailable(f"there is no file {place}; name the database to read")
        return sqlite.looking_side(place)
    from gpu_scheduler.store.copy.postgres import looking_side  # noqa: PLC0415

    return looking_side(place)


def _writing(place: Place) -> AbstractContextManager[Side]:
    if isinstance(place, Path):
        return sqlite.writing_side(place)
    from gpu_scheduler.store.copy.postgres import writing_side  # noqa: PLC0415

    return writing_side(place)
