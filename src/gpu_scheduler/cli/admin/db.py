"""`tgpu db`: upgrade, check, back up and copy the database."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.cli.connection import warn
from gpu_scheduler.cli.text.tables import print_json, print_pairs, print_table
from gpu_scheduler.model.errors import InvalidRequest, StoreDamaged

if TYPE_CHECKING:
    from gpu_scheduler.server.storage import Database

ACTIONS = ("upgrade", "check", "backup", "copy")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = (
        "%(prog)s upgrade | check | backup FILE | copy --to URL [--from URL] "
        "[--config FILE] [--state-dir DIR] [--json]"
    )
    add = parser.add_argument
    add("action", choices=ACTIONS, help="what to do")
    add("file", nargs="?", metavar="FILE", help="the backup: a new SQLite file")
    add(
        "--from",
        dest="source",
        metavar="URL",
        default="",
        help="sqlite:///file or postgresql://...; default: the configured database",
    )
    add("--to", dest="target", metavar="URL", default="", help="copy: an empty database")
    add("--config", metavar="FILE", help="settings; default: as for 'tgpu up'")
    add("--state-dir", metavar="DIR", help="state directory of the server")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: Namespace) -> int:
    """Upgrade, check, back up or copy the database."""
    if (args.file is not None) != (args.action == "backup"):
        raise InvalidRequest("'backup' needs the name of a new file; the other actions take none")
    if bool(args.target) != (args.action == "copy"):
        raise InvalidRequest("'copy' needs --to with the URL of an empty database")
    from gpu_scheduler.server.storage import database_of
    from gpu_scheduler.settings.file_paths import paths
    from gpu_scheduler.settings.sources import load

    settings = load(args.config).settings
    where = paths(args.state_dir or settings.files.state_dir or None)
    source = database_of(settings, where, args.source)
    if args.action == "copy":
        return _copy(args, source, database_of(settings, where, args.target))
    if args.action == "backup":
        return _back_up(args, source)
    return _check(args, source) if args.action == "check" else _upgrade(args, source)


def _upgrade(args: Namespace, place: Database) -> int:
    from gpu_scheduler.server.storage import upgrade

    form = upgrade(place)
    if args.json:
        print_json({"database": str(place), "form": form})
    else:
        print(f"{place} has schema version {form}, the newest")
    return 0


def _check(args: Namespace, place: Database) -> int:
    from gpu_scheduler.server.storage import check

    found = check(place)
    if args.json:
        print_json(
            {
                "database": found.place,
                "form": found.form,
                "facts": found.facts,
                "rows": found.rows,
                "problems": list(found.problems),
            }
        )
    else:
        rows = ", ".join(f"{count:,} {table}" for table, count in found.rows.items())
        pairs = [("database", found.place), ("schema", str(found.form)), *found.facts.items()]
        print_pairs([*pairs, ("rows", rows), ("problems", "; ".join(found.problems) or "none")])
        if found.facts.get("fsync") == "off":
            warn("fsync is off: a power failure can lose acknowledged jobs, or the database")
    return StoreDamaged.exit_code if found.problems else 0


def _back_up(args: Namespace, place: Database) -> int:
    from gpu_scheduler.server.storage import back_up

    target = Path(args.file)
    back_up(place, target)
    size = target.stat().st_size
    if args.json:
        print_json({"database": str(place), "file": str(target), "bytes": size})
    else:
        print(f"{place} backed up to {target} ({size:,} bytes)")
    return 0


def _copy(args: Namespace, source: Database, target: Database) -> int:
    from gpu_scheduler.server.storage import copy_between

    copied = copy_between(source, target)
    if args.json:
        rows = {one.table: one.rows for one in copied}
        print_json({"from": str(source), "to": str(target), "rows": rows})
    else:
        print_table(("TABLE", "ROWS"), [(one.table, f"{one.rows:,}") for one in copied])
        print(f"copied from {source} to {target}; every row was compared")
    return 0
