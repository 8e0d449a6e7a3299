"""What processes of the old version read or start after the installed files were replaced.

A launcher of the old version can live for months after an upgrade. It has loaded its own modules,
but it starts a watchdog by the name of a module, and copies the programs of a session from files of
the package. The old agent and the old server start modules by name, too. Each of these files has to
stay where the old version looks for it. The list was made by reading the old version and by tracing
its processes (`strace`, and an audit hook in every interpreter).
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.upgrade.installation import NEW_PACKAGE

COPIED_BY_THE_LAUNCHER = (
    "agent/runners/shim.py",
    "agent/runners/terminal_host.py",
    "agent/runners/terminal_use.py",
)
"""Copied as text into the scratch directory of a job, and run there without this package."""
MODULES = {
    "gpu_scheduler.agent.launcher.guard": "the launcher: the watchdog of leases",
    "gpu_scheduler.agent.launcher": "the agent: a launcher in place of one that has died",
    "gpu_scheduler.agent": "the server: an agent in place of one that has died",
    "gpu_scheduler.agent.devices": "`tgpu doctor`: look for GPUs in a process of its own",
    "gpu_scheduler": "`tgpu up --daemon` and the proxy command of `tgpu code`",
}
"""Modules that old processes run by name, and which process runs each."""


def imports_of(file: Path) -> Iterator[str]:
    """The modules that a program imports when it runs, without those for type checkers."""
    for node in ast.walk(_without_type_checking(ast.parse(file.read_text("utf-8")))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _without_type_checking(tree: ast.Module) -> ast.Module:
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return tree


@pytest.mark.parametrize("name", COPIED_BY_THE_LAUNCHER)
def test_session_programs_are_self_contained(name: str) -> None:
    """They are run with -I -S from a copy: an import of this package would fail."""
    for module in imports_of(NEW_PACKAGE / name):
        assert module.partition(".")[0] in sys.stdlib_module_names, module


def test_session_loads_no_file_that_old_launcher_does_not_copy() -> None:
    names = {Path(name).stem for name in COPIED_BY_THE_LAUNCHER}
    for name in COPIED_BY_THE_LAUNCHER:
        tree = ast.parse((NEW_PACKAGE / name).read_text("utf-8"))
        loaded = {
            argument.value
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "load"
            for argument in call.args
            if isinstance(argument, ast.Constant)
        }
        assert loaded <= names, name


@pytest.mark.parametrize("module", MODULES)
def test_module_run_by_old_processes_still_exists(module: str) -> None:
    """Run without arguments it explains itself, or says what is missing; it is found."""
    isolated = ["-I"] if ".launcher" in module else []
    ended = subprocess.run(
        [sys.executable, *isolated, "-m", module, "--wrong"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert "No module named" not in ended.stderr
    assert "cannot be directly executed" not in ended.stderr
    assert ended.returncode != 0


def test_old_agent_can_run_readiness_commands(tmp_path: Path) -> None:
    """By the path of a file, in an interpreter that does not find this package."""
    script = NEW_PACKAGE / "agent" / "check_child.py"
    who = {"pid": 0, "uid": 0, "gid": 0, "user": "root", "workdir": str(tmp_path)}
    ended = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            script,
            json.dumps(who | {"argv": ["sh", "-c", "pwd; exit 3"]}),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (3, f"{tmp_path}\n"), ended.stderr
