"""A watched jobs.txt."""

import asyncio
import json
import os
import pwd
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import SetNode
from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.server.background.jobs_file import JobsFile
from gpu_scheduler.settings.groups.operations import FileSettings
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import a_core, a_node

TEXT = """\
# Priority, Script, Conda_Env, Arguments, Allowed_GPUs
0,/data3/experiments/evaluate.py,ml_env,--llm qwen2.5-3b-inst --mode test,0-3
1,/data3/experiments/train.py,,--llm qwen2.5-7b-inst --epochs 10,4-7

2,/data3/experiments/inference.py,,--model large --batch_size 32,
"""


def with_file(
    tmp_path: Path,
    test: Callable[[JobsFile, MemoryStore], Awaitable[None]],
    environment: dict[str, str] | None = None,
) -> None:
    models = tmp_path / "llm_config.json"
    models.write_text(json.dumps({"default_requirement": 1.0, "models": {"qwen2.5-3b-inst": 0.5}}))
    settings = FileSettings(
        jobs_file=str(tmp_path / "jobs.txt"), llm_config_file=str(models), monitor_interval_s=1.0
    )

    async def run() -> None:
        store = MemoryStore()
        loop = Loop(store, lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        await loop.apply(SetNode(a_node()))
        await test(JobsFile(loop, settings, environment=environment), store)
        await loop.close()

    asyncio.run(run())


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "jobs.txt").write_text("0,/data/first.sh,,,\n", encoding="utf-8-sig")

    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        assert await jobs_file.read() == 1
        assert [row.job.name for row in store.jobs()] == ["first.sh"]

    with_file(tmp_path, test)


def test_every_line_becomes_one_job_however_often_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(TEXT)
    owner = pwd.getpwuid(file.stat().st_uid).pw_name

    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        assert await jobs_file.read() == 3
        assert await jobs_file.read() == 0
        rows = store.jobs()
        assert [(row.job.name, row.job.priority, row.job.gpu_milli) for row in rows] == [
            ("evaluate.py", 1500, 500),
            ("train.py", 750, 250),  # not in the file: estimated for a GPU of 80 GB
            ("inference.py", 250, 1000),  # says no size: the default
        ]
        assert {row.job.user for row in rows} == {owner}
        assert rows[1].job.members[0].device_ids == (4, 5, 6, 7)
        launch = store.launch(rows[0].job.id)
        assert launch is not None
        assert (launch.conda, launch.argv[:2]) == (
            "ml_env",
            ("python", "/data3/experiments/evaluate.py"),
        )
        assert launch.captured == "", "the environment is that of a login"
        with file.open("a") as more:
            more.write("1,/data3/experiments/train.py,,--llm qwen2.5-7b-inst --epochs 10,4-7\n")
        assert await jobs_file.read() == 1, "the same line again means the same work again"

    with_file(tmp_path, test)


def test_invalid_line_is_skipped_alone(tmp_path: Path) -> None:
    (tmp_path / "jobs.txt").write_text("9,what,is,this,\n1,/bin/true,,,\n1,/bin/true,,x,0-99\n")

    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        assert await jobs_file.read() >= 1
        assert "true" in {row.job.name for row in store.jobs()}

    with_file(tmp_path, test)


def test_file_writable_by_others_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(TEXT)
    file.chmod(0o666)

    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        with pytest.raises(InvalidInput, match="others may write"):
            await jobs_file.read()
        assert store.jobs() == []

    with_file(tmp_path, test)


def test_symlink_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(TEXT)
    (tmp_path / "jobs.txt").symlink_to(other)

    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        with pytest.raises(InvalidInput, match="cannot be opened"):
            await jobs_file.read()
        assert store.jobs() == []

    with_file(tmp_path, test)


def test_pipe_instead_of_a_jobs_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "jobs.txt")

    async def test(jobs_file: JobsFile, _: MemoryStore) -> None:
        with pytest.raises(InvalidInput, match="not a file"):
            await jobs_file.read()

    with_file(tmp_path, test)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"1,/bin/true,,,0-x\n"])
def test_unreadable_file_is_retried(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "jobs.txt"
    file.write_bytes(content)

    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        jobs_file.interval_s = 0.01
        watching = asyncio.create_task(jobs_file.watch())
        await asyncio.sleep(0)
        file.write_text("1,/bin/true,,,\n")
        async with asyncio.timeout(60):
            while not store.jobs():
                assert not watching.done()
                await asyncio.sleep(0.01)
        watching.cancel()

    with_file(tmp_path, test)


def test_line_rejected_by_scheduler_is_skipped_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.txt").write_text("1,/bin/false,,,\n1,/bin/true,,,\n")

    def a_line(text: str, *_: object) -> dict[str, object]:
        return {"command": ["true"], "gpu_count": [] if "false" in text else 0}

    monkeypatch.setattr("gpu_scheduler.server.background.jobs_file.read_line", a_line)

    async def test(jobs_file: JobsFile, _: MemoryStore) -> None:
        assert await jobs_file.read() == 1

    with_file(tmp_path, test)


def test_missing_file_is_awaited(tmp_path: Path) -> None:
    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        assert await jobs_file.read() == 0
        assert store.jobs() == []

    with_file(tmp_path, test)


def test_jobs_of_server_user_have_start_environment_of_server(
    tmp_path: Path,
) -> None:
    (tmp_path / "python3").touch(0o755)
    (tmp_path / "jobs.txt").write_text("1,train.py,,,\n1,train.py,ml_env,,\n")
    started_in = {
        "PATH": str(tmp_path),
        "VIRTUAL_ENV": "/venv",
        "GPU_SCHEDULER_DATABASE_URL": "postgresql://user:secret@host/db",
        "CUDA_VISIBLE_DEVICES": "3",
        "NOTIFY_SOCKET": "/run/systemd/notify",
    }

    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        assert await jobs_file.read() == 2
        first, second = (store.launch(row.job.id) for row in store.jobs())
        assert first is not None
        assert second is not None
        assert [first.argv, second.argv] == [("python3", "train.py"), ("python", "train.py")]
        variables = store.environment(first.captured)
        assert variables is not None
        assert variables.items() >= {"PATH": str(tmp_path), "VIRTUAL_ENV": "/venv"}.items()
        assert variables["HOME"] == pwd.getpwuid(os.geteuid()).pw_dir
        left_out = {"GPU_SCHEDULER_DATABASE_URL", "CUDA_VISIBLE_DEVICES", "NOTIFY_SOCKET"}
        assert not left_out & variables.keys()

    with_file(tmp_path, test, started_in)


def test_partially_written_line_is_not_submitted(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text("1,/bin/true,,first,\n1,/bin/true,,--epochs 1")

    async def test(jobs_file: JobsFile, store: MemoryStore) -> None:
        assert await jobs_file.read() == 1
        with file.open("a") as writer:
            writer.write("00,\n1,/bin/true,,last,")
        assert await jobs_file.read() == 1
        assert await jobs_file.read() == 1, "a file may end without a line end"
        assert await jobs_file.read() == 0
        launches = [store.launch(row.job.id) for row in store.jobs()]
        words = [launch.argv[-1] for launch in launches if launch is not None]
        assert words == ["first", "100", "last"]

    with_file(tmp_path, test)


def test_huge_file_is_not_read_into_memory(tmp_path: Path) -> None:
    with (tmp_path / "jobs.txt").open("wb") as file:
        file.truncate(1 << 40)

    async def test(jobs_file: JobsFile, _: MemoryStore) -> None:
        with pytest.raises(InvalidInput, match="has more than 16 MiB"):
            await jobs_file.read()

    with_file(tmp_path, test)
