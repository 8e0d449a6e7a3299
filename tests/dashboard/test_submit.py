"""The page Submit: what people write there, what the engine answers, and what is submitted."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer
from tests.dashboard.pages import check_looks
from tests.dashboard.test_pages import HOSTILE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def blocked(server: RealServer) -> Iterator[str]:
    """Six of the eight GPUs are taken for two hours."""
    job = server.submit("--gpus", 6, "--time", "2h", "--", "sleep", 900)
    yield job
    server.tgpu("cancel", job)


def submitted(page: Page) -> str:
    """The job that the page says it has submitted."""
    return page.locator("p.note-good a").first.inner_text()


def test_form_and_job_file_are_the_same_job_and_are_checked_while_typing(
    page: Page, blocked: str, address: str
) -> None:
    page.goto(f"{address}/#/submit")
    file = page.get_by_label("Job file (the fields")
    page.get_by_label("Command", exact=True).fill("sleep '1 000'")
    page.get_by_label("GPUs", exact=True).fill("2")
    expect(file).to_have_value(re.compile(r'"1 000"[\s\S]*"gpu_count": 2'))
    expect(page.get_by_text("Would be accepted")).to_be_visible()
    file.fill('{"command": ["true"], "gpu_cuont": 2}')
    expect(page.locator(".check .note-bad")).to_contain_text("gpu_cuont")
    expect(page.get_by_role("button", name="Submit", exact=True)).to_be_disabled()
    file.fill('{"command": ["true"], "gpu_count": 3')
    expect(page.get_by_text("Not a job yet")).to_be_visible()
    file.fill('{"command": ["echo", "a b"], "gpu_count": 3}')
    expect(page.get_by_label("GPUs", exact=True)).to_have_value("3")
    expect(page.get_by_label("Command", exact=True)).to_have_value("echo 'a b'")


def test_engine_answers_side_by_side_and_an_answer_can_be_taken(
    page: Page, blocked: str, address: str
) -> None:
    page.goto(f"{address}/#/submit")
    page.get_by_label("GPUs", exact=True).fill("4")
    answers = page.get_by_role("region", name="Answers")
    written = answers.get_by_role("row").filter(has_text="as written")
    expect(written).to_contain_text(re.compile(r"in (1 h 5\d|2 h)"))
    two = answers.get_by_role("row").filter(has_text="2 GPUs")
    expect(two).to_contain_text("now")
    two.get_by_role("button", name="Take 2 GPUs").click()
    expect(page.get_by_label("GPUs", exact=True)).to_have_value("2")


def test_job_is_submitted_and_printed_as_command_and_as_python(
    page: Page, server: RealServer, blocked: str, address: str
) -> None:
    page.goto(f"{address}/#/submit")
    page.get_by_label("Command", exact=True).fill("""echo "it's a" test""")
    page.get_by_label("Name", exact=True).fill(HOSTILE)
    page.get_by_label("Time limit").fill("90")
    page.get_by_label("Priority").select_option("high")
    page.get_by_label("Directory").fill("/tmp")
    command = page.get_by_role("region", name="Command line").locator("pre").inner_text()
    program = page.get_by_role("region", name="Python").locator("pre").inner_text()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_text("Submitted job-").first).to_be_visible()
    first = submitted(page)
    words = shlex.split(command)
    assert words[:2] == ["tgpu", "submit"]
    second = server.submit(*words[2:])
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=server.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    third = ran.stdout.strip()
    fields = (
        "command",
        "gpu_count",
        "max_runtime_minutes",
        "priority",
        "working_directory",
        "name",
    )
    shown = [server.json("show", job) for job in (first, second, third)]
    assert shown[0]["command"] == ["echo", "it's a", "test"]
    assert [{name: one[name] for name in fields} for one in shown] == [
        {name: shown[0][name] for name in fields}
    ] * 3


def test_sweep_shows_its_grid_and_submits_every_cell(
    page: Page, server: RealServer, blocked: str, address: str
) -> None:
    page.goto(f"{address}/#/submit")
    page.get_by_label("Command", exact=True).fill("echo {lr} {bs}")
    page.get_by_label("Sweep:").fill("lr=0.1,0.01\nbs=32,64")
    grid = page.get_by_role("region", name="Grid")
    expect(grid.get_by_role("row")).to_have_count(3)
    expect(grid).to_contain_text("echo 0.01 64")
    page.get_by_role("button", name="Submit 4 jobs").click()
    expect(page.get_by_text("Submitted 4 jobs")).to_be_visible()
    job = server.json("show", submitted(page))
    assert job["params"] == {"lr": "0.1", "bs": "32"}
    assert server.output(job["id"]) == "0.1 32\n"
    page.get_by_label("Sweep:").fill("lr")
    expect(page.get_by_text("write a name and values")).to_be_visible()


def test_job_is_submitted_again_from_its_page(
    page: Page, server: RealServer, blocked: str, address: str
) -> None:
    job = server.submit("--gpus", 1, "--name", "again", "-t", "20m", "--", "echo", "x")
    server.json("wait", job)
    page.goto(f"{address}/#/jobs/{job}")
    page.get_by_role("link", name="Submit again").click()
    expect(page.get_by_label("Command", exact=True)).to_have_value("echo x")
    expect(page.get_by_label("Time limit")).to_have_value("20")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_text("Submitted job-").first).to_be_visible()
    assert server.json("show", submitted(page))["name"] == "again"


def test_submit_looks_right_for_everybody(page: Page, blocked: str, address: str, axe: str) -> None:
    page.goto(f"{address}/#/submit")
    page.get_by_label("Name", exact=True).fill(HOSTILE)
    page.get_by_label("Sweep:").fill("lr=0.1,0.01")
    expect(page.get_by_role("region", name="Answers").get_by_role("row")).not_to_have_count(0)
    check_looks(page, "submit", axe)
    assert page.locator("img:not(header img)").count() == 0
