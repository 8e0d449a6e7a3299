"""Processes of our own never import a module from the directory in which a command was started.

`python -m` puts the current directory first on the search path: a user's `queue.py` there would
replace the module of Python, and one in a directory that others may write to would run as root.
"""

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
START = re.compile(r"sys\.executable,\s*(\"-\w+\")")


def test_modules_are_started_without_the_current_directory() -> None:
    found = {
        (str(path.relative_to(SOURCES)), option)
        for path in SOURCES.rglob("*.py")
        for option in START.findall(path.read_text(encoding="utf-8"))
    }
    assert found
    assert [each for each in sorted(found) if each[1] not in {'"-I"', '"-P"'}] == []
