"""What an admin sees of a GPU that fails: the problem, what to do, and the XID in its history."""

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer
from tests.acceptance.nvml_box import box, fake_nvml, fake_nvml_library
from tests.dashboard.pages import check_looks
from tests.dashboard.test_readings import address, server
from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.slow
__all__ = ["address", "box", "fake_nvml", "fake_nvml_library", "server"]
FALLEN_OFF_THE_BUS = 79


def test_failing_gpu_is_explained_with_its_xid_and_what_to_do(
    page: Page, box: tuple[RealServer, FakeNvml], address: str, axe: str
) -> None:
    server, nvml = box
    page.goto(f"{address}/#/admin")
    status = page.locator("main .state").first
    expect(status).to_have_text("healthy")
    nvml.xid(2, FALLEN_OFF_THE_BUS)
    expect(status).to_have_text("degraded")
    problems = page.get_by_role("region", name="Problems")
    expect(problems).to_contain_text("What to do: look for XID or ECC errors")
    check_looks(page, "admin-health", axe)
    node = server.json("nodes")["nodes"][0]["id"]
    page.goto(f"{address}/#/admin/gpus/{node}:2")
    history = page.get_by_role("region", name="History", exact=True)
    row = history.get_by_role("row").filter(has_text="unhealthy")
    expect(row.get_by_role("cell", name=str(FALLEN_OFF_THE_BUS), exact=True)).to_be_visible()
