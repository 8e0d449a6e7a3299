"""`tgpu nodes`: list and show nodes; cordon, drain, uncordon, label, remove, confirm them dead."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from gpu_scheduler.cli.durations import duration, size_text, words_of
from gpu_scheduler.cli.history import local_time
from gpu_scheduler.cli.jobs_view import seconds_at
from gpu_scheduler.cli.output import print_json, print_table, visible
from gpu_scheduler.cli.reach import add_server_options, client_for
from gpu_scheduler.client.forms import API
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

ACTIONS = ("list", "show", "cordon", "uncordon", "drain", "label", "remove", "confirm-dead")
HEADINGS = ("NODE", "STATE", "GPUS", "FREE", "JOBS", "CPUS", "MEMORY", "RACK", "LABELS")
RIGHT = ("GPUS", "FREE", "JOBS", "CPUS", "MEMORY")
NARROW = ("RACK", "LABELS")
SPARE = ("CPUS", "MEMORY", "RACK", "LABELS", "JOBS", "SILENT")
OWN_LABELS = "tgpu."
LOOK_AGAIN_S = 1.0
PATH = f"{API}/nodes"


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = (
        "%(prog)s [list | show NODE | cordon NODE | uncordon NODE | drain NODE | "
        "label NODE K=V K- ... | remove NODE | confirm-dead NODE]"
    )
    add = parser.add_argument
    add("action", nargs="?", metavar="ACTION", help="list (default), show, cordon, ...")
    add("words", nargs="*", metavar="NODE", help="nodes; for label one node and its labels")
    add("--reason", metavar="TEXT", default="", help="why, for cordon and drain")
    add(
        "--deadline",
        type=duration("--deadline"),
        metavar="TIME",
        help="drain: what still runs after this is stopped and waits again elsewhere",
    )
    add("--requeue", action="store_true", help="drain: stop jobs now; they wait again elsewhere")
    add("--yes", action="store_true", help="confirm-dead: do not ask")
    add("--wait", action="store_true", help="drain: stay until nothing runs there, and say how far")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """List, show or change."""
    action = args.action or "list"
    if action not in ACTIONS:
        raise InvalidRequest(f"'{action}' is not known; write one of {', '.join(ACTIONS)}")
    _check_options(args, action)
    if action == "list":
        return _list(args)
    if not args.words:
        raise InvalidRequest(f"which node? write 'tgpu nodes {action} NODE'")
    with client_for(args) as client:
        if action == "label":
            return _label(args, client)
        _ask_first(args, client, action)
        found = []
        waits = action == "drain" and args.wait
        for node in args.words:
            found.append(_change(args, client, action, node))
            if not args.json and not waits:
                # At once: if the next one is refused, this one is done all the same.
                _tell(action, found[-1])
        if waits:
            found = [_wait(args, client, node) for node in args.words]
            for one in found if not args.json else ():
                _tell(action, one)
    if args.json:
        print_json(found[0] if len(found) == 1 else found)
    return 0


def _tell(action: str, one: dict[str, Any]) -> None:
    if action == "show":
        _show(one)
    else:
        print(_told(action, one))


def _check_options(args: Namespace, action: str) -> None:
    """Options that would be passed over are refused."""
    drains = {"--deadline": args.deadline is not None, "--requeue": args.requeue}
    drains["--wait"] = args.wait
    for option, is_given in drains.items():
        if is_given and action != "drain":
            raise InvalidRequest(f"{option} goes with 'tgpu nodes drain', not with '{action}'")
    if args.reason and action not in {"cordon", "drain"}:
        raise InvalidRequest(f"--reason goes with cordon and drain, not with '{action}'")
    if args.yes and action != "confirm-dead":
        raise InvalidRequest(f"--yes goes with 'tgpu nodes confirm-dead', not with '{action}'")
    if args.requeue and args.deadline is not None:
        raise InvalidRequest("--requeue stops jobs now, --deadline later; leave out one of them")


def _list(args: Namespace) -> int:
    if args.words:
        raise InvalidRequest("'list' shows all nodes; write 'tgpu nodes show NODE' for one")
    with client_for(args) as client:
        nodes = client.nodes()
    if args.json:
        print_json({"nodes": list(nodes)})
    else:
        more: dict[str, Callable[[dict[str, Any]], str]] = {}
        if any(node.get("silent_since") for node in nodes):
            more["SILENT"] = _silent_for
        if any(_reason(node) != "-" for node in nodes):
            more["WHY"] = _reason
        rows = ([*_row(node), *(cell(node) for cell in more.values())] for node in nodes)
        headings, right = (*HEADINGS, *more), (*RIGHT, "SILENT")
        print_table(headings, rows, right=right, narrow=NARROW, spare=SPARE)
    return 0


def _row(node: dict[str, Any]) -> list[str]:
    return [
        visible(node["id"]),
        state_text(node, "+"),
        str(node["gpus"]),
        str(node["free_gpus"]),
        str(node["running"]),
        f"{node['cpu_cores']:g}",
        size_text(node["memory_mb"]),
        visible(node["rack"]) or "-",
        _labels(node),
    ]


def state_text(node: dict[str, Any], joint: str) -> str:
    """Whether it is there; if not, also what was decided about it."""
    closed = node.get("closed")
    if closed is None or not node.get("silent_since"):
        return str(node["state"])
    decided = "cordoned" if not closed["drains"] else "draining" if node["running"] else "drained"
    return f"{node['state']}{joint}{decided}"


def _silent_for(node: dict[str, Any]) -> str:
    """For how long nothing is heard of it."""
    since = seconds_at(node.get("silent_since"))
    return "-" if since is None else words_of(max(0.0, time.time() - since))


def _reason(node: dict[str, Any]) -> str:
    """Why it takes no new work, if somebody has said so."""
    closed = node.get("closed")
    return (visible(closed["reason"]) if closed else "") or "-"


def _labels(node: dict[str, Any]) -> str:
    """Those that people chose; what agents say about themselves is in `show`."""
    return " ".join(
        visible(f"{name}={value}")
        for name, value in sorted(node["labels"].items())
        if not name.startswith(OWN_LABELS)
    )


def _change(args: Namespace, client: Client, action: str, node: str) -> dict[str, Any]:
    path = f"{PATH}/{quoted(node)}"
    if action == "show":
        found: dict[str, Any] = client.call("GET", path)
    elif action == "remove":
        found = client.call("DELETE", path)
    else:
        body: dict[str, Any] | None = None
        if action not in {"uncordon", "confirm-dead"}:
            body = {"reason": args.reason} if args.reason else {}
        if action == "drain" and args.requeue:
            body = {**(body or {}), "requeue": True}
        elif action == "drain" and args.deadline is not None:
            body = {**(body or {}), "deadline_seconds": args.deadline}
        found = client.call("POST", f"{path}/{action}", body)
    return found


def _ask_first(args: Namespace, client: Client, action: str) -> None:
    """A node that is said to be dead and runs on has its jobs run twice: be sure of it."""
    if args.yes or action != "confirm-dead":
        return
    for name in args.words:
        node = client.call("GET", f"{PATH}/{quoted(name)}")
        if not node["silent_since"]:
            continue  # the server refuses it, and says why
        if not sys.stdin.isatty():
            raise InvalidRequest(
                f"to say that node '{visible(name)}' is dead nobody can be asked here; be sure "
                "that it is powered off or cut off for good, and add --yes"
            )
        print(
            f"Nothing is heard of {visible(name)} since {local_time(node['silent_since'])}, and "
            f"{node['running']} jobs hold its GPUs. If it still runs, they will run twice.\n"
            "Is it powered off, or cut off for good? Type its name to confirm: ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if sys.stdin.readline().strip() != name:
            raise InvalidRequest("not confirmed; nothing was done")


def _label(args: Namespace, client: Client) -> int:
    node, *words = args.words
    if not words:
        raise InvalidRequest("which labels? write 'tgpu nodes label NODE zone=b old-'")
    labels: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            labels[name] = value
        elif name.endswith("-") and name[:-1]:
            labels[name[:-1]] = None
        else:
            raise InvalidRequest(
                f"label '{word}' cannot be read; write NAME=VALUE, or NAME- to drop"
            )
    found = client.call("PATCH", f"{PATH}/{quoted(node)}", {"labels": labels})
    if args.json:
        print_json(found)
    else:
        print(f"{visible(found['id'])}: {_labels(found) or 'no labels'}")
    return 0


def _wait(args: Namespace, client: Client, node: str) -> dict[str, Any]:
    """Stay until a node is empty, and say what still runs whenever that changes."""
    told = None
    while True:
        found: dict[str, Any] = client.call("GET", f"{PATH}/{quoted(node)}")
        if found["closed"] is None or not found["closed"]["drains"]:
            raise InvalidRequest(f"node '{node}' is not drained any more; somebody has undone that")
        if not found["jobs"]:
            return found
        if not args.json and found["jobs"] != told:
            print(f"{visible(node)}: {_still(found)}", file=sys.stderr, flush=True)
        told = found["jobs"]
        time.sleep(LOOK_AGAIN_S)


def _still(node: dict[str, Any]) -> str:
    jobs = node["jobs"]
    few = 8
    more = f" and {len(jobs) - few} more" if len(jobs) > few else ""
    text = f"still running: {', '.join(jobs[:few])}{more}"
    left = _seconds_left(node)
    if left is None:
        return text
    return f"{text}; stopped in {words_of(left)}" if left > 0 else f"{text}; being stopped"


def _seconds_left(node: dict[str, Any]) -> float | None:
    from datetime import datetime

    closed = node["closed"]
    if closed is None or not closed["requeue_at"]:
        return None
    return datetime.fromisoformat(closed["requeue_at"]).timestamp() - time.time()


def _told(action: str, node: dict[str, Any]) -> str:
    name = visible(node["id"])
    if action == "remove":
        return visible(node["message"])
    if action == "uncordon":
        return f"{name} takes work again"
    if action == "confirm-dead":
        return f"{name} is dead; what it ran waits again or has ended" + _held_back(node)
    if action == "cordon":
        return f"{name} gets no new work; {node['running']} jobs go on there"
    if not node["jobs"]:
        return f"{name} is drained"
    return f"{name} gets no new work; {_still(node)}"


def _held_back(node: dict[str, Any]) -> str:
    """Gangs with members elsewhere are stopped there first."""
    jobs = node["jobs"]
    return f"; {', '.join(jobs)} when its other members have stopped" if jobs else ""


def _show(node: dict[str, Any]) -> None:
    closed = node["closed"]
    models = ", ".join(node["gpu_models"]) or "none"
    lines = [
        ("state", state_text(node, ", ") + (_why(closed) if closed else "")),
        ("silent", f"since {local_time(node['silent_since'])}" if node["silent_since"] else ""),
        ("GPUs", f"{node['gpus']} ({models}), {node['free_gpus']} free"),
        ("islands", " ".join(f"[{','.join(map(str, island))}]" for island in node["islands"])),
        ("CPU cores", f"{node['cpu_cores']:g}, {node['free_cpu_cores']:g} free"),
        ("memory", f"{size_text(node['memory_mb'])}, {size_text(node['free_memory_mb'])} free"),
        ("NUMA nodes", str(node["numa_nodes"] or "")),
        ("adapters", ", ".join(_adapter(adapter) for adapter in node["adapters"])),
        ("storage", "GPUDirect Storage" if node["direct_storage"] else ""),
        ("address", node["address"]),
        ("rack", node["rack"]),
        ("labels", " ".join(f"{name}={value}" for name, value in sorted(node["labels"].items()))),
        ("agent", node["version"]),
        ("jobs", ", ".join(node["jobs"])),
        ("problem", node["problem"]),
    ]
    print(visible(node["id"]))
    for name, text in lines:
        if text:
            print(f"  {name:<10}  {visible(text)}")


def _why(closed: dict[str, Any]) -> str:
    reason = f": {closed['reason']}" if closed["reason"] else ""
    return f" (by {closed['by'] or 'nobody'}{reason})"


def _adapter(adapter: dict[str, Any]) -> str:
    rate = f" {adapter['rate_gbps']} Gb/s" if adapter["rate_gbps"] else ""
    down = "" if adapter["active"] else " (down)"
    return f"{adapter['name']}:{adapter['port']} {adapter['link']}{rate}{down}"
