"""`tgpu tenants`: list, create, show, update and delete tenants."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, call, client_for, print_answer, warn
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import print_pairs, print_table
from gpu_scheduler.cli.text.values import comma_list, number, size_mb, size_text, whole
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
LIMITS: dict[str, tuple[str, Callable[[str], Callable[[str], Any]], str]] = {
    "--max-gpus": ("max_gpus", number, f"GPUs at once; {ANY_LIMIT}"),
    "--max-gpu-memory": ("max_gpu_memory_mb", size_mb, "GPU memory at once"),
    "--max-cpus": ("max_cpu_cores", number, "CPU cores"),
    "--max-memory": ("max_memory_mb", size_mb, "memory at once"),
    "--max-jobs": ("max_concurrent_jobs", whole, "jobs at once"),
    "--max-gpu-hours": ("max_gpu_hours", number, "GPU time in a period"),
    "--max-pending": ("max_pending_jobs", whole, "pending jobs"),
    "--user-max-gpus": ("user_max_gpus", number, "GPUs of each user"),
    "--user-max-jobs": ("user_max_jobs", whole, "jobs of each user at once"),
    "--user-max-pending": ("user_max_pending_jobs", whole, "pending jobs of each user"),
    "--user-max-gpu-hours": ("user_max_gpu_hours", number, "GPU time of each user in a period"),
}
"""Field, parser and help of each limit, by its flag."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = "%(prog)s [list] | create NAME ... | show T | update T ... | delete T"
    add = Options(parser)
    add.choice("action", ACTIONS, "default: list", nargs="?", default="list")
    add.word("tenant", "TENANT", "id or name; for create the name", nargs="?")
    add.value("--id", None, "ID", "default: the name if it can be one, else tenant-<number>")
    for flag, (field, reader, about) in LIMITS.items():
        metavar = "SIZE" if reader is size_mb else "N"
        add.value(flag, _or_none(reader), metavar, about, dest=field)
    add.choice("--budget-period", ("total", "week", "month"), "period of the GPU-hours budget")
    add.choice("--tier", TIERS, "priority tier", dest="priority_tier")
    add.value("--weight", number, "X", "fair share", dest="fair_share_weight")
    add.choice("--allow-preemption", ("yes", "no"), "its jobs may be preempted")
    add.choice("--can-preempt-others", ("yes", "no"), "its jobs may preempt others")
    add.value("--max-preemptions", whole, "N", "preemptions per job")
    add.choice("--elastic", ("yes", "no"), "may borrow idle GPUs of other tenants")
    groups = "groups whose members belong to it, separated by commas; '' for none"
    add.value("--linux-groups", lambda _: comma_list, "A,B", groups)
    add.value("--users", lambda _: comma_list, "A,B", "further users who belong to it")
    add.value("--admins", lambda _: comma_list, "A,B", "users who may see and change all its jobs")
    add_server_options(parser, table=True)


def run(args: Namespace) -> int:
    """Run the action that the first word names."""
    if args.action == "list":
        with client_for(args) as client:
            tenants = client.tenants()
        return print_answer(
            args,
            {"tenants": list(tenants)},
            lambda: print_table(
                HEADINGS,
                map(_row, tenants),
                right=("WEIGHT", "GPUS", "GPU MEMORY", "JOBS", "GPU HOURS"),
                narrow=("NAME",),
                spare=("NAME", "WEIGHT", "TIER", "GPU MEMORY", "GPU HOURS"),
            ),
        )
    if not args.tenant:
        raise InvalidRequest(f"TENANT is missing; write 'tgpu tenants {args.action} NAME'")
    fields = {name: getattr(args, name) for name in FIELDS if getattr(args, name, None) is not None}
    fields |= {name: value == "yes" for name, value in fields.items() if value in ("yes", "no")}
    fields |= {name: None for name, value in fields.items() if value == NO_LIMIT}
    path = f"{API}/tenants/{quoted(args.tenant)}"
    if args.action == "create":
        tenant = call(args, "POST", f"{API}/tenants", {"name": args.tenant} | fields)
    elif args.action == "update":
        if not fields:
            raise InvalidRequest("nothing to change; give for example --max-gpus 8")
        tenant = call(args, "PATCH", path, fields)
    else:
        tenant = call(args, "DELETE" if args.action == "delete" else "GET", path)

    def show() -> None:
        for warning in tenant.pop("warnings", []):
            warn(f"warning: {warning}")
        if args.action == "delete":
            _, _, warning = str(tenant.get("message", "")).partition("; ")
            if warning:
                warn(f"warning: {warning}")
            print(f"tenant {args.tenant} deleted")
            return
        if args.action != "show":
            print(f"tenant {tenant.get('id')} {args.action}d")
        print_pairs((name, _value_text(value)) for name, value in tenant.items())

    return print_answer(args, tenant, show)


def _or_none(
    reader: Callable[[str], Callable[[str], Any]],
) -> Callable[[str], Callable[[str], Any]]:
    """The same reader of limits, which also accepts `none`."""

    def with_none(flag: str) -> Callable[[str], Any]:
        read = reader(flag)
        return lambda text: NO_LIMIT if text.strip().lower() == NO_LIMIT else read(text)

    return with_none


def _row(tenant: dict[str, Any]) -> list[str]:
    memory = tenant.get("max_gpu_memory_mb")
    used = size_text(tenant.get("current_gpu_memory_mb") or 0)
    return [
        str(tenant.get("id")),
        str(tenant.get("name") or ""),
        str(tenant.get("priority_tier") or ""),
        f"{tenant.get('fair_share_weight') or 1:g}",
        _of(tenant.get("current_gpus"), tenant.get("max_gpus")),
        f"{used} / {'-' if memory is None else size_text(memory)}",
        _of(tenant.get("current_jobs"), tenant.get("max_concurrent_jobs")),
        _of(tenant.get("used_gpu_hours"), tenant.get("max_gpu_hours")),
    ]


def _of(used: float | None, limit: float | None) -> str:
    return f"{round(used or 0, 2):g} / {'-' if limit is None else f'{limit:g}'}"


def _value_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
