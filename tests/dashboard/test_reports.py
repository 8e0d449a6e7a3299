"""The pages that `tgpu simulate --report` and `tgpu report --html` write, opened from disk."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer
from tests.dashboard.pages import check_looks
from tests.dashboard.test_pages import HOSTILE

pytestmark = pytest.mark.slow


def open_file(page: Page, path: Path) -> None:
    """Open a file, and fail if it asks for anything else."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    expect(page.locator("h1")).to_be_visible()
    assert asked == [path.as_uri()]


def test_simulation_report_compares_policies_with_charts_and_tables(
    page: Page, axe: str, tmp_path: Path
) -> None:
    path = tmp_path / "compare.html"
    words = ("--generate", "--days", "1", "--nodes", "2", "--policy", "fifo,easy", "--forecasts")
    command = [sys.executable, "-m", "gpu_scheduler", "simulate", *words, "--report", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    open_file(page, path)
    waiting = page.get_by_role("figure", name="Waiting jobs")
    expect(waiting.locator("canvas")).to_be_visible()
    waiting.get_by_text("As a table").click()
    headings = ["Since the start", "fifo (jobs)", "easy (jobs)"]
    expect(waiting.get_by_role("columnheader")).to_have_text(headings)
    expect(waiting.get_by_role("row")).to_have_count(201)
    summary = page.get_by_role("region", name="Summary")
    expect(summary.get_by_role("row").filter(has_text="easy")).to_contain_text(re.compile(r"\d%"))
    shares = page.get_by_role("figure", name="GPU-time received")
    expect(shares.locator(".meter").first).to_be_visible()
    check_looks(page, "report-simulation", axe)
    page.get_by_role("navigation").get_by_role("link", name="Waits").click()
    expect(page.get_by_role("figure", name="Completion time")).to_be_in_viewport()


def test_usage_report_shows_hostile_names_as_text(
    page: Page, server: RealServer, axe: str, tmp_path: Path
) -> None:
    job = server.submit("--gpus", 2, "--name", HOSTILE, "--", "sleep", 1)
    server.json("wait", job)
    path = tmp_path / "usage.html"
    server.tgpu("report", "--period", "today", "--html", path)
    open_file(page, path)
    expect(page.get_by_role("heading", name="GPU report for today")).to_be_visible()
    expect(page.get_by_role("figure", name="GPU-hours", exact=True)).to_be_visible()
    gpus = page.get_by_role("region", name="Use of each GPU").get_by_role("row")
    expect(gpus).to_have_count(9)
    assert page.locator("img").count() == 0
    check_looks(page, "report-usage", axe)
