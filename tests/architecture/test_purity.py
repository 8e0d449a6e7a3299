"""The core is pure, and the check itself detects violations."""

from pathlib import Path

import pytest

from tests.architecture.purity import CORE, findings

SOURCE = Path(__file__).parents[2] / "src" / "gpu_scheduler"
CORE_PACKAGES = [name for name in CORE if (SOURCE / name).is_dir()]


@pytest.mark.parametrize("package", CORE_PACKAGES)
def test_core_does_no_io_and_reads_no_clock(package: str) -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {finding}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        for finding in findings(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from datetime import datetime",
        "from random import Random as Chance",
        "def f():\n    import logging",
        "import numpy",
        "import gpu_scheduler.settings",
        "from gpu_scheduler import settings",
        "from gpu_scheduler.settings import Settings",
        "async def f(): ...",
        "open('x')",
        "print('x')",
        "for x in {1, 2}: ...",
        "for x in set(y): ...",
        "for x in set(y) | z: ...",
        "[x for x in frozenset(y)]",
        "{x: 1 for x in {a for a in b}}",
        "list(set(y))",
        "next(iter({1, 2}))",
        "[*set(y)]",
    ],
)
def test_purity_check_finds_violation(source: str) -> None:
    assert len(findings(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import heapq",
        "from sortedcontainers import SortedList",
        "from gpu_scheduler.model.job import Job",
        "from collections.abc import Iterable",
        "for x in sorted({1, 2}): ...",
        "for x in sorted(set(y)): ...",
        "len(set(y))",
        "x in {1, 2}",
        "for x in y - z: ...",
        "for x in ranges.union(other): ...",
        "self.open()",
    ],
)
def test_purity_check_accepts_ordinary_code(source: str) -> None:
    assert findings(source) == []
