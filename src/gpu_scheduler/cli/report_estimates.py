"""`tgpu report --estimates`: how well expected starts were kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.durations import words_of
from gpu_scheduler.cli.output import print_json, print_table
from gpu_scheduler.client.forms import API

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

HEADINGS = ("BASIS", "JUDGED", "KEPT", "KEPT %", "LATE", "EARLY", "MEDIAN ERROR", "90 % WITHIN")
MEANING = "A start is as promised if it is within 10 % of the promised wait, or within 10 minutes."


def show(client: Client, *, as_json: bool) -> int:
    """Ask and print."""
    answer = client.call("GET", f"{API}/report/estimates")
    if as_json:
        print_json(answer)
        return 0
    rows = [_row(one) for one in answer["estimates"]]
    if not answer["estimates"][0]["judged"]:
        print("no job that waited has started yet, in the last 30 days")
    else:
        print_table(HEADINGS, rows, right=HEADINGS[1:])
        print(MEANING)
    if answer["open"]:
        print(f"{answer['open']} jobs wait and were told when they should start.")
    return 0


def _row(one: dict[str, Any]) -> list[str]:
    percent = one["kept_percent"]
    return [
        one["basis"],
        f"{one['judged']:,}",
        f"{one['kept']:,}",
        "-" if percent is None else f"{percent:g}",
        f"{one['late']:,}",
        f"{one['early']:,}",
        words_of(one["median_error_seconds"]),
        words_of(one["p90_error_seconds"]),
    ]
