"""The report is one self-contained file of bounded size."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.simulator.metrics import measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.report import write_report
from gpu_scheduler.simulator.report.sections import (
    error_shares,
    log_grid,
    over_time,
    share_below,
    time_grid,
)
from tests.simulation.runs import a_busy_run, a_run, a_sample, an_outcome

EVIL = "<script>alert('&\"')</script>"


# --- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policies", [["fifo"], ["fifo", "sjf", "fair"], [f"p{n}" for n in range(11)]]
)
def test_page_has_every_section(tmp_path: Path, policies: list[str]) -> None:
    page = _report(tmp_path, [a_busy_run(policy) for policy in policies])
    assert [section["name"] for section in page["sections"]] == [
        *("Summary", "Queue", "Cluster", "Waits", "Fairness", "Forecast", "Preemption", "Meaning")
    ]
    kinds = [block["kind"] for section in page["sections"] for block in section["blocks"]]
    assert (kinds.count("chart"), kinds.count("bars")) == (6, 5)
    for chart in _blocks(page, "chart"):
        assert all(len(line["values"]) == len(chart["points"]) for line in chart["series"])


def test_file_allows_only_its_own_script_and_style(tmp_path: Path) -> None:
    html = _written(tmp_path, [a_busy_run("fifo")])
    parts = _Parts(html)
    assert parts.tags.count("script") == 2
    assert not {"link", "img", "iframe"} & set(parts.tags)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert policy[1].count("sha256-") == 2
    assert "connect-src" not in policy[1]


def test_names_cannot_become_html(tmp_path: Path) -> None:
    run = a_run(
        *(
            an_outcome(wait_s=90 + n, tenant=f"{EVIL}{n}", partition=f"{EVIL}{n}", promised_s=90)
            for n in range(2)
        ),
        policy=EVIL,
        workload=EVIL,
        samples={EVIL: [a_sample(0, waiting=1), a_sample(99)]},
    )
    html = _written(tmp_path, [run, run], command=EVIL, title=EVIL)
    assert "<script>alert" not in html
    plain = _Parts(_written(tmp_path, [a_busy_run("a"), a_busy_run("b")]))
    assert _Parts(html).tags == plain.tags
    page = json.loads(_Parts(html).texts["report"])
    assert page["title"] == page["command"] == EVIL
    assert {line["name"] for chart in _blocks(page, "chart") for line in chart["series"]} >= {EVIL}


def test_same_runs_give_same_bytes(tmp_path: Path) -> None:
    first = _written(tmp_path, [a_busy_run("fifo")])
    assert first == _written(tmp_path, [a_busy_run("fifo")])


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


def test_large_run_gives_bounded_page(tmp_path: Path) -> None:
    runs = [a_busy_run(f"policy {n}", jobs=20_000) for n in range(3)]
    assert len(json.dumps(_report(tmp_path, runs))) < 60_000


def test_many_tenants_give_bounded_page(tmp_path: Path) -> None:
    run = a_run(*(an_outcome(submit_s=n, tenant=f"tenant {n:04}") for n in range(3000)))
    page = _report(tmp_path, [run])
    (tenants,) = (one for one in _blocks(page, "table") if one["title"].startswith("Tenants"))
    assert (len(tenants["rows"]), tenants["left_out"]) == (100, 2900)
    received = _blocks(page, "bars")[0]
    assert received["note"].endswith("The 10 largest tenants.")
    assert len(received["rows"]) == 10
    assert len(json.dumps(page)) < 60_000


def test_missing_data_is_explained(tmp_path: Path) -> None:
    page = _report(tmp_path, [a_run()])
    texts = " ".join(block["text"] for block in _blocks(page, "text"))
    assert "No job came to its end." in texts
    assert "The runs carry no samples" in texts
    assert "No job was preempted" in texts
    assert "had a forecast start" in texts
    assert not _blocks(page, "chart")


def test_unfinished_jobs_are_mentioned(tmp_path: Path) -> None:
    run = a_busy_run("fifo")
    run.dropped_jobs = 1
    run.failed_jobs = 1200
    note = dict(_report(tmp_path, [run])["facts"])["Note"]
    assert note == "fifo: 1 job left out. fifo: 1,200 jobs failed."


def test_summary_names_best_policy_and_gain(tmp_path: Path) -> None:
    page = _report(tmp_path, [a_busy_run("slow", stretch=4), a_busy_run("quick")])
    (figures,) = _blocks(page, "figures")
    wait = figures["figures"][0]
    assert (wait["name"], wait["foot"]) == ("mean wait", "quick, 75.0% less than slow")
    comparison = _blocks(page, "table")[0]
    waits = [column["name"] for column in comparison["columns"]].index("mean wait")
    assert [1, waits] in comparison["best"]
    assert [0, waits] not in comparison["best"]


def test_figure_that_not_every_policy_has_names_those_that_have_it(tmp_path: Path) -> None:
    def foot(*policies: str) -> str | None:
        # With one job, the tenants never wait at the same time.
        runs = [a_busy_run(name, jobs=1 if name == "none" else 60) for name in policies]
        (figures,) = _blocks(_report(tmp_path, runs), "figures")
        feet = {one["name"]: one["foot"] for one in figures["figures"]}
        return feet.get("fairness while all wait")

    assert foot("a", "b") == "the same for every policy"
    assert foot("a", "none") == foot("none", "a") == "a; no value for the others"
    assert foot("a", "none", "b") == "the same for a, b; no value for the others"
    assert foot("none", "none") is None


# --- curves --------------------------------------------------------------------------------------


def test_points_of_a_logarithmic_axis_reach_the_longest_duration() -> None:
    grid_s = log_grid([[500, 86_400_000], []])
    assert (grid_s[0], grid_s[-1]) == (1, 86_400)
    assert grid_s == sorted(grid_s)


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


class _Parts(HTMLParser):
    """The elements of a file, and the text of those with an id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, str] = {}
        self._id = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._id = dict(attrs).get("id") or ""

    def handle_endtag(self, tag: str) -> None:
        self._id = ""

    def handle_data(self, data: str) -> None:
        if self._id:
            self.texts[self._id] = self.texts.get(self._id, "") + data


def _studied(runs: list[Run]) -> tuple[list[Run], list]:
    return runs, [measure(run) for run in runs]


def _written(tmp_path: Path, runs: list[Run], command: str = "simulate", title: str = "T") -> str:
    path = tmp_path / "report.html"
    write_report(*_studied(runs), path, command=command, title=title)
    return path.read_text(encoding="utf-8")


def _report(tmp_path: Path, runs: list[Run]) -> dict[str, Any]:
    """The content of the page, as its script gets it."""
    content = json.loads(_Parts(_written(tmp_path, runs)).texts["report"])
    assert isinstance(content, dict)
    return content


def _blocks(page: dict[str, Any], kind: str) -> list[Any]:
    blocks = (block for section in page["sections"] for block in section["blocks"])
    return [block for block in blocks if block["kind"] == kind]
