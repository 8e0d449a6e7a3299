"""`--snapshot` and `tgpu snapshots`: copies of the code in which jobs run.

Taking a new copy deletes old ones: those unused for a month that no pending or running job needs
and that hold no files written by a job.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.connection import add_server_options, client_for, my_name, print_answer
from gpu_scheduler.cli.text.tables import print_table
from gpu_scheduler.client.code_snapshots import DEFAULT_LIMIT_MB, MEGABYTE, Kept, Shelf, Snapshot
from gpu_scheduler.client.requests import ACTIVE
from gpu_scheduler.model.errors import InvalidRequest

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

ACTIONS = ("list", "prune")


def shelf() -> Shelf:
    """`$XDG_STATE_HOME/gpu-scheduler/snapshots`, by default in ~/.local/state."""
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return Shelf(state / "gpu-scheduler" / "snapshots")


def add_snapshot(bodies: list[dict[str, Any]], args: Namespace) -> None:
    """Change submissions to run in a copy of their code; one copy per directory."""
    taken: dict[str, Snapshot] = {}
    limit_mb = args.snapshot_limit or DEFAULT_LIMIT_MB
    for body in bodies:
        directory = body["working_directory"]
        if directory not in taken:
            taken[directory] = shelf().take(directory, limit_mb)
        snapshot = taken[directory]
        body["working_directory"] = str(snapshot.directory)
        body["snapshot"] = snapshot.form()
        if body.get("command"):
            body["command"] = [snapshot.moved(word) for word in body["command"]]
        variables = body.get("captured_environment") or {}
        if "PWD" in variables:
            variables["PWD"] = str(snapshot.directory)
        if variables.get("PYTHONPATH"):
            parts = variables["PYTHONPATH"].split(os.pathsep)
            variables["PYTHONPATH"] = os.pathsep.join(map(snapshot.moved, parts))


def drop_old(client: Client) -> list[Kept]:
    """Delete copies that are unused for a month and not needed by a job."""
    kept = shelf()
    old = kept.unused(time.time())
    return kept.drop(old, in_use(client)) if old else []


def in_use(client: Client) -> set[str]:
    """The snapshots of the caller's pending and running jobs."""
    jobs = client.list(state=ACTIVE, user=my_name())
    return {job["snapshot"]["path"] for job in jobs if job.get("snapshot")}


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("action", nargs="?", choices=ACTIONS, default="list", help="list (default) or prune")
    add("--all", action="store_true", help="prune: also those used within the last month")
    add("--outputs", action="store_true", help="prune: also those with files written by jobs")
    add_server_options(parser, table=True)


def run(args: Namespace) -> int:
    """List the copies, or delete those that are not needed."""
    kept = shelf()
    if args.action == "list":
        return _show(args, list(kept.kept()))
    with client_for(args) as client:
        needed = in_use(client)
    chosen = list(kept.kept()) if args.all else kept.unused(time.time())
    if args.outputs and not args.all:
        raise InvalidRequest("--outputs deletes files that jobs wrote; it needs --all")
    dropped = kept.drop(chosen, needed, outputs=args.outputs)
    freed = sum(one.size_bytes for one in dropped) / MEGABYTE
    return print_answer(
        args,
        {"dropped": [one.name for one in dropped]},
        f"{len(dropped):,} of {len(chosen):,} snapshots deleted, {freed:.0f} MB freed",
    )


def _show(args: Namespace, snapshots: list[Kept]) -> int:
    documents = [
        {
            "name": one.name,
            "path": str(one.path),
            "source": one.source,
            "commit": one.commit,
            "dirty": one.dirty,
            "size_bytes": one.size_bytes,
            "used_at": one.used_s,
            "written": one.written,
        }
        for one in snapshots
    ]
    rows = [
        [
            one.name[:12],
            f"{one.commit[:12]}{'+' if one.dirty else ''}" if one.commit else "-",
            f"{one.size_bytes / MEGABYTE:.1f} MB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used_s)),
            str(one.written or "-"),
            one.source,
        ]
        for one in snapshots
    ]
    headings = ("SNAPSHOT", "COMMIT", "SIZE", "USED", "WRITTEN", "OF")
    return print_answer(
        args,
        {"snapshots": documents},
        (lambda: print_table(headings, rows, right=("SIZE", "WRITTEN")))
        if rows
        else "no snapshots; 'tgpu submit --snapshot' makes one",
    )
