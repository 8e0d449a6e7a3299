"""`--snapshot` against a real server: the job runs what was there at submit."""

import subprocess
from pathlib import Path

from tests.acceptance.conftest import RealServer


def test_a_job_runs_the_code_as_it_was_at_submit(server: RealServer, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    script = project / "sub" / "task.sh"
    script.write_text("#!/bin/sh\npwd\necho old\n")
    script.chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    words = ("-H", "--snapshot", "--", "./task.sh")
    job = server.submit(*words, cwd=project / "sub", **state)
    named = server.submit("-H", "--snapshot", "--", script, cwd=project / "sub", **state)
    script.write_text("#!/bin/sh\necho new\n")

    server.tgpu("release", job, named)
    shown = server.json("show", job)
    place = shown["snapshot"]["path"]
    assert place.startswith(str(tmp_path / "state"))
    assert shown["working_directory"] == f"{place}/sub"
    assert (shown["snapshot"]["source"], shown["snapshot"]["dirty"]) == (str(project), True)
    assert server.output(job) == f"{place}/sub\nold\n"
    assert server.output(named) == f"{place}/sub\nold\n"
    told = server.tgpu("show", job).stdout
    assert f"with changes of {project}, in {place}" in told

    listed = server.tgpu("snapshots", **state).stdout.splitlines()
    assert len(listed) == 2
    assert str(project) in listed[1]
    assert "0 of 0 snapshots" in server.tgpu("snapshots", "prune", **state).stdout
    assert "1 of 1 snapshots" in server.tgpu("snapshots", "prune", "--all", **state).stdout
    assert not Path(place).exists()


def test_code_that_is_too_large_is_refused(server: RealServer, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * (2 << 20))
    words = ("submit", "--snapshot", "--snapshot-limit", "1M", "--", "true")
    told = server.tgpu(*words, cwd=tmp_path, code=2, XDG_STATE_HOME=str(tmp_path / "s")).stderr
    assert "data.bin (2 MB)" in told
