"""`tgpu tenants`: list, create, show, update and delete tenants."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for
from gpu_scheduler.cli.text.tables import print_json, print_pairs, print_table
from gpu_scheduler.cli.text.values import number, size_mb, size_text, whole
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest

ACTIONS = ("list", "create", "show", "update", "delete")
TIERS = ("low", "medium", "high", "critical")
HEADINGS = ("ID", "NAME", "TIER", "WEIGHT", "GPUS", "GPU MEMORY", "JOBS", "GPU HOURS")
FIELDS = (
    *("max_gpus", "max_gpu_memory_mb", "max_cpu_cores", "max_memory_mb", "max_concurrent_jobs"),
    *("max_gpu_hours", "priority_tier", "fair_share_weight", "allow_preemption"),
    *("max_pending_jobs", "budget_period", "user_max_gpus", "user_max_jobs"),
    *("user_max_pending_jobs", "user_max_gpu_hours"),
    *("can_preempt_others", "max_preemptions", "elastic", "id", "linux_groups", "users", "admins"),
)


NO_LIMIT = "none"
ANY_LIMIT = f"'{NO_LIMIT}' removes this or any other limit"
LIMITS: tuple[tuple[str, str, Callable[[str], Callable[[str], Any]], str, str], ...] = (
    ("--max-gpus", "max_gpus", number, "N", f"GPUs at once; {ANY_LIMIT}"),
    ("--max-gpu-memory", "max_gpu_memory_mb", size_mb, "SIZE", "GPU memory at once"),
    ("--max-cpus", "max_cpu_cores", number, "N", "CPU cores"),
    ("--max-memory", "max_memory_mb", size_mb, "SIZE", "memory at once"),
    ("--max-jobs", "max_concurrent_jobs", whole, "N", "jobs at once"),
    ("--max-gpu-hours", "max_gpu_hours", number, "N", "GPU time in a period"),
    ("--max-pending", "max_pending_jobs", whole, "N", "pending jobs"),
    ("--user-max-gpus", "user_max_gpus", number, "N", "GPUs of each user"),
    ("--user-max-jobs", "user_max_jobs", whole, "N", "jobs of each user at once"),
    ("--user-max-pending", "user_max_pending_jobs", whole, "N", "pending jobs of each user"),
    (
        "--user-max-gpu-hours",
        "user_max_gpu_hours",
        number,
        "N",
        "GPU time of each user in a period",
    ),
)
"""Flag, field, parser, placeholder and help of each limit."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = "%(prog)s [list] | create NAME ... | show T | update T ... | delete T"
    add = parser.add_argument
    add("action", nargs="?", choices=ACTIONS, default="list", help="default: list")
    add("tenant", nargs="?", metavar="TENANT", help="id or name; for create the name")
    add(
        "--id",
        metavar="ID",
        help="default: the name if it can be one, else tenant-<number>",
    )
    for flag, field, read, metavar, about in LIMITS:
        add(flag, dest=field, type=_limit(read(flag)), metavar=metavar, help=about)
    add(
        "--budget-period", choices=("total", "week", "month"), help="period of the GPU-hours budget"
    )
    add("--tier", dest="priority_tier", choices=TIERS, help="priority tier")
    add(
        "--weight",
        dest="fair_share_weight",
        type=number("--weight"),
        metavar="X",
        help="fair share",
    )
    add("--allow-preemption", choices=("yes", "no"), help="its jobs may be preempted")
    add("--can-preempt-others", choices=("yes", "no"), help="its jobs may preempt others")
    add(
        "--max-preemptions",
        type=whole("--max-preemptions"),
        metavar="N",
        help="preemptions per job",
    )
    add("--elastic", choices=("yes", "no"), help="may borrow idle GPUs of other tenants")
    for name, about in (
        ("--linux-groups", "groups whose members belong to it, separated by commas; '' for none"),
        ("--users", "further users who belong to it"),
        ("--admins", "users who may see and change all its jobs"),
    ):
        add(name, type=_names, metavar="A,B", help=about)
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Run the action that the first word names."""
    if args.action == "list":
        return _list(args)
    if not args.tenant:
        raise InvalidRequest(f"TENANT is missing; write 'tgpu tenants {args.action} NAME'")
    fields = {name: getattr(args, name) for name in FIELDS if getattr(args, name, None) is not None}
    fields |= {name: value == "yes" for name, value in fields.items() if value in ("yes", "no")}
    fields |= {name: None for name, value in fields.items() if value == NO_LIMIT}
    path = f"{API}/tenants/{quoted(args.tenant)}"
    with client_for(args) as client:
        if args.action == "create":
            tenant = client.call(
                "POST", f"{API}/tenants", {"name": args.tenant} | fields, once=True
            )
        elif args.action == "update":
            if not fields:
                raise InvalidRequest("nothing to change; give for example --max-gpus 8")
            tenant = client.call("PATCH", path, fields)
        elif args.action == "delete":
            tenant = client.call("DELETE", path)
        else:
            tenant = client.call("GET", path)
    _print(args, tenant)
    return 0


def _limit(read: Callable[[str], float]) -> Callable[[str], float | str]:
    """A parser of a limit that also accepts `none`."""
    return lambda text: NO_LIMIT if text.strip().lower() == NO_LIMIT else read(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _list(args: Namespace) -> int:
    with client_for(args) as client:
        tenants = client.tenants()
    if args.json:
        print_json({"tenants": list(tenants)})
        return 0
    right = ("WEIGHT", "GPUS", "GPU MEMORY", "JOBS", "GPU HOURS")
    rows = (_row(tenant) for tenant in tenants)
    spare = ("NAME", "WEIGHT", "TIER", "GPU MEMORY", "GPU HOURS")
    print_table(HEADINGS, rows, right=right, narrow=("NAME",), spare=spare)
    return 0


def _row(tenant: dict[str, Any]) -> list[str]:
    memory = tenant.get("max_gpu_memory_mb")
    held = size_text(tenant.get("current_gpu_memory_mb") or 0)
    return [
        str(tenant.get("id")),
        str(tenant.get("name") or ""),
        str(tenant.get("priority_tier") or ""),
        f"{tenant.get('fair_share_weight') or 1:g}",
        _of(tenant.get("current_gpus"), tenant.get("max_gpus")),
        f"{held} / {'-' if memory is None else size_text(memory)}",
        _of(tenant.get("current_jobs"), tenant.get("max_concurrent_jobs")),
        _of(tenant.get("used_gpu_hours"), tenant.get("max_gpu_hours")),
    ]


def _of(held: float | None, limit: float | None) -> str:
    return f"{round(held or 0, 2):g} / {'-' if limit is None else f'{limit:g}'}"


def _print(args: Namespace, tenant: dict[str, Any]) -> None:
    if args.json:
        print_json(tenant)
    elif args.action == "delete":
        print(f"tenant {args.tenant} deleted")
    else:
        if args.action != "show":
            print(f"tenant {tenant.get('id')} {args.action}d")
        print_pairs((name, _value_text(value)) for name, value in tenant.items())


def _value_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
