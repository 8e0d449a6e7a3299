"""Who may do what in the browser: sessions, roles, other sites, and hostile text."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, WebSocket, expect

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.certificates import make_certificate
from tests.dashboard.pages import check_looks
from tests.ports import lasting_port

pytestmark = pytest.mark.slow


def own_address() -> str:
    """An address of this machine that is not loopback: callers there are not known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network address")
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server that also listens on the network, by TLS."""
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"))
    with a_state_dir() as state_dir:
        running = RealServer(state_dir)
        running.environment |= {
            "GPU_SCHEDULER_API_HOST": "0.0.0.0",
            "GPU_SCHEDULER_API_HTTP_PORT": str(lasting_port()),
            "GPU_SCHEDULER_API_TLS_CERTIFICATE": str(certificate),
            "GPU_SCHEDULER_API_TLS_KEY": str(key),
        }
        running.start("2xA100-80GB")
        yield running
        running.stop()


@pytest.fixture(scope="module")
def port(server: RealServer) -> str:
    return server.environment["GPU_SCHEDULER_API_HTTP_PORT"]


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1360, "height": 860}, ignore_https_errors=True)
    context.set_default_timeout(60_000)
    yield context
    context.close()


def log_in(page: Page, server: RealServer, port: str, role: str) -> str:
    """Log in with a new token; returns its id."""
    made = server.json("token", "create", "--user", "nobody", "--role", role)
    page.goto(f"https://{own_address()}:{port}/")
    page.get_by_label("Token").fill(made["token"])
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("header")).to_contain_text(role)
    return str(made["id"])


def test_unknown_caller_sees_only_the_question_who_it_is(
    page: Page, server: RealServer, port: str, axe: str
) -> None:
    page.goto(f"https://{own_address()}:{port}/#/jobs")
    expect(page.get_by_role("heading", name="Who are you?")).to_be_visible()
    check_looks(page, "login", axe)
    page.get_by_label("Token").fill("tgpu_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("this token is unknown")


def test_token_becomes_a_cookie_that_the_page_cannot_read(
    page: Page, context: BrowserContext, server: RealServer, port: str
) -> None:
    frames: list[str] = []

    def watch(socket: WebSocket) -> None:
        socket.on("framereceived", lambda text: frames.append(str(text)))

    page.on("websocket", watch)
    log_in(page, server, port, "viewer")
    deadline_s = time.monotonic() + 60
    while not frames and time.monotonic() < deadline_s:
        page.wait_for_timeout(100)
    assert frames, "the stream of GPUs does not accept the cookie"
    assert page.evaluate("document.cookie + JSON.stringify({...localStorage})") == "{}"
    (cookie,) = context.cookies(f"https://{own_address()}:{port}/api/v1/me")
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    assert not cookie["value"].startswith("tgpu_")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Who are you?")).to_be_visible()


def test_revoked_token_ends_the_session_in_the_open_page(
    page: Page, server: RealServer, port: str
) -> None:
    token = log_in(page, server, port, "viewer")
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
    server.tgpu("token", "revoke", token)
    expect(page.get_by_role("heading", name="Who are you?")).to_be_visible()


def test_viewer_sees_no_admin_actions_and_cannot_call_them(
    page: Page, server: RealServer, port: str
) -> None:
    log_in(page, server, port, "viewer")
    expect(page.get_by_role("link", name="What if")).to_have_count(0)
    page.get_by_role("link", name="Admin").click()
    parts = page.get_by_role("navigation", name="Parts of this page")
    expect(parts.get_by_role("link", name="Health")).to_be_visible()
    expect(parts.get_by_role("link", name="Audit log")).to_have_count(0)
    parts.get_by_role("link", name="GPUs").click()
    expect(page.get_by_role("region", name="GPUs").get_by_role("row")).to_have_count(3)
    expect(page.get_by_role("button", name=re.compile("Pause"))).to_have_count(0)
    for call in (
        ["POST", "/gpus/0/pause"],
        ["POST", f"/nodes/{server.json('nodes')['nodes'][0]['id']}/drain"],
        ["GET", "/audit"],
        ["GET", "/settings"],
        ["POST", "/what-if"],
    ):
        status = page.evaluate(
            "([method, path]) => fetch('/api/v1' + path, {method,"
            " headers: {'content-type': 'application/json'},"
            " ...(method === 'POST' && path !== '/gpus/0/pause' ? {body: '{}'} : {})})"
            ".then(response => response.status)",
            call,
        )
        assert status == 403, call


def test_page_of_another_site_changes_and_reads_nothing(
    page: Page, server: RealServer, port: str, tmp_path: Path
) -> None:
    """On loopback the kernel would take its requests for those of the person at the browser."""
    (tmp_path / "index.html").write_text("<h1>another site</h1>")
    other = lasting_port()
    site = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(other), "--bind", "127.0.0.1"], cwd=tmp_path
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", other)) == 0:
                    break
            page.wait_for_timeout(100)
        page.goto(f"http://127.0.0.1:{other}/")
        api = f"https://localhost:{port}/api/v1"
        page.evaluate(
            "api => fetch(api + '/gpus/0/pause', {method: 'POST', mode: 'no-cors',"
            " credentials: 'include'}).catch(() => null)",
            api,
        )
        assert not server.json("gpus")["gpus"][0]["paused"]
        read = "api => fetch(api + '/gpus', {credentials: 'include'}).then(() => 1, () => 0)"
        assert page.evaluate(read, api) == 0
        opened = page.evaluate(
            "api => new Promise(done => { const socket = new WebSocket("
            "api.replace('https', 'wss') + '/events'); socket.onopen = () => done(1);"
            " socket.onerror = () => done(0); })",
            api,
        )
        assert opened == 0
    finally:
        site.kill()
        site.wait()


def test_hostile_names_stay_text_on_every_page(page: Page, server: RealServer, port: str) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    parameters = ("--param", f"name={hostile},b", "--sweep", "hostile")
    server.tgpu("submit", "--gpus", 1, "--name", hostile, *parameters, "--", "sleep", 600)
    server.tgpu(
        "reserve", "--gpus", 1, "--tenant", "default", "--name", hostile, "--start", "+2h",
        "--duration", "1h", code=0,
    )  # fmt: skip
    for name in ("jobs", "plan", "sweeps", "sweeps/hostile", "people", "admin/reservations"):
        page.goto(f"https://localhost:{port}/#/{name}")
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("main")).to_contain_text(
            "hostile" if name == "sweeps" else re.compile(".")
        )
        assert page.locator("img:not(header img)").count() == 0, name
    page.goto(f"https://localhost:{port}/#/sweeps/hostile")
    expect(page.get_by_role("region", name="Jobs by parameter")).to_contain_text(hostile)
