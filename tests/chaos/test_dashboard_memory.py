"""Memory of the dashboard and of the server while people watch a busy cluster.

A browser goes through the pages for DASHBOARD_MINUTES while jobs come and end; then the memory of
the page and of the server must be what it was after the first third.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import CDPSession, Page, sync_playwright

from tests.acceptance.conftest import RealServer, a_state_dir

pytestmark = pytest.mark.slow
MINUTES = float(os.environ.get("DASHBOARD_MINUTES", "0.4"))
MOST_GROWTH = 1.15
SPARE_BYTES = 4_000_000
"""Allowed beside the growth: caches of the browser and of the allocator."""
PAGES = ("cluster", "jobs", "plan", "people", "admin/nodes", "sweeps", "submit")
CHROMIUM = shutil.which("chromium")


@pytest.fixture
def server() -> Iterator[RealServer]:
    with a_state_dir() as state_dir:
        running = RealServer(state_dir)
        running.start("1024xA100-80GB")
        yield running
        running.stop()


def heap_bytes(session: CDPSession) -> int:
    """What the page needs after a garbage collection."""
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def go_through_the_pages(page: Page, address: str) -> None:
    for name in PAGES:
        page.goto(f"{address}/#/{name}")
        page.locator("h1").wait_for()
        page.wait_for_timeout(1_500)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_memory_of_page_and_server_is_stable(server: RealServer) -> None:
    facts = json.loads(Path(server.state_dir, "server.json").read_text())
    page_bytes: list[int] = []
    server_bytes: list[int] = []
    with sync_playwright() as playwright, server.client() as client:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        session = page.context.new_cdp_session(page)
        end_s = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end_s or len(page_bytes) < 3:
            for number in range(20):
                client.submit(["sleep", "5"], gpu_count=number % 3, name=f"round-{number}")
            go_through_the_pages(page, facts["http"])
            page_bytes.append(heap_bytes(session))
            server_bytes.append(resident_bytes(facts["pid"]))
        browser.close()
    sys.stdout.write(f"\n{len(page_bytes)} rounds; page {page_bytes}; server {server_bytes}\n")
    for found in (page_bytes, server_bytes):
        third = len(found) // 3
        first, last = max(found[:third]), min(found[-third:])
        assert last <= first * MOST_GROWTH + SPARE_BYTES, found
