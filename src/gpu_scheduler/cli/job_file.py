"""Job files: YAML or JSON in, the body of a submission out.

Keys are those of the REST API, and short ones as on the command line: gpus, num_gpus, time, memory.
A command that is one string is a line for a shell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from gpu_scheduler.cli.durations import duration, limit, moment, size_mb
from gpu_scheduler.cli.submit_body import dependencies_of, priority_of
from gpu_scheduler.client.fields import JobFields
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, why_unreadable

SHORT = {
    "cmd": "command",
    "gpus": "gpu_count",
    "num_gpus": "gpu_count",
    "gpu_memory": "gpu_memory_mb",
    "cpus": "cpu_cores",
    "memory": "memory_mb",
    "time": "max_runtime_seconds",
    "estimate": "estimate_seconds",
    "tenant": "tenant_id",
    "env": "environment",
    "workdir": "working_directory",
    "chdir": "working_directory",
    "dependency": "dependencies",
    "begin": "begin_at",
    "mig": "mig_profile",
    "grace": "grace_seconds",
}
FIELDS = {"command", *JobFields.__annotations__} - {"capture", "time_limit_seconds"}
KINDS = get_type_hints(JobFields)
"""Of which type a field is; those that may be of several are left to the server."""
WORDS = {bool: "true or false", int: "a whole number", float: "a number such as 2 or 0.5"}
LARGEST = 10_000_000


def read_job_file(file: str, fields: Collection[str] = FIELDS) -> list[dict[str, Any]]:
    """The submissions of a file: one mapping, or a list of them, with these fields."""
    loader = yaml.SafeLoader(_text(file))
    try:
        root = loader.get_single_node()
        if isinstance(root, yaml.SequenceNode):
            return [_job(file, loader, node, fields) for node in root.value]
        if root is None:
            raise InvalidInput("is empty; write for example 'command: python train.py'", file=file)
        return [_job(file, loader, root, fields)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it cannot be read"
        line = mark.line + 1 if mark is not None else None
        raise InvalidInput(f"this is no YAML: {problem}", file=file, line=line) from error
    finally:
        loader.dispose()


def _job(
    file: str, loader: yaml.SafeLoader, node: yaml.Node, fields: Collection[str]
) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise InvalidInput("a job is written as 'name: value' lines", file=file, line=line)
    body: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _scalar(file, key_node)
        field = SHORT.get(key, key)
        if field not in fields:
            near = get_close_matches(key, [*fields, *SHORT], n=1)
            advice = f"did you mean '{near[0]}'?" if near else "docs/reference/cli.md lists them"
            raise InvalidInput(f"there is no field '{key}'; {advice}", file=file, line=line)
        if field in body:
            raise InvalidInput(f"'{key}' stands here again; remove one", file=file, line=line)
        try:
            if field == "environment":
                body[field] = _variables(file, value_node)
            elif field == "command" or (
                field == "args" and isinstance(value_node, yaml.SequenceNode)
            ):
                body[field] = _words(file, key, value_node)
            else:
                body[field] = _value(key, field, _constructed(loader, value_node))
        except InvalidRequest as error:
            raise InvalidInput(str(error), file=file, line=line) from None
    return body


def _words(file: str, key: str, node: yaml.Node) -> list[str]:
    """A command as it stands there: `false` is no boolean, and `1.10` no number."""
    if isinstance(node, yaml.SequenceNode):
        return [_scalar(file, word) for word in node.value]
    line = _scalar(file, node)
    if not line.strip():
        raise InvalidRequest(f"{key} is empty; write what a shell should run")
    return ["/bin/sh", "-c", line]


def _constructed(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """What a node says; `10:30` stays a text, though YAML takes it for a number of base 60."""
    if isinstance(node, yaml.ScalarNode) and ":" in node.value:
        return node.value
    return loader.construct_object(node, deep=True)


def _value(key: str, field: str, value: Any) -> Any:
    """The value as the REST API wants it."""
    if field == "dependencies":
        return _dependencies(key, value if isinstance(value, list) else [value])
    reader = _READERS.get(key) or _READERS.get(field)
    if reader is None or isinstance(value, list):
        return _checked(key, KINDS.get(field), value)
    return reader(str(value))


def _dependencies(key: str, entries: list[Any]) -> list[Any]:
    """Each as on the command line, or as the REST API wants it."""
    found: list[Any] = []
    for entry in entries:
        is_object = isinstance(entry, dict)
        found += [entry] if is_object else dependencies_of([str(entry)], key)
    return found


def _checked(key: str, kind: Any, value: Any) -> Any:
    """The value if it is of this type, so that a wrong one is told with its line."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str and is_number:
        return str(value)
    if kind not in WORDS or (is_number if kind is float else type(value) is kind):
        return value
    raise InvalidRequest(f"{key} is '{value}'; write {WORDS[kind]}")


_READERS: dict[str, Callable[[str], Any]] = {
    "priority": priority_of,
    "time": limit("time"),
    "estimate": duration("estimate"),
    "grace": duration("grace", plain="s"),
    "begin_at": moment("begin_at"),
    "deadline": moment("deadline"),
    "memory": size_mb("memory"),
    "gpu_memory": size_mb("gpu_memory"),
    "array": str,
    "notify": lambda text: [text],
    "allowed_gpus": str,
}
"""Readers of what people write in a short form, by key or by field."""


def _variables(file: str, node: yaml.Node) -> dict[str, str]:
    """Variables as they stand there: `ON: yes` is no boolean, and `1.10` no number."""
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise InvalidInput("variables are written as 'NAME: value'", file=file, line=line)
    return {_scalar(file, name): _scalar(file, value) for name, value in node.value}


def _scalar(file: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise InvalidInput("a single value belongs here", file=file, line=node.start_mark.line + 1)
    return str(node.value)


def _text(file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8") as stream:
            text = stream.read(LARGEST + 1)
    except FileNotFoundError:
        raise InvalidInput("there is no such file; check its name", file=file) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {why_unreadable(error)}", file=file) from error
    if len(text) > LARGEST:
        raise InvalidInput(f"is larger than {LARGEST:,} characters", file=file)
    return text
