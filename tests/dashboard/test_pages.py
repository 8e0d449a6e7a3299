"""What people do on the pages, and see there."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=alert(1)>"


def test_cluster_shows_who_uses_which_gpu(page: Page, server: RealServer, address: str) -> None:
    job = server.submit("--gpus", 2, "--name", "train", "--", "sleep", 600)
    page.goto(address)
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
    used = page.locator("article.tile", has=page.get_by_role("link", name=job, exact=True))
    expect(used).to_have_count(2)
    expect(page.locator("article.tile")).to_have_count(8)
    expect(used.first).to_contain_text("100 %")
    rows = page.get_by_role("region", name="GPUs").get_by_role("row")
    expect(rows).to_have_count(9)
    # A declared GPU measures nothing.
    expect(used.first).to_contain_text("\u2013 of 80 GB")
    expect(rows.last.get_by_role("cell", name="\u2013 of 80 GB")).to_be_visible()
    used.first.get_by_role("link", name=job, exact=True).click()
    expect(page).to_have_url(re.compile(f"#/jobs/{job}$"))
    server.tgpu("cancel", job)


def test_cluster_follows_the_stream_of_gpus_and_asks_again_without_it(
    page: Page, server: RealServer, address: str
) -> None:
    page.goto(address)
    expect(page.locator("article.tile")).to_have_count(8)
    page.route("**/api/v1/gpus", lambda route: route.fulfill(status=503, json={"error": "away"}))
    job = server.submit("--gpus", 3, "--", "sleep", 600)
    used = page.locator("article.tile", has=page.get_by_role("link", name=job, exact=True))
    expect(used).to_have_count(3)
    server.tgpu("cancel", job)
    expect(used).to_have_count(0)
    page.unroute("**/api/v1/gpus")
    page.route_web_socket("**/gpus/stream", lambda socket: socket.close())
    page.reload()
    job = server.submit("--gpus", 2, "--", "sleep", 600)
    used = page.locator("article.tile", has=page.get_by_role("link", name=job, exact=True))
    expect(used).to_have_count(2)
    server.tgpu("cancel", job)


def test_admin_pauses_and_resumes_a_gpu(page: Page, server: RealServer, address: str) -> None:
    page.goto(f"{address}/#/cluster")
    page.get_by_role("button", name=re.compile("GPU 7 of")).click()
    detail = page.get_by_role("complementary")
    detail.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(detail.locator(".state")).to_have_text("paused")
    assert [gpu["paused"] for gpu in server.json("gpus")["gpus"]] == [False] * 7 + [True]
    detail.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(detail.locator(".state")).to_have_text("free")


def test_queue_says_why_a_job_waits_and_when_it_starts(
    page: Page, server: RealServer, address: str
) -> None:
    first = server.submit("--gpus", 8, "--time", "60m", "--name", "all", "--", "sleep", 600)
    second = server.submit("--gpus", 1, "--time", "5m", "--name", "later", "--", "sleep", 600)
    page.goto(f"{address}/#/jobs")
    row = page.get_by_role("row").filter(has_text=second)
    expect(row).to_contain_text("waiting for 1 GPU")
    expect(row).to_contain_text(re.compile(r"in (\d+ min|1 h)"))
    page.get_by_role("searchbox").fill("later")
    expect(page.get_by_role("row").filter(has_text=first)).to_have_count(0)
    expect(row).to_have_count(1)
    server.tgpu("cancel", first, second)


def test_several_jobs_are_held_released_and_cancelled_at_once(
    page: Page, server: RealServer, address: str
) -> None:
    block = server.submit("--gpus", 8, "--", "sleep", 600)
    jobs = [server.submit("--gpus", 1, "--name", "many", "--", "sleep", 600) for _ in range(3)]
    page.goto(f"{address}/#/jobs")
    page.get_by_role("searchbox").fill("many")

    def act_on_all(action: str) -> None:
        for job in jobs:
            page.get_by_role("checkbox", name=f"Select {job}", exact=True).check()
        page.get_by_role("toolbar").get_by_role("button", name=action).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("3 jobs?")
        dialog.get_by_role("button", name=action, exact=True).click()

    act_on_all("Hold")
    expect(page.locator("td .state-held")).to_have_count(3)
    act_on_all("Release")
    expect(page.locator("td .state-pending")).to_have_count(3)
    act_on_all("Cancel")
    expect(page.get_by_role("heading", name="No job matches")).to_be_visible()
    page.get_by_role("button", name="Undo").last.click()
    expect(page.locator("td .state-pending")).to_have_count(3)
    server.tgpu("cancel", block, *jobs)


def test_answering_no_changes_nothing(page: Page, server: RealServer, address: str) -> None:
    job = server.submit("--gpus", 1, "--", "sleep", 600)
    page.goto(f"{address}/#/jobs/{job}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert server.json("show", job)["state"] == "running"
    server.tgpu("cancel", job)


def test_log_is_live_coloured_searchable_and_can_be_downloaded(
    page: Page, server: RealServer, address: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    wait = f"until [ -e {go} ]; do sleep 0.1; done"
    script = f"printf '\\033[31mred\\033[0m first\\n'; {wait}; echo second"
    job = server.submit("--gpus", 1, "--", "sh", "-c", script)
    page.goto(f"{address}/#/jobs/{job}")
    log = page.get_by_role("log")
    expect(log).to_contain_text("red first")
    expect(log.locator(".ansi-1")).to_have_text("red")
    go.touch()
    expect(log).to_contain_text("second")
    expect(page.locator("h1 .state")).to_have_text("completed")
    page.get_by_role("searchbox").fill("second")
    expect(log.locator(".log-line")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert b"first\nsecond\n" in Path(download.value.path()).read_bytes()


def test_log_shows_every_line_when_it_is_a_little_longer_than_its_box(
    page: Page, server: RealServer, address: str
) -> None:
    job = server.submit("--gpus", 0, "--", "seq", 1, 58)
    server.json("wait", job)
    page.goto(f"{address}/#/jobs/{job}")
    expect(page.get_by_role("log").locator(".log-line").last).to_have_text("58")


def test_long_log_keeps_the_page_small(page: Page, server: RealServer, address: str) -> None:
    job = server.submit("--gpus", 0, "--", "sh", "-c", "seq 1 3000000; echo the end")
    server.json("wait", job)
    page.goto(f"{address}/#/jobs/{job}")
    log = page.get_by_role("log")
    expect(log).to_contain_text("the end")
    expect(page.get_by_text("This is the end of a long log")).to_be_visible()
    assert log.locator(".log-line").count() < 100


def test_hostile_names_and_output_stay_text(page: Page, server: RealServer, address: str) -> None:
    output = (
        f"echo '{HOSTILE}<script>alert(2)</script>'; printf '\\033]0;title\\007\\033[2Jshown\\n'"
    )
    job = server.submit("--gpus", 1, "--name", HOSTILE, "--", "sh", "-c", output)
    server.json("wait", job)
    page.goto(f"{address}/#/jobs/{job}")
    expect(page.locator("h1")).to_contain_text(HOSTILE)
    log = page.get_by_role("log")
    expect(log).to_contain_text(f"{HOSTILE}<script>alert(2)</script>")
    expect(log.locator(".log-line").nth(1)).to_have_text("shown")
    page.goto(f"{address}/#/jobs")
    page.get_by_role("button", name="Ended").click()
    expect(page.get_by_role("row").filter(has_text=HOSTILE)).to_have_count(1)
    assert page.locator("img:not(header img)").count() == 0


def test_keys_open_pages_and_move_through_the_queue(
    page: Page, server: RealServer, address: str
) -> None:
    job = server.submit("--gpus", 1, "--name", "keys", "--", "sleep", 600)
    page.goto(address)
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keys")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Shift+Q")
    expect(page.get_by_role("row").filter(has_text=job)).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/jobs/job-\d+$"))
    server.tgpu("cancel", job)
