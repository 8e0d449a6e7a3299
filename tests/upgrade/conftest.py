"""The old version of gpu-scheduler, for tests of upgrades."""

from pathlib import Path

import pytest

from tests.upgrade.installation import extract_old_package


@pytest.fixture(scope="session")
def old_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package directory of the old version; skips where git does not have it."""
    return extract_old_package(tmp_path_factory.mktemp("old-version"))
