"""The page People: what tenants and users have, use, deserve, waited for and pay."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.dashboard.pages import check_looks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with a_state_dir() as state_dir:
        running = RealServer(state_dir)
        prices = {"GPU_HOUR": '{"A100": 3600}', "CURRENCY": "CHF"}
        running.environment |= {
            f"GPU_SCHEDULER_COSTS_{name}": text for name, text in prices.items()
        }
        running.start("8xA100-80GB")
        running.tgpu("tenants", "create", "vision", "--weight", 3, "--max-gpu-hours", 100)
        yield running
        running.stop()


def test_people_see_quotas_fair_share_waits_cost_and_estimates(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    ended = server.submit("--gpus", 2, "--", "sleep", 2)
    server.json("wait", ended)
    held = server.submit("--gpus", 4, "--tenant", "vision", "--time", "1h", "--", "sleep", 600)
    page.goto(f"{address}/#/people")
    quotas = page.get_by_role("region", name="Quotas of tenants")
    expect(quotas.get_by_role("row").filter(has_text="vision")).to_contain_text("4, no limit")
    expect(quotas.get_by_role("row").filter(has_text="vision")).to_contain_text("of 100")
    share = page.get_by_role("region", name="Fair share")
    vision = share.get_by_role("row").filter(has_text="vision")
    expect(vision).to_contain_text("(75 %)")
    vision.get_by_role("button", name="vision").click()
    chart = share.get_by_role("figure", name="GPU-hours of vision, used and deserved")
    expect(chart.locator("canvas")).to_be_visible()
    chart.get_by_text("As a table").click()
    expect(chart.get_by_role("columnheader").last).to_have_text("deserved (GPU-hours)")
    expect(chart.get_by_role("row")).not_to_have_count(1)
    user = page.get_by_role("region", name="Usage and waits of users").get_by_role("row").nth(1)
    expect(user).to_contain_text(re.compile(r"\d s"))
    page.get_by_role("region", name="Invoice").get_by_text(re.compile(r"\d lines?$")).click()
    expect(page.get_by_role("region", name="Invoice lines")).to_contain_text("default")
    expect(page.get_by_role("region", name="Idle GPUs")).to_contain_text("No job held GPUs")
    expect(page.get_by_role("region", name="Estimates")).to_contain_text("to be judged")
    check_looks(page, "people", axe)
    server.tgpu("cancel", held)


def test_job_shows_its_gpu_hours_and_their_cost(
    page: Page, server: RealServer, address: str
) -> None:
    job = server.submit("--gpus", 2, "--", "sleep", 1)
    server.json("wait", job)
    page.goto(f"{address}/#/jobs/{job}")
    facts = page.get_by_role("region", name="Facts")
    expect(facts).to_contain_text(re.compile(r"Cost of GPUs[\d.]+ CHF"))
    expect(facts).to_contain_text("GPU-hours")
