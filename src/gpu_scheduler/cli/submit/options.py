"""The options of `submit` and `run`, which `#TGPU` lines in scripts may also have.

Every default is None: an option on the command line overrides a line in a script, so the code must
know which options were given.
"""

from __future__ import annotations

from gpu_scheduler.cli.submit.body import dependencies_of
from gpu_scheduler.cli.text.values import duration, limit, moment, number, size_mb, text, whole

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


def add_options(parser: ArgumentParser) -> None:
    """Add all options, in the groups that the help shows."""
    parser.usage = "%(prog)s [options] [--] command ... | script ... | job.yaml"
    parser.epilog = EXAMPLES
    _add_resources(parser)
    _add_time(parser)
    _add_scheduling(parser)
    _add_environment(parser)
    _add_sweep(parser)


def add_terminal_options(parser: ArgumentParser) -> None:
    """Add the options of commands with a terminal: `shell`, `run --pty`, `jupyter`, `code`."""
    group = parser.add_argument_group("terminal")
    group.add_argument(
        "--idle",
        type=duration("--idle"),
        metavar="TIME",
        help="end the job after this time without input, output and CPU use",
    )
    group.add_argument(
        "--on-disconnect",
        choices=("keep", "end"),
        default=None,
        help="keep the job or end it when your connection breaks; default: keep",
    )


def _add_resources(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("resources").add_argument
    add("-G", "--gpus", type=number("--gpus"), metavar="N", help="GPUs, such as 2, 0.5 or 1.5")
    add("--gpu-memory", type=size_mb("--gpu-memory"), metavar="SIZE", help="of all its GPUs")
    add(
        "--gpu-memory-per-gpu",
        type=size_mb("--gpu-memory-per-gpu"),
        metavar="SIZE",
        help="of each of its GPUs",
    )
    add(
        "--gpu-model",
        type=text("--gpu-model"),
        metavar="NAME",
        help="allowed models, such as A100 or A100,H100",
    )
    add(
        "--mig",
        "--mig-profile",
        dest="mig",
        type=text("--mig"),
        metavar="PROFILE",
        help="a MIG slice, such as 3g.40gb",
    )
    add(
        "--allowed-gpus",
        type=text("--allowed-gpus"),
        metavar="LIST",
        help="only these devices, such as 0-3 or 0,2",
    )
    add("--exclusive", action="store_true", default=None, help="use a whole node alone")
    add(
        "-c",
        "-n",
        "--cpus",
        "--cpus-per-task",
        dest="cpus",
        type=number("--cpus"),
        metavar="N",
        help="CPU cores; default 1 for a job without GPUs",
    )
    add(
        "-m",
        "--memory",
        "--mem",
        dest="memory",
        type=size_mb("--memory"),
        metavar="SIZE",
        help="host memory",
    )
    add("--label", action="append", metavar="NAME=VALUE", help="only nodes with this label")
    add("-w", "--nodelist", type=_names("--nodelist"), metavar="NODE,...", help="only these nodes")
    add(
        "-x",
        "--exclude",
        type=_names("--exclude"),
        metavar="NODE,...",
        help="all nodes except these",
    )
    add("--topology", choices=("any", "prefer_island", "require_island"), help="NVLink islands")
    add("--contiguous", action="store_true", default=None, help="adjacent device numbers")
    add(
        "-N", "--members", type=whole("--members", least=1), metavar="N", help="a gang of N members"
    )
    add(
        "--min-members",
        type=whole("--min-members"),
        metavar="N",
        help="start with at least N members",
    )
    add("--same-rack", action="store_true", default=None, help="all members in one rack")
    add(
        "--llm",
        type=text("--llm"),
        metavar="MODEL",
        help="as many GPUs as this model needs: qwen2.5-7b[,context=32k,...]",
    )
    add(
        "--llm-config",
        type=text("--llm-config"),
        metavar="FILE",
        help="file with GPUs per model; default llm_config.json, if it exists",
    )
    add(
        "--max-processes",
        type=whole("--max-processes"),
        metavar="N",
        help="maximum number of processes",
    )


def _add_time(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("time").add_argument
    add(
        "-t",
        "--time",
        type=limit("--time"),
        metavar="TIME",
        help="time limit; the job is stopped at it",
    )
    add("--estimate", type=duration("--estimate"), metavar="TIME", help="expected run time")
    add(
        "--begin",
        type=moment("--begin"),
        metavar="WHEN",
        help="do not start before 18:00, +2h, ...",
    )
    add("--deadline", type=moment("--deadline"), metavar="WHEN", help="when it should have ended")
    add(
        "-d",
        "--dependency",
        action="append",
        type=_dependency,
        metavar="KIND:ID",
        help="afterok:12, afterany:3:4, afterok:last",
    )
    add("-H", "--hold", action="store_true", default=None, help="hold it until it is released")
    add(
        "--signal",
        type=text("--signal"),
        metavar="SIG@SECONDS",
        help="send a signal before the time limit or a preemption: USR1@120",
    )
    add(
        "--grace",
        type=duration("--grace", plain="s"),
        metavar="TIME",
        help="time between TERM and KILL",
    )
    add("--retries", type=whole("--retries"), metavar="N", help="retry up to N times if it fails")
    add(
        "--retry-exit-codes",
        type=text("--retry-exit-codes"),
        metavar="LIST",
        help="retry only after these exit codes, such as 1,137",
    )
    add(
        "--requeue-on-node-loss",
        action="store_true",
        default=None,
        help="requeue it if its node is lost",
    )


def _add_scheduling(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("scheduling").add_argument
    add(
        *("-J", "--name", "--job-name"),
        dest="name",
        metavar="NAME",
        help="name; default: the name of the program",
    )
    add("-p", "--priority", type=text("--priority"), metavar="P", help="priority; see below")
    add(
        "-T",
        "--tenant",
        "--tenant-id",
        dest="tenant",
        type=text("--tenant"),
        metavar="T",
        help="tenant, by id or name",
    )
    add("--pool", choices=("online", "batch"), help="pool of GPUs")
    add("--interactive", action="store_true", default=None, help="interactive job")
    add("--allow-idle", action="store_true", default=None, help="its GPUs may be idle")
    add("--no-preempt", action="store_true", default=None, help="never preempt it for other jobs")
    add(
        "--notify",
        action="append",
        type=text("--notify"),
        metavar="WHAT[:WHO]",
        help="start, end, fail, preempted, idle, memory, all, none; such as end,fail:slack",
    )


def _add_environment(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("environment").add_argument
    add(
        "-D",
        "--chdir",
        type=text("--chdir"),
        metavar="DIR",
        help="working directory; default: the current one",
    )
    add("-e", "--env", action="append", metavar="NAME=VALUE", help="set a variable")
    add(
        "--export",
        type=text("--export"),
        metavar="WHAT",
        help="variables to pass on: ALL (default), NONE or A,B=c",
    )
    add(
        "--conda",
        "--conda-env",
        dest="conda",
        type=text("--conda"),
        metavar="ENV",
        help="run in this conda environment",
    )
    add(
        "--runner",
        choices=("process", "terminal", "tmux", "screen", "container"),
        help="default: process",
    )
    add("--image", type=text("--image"), metavar="IMAGE", help="run in this container image")
    add(
        "--mount",
        action="append",
        type=text("--mount"),
        metavar="SRC:DST[:ro]",
        help="mount a directory into the container",
    )
    add("--snapshot", action="store_true", default=None, help="run a copy of the current code")
    add(
        "--snapshot-limit",
        type=size_mb("--snapshot-limit"),
        metavar="SIZE",
        help="maximum size of the copy; default 512M",
    )
    add(
        "-o",
        "--output",
        type=text("--output"),
        metavar="FILE",
        help="write the output to this file instead of the log; %%j is the job number",
    )


def _add_sweep(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("arrays and sweeps").add_argument
    add(
        "-a",
        "--array",
        type=text("--array"),
        metavar="TASKS",
        help="array tasks, such as 0-99 or 0-99%%10 (ten at once)",
    )
    add("--param", action="append", metavar="NAME=A,B,...", help="one job for each combination")
    add(
        "--param-file",
        type=text("--param-file"),
        metavar="FILE",
        help="one job for each row of a CSV file",
    )
    add(
        "--sweep",
        type=text("--sweep"),
        metavar="NAME",
        help="name of the sweep; default: a new unique name",
    )
    add("--dry-run", action="store_true", help="show and check it without submitting")


def _dependency(words: str) -> str:
    """The dependencies as written, checked here so that an error names the line of a script."""
    dependencies_of([text("--dependency")(words)])
    return words


def _names(option: str) -> Callable[[str], list[str]]:
    """A parser of node names that are separated by commas."""

    def read(words: str) -> list[str]:
        return [name.strip() for name in text(option)(words).split(",") if name.strip()]

    return read
