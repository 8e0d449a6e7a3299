"""The page Plan: what people read from it, and who is before a job."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer
from tests.dashboard.pages import check_looks
from tests.dashboard.test_pages import HOSTILE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jobs(server: RealServer) -> Iterator[dict[str, str]]:
    """One job has ended, two run, and two wait for them; one of those runs for an unknown time."""
    ended = server.submit("--gpus", 1, "--name", "ended", "--", "true")
    server.json("wait", ended)
    found = {
        "ended": ended,
        "long": server.submit("--gpus", 4, "--time", "2h", "--name", "long", "--", "sleep", 900),
        "endless": server.submit("--gpus", 4, "--name", "endless", "--", "sleep", 900),
        "half": server.submit("--gpus", 4, "--time", "3h", "--name", HOSTILE, "--", "sleep", 900),
        "whole": server.submit("--gpus", 8, "--time", "1h", "--name", "whole", "--", "sleep", 900),
    }
    yield found
    server.tgpu("cancel", *(job for name, job in found.items() if name != "ended"))


def test_plan_shows_what_ran_runs_and_will_run(
    page: Page, jobs: dict[str, str], address: str
) -> None:
    page.goto(address)
    page.get_by_role("link", name="Plan", exact=True).click()
    table = page.get_by_role("region", name="Runs")
    expect(table.get_by_role("row").filter(has_text=jobs["ended"])).to_contain_text("past")
    running = table.get_by_role("row").filter(has_text=jobs["long"])
    expect(running).to_contain_text("running")
    expect(running).to_contain_text("[0,1,2,3]")
    expect(table.get_by_role("row").filter(has_text=jobs["endless"])).to_contain_text("unknown")
    waiting = table.get_by_role("row").filter(has_text=jobs["half"])
    expect(waiting).to_contain_text(re.compile("reserved|forecast"))


def test_click_on_a_bar_opens_its_job(page: Page, jobs: dict[str, str], address: str) -> None:
    page.goto(f"{address}/#/plan")
    line = page.get_by_role("img", name=re.compile("Time line of 8 GPUs"))
    expect(line).to_be_visible()
    box = line.bounding_box()
    assert box is not None
    # The first GPU's row is the second one, and now is at 1 of 13 hours: a little behind that.
    page.mouse.click(box["x"] + 116 + (box["width"] - 116) / 13 + 12, box["y"] + 22 + 10 + 30)
    detail = page.get_by_role("complementary")
    expect(detail).to_contain_text(jobs["long"])
    detail.get_by_role("link", name="Open the job").click()
    expect(page).to_have_url(re.compile(f"#/jobs/{jobs['long']}$"))


def test_job_shows_who_is_before_it_and_whose_end_is_unknown(
    page: Page, jobs: dict[str, str], address: str
) -> None:
    page.goto(f"{address}/#/jobs/{jobs['whole']}")
    page.get_by_role("link", name="Who is before it").click()
    before = page.get_by_role("region", name="Before it")
    expect(before).to_contain_text("depends on the unknown end of")
    expect(before.get_by_role("link", name=jobs["endless"]).first).to_be_visible()
    page.get_by_label("Ahead").select_option("24 h")
    expect(page.get_by_role("img", name=re.compile("Time line of 8 GPUs"))).to_be_visible()


def test_plan_looks_right_for_everybody(
    page: Page, jobs: dict[str, str], address: str, axe: str
) -> None:
    page.goto(f"{address}/#/plan")
    expect(page.get_by_role("region", name="Runs")).to_contain_text(jobs["whole"])
    check_looks(page, "plan", axe)
    page.goto(f"{address}/#/plan/{jobs['whole']}")
    expect(page.get_by_role("region", name="Before it")).to_be_visible()
    check_looks(page, "plan-job", axe)
    assert page.locator("img:not(header img)").count() == 0
