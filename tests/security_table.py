"""Pytest plugin: marks the tests that the security page names, and prints what held.

The table of threats in docs/reference/security.md is the list of attacks. Its tests get the marker
`attack`, so that `pytest -m attack` runs them all; a run that selects by this marker ends with one
line for each threat: held, FAILED, or not tried and why.
"""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "security.md"
HELD, FAILED, NOT_TRIED = "held", "FAILED", "not tried"


def threats() -> dict[str, list[str]]:
    """The tests of each threat, in the order of the page; groups have none."""
    table = PAGE.read_text(encoding="utf-8").split("## Threats")[1].split("\n## ")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ")][1:]
    return {threat.strip(): re.findall(r"`(test_\w+)`", tests) for threat, _, tests in rows}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that the page names."""
    named = {name for names in threats().values() for name in names}
    for item in items:
        if getattr(item, "originalname", None) in named:
            item.add_marker(pytest.mark.attack)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table, if the attacks were selected."""
    if config.option.markexpr == "attack":
        for line in table_of(terminalreporter.stats):
            terminalreporter.write_line(line)


def table_of(stats: dict[str, list[Any]]) -> list[str]:
    """One line for each threat, from the reports of a run by their kind."""
    passed = _by_test(stats.get("passed", []))
    failed = _by_test(stats.get("failed", []) + stats.get("error", []))
    skipped = _by_test(stats.get("skipped", []))
    lines, counts = ["", "attacks"], dict.fromkeys((HELD, FAILED, NOT_TRIED), 0)
    for threat, tests in threats().items():
        if not tests:
            lines.append(f"  {threat.strip('*')}")
            continue
        missing = [name for name in tests if name not in passed and name not in failed]
        if broken := [name for name in tests if name in failed]:
            result, detail = FAILED, ", ".join(broken)
        elif len(missing) == len(tests):
            result, detail = NOT_TRIED, _why(missing[0], skipped)
        else:
            result = HELD
            detail = "; ".join(f"without {name}: {_why(name, skipped)}" for name in missing)
        counts[result] += 1
        lines.append(f"    {result:9}  {threat}" + (f"\n               {detail}" if detail else ""))
    lines.append("  " + ", ".join(f"{count} {result}" for result, count in counts.items()))
    return lines


def _by_test(reports: list[Any]) -> dict[str, Any]:
    """Reports by the name of their test, without its parameters."""
    return {report.nodeid.rpartition("::")[2].partition("[")[0]: report for report in reports}


def _why(name: str, skipped: dict[str, Any]) -> str:
    if name not in skipped:
        return "not in this run"
    reason = skipped[name].longrepr
    return str(reason[2] if isinstance(reason, tuple) else reason).removeprefix("Skipped: ")
