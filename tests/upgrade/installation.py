"""Installed copies of gpu-scheduler: the old version from git, the new one from this checkout.

An `Installation` is a virtual environment whose `site-packages` holds the package itself. The
third-party packages are those of the interpreter that runs the tests. `install` replaces the files
of the package in place, as `pip install --upgrade` does, whatever runs from it meanwhile.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

import gpu_scheduler

OLD_COMMIT = "540258010372a932a5c4cb08f6836e7287e8e4c9"
"""The last commit before the modules were moved."""
NEW_PACKAGE = Path(gpu_scheduler.__file__).parent
PACKAGE = "gpu_scheduler"
ROOT = Path(__file__).parents[2]


def extract_old_package(directory: Path) -> Path:
    """Write the old version's package below a directory; skip the test where git has it not."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("the old version comes from git, and git is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip(f"the old version comes from git, and {ROOT} is not a git checkout")
    archive = subprocess.run(
        [git, "-C", str(ROOT), "archive", "--format=tar", OLD_COMMIT, f"src/{PACKAGE}"],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip()
        pytest.skip(f"git has no commit {OLD_COMMIT[:7]} (a shallow clone?): {reason}")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True)
    package = directory / "src" / PACKAGE
    # Without compiled files every process of the old version would compile them itself.
    compileall.compile_dir(package, quiet=2)
    return package


class Installation:
    """A virtual environment with one version of the package, which can be replaced in place."""

    def __init__(self, directory: Path, package: Path) -> None:
        venv.create(directory, symlinks=True)
        self.python = str(directory / "bin" / "python")
        (self._site,) = directory.glob("lib/python*/site-packages")
        paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (self._site / "third_party.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
        self.install(package)

    @property
    def program(self) -> tuple[str, ...]:
        """The beginning of a `tgpu` command line."""
        return (self.python, "-m", PACKAGE)

    def install(self, package: Path) -> None:
        """Replace the installed files, those that the new version does not have included."""
        target, fresh, former = (self._site / name for name in (PACKAGE, "fresh", "former"))
        shutil.copytree(package, fresh)
        if target.exists():
            target.rename(former)
        fresh.rename(target)
        shutil.rmtree(former, ignore_errors=True)

    def upgrade(self) -> None:
        """Replace the installed version with the one under test."""
        self.install(NEW_PACKAGE)


def clean_environment(**settings: str) -> dict[str, str]:
    """The variables of this process without those of gpu-scheduler, and with these settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPU_SCHEDULER_", "TGPU_", "PYTHON", "COVERAGE_"))
    } | {f"GPU_SCHEDULER_{name.upper()}": value for name, value in settings.items()}
