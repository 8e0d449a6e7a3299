"""`tgpu node`: tokens that new nodes join with, and the keys of those that have."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.durations import duration
from gpu_scheduler.cli.output import counted, print_json, print_table
from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.client.forms import API
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.model.errors import InvalidRequest

USAGE = (
    "%(prog)s token [create ...] | token list | token revoke ID | keys | revoke NODE | authority"
)
ACTIONS = ("token", "keys", "revoke", "authority")
TOKEN_ACTIONS = ("create", "list", "revoke")
TOKEN_HEADINGS = ("ID", "STATE", "USED", "NODES", "EXPIRES", "BY", "NAME")
KEY_HEADINGS = ("NODE", "STATE", "ISSUED", "EXPIRES", "TOKEN", "FINGERPRINT")
SHORT_FINGERPRINT = 16


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = USAGE
    add = parser.add_argument
    add("action", choices=ACTIONS, help="what it is about")
    add("words", nargs="*", metavar="WORD", help="create, list or revoke ID; or the node")
    add("--uses", type=int, default=1, metavar="N", help="so many nodes may join; default: 1")
    add("--node", action="append", metavar="NAME", help="only this node, also in another's place")
    add(
        "--expires",
        type=duration("--expires", plain="h"),
        default=3600.0,
        metavar="TIME",
        help="good for this long, as 30m; default: 1 hour",
    )
    add("--name", metavar="TEXT", help="what it is for")
    add("-q", "--parsable", action="store_true", help="print the token alone")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Do what the words say."""
    match (args.action, *args.words):
        case ("token",) | ("token", "create"):
            return _create(args)
        case ("token", "list"):
            return _list(args, "tokens", TOKEN_HEADINGS, _token_row)
        case ("token", "revoke", token_id):
            return _revoke(args, f"tokens/{quoted(token_id)}", f"join token {token_id} is revoked")
        case ("keys",):
            return _list(args, "keys", KEY_HEADINGS, _key_row)
        case ("authority",):
            with client_for(args) as client:
                found = client.call("GET", f"{API}/nodes/keys")
            print(str(found["authority"]), end="")
            return 0
        case ("revoke", node):
            return _revoke(args, f"keys/{quoted(node)}", f"the key of node {node} is revoked")
    forms = USAGE.removeprefix("%(prog)s ")
    raise InvalidRequest(f"this cannot be read; write 'tgpu node' and one of: {forms}")


def _create(args: Namespace) -> int:
    body = {
        "uses": args.uses,
        "nodes": args.node or [],
        "name": args.name or "",
        "expires_in_seconds": args.expires,
    }
    with client_for(args) as client:
        token = client.call("POST", f"{API}/nodes/tokens", body)
    if args.json:
        print_json(token)
        return 0
    print(token["token"])
    if not args.parsable:
        whom = ", ".join(token["nodes"]) or counted(token["uses"], "new node")
        warn(
            f"{token['id']}: for {whom}, until {_minute(token['expires_at'])}; the token is not "
            "shown again. On the node: tgpu agent --server HOST:PORT --token TOKEN"
        )
    return 0


def _list(args: Namespace, what: str, headings: tuple[str, ...], row: Any) -> int:
    with client_for(args) as client:
        found = client.call("GET", f"{API}/nodes/{what}")
    if args.json:
        print_json(found)
    else:
        print_table(headings, (row(one) for one in found[what]))
    return 0


def _revoke(args: Namespace, what: str, done: str) -> int:
    with client_for(args) as client:
        revoked = client.call("DELETE", f"{API}/nodes/{what}")
    if args.json:
        print_json(revoked)
    else:
        print(done)
    return 0


def _token_row(token: dict[str, Any]) -> list[str]:
    return [
        str(token["id"]),
        str(token["state"]),
        f"{token['used']} of {token['uses']}",
        ", ".join(token["nodes"]) or "any",
        _minute(token["expires_at"]),
        str(token["created_by"]),
        str(token["name"]),
    ]


def _key_row(key: dict[str, Any]) -> list[str]:
    return [
        str(key["node"]),
        str(key["state"]),
        _minute(key["issued_at"]),
        _minute(key["expires_at"]),
        str(key["token_id"]),
        str(key["fingerprint"])[:SHORT_FINGERPRINT],
    ]


def _minute(text: str | None) -> str:
    """A time to the minute."""
    return "-" if not text else text[:16].replace("T", " ")
