"""Every test named by the guarantees page exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/guarantees.md").read_text(encoding="utf-8")
TESTS = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))
)


def test_every_file_named_by_guarantees_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+\.py)`", PAGE))
    assert named
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_test_named_by_guarantees_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named
    assert sorted(name for name in named if f"def {name}(" not in TESTS) == []
