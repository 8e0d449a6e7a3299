"""Looks at a page as people with different eyes and screens do, and keeps what it looked like."""

import json
from pathlib import Path

from playwright.sync_api import Page, expect

ROOT = Path(__file__).parents[2]
AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
SCREENSHOTS = ROOT / "build/screenshots"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def check_looks(page: Page, name: str, axe: str) -> None:
    """Check a page in both themes for WCAG AA, and that it fits on a phone."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for width in (1360, 320):
            page.set_viewport_size({"width": width, "height": 860})
            expect(page.locator("main")).to_be_visible()
            page.screenshot(path=SCREENSHOTS / f"{name}-{theme}-{width}.png", full_page=True)
            if width == 320:
                spare = "document.documentElement.scrollWidth - innerWidth"
                assert page.evaluate(spare) <= 0, f"{name} is wider than a phone"
            page.evaluate(axe)
            found = page.evaluate(
                "rules => axe.run(document, {runOnly: rules})"
                ".then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html).slice(0, 3)]))",
                RULES,
            )
            assert not found, json.dumps(found, indent=1)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1360, "height": 860})
