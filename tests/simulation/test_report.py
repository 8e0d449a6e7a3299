"""The report is one valid, self-contained file of bounded size."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gpu_scheduler.simulator.metrics import measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.report import write_report
from gpu_scheduler.simulator.report.charts import (
    log_time_ticks,
    number_label,
    number_steps,
    time_label,
    time_ticks,
)
from gpu_scheduler.simulator.report.document import Markup, tag
from gpu_scheduler.simulator.report.sections import error_shares, over_time, share_below, time_grid
from tests.simulation.runs import a_busy_run, a_run, a_sample, an_outcome

EVIL = "<script>alert('&\"')</script>"


# --- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policies", [["fifo"], ["fifo", "sjf", "fair"], [f"p{n}" for n in range(11)]]
)
def test_page_is_well_formed_and_has_every_section(tmp_path: Path, policies: list[str]) -> None:
    page = _Page(_report(tmp_path, [a_busy_run(policy) for policy in policies]))
    assert page.open == []
    assert page.ids >= {"summary", "queue", "cluster", "waits", "fairness", "forecast"}
    assert page.count["figure"] == 11
    assert page.count["svg"] == 11


def test_report_page_loads_nothing_external(tmp_path: Path) -> None:
    html = _report(tmp_path, [a_busy_run("fifo")])
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", html)
    page = _Page(html)
    assert not page.count["link"]
    assert not page.count["img"]
    assert page.targets
    assert all(target.startswith("#") for target in page.targets)


def test_page_has_light_and_dark_theme(tmp_path: Path) -> None:
    html = _report(tmp_path, [a_busy_run("fifo")])
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


def test_every_name_is_escaped(tmp_path: Path) -> None:
    run = a_run(
        *(
            an_outcome(wait_s=90 + n, tenant=f"{EVIL}{n}", partition=f"{EVIL}{n}", promised_s=90)
            for n in range(2)
        ),
        policy=EVIL,
        workload=EVIL,
        samples={EVIL: [a_sample(0, waiting=1), a_sample(99)]},
    )
    plain = _Page(_report(tmp_path, [a_busy_run("a"), a_busy_run("b")]))
    html = _report(tmp_path, [run, run], command=EVIL, title=EVIL)
    assert "<script>alert" not in html
    page = _Page(html)
    assert page.open == []
    # No more scripts than without such names: the page's own and one for the data of each chart.
    assert page.count["script"] == plain.count["script"]
    for data in page.scripts[:-1]:
        assert [line["name"] for line in json.loads(data)["lines"]] == [EVIL, EVIL]


def test_same_runs_give_same_bytes(tmp_path: Path) -> None:
    assert _report(tmp_path, [a_busy_run("fifo")]) == _report(tmp_path, [a_busy_run("fifo")])


def test_report_replaces_old_one_atomically(tmp_path: Path) -> None:
    path = tmp_path / "made" / "report.html"
    first = write_report(*_studied([a_busy_run("fifo")]), path, command="", title="first")
    write_report(*_studied([a_busy_run("fifo")]), path, command="", title="second")
    assert first == path
    assert "<title>second</title>" in path.read_text(encoding="utf-8")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_failed_report_keeps_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")

    def full_disk(self: Path, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_report(*_studied([a_busy_run("fifo")]), path, command="", title="new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_large_run_gives_bounded_file(tmp_path: Path) -> None:
    runs = [a_busy_run(f"policy {n}", jobs=20_000) for n in range(3)]
    assert len(_report(tmp_path, runs)) < 300_000


def test_many_tenants_give_bounded_file(tmp_path: Path) -> None:
    run = a_run(*(an_outcome(submit_s=n, tenant=f"tenant {n:04}") for n in range(3000)))
    html = _report(tmp_path, [run])
    assert "and 2,900 more" in html
    assert "The 10 largest tenants" in html
    assert len(html) < 100_000


def test_missing_data_is_explained(tmp_path: Path) -> None:
    html = _report(tmp_path, [a_run()])
    assert "No job came to its end." in html
    assert "The runs carry no samples" in html
    assert "No job was preempted" in html
    assert "had a forecast start" in html
    assert "<figure" not in html


def test_unfinished_jobs_are_mentioned(tmp_path: Path) -> None:
    run = a_busy_run("fifo")
    run.dropped_jobs = 1
    run.failed_jobs = 1200
    html = _report(tmp_path, [run])
    assert "fifo: 1 job left out. fifo: 1,200 jobs failed." in html


def test_summary_names_best_policy_and_gain(tmp_path: Path) -> None:
    html = _report(tmp_path, [a_busy_run("slow", stretch=4), a_busy_run("quick")])
    card = html[html.index("Mean wait") :]
    assert card.index("quick") < card.index("75.0% less than slow") < card.index("</div>")


# --- axes and curves -----------------------------------------------------------------------------


def test_axis_numbers_are_round() -> None:
    assert number_steps(64) == [0, 20, 40, 60]
    assert number_steps(5) == [0, 1, 2, 3, 4, 5]
    assert number_steps(0) == [0]
    assert [number_label(n) for n in (0.05, 1200, 15_000, 1_500_000)] == [
        "0.05",
        "1,200",
        "15k",
        "1.5M",
    ]


def test_axis_times_are_whole_units() -> None:
    day = 86_400
    assert [tick.label for tick in time_ticks(3 * day)] == [
        "0",
        "12h",
        "1d",
        "1d 12h",
        "2d",
        "2d 12h",
        "3d",
    ]
    assert [tick.label for tick in time_ticks(45)] == ["0", "10s", "20s", "30s", "40s"]
    assert all(
        len(time_ticks(span)) <= 8 for span in (0.5, 1, 59, 3601, day, 400 * day, 9999 * day)
    )
    assert time_label(90) == "1m 30s"


def test_logarithmic_axis_has_familiar_times() -> None:
    ticks = log_time_ticks(1, 86_400)
    assert [tick.label for tick in ticks] == ["1s", "10s", "1m", "10m", "1h", "6h", "1d"]
    assert (ticks[0].position, ticks[-1].position) == (0, 1)


def test_time_series_keeps_mean_and_stops_at_end() -> None:
    short = a_run(samples={"main": [a_sample(0, waiting=4), a_sample(30, waiting=2), a_sample(50)]})
    long = a_run(samples={"main": [a_sample(0), a_sample(100)]})
    grid = time_grid([short, long], 4)
    assert grid is not None
    assert over_time(short, lambda sample: sample.waiting_jobs, grid) == [
        4,
        pytest.approx((4 * 5 + 2 * 20) / 25),
        None,
        None,
    ]
    assert over_time(a_run(), lambda sample: sample.waiting_jobs, grid) == [None] * 4


def test_distribution_reaches_hundred_percent() -> None:
    assert share_below([500, 1000, 60_000, 90_000], [1, 60, 90]) == [50, 75, 100]
    assert share_below([], [1, 60]) == [None, None]


def test_forecast_errors_are_sorted_into_classes() -> None:
    outcomes = a_run(
        an_outcome(wait_s=100, promised_s=100),
        an_outcome(wait_s=100, promised_s=100 + 7 * 3600),
        an_outcome(wait_s=1000, promised_s=800),
        an_outcome(wait_s=1000),
    ).outcomes
    shares = error_shares(outcomes)
    assert shares is not None
    assert [round(share) for share in shares] == [33, 0, 0, 0, 33, 33, 0, 0, 0]
    assert error_shares(a_run().outcomes) is None


def test_markup_escapes_text_and_attributes_but_not_markup() -> None:
    made = tag("p", "a < b", tag("i", "&"), class_="x", data_tip='"', x=1.25, hidden=None)
    assert made == '<p class="x" data-tip="&quot;" x="1.2">a &lt; b<i>&amp;</i></p>'
    assert isinstance(made, Markup)


class _Page(HTMLParser):
    """The contents of a page; `open` holds elements that were not closed in order."""

    VOID = frozenset({"meta"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = dict.fromkeys(("link", "img"), 0)
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in {"href", "src"} and value:
                self.targets.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def _studied(runs: list[Run]) -> tuple[list[Run], list]:
    return runs, [measure(run) for run in runs]


def _report(tmp_path: Path, runs: list[Run], *, command: str = "simulate", title: str = "T") -> str:
    path = tmp_path / "report.html"
    write_report(*_studied(runs), path, command=command, title=title)
    return path.read_text(encoding="utf-8")
