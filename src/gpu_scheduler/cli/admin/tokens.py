"""`tgpu token`, `tgpu whoami` and `tgpu audit`: access tokens, identity and the audit log."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, call, client_for, print_answer, warn
from gpu_scheduler.cli.jobs.columns import local_time, minute_text, seconds_at
from gpu_scheduler.cli.parser import Options
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
    add = Options(parser)
    add.choice("action", ACTIONS, "default: list", nargs="?", default="list")
    add.word("id", "ID", "id of the token to revoke", nargs="?")
    add.value("-T --tenant", None, "T", "for this tenant; default: the user's own")
    add.choice("--role", ROLES, "role of its bearer; default: user", default="user")
    add.value("-u --user", None, "NAME", "jobs run as this user; default: you (required for root)")
    valid, days = "validity, such as 30d; default: 30 days", partial(duration, plain="d")
    add.value("--expires", days, "TIME", valid, default=30 * 86_400.0)
    add.value("--name", None, "TEXT", "a note on its purpose")
    add.flag("-q --parsable", "print only the secret")
    add_server_options(parser, table=True)


def run_token(args: Namespace) -> int:
    """Create, list or revoke tokens."""
    if args.action == "create":
        return _create(args)
    if args.action == "revoke":
        if not args.id:
            raise InvalidRequest(
                "ID is missing; write 'tgpu token revoke ID'; 'tgpu token' lists the ids"
            )
        revoked = call(args, "DELETE", f"{API}/tokens/{quoted(args.id)}")
        return print_answer(args, revoked, f"token {args.id} revoked")
    tokens = call(args, "GET", f"{API}/tokens")["tokens"]
    rows = [
        [
            *(str(token[name]) for name in ("id", "user", "tenant_id", "role", "state")),
            minute_text(token["expires_at"]),
            minute_text(token["last_used_at"]),
            str(token["name"]),
        ]
        for token in tokens
    ]
    spare = ("LAST USED", "TENANT", "ROLE", "NAME", "EXPIRES")
    return print_answer(
        args,
        {"tokens": tokens},
        (lambda: print_table(HEADINGS, rows, narrow=("NAME",), spare=spare))
        if rows
        else "no tokens; 'tgpu token create --name laptop' creates one",
    )


def register_whoami(parser: ArgumentParser) -> None:
    """Add the options of `tgpu whoami`."""
    add_server_options(parser)


def run_whoami(args: Namespace) -> int:
    """Print the identity that the server determined for the caller."""
    me = call(args, "GET", f"{API}/me")
    tenants = "every tenant" if me.get("role") == "admin" else ", ".join(me.get("tenants", []))
    pairs = (
        ("user", f"{me.get('user')} (uid {me.get('uid')})"),
        ("role", str(me.get("role"))),
        ("tenant", str(me.get("tenant_id"))),
        ("may submit to", tenants),
        ("administers", ", ".join(me.get("administers", []))),
        ("identified by", str(me.get("via") or "the kernel")),
    )
    return print_answer(args, me, lambda: print_pairs(pairs))


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
        return 0
    print(token["token"])
    if not args.parsable:
        end = minute_text(token["expires_at"])
        use = "reads as" if token["role"] == "viewer" else "jobs run as"
        warn(
            f"{token['id']}: {use} '{token['user']}' in tenant '{token['tenant_id']}', role "
            f"{token['role']}, until {end}; the secret is not shown again"
        )
    return 0


# Audit log

AUDIT_HEADINGS = ("TIME", "USER", "FROM", "BY", "WHAT", "TARGET", "OUTCOME", "TIMES", "DETAIL")
NARROW = ("TARGET", "OUTCOME")
SPARE = ("TIMES", "BY", "FROM", "DETAIL", "TARGET")
LARGEST_PAGE = 1000


def register_audit(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "The newest entry comes last, as in a log."
    add = Options(parser)
    add.value("-u --user", None, "NAME", "only entries of this user")
    action = "only this action, such as submit, cancel or set_tenant"
    add.value("--action", None, "WHAT", action)
    add.flag("--refused", "only rejected requests")
    add.value("--since", None, "TIME", "such as 2h, 7d (ago) or 2026-11-16")
    most = "show at most N, the newest; default 100, 0 shows all"
    add.value("-L --limit", whole, "N", most, default=100)
    add_server_options(parser, table=True)


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
    rows = [
        [
            local_time(record["at"]),
            str(record["user"] or "-"),
            str(record["origin"] or "-"),
            str(record["via"] or "kernel"),
            str(record["action"]),
            str(record["target"] or "-"),
            f"refused: {record['code']}" if record["code"] else record["outcome"],
            str(record["count"]),
            str(record["detail"]),
        ]
        for record in records
    ]
    return print_answer(
        args,
        {"records": records},
        lambda: print_table(AUDIT_HEADINGS, rows, right=("TIMES",), narrow=NARROW, spare=SPARE),
    )
