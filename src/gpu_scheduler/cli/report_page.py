"""A report as one HTML file: charts, tables and style inside, nothing from the network.

The charts are those of the simulator's reports; what they call a policy is a series here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_scheduler.cli.durations import words_of
from gpu_scheduler.cli.report import (
    ACCOUNT_HEADINGS,
    IDLER_HEADINGS,
    account_rows,
    idler_row,
    spread_text,
)
from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.simulator.report.axes import Tick
from gpu_scheduler.simulator.report.bar_chart import Bar, BarGroup, lying_bars
from gpu_scheduler.simulator.report.document import document, write_document
from gpu_scheduler.simulator.report.figure import Policy as Series
from gpu_scheduler.simulator.report.figure import figure
from gpu_scheduler.simulator.report.line_chart import LineChart
from gpu_scheduler.simulator.report.markup import Markup, joined, tag

MOST_BARS = 15
MOST_TICKS = 8


def write_page(report: dict[str, Any], file: str) -> None:
    """Write the page; a reader sees the old file or the new one."""
    try:
        write_document(page(report), Path(file))
    except OSError as error:
        raise InvalidInput(f"cannot be written: {error.strerror}", file=file) from error


def page(report: dict[str, Any]) -> str:
    """The whole document."""
    title = f"GPU report for {report['period']}"
    return document(
        title,
        _header(report, title),
        tag(
            "main",
            tag("section", tag("h2", "Summary"), _cards(report)),
            tag("section", tag("h2", "Over time"), _over_time(report)),
            tag("section", tag("h2", "Tenants and users"), _accounts(report)),
            tag("section", tag("h2", "GPUs"), _gpus(report)),
            tag("section", tag("h2", "Little used"), _idlers(report)),
        ),
    )


def _header(report: dict[str, Any], title: str) -> Markup:
    facts = [
        ("From", report["start"]),
        ("To", report["end"]),
        ("As of", report["until"]),
        ("Days in", report["time_zone"]),
    ]
    return tag(
        "header",
        tag("p", "gpu-scheduler", class_="kicker"),
        tag("h1", title),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in facts)),
    )


def _cards(report: dict[str, Any]) -> Markup:
    total, waits = report["total"], report["waits"]
    ended = total["completed"] + total["failed"]
    success = f"{100 * total['completed'] / ended:.1f}%" if ended else "-"
    mean = total["mean_utilisation_percent"]
    cards = [
        ("GPU-hours", f"{total['gpu_hours']:,.1f}", f"{total['started']:,} runs started"),
        (
            "Median wait",
            words_of(waits["median_seconds"]) if waits["count"] else "-",
            spread_text(waits),
        ),
        ("Completed", success, f"{total['failed']:,} failed, {total['preempted']:,} preempted"),
        ("Busy", "-" if mean is None else f"{mean:.0f}%", "of the GPUs that runs held"),
        ("Energy", f"{total['energy_kwh']:,.1f} kWh", "drawn by GPUs while runs held them"),
        ("Cost", f"{total['cost']:,.2f} {report['currency']}", "by the prices in the settings"),
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
        return tag("p", "The period has not begun.")
    used = _line(
        "GPU-hours",
        "What was used in each part of the period.",
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
    names = [_moment(one["start"]) for one in slices]
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
        return tag("p", "Nobody used anything.")
    charts = (
        _account_bars("GPU-hours by tenant", report["tenants"], "tenant_id"),
        _account_bars("GPU-hours by user", report["users"], "user"),
    )
    table = _table(ACCOUNT_HEADINGS, account_rows([*report["tenants"], *report["users"]]))
    return joined(tag("div", *charts, class_="pair"), tag("div", table, class_="card compare"))


def _account_bars(title: str, accounts: list[dict[str, Any]], name: str) -> Markup:
    series = Series(0, "GPU-hours")
    most = sorted(accounts, key=lambda account: account["sums"]["gpu_hours"], reverse=True)
    groups = []
    for account in most[:MOST_BARS]:
        hours = account["sums"]["gpu_hours"]
        bar = Bar(policy=series, value=hours, text=f"{hours:,.1f} h")
        groups.append(BarGroup(name=account[name], bars=[bar]))
    return figure(title, "Who used most.", lying_bars(title, groups), [series])


def _gpus(report: dict[str, Any]) -> Markup:
    given, busy, peak = Series(0, "given out"), Series(1, "busy"), Series(2, "peak")
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
        return tag("p", "No GPU is known.")
    chart = lying_bars("GPUs", groups)
    note = "Part of the time that it was given out, how busy it was in the mean, and at its peak."
    return tag("div", figure("Use of each GPU", note, chart, [given, busy, peak]), class_="pair")


def _idlers(report: dict[str, Any]) -> Markup:
    runs = report["low_utilisation"]
    if not runs:
        return tag("p", "No run used little of its GPUs, as far as that was measured.")
    return tag("div", _table(IDLER_HEADINGS, map(idler_row, runs)), class_="card compare")


def _table(headings: Sequence[str], rows: Any) -> Markup:
    return tag(
        "table",
        tag("thead", tag("tr", *(tag("th", name.lower()) for name in headings))),
        tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)),
    )


def _moment(text: str) -> str:
    return text[:16].replace("T", " ").removesuffix(" 00:00")
