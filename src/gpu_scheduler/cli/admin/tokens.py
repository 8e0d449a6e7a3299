"""`tgpu token`, `tgpu whoami` and `tgpu audit`: access tokens, identity and the audit log."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.columns import local_time, seconds_at
from gpu_scheduler.cli.text.dates import past_moment
from gpu_scheduler.cli.text.tables import print_json, print_pairs, print_table
from gpu_scheduler.cli.text.values import duration, whole
from gpu_scheduler.client.http1 import quoted, target
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest

ACTIONS = ("create", "list", "revoke")
ROLES = ("viewer", "user", "tenant-admin", "admin")
HEADINGS = ("ID", "USER", "TENANT", "ROLE", "STATE", "EXPIRES", "LAST USED", "NAME")


def register_token(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = "%(prog)s [list] | create ... | revoke ID"
    add = parser.add_argument
    add("action", nargs="?", choices=ACTIONS, default="list", help="default: list")
    add("id", nargs="?", metavar="ID", help="id of the token to revoke")
    add("-T", "--tenant", metavar="T", help="for this tenant; default: the user's own")
    add("--role", choices=ROLES, default="user", help="role of its bearer; default: user")
    add(
        "-u",
        "--user",
        metavar="NAME",
        help="jobs run as this user; default: you (required for root)",
    )
    add(
        "--expires",
        type=duration("--expires", plain="d"),
        default=30 * 86_400.0,
        metavar="TIME",
        help="validity, such as 30d; default: 30 days",
    )
    add("--name", metavar="TEXT", help="a note on its purpose")
    add("-q", "--parsable", action="store_true", help="print only the secret")
    add_server_options(parser)


def run_token(args: Namespace) -> int:
    """Create, list or revoke tokens."""
    if args.action == "create":
        return _create(args)
    if args.action == "revoke":
        if not args.id:
            raise InvalidRequest(
                "ID is missing; write 'tgpu token revoke ID'; 'tgpu token' lists the ids"
            )
        with client_for(args) as client:
            revoked = client.call("DELETE", f"{API}/tokens/{quoted(args.id)}")
        if args.json:
            print_json(revoked)
        else:
            print(f"token {args.id} revoked")
        return 0
    with client_for(args) as client:
        tokens = client.call("GET", f"{API}/tokens")["tokens"]
    if args.json:
        print_json({"tokens": tokens})
    else:
        spare = ("LAST USED", "TENANT", "ROLE", "NAME", "EXPIRES")
        print_table(HEADINGS, (_row(token) for token in tokens), narrow=("NAME",), spare=spare)
    return 0


def register_whoami(parser: ArgumentParser) -> None:
    """Add the options of `tgpu whoami`."""
    add_server_options(parser)


def run_whoami(args: Namespace) -> int:
    """Print the identity that the server determined for the caller."""
    with client_for(args) as client:
        me = client.call("GET", f"{API}/me")
    if args.json:
        print_json(me)
        return 0
    print_pairs(
        (
            ("user", f"{me.get('user')} (uid {me.get('uid')})"),
            ("role", str(me.get("role"))),
            ("tenant", str(me.get("tenant_id"))),
            (
                "may submit to",
                "every tenant" if me.get("role") == "admin" else ", ".join(me.get("tenants", [])),
            ),
            ("administers", ", ".join(me.get("administers", []))),
            ("identified by", str(me.get("via") or "the kernel")),
        )
    )
    return 0


def _create(args: Namespace) -> int:
    body = {
        "tenant_id": args.tenant or "",
        "role": args.role,
        "user": args.user or "",
        "name": args.name or "",
        "expires_in_seconds": args.expires,
    }
    with client_for(args) as client:
        token = client.call("POST", f"{API}/tokens", body, once=False)
    if args.json:
        print_json(token)
    elif args.parsable:
        print(token["token"])
    else:
        print(token["token"])
        use = "reads as" if token["role"] == "viewer" else "jobs run as"
        warn(
            f"{token['id']}: {use} '{token['user']}' in tenant '{token['tenant_id']}', role "
            f"{token['role']}, until {_minute(token['expires_at'])}; the secret is not shown again"
        )
    return 0


def _row(token: dict[str, Any]) -> list[str]:
    return [
        str(token["id"]),
        str(token["user"]),
        str(token["tenant_id"]),
        str(token["role"]),
        str(token["state"]),
        _minute(token["expires_at"]),
        _minute(token["last_used_at"]),
        str(token["name"]),
    ]


def _minute(text: str | None) -> str:
    """A time to the minute."""
    return "-" if not text else text[:16].replace("T", " ")


# Audit log

AUDIT_HEADINGS = ("TIME", "USER", "FROM", "BY", "WHAT", "TARGET", "OUTCOME", "TIMES", "DETAIL")
NARROW = ("TARGET", "OUTCOME")
SPARE = ("TIMES", "BY", "FROM", "DETAIL", "TARGET")
LARGEST_PAGE = 1000


def register_audit(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "The newest entry comes last, as in a log."
    add = parser.add_argument
    add("-u", "--user", metavar="NAME", help="only entries of this user")
    add("--action", metavar="WHAT", help="only this action, such as submit, cancel or set_tenant")
    add("--refused", action="store_true", help="only rejected requests")
    add("--since", metavar="TIME", help="such as 2h, 7d (ago) or 2026-11-16")
    add(
        *("-L", "--limit"),
        type=whole("--limit"),
        default=100,
        metavar="N",
        help="show at most N, the newest; default 100, 0 shows all",
    )
    add_server_options(parser)


def run_audit(args: Namespace) -> int:
    """List the entries, the newest last."""
    records: list[dict[str, Any]] = []
    query: dict[str, object] = {
        "user": args.user,
        "action": args.action,
        "outcome": "refused" if args.refused else None,
        "since": past_moment(args.since, "--since"),
    }
    with client_for(args) as client:
        while not args.limit or len(records) < args.limit:
            left = args.limit - len(records) if args.limit else LARGEST_PAGE
            query["limit"] = min(left, LARGEST_PAGE)
            page = client.call("GET", target(f"{API}/audit", query))
            records += page["records"]
            query["before"] = page["next_before"]
            if page["next_before"] is None:
                break
    # Rejected requests are written in batches, so the numbers are not in order of time.
    records.sort(key=lambda record: (seconds_at(record["at"]) or 0.0, record["number"]))
    if args.json:
        print_json({"records": records})
    else:
        rows = (_audit_row(record) for record in records)
        print_table(AUDIT_HEADINGS, rows, right=("TIMES",), narrow=NARROW, spare=SPARE)
    return 0


def _audit_row(record: dict[str, Any]) -> list[str]:
    outcome = record["outcome"] if not record["code"] else f"refused: {record['code']}"
    return [
        local_time(record["at"]),
        str(record["user"] or "-"),
        str(record["origin"] or "-"),
        str(record["via"] or "kernel"),
        str(record["action"]),
        str(record["target"] or "-"),
        outcome,
        str(record["count"]),
        str(record["detail"]),
    ]
