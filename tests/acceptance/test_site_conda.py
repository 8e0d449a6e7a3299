"""User jobs in the conda environments of a site that restricts which scripts may run."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.linux_accounts import CAN_MAKE, WHY_NOT, LinuxAccount, some_accounts

pytestmark = pytest.mark.skipif(not CAN_MAKE, reason=WHY_NOT)
LONGEST_S = 60.0
CONDA = """#!/bin/bash
# Called as conda is, and enters an environment as conda does: what is active is left first, by its
# own scripts; the shell is whichever the PATH finds; then come the scripts of the new one.
[ "$1 $2 $3" = "run --no-capture-output -p" ] || exit 64
export ENTERED="$4"; shift 4
exec bash -c '
if [ "${CONDA_SHLVL:-0}" -gt 0 ]; then . "$CONDA_PREFIX/etc/conda/deactivate.d/x.sh"; fi
export CONDA_PREFIX="$ENTERED" PATH="$ENTERED/bin:$PATH"
. "$ENTERED/etc/conda/activate.d/x.sh"
exec "$@"' conda "$@"
"""
EVIL = "#!/bin/sh\necho evil; exit 66\n"


def a_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def an_environment(prefix: Path, hook: str) -> Path:
    (prefix / "conda-meta").mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin/python").symlink_to("/bin/sh")
    for when in ("activate.d", "deactivate.d"):
        a_program(prefix / f"etc/conda/{when}/x.sh", hook)
    return prefix


class Place:
    """A site with one environment; user ben has one of the same name and others."""

    def __init__(self, server: RealServer, place: Path, ben: LinuxAccount) -> None:
        self.server = server
        self.ben = ben.calling(f"{server.state_dir}/server.sock")
        self.script = place / "allowed/train.py"
        self.site = place / "conda/envs/ml"
        self.own = an_environment(ben.home / "miniconda3/envs/ml", EVIL)
        for name in ("conda", "bash", "python"):
            a_program(ben.home / "miniconda3/bin" / name, EVIL)
        for path in (ben.home, *ben.home.rglob("*")):
            shutil.chown(path, ben.uid, ben.gid) if not path.is_symlink() else None

    def submit(self, **job: Any) -> dict[str, Any]:
        """As from a shell in which ben's own environment is active."""
        conda = self.own.parent.parent
        shell = {
            "PATH": f"{self.own}/bin:{conda}/bin:/usr/bin:/bin",
            "HOME": str(self.ben.home),
            "CONDA_PREFIX": str(self.own),
            "CONDA_SHLVL": "1",
            "CONDA_EXE": f"{conda}/bin/conda",
            "CONDA_ENVS_PATH": str(self.own.parent),
        }
        body = {
            "command": ["python", str(self.script), "7"],
            "conda": "ml",
            "working_directory": str(self.ben.home),
            "captured_environment": shell,
        }
        return dict(self.ben.call("POST", "/jobs", body | job))

    def output(self, job: str) -> str:
        with self.server.client() as client:
            client.wait(job, timeout=LONGEST_S)
        return self.server.tgpu("logs", job).stdout


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with (
        tempfile.TemporaryDirectory(prefix="tgpu-site-") as directory,
        some_accounts("ben") as people,
        a_state_dir() as state_dir,
    ):
        server = RealServer(state_dir)
        site = Path(directory)
        site.chmod(0o755)
        a_program(site / "conda/bin/conda", CONDA)
        an_environment(site / "conda/envs/ml", "echo hook of the site\n")
        text = 'echo "train $1 in $CONDA_PREFIX as $(id -u)"\n'
        (site / "allowed").mkdir()
        (site / "allowed/train.py").write_text(text)
        rules = {"allowed_script_paths": [str(site / "allowed")], "conda_roots": [f"{site}/conda"]}
        config = Path(state_dir) / "config.yaml"
        config.write_text(json.dumps({"security": rules}))
        config.chmod(0o600)
        server.environment["GPU_SCHEDULER_CONFIG"] = str(config)
        server.start("1xA100-80GB")
        yield Place(server, site, people[0])
        server.stop()


def test_job_runs_in_site_environment_whatever_its_user_shell_has(place: Place) -> None:
    told = place.output(place.submit()["job_id"]).splitlines()
    assert told == ["hook of the site", f"train 7 in {place.site} as {place.ben.uid}"]


@pytest.mark.parametrize(
    "change",
    [
        {"conda": "{own}"},
        {"conda": "../../../{own}"},
        {"conda": "theirs"},
        {"command": ["python", "{home}/evil.py"]},
        {"command": ["python", "-c", "echo evil"]},
        {"environment": {"BASH_ENV": "{home}/evil.py"}},
    ],
)
def test_job_that_would_run_user_code_is_rejected(place: Place, change: dict[str, Any]) -> None:
    text = json.dumps(change).replace("{own}", str(place.own))
    answer = place.submit(**json.loads(text.replace("{home}", str(place.ben.home))))
    assert answer.get("code") == "forbidden", answer


def test_changed_symlink_redirects_no_job(place: Place) -> None:
    link = place.ben.home / "later"
    place.ben.run("ln", "-sfn", place.site, link)
    assert place.submit(conda=str(link)).get("code") == "forbidden"
    (place.site.parent / "new").symlink_to(place.site)
    held = place.submit(conda="new", hold=True)["job_id"]
    (place.site.parent / "new").unlink()
    (place.site.parent / "new").symlink_to(place.own)
    place.server.tgpu("release", held)
    assert f"train 7 in {place.site} as" in place.output(held)
    assert place.submit(conda="new").get("code") == "forbidden"
