"""Files that others can write, or secrets that others can read, are rejected."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.settings.trusted_files import read_trusted

NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(b"what it holds")
    made.chmod(0o600)
    return made


def test_own_file_is_read(file: Path) -> None:
    assert read_trusted(str(file), 100) == b"what it holds"
    assert read_trusted(str(file), 100, secret=True) == b"what it holds"


def test_settings_may_be_world_readable(file: Path) -> None:
    file.chmod(0o644)
    assert read_trusted(str(file), 100) == b"what it holds"


def test_world_writable_file_is_rejected(file: Path) -> None:
    file.chmod(0o666)
    with pytest.raises(InvalidInput, match=r"all users may write this file.*chmod o-w"):
        read_trusted(str(file), 100)


@needs_root
def test_file_writable_by_shared_group_is_rejected(file: Path) -> None:
    file.chmod(0o664)
    os.chown(file, 0, NOBODY)
    with pytest.raises(InvalidInput, match="group 'nogroup' may write this file"):
        read_trusted(str(file), 100)


@pytest.mark.parametrize(("mode", "who"), [(0o604, "all users"), (0o640, "group")])
def test_secret_readable_by_others_is_rejected(file: Path, mode: int, who: str) -> None:
    file.chmod(mode)
    with pytest.raises(InvalidInput, match=f"{who}.* may read this file, which holds a secret"):
        read_trusted(str(file), 100, secret=True)


def test_key_may_be_group_readable_where_allowed(file: Path) -> None:
    file.chmod(0o640)
    assert read_trusted(str(file), 100, secret=True, group_may_read=True) == b"what it holds"


@needs_root
def test_file_of_another_user_is_rejected_also_behind_a_link(file: Path) -> None:
    os.chown(file, NOBODY, NOBODY)
    link = file.with_name("link")
    link.symlink_to(file)
    for path in (file, link):
        with pytest.raises(InvalidInput, match=f"belongs to uid {NOBODY}"):
            read_trusted(str(path), 100)


def test_replaceable_file_is_rejected(file: Path) -> None:
    file.parent.chmod(0o777)
    with pytest.raises(InvalidInput, match="all users may replace this file"):
        read_trusted(str(file), 100)
    file.parent.chmod(0o1777)
    assert read_trusted(str(file), 100) == b"what it holds"


def test_missing_oversized_or_non_regular_file_is_rejected(tmp_path: Path, file: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "is not a file"), ("none", "cannot be read")):
        with pytest.raises(InvalidInput, match=said):
            read_trusted(str(tmp_path / name), 100)
    with pytest.raises(InvalidInput, match="is larger than 3 bytes"):
        read_trusted(str(file), 3)
