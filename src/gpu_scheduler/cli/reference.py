"""The reference page of the command line, made from the commands themselves.

`python -m gpu_scheduler.cli.reference` prints what stands in docs/reference/cli.md; a test
compares the two.
"""

from __future__ import annotations

import sys
from argparse import Action
from collections.abc import Iterator

from gpu_scheduler.cli.main import ALIASES, COMMANDS, PROGRAM, parser_for

INTRODUCTION = """\
# Command line

<!-- Made from the code by `python -m gpu_scheduler.cli.reference`; edit the code instead. -->

`tgpu`, `gpu-scheduler` and `gpu-cli` are the same program. `tgpu COMMAND --help` or `tgpu help
COMMAND` explains one command, `tgpu completions bash|zsh|fish` prints a script that completes them
all.

## What all commands share

**Which server.** `--server`, else `$TGPU_SERVER`: `unix:/path`, the path of a state directory, or
`http://host:port`. Else your own server, then that of the machine (`/run/gpu-scheduler`). A socket
that belongs neither to root nor to you is not trusted.

**Jobs** are named as

| written | means | taken by |
|---|---|---|
| `12`, `job-12` | that job | all commands |
| `last`, `@~1`, `@~2` | your last job, the one before it, ... | all commands |
| `1-3,7` | several | all but those about one job: `logs`, `attach`, `shell --job` |
| `all` | all your jobs that wait or run | the same |
| `12_4`, `last_4` | a task of an array | all but `hold`, `release`, `retry` and `update` |
| `12_[1-3,7]` | several tasks | `cancel` |

**Times** are written as `90s`, `90m`, `2h`, `1d`, `1d12h`, `1.5h`, `2 hours`, `02:30:00`,
`1-12:00:00` (a day and a half), `1-12`. A plain number is minutes for limits and estimates (as with
Slurm), and seconds for `--timeout`, `--grace` and `--interval`. `10:30` is refused, as it could
mean two things, and so is a limit of 0: without `--time` it is the server's default, 7 days unless
set otherwise.
**Moments** are written as `2026-01-31T18:00` (your own clock unless an offset is given), `18:00` or
`9am` (the next one), `tomorrow`, `tomorrow 9am`, `fri 18:00`, `+2h`, `in 2 hours`, `now`.
**Sizes** are `512M`, `40G`, `1.5T`; a plain number is MiB.

**Priorities**: `low` (250), `normal` (750), `high` (1500), `urgent` (2500); 0 to 10 with 5 as
normal; or a number up to 10000. Larger is more urgent. (`tgpu add` and jobs.txt have their own
scale: 0 high, 1 normal, 2 low.)

**Empty words**, as a variable that is not set gives them, are refused by `submit`, `run`, `up`,
`server`, `agent` and their like, and as `--server` by every command; only the `--name` of a job may
be empty, and then is that of the program.

**Output.** On a terminal, tables are aligned and coloured (not with `NO_COLOR`) and the last column
is cut to the width; on a narrow one names are cut, too, and the columns that matter least are left
out. In a pipe all cells come whole, separated by tabs. `--json` prints what the server said.
States: PD pending, SC scheduled, R running, CD completed, F failed, TO failed by its time limit, CA
cancelled, PR preempted.

**JSON.** Nearly every command has `--json`. Errors stay a line on stderr, and the exit code is the
same. `logs --json` prints an object for each line, as `{"job_id": "job-12", "line": "epoch 1"}`,
with `-f` as it comes. `run --json` leaves the job's output as it is, says nothing else, and ends
with one line on stderr: the job as `show --json` has it, unless you left it before its end.
`up --json` prints what stands in `server.json`, with `--daemon` also the `log`; `down --json` the
`pid` and `state` of what it stopped. Without `--json` are `shell`, `attach`, `jupyter` and `code`,
which hand a terminal over to you, `server` and `agent`, which stay in the foreground and write a
log (of JSON with `logging.structured`), `completions`, which prints a script, and `demo` and
`test`, which are for people.

**Exit codes** stand in [exit codes](exit-codes.md).
"""
MORE = {
    "submit": """\
What follows `--` is the command, as it stands; a single `cmd="..."` is a line for a shell. Without
`--`, the first word that is no option may also name a file. One that begins with `#!` is a script:
its text is sent, the words after it are its arguments, and `#TGPU --gpus 2` lines before its first
line of code are options; those of the command line win. One that ends in `.yaml`, `.yml` or `.json`
is a job file, one that ends in `.txt` a list of jobs in the form of jobs.txt. Anything else is a
command; a directory is refused. Options of `tgpu` stand before the script: one behind it goes to
it, and a note says so.

A `--deadline` makes a job more urgent and does not end it; one that is nearer than `--estimate`, or
else `--time`, is warned of.

In `--output`, `%j` becomes the number of the job (`12`, or `12_4` for a task of an array), `%A`
that of the array, `%a` that of the task (0 without one), `%x` the name, and `%%` a percent sign;
other marks stay as they are.

A **job file** has the fields of the REST API, and short ones: `gpus` or `num_gpus`, `time`,
`memory`, `gpu_memory`, `cpus`, `tenant`, `env`, `dependency`, `begin`, `estimate`, `grace`. A
`command` that is one string is a line for a shell. A list of such objects is many jobs, submitted
all or none. A `dependency` may name your last jobs, as in `afterok:last`; it does so too on the
command line and in `#TGPU` lines. Where a text belongs, and in `command` and `env`, a value is what
stands there: `2026-01-01`, `yes` and `1.10` are no date, boolean or number. `env: {A: }` sets an
empty variable; `null` and `~` are refused there unless they stand in quotes, and so is everywhere
what JSON has no words for, such as `!!set`, `!!binary` and `!!python/...`.

```yaml
command: python train.py
num_gpus: 2
priority: 5
time: 2h
```

A **sweep** is one job for each combination of `--param` values and rows of `--param-file`. `{lr}`
in the command, name, output file or variables becomes the value, and the job finds it in
`TGPU_PARAM_LR`. `--dry-run` shows the table.

The job runs in the directory, environment and umask of the submitter, so an active venv, conda or
uv environment is there too. `CUDA_VISIBLE_DEVICES` and its kin are left behind: the scheduler
chooses the GPUs. `--export NONE` takes nothing along, `--export A,B=c` only that; `HOME`, `USER`
and `PATH` are then those of a fresh login. `--conda ENV` runs the command in that environment, with
the conda of the submitter's shell or `PATH`, else one in its home (`~/miniconda3` and the like).
Where the site says which scripts may run, `ENV` is one of the site's (`security.conda_roots`).
""",
    "logs": """\
`--follow` goes on with every further attempt of a job that is tried again, or that made room for
another, and ends when the job has ended for good; lines on stderr say where attempts end and begin.
With `--attempt` it ends with that attempt.
""",
    "run": """\
Takes the options of [submit](#tgpu-submit). The output of the job goes to stdout, notes to stderr.
Ctrl-C asks whether to cancel the job, to leave it running, or to go on watching; without a terminal
it cancels it. What a cancelled job still writes is shown until it has ended; another Ctrl-C does
not wait for that. With `--pty` the job gets a terminal of its own, as with [shell](#tgpu-shell).

The standard input of a job is empty: what is piped into `tgpu run` does not reach it, and a line on
stderr says so. Let it read a file (`sh -c 'CMD < FILE'`), or use `--pty`, with which it gets what
is typed or piped in as on a terminal. Into a job that is there already, `tgpu shell --job` brings a
pipe byte by byte.
""",
    "shell": """\
Takes the options of [submit](#tgpu-submit); [shells, notebooks and
editors](../howto/interactive.md) shows it at work. Ends with the exit code of the shell. `--job`
opens one more shell (or runs the command) inside a job that runs on a terminal, with that job's
GPUs and limits.
""",
    "jupyter": """\
Takes the options of [submit](#tgpu-submit). The address goes to stdout, notes to stderr. Ctrl-C
asks whether to end the job or to leave it running; without a terminal it ends it.
""",
    "code": """\
Takes the options of [submit](#tgpu-submit). With the `code` program on the PATH it opens a tunnel
from inside the job; else, or with `--ssh`, it prints lines for `~/.ssh/config` that lead into it.
The job is a new one; `tgpu shell --job` opens a shell in one that is there.
""",
    "top": """\
In a pipe it prints one picture, as with `--once`. Its keys: [watching GPUs and
queue](../howto/top.md).
""",
    "attach": """\
Comes to the terminal of a job that `tgpu shell`, `run --pty` or `--runner terminal` has started, or
enters its tmux or screen session. `Enter ~ d` leaves a terminal, and the job goes on. A terminal is
reached on any node, a session of tmux or screen on its own one.
""",
    "retry": """\
Of an array the tasks that failed wait again, and those that completed never. Tasks that were
cancelled stay so, and a word says how many; `--cancelled` takes them, too. If all have ended and
none failed, as after `tgpu cancel 12`, the cancelled ones wait again without it.
""",
    "usage": """\
Every attempt counts for what it holds, up to now if it runs, as in [report](#tgpu-report). Without
a period it is all since the beginning. There, and in `current` (this month of UTC), `CANCELLED`
also counts jobs that were cancelled before they ran, and lost GPU-hours are told; other periods are
those of `tgpu report`. Nothing fades with age here, as it does in the fair share.
""",
    "report": """\
Counts runs: one for each attempt, what runs up to now ([what is
counted](../howto/reports-and-invoices.md#what-is-counted)). A job that was cancelled before it ran
is none; [usage](#tgpu-usage) without a period counts it.
""",
    "audit": "The newest comes last, as in a log.\n",
    "simulate": "Has [a page of its own](simulate.md).\n",
    "config": "What settings there are stands in [settings](settings.md).\n",
    "add": """\
The form of jobs.txt as options. How many GPUs a script needs comes from the model that its
arguments name (`--llm NAME`) and from `llm_config.json`.
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
    if name in MORE:
        yield MORE[name]
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


if __name__ == "__main__":
    sys.stdout.write(reference_page())
