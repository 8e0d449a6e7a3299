"""systemd units are valid and run existing commands."""

import shlex
import shutil
import subprocess
from argparse import ArgumentParser
from configparser import RawConfigParser
from pathlib import Path

import pytest

from gpu_scheduler.cli.admin.start import register_agent, register_server, register_up
from gpu_scheduler.server.privileges import KEPT
from gpu_scheduler.settings.sources import load

ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
SERVICES = [
    ROOT / "deploy" / "systemd" / f"gpu-scheduler{part}.service"
    for part in ("", "-server", "-agent")
]
PROGRAM = "/opt/gpu-scheduler/bin/tgpu"
COMMANDS = {"server": register_server, "agent": register_agent, "up": register_up}


def a_unit(path: Path) -> RawConfigParser:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    return unit


def complaints(directory: Path) -> list[str]:
    """What systemd reports about the units of this directory, without their dependencies."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here (Debian: package systemd)")
    paths = sorted(directory.iterdir())
    done = subprocess.run(
        [program, "verify", "--man=no", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout + done.stderr).splitlines()
    return [line for line in said if any(path.name in line for path in paths)]


def copies(directory: Path) -> None:
    """The real units, with an installed program in place of one in /opt."""
    for path in UNITS:
        text = path.read_text().replace(PROGRAM, "/bin/true")
        (directory / path.name).write_text(text)


def test_systemd_accepts_units(tmp_path: Path) -> None:
    copies(tmp_path)
    assert complaints(tmp_path) == []


def test_check_finds_misspelt_unit_line(tmp_path: Path) -> None:
    copies(tmp_path)
    path = tmp_path / "gpu-scheduler-agent.service"
    path.write_text(path.read_text().replace("KillMode=process", "KillMod=process"))
    assert any("KillMod" in line for line in complaints(tmp_path))


@pytest.mark.parametrize("name", ["gpu-scheduler-server", "gpu-scheduler-backup"])
def test_unit_without_jobs_is_hardened(name: str) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here (Debian: package systemd)")
    path = ROOT / "deploy" / "systemd" / f"{name}.service"
    done = subprocess.run(
        [program, "security", "--offline=yes", "--no-pager", "--threshold=40", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_server_unit_keeps_capabilities_that_server_keeps() -> None:
    service = a_unit(ROOT / "deploy" / "systemd" / "gpu-scheduler-server.service")["Service"]
    kept = service["CapabilityBoundingSet"].split()
    assert kept == [f"CAP_{name.upper()}" for name in KEPT]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_service_runs_existing_command_and_leaves_jobs_alone(path: Path) -> None:
    service = a_unit(path)["Service"]
    program, name, *words = shlex.split(service["ExecStart"])
    assert program == PROGRAM
    parser = ArgumentParser(exit_on_error=False)
    COMMANDS[name](parser)
    parser.parse_args(words)
    assert (service["KillMode"], service["Delegate"]) == ("process", "yes")
    assert service["Restart"] == "always"
    waits = load(None, environ={}).settings.scheduler.graceful_shutdown_timeout_s
    assert float(service["TimeoutStopSec"]) > waits
