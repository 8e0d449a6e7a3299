"""Every module named by the pages for newcomers exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpu_scheduler"
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
MOST_MODULES = 15


def paths_in(text: str) -> list[str]:
    """Paths of modules and folders of the package in code spans."""
    found = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", text)
    return [
        path for path in found if not path.startswith(("tests/", "benchmarks/", "docs/", "src/"))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_module_named_by_pages_exists(page: str) -> None:
    named = paths_in((ROOT / page).read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (SOURCE / path).exists()] == []


def test_each_code_path_is_short() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## Code path \d.*?(?=^## )", text, flags=re.DOTALL | re.MULTILINE)
    assert len(sections) == 5
    assert max(len(set(paths_in(section))) for section in sections) <= MOST_MODULES
