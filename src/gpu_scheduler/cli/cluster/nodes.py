"""`tgpu nodes` and `tgpu node`: the nodes, and the tokens and keys with which they join."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from gpu_scheduler.cli.connection import (
    add_kube_options,
    add_server_options,
    call,
    client_for,
    print_answer,
    warn,
)
from gpu_scheduler.cli.jobs.columns import local_time, minute_text, seconds_at
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import counted, print_json, print_table, visible
from gpu_scheduler.cli.text.values import duration, duration_text, size_text
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.client.requests import API
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
OTHERS_LABELS = ("kubernetes.io", "k8s.io", "nvidia.com")
"""Label prefixes of programs that describe every node of a Kubernetes cluster."""
POLL_S = 1.0
PATH = f"{API}/nodes"


def register_nodes(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = (
        "%(prog)s [list | show NODE | cordon NODE | uncordon NODE | drain NODE | "
        "label NODE K=V K- ... | remove NODE | confirm-dead NODE]"
    )
    add = Options(parser)
    add.word("action", "ACTION", "list (default), show, cordon, ...", nargs="?")
    add.word("words", "NODE", "nodes; for label one node and its labels", nargs="*")
    add.value("--reason", None, "TEXT", "the reason, for cordon and drain", default="")
    add.value("--deadline", duration, "TIME", "drain: requeue jobs that still run after this time")
    add.flag("--requeue", "drain: requeue running jobs now")
    add.flag("--yes", "confirm-dead: do not ask for confirmation")
    add.flag("--wait", "drain: wait until no job runs there, and show the progress")
    add_kube_options(parser, namespaced=False)
    add_server_options(parser, table=True)


def run_nodes(args: Namespace) -> int:
    """List, show or change."""
    action = args.action or "list"
    if action not in ACTIONS:
        raise InvalidRequest(f"'{action}' is not an action; write one of {', '.join(ACTIONS)}")
    _check_options(args, action)
    if action == "list":
        return _list(args)
    if not args.words:
        raise InvalidRequest(f"NODE is missing; write 'tgpu nodes {action} NODE'")
    with client_for(args) as client:
        if action == "label":
            return _label(args, client)
        _confirm(args, client, action)
        found = []
        waits = action == "drain" and args.wait
        for node in args.words:
            found.append(_change(args, client, action, node))
            if not args.json and not waits:
                # Printed at once, because a later node may be rejected.
                _print_change(action, found[-1])
        if waits:
            found = [_wait(args, client, node) for node in args.words]
            for one in found if not args.json else ():
                _print_change(action, one)
    if args.json:
        print_json(found[0] if len(found) == 1 else found)
    return 0


def _print_change(action: str, one: dict[str, Any]) -> None:
    if action == "show":
        _show(one)
    else:
        print(_change_text(action, one))


def _check_options(args: Namespace, action: str) -> None:
    """Reject options that the action does not use."""
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
    headings = list(HEADINGS)
    rows = [
        [
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
        for node in nodes
    ]
    for heading, cell in (("SILENT", _silence_text), ("WHY", _reason)):
        cells = [cell(node) for node in nodes]
        if any(text != "-" for text in cells):
            headings.append(heading)
            rows = [[*row, text] for row, text in zip(rows, cells, strict=True)]
    right = (*RIGHT, "SILENT")
    return print_answer(
        args,
        {"nodes": list(nodes)},
        (lambda: print_table(headings, rows, right=right, narrow=NARROW, spare=SPARE))
        if rows
        else "no nodes have joined; 'tgpu node token create' makes a token for 'tgpu agent'",
    )


def state_text(node: dict[str, Any], joint: str) -> str:
    """The state; for an offline node also whether it is cordoned or drained."""
    closed = node.get("closed")
    if closed is None or not node.get("silent_since"):
        return str(node["state"])
    decided = "cordoned" if not closed["drains"] else "draining" if node["running"] else "drained"
    return f"{node['state']}{joint}{decided}"


def _silence_text(node: dict[str, Any]) -> str:
    """How long the node has sent no heartbeat."""
    since = seconds_at(node.get("silent_since"))
    return "-" if since is None else duration_text(max(0.0, time.time() - since))


def _reason(node: dict[str, Any]) -> str:
    """The reason of the cordon or drain, if one was given."""
    closed = node.get("closed")
    return (visible(closed["reason"]) if closed else "") or "-"


def _labels(node: dict[str, Any]) -> str:
    """The labels that users set; those of the agent are in `show`."""
    return " ".join(
        visible(f"{name}={value}")
        for name, value in sorted(node["labels"].items())
        if not name.startswith(OWN_LABELS) and not name.partition("/")[0].endswith(OTHERS_LABELS)
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


def _confirm(args: Namespace, client: Client, action: str) -> None:
    """Ask before `confirm-dead`: if the node still runs, its jobs will run twice."""
    if args.yes or action != "confirm-dead":
        return
    for name in args.words:
        node = client.call("GET", f"{PATH}/{quoted(name)}")
        if not node["silent_since"]:
            continue  # the server rejects it
        if not sys.stdin.isatty():
            raise InvalidRequest(
                f"no terminal to confirm that node '{visible(name)}' is dead; make sure that it is "
                "powered off or disconnected for good, and add --yes"
            )
        print(
            f"{visible(name)} has sent no heartbeat since {local_time(node['silent_since'])}; "
            f"{node['running']} jobs hold its GPUs. If it still runs, they will run twice.\n"
            "Is it powered off, or disconnected for good? Type its name to confirm: ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if sys.stdin.readline().strip() != name:
            raise InvalidRequest("not confirmed; nothing changed")


def _label(args: Namespace, client: Client) -> int:
    node, *words = args.words
    if not words:
        raise InvalidRequest("no labels given; write 'tgpu nodes label NODE zone=b old-'")
    labels: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            labels[name] = value
        elif name.endswith("-") and name[:-1]:
            labels[name[:-1]] = None
        else:
            raise InvalidRequest(f"invalid label '{word}'; write NAME=VALUE, or NAME- to remove it")
    changed = client.call("PATCH", f"{PATH}/{quoted(node)}", {"labels": labels})
    text = f"{visible(changed['id'])}: {_labels(changed) or 'no labels'}"
    return print_answer(args, changed, text)


def _wait(args: Namespace, client: Client, node: str) -> dict[str, Any]:
    """Wait until a node is empty, and print what still runs whenever that changes."""
    printed = None
    while True:
        found: dict[str, Any] = client.call("GET", f"{PATH}/{quoted(node)}")
        if found["closed"] is None or not found["closed"]["drains"]:
            raise InvalidRequest(
                f"node '{node}' is no longer draining; another admin has uncordoned it"
            )
        if not found["jobs"]:
            return found
        if not args.json and found["jobs"] != printed:
            print(f"{visible(node)}: {_running_text(found)}", file=sys.stderr, flush=True)
        printed = found["jobs"]
        time.sleep(POLL_S)


def _running_text(node: dict[str, Any]) -> str:
    jobs = node["jobs"]
    few = 8
    more = f" and {len(jobs) - few} more" if len(jobs) > few else ""
    text = f"still running: {', '.join(jobs[:few])}{more}"
    requeue_s = seconds_at(node["closed"]["requeue_at"]) if node["closed"] else None
    if requeue_s is None:
        return text
    left = requeue_s - time.time()
    return f"{text}; stopped in {duration_text(left)}" if left > 0 else f"{text}; being stopped"


def _change_text(action: str, node: dict[str, Any]) -> str:
    name = visible(node["id"])
    if action == "remove":
        return visible(node["message"])
    if action == "uncordon":
        return f"{name} accepts new jobs again"
    if action == "confirm-dead":
        # Gangs with members on other nodes must stop there first.
        jobs = ", ".join(node["jobs"])
        gangs = f"; {jobs} when their members on other nodes have stopped" if jobs else ""
        return f"{name} confirmed dead; its jobs are requeued or have ended{gangs}"
    if action == "cordon":
        return f"{name} cordoned; {node['running']} jobs keep running there"
    if not node["jobs"]:
        return f"{name} is drained"
    return f"{name} draining; {_running_text(node)}"


def _show(node: dict[str, Any]) -> None:
    closed, state = node["closed"], state_text(node, ", ")
    if closed:
        reason = f": {closed['reason']}" if closed["reason"] else ""
        state += f" (by {closed['by'] or 'the server'}{reason})"
    models = ", ".join(node["gpu_models"]) or "none"
    lines = [
        ("state", state),
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


def _adapter(adapter: dict[str, Any]) -> str:
    rate = f" {adapter['rate_gbps']} Gb/s" if adapter["rate_gbps"] else ""
    down = "" if adapter["active"] else " (down)"
    return f"{adapter['name']}:{adapter['port']} {adapter['link']}{rate}{down}"


# Tokens and keys of nodes

USAGE = (
    "%(prog)s token [create ...] | token list | token revoke ID | keys | revoke NODE | authority"
)
NODE_ACTIONS = ("token", "keys", "revoke", "authority")
TOKEN_HEADINGS = ("ID", "STATE", "USED", "NODES", "EXPIRES", "BY", "NAME")
KEY_HEADINGS = ("NODE", "STATE", "ISSUED", "EXPIRES", "TOKEN", "FINGERPRINT")
SHORT_FINGERPRINT = 16


def register_node(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = USAGE
    add = Options(parser)
    about = "token, keys, revoke or authority"
    add.choice("action", NODE_ACTIONS, about, type=_key_action)
    add.word("words", "WORD", "create, list or revoke ID; or the node", nargs="*")
    uses = "number of nodes that may join; default: 1"
    add.value("--uses", lambda _: int, "N", uses, default=1)
    only = "only this node, which may replace an existing one"
    add.value("--node", None, "NAME", only, action="append")
    hours = partial(duration, plain="h")
    add.value("--expires", hours, "TIME", "validity, such as 30m; default: 1 hour", default=3600.0)
    add.value("--name", None, "TEXT", "a note on its purpose")
    add.flag("-q --parsable", "print only the token")
    add_server_options(parser, table=True)


def _key_action(word: str) -> str:
    """Point from actions on nodes to the command that has them."""
    if word in ACTIONS:
        whole = "tgpu nodes" if word == "list" else f"tgpu nodes {word}"
        raise InvalidRequest(f"'tgpu node' is about keys of nodes; write '{whole}'")
    return word


def run_node(args: Namespace) -> int:
    """Run the action that the words name."""
    match (args.action, *args.words):
        case ("token",) | ("token", "create"):
            return _create(args)
        case ("token", "list"):
            answer = call(args, "GET", f"{PATH}/tokens")
            rows = [
                [
                    str(token["id"]),
                    str(token["state"]),
                    f"{token['used']} of {token['uses']}",
                    ", ".join(token["nodes"]) or "any",
                    minute_text(token["expires_at"]),
                    str(token["created_by"]),
                    str(token["name"]),
                ]
                for token in answer["tokens"]
            ]
            return print_answer(
                args,
                answer,
                (lambda: print_table(TOKEN_HEADINGS, rows))
                if rows
                else "no join tokens; 'tgpu node token create' creates one",
            )
        case ("token", "revoke", token_id):
            revoked = call(args, "DELETE", f"{PATH}/tokens/{quoted(token_id)}")
            return print_answer(args, revoked, f"join token {token_id} revoked")
        case ("keys",):
            answer = call(args, "GET", f"{PATH}/keys")
            rows = [
                [
                    str(key["node"]),
                    str(key["state"]),
                    minute_text(key["issued_at"]),
                    minute_text(key["expires_at"]),
                    str(key["token_id"]),
                    str(key["fingerprint"])[:SHORT_FINGERPRINT],
                ]
                for key in answer["keys"]
            ]
            return print_answer(
                args,
                answer,
                (lambda: print_table(KEY_HEADINGS, rows)) if rows else "no node has joined yet",
            )
        case ("authority",):
            print(str(call(args, "GET", f"{PATH}/keys")["authority"]), end="")
            return 0
        case ("revoke", node):
            revoked = call(args, "DELETE", f"{PATH}/keys/{quoted(node)}")
            return print_answer(args, revoked, f"key of node {node} revoked")
    forms = USAGE.removeprefix("%(prog)s ")
    raise InvalidRequest(f"unknown action; write 'tgpu node' and one of: {forms}")


def _create(args: Namespace) -> int:
    body = {
        "uses": args.uses,
        "nodes": args.node or [],
        "name": args.name or "",
        "expires_in_seconds": args.expires,
    }
    token = call(args, "POST", f"{PATH}/tokens", body)
    if args.json:
        print_json(token)
        return 0
    print(token["token"])
    if not args.parsable:
        nodes = ", ".join(token["nodes"]) or counted(token["uses"], "new node")
        end = minute_text(token["expires_at"])
        warn(
            f"{token['id']}: for {nodes}, until {end}; the token is not shown again. On the node: "
            "tgpu agent --server HOST:PORT --token TOKEN"
        )
    return 0
