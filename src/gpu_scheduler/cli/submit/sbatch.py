"""`#SBATCH` lines of a script: in come its text, out go options of `tgpu submit` with their lines.

Options with the same meaning here are translated. An option that changes only the queue of a job or
the recipients of its mail becomes a note. Any other would change what runs, so it becomes a
problem, which rejects the submission unless the user forces it.
"""

from __future__ import annotations

import re
import shlex

from gpu_scheduler.model.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MARKER = "TGPU_SLURM_NAMES"
"""Variable of a job that also gets the variables of Slurm that change from task to task."""

_SHORT = {
    "-A": "--account",
    "-a": "--array",
    "-B": "--extra-node-info",
    "-b": "--begin",
    "-C": "--constraint",
    "-c": "--cpus-per-task",
    "-D": "--chdir",
    "-d": "--dependency",
    "-e": "--error",
    "-F": "--nodefile",
    "-G": "--gpus",
    "-H": "--hold",
    "-i": "--input",
    "-J": "--job-name",
    "-k": "--no-kill",
    "-L": "--licenses",
    "-M": "--clusters",
    "-m": "--distribution",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-O": "--overcommit",
    "-o": "--output",
    "-p": "--partition",
    "-Q": "--quiet",
    "-q": "--qos",
    "-S": "--core-spec",
    "-s": "--oversubscribe",
    "-t": "--time",
    "-v": "--verbose",
    "-W": "--wait",
    "-w": "--nodelist",
    "-x": "--exclude",
}
_FLAGS = {
    *("--hold", "--requeue", "--no-requeue", "--wait", "--quiet", "--verbose", "--parsable"),
    *("--oversubscribe", "--overcommit", "--contiguous", "--spread-job", "--use-min-nodes"),
    *("--reboot", "--test-only", "--ignore-pbs", "--usage", "--help", "--version"),
}
_OPTIONAL_VALUE = {"--exclusive", "--no-kill", "--get-user-env", "--nice"}
"""Options whose value, if any, follows `=`."""
_SAME = {
    *("--job-name", "--array", "--chdir", "--hold", "--wait", "--requeue"),
    "--cpus-per-task",
}
_NO_PARTITIONS = "there are no partitions; choose GPUs with --gpu-model, or nodes with --label"
_NOTES = {
    "--partition": _NO_PARTITIONS,
    "--account": "usage is charged to your tenant; choose another with --tenant",
    "--qos": "choose a priority with --priority low, normal, high or urgent",
    "--mail-type": "--notify end,fail sends you a message",
    "--mail-user": "--notify end,fail sends you a message",
    "--nice": "choose a priority with --priority",
    "--priority": "choose a priority with --priority",
    "--error": "standard error goes to the same file or log as the output",
}
_WITHOUT_EFFECT = {
    *("--comment", "--quiet", "--verbose", "--parsable", "--open-mode", "--get-user-env"),
    *("--profile", "--acctg-freq", "--hint", "--wckey", "--kill-on-invalid-dep", "--propagate"),
    *("--no-kill", "--oversubscribe", "--overcommit", "--contiguous", "--spread-job", "--switches"),
    *(
        "--use-min-nodes",
        "--gpu-bind",
        "--mem-bind",
        "--cpu-bind",
        "--distribution",
        "--delay-boot",
    ),
    *("--cpu-freq", "--gpu-freq", "--ntasks-per-core", "--threads-per-core", "--time-min"),
    *("--ignore-pbs", "--bell", "--no-bell", "--tmp", "--mincpus"),
}
"""They change nothing for one program on one node that gets the CPU cores and GPUs it requests."""
_PROBLEMS = {
    "--constraint": "write '#TGPU --gpu-model A100' or '#TGPU --label NAME=VALUE'",
    "--no-requeue": "preempted jobs are queued again; write '#TGPU --no-preempt'",
    "--deadline": "here a deadline raises the priority and cancels nothing; write '#TGPU "
    "--deadline ...' if you want that",
    "--input": "the standard input of a job is empty; let the script read the file",
    "--reservation": "reservations are for a tenant or user; your jobs use them without an option",
    "--test-only": "use 'tgpu submit --dry-run'",
    "--wrap": "submit the command itself, after '--'",
}
_GANG = "a script runs once, on one node; 'tgpu submit --members {}' starts it {} times as a gang"
_NO_LIMIT = ("0", "-1", "infinite", "unlimited")
_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_SLURM_COMMAND = re.compile(r"(?:^|[;&|(]\s*|\b(?:exec|time|then|do|else)\s+)\s*(srun|sbcast)\s")


class Translated:
    """The options for `tgpu submit`, each with its line, and what could not be translated."""

    def __init__(self) -> None:
        self.options: list[tuple[int, list[str]]] = []
        self.notes: list[tuple[int, str]] = []
        self.problems: list[tuple[int, str]] = []


def has_sbatch(text: str) -> bool:
    """Whether the script may have `#SBATCH` lines; they need not be before its first command."""
    return "#SBATCH" in text


def translate(path: str, text: str, comments: Iterator[tuple[int, str]]) -> Translated:
    """The options of the `#SBATCH` lines among the comments at the start of a script."""
    found = Translated()
    given: dict[str, tuple[int, str]] = {}
    for number, comment in comments:
        match = _DIRECTIVE.match(comment)
        if match is None:
            continue
        try:
            words = shlex.split(match[1], comments=True)
        except ValueError as error:
            raise InvalidInput(str(error), file=path, line=number) from error
        for name, value in _options(words):
            given[name] = number, value  # as with sbatch, the last one counts
    for name, (number, value) in given.items():
        _translate_one(name, value, number, given, found)
    if given:
        _check_commands(text, found)
    return found


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option by its long name, with its value."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--"):
            name, equals, value = word.partition("=")
        else:
            name, equals, value = word[:2], word[2:], word[2:]
        name = _SHORT.get(name, name)
        takes_next = name.startswith("--") and name not in _FLAGS | _OPTIONAL_VALUE
        if not equals and takes_next and left and not left[0].startswith("--"):
            value = left.pop(0)
        yield name, value


def _translate_one(
    name: str, value: str, number: int, given: dict[str, tuple[int, str]], found: Translated
) -> None:
    """Add one option to the options, the notes or the problems."""
    shown = f"{name}={value}" if value else name
    special = _SPECIAL.get(name)
    if name in _SAME:
        found.options.append((number, [name] if name in _FLAGS else [f"{name}={value}"]))
        if name == "--requeue":
            found.options.pop()  # preempted jobs are always queued again
    elif special is not None:
        result = special(value, {key: text for key, (_, text) in given.items()})
        if isinstance(result, str):
            found.problems.append((number, f"{shown}: {result}"))
        elif result:
            found.options.append((number, result))
    elif name in _NOTES:
        is_repeated = name == "--mail-user" and "--mail-type" in given
        is_same_file = name == "--error" and value == given.get("--output", (0, ""))[1]
        if not (is_repeated or is_same_file):
            found.notes.append((number, f"{shown} is not used: {_NOTES[name]}"))
    elif name not in _WITHOUT_EFFECT:
        advice = _PROBLEMS.get(name, "it has no counterpart here; remove it")
        found.problems.append((number, f"{shown}: {advice}"))


def _check_commands(text: str, found: Translated) -> None:
    """A script whose commands need Slurm would fail in its middle, or submit to Slurm."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("#") and (match := _SLURM_COMMAND.search(line)):
            found.problems.append(
                (number, f"{match[1]}: a job has no steps; write the command without it")
            )
            return


# Options whose values are written in another way. A string is the reason why one is rejected.


def _gpus(value: str, _given: dict[str, str]) -> list[str] | str:
    """`2`, `a100:2`."""
    model, _, count = value.rpartition(":")
    if "," in value or not re.fullmatch(r"\d+", count):
        return "write '#TGPU --gpus 2', with '--gpu-model A100' for a model"
    return [f"--gpus={count}", *([f"--gpu-model={model}"] if model else [])]


def _gres(value: str, given: dict[str, str]) -> list[str] | str:
    """`gpu`, `gpu:2`, `gpu:a100:2`, also with `(S:0)` behind."""
    word = re.sub(r"\(.*\)$", "", value).removeprefix("gres/").removeprefix("gres:")
    if not re.fullmatch(r"gpu(:[\w.-]+){0,2}", word):
        return "only gpu is known; for a part of a GPU write '#TGPU --gpus 0.5'"
    rest = word.removeprefix("gpu").removeprefix(":")
    if not re.search(r"(^|:)\d+$", rest):
        rest = f"{rest}:1" if rest else "1"
    return _gpus(rest, given)


def _one(what: str) -> Callable[[str, dict[str, str]], list[str] | str]:
    """An option of which only 1 means the same here."""

    def read(value: str, _given: dict[str, str]) -> list[str] | str:
        least, _, most = value.partition("-")
        if {least, most or least} == {"1"}:
            return []
        count = most or least
        return _GANG.format(count, count) if count.isdigit() else f"write {what}=1"

    return read


def _time(value: str, _: dict[str, str]) -> list[str] | str:
    if value.lower() in _NO_LIMIT:
        return "every job has a time limit; write one, or remove the line for the default"
    if re.fullmatch(r"\d+:\d+", value):
        minutes, seconds = value.split(":")
        return [f"--time={minutes}m{seconds}s"]
    return [f"--time={value}"]


def _memory(value: str, _: dict[str, str]) -> list[str] | str:
    if not value.strip("0"):
        return "it means all memory of a node; write a size, or --exclusive"
    return [f"--memory={value}"]


def _memory_for_each(count_options: tuple[str, ...]) -> Callable[..., list[str] | str]:
    """Memory for each CPU core or GPU: the total."""

    def read(value: str, given: dict[str, str]) -> list[str] | str:
        count = next((given[name] for name in count_options if name in given), "1")
        number = re.search(r"(?:^|:)(\d+)(?:\(.*\))?$", count)
        size = re.fullmatch(r"(\d+)([KMGT]?)B?", value, re.IGNORECASE)
        if size is None or "--mem" in given:
            return "write the total as --mem"
        return [f"--memory={int(size[1]) * int(number[1] if number else 1)}{size[2] or 'M'}"]

    return read


def _begin(value: str, _: dict[str, str]) -> list[str] | str:
    if match := re.fullmatch(r"now\+(\d+)([a-z]*)", value):
        return [f"--begin=+{match[1]}{match[2] or 's'}"]
    return [f"--begin={value}"]


def _dependency(value: str, _: dict[str, str]) -> list[str] | str:
    known = r"(?:afterok|afterany|afternotok)(?::\d+)+"
    if not re.fullmatch(rf"{known}(?:,{known})*", value):
        return "write afterok, afterany or afternotok with job ids of this scheduler"
    return [f"--dependency={value}"]


def _signal(value: str, _: dict[str, str]) -> list[str] | str:
    match = re.fullmatch(r"(?:[BR]+:)?(\w+)(?:@(\d+))?", value)
    if match is None:
        return "write for example USR1@120"
    return [f"--signal={match[1]}@{match[2] or 60}"]


def _export(value: str, _: dict[str, str]) -> list[str] | str:
    return "write ALL, NONE or A,B=c" if value.upper() == "NIL" else [f"--export={value}"]


def _output(value: str, _: dict[str, str]) -> list[str] | str:
    unknown = re.search(r"%(?![%jAax])\S?\w?", value)
    if unknown:
        return f"{unknown[0]} is not known in file names; use %j, %A, %a, %x or %%"
    return [f"--output={value}"]


def _exclusive(value: str, _: dict[str, str]) -> list[str] | str:
    return "only --exclusive alone is known" if value else ["--exclusive"]


def _nodelist(value: str, _: dict[str, str]) -> list[str] | str:
    if "," in value or "[" in value:
        return "it requests all of these nodes; '#TGPU --nodelist' allows one of them"
    return [f"--nodelist={value}"]


def _exclude(value: str, _: dict[str, str]) -> list[str] | str:
    return "write the names of the nodes one by one" if "[" in value else [f"--exclude={value}"]


_SPECIAL: dict[str, Callable[[str, dict[str, str]], list[str] | str]] = {
    "--gpus": _gpus,
    "--gpus-per-node": _gpus,
    "--gpus-per-task": _gpus,
    "--gres": _gres,
    "--nodes": _one("--nodes"),
    "--ntasks": _one("--ntasks"),
    "--ntasks-per-node": _one("--ntasks-per-node"),
    "--ntasks-per-gpu": _one("--ntasks-per-gpu"),
    "--time": _time,
    "--mem": _memory,
    "--mem-per-cpu": _memory_for_each(("--cpus-per-task",)),
    "--mem-per-gpu": _memory_for_each(("--gpus", "--gres", "--gpus-per-node", "--gpus-per-task")),
    "--begin": _begin,
    "--dependency": _dependency,
    "--signal": _signal,
    "--export": _export,
    "--output": _output,
    "--exclusive": _exclusive,
    "--nodelist": _nodelist,
    "--exclude": _exclude,
}


def slurm_variables(body: dict[str, object]) -> dict[str, str]:
    """The variables of Slurm that are the same for all tasks; the agent adds the others."""
    values = {
        MARKER: "1",
        "SLURM_JOB_NAME": body.get("name"),
        "SLURM_SUBMIT_DIR": body.get("working_directory"),
        "SLURM_CPUS_PER_TASK": body.get("cpu_cores"),
        "SLURM_GPUS": body.get("gpu_count"),
    }
    return {name: str(value) for name, value in values.items() if value}
