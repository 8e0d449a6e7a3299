"""`tgpu report`: what happened in a period, as text, JSON or a page with charts; its invoice."""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from gpu_scheduler.cli.durations import whole, words_of
from gpu_scheduler.cli.output import hours_text, painted, print_json, print_table, visible
from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.client.forms import API
from gpu_scheduler.client.http1 import target
from gpu_scheduler.model.errors import InvalidRequest

INVOICE_COLUMNS = ("tenant", "user", "item", "model", "amount", "unit", "price", "cost", "currency")
MOST_ROWS = 50
ABOUT = """\
Counts runs: one for each attempt, what runs up to now. A job that was cancelled before it ran is
none; 'tgpu usage' without a period counts it."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = ABOUT
    add_period_options(parser, default="month")
    add = parser.add_argument
    add(
        "--below",
        type=whole("--below"),
        metavar="PERCENT",
        help="list runs that used less of their GPUs than this; default 20",
    )
    add("--html", metavar="FILE", help="write a page with charts; one file, no network")
    add("--invoice", action="store_true", help="print what the period costs, line by line")
    add("--estimates", action="store_true", help="say how well expected starts were kept")
    add("--format", choices=("text", "csv", "json"), help="of the invoice; default text")
    add_server_options(parser)


def add_period_options(parser: ArgumentParser, *, default: str | None) -> None:
    """`--period` and of whom."""
    add = parser.add_argument
    shown = f"; default {default}" if default else ""
    add(
        "--period",
        metavar="P",
        default=default,
        help="today, yesterday, week, month, year, 2026-10, 2026-10-31, "
        f"2026-10-01..2026-10-15{shown}",
    )
    add("-T", "--tenant", "--tenant-id", dest="tenant", metavar="T", help="only this tenant")
    add("-u", "--user", metavar="NAME", help="only this user")
    add("--time-zone", metavar="ZONE", help="where days begin, as Europe/Berlin; default UTC")


def period_query(args: Namespace) -> dict[str, object]:
    """The options as a query."""
    return {
        "period": args.period,
        "tenant_id": args.tenant,
        "user": args.user,
        "time_zone": args.time_zone,
    }


def run(args: Namespace) -> int:
    """Report, or invoice."""
    if args.format and not args.invoice:
        raise InvalidRequest("--format is for --invoice; for a report use --json or --html FILE")
    with client_for(args) as client:
        if args.estimates:
            from gpu_scheduler.cli.report_estimates import show

            return show(client, as_json=args.json)
        if args.invoice:
            return _invoice(client.call("GET", target(f"{API}/invoice", period_query(args))), args)
        query = period_query(args) | {"below_percent": args.below}
        report = client.call("GET", target(f"{API}/report", query))
    if args.html:
        from gpu_scheduler.cli.report_page import write_page

        write_page(report, args.html)
        warn(f"written: {args.html}")
    if args.json:
        print_json(report)
    elif not args.html:
        print("\n".join(summary(report)))
        _print_tables(report)
    return 0


def summary(report: dict[str, Any]) -> Iterator[str]:
    """The period in a few lines."""
    total = report["total"]
    so_far = ", so far" if report["until"] < report["end"] else ""
    begin, end = report["start"][:16].replace("T", " "), report["end"][:16].replace("T", " ")
    yield f"{painted('Report', 'bold')} for {visible(report['period'])}: {begin} to {end}{so_far}"
    cost = f", {total['cost']:,.2f} {report['currency']}" if total["cost"] else ""
    energy = f", {total['energy_kwh']:,.2f} kWh" if total["energy_kwh"] else ""
    yield f"  used       {hours_text(total['gpu_hours'])} GPU-hours{energy}{cost}"
    yield (
        f"  runs       {total['started']:,} started, {total['completed']:,} completed, "
        f"{total['failed']:,} failed, {total['cancelled']:,} cancelled, "
        f"{total['preempted']:,} preempted"
    )
    for name, key in (("waits", "waits"), ("run times", "run_times")):
        yield f"  {name:<9}  {spread_text(report[key])}"
    mean = total["mean_utilisation_percent"]
    if mean is not None:
        yield f"  busy       {mean:.0f} % of the GPUs that runs held, in the mean"


def spread_text(spread: dict[str, Any]) -> str:
    """Mean, median, 90th percentile and largest, in words."""
    if not spread["count"]:
        return "none"
    figures = (
        f"{name} {words_of(spread[f'{key}_seconds'])}"
        for name, key in (("mean", "mean"), ("median", "median"), ("p90", "p90"), ("max", "max"))
    )
    return f"{', '.join(figures)} (of {spread['count']:,})"


def account_rows(accounts: list[dict[str, Any]]) -> Iterator[list[str]]:
    """One row for each tenant or user."""
    for account in accounts:
        sums = account["sums"]
        mean = sums["mean_utilisation_percent"]
        yield [
            account["tenant_id"],
            account["user"] or "(all)",
            hours_text(sums["gpu_hours"]),
            f"{sums['energy_kwh']:,.2f}" if sums["energy_kwh"] else "-",
            f"{sums['cost']:,.2f}",
            "-" if mean is None else f"{mean:.0f}%",
            *(f"{sums[name]:,}" for name in ("completed", "failed", "cancelled", "preempted")),
            words_of(account["waits"]["median_seconds"]) if account["waits"]["count"] else "-",
        ]


ACCOUNT_HEADINGS = (
    *("TENANT", "USER", "GPU-HOURS", "KWH", "COST", "BUSY"),
    *("COMPLETED", "FAILED", "CANCELLED", "PREEMPTED", "MEDIAN WAIT"),
)


IDLER_HEADINGS = ("JOB", "NAME", "USER", "GPU-HOURS", "BUSY", "PEAK")


def _print_tables(report: dict[str, Any]) -> None:
    if report["users"]:
        print()
        accounts = [
            *(report["tenants"] if len(report["tenants"]) > 1 or len(report["users"]) > 1 else []),
            *report["users"][:MOST_ROWS],
        ]
        spare = ("PREEMPTED", "CANCELLED", "KWH", "MEDIAN WAIT", "BUSY", "FAILED", "COMPLETED")
        right = ACCOUNT_HEADINGS[2:]
        print_table(ACCOUNT_HEADINGS, account_rows(accounts), right=right, spare=spare)
        if len(report["users"]) > MOST_ROWS:
            warn(f"{MOST_ROWS} of {len(report['users']):,} users shown; --json has all")
    if report["gpus"]:
        print()
        headings = ("NODE", "GPU", "MODEL", "GIVEN OUT", "BUSY", "PEAK", "KWH", "MAX TEMP")
        rows = map(_gpu_row, report["gpus"])
        print_table(headings, rows, right=headings[3:], spare=("MAX TEMP", "KWH", "PEAK", "MODEL"))
    if report["low_utilisation"]:
        print()
        print(painted("Runs that used little of their GPUs", "bold"))
        print_table(
            IDLER_HEADINGS, map(idler_row, report["low_utilisation"]), right=IDLER_HEADINGS[3:]
        )


def _gpu_row(gpu: dict[str, Any]) -> list[str]:
    def text(name: str, form: str) -> str:
        return "-" if gpu[name] is None else form.format(gpu[name])

    return [
        gpu["node"],
        str(gpu["index"]),
        gpu["model"] or "-",
        f"{gpu['allocated_percent']:.1f}%",
        text("mean_utilisation_percent", "{:.0f}%"),
        text("peak_utilisation_percent", "{}%"),
        text("energy_kwh", "{:.2f}"),
        text("peak_temperature_c", "{} C"),
    ]


def idler_row(run: dict[str, Any]) -> list[str]:
    """A run that used little of its GPUs."""
    task = "" if run["task"] is None else f"_{run['task']}"
    return [
        f"{run['job_id']}{task}",
        run["name"],
        run["user"],
        hours_text(run["gpu_hours"]),
        f"{run['mean_utilisation_percent']:.0f}%",
        f"{run['peak_utilisation_percent']}%",
    ]


def _invoice(invoice: dict[str, Any], args: Namespace) -> int:
    if args.html:
        raise InvalidRequest("an invoice is text, csv or json; leave out --html or --invoice")
    if not invoice["is_final"]:
        warn(f"the period is not over; this is as of {invoice['until']}")
    if args.json or args.format == "json":
        print_json(invoice)
        return 0
    rows = [[str(line[name]) for name in INVOICE_COLUMNS] for line in invoice["lines"]]
    if args.format == "csv":
        # What begins like a formula must not be one in a spreadsheet.
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(INVOICE_COLUMNS)
        writer.writerows([[harmless(cell) for cell in row] for row in rows])
        return 0
    headings = [name.upper() for name in INVOICE_COLUMNS]
    print_table(headings, rows, right=("AMOUNT", "PRICE", "COST"))
    print(f"\ntotal {invoice['total']} {invoice['currency']}")
    return 0


def harmless(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell[:1] in "=+-@\t\r" and cell[:1] else cell
