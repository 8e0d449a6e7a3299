"""The page What if: what an admin supposes, and which starts move."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.acceptance.conftest import RealServer
from tests.dashboard.pages import check_looks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jobs(server: RealServer) -> Iterator[list[str]]:
    """All GPUs are taken for two hours, and two jobs wait for all of them."""
    found = [
        server.submit("--gpus", 8, "--time", time, "--", "sleep", 900)
        for time in ("2h", "1h", "1h")
    ]
    yield found
    server.tgpu("cancel", *found)


def test_added_nodes_let_waiting_jobs_start_earlier(
    page: Page, server: RealServer, jobs: list[str], address: str
) -> None:
    page.goto(address)
    page.get_by_role("link", name="What if").click()
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_disabled()
    page.get_by_label("Added").fill("4")
    page.get_by_role("button", name="Ask", exact=True).click()
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text(re.compile("4 nodes like .* added"))
    expect(answer).to_contain_text("start earlier")
    moved = answer.get_by_role("region", name="Moved starts").get_by_role("row")
    expect(moved).to_have_count(3)
    expect(moved.filter(has_text=jobs[1])).to_contain_text("earlier")
    assert len(server.json("nodes")["nodes"]) == 1


def test_drained_node_leaves_waiting_jobs_without_a_start(
    page: Page, server: RealServer, jobs: list[str], address: str
) -> None:
    page.goto(f"{address}/#/what-if")
    node = server.json("nodes")["nodes"][0]["id"]
    page.get_by_label("Drained").select_option(node)
    page.get_by_role("button", name="Ask", exact=True).click()
    answer = page.get_by_role("region", name="Answer")
    row = answer.get_by_role("row").filter(has_text=jobs[2])
    expect(row).to_contain_text("no start any more")
    assert server.json("nodes")["nodes"][0]["state"] == "online"


def test_impossible_supposition_says_why(page: Page, jobs: list[str], address: str) -> None:
    page.goto(f"{address}/#/what-if")
    page.get_by_role("group", name="Reservation").get_by_label("GPUs").fill("99")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("99")


def test_user_who_is_no_admin_does_not_see_the_page(
    context: BrowserContext, page: Page, address: str
) -> None:
    context.route(
        "**/api/v1/me",
        lambda route: route.fulfill(
            json={
                "user": "ada",
                "uid": 1,
                "role": "user",
                "tenant_id": "default",
                "tenants": [],
                "administers": [],
                "via": "test",
            }
        ),
    )
    page.goto(address)
    expect(page.get_by_text("ada user")).to_be_visible()
    expect(page.get_by_role("link", name="What if")).to_have_count(0)


def test_what_if_looks_right_for_everybody(
    page: Page, jobs: list[str], address: str, axe: str
) -> None:
    page.goto(f"{address}/#/what-if")
    page.get_by_label("Added").fill("1")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("region", name="Moved starts")).to_be_visible()
    check_looks(page, "what-if", axe)
