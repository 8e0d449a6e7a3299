"""`jobs.txt` and `llm_config.json`: one job per line comes in, submissions go out.

A line is `priority,script,conda environment,arguments,allowed GPUs`; priorities 0, 1 and 2 are
high, normal and low. The number of GPUs depends on the model that the arguments name: the value in
`llm_config.json`, else an estimate from the size of the model, else the default in the file.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

from gpu_scheduler.client.llm_sizing import estimated_fields
from gpu_scheduler.model.errors import InvalidInput, read_error_detail
from gpu_scheduler.sizing.memory import Use
from gpu_scheduler.sizing.model import can_be_sized, named_model

PRIORITIES = {"0": 1500, "1": 750, "2": 250}
DEFAULT_CONFIG = "llm_config.json"
_MODEL_OPTIONS = ("--llm", "--model")
_COLUMNS = 5
_PYTHONS = ("python", "python3")

Kinds = dict[str, tuple[int, int]]
"""The available GPUs: name to memory in MiB and number of GPUs."""


def read_jobs_file(
    path: str, models: dict[str, Any] | None = None, kinds: Kinds | None = None
) -> list[dict[str, Any]]:
    """Every line of a file as a submission; comments and empty lines are ignored."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {read_error_detail(error)}", file=path) from error
    return [
        read_line(line, path, number, models, kinds)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]


def read_line(
    line: str,
    path: str,
    number: int,
    models: dict[str, Any] | None = None,
    kinds: Kinds | None = None,
    search: str | None = None,
) -> dict[str, Any]:
    """One line as a submission. The arguments may hold commas: the other columns are the first
    three and the last. `search` is the PATH of the job; None means that of this process.
    """
    parts = [part.strip() for part in line.split(",")]
    parts += [""] * (_COLUMNS - len(parts))
    priority, script, conda = parts[:3]
    allowed = parts[-1]
    if priority not in PRIORITIES or not script:
        raise InvalidInput(
            f"'{line.strip()}' is not a job; write "
            "'priority 0-2,script,conda environment,arguments,allowed GPUs'",
            file=path,
            line=number,
        )
    try:
        arguments = shlex.split(",".join(parts[3:-1]))
    except ValueError as error:
        raise InvalidInput(
            f"the arguments cannot be read: {error}", file=path, line=number
        ) from error
    body = script_job(
        script,
        arguments,
        conda=conda,
        allowed=allowed,
        models=models,
        kinds=kinds,
        search=search,
    )
    return body | {"priority": PRIORITIES[priority]}


def script_job(
    script: str,
    arguments: list[str],
    *,
    conda: str = "",
    allowed: str = "",
    models: dict[str, Any] | None = None,
    kinds: Kinds | None = None,
    search: str | None = None,
) -> dict[str, Any]:
    """The submission of a script with its arguments; `search` is the PATH of the job."""
    program = [_python(conda, search), script] if script.endswith(".py") else [script]
    body: dict[str, Any] = {
        "name": script.rpartition("/")[2],
        "command": [*program, *arguments],
        **gpu_fields(arguments, models, kinds),
    }
    if conda:
        body["conda"] = conda
    if allowed:
        body["allowed_gpus"] = allowed
    return body


def _python(conda: str, search: str | None) -> str:
    """The interpreter: some systems have only `python3`, a conda environment has `python`."""
    installed = (name for name in _PYTHONS if conda or shutil.which(name, path=search))
    return next(installed, _PYTHONS[0])


def gpu_fields(
    arguments: list[str], models: dict[str, Any] | None, kinds: Kinds | None = None
) -> dict[str, Any]:
    """GPU fields for the model named in the arguments: from the file, its size or the default."""
    config = models or {}
    name = model_named(arguments)
    listed = config.get("models", {})
    if name in listed:
        return {"gpu_count": float(listed[name])}
    if name and kinds and can_be_sized(name):
        return estimated_fields(named_model(name), Use(), kinds)[0]
    return {"gpu_count": float(config.get("default_requirement", 1.0))}


def model_named(arguments: list[str]) -> str:
    """The model that the arguments of a script name; empty if they name none."""
    for place, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in _MODEL_OPTIONS:
            return value if equals else "".join(arguments[place + 1 : place + 2])
    return ""


def llm_config(path: str | None = None) -> dict[str, Any]:
    """Read the GPUs by model; empty if no path is given and the default file does not exist."""
    file = Path(path or DEFAULT_CONFIG)
    if path is None and not file.is_file():
        return {}
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"is not a model configuration: {error}", file=str(file)) from error
    return models_in(text, str(file))


def models_in(text: str, file: str) -> dict[str, Any]:
    """Parse and check the text of a model configuration."""
    try:
        config = json.loads(text)
        models = config.get("models", {})
        valid = all(_is_amount(gpus) for gpus in models.values())
        if not valid or not _is_amount(config.get("default_requirement", 1.0)):
            raise InvalidInput("GPU counts must be numbers of 0 or more", file=file)
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"is not a model configuration: {error}", file=file) from error
    return dict(config)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 100_000
