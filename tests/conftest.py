"""Settings that hold for every test.

Hypothesis searches the same cases on every run, so that a red build is red for everyone.
HYPOTHESIS_PROFILE=explore searches at random, longer, and remembers what failed;
HYPOTHESIS_PROFILE=blunt shows the first case that failed, without making it smaller.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest_plugins = ["tests.postgres"]

settings.register_profile(
    "steady",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no reason to fail
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
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that computes longest comes first, beside what mostly waits: all end together."""
    items.sort(key=lambda item: item.path.name != "test_golden_openb.py")
