"""Parameter sweeps: values of parameters in, one submission for each combination out.

`{lr}` in the command, name, output or variables becomes the value; the job also finds it in
TGPU_PARAM_LR.
"""

from __future__ import annotations

import re
from itertools import product

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_JOBS = 100_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FILLED = ("command", "args", "name", "output", "working_directory")


def combinations(params: list[str], file: str | None) -> list[dict[str, str]]:
    """Every combination of the parameters, and of these with every row of the file."""
    columns: dict[str, list[str]] = {}
    for word in params:
        name, equals, values = word.partition("=")
        if not equals or not _NAME.fullmatch(name) or not values or name in columns:
            raise InvalidRequest(f"--param is '{word}'; write different names as lr=0.1,0.01")
        columns[name] = values.split(",")
    rows = _rows(file) if file else [{}]
    count = len(rows)
    for column in columns.values():
        count *= len(column)
    if count > MOST_JOBS:
        raise InvalidRequest(f"these are {count:,} combinations; at most {MOST_JOBS:,} are allowed")
    clash = columns.keys() & rows[0].keys() if rows else set()
    if clash:
        raise InvalidRequest(f"parameter '{min(clash)}' is in --param and in {file}; use one")
    return [
        row | dict(zip(columns, values, strict=True))
        for row in rows
        for values in product(*columns.values())
    ]


def filled(body: dict[str, Any], values: dict[str, str]) -> dict[str, Any]:
    """A submission with the values in their places."""
    made = dict(body)
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
    return made | {"environment": variables}


def _replaced(value: Any, values: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_replaced(part, values) for part in value]
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), value)


def _rows(file: str) -> list[dict[str, str]]:
    import csv
    from pathlib import Path

    try:
        with Path(file).open(newline="", encoding="utf-8") as stream:
            table = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"cannot be read: {error}", file=file) from error
    if len(table) < 2:
        raise InvalidInput("has no rows; the first line names the parameters", file=file)
    names = [name.strip() for name in table[0]]
    if not all(map(_NAME.fullmatch, names)) or len(set(names)) < len(names):
        raise InvalidInput("the first line must hold different names", file=file, line=1)
    for line, row in enumerate(table[1:], start=2):
        if len(row) != len(names):
            raise InvalidInput(
                f"has {len(row)} values for {len(names)} parameters", file=file, line=line
            )
    return [dict(zip(names, (cell.strip() for cell in row), strict=True)) for row in table[1:]]
