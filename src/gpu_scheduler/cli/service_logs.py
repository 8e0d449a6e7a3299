"""`tgpu service logs`: what the replicas of a service have written, also after restarts."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from gpu_scheduler.cli.attempts import Attempts
from gpu_scheduler.cli.waiting import Notes
from gpu_scheduler.client.client import Client
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing


def show(client: Client, args: Namespace, path: str) -> int:
    """Show the output of one replica, or of all; with `--follow` go on, also after its restarts."""
    service = client.call("GET", path)
    replicas = _chosen(service, args.replica)
    if args.follow:
        if len(replicas) > 1:
            numbers = ", ".join(str(one["replica"]) for one in replicas)
            raise InvalidRequest(
                f"service '{service['name']}' has the replicas {numbers}; choose the one to follow "
                "with --replica"
            )
        _follow(client, replicas[0]["job_id"], args.tail)
        return 0
    for replica in replicas:
        mark = f"[{replica['replica']}] ".encode() if len(replicas) > 1 else b""
        _copy(client.log_bytes(replica["job_id"], tail=args.tail), mark)
    return 0


def _chosen(service: dict[str, Any], number: int | None) -> list[dict[str, Any]]:
    """The replicas that are meant; of two with one number, as in an update, the newer one."""
    by_number = {one["replica"]: one for one in service["members"]}
    if not by_number:
        raise UnknownThing(f"service '{service['name']}' has no replicas; nothing was written yet")
    if number is None:
        return [by_number[key] for key in sorted(by_number)]
    if number not in by_number:
        known = ", ".join(map(str, sorted(by_number)))
        raise UnknownThing(f"service '{service['name']}' has no replica {number}; it has {known}")
    return [by_number[number]]


def _follow(client: Client, job: str, tail: int | None) -> None:
    """This attempt of the replica and all that come after it, until the replica is no more."""
    notes = Notes(quiet=False, hint="Ctrl-C leaves it alone")
    first = int(client.get(job).get("attempt") or 1)
    Attempts(client, job, notes, first=first, query={"tail": tail}).until_its_end()


def _copy(pieces: Any, mark: bytes) -> None:
    """Copy to stdout, with a mark before each line."""
    out = sys.stdout.buffer
    sys.stdout.flush()
    fresh = True
    for piece in pieces:
        for line in piece.splitlines(keepends=True) if mark else (piece,):
            out.write((mark if fresh else b"") + line)
            fresh = line.endswith(b"\n")
    if mark and not fresh:
        out.write(b"\n")
    out.flush()
