"""The most frequent commands import no heavy module."""

import subprocess
import sys

import pytest

from gpu_scheduler.cli.main import COMMANDS

HEAVY = {
    *("rich", "msgspec", "yaml", "http", "urllib", "email", "ssl", "socket", "asyncio"),
    *("dataclasses", "inspect", "typing", "shutil", "tempfile", "pathlib", "subprocess"),
    *("difflib", "shlex", "locale", "logging", "random", "datetime"),
}


@pytest.mark.parametrize("name", ["submit", "run", "list", "cancel", "show", "logs", "wait"])
def test_fast_command_loads_nothing_heavy(name: str) -> None:
    command = COMMANDS[name]
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        f"import {command.module} as module\n"
        "from gpu_scheduler.cli.parser import Parser\n"
        f"module.{command.register}(Parser(prog='tgpu x'))\n"
        "print(*sys.modules)"
    )
    # Without site, whose own imports differ from machine to machine.
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    assert HEAVY.intersection(ended.stdout.split()) == set()
