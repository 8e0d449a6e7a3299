"""`tgpu report`: usage of a period as text, JSON or an HTML page with charts; and its invoice.

The page is one file, drawn like the simulator's report by the components of the dashboard.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from datetime import datetime
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
from gpu_scheduler.simulator.report.document import (
    Bar,
    BarRow,
    Bars,
    Block,
    Chart,
    Column,
    Figure,
    Figures,
    Page,
    Section,
    Series,
    Text,
    bounded_table,
    write_document,
)

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
    add.flag("--predictors", "show which predictor of run times is used, and why")
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
    if args.predictors:
        answer = call(args, "GET", f"{API}/report/predictors")
        return print_answer(args, answer, lambda: _print_predictors(answer))
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


# Predictors of run times

PREDICTOR_HEADINGS = ("TENANT", "JOBS", "HISTORY", "MODEL", "GAIN", "USED", "WHY")
LOSS_MEANING = "HISTORY and MODEL are pinball losses of logarithms of run times; smaller is better."


def _print_predictors(answer: dict[str, Any]) -> None:
    """Print the scores of both predictors, and the state of the model."""
    model = answer["model"]
    rows = [
        [
            "(all)" if one["tenant_id"] is None else one["tenant_id"],
            f"{one['jobs']:,}",
            *(
                "-" if one[name] is None else f"{one[name]:.3f}"
                for name in ("history_loss", "model_loss")
            ),
            "-" if one["gain_percent"] is None else f"{one['gain_percent']:g} %",
            one["used"],
            one["why"],
        ]
        for one in answer["scores"]
    ]
    print_table(PREDICTOR_HEADINGS, rows, right=PREDICTOR_HEADINGS[1:5])
    print(LOSS_MEANING)
    print(_model_text(model))
    if model["error"]:
        print(f"The last training failed: {visible(model['error'])}")


def _model_text(model: dict[str, Any]) -> str:
    """What the state of the model is, and what to do."""
    if model["state"] == "not_installed":
        return "No model: install it with pip install 'gpu-scheduler[learned]', then restart."
    if model["state"] == "off":
        return "No model: policy.learned_run_times is off."
    if model["state"] == "untrained":
        return f"No model yet: {model['jobs_learnt']:,} of {model['jobs_needed']:,} ended jobs."
    until = minute_text(model["trained_until"])
    return f"The model was trained on {model['trained_jobs']:,} jobs that ended until {until}."


# HTML page

MOST_BARS = 15


def page(report: dict[str, Any]) -> Page:
    """The content of the page."""
    facts = [
        ("From", _time_text(report["start"])),
        ("To", _time_text(report["end"])),
        ("As of", _time_text(report["until"])),
        ("Days in", report["time_zone"]),
    ]
    sections = [
        Section(name="Summary", blocks=[_figures(report)]),
        Section(name="Over time", blocks=_over_time(report)),
        Section(name="Tenants and users", blocks=_accounts(report)),
        Section(name="GPUs", blocks=[_gpus(report)]),
        Section(name="Low utilisation", blocks=[_low_use(report)]),
    ]
    return Page(title=f"GPU report for {report['period']}", facts=facts, sections=sections)


def _figures(report: dict[str, Any]) -> Figures:
    total, waits = report["total"], report["waits"]
    ended = total["completed"] + total["failed"]
    success = f"{100 * total['completed'] / ended:.1f} %" if ended else "-"
    mean = total["mean_utilisation_percent"]
    figures = [
        ("GPU-hours", f"{total['gpu_hours']:,.1f}", f"{total['started']:,} runs started"),
        (
            "median wait",
            duration_text(waits["median_seconds"]) if waits["count"] else "-",
            spread_text(waits),
        ),
        ("completed", success, f"{total['failed']:,} failed, {total['preempted']:,} preempted"),
        ("busy", "-" if mean is None else f"{mean:.0f} %", "mean utilisation of allocated GPUs"),
        ("energy", f"{total['energy_kwh']:,.1f} kWh", "used by allocated GPUs"),
        ("cost", f"{total['cost']:,.2f} {report['currency']}", "at the configured prices"),
    ]
    return Figures(
        figures=[Figure(name=name, value=value, foot=foot) for name, value, foot in figures]
    )


def _over_time(report: dict[str, Any]) -> list[Block]:
    slices = report["slices"]
    if not slices:
        return [Text(text="The period has not started.")]
    points = [datetime.fromisoformat(one["start"]).timestamp() for one in slices]

    def chart(title: str, note: str, names: dict[str, str], unit: str) -> Chart:
        series = [
            Series(name=name, values=[one[key] for one in slices]) for key, name in names.items()
        ]
        return Chart(title=title, note=note, axis="time", points=points, series=series, unit=unit)

    ends = {name: name for name in ("completed", "failed", "preempted")}
    return [
        chart("GPU-hours", "Usage in each part of the period.", {"gpu_hours": "used"}, "GPU-hours"),
        chart("Runs that ended", "How runs ended in each part of the period.", ends, "runs"),
    ]


def _accounts(report: dict[str, Any]) -> list[Block]:
    if not report["users"]:
        return [Text(text="No usage.")]
    rows = list(account_rows([*report["tenants"], *report["users"]]))
    return [
        _account_bars("GPU-hours by tenant", report["tenants"], "tenant_id"),
        _account_bars("GPU-hours by user", report["users"], "user"),
        bounded_table(_columns(ACCOUNT_HEADINGS, texts=2), rows, ""),
    ]


def _account_bars(title: str, accounts: list[dict[str, Any]], name: str) -> Bars:
    most = sorted(accounts, key=lambda account: account["sums"]["gpu_hours"], reverse=True)
    rows = []
    for account in most[:MOST_BARS]:
        hours = account["sums"]["gpu_hours"]
        rows.append(BarRow(name=account[name], bars=[Bar(value=hours, text=f"{hours:,.1f} h")]))
    note = f"The largest {MOST_BARS} of {len(most)}." if len(most) > MOST_BARS else ""
    first = name.removesuffix("_id")
    return Bars(title=title, note=note, first=first, series=["GPU-hours"], rows=rows)


def _gpus(report: dict[str, Any]) -> Block:
    names = ("allocated_percent", "mean_utilisation_percent", "peak_utilisation_percent")
    rows = [
        BarRow(
            name=f"{gpu['node']} {gpu['index']}",
            bars=[
                None if gpu[name] is None else Bar(value=gpu[name], text=f"{gpu[name]:.0f} %")
                for name in names
            ],
        )
        for gpu in report["gpus"][: 4 * MOST_BARS]
    ]
    if not rows:
        return Text(text="No GPUs.")
    return Bars(
        title="Use of each GPU",
        note="Share of time allocated, mean utilisation and peak utilisation.",
        first="GPU",
        series=["allocated", "busy", "peak"],
        rows=rows,
    )


def _low_use(report: dict[str, Any]) -> Block:
    rows = [low_use_row(run) for run in report["low_utilisation"]]
    if not rows:
        return Text(text="No run with a low measured utilisation.")
    return bounded_table(_columns(LOW_USE_HEADINGS, texts=3), rows, "")


def _columns(headings: Sequence[str], texts: int) -> list[Column]:
    """The first columns hold text; figures are right-aligned."""
    return [Column(name=name.lower(), right=place >= texts) for place, name in enumerate(headings)]


def _time_text(text: str) -> str:
    """A time of the report: `2026-11-01 00:00 UTC`."""
    return f"{text[:16].replace('T', ' ')} UTC"
