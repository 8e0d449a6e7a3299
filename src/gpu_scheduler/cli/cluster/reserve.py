"""`tgpu reserve`: reserve GPUs for a tenant or a user, list and cancel reservations."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, call, client_for, print_answer
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import counted, print_table
from gpu_scheduler.cli.text.values import duration, moment, positive
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest

ACTIONS = ("list", "show", "cancel")
HEADINGS = ("ID", "STATE", "GPUS", "FOR", "FROM", "UNTIL", "WHERE", "NAME")
MOST_GPUS = 10_000
PATH = f"{API}/reservations"


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = (
        "%(prog)s --gpus N --tenant T [--start WHEN] --duration TIME ... | list | show ID | "
        "cancel ID ..."
    )
    add = Options(parser)
    add.word("action", "ACTION", "list, show or cancel; without one, reserve", nargs="?")
    add.word("ids", "ID", "such as res-1", nargs="*")
    add.value("-G --gpus", positive, "N", "how many GPUs")
    add.value("--tenant", None, "T", "tenant whose jobs may use them")
    add.value("--user", None, "U", "only this user of the tenant")
    when = "now (default), 'fri 18:00', 'tomorrow 9am', +2h, 2026-01-31T18:00"
    add.value("--start", moment, "WHEN", when)
    add.value("--end", moment, "WHEN", "end of the reservation")
    add.value("--duration", duration, "TIME", "such as 2d or 90m")
    add.value("--name", None, "NAME", "a note on its purpose")
    add.value("--node", None, "N", "GPUs of this node")
    add.value("--gpu-model", None, "M", "GPUs of this model")
    add.value("--gpu-ids", None, "LIST", "exactly these GPUs: 0-3,7")
    add.flag("--preempt", "preempt jobs that still run there at the start")
    add.flag("--all", "list: also recent reservations that have ended")
    add_server_options(parser, table=True)


def run(args: Namespace) -> int:
    """Reserve, list, show or cancel."""
    options = ("gpus", "tenant", "user", "name", "node", "gpu_model", "gpu_ids", "start", "end")
    if args.action is None and not any(getattr(args, name) for name in (*options, "duration")):
        args.action = "list"  # as `tenants`, `nodes` and `sweep` do
    if args.action is None:
        made = call(args, "POST", PATH, _body(args))
        row = _row(made)
        return print_answer(
            args,
            made,
            f"reserved as {made['id']}: {counted(made['gpus'], 'GPU')} ({row[6]}) for {row[3]}\n"
            f"  from   {row[4]}\n  until  {row[5]}",
        )
    if args.action not in ACTIONS:
        raise InvalidRequest(
            f"'{args.action}' is not an action; write list, show ID, cancel ID, or give options"
        )
    if args.action == "list":
        answer = call(args, "GET", PATH + ("?all=true" if args.all else ""))
        found = answer["reservations"]
        return print_answer(
            args, answer, partial(_print_table, found) if found else "no reservations"
        )
    if not args.ids:
        raise InvalidRequest(f"ID is missing; write 'tgpu reserve {args.action} res-1'")
    method = "GET" if args.action == "show" else "DELETE"
    with client_for(args) as client:
        # An id may be given as a number.
        ids = [f"res-{word}" if word.isdecimal() else word for word in args.ids]
        found = [client.call(method, f"{PATH}/{quoted(one)}") for one in ids]
    released = (f"{one['id']} cancelled; {counted(one['gpus'], 'GPU')} released" for one in found)
    return print_answer(
        args,
        found[0] if len(found) == 1 else found,
        partial(_print_table, found) if args.action == "show" else "\n".join(released),
    )


def _body(args: Namespace) -> dict[str, Any]:
    from gpu_scheduler.model.intervals import IntervalSet
    from gpu_scheduler.wire.times import write_time

    for option in ("gpus", "tenant"):
        if getattr(args, option) is None:
            raise InvalidRequest(
                f"--{option} is missing; write for example 'tgpu reserve --gpus 4 --tenant vision "
                '--start "fri 18:00" --duration 2d\''
            )
    if (args.end is None) == (not args.duration):
        raise InvalidRequest("give either --duration, such as 2d or 90m, or --end")
    body: dict[str, Any] = {"gpus": args.gpus, "tenant_id": args.tenant, "preempt": args.preempt}
    for name in ("user", "name", "node", "gpu_model"):
        if getattr(args, name):
            body[name] = getattr(args, name)
    for name in ("start", "end"):
        if getattr(args, name) is not None:
            body[name] = write_time(round(getattr(args, name) * 1000))
    if args.duration:
        body["duration_minutes"] = args.duration / 60
    if args.gpu_ids:
        try:
            numbers = IntervalSet.parse(args.gpu_ids)
        except InvalidRequest:
            numbers = IntervalSet()
        if not 0 < len(numbers) <= MOST_GPUS:
            raise InvalidRequest(f"--gpu-ids is '{args.gpu_ids}'; write indices such as 0-3,7")
        body["gpu_ids"] = list(numbers)
    return body


def _print_table(reservations: list[dict[str, Any]]) -> None:
    print_table(HEADINGS, map(_row, reservations), right=("GPUS",))


def _row(one: dict[str, Any]) -> list[str]:
    from datetime import datetime

    from gpu_scheduler.cli.text.dates import local_text

    where = " ".join(
        f"{place['node']}[{','.join(map(str, place['gpu_ids']))}]" for place in one["places"]
    )
    owner = f"{one['user']} ({one['tenant_id']})" if one["user"] else one["tenant_id"]
    start, end = (local_text(datetime.fromisoformat(one[name])) for name in ("start", "end"))
    return [one["id"], one["state"], str(one["gpus"]), owner, start, end, where, one["name"]]
