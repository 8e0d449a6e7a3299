"""`tgpu token` and `tgpu whoami`: what lets callers in from elsewhere, and as whom."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.columns import seconds_at
from gpu_scheduler.cli.jobs.history import local_time
from gpu_scheduler.cli.text.dates import moment_back
from gpu_scheduler.cli.text.tables import print_json, print_pairs, print_table
from gpu_scheduler.cli.text.values import duration, whole
from gpu_scheduler.client.http1 import quoted, target
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest

ACTIONS = ("create", "list", "revoke")
ROLES = ("viewer", "user", "tenant-admin", "admin")
HEADINGS = ("ID", "USER", "TENANT", "ROLE", "STATE", "EXPIRES", "LAST USED", "NAME")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = "%(prog)s [list] | create ... | revoke ID"
    add = parser.add_argument
    add("action", nargs="?", choices=ACTIONS, default="list", help="default: list")
    add("id", nargs="?", metavar="ID", help="of the token to revoke")
    add("-T", "--tenant", metavar="T", help="for this tenant; default: the user's own")
    add("--role", choices=ROLES, default="user", help="what it allows; default: user")
    add("-u", "--user", metavar="NAME", help="jobs run as this user; default: you (root must say)")
    add(
        "--expires",
        type=duration("--expires", plain="d"),
        default=30 * 86_400.0,
        metavar="TIME",
        help="good for this long, as 30d; default: 30 days",
    )
    add("--name", metavar="TEXT", help="what it is for")
    add("-q", "--parsable", action="store_true", help="print the secret alone")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Do what the first word says."""
    if args.action == "create":
        return _create(args)
    if args.action == "revoke":
        if not args.id:
            raise InvalidRequest("which token? write 'tgpu token revoke ID'; 'tgpu token' has ids")
        with client_for(args) as client:
            revoked = client.call("DELETE", f"{API}/tokens/{quoted(args.id)}")
        if args.json:
            print_json(revoked)
        else:
            print(f"token {args.id} is revoked")
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
    """The options of `tgpu whoami`."""
    add_server_options(parser)


def whoami(args: Namespace) -> int:
    """Say who the server takes the caller for."""
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
            ("looks after", ", ".join(me.get("administers", []))),
            ("known by", str(me.get("via") or "the kernel")),
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
        what = "sees what" if token["role"] == "viewer" else "jobs run as"
        whom = f"'{token['user']}'" + (" sees" if token["role"] == "viewer" else "")
        warn(
            f"{token['id']}: {what} {whom} in tenant '{token['tenant_id']}', role "
            f"{token['role']}, until {_day(token['expires_at'])}; the secret is not shown again"
        )
    return 0


def _row(token: dict[str, Any]) -> list[str]:
    return [
        str(token["id"]),
        str(token["user"]),
        str(token["tenant_id"]),
        str(token["role"]),
        str(token["state"]),
        _day(token["expires_at"]),
        _day(token["last_used_at"]),
        str(token["name"]),
    ]


def _day(text: str | None) -> str:
    """A time to the minute."""
    return "-" if not text else text[:16].replace("T", " ")


# --- `tgpu audit`: who changed what, and what was refused.

AUDIT_HEADINGS = ("TIME", "USER", "FROM", "BY", "WHAT", "TARGET", "OUTCOME", "TIMES", "DETAIL")
NARROW = ("TARGET", "OUTCOME")
SPARE = ("TIMES", "BY", "FROM", "DETAIL", "TARGET")
LARGEST_PAGE = 1000


def register_audit(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "The newest comes last, as in a log."
    add = parser.add_argument
    add("-u", "--user", metavar="NAME", help="only of this user")
    add("--action", metavar="WHAT", help="only this, such as submit, cancel or set_tenant")
    add("--refused", action="store_true", help="only what was refused")
    add("--since", metavar="TIME", help="as 2h, 7d (ago) or 2026-11-16")
    add(
        *("-L", "--limit"),
        type=whole("--limit"),
        default=100,
        metavar="N",
        help="show at most N, the newest; default 100, 0 shows all",
    )
    add_server_options(parser)


def audit(args: Namespace) -> int:
    """List, the newest last, as in a log."""
    records: list[dict[str, Any]] = []
    query: dict[str, object] = {
        "user": args.user,
        "action": args.action,
        "outcome": "refused" if args.refused else None,
        "since": moment_back(args.since, "--since"),
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
    # Refusals are gathered and written a little later, so their numbers are not in order of time.
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
