"""Expand a parameter sweep into one submission for each combination of values.

`{lr}` in the command, name, output or variables becomes the value; the job also has it in
TGPU_PARAM_LR, and the name of its sweep in TGPU_SWEEP.
"""

from __future__ import annotations

import os
import re
from itertools import product
from typing import Any

from gpu_scheduler.model.errors import (
    InvalidInput,
    InvalidRequest,
    read_error_detail,
)

MOST_JOBS = 100_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SWEEP = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}", re.ASCII)
_RESERVED = ("last", "all", "retry", "cancel")
_FILLED = ("command", "args", "name", "output", "working_directory")


def combinations(params: list[str], file: str | None) -> list[dict[str, str]]:
    """Every combination of the parameters, and of these with every row of the file."""
    columns: dict[str, list[str]] = {}
    for word in params:
        name, equals, values = word.partition("=")
        if not equals or not _NAME.fullmatch(name) or not values:
            raise InvalidRequest(f"--param is '{word}'; write a name and values, as lr=0.1,0.01")
        if name in columns:
            raise InvalidRequest(
                f"--param {name} is given twice; write all of its values at once, as "
                f"{name}={','.join(columns[name])},{values}"
            )
        _check_variable(name, columns)
        columns[name] = values.split(",")
    rows = _rows(file) if file else [{}]
    count = len(rows)
    for column in columns.values():
        count *= len(column)
    if count > MOST_JOBS:
        raise InvalidRequest(f"{count:,} combinations; at most {MOST_JOBS:,} are allowed")
    clash = columns.keys() & rows[0].keys() if rows else set()
    if clash:
        raise InvalidRequest(f"parameter '{min(clash)}' is in --param and in {file}; use one")
    for name in rows[0] if rows else ():
        _check_variable(name, columns)
    return [
        row | dict(zip(columns, values, strict=True))
        for row in rows
        for values in product(*columns.values())
    ]


def _check_variable(name: str, others: dict[str, list[str]]) -> None:
    """Reject parameters that would share one variable."""
    for other in others:
        if other != name and other.upper() == name.upper():
            raise InvalidRequest(
                f"parameters '{other}' and '{name}' would share the variable "
                f"TGPU_PARAM_{name.upper()}; rename one"
            )


def sweep_name(given: str | None, job_name: str) -> str:
    """The given name, unless it could mean a job; or a new unique name."""
    if given is None:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", job_name.partition(".")[0]).strip("-.")
        made = f"{stem or 'sweep'}-{os.urandom(3).hex()}"[-64:]
        return made if _SWEEP.fullmatch(made) else f"sweep-{made}"[:64]
    if not _SWEEP.fullmatch(given) or given in _RESERVED or re.match(r"job-\d", given):
        raise InvalidRequest(
            f"--sweep is '{given}'; write a name of letters, digits, dots and dashes that "
            "starts with a letter and is not a job id"
        )
    return given


def filled(body: dict[str, Any], values: dict[str, str], sweep: str = "") -> dict[str, Any]:
    """A submission with the values filled in."""
    made = dict(body)
    made["params"] = values
    for field in _FILLED:
        if field in made:
            made[field] = _replaced(made[field], values)
    if made.get("name") == body.get("name"):
        label = ",".join(f"{name}={value}" for name, value in values.items())
        made["name"] = f"{body.get('name', '')} {label}".strip()[:256]
    variables = {
        name: _replaced(text, values) for name, text in body.get("environment", {}).items()
    }
    variables |= {f"TGPU_PARAM_{name.upper()}": value for name, value in values.items()}
    if sweep:
        made["sweep"] = variables["TGPU_SWEEP"] = sweep
    return made | {"environment": variables}


def unfilled(body: dict[str, Any], values: dict[str, str]) -> list[str]:
    """Names in braces that are no parameters."""
    words = body.get("command", []) + body.get("args", []) + [body.get("output", "")]
    found = [name for word in words for name in re.findall(r"(?<![${])\{([A-Za-z_]\w*)\}", word)]
    return [name for name in dict.fromkeys(found) if name not in values]


def _replaced(value: Any, values: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_replaced(part, values) for part in value]
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), value)


def _rows(file: str) -> list[dict[str, str]]:
    import csv
    from pathlib import Path

    from gpu_scheduler.cli.text.tables import counted

    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as stream:
            table = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"cannot be read: {read_error_detail(error)}", file=file) from error
    if len(table) < 2:
        raise InvalidInput("has no rows; the first line must name the parameters", file=file)
    names = [name.strip() for name in table[0]]
    if not all(map(_NAME.fullmatch, names)) or len(set(names)) < len(names):
        raise InvalidInput("the first line must have unique parameter names", file=file, line=1)
    for line, row in enumerate(table[1:], start=2):
        if len(row) != len(names):
            raise InvalidInput(
                f"has {counted(len(row), 'value')} for {counted(len(names), 'parameter')}; write "
                "one for each, and put a value that contains a comma in double quotes",
                file=file,
                line=line,
            )
    return [dict(zip(names, (cell.strip() for cell in row), strict=True)) for row in table[1:]]
