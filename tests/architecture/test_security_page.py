"""Every test named by the security page exists, and every threat names one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/security.md").read_text(encoding="utf-8")
TESTS = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))
)


def test_every_test_named_by_security_page_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 50
    assert sorted(name for name in named if f"def {name}(" not in TESTS) == []


def test_every_threat_names_mitigation_and_test() -> None:
    table = PAGE.split("## Threats")[1].split("## What it does not do")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    for row in rows:
        threat, stopped_by, tests = (cell.strip() for cell in row.split("|")[1:4])
        if threat.startswith("**"):
            continue
        assert stopped_by, threat
        assert "`test_" in tests, threat
