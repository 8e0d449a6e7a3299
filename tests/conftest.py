"""Settings that hold for every test.

Hypothesis searches the same cases on every run, so that a failure can be repeated everywhere.
HYPOTHESIS_PROFILE=explore searches at random, longer, and remembers what failed;
HYPOTHESIS_PROFILE=blunt shows the first failing case without shrinking it. `tests.effort` sets how
many cases a run searches.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.effort import examples

pytest_plugins = [
    "tests.postgres",
    "tests.kubernetes.lab.fixtures",
    "tests.security_table",
    "tests.loop_reads",
]

# Tests start thousands of Python processes; without cached byte code each compiles the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A worker of pytest-xdist has 80, at which tables in a pipe would be cut.
os.environ.pop("COLUMNS", None)

settings.register_profile(
    "steady",
    max_examples=examples(100),
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine must not fail tests
)
settings.register_profile(
    "explore",
    derandomize=False,
    deadline=None,
    max_examples=2_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "blunt",
    settings.get_profile("steady"),
    phases=[Phase.explicit, Phase.generate],
)
REPEATED = ("TEST_EFFORT", "HYPOTHESIS_PROFILE", "TGPU_TRACES_DIR")
"""Variables that change what a test does, and so belong to the command that repeats it."""

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


LONGEST_FILES = ("test_golden_openb.py", "test_golden_forecasts.py", "test_golden_kth.py")
"""Files that compute longest start first, so that all workers finish at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that take longest."""
    items.sort(key=lambda item: item.path.name not in LONGEST_FILES)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print, for each failed test, the one command that repeats it."""
    failed = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    names = dict.fromkeys(report.nodeid for report in failed)
    if not names:
        return
    variables = " ".join(
        f"{name}={shlex.quote(os.environ[name])}" for name in REPEATED if name in os.environ
    )
    terminalreporter.section("repeat a failure with")
    for name in names:
        command = f"{variables} {sys.executable} -m pytest {shlex.quote(name)}"
        terminalreporter.write_line(command.strip())


@pytest.fixture(autouse=True)
def _aligned_tables() -> Iterator[None]:
    """A command with --tabs chooses it for its process, which tests share."""
    yield
    if tables := sys.modules.get("gpu_scheduler.cli.text.tables"):
        tables.use_tabs(False)
