"""The options of `submit` and `run`, which `#TGPU` lines in scripts may also have.

Every default is None: an option on the command line overrides a line in a script, so the code must
know which options were given.
"""

from __future__ import annotations

from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.submit.body import dependencies_of
from gpu_scheduler.cli.text.values import (
    comma_list,
    duration,
    limit,
    moment,
    number,
    positive,
    seconds,
    size_mb,
    text,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable

EXAMPLES = """\
examples:
  tgpu submit -G 2 -- python train.py --epochs 10
  tgpu submit -G 0.5 -t 2h -J small --priority high -- python eval.py
  tgpu submit job.yaml                     a job file
  tgpu submit train.sh                     a script, with '#TGPU --gpus 2' lines
  tgpu submit -G 1 --param lr=0.1,0.01 --param bs=32,64 -- python train.py {lr} {bs}
  tgpu submit -a 0-99%10 -d afterok:12 -- ./task.sh

A time is 90m, 2h, 1d12h, 02:30:00 or 1-12:00:00; a plain number is minutes. A size is 40G or 512M.
A priority is low, normal, high, urgent, 0 to 10 (5 is normal), or a number up to 10000."""
LLM_HELP = "as many GPUs as this model needs: qwen2.5-7b[,context=32k,...]"
LLM_CONFIG_HELP = "file with GPUs per model; default llm_config.json, if it exists"


def add_options(parser: ArgumentParser) -> None:
    """Add all options, in the groups that the help shows."""
    parser.usage = "%(prog)s [options] [--] command ... | script ... | job.yaml"
    parser.epilog = EXAMPLES
    _add_resources(parser)

    add = Options(parser.add_argument_group("time"))
    add.value("-t --time", limit, "TIME", "time limit; the job is stopped at it")
    add.value("--estimate", duration, "TIME", "expected run time")
    add.value("--begin", moment, "WHEN", "do not start before 18:00, +2h, ...")
    add.value("--deadline", moment, "WHEN", "when it should have ended")
    kinds = "afterok:12, afterany:3:4, afterok:last"
    add.value("-d --dependency", _dependency, "KIND:ID", kinds, action="append")
    add.flag("-H --hold", "hold it until it is released", default=None)
    early = "send a signal before the time limit or a preemption: USR1@120"
    add.value("--signal", text, "SIG@SECONDS", early)
    add.value("--grace", seconds, "TIME", "time between TERM and KILL")
    add.value("--retries", whole, "N", "retry up to N times if it fails")
    codes = "retry only after these exit codes, such as 1,137"
    add.value("--retry-exit-codes", text, "LIST", codes)
    add.flag("--requeue-on-node-loss", "requeue it if its node is lost", default=None)

    add = Options(parser.add_argument_group("scheduling"))
    add.value("-J --name --job-name", None, "NAME", "name; default: the name of the program")
    add.value("-p --priority", text, "P", "priority; see below")
    add.value("-T --tenant --tenant-id", text, "T", "tenant, by id or name")
    add.choice("--pool", ("online", "batch"), "pool of GPUs")
    add.flag("--interactive", "interactive job", default=None)
    add.flag("--allow-idle", "its GPUs may be idle", default=None)
    add.flag("--no-preempt", "never preempt it for other jobs", default=None)
    events = "start, end, fail, preempted, idle, memory, all, none; such as end,fail:slack"
    add.value("--notify", text, "WHAT[:WHO]", events, action="append")

    add = Options(parser.add_argument_group("environment"))
    add.value("-D --chdir", text, "DIR", "working directory; default: the current one")
    add.value("-e --env", None, "NAME=VALUE", "set a variable", action="append")
    add.value("--export", text, "WHAT", "variables to pass on: ALL (default), NONE or A,B=c")
    add.value("--conda --conda-env", text, "ENV", "run in this conda environment")
    runners = ("process", "terminal", "tmux", "screen", "container")
    add.choice("--runner", runners, "default: process")
    add.value("--image", text, "IMAGE", "run in this container image")
    mount = "mount a directory into the container"
    add.value("--mount", text, "SRC:DST[:ro]", mount, action="append")
    add.flag("--snapshot", "run a copy of the current code", default=None)
    add.value("--snapshot-limit", size_mb, "SIZE", "maximum size of the copy; default 512M")
    output = "write the output to this file instead of the log; %%j is the job number"
    add.value("-o --output", text, "FILE", output)

    add = Options(parser.add_argument_group("arrays and sweeps"))
    add.value("-a --array", text, "TASKS", "array tasks, such as 0-99 or 0-99%%10 (ten at once)")
    add.value("--param", None, "NAME=A,B,...", "one job for each combination", action="append")
    add.value("--param-file", text, "FILE", "one job for each row of a CSV file")
    add.value("--sweep", text, "NAME", "name of the sweep; default: a new unique name")
    add.flag("--dry-run", "show and check it without submitting")
    add.flag("--force", "submit it although #SBATCH lines or the program cannot work", default=None)


def _add_resources(parser: ArgumentParser) -> None:
    add = Options(parser.add_argument_group("resources"))
    add.value("-G --gpus", number, "N", "GPUs, such as 2, 0.5 or 1.5")
    add.value("--gpu-memory", size_mb, "SIZE", "of all its GPUs")
    add.value("--gpu-memory-per-gpu", size_mb, "SIZE", "of each of its GPUs")
    add.value("--gpu-model", text, "NAME", "allowed models, such as A100 or A100,H100")
    add.value("--mig --mig-profile", text, "PROFILE", "a MIG slice, such as 3g.40gb")
    add.value("--allowed-gpus", text, "LIST", "only these devices, such as 0-3 or 0,2")
    add.flag("--exclusive", "use a whole node alone", default=None)
    cores = "CPU cores; default 1 for a job without GPUs"
    add.value("-c -n --cpus --cpus-per-task", number, "N", cores)
    add.value("-m --memory --mem", size_mb, "SIZE", "host memory")
    add.value("--label", None, "NAME=VALUE", "only nodes with this label", action="append")
    add.value("-w --nodelist", _names, "NODE,...", "only these nodes")
    add.value("-x --exclude", _names, "NODE,...", "all nodes except these")
    add.choice("--topology", ("any", "prefer_island", "require_island"), "NVLink islands")
    add.flag("--contiguous", "adjacent device numbers", default=None)
    add.value("-N --members", positive, "N", "a gang of N members")
    add.value("--min-members", whole, "N", "start with at least N members")
    add.flag("--same-rack", "all members in one rack", default=None)
    add.value("--llm", text, "MODEL", LLM_HELP)
    add.value("--llm-config", text, "FILE", LLM_CONFIG_HELP)
    add.value("--max-processes", whole, "N", "maximum number of processes")


def add_terminal_options(parser: ArgumentParser) -> None:
    """Add the options of commands with a terminal: `shell`, `run --pty`, `jupyter`, `code`."""
    add = Options(parser.add_argument_group("terminal"))
    idle = "end the job after this time without input, output and CPU use"
    add.value("--idle", duration, "TIME", idle)
    broken = "keep the job or end it when your connection breaks; default: keep"
    add.choice("--on-disconnect", ("keep", "end"), broken)


def _dependency(option: str) -> Callable[[str], str]:
    """A parser of dependencies, checked here so that an error names the line of a script."""

    def read(words: str) -> str:
        dependencies_of([text(option)(words)])
        return words

    return read


def _names(option: str) -> Callable[[str], list[str]]:
    """A parser of node names that are separated by commas."""

    def read(words: str) -> list[str]:
        return comma_list(text(option)(words))

    return read
