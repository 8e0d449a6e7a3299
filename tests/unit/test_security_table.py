"""The table of attacks tells what held from what failed and what was not tried."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests import security_table


def reports(**tests: str) -> list[Any]:
    return [
        SimpleNamespace(nodeid=f"tests/x.py::{name}[a-1]", longrepr=("x.py", 1, f"Skipped: {why}"))
        for name, why in tests.items()
    ]


@pytest.fixture(autouse=True)
def _page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = {"**Reading**": [], "a link": ["test_a", "test_b"], "a race": ["test_c"]}
    monkeypatch.setattr(security_table, "threats", lambda: page)


def test_threat_is_held_if_a_test_passed_and_none_failed() -> None:
    stats = {"passed": reports(test_a="", test_c=""), "skipped": reports(test_b="no podman")}
    lines = "\n".join(security_table.table_of(stats))
    assert "held       a link\n               without test_b: no podman" in lines
    assert "held       a race" in lines
    assert "2 held, 0 FAILED, 0 not tried" in lines


def test_one_failed_test_fails_the_threat() -> None:
    stats = {"passed": reports(test_a=""), "failed": reports(test_b=""), "error": []}
    lines = "\n".join(security_table.table_of(stats))
    assert "FAILED     a link\n               test_b" in lines
    assert "not tried  a race\n               not in this run" in lines


def test_skipped_threat_is_not_held() -> None:
    lines = security_table.table_of({"skipped": reports(test_a="x", test_b="x", test_c="y")})
    assert lines[-1] == "  0 held, 0 FAILED, 2 not tried"
