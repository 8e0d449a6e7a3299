"""`tgpu reserve`: reserve GPUs for a tenant or a user, list and cancel reservations."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for
from gpu_scheduler.cli.text.tables import counted, print_json, print_table
from gpu_scheduler.cli.text.values import duration, moment, whole
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
    add = parser.add_argument
    add("action", nargs="?", metavar="ACTION", help="list, show or cancel; without one, reserve")
    add("ids", nargs="*", metavar="ID", help="such as res-1")
    add("-G", "--gpus", type=whole("--gpus", least=1), metavar="N", help="how many GPUs")
    add("--tenant", metavar="T", help="tenant whose jobs may use them")
    add("--user", metavar="U", help="only this user of the tenant")
    add(
        "--start",
        type=moment("--start"),
        metavar="WHEN",
        help="now (default), 'fri 18:00', 'tomorrow 9am', +2h, 2026-01-31T18:00",
    )
    add("--end", type=moment("--end"), metavar="WHEN", help="end of the reservation")
    add("--duration", type=duration("--duration"), metavar="TIME", help="such as 2d or 90m")
    add("--name", metavar="NAME", help="a note on its purpose")
    add("--node", metavar="N", help="GPUs of this node")
    add("--gpu-model", metavar="M", help="GPUs of this model")
    add("--gpu-ids", metavar="LIST", help="exactly these GPUs: 0-3,7")
    add("--preempt", action="store_true", help="preempt jobs that still run there at the start")
    add("--all", action="store_true", help="list: also recent reservations that have ended")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Reserve, list, show or cancel."""
    if args.action is None:
        return _reserve(args)
    if args.action not in ACTIONS:
        raise InvalidRequest(
            f"'{args.action}' is not an action; write list, show ID, cancel ID, or give options"
        )
    if args.action == "list":
        return _list(args)
    if not args.ids:
        raise InvalidRequest(f"ID is missing; write 'tgpu reserve {args.action} res-1'")
    method = "GET" if args.action == "show" else "DELETE"
    with client_for(args) as client:
        found = [client.call(method, f"{PATH}/{quoted(_id(word))}") for word in args.ids]
    if args.json:
        print_json(found[0] if len(found) == 1 else found)
    elif args.action == "show":
        print_table(HEADINGS, map(_row, found), right=("GPUS",))
    else:
        for one in found:
            print(f"{one['id']} cancelled; {counted(one['gpus'], 'GPU')} released")
    return 0


def _id(word: str) -> str:
    """The id of a reservation, which may be given as a number."""
    return f"res-{word}" if word.isdecimal() else word


def _reserve(args: Namespace) -> int:
    body = _body(args)
    with client_for(args) as client:
        made = client.call("POST", PATH, body, once=True)
    if args.json:
        print_json(made)
    else:
        row = _row(made)
        print(f"reserved as {made['id']}: {counted(made['gpus'], 'GPU')} ({row[6]}) for {row[3]}")
        print(f"  from   {row[4]}\n  until  {row[5]}")
    return 0


def _body(args: Namespace) -> dict[str, Any]:
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
        body["gpu_ids"] = _numbers(args.gpu_ids)
    return body


def _list(args: Namespace) -> int:
    with client_for(args) as client:
        answer = client.call("GET", PATH + ("?all=true" if args.all else ""))
    if args.json:
        print_json(answer)
    elif answer["reservations"]:
        print_table(HEADINGS, map(_row, answer["reservations"]), right=("GPUS",))
    else:
        print("no reservations")
    return 0


def _row(one: dict[str, Any]) -> list[str]:
    from datetime import datetime

    from gpu_scheduler.cli.text.dates import local_text

    where = " ".join(
        f"{place['node']}[{','.join(map(str, place['gpu_ids']))}]" for place in one["places"]
    )
    owner = f"{one['user']} ({one['tenant_id']})" if one["user"] else one["tenant_id"]
    start, end = (local_text(datetime.fromisoformat(one[name])) for name in ("start", "end"))
    return [one["id"], one["state"], str(one["gpus"]), owner, start, end, where, one["name"]]


def _numbers(text: str) -> list[int]:
    from gpu_scheduler.model.intervals import IntervalSet

    try:
        numbers = IntervalSet.parse(text)
    except InvalidRequest:
        numbers = IntervalSet()
    if not 0 < len(numbers) <= MOST_GPUS:
        raise InvalidRequest(f"--gpu-ids is '{text}'; write indices such as 0-3,7")
    return list(numbers)
