"""`--snapshot` against a real server: the job runs the code as of submission."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.acceptance.conftest import RealServer

NOBODY = 65_534


def test_job_runs_code_as_of_submission(server: RealServer, tmp_path: Path) -> None:
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


def test_oversized_code_is_rejected(server: RealServer, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * (2 << 20))
    words = ("submit", "--snapshot", "--snapshot-limit", "1M", "--", "true")
    told = server.tgpu(*words, cwd=tmp_path, code=2, XDG_STATE_HOME=str(tmp_path / "s")).stderr
    assert "data.bin (2 MB)" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_snapshot_of_user_is_private_and_runs_as_that_user(
    server: RealServer, tmp_path: Path
) -> None:
    home = Path(tempfile.mkdtemp(prefix="tgpu-home-"))
    try:
        (home / "code").mkdir()
        (home / "code" / "task.sh").write_text("id -u; cat other 2>/dev/null; echo done\n")
        for path in (home, home / "code", home / "code" / "task.sh"):
            os.chown(path, NOBODY, NOBODY)
        # Everything is imported before: this user may not be able to read the interpreter's files.
        program = (
            "import os, sys\n"
            "from gpu_scheduler.cli.jobs import columns\n"
            "from gpu_scheduler.cli.submit import body, files, llm, options, submit\n"
            "from gpu_scheduler.cli.submit import snapshot_command\n"
            "from gpu_scheduler.cli.text import tables\n"
            "from gpu_scheduler.cli.main import main\n"
            "import difflib, json, pwd, subprocess, http.client, encodings.idna\n"
            f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
            "os.chdir(os.environ['HOME'] + '/code')\n"
            "sys.exit(main(['submit', '-q', '--snapshot', '--export', 'NONE', '--',"
            " '/bin/sh', 'task.sh']))\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env=server.environment | {"HOME": str(home), "XDG_STATE_HOME": ""},
        )
        job = ended.stdout.strip()
        assert server.output(job) == f"{NOBODY}\ndone\n"
        place = home / ".local" / "state" / "gpu-scheduler" / "snapshots"
        assert (place.stat().st_uid, place.stat().st_mode & 0o777) == (NOBODY, 0o700)
        assert server.json("show", job)["user"] == "nobody"
    finally:
        shutil.rmtree(home)
