"""The documentation pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "deploy", "benchmarks")
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (
        *ROOT.glob("*.md"),
        *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md")),
    )
    if page.name != "CHANGELOG.md"
)
"""All but the changelog, which also names what was removed."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def without_blocks(text: str) -> str:
    """The text outside of code blocks."""
    return re.sub(r"(?ms)^```.*?^```", "", text)
