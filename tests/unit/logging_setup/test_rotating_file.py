"""The log file has whole lines, is limited in size, and survives a full disk."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_scheduler.logging_setup.rotating_file import RotatingFile, format_line


def lines(directory: Path, name: str = "log") -> list[dict[str, object]]:
    """All lines, the oldest first; each must be JSON."""
    files = sorted(directory.glob(f"{name}*"), key=lambda file: -int(file.suffix[1:] or 0))
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line]


def test_line_has_fields_expected_by_collectors() -> None:
    line = json.loads(
        format_line("INFO", "server", "a job started", job_id="job-1", gpu_ids=[0, 1])
    )
    assert list(line)[:5] == ["timestamp", "level", "logger", "thread", "message"]
    assert line["gpu_ids"] == [0, 1]
    assert line["timestamp"].endswith("Z")


def test_concurrent_writers_lose_and_tear_no_line_during_rotation(tmp_path: Path) -> None:
    file = RotatingFile(str(tmp_path / "log"), max_bytes=20_000, backups=50)

    def write(writer: int) -> None:
        for number in range(500):
            file.write(
                format_line("INFO", "test", "x" * (number % 50), writer=writer, number=number)
            )

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    found = [(line["writer"], line["number"]) for line in lines(tmp_path)]
    assert sorted(found) == [(writer, number) for writer in range(4) for number in range(500)]
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) > 5
    assert max(sizes) <= 20_000
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_old_files_are_deleted(tmp_path: Path) -> None:
    file = RotatingFile(str(tmp_path / "log"), max_bytes=300, backups=2)
    for number in range(100):
        file.write(format_line("INFO", "test", "hello", number=number))
    file.close()
    assert {path.name for path in tmp_path.iterdir()} == {"log", "log.1", "log.2"}
    assert lines(tmp_path)[-1]["number"] == 99
    alone = RotatingFile(str(tmp_path / "alone"), max_bytes=300, backups=0)
    for number in range(100):
        alone.write(format_line("INFO", "test", "hello", number=number))
    alone.close()
    assert (tmp_path / "alone").stat().st_size <= 300


def test_log_text_cannot_forge_line(tmp_path: Path) -> None:
    file = RotatingFile(str(tmp_path / "log"))
    file.write('a\n{"level": "ERROR"}')
    file.close()
    assert (tmp_path / "log").read_text().count("\n") == 1


def test_full_device_loses_only_log_lines() -> None:
    file = RotatingFile("/dev/full")
    for _ in range(3):
        file.write("lost")
    assert file.lost == 3
    file.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a small disk can only be mounted by root")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tgpu", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_full_disk_loses_and_counts_lines_and_later_ones_are_whole(
    small_disk: Path,
) -> None:
    file = RotatingFile(str(small_disk / "log"), max_bytes=1 << 20, backups=2)
    file.write(format_line("INFO", "test", "before"))
    with (small_disk / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)):
            pass
    for number in range(200):
        file.write(format_line("INFO", "test", "x" * 100, number=number))
    lost = file.lost
    assert lost > 0
    (small_disk / "ballast").unlink()
    file.write(format_line("INFO", "test", "after"))
    file.close()
    texts = (small_disk / "log").read_text().splitlines()
    told, last = (json.loads(text) for text in texts[-2:])
    assert told["message"].startswith(f"{lost} lines lost")
    assert last["message"] == "after"
    torn = 0
    for text in texts:
        try:
            json.loads(text)
        except ValueError:
            torn += 1
    assert torn <= 1


def test_rotation_continues_on_full_disk(small_disk: Path) -> None:
    file = RotatingFile(str(small_disk / "log"), max_bytes=8_000, backups=3)
    with (small_disk / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)):
            pass
    for number in range(1000):
        file.write(format_line("INFO", "test", "x" * 100, number=number))
    (small_disk / "ballast").unlink()
    for number in range(1000, 1100):
        file.write(format_line("INFO", "test", "x" * 100, number=number))
    file.close()
    assert sum(path.stat().st_size for path in small_disk.iterdir()) < 4 * 8_000 + 500
    text = (small_disk / "log").read_text().splitlines()[-1]
    assert json.loads(text)["number"] == 1099


def test_crashes_are_written_to_current_file(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from gpu_scheduler.logging_setup.rotating_file import RotatingFile, format_line\n"
        "file = RotatingFile(sys.argv[1], max_bytes=400, backups=1, take_stderr=True)\n"
        "for number in range(10): file.write(format_line('INFO', 't', 'x' * 80))\n"
        "raise SystemExit(sys.stderr.write('a crash\\n') and 3)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")], capture_output=True, check=False
    )
    assert ended.returncode == 3
    assert "a crash" in (tmp_path / "log").read_text()
    assert "a crash" not in (tmp_path / "log.1").read_text()
