"""Load, memory, power and temperature of a job's GPUs, from its start on."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer
from tests.acceptance.nvml_box import box, fake_nvml, fake_nvml_library
from tests.dashboard.pages import check_looks
from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.slow
__all__ = ["box", "fake_nvml", "fake_nvml_library"]


@pytest.fixture
def server(box: tuple[RealServer, FakeNvml]) -> RealServer:
    return box[0]


@pytest.fixture
def address(server: RealServer) -> str:
    return str(json.loads(Path(server.state_dir, "server.json").read_text())["http"])


def test_job_shows_the_curves_of_its_gpus(
    page: Page, box: tuple[RealServer, FakeNvml], address: str, axe: str
) -> None:
    server, nvml = box
    for index in range(8):
        nvml.gpu(index, utilisation=73, power_mw=250_000, temperature=61)
    job = server.submit("--gpus", 2, "--", "sleep", 600)
    page.goto(f"{address}/#/jobs/{job}")
    readings = page.get_by_role("region", name="GPU readings")
    load = readings.get_by_role("figure", name="GPU utilisation")
    expect(load.locator("canvas")).to_be_visible()
    for name in ("GPU utilisation", "Power", "Temperature"):
        readings.get_by_role("figure", name=name).get_by_text("As a table").click()
    expect(load.get_by_role("columnheader")).to_have_count(3)
    expect(load.get_by_role("cell", name="73").first).to_be_visible()
    expect(readings.get_by_role("figure", name="Power")).to_contain_text("250")
    expect(readings.get_by_role("figure", name="Temperature")).to_contain_text("61")
    check_looks(page, "job-readings", axe)
    server.tgpu("cancel", job)
