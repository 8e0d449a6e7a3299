"""Snapshots of the public interface; a change here is a change users see.

`UPDATE_SNAPSHOTS=1 pytest tests/interface` writes the files in `snapshots/` anew from the code.
Snapshots hold names, types, defaults and numbers. They leave out descriptions, which may be
reworded at any time.
"""

from collections.abc import Iterator

import pytest

from tests.unit.api.lab import ApiLab


@pytest.fixture(scope="session")
def api() -> Iterator[ApiLab]:
    """A server with its REST API, without agents."""
    with ApiLab() as lab:
        yield lab
