"""`tgpu report`: usage of a period as text, JSON or an HTML page with charts; and its invoice.

The page is one file with style and charts inside; its charts are those of the simulator's report,
where a policy corresponds to a series here.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, call, print_answer, warn
from gpu_scheduler.cli.jobs.columns import minute_text
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import hours_text, painted, print_json, print_table, visible
from gpu_scheduler.cli.text.values import duration_text, whole
from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.simulator.report.charts import Bar, BarGroup, LineChart, Tick, figure, lying_bars
from gpu_scheduler.simulator.report.charts import Policy as Series
from gpu_scheduler.simulator.report.document import Markup, document, joined, tag, write_document

INVOICE_COLUMNS = ("tenant", "user", "item", "model", "amount", "unit", "price", "cost", "currency")
MOST_ROWS = 50
ABOUT = """\
Counts runs: one for each attempt, a running one up to now. A job that was cancelled before it ran
is not counted; 'tgpu usage' without a period counts it."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = ABOUT
    add_period_options(parser, default="month")
    add = Options(parser)
    below = "list runs with a lower GPU utilisation than this; default 20"
    add.value("--below", whole, "PERCENT", below)
    add.value("--html", None, "FILE", "write an HTML page with charts")
    add.flag("--invoice", "print the invoice of the period")
    add.flag("--estimates", "show the accuracy of expected starts")
    add.choice("--format", ("text", "csv", "json"), "format of the invoice; default text")
    add_server_options(parser, table=True)


def add_period_options(parser: ArgumentParser, *, default: str | None) -> None:
    """Add `--period`, `--tenant`, `--user` and `--time-zone`."""
    add = Options(parser)
    forms = "today, yesterday, week, month, year, 2026-10, 2026-10-31, 2026-10-01..2026-10-15"
    shown = f"; default {default}" if default else ""
    add.value("--period", None, "P", forms + shown, default=default)
    add.value("-T --tenant --tenant-id", None, "T", "only this tenant")
    add.value("-u --user", None, "NAME", "only this user")
    zone = "time zone of the days, such as Europe/Berlin; default UTC"
    add.value("--time-zone", None, "ZONE", zone)


def period_query(args: Namespace) -> dict[str, object]:
    """The options as a query."""
    return {
        "period": args.period,
        "tenant_id": args.tenant,
        "user": args.user,
        "time_zone": args.time_zone,
    }


def run(args: Namespace) -> int:
    """Print the report, the invoice or the accuracy of expected starts."""
    if args.format and not args.invoice:
        raise InvalidRequest("--format is for --invoice; for a report use --json or --html FILE")
    if args.estimates:
        answer = call(args, "GET", f"{API}/report/estimates")
        return print_answer(args, answer, lambda: _print_accuracy(answer))
    if args.invoice:
        return _invoice(call(args, "GET", target(f"{API}/invoice", period_query(args))), args)
    query = period_query(args) | {"below_percent": args.below}
    report = call(args, "GET", target(f"{API}/report", query))
    if args.html:
        try:
            write_document(page(report), Path(args.html))
        except OSError as error:
            raise InvalidInput(f"cannot be written: {error.strerror}", file=args.html) from error
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
    begin, end = minute_text(report["start"]), minute_text(report["end"])
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
        yield f"  busy       {mean:.0f} % mean utilisation of allocated GPUs"


def spread_text(spread: dict[str, Any]) -> str:
    """Mean, median, 90th percentile and largest, in words."""
    if not spread["count"]:
        return "none"
    figures = (
        f"{name} {duration_text(spread[f'{key}_seconds'])}"
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
            duration_text(account["waits"]["median_seconds"]) if account["waits"]["count"] else "-",
        ]


ACCOUNT_HEADINGS = (
    *("TENANT", "USER", "GPU-HOURS", "KWH", "COST", "BUSY"),
    *("COMPLETED", "FAILED", "CANCELLED", "PREEMPTED", "MEDIAN WAIT"),
)
LOW_USE_HEADINGS = ("JOB", "NAME", "USER", "GPU-HOURS", "BUSY", "PEAK")
GPU_FIGURES = {
    "mean_utilisation_percent": "{:.0f}%",
    "peak_utilisation_percent": "{}%",
    "energy_kwh": "{:.2f}",
    "peak_temperature_c": "{} C",
}
"""The measurements of a GPU that are shown, and how."""


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
        rows = [
            [
                gpu["node"],
                str(gpu["index"]),
                gpu["model"] or "-",
                f"{gpu['allocated_percent']:.1f}%",
                *(
                    "-" if gpu[name] is None else form.format(gpu[name])
                    for name, form in GPU_FIGURES.items()
                ),
            ]
            for gpu in report["gpus"]
        ]
        print_table(headings, rows, right=headings[3:], spare=("MAX TEMP", "KWH", "PEAK", "MODEL"))
    if report["low_utilisation"]:
        print()
        print(painted("Runs with a low GPU utilisation", "bold"))
        print_table(
            LOW_USE_HEADINGS,
            map(low_use_row, report["low_utilisation"]),
            right=LOW_USE_HEADINGS[3:],
        )


def low_use_row(run: dict[str, Any]) -> list[str]:
    """The row of a run with a low GPU utilisation."""
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
        warn(f"the period has not ended; this is as of {invoice['until']}")
    if args.json or args.format == "json":
        print_json(invoice)
        return 0
    rows = [[str(line[name]) for name in INVOICE_COLUMNS] for line in invoice["lines"]]
    if args.format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(INVOICE_COLUMNS)
        writer.writerows([[without_formula(cell) for cell in row] for row in rows])
        return 0
    headings = [name.upper() for name in INVOICE_COLUMNS]
    print_table(headings, rows, right=("AMOUNT", "PRICE", "COST"))
    print(f"\ntotal {invoice['total']} {invoice['currency']}")
    return 0


def without_formula(cell: str) -> str:
    """A cell that a spreadsheet does not read as a formula."""
    return f"'{cell}" if cell[:1] in "=+-@\t\r" and cell[:1] else cell


# Accuracy of expected starts

HEADINGS = ("BASIS", "JUDGED", "KEPT", "KEPT %", "LATE", "EARLY", "MEDIAN ERROR", "90 % WITHIN")
MEANING = "A start was kept if it is within 10 % of the expected wait, or within 10 minutes."


def _print_accuracy(answer: dict[str, Any]) -> None:
    """Print how well expected starts were kept."""
    rows = [
        [
            one["basis"],
            f"{one['judged']:,}",
            f"{one['kept']:,}",
            "-" if one["kept_percent"] is None else f"{one['kept_percent']:g}",
            f"{one['late']:,}",
            f"{one['early']:,}",
            duration_text(one["median_error_seconds"]),
            duration_text(one["p90_error_seconds"]),
        ]
        for one in answer["estimates"]
    ]
    if not answer["estimates"][0]["judged"]:
        print("no pending job has started in the last 30 days")
    else:
        print_table(HEADINGS, rows, right=HEADINGS[1:])
        print(MEANING)
    ranges = answer.get("ranges") or {}
    if ranges.get("judged"):
        print(
            f"{ranges['within_percent']:g} % of {ranges['judged']:,} starts fell within their "
            f"range of 80 %; {ranges['early']:,} were earlier, {ranges['late']:,} later."
        )
    if answer["open"]:
        print(f"{answer['open']} pending jobs have an expected start.")


# HTML page

MOST_BARS = 15
MOST_TICKS = 8


def page(report: dict[str, Any]) -> str:
    """The whole document."""
    title = f"GPU report for {report['period']}"
    facts = [
        ("From", _time_text(report["start"])),
        ("To", _time_text(report["end"])),
        ("As of", _time_text(report["until"])),
        ("Days in", report["time_zone"]),
    ]
    header = tag(
        "header",
        tag("p", "gpu-scheduler", class_="kicker"),
        tag("h1", title),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in facts)),
    )
    runs = report["low_utilisation"]
    low_use = tag("p", "No run with a low measured utilisation.")
    if runs:
        table = _table(LOW_USE_HEADINGS, map(low_use_row, runs))
        low_use = tag("div", table, class_="card accounts")
    sections = (
        ("Summary", _cards(report)),
        ("Over time", _over_time(report)),
        ("Tenants and users", _accounts(report)),
        ("GPUs", _gpus(report)),
        ("Low utilisation", low_use),
    )
    main = tag("main", *(tag("section", tag("h2", name), body) for name, body in sections))
    return document(title, header, main)


def _cards(report: dict[str, Any]) -> Markup:
    total, waits = report["total"], report["waits"]
    ended = total["completed"] + total["failed"]
    success = f"{100 * total['completed'] / ended:.1f}%" if ended else "-"
    mean = total["mean_utilisation_percent"]
    cards = [
        ("GPU-hours", f"{total['gpu_hours']:,.1f}", f"{total['started']:,} runs started"),
        (
            "Median wait",
            duration_text(waits["median_seconds"]) if waits["count"] else "-",
            spread_text(waits),
        ),
        ("Completed", success, f"{total['failed']:,} failed, {total['preempted']:,} preempted"),
        ("Busy", "-" if mean is None else f"{mean:.0f}%", "mean utilisation of allocated GPUs"),
        ("Energy", f"{total['energy_kwh']:,.1f} kWh", "used by allocated GPUs"),
        ("Cost", f"{total['cost']:,.2f} {report['currency']}", "at the configured prices"),
    ]
    return tag(
        "div",
        *(
            tag("div", tag("h3", name), tag("strong", value), tag("p", foot), class_="card stat")
            for name, value, foot in cards
        ),
        class_="cards",
    )


def _over_time(report: dict[str, Any]) -> Markup:
    slices = report["slices"]
    if not slices:
        return tag("p", "The period has not started.")
    used = _line(
        "GPU-hours",
        "Usage in each part of the period.",
        slices,
        [(Series(0, "GPU-hours"), [one["gpu_hours"] for one in slices])],
        "GPU-hours",
    )
    ends = _line(
        "Runs that ended",
        "How runs ended in each part of the period.",
        slices,
        [
            (Series(place, name), [one[name] for one in slices])
            for place, name in enumerate(("completed", "failed", "preempted"))
        ],
        "runs",
    )
    return tag("div", used, ends, class_="pair")


def _line(
    title: str,
    note: str,
    slices: Sequence[dict[str, Any]],
    lines: Sequence[tuple[Series, Sequence[float | None]]],
    unit: str,
) -> Markup:
    names = [one["start"][:16].replace("T", " ").removesuffix(" 00:00") for one in slices]
    step = max(1, -(-len(names) // MOST_TICKS))
    first = 0.5 / len(names)
    ticks = [
        Tick(first + (1 - 2 * first) * place / max(1, len(names) - 1), names[place][5:])
        for place in range(0, len(names), step)
    ]
    chart = LineChart(label=title, lines=lines, names=names, ticks=ticks, first=first, unit=unit)
    series = [one for one, _ in lines]
    return figure(title, note, chart.draw(), series, chart.tips())


def _accounts(report: dict[str, Any]) -> Markup:
    if not report["users"]:
        return tag("p", "No usage.")
    charts = (
        _account_bars("GPU-hours by tenant", report["tenants"], "tenant_id"),
        _account_bars("GPU-hours by user", report["users"], "user"),
    )
    table = _table(ACCOUNT_HEADINGS, account_rows([*report["tenants"], *report["users"]]))
    return joined(tag("div", *charts, class_="pair"), tag("div", table, class_="card accounts"))


def _account_bars(title: str, accounts: list[dict[str, Any]], name: str) -> Markup:
    series = Series(0, "GPU-hours")
    most = sorted(accounts, key=lambda account: account["sums"]["gpu_hours"], reverse=True)
    groups = []
    for account in most[:MOST_BARS]:
        hours = account["sums"]["gpu_hours"]
        bar = Bar(policy=series, value=hours, text=f"{hours:,.1f} h")
        groups.append(BarGroup(name=account[name], bars=[bar]))
    return figure(title, "Largest users first.", lying_bars(title, groups), [series])


def _gpus(report: dict[str, Any]) -> Markup:
    given, busy, peak = Series(0, "allocated"), Series(1, "busy"), Series(2, "peak")
    groups = []
    for gpu in report["gpus"][: 4 * MOST_BARS]:
        figures = [(given, gpu["allocated_percent"])]
        if gpu["mean_utilisation_percent"] is not None:
            figures += [
                (busy, gpu["mean_utilisation_percent"]),
                (peak, gpu["peak_utilisation_percent"]),
            ]
        bars = [Bar(policy=one, value=value, text=f"{value:.0f}%") for one, value in figures]
        groups.append(BarGroup(name=f"{gpu['node']} {gpu['index']}", bars=bars))
    if not groups:
        return tag("p", "No GPUs.")
    chart = lying_bars("GPUs", groups)
    note = "Share of time allocated, mean utilisation and peak utilisation."
    return tag("div", figure("Use of each GPU", note, chart, [given, busy, peak]), class_="pair")


NAMES = ("TENANT", "USER", "NAME", "MODEL", "WHERE", "ENDED", "STARTED")
"""The columns with text, which is left-aligned; figures are right-aligned."""


def _table(headings: Sequence[str], rows: Any) -> Markup:
    kinds = ["text" if name in NAMES else None for name in headings]
    titles = (tag("th", n.lower(), class_=k) for n, k in zip(headings, kinds, strict=True))
    return tag(
        "table",
        tag("thead", tag("tr", *titles)),
        tag(
            "tbody",
            *(
                tag("tr", *(tag("td", c, class_=k) for c, k in zip(row, kinds, strict=True)))
                for row in rows
            ),
        ),
    )


def _time_text(text: str) -> str:
    """A time of the report: `2026-11-01 00:00 UTC`."""
    return f"{text[:16].replace('T', ' ')} UTC"
