"""The entry point: command lookup, fast start-up, exit codes."""

import io
import json
import os
import runpy
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import pytest

from gpu_scheduler import __version__
from gpu_scheduler.cli import main as cli
from gpu_scheduler.cli.text.tables import aligned, cut, print_json
from gpu_scheduler.model.errors import CallerError, SchedulerError

Install = Callable[[Callable[[Namespace], int]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make `tgpu try --number N` run the given function."""

    def install(run: Callable[[Namespace], int]) -> None:
        module = ModuleType("a_command")

        def register(parser: ArgumentParser) -> None:
            parser.add_argument("--number", type=int, default=0)

        module.__dict__.update(register=register, run=run)
        monkeypatch.setitem(sys.modules, "gpu_scheduler.cli.a_command", module)
        monkeypatch.setitem(cli.COMMANDS, "try", cli.Command("try it", "a_command"))

    return install


def raising(error: BaseException) -> Callable[[Namespace], int]:
    def run(args: Namespace) -> int:
        raise error

    return run


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"tgpu {__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert (f"  {name} " in shown and command.help in shown) == (name not in cli.COMPATIBLE)
    grouped = [name for names in cli.GROUPS.values() for name in names.split()]
    assert sorted([*grouped, *cli.COMPATIBLE]) == sorted(cli.COMMANDS)
    assert shown.index("jobs:") < shown.index("submit ") < shown.index("interactive work:")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("stop", "cancel"), ("kill", "cancel"), ("ps", "list"), ("queue", "list")),
        *(("squeue", "list"), ("sbatch", "submit"), ("tail", "logs"), ("requeue", "retry")),
        *(("sprio", "explain"), ("seff", "show"), ("sattach", "attach"), ("sstat", "top")),
    ],
)
def test_command_of_another_tool_is_recognised(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word, "1"]) == 2
    told = f"unknown command '{word}'; did you mean 'tgpu {meant}'?"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("show", "job", "3"), "show"),
        (("show", "nodes"), "nodes"),
        (("show", "res"), "show"),
        (("show", "reservation"), "reserve"),
        (("requeue", "3"), "retry"),
        (("hold", "3"), "hold"),
    ],
)
def test_scontrol_is_recognised_by_its_command(
    words: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["scontrol", *words]) == 2
    told = f"unknown command 'scontrol {words[0]}'; did you mean 'tgpu {meant}'?"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("list", "--me"), "'tgpu list' and 'tgpu history' show your own jobs"),
        (("list", "--start"), "'tgpu explain' shows when a job should start"),
        (("list", "--running"), "write --state running"),
        (("history", "--failed"), "write --state failed"),
        (("history", "--starttime", "now-7days"), "did you mean '--since'?"),
        (("history", "-S", "2026-11-01"), "did you mean '--since'?"),
        (("list", "-o", "%i"), "did you mean '--columns'?"),
        (("gpus", "--running"), "'tgpu gpus --help' lists the options"),
    ],
)
def test_option_of_another_scheduler_is_recognised(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    assert told in capsys.readouterr().err


def test_suggested_commands_exist_and_hide_none() -> None:
    meant = {*cli.MEANT.values(), *cli.SCONTROL.values()}
    assert meant - {"--version"} <= {*cli.COMMANDS}
    assert not {*cli.MEANT} & {*cli.COMMANDS, *cli.ALIASES}


def test_help_goes_to_stderr_without_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("usage: tgpu")


def test_unknown_option_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--nonsense", "simulate"])
    assert end.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


def test_typo_gets_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulat"]) == 2
    message = "tgpu: error: unknown command 'simulat'; did you mean 'simulate'?\n"
    assert capsys.readouterr().err == message


def test_unrelated_word_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xyzzy"]) == 2
    message = "tgpu: error: unknown command 'xyzzy'; 'tgpu --help' lists the commands\n"
    assert capsys.readouterr().err == message


def test_command_gets_arguments_and_returns_exit_code(install: Install) -> None:
    install(lambda args: args.number)
    assert cli.main(["try", "--number", "7"]) == 7


def test_arguments_default_to_sys_argv(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(lambda args: args.number)
    monkeypatch.setattr(sys, "argv", ["tgpu", "try", "--number", "3"])
    assert cli.main() == 3


def test_help_of_command_names_it(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(lambda args: 0)
    with pytest.raises(SystemExit):
        cli.main(["try", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: tgpu try")
    assert "Try it." in shown


@pytest.mark.parametrize("kind", [SchedulerError, CallerError])
def test_scheduler_error_is_one_line_with_its_exit_code(
    install: Install, capsys: pytest.CaptureFixture[str], kind: type[SchedulerError]
) -> None:
    install(raising(kind("no such trace; name a file that is there")))
    assert cli.main(["try"]) == kind.exit_code
    assert capsys.readouterr().err == "tgpu: error: no such trace; name a file that is there\n"


def test_programming_error_is_not_hidden(install: Install) -> None:
    install(raising(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["try"])


def test_interrupt_ends_quietly_with_130(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(raising(KeyboardInterrupt()))
    assert cli.main(["try"]) == 130
    assert capsys.readouterr().err == ""


def test_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    # Unbuffered, argparse itself would meet the closed pipe, and swallow the error.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_pipe_closed_during_command_returns_141(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded: list[bool] = []
    monkeypatch.setattr(cli, "_discard_output", lambda: discarded.append(True))
    install(raising(BrokenPipeError()))
    assert cli.main(["try"]) == 141
    assert discarded == [True]


def test_package_runs_as_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_scheduler", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("gpu_scheduler", run_name="__main__")
    assert end.value.code == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_of_table_can_be_loaded(name: str) -> None:
    command = cli.COMMANDS[name]
    module = import_module(command.module)
    getattr(module, command.register)(ArgumentParser())
    assert callable(getattr(module, command.run))


def test_startup_loads_nothing_heavy() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "import gpu_scheduler.cli.main\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    loaded = ended.stdout.split()
    ours = [name for name in loaded if name.startswith("gpu_scheduler")]
    assert ours == ["gpu_scheduler", "gpu_scheduler.cli", "gpu_scheduler.cli.main"]
    assert {"argparse", "difflib", "rich", "json"}.isdisjoint(loaded)


def run_as_a_shell_would(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `$TGPU ...` in a shell, buffered as it is without a terminal."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    program = f"{sys.executable} -m gpu_scheduler"
    return subprocess.run(
        ["/bin/sh", "-c", script],
        env=inherited | {"TGPU": program} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_failed_output_is_one_line_error() -> None:
    ended = run_as_a_shell_would("$TGPU config sample >/dev/full")
    told = "tgpu: error: the output cannot be written: no space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, told)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(closed: str) -> None:
    ended = run_as_a_shell_would(f"$TGPU config sample {closed}")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_closed_standard_descriptors_are_not_reused() -> None:
    script = "from gpu_scheduler.cli.main import main; main(['completions', 'bash']); "
    script += "import os, sys; os._exit(os.open('/', os.O_RDONLY))"
    ended = run_as_a_shell_would(f'{sys.executable} -c "{script}" <&- >&- 2>&-')
    assert ended.returncode > 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_unencodable_character_does_not_end_command(
    install: Install, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))

    def run(args: Namespace) -> int:
        sys.stdout.write("naïve 日本\n")
        print_json({"name": "日本"})
        return 0

    install(run)
    assert cli.main(["try"]) == 0
    first, *rest = written.getvalue().decode(encoding).splitlines()
    assert first.endswith(" ??")
    assert json.loads("\n".join(rest)) == {"name": "日本"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["help"], "'tgpu <command> --help' shows the options of one."),
        (["help", "submit"], "usage: tgpu submit"),
        (["help", "ls"], "List your pending and running jobs."),
    ],
    ids=["all", "one", "alias"],
)
def test_help_is_also_a_command(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert cli.main(words) == 0
    assert told in capsys.readouterr().out


def test_help_for_unknown_command_suggests_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "submitt"]) == 2
    assert "unknown command 'submitt'; did you mean 'submit'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["node", "config", "db"])
def test_missing_action_error_lists_actions(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("tgpu: error: action is missing; write one of ")
    assert "WORD" not in told


def test_columns_align_for_wide_characters() -> None:
    lines = aligned(("NAME", "ST"), [["日本", "R"], ["e\u0301", "PD"], ["ab", "F"]], width=80)
    assert lines[1:] == ["日本  R", "e\u0301     PD", "ab    F"]
    assert [cut("日本語", width) for width in (4, 5, 6)] == ["日…", "日本…", "日本語"]
