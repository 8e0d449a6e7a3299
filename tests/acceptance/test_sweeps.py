"""Sweeps against a real server: the grid shows the results, and only failed jobs are rerun."""

from pathlib import Path

import pytest

from tests.acceptance.conftest import RealServer


@pytest.fixture(scope="module")
def sweep(server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Four jobs, of which those with b=2 fail until a file exists."""
    place = tmp_path_factory.mktemp("sweep")
    script = "echo $TGPU_SWEEP {a} {b} >> runs; test {b} = 1 || test -e mended"
    words = ("--param", "a=x,y", "--param", "b=1,2", "--sweep", "grid", "-G", "1", "--")
    ids = server.submit(*words, "sh", "-c", script, cwd=place).split()
    for job in ids:
        server.json("wait", job, "--timeout", 60) if job in ids[::2] else server.tgpu(
            "wait", job, "--timeout", 60, code=1
        )
    return "grid", place


def test_sweep_is_shown_as_grid_and_only_failed_jobs_are_rerun(
    server: RealServer, sweep: tuple[str, Path]
) -> None:
    name, place = sweep
    lines = server.tgpu("sweep", name, "--tabs").stdout.splitlines()
    assert lines[0] == "grid  4 jobs: 2 completed, 2 failed"
    assert lines[2] == "a \\ b\t1\t2"
    assert [line.split("\t")[2] for line in lines[3:5]] == ["F 1", "F 1"]
    assert server.tgpu("sweep", "last").stdout == server.tgpu("sweep", name).stdout
    assert server.json("sweep")["sweeps"][0]["states"] == {"completed": 2, "failed": 2}

    (place / "mended").touch()
    assert server.tgpu("sweep", "retry", name).stdout == "2 of 4 jobs queued again\n"
    jobs = server.json("sweep", name)["jobs"]
    server.tgpu("wait", "--timeout", 60, *(job["id"] for job in jobs))
    assert sorted((place / "runs").read_text().splitlines()) == [
        *("grid x 1", "grid x 2", "grid x 2"),
        *("grid y 1", "grid y 2", "grid y 2"),
    ]
    assert server.tgpu("sweep", "retry", name).stdout == "no job failed\n"
    assert "grid" in server.tgpu("show", jobs[0]["id"]).stdout


def test_invalid_sweep_is_rejected(server: RealServer, sweep: tuple[str, Path]) -> None:
    assert "you have no sweep 'nosuch'" in server.tgpu("sweep", "nosuch", code=4).stderr
    alone = server.submit("--", "true")
    assert "is not part of a sweep" in server.tgpu("sweep", alone, code=4).stderr
    server.tgpu("sweep", "retry", code=2)
