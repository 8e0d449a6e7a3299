"""A real browser, Debian's Chromium, against a real server with real jobs on declared GPUs."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.dashboard.pages import AXE

LONGEST_MS = 60_000
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed after each module: until then no other test of the process can run an event loop."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    expect.set_options(timeout=LONGEST_MS)
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs privileges that containers do not have.
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            # 10080 is a free port like others here, but Chromium avoids it.
            args=["--no-sandbox", "--disable-dev-shm-usage", "--explicitly-allowed-ports=10080"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with a_state_dir() as state_dir:
        running = RealServer(state_dir)
        running.start("8xA100-80GB")
        yield running
        running.stop()


@pytest.fixture(scope="module")
def address(server: RealServer) -> str:
    """The address of the dashboard."""
    return str(json.loads(Path(server.state_dir, "server.json").read_text())["http"])


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    context.set_default_timeout(LONGEST_MS)
    yield context
    context.close()


class Complaints(list[str]):
    """What the browser said about the page: errors, and violations of the policy."""


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def page(context: BrowserContext, complaints: Complaints) -> Iterator[Page]:
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda said: complaints.append(said.text) if "Content Security" in said.text else None,
    )
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    yield page
    assert not complaints


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which a build of the dashboard installs."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make web")
    return AXE.read_text()
