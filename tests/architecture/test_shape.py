"""A module has one idea: it has a telling name and an end."""

from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "gpu_scheduler"
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "base"}
MOST_LINES = 600


def test_no_module_has_a_name_that_says_nothing() -> None:
    found = sorted(path for path in SOURCE.rglob("*") if path.stem in EMPTY_NAMES)
    assert found == []


def test_no_module_grows_without_end() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in sorted(SOURCE.rglob("*.py"))
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}
