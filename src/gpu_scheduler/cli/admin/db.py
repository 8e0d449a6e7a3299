"""`tgpu db`: upgrade, check, back up and copy the database."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.cli.connection import add_tabs, print_answer, warn
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import print_pairs, print_table
from gpu_scheduler.model.errors import InvalidRequest, StoreDamaged, UnknownThing

if TYPE_CHECKING:
    from gpu_scheduler.server.storage import Checked

if TYPE_CHECKING:
    from gpu_scheduler.settings.file_paths import Paths
    from gpu_scheduler.settings.schema import Settings

ACTIONS = ("upgrade", "check", "backup", "copy", "rotate-key")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = (
        "%(prog)s upgrade | check | backup FILE | copy --to URL [--from URL] | rotate-key "
        "[--config FILE] [--state-dir DIR] [--json]"
    )
    add = Options(parser)
    add.choice("action", ACTIONS, "what to do")
    add.word("file", "FILE", "the backup: a new SQLite file", nargs="?")
    source = "sqlite:///file or postgresql://...; default: the configured database"
    add.value("--from", None, "URL", source, dest="source", default="")
    add.value("--to", None, "URL", "copy: an empty database", dest="target", default="")
    add.value("--config", None, "FILE", "settings; default: as for 'tgpu up'")
    add.value("--state-dir", None, "DIR", "state directory of the server")
    add.flag("--json", "print JSON instead of text")
    add_tabs(parser)


def run(args: Namespace) -> int:
    """Upgrade, check, back up or copy the database."""
    if (args.file is not None) != (args.action == "backup"):
        raise InvalidRequest("'backup' needs the name of a new file; the other actions take none")
    if bool(args.target) != (args.action == "copy"):
        raise InvalidRequest("'copy' needs --to with the URL of an empty database")
    from gpu_scheduler.server import storage
    from gpu_scheduler.settings.file_paths import paths
    from gpu_scheduler.settings.sources import load

    settings = load(args.config).settings
    where = paths(args.state_dir or settings.files.state_dir or None)
    if args.action == "rotate-key":
        return _rotate_key(args, settings, where)
    source = storage.database_of(settings, where, args.source)
    if args.action == "upgrade":
        form = storage.upgrade(source)
        document = {"database": str(source), "form": form}
        return print_answer(args, document, f"{source} has schema version {form}, the newest")
    if args.action == "backup":
        file = Path(args.file)
        storage.back_up(source, file)
        size = file.stat().st_size
        document = {"database": str(source), "file": str(file), "bytes": size}
        return print_answer(args, document, f"{source} backed up to {file} ({size:,} bytes)")
    if args.action == "check":
        result = storage.check(source)
        print_answer(
            args,
            {
                "database": result.place,
                "form": result.form,
                "facts": result.facts,
                "rows": result.rows,
                "problems": list(result.problems),
            },
            lambda: _print_check(result),
        )
        return StoreDamaged.exit_code if result.problems else 0
    target = storage.database_of(settings, where, args.target)
    copied = storage.copy_between(source, target)
    rows = {one.table: one.rows for one in copied}

    def show_copied() -> None:
        print_table(("TABLE", "ROWS"), [(table, f"{count:,}") for table, count in rows.items()])
        print(f"copied from {source} to {target}; every row was compared")

    return print_answer(args, {"from": str(source), "to": str(target), "rows": rows}, show_copied)


def _rotate_key(args: Namespace, settings: Settings, where: Paths) -> int:
    from gpu_scheduler.server.state_directory import Lock, prepare
    from gpu_scheduler.server.storage import rotate_key, sqlite_file

    if args.source:
        raise InvalidRequest("'rotate-key' works on the configured database; leave out --from")
    if not settings.database.is_postgresql and not sqlite_file(settings, where).exists():
        raise UnknownThing(
            f"the database {sqlite_file(settings, where)} does not exist yet; start the server once"
        )
    prepare(where)
    lock = Lock(where)
    try:
        file, rows = rotate_key(settings, where)
    finally:
        lock.release()
    text = f"{rows:,} rows are encrypted with a new key; keep a copy of {file} apart from backups"
    return print_answer(args, {"key_file": file, "rows": rows}, text)


def _print_check(result: Checked) -> None:
    rows = ", ".join(f"{count:,} {table}" for table, count in result.rows.items())
    pairs = [("database", result.place), ("schema", str(result.form)), *result.facts.items()]
    print_pairs([*pairs, ("rows", rows), ("problems", "; ".join(result.problems) or "none")])
    if result.facts.get("fsync") == "off":
        warn("fsync is off: a power failure can lose acknowledged jobs, or the database")
