"""Texts made from the command table: the reference page and shell completion scripts.

`python -m gpu_scheduler.cli.reference` prints docs/reference/cli.md; a test compares the two.
"""

from __future__ import annotations

import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator

from gpu_scheduler.cli.main import ALIASES, COMMANDS, PROGRAM, parser_for

INTRODUCTION = """\
# Command line

<!-- Generated from the code by `python -m gpu_scheduler.cli.reference`; edit the code instead. -->

`tgpu`, `gpu-scheduler` and `gpu-cli` are the same program. `tgpu COMMAND --help` or `tgpu help
COMMAND` shows the options of a command; `tgpu completions bash|zsh|fish` prints a completion
script.

## Common to all commands

**Server.** `--server`, else `$TGPU_SERVER`: `unix:/path`, the path of a state directory, or
`http://host:port`. Without either, the command uses your own server, or else the server of the
machine (`/run/gpu-scheduler`). A socket that belongs neither to root nor to you is not trusted.

**Job ids** are written as

| written | meaning | accepted by |
|---|---|---|
| `12`, `job-12` | that job | all commands |
| `last`, `@~1`, `@~2` | your last job, the one before it, ... | all commands |
| `1-3,7` | several jobs | all but those for one job: `logs`, `attach`, `shell --job` |
| `all` | all your pending and running jobs | the same |
| `12_4`, `last_4` | a task of an array | not `hold`, `release`, `retry`, `resubmit`, `update` |
| `12_[1-3,7]` | several tasks | `cancel` |

**Durations** are written as `90s`, `90m`, `2h`, `1d`, `1d12h`, `1.5h`, `2 hours`, `02:30:00`,
`1-12:00:00` (a day and a half), `1-12`. A plain number is minutes for limits and estimates (as in
Slurm), and seconds for `--timeout`, `--grace` and `--interval`. `10:30` is rejected because it is
ambiguous, and so is a limit of 0: without `--time` the limit is the server's default, 7 days unless
configured otherwise.
**Times** are written as `2026-01-31T18:00` (local time unless an offset is given), `18:00` or `9am`
(the next one), `tomorrow`, `tomorrow 9am`, `fri 18:00`, `+2h`, `in 2 hours`, `now`.
**Sizes** are `512M`, `40G`, `1.5T`; a plain number is MiB.

**Priorities**: `low` (250), `normal` (750), `high` (1500), `urgent` (2500); 0 to 10 with 5 as
normal; or a number up to 10000. Larger is more urgent. (`tgpu add` and jobs.txt have their own
scale: 0 high, 1 normal, 2 low.)

**Empty values**, such as those of unset variables, are rejected by `submit`, `run`, `up`, `server`,
`agent` and similar commands, and as `--server` by every command. Only the `--name` of a job may be
empty; the job then has the name of its program.

**Output.** Tables are aligned, and on a terminal coloured (not with `NO_COLOR`). Where there is no
room, the last column is cut to the width, then names are cut so that they still differ, and the
least important columns are left out. In a pipe nothing is cut, unless the variable `COLUMNS` names
a width, as `watch` does. `--tabs` separates complete cells by tabs, for programs; `--json` prints
the server's answer. `--columns` chooses the columns of `list` and `history`.
States: PD pending, H held, SC scheduled, R running, CD completed, F failed, TO failed at its time
limit, CA cancelled, PR preempted.

**JSON.** Nearly every command has `--json`. Errors are still one line on stderr, with the same exit
code. `logs --json` prints an object for each line, such as `{"job_id": "job-12", "line": "epoch
1"}`, with `-f` as the lines arrive. `run --json` does not change the job's output, prints no
messages, and ends with one line on stderr: the job as `show --json` prints it, unless you detached
before its end. `up --json` prints the contents of `server.json`, with `--daemon` also the `log`;
`down --json` prints the `pid` and `state` of the stopped server. These commands have no `--json`:
`shell`, `attach`, `jupyter` and `code`, which connect a terminal; `server` and `agent`, which run
in the foreground and write a log (JSON with `logging.structured`); `completions`, which prints a
script; `demo` and `test`.

**Exit codes**: see [exit codes](exit-codes.md).
"""
DETAILS = {
    "submit": """\
The words after `--` are the command; a single `cmd="..."` is run by a shell. Without `--`, the
first word that is not an option may also name a file. A file that starts with `#!` is a script: its
text is sent, the words after it are its arguments, and `#TGPU --gpus 2` lines before its first line
of code are options, which options on the command line override. `#SBATCH` lines are read as well,
below both; those that would change what runs are errors unless you add `--force`
([coming from Slurm](../howto/from-slurm.md#your-scripts)). A file that ends in `.yaml`, `.yml` or
`.json` is a job file, and one that ends in `.txt` a list of jobs in the format of jobs.txt.
Anything else is a command. A directory is rejected. So are, without `--force`, a file that the
kernel cannot start, a script that the working directory does not have (unless the job depends on
another, which may write it), and a command line in quotes: write it without the quotes, or as
`sh -c 'CMD > FILE'`. Another program that is not found on this machine may be on the nodes: `tgpu`
prints a warning. Write options of `tgpu` before the script: an option after it goes to the script,
and `tgpu` prints a note.

A `--deadline` raises the priority of a job and does not stop it; `tgpu` warns if the deadline is
nearer than `--estimate`, or else `--time`.

In `--output`, `%j` becomes the number of the job (`12`, or `12_4` for a task of an array), `%A` the
number of the array, `%a` the number of the task (0 without one), `%x` the name, and `%%` a percent
sign; other marks are left unchanged.

A **job file** has the fields of the REST API, and short ones: `gpus` or `num_gpus`, `time`,
`memory`, `gpu_memory`, `cpus`, `tenant`, `env`, `dependency`, `begin`, `estimate`, `grace`. A
`command` that is one string is run by a shell. A list of such objects is several jobs, of which all
or none are submitted. A `dependency` may name your last jobs, as in `afterok:last`, also on the
command line and in `#TGPU` lines. In text fields, `command` and `env`, a value is always text:
`2026-01-01`, `yes` and `1.10` are not a date, boolean or number. `env: {A: }` sets an empty
variable; `null` and `~` are rejected there unless quoted, and types that JSON does not have, such
as `!!set`, `!!binary` and `!!python/...`, are rejected everywhere.

```yaml
command: python train.py
num_gpus: 2
priority: 5
time: 2h
```

A **sweep** is one job for each combination of `--param` values and rows of `--param-file`. `{lr}`
in the command, name, output file or variables becomes the value, and the job has it in
`TGPU_PARAM_LR`. `--dry-run` shows the table.

The job runs in the directory, environment and umask of the submitter, so an active venv, conda or
uv environment is active in the job. `CUDA_VISIBLE_DEVICES` and similar variables are not passed on:
the scheduler chooses the GPUs. `--export NONE` passes no variables on, `--export A,B=c` only those;
`HOME`, `USER` and `PATH` are then those of a new login. `--conda ENV` runs the command in that
environment, with the conda of the submitter's shell or `PATH`, else one in its home (`~/miniconda3`
and similar). If the site restricts which scripts may run, `ENV` must be one of the site's
environments (`security.conda_roots`).
""",
    "logs": """\
`--follow` continues with every further attempt of a job that is retried or was preempted, until the
job has ended; messages on stderr say where attempts end and start. With `--attempt` it shows only
that attempt.
""",
    "run": """\
Takes the options of [submit](#tgpu-submit). The output of the job goes to stdout, messages to
stderr. Ctrl-C asks whether to cancel the job, to detach, or to go on watching; without a terminal
it cancels the job. The output of a cancelled job is shown until it has ended; a second Ctrl-C does
not wait for that. With `--pty` the job gets a terminal of its own, as with [shell](#tgpu-shell).

The standard input of a job is empty: data that is piped into `tgpu run` does not reach it, and a
message on stderr says so. Let the job read a file (`sh -c 'CMD < FILE'`), or use `--pty`, with
which it gets what you type or pipe in as on a terminal. `tgpu shell --job` passes a pipe unchanged
to a program in a running job.
""",
    "shell": """\
Takes the options of [submit](#tgpu-submit); see [shells, notebooks and
editors](../howto/interactive.md). Exits with the exit code of the shell. `--job` opens another
shell (or runs the command) inside a job that runs on a terminal, with the GPUs and limits of that
job.
""",
    "jupyter": """\
Takes the options of [submit](#tgpu-submit). The address goes to stdout, messages to stderr. Ctrl-C
asks whether to cancel the job or to detach; without a terminal it cancels the job.
""",
    "code": """\
Takes the options of [submit](#tgpu-submit). With the `code` program on the PATH it opens a tunnel
from inside the job; else, or with `--ssh`, it prints an entry for `~/.ssh/config` that opens a
shell in the job. It always starts a new job; `tgpu shell --job` opens a shell in a running one.
""",
    "top": """\
In a pipe it prints once, as with `--once`. For its keys see [watching GPUs and
queue](../howto/top.md).
""",
    "attach": """\
Attaches to the terminal of a job that `tgpu shell`, `run --pty` or `--runner terminal` has started,
or enters its tmux or screen session. `Enter ~ d` detaches, and the job keeps running. A terminal
can be reached on any node, a session of tmux or screen only on its own node.
""",
    "retry": """\
Of an array, the failed tasks are queued again, and completed ones never. Cancelled tasks stay
cancelled, and a message says how many; `--cancelled` retries them too. If all tasks have ended and
none failed, as after `tgpu cancel 12`, the cancelled ones are retried without it.
""",
    "resubmit": """\
Submits jobs that have ended, also completed ones, again as new jobs: with the same request,
command, directory and environment, and without dependencies, begin time and deadline. Only for your
own jobs.
""",
    "usage": """\
Every attempt counts with what it holds, up to now if it runs, as in [report](#tgpu-report). Without
a period it is the total since the start. There, and in `current` (this month in UTC), `CANCELLED`
includes jobs that were cancelled before they ran, and lost GPU-hours are shown; other periods are
those of `tgpu report`. Usage does not decay with age here, as it does in fair share.
""",
    "report": """\
Counts runs: one for each attempt, a running one up to now ([what is
counted](../howto/reports-and-invoices.md#what-is-counted)). A job that was cancelled before it ran
is not counted; [usage](#tgpu-usage) without a period counts it.
""",
    "audit": "The newest entry comes last, as in a log.\n",
    "simulate": "See [simulate](simulate.md).\n",
    "config": "For the settings themselves see [settings](settings.md).\n",
    "add": """\
The columns of jobs.txt as options. The number of GPUs comes from the model that the arguments of
the script name (`--llm NAME`) and from `llm_config.json`.
""",
    "up": "`tgpu start` is the same.\n",
}


def reference_page() -> str:
    """The page, in Markdown."""
    lines = [INTRODUCTION, "## Commands", "", "| command | what it does |", "|---|---|"]
    lines += [f"| [`{name}`](#{PROGRAM}-{name}) | {row.help} |" for name, row in COMMANDS.items()]
    others = ", ".join(f"`{alias}` for `{name}`" for alias, name in ALIASES.items())
    lines += ["", f"Other names: {others}.", ""]
    for name in COMMANDS:
        lines += _section(name)
    return "\n".join(lines)


def _section(name: str) -> Iterator[str]:
    yield f"## {PROGRAM} {name}"
    yield ""
    row = COMMANDS[name]
    yield f"{row.help[:1].upper()}{row.help[1:]}."
    yield ""
    if name in DETAILS:
        yield DETAILS[name]
    if name == "simulate":
        return
    _, parser = parser_for(name, row)
    shared = _submit_options() if name in ("run", "shell", "jupyter", "code") else set()
    rows = [
        f"| {_flags(action)} | {_about(action)} |"
        for action in parser._actions
        if action.dest != "help" and not shared.intersection(action.option_strings)
    ]
    if rows:
        yield from ("| option | meaning |", "|---|---|", *rows, "")


def _submit_options() -> set[str]:
    _, parser = parser_for("submit", COMMANDS["submit"])
    return {
        flag
        for action in parser._actions
        for flag in action.option_strings
        if flag not in ("-q", "--server")
    }


def _flags(action: Action) -> str:
    if not action.option_strings:
        word = action.metavar or "|".join(map(str, action.choices or [action.dest]))
        text = str(word) + (" ..." if action.nargs == "+" else "")
        return f"`{f'[{text}]' if action.nargs == '?' else text}`".replace("|", "\\|")
    flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
    value = action.metavar or (action.choices and "|".join(map(str, action.choices)))
    return flags if action.nargs == 0 or not value else f"{flags} `{value}`".replace("|", "\\|")


def _about(action: Action) -> str:
    return (action.help or "").replace("%%", "%").replace("|", "\\|")


# Completion scripts

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = (PROGRAM, "gpu-scheduler", "gpu-cli")


def register_completions(parser: ArgumentParser) -> None:
    """Add the options of `tgpu completions`."""
    parser.add_argument("shell", choices=SHELLS, help='for bash: eval "$(tgpu completions bash)"')


def run_completions(args: Namespace) -> int:
    """Print the script."""
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return 0


def completion_words(name: str) -> list[tuple[str, str]]:
    """The options and choices of a command, with their help."""
    _, parser = parser_for(name, COMMANDS[name])
    found = []
    for action in parser._actions:
        about = (action.help or "").replace("%%", "%")
        found += [(option, about) for option in action.option_strings]
        if action.choices and not action.option_strings:
            found += [(str(choice), about) for choice in action.choices]
    return found


def _bash() -> str:
    cases = [
        f'    {name}) words="{" ".join(word for word, _ in completion_words(name))}" ;;'
        for name in COMMANDS
    ]
    return "\n".join(
        [
            "_tgpu() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" words=""',
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    words="{" ".join(COMMANDS)}"',
            '  else case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac; fi",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            f"complete -o default -F _tgpu {' '.join(PROGRAMS)}",
            "",
        ]
    )


def _zsh() -> str:
    commands = [(name, row.help) for name, row in COMMANDS.items()]
    cases = [f"      {name}) found=({_zsh_words(completion_words(name))}) ;;" for name in COMMANDS]
    return "\n".join(
        [
            f"#compdef {' '.join(PROGRAMS)}",
            "_tgpu() {",
            "  local -a found",
            "  if (( CURRENT == 2 )); then",
            f"    found=({_zsh_words(commands)})",
            "  else",
            '    case "$words[2]" in',
            *cases,
            "    esac",
            "    _files",
            "  fi",
            "  _describe word found",
            "}",
            f"compdef _tgpu {' '.join(PROGRAMS)}",
            "",
        ]
    )


def _zsh_words(words: list[tuple[str, str]]) -> str:
    # In zsh a colon ends the word.
    return " ".join(f"'{word}:{_quoted(about).replace(':', ' ')}'" for word, about in words)


def _fish() -> str:
    lines = []
    for program in PROGRAMS:
        lines.append(f"complete -c {program} -f -n __fish_use_subcommand")
        for name, row in COMMANDS.items():
            lines.append(
                f"complete -c {program} -n __fish_use_subcommand -a {name} -d '{_quoted(row.help)}'"
            )
            inside = f"'__fish_seen_subcommand_from {name}'"
            for word, about in completion_words(name):
                if word.startswith("--"):
                    option = f"-l {word[2:]}"
                elif word.startswith("-"):
                    option = f"-s {word[1:]}"
                else:
                    option = f"-a {word}"
                lines.append(f"complete -c {program} -n {inside} {option} -d '{_quoted(about)}'")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "").replace("'", "")


if __name__ == "__main__":
    sys.stdout.write(reference_page())
