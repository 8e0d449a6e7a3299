"""The page Admin: what an admin changes, and what happened."""

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer
from tests.dashboard.pages import check_looks

pytestmark = pytest.mark.slow


def answer(page: Page, button: str, **fields: str) -> None:
    """Fill in the dialog, and agree."""
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        dialog.get_by_label(label.replace("_", " ")).fill(value)
    dialog.get_by_role("button", name=button, exact=True).click()


def test_node_is_drained_with_progress_labelled_and_used_again(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    job = server.submit("--gpus", 2, "--", "sleep", 600)
    page.goto(f"{address}/#/jobs/{job}")
    expect(page.locator("h1 .state")).to_have_text("running")
    page.goto(f"{address}/#/admin/nodes")
    node = server.json("nodes")["nodes"][0]["id"]
    page.get_by_role("button", name=node).click()
    detail = page.get_by_role("complementary")
    detail.get_by_role("button", name="Drain").click()
    answer(page, "Drain", Reason="new fan")
    expect(detail.locator(".state").first).to_have_text("draining")
    expect(detail.get_by_role("region", name="Drain")).to_contain_text("2 GPUs still used")
    expect(detail).to_contain_text("new fan")
    check_looks(page, "admin-nodes", axe)
    server.tgpu("cancel", job)
    expect(detail.get_by_role("region", name="Drain")).to_contain_text("the node is drained")
    detail.get_by_role("button", name="Uncordon").click()
    expect(detail.locator(".state").first).to_have_text("online")
    detail.get_by_role("button", name="Labels").click()
    answer(page, "Set", Labels="zone=b disk=nvme")
    expect(detail).to_contain_text("disk=nvme zone=b")
    detail.get_by_role("button", name="Cordon").click()
    answer(page, "Cordon")
    expect(detail.locator(".state").first).to_have_text("cordoned")
    page.get_by_role("button", name="Undo").last.click()
    expect(detail.locator(".state").first).to_have_text("online")


def test_gpu_is_paused_and_its_history_says_so(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    node = server.json("nodes")["nodes"][0]["id"]
    page.goto(f"{address}/#/admin/gpus")
    page.get_by_role("button", name=f"Pause {node}:3").click()
    expect(page.get_by_role("button", name=f"Resume {node}:3")).to_be_visible()
    page.get_by_role("link", name=f"{node}:3").click()
    history = page.get_by_role("region", name="History", exact=True)
    expect(history.get_by_role("row").nth(1)).to_contain_text("paused")
    check_looks(page, "admin-gpus", axe)
    page.get_by_role("button", name=f"Resume {node}:3").click()
    expect(page.get_by_role("button", name=f"Pause {node}:3")).to_be_visible()


def test_reservation_is_made_and_released(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    page.goto(f"{address}/#/admin/reservations")
    page.get_by_role("button", name="Reserve GPUs").click()
    answer(page, "Reserve", GPUs="4", Name="course", Hours="3")
    row = page.get_by_role("region", name="Reservations").get_by_role("row").nth(1)
    expect(row).to_contain_text("course")
    assert server.json("reserve", "list")["reservations"][0]["gpus"] == 4
    check_looks(page, "admin-reservations", axe)
    page.get_by_role("button", name="Release course").click()
    answer(page, "Release")
    expect(page.get_by_role("heading", name="No reservations")).to_be_visible()


def test_tenant_is_created_changed_and_removed(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    page.goto(f"{address}/#/admin/tenants")
    page.get_by_role("button", name="New tenant").click()
    answer(page, "Create", Name="vision", GPUs_at_most="6")
    row = page.get_by_role("row").filter(has_text="vision")
    expect(row).to_contain_text("0 of 6")
    row.get_by_role("button", name="Change vision").click()
    answer(page, "Change", GPUs_at_most="", Jobs_at_most="5")
    expect(row).to_contain_text("0 of 5")
    expect(row).not_to_contain_text("0 of 6")
    check_looks(page, "admin-tenants", axe)
    row.get_by_role("button", name="Remove vision").click()
    answer(page, "Remove")
    expect(page.get_by_role("row").filter(has_text="vision")).to_have_count(0)


def test_token_is_shown_once_and_revoked(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    page.goto(f"{address}/#/admin/tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_role("dialog").get_by_label("Role").select_option("viewer")
    answer(page, "Create", Name="laptop")
    secret = page.get_by_role("region", name="The new token").locator("pre").inner_text()
    row = page.get_by_role("row").filter(has_text="laptop")
    expect(row).to_contain_text("viewer")
    check_looks(page, "admin-tokens", axe)
    row.get_by_role("button", name="Revoke").click()
    answer(page, "Revoke")
    expect(row).to_contain_text("revoked")
    page.reload()
    expect(row).to_contain_text("revoked")
    expect(page.locator("body")).not_to_contain_text(secret)


def test_audit_log_says_who_did_what(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    job = server.submit("--gpus", 1, "--", "sleep", 600)
    server.tgpu("cancel", job)
    page.goto(f"{address}/#/admin/audit")
    page.get_by_label("Action").fill("cancel")
    log = page.get_by_role("region", name="Audit log").get_by_role("row")
    expect(log.nth(1)).to_contain_text(job)
    expect(log.filter(has_text="submit")).to_have_count(0)
    check_looks(page, "admin-audit", axe)


def test_health_says_what_to_do(page: Page, server: RealServer, address: str, axe: str) -> None:
    page.goto(f"{address}/#/admin")
    expect(page.get_by_role("region", name="Checks").get_by_role("row")).not_to_have_count(1)
    check_looks(page, "admin-health", axe)


def test_settings_are_shown_and_searched(
    page: Page, server: RealServer, address: str, axe: str
) -> None:
    page.goto(f"{address}/#/admin/settings")
    page.get_by_role("searchbox").fill("gpu.simulate")
    row = page.get_by_role("region", name="Settings").get_by_role("row").nth(1)
    expect(row).to_contain_text("8xA100-80GB")
    check_looks(page, "admin-settings", axe)
