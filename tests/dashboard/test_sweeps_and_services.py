"""The pages Sweeps and Services: the state of every cell, and of every replica."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer
from tests.dashboard.pages import check_looks

pytestmark = pytest.mark.slow


def test_sweep_is_a_grid_whose_failed_cells_are_retried(
    page: Page, server: RealServer, address: str, axe: str, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    command = f'[ "$TGPU_PARAM_LR" = 0.1 ] || [ -e {mended} ]'
    parameters = ("--param", "lr=0.01,0.1", "--param", "seed=1,2,10")
    server.tgpu("submit", "--gpus", 0, "--sweep", "rates", *parameters, "--", "sh", "-c", command)
    page.goto(f"{address}/#/sweeps")
    page.get_by_role("link", name="rates", exact=True).click()
    grid = page.get_by_role("region", name="Jobs by parameter")
    expect(grid.get_by_role("columnheader")).to_have_text(
        ["lr", "seed = 1", "seed = 2", "seed = 10"]
    )
    expect(grid.locator(".state-completed")).to_have_count(3)
    expect(grid.get_by_role("row").nth(1).locator(".state-failed")).to_have_count(3)
    expect(grid).to_contain_text("exit 1")
    check_looks(page, "sweep", axe)
    mended.touch()
    page.get_by_role("button", name="Retry 3 failed jobs").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(grid.locator(".state-completed")).to_have_count(6)
    grid.get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(r"#/jobs/job-\d+$"))


def test_service_shows_replicas_probes_and_endpoints_and_is_scaled(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    serve = "exec python3 -m http.server $PORT --bind 127.0.0.1"
    server.tgpu(
        "service", "create", "web", "--replicas", 1, "--gpus", 1, "--http", "/",
        "--check-interval", "1s", "--wait", "--", "sh", "-c", serve,
    )  # fmt: skip
    page.goto(f"{address}/#/services")
    expect(page.get_by_role("region", name="Services")).to_contain_text("1 of 1")
    page.get_by_role("link", name="web", exact=True).click()
    expect(page.get_by_role("region", name="Facts")).to_contain_text("HTTP /, every 1 s")
    replicas = page.get_by_role("region", name="Replicas").get_by_role("row")
    expect(replicas).to_have_count(2)
    expect(replicas.nth(1)).to_contain_text("ready")
    port = server.json("service", "endpoints", "web")["endpoints"][0]["port"]
    expect(page.get_by_role("region", name="Endpoints")).to_contain_text(f":{port}")
    check_looks(page, "service", axe)
    page.get_by_role("button", name="Scale").click()
    page.get_by_role("dialog").get_by_label("Replicas").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Scale").click()
    expect(page.get_by_role("region", name="Endpoints").get_by_role("row")).to_have_count(3)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="You have no services")).to_be_visible()
