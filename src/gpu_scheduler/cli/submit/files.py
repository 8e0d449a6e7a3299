"""Job files (YAML or JSON) and scripts with `#TGPU` lines, as bodies of submissions and options.

Keys are those of the REST API, and short ones as on the command line: gpus, num_gpus, time, memory.
A command that is one string is run by a shell. A YAML date is taken as text; other types that JSON
does not have are rejected.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from yaml.reader import ReaderError

from gpu_scheduler.cli.submit.body import check_variable, dependencies_of, priority_of
from gpu_scheduler.cli.text.values import duration, limit, moment, size_mb
from gpu_scheduler.client.fields import JobFields
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, read_error_detail

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import Namespace

    from gpu_scheduler.cli.parser import Parser

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
"""The type of each field; the server checks fields that may have several types."""
EXPECTED = {bool: "true or false", int: "a whole number", float: "a number such as 2 or 0.5"}
LARGEST = 10_000_000
_OF_YAML = "tag:yaml.org,2002:"
_TEXT = f"{_OF_YAML}str"
_NULL = f"{_OF_YAML}null"
_AS_TEXT = {f"{_OF_YAML}{name}" for name in ("timestamp", "value")}
_PLAIN = {f"{_OF_YAML}{name}" for name in ("int", "float", "bool")}
_KNOWN = {_TEXT, _NULL, *_PLAIN, *(f"{_OF_YAML}{name}" for name in ("seq", "map", "merge"))}
"""Types that JSON has too, and the merging of mappings."""


def read_job_file(file: str, fields: Collection[str] = FIELDS) -> list[dict[str, Any]]:
    """The submissions in a file: one mapping, or a list of them, with these fields."""
    text = _text(file)
    try:
        loader = yaml.SafeLoader(text)
    except ReaderError as error:
        line = text[: error.position].count("\n") + 1
        problem = f"has an invalid character (#x{error.character:04x}); remove it"
        raise InvalidInput(problem, file=file, line=line) from error
    try:
        root = loader.get_single_node()
        _check_tags(file, root)
        if isinstance(root, yaml.SequenceNode):
            return [_job(file, loader, node, fields) for node in root.value]
        if root is None:
            raise InvalidInput("is empty; write for example 'command: python train.py'", file=file)
        return [_job(file, loader, root, fields)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be read"
        at = mark.line + 1 if mark is not None else None
        raise InvalidInput(f"invalid YAML: {problem}", file=file, line=at) from error
    except RecursionError:
        raise InvalidInput("is nested too deeply", file=file) from None
    finally:
        loader.dispose()


def _check_tags(file: str, root: yaml.Node | None) -> None:
    """Make dates text, and reject types that JSON does not have.

    An alias (`*name`) is the same node as its anchor, so a document may contain itself.
    """
    left = [] if root is None else [root]
    checked: set[yaml.Node] = set()
    while left:
        node = left.pop()
        if node in checked:
            continue
        checked.add(node)
        if isinstance(node, yaml.ScalarNode) and node.tag in _AS_TEXT:
            node.tag = _TEXT
        if node.tag not in _KNOWN:
            kind = node.tag.replace(_OF_YAML, "!!")
            raise InvalidInput(
                f"has a value of type {kind}, which no field has; write a text, a number, a list "
                "or 'name: value' lines",
                file=file,
                line=node.start_mark.line + 1,
            )
        if isinstance(node, yaml.MappingNode):
            left += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


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
            raise InvalidInput(_unknown(key, field, fields), file=file, line=line)
        if field in body:
            raise InvalidInput(f"'{key}' is given twice; remove one", file=file, line=line)
        try:
            if field == "environment":
                if not isinstance(value_node, yaml.MappingNode):
                    raise InvalidInput(
                        "variables are written as 'NAME: value'",
                        file=file,
                        line=value_node.start_mark.line + 1,
                    )
                body[field] = {
                    _scalar(file, name): _variable(file, name, value)
                    for name, value in value_node.value
                }
            elif field == "command" or (
                field == "args" and isinstance(value_node, yaml.SequenceNode)
            ):
                body[field] = _words(file, key, value_node)
            else:
                body[field] = _value(key, field, _constructed(loader, value_node, key, field))
        except InvalidRequest as error:
            raise InvalidInput(str(error), file=file, line=line) from None
    return body


def _unknown(key: str, field: str, fields: Collection[str]) -> str:
    """The error for an unknown field; a service file may not have fields of jobs."""
    if field in ("max_runtime_seconds", "max_runtime_minutes"):
        return f"'{key}' is for jobs; a replica has no time limit, leave it out"
    if field == "retries":
        return f"'{key}' is for jobs; use 'restart' for a service"
    if field in FIELDS:
        return f"'{key}' is for jobs, not for services; leave it out"
    known = [*fields, *(short for short, long in SHORT.items() if long in fields)]
    near = get_close_matches(key, known, n=1)
    advice = f"did you mean '{near[0]}'?" if near else "docs/reference/cli.md lists them"
    if field == "jobs":
        advice = "write several jobs as a list, each beginning with '- command: ...'"
    return f"unknown field '{key}'; {advice}"


def _words(file: str, key: str, node: yaml.Node) -> list[str]:
    """A command, every word as text: `false` is not a boolean, and `1.10` not a number."""
    if isinstance(node, yaml.SequenceNode):
        return [_scalar(file, word) for word in node.value]
    line = _scalar(file, node)
    if not line.strip():
        raise InvalidRequest(f"{key} is empty; write a shell command")
    return ["/bin/sh", "-c", line]


def _constructed(loader: yaml.SafeLoader, node: yaml.Node, key: str, field: str) -> Any:
    """The value of a node; `10:30` stays text, which YAML would read as a base-60 number.

    In a text field `010` and `1.10` stay text, too.
    """
    if isinstance(node, yaml.ScalarNode):
        is_text = KINDS.get(field) is str and node.tag in _PLAIN
        if is_text or ":" in node.value:
            return node.value
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, KeyError):
        kind = node.tag.replace(_OF_YAML, "")
        raise InvalidRequest(
            f"{key} has a value that is not a valid {kind}; remove the '!!'"
        ) from None


def _value(key: str, field: str, value: Any) -> Any:
    """The value as the REST API expects it; its type is checked so that an error names the line."""
    if field == "dependencies":
        # As on the command line, or as objects of the REST API.
        dependencies: list[Any] = []
        for entry in value if isinstance(value, list) else [value]:
            is_object = isinstance(entry, dict)
            dependencies += [entry] if is_object else dependencies_of([str(entry)], key)
        return dependencies
    parse = _PARSERS.get(key) or _PARSERS.get(field)
    if parse is not None and not isinstance(value, list):
        return parse(str(value))
    kind = KINDS.get(field)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_number = is_number and math.isfinite(value)
    if kind not in EXPECTED or (is_number if kind is float else type(value) is kind):
        return value
    raise InvalidRequest(f"{key} is '{value}'; write {EXPECTED[kind]}")


_PARSERS: dict[str, Callable[[str], Any]] = {
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
"""Parsers of short forms, by key or by field."""


def _variable(file: str, name: yaml.Node, value: yaml.Node) -> str:
    """The value as text: `ON: yes` is not a boolean, and `1.10` not a number.

    It may be empty; `null` and `~` are ambiguous and rejected.
    """
    variable = _scalar(file, name)
    check_variable(variable, "env")
    if value.tag == _NULL and value.value:
        raise InvalidInput(
            f"variable {variable} is {value.value}, which could be text or empty; write "
            f"{variable}: '{value.value}' or {variable}: ''",
            file=file,
            line=value.start_mark.line + 1,
        )
    return _scalar(file, value)


def _scalar(file: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise InvalidInput("expected a single value", file=file, line=node.start_mark.line + 1)
    return str(node.value)


def _text(file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8-sig") as stream:
            text = stream.read(LARGEST + 1)
    except FileNotFoundError:
        raise InvalidInput("file not found; check its name", file=file) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {read_error_detail(error)}", file=file) from error
    if len(text) > LARGEST:
        raise InvalidInput(f"is larger than {LARGEST:,} characters", file=file)
    return text


# Scripts

LARGEST_SCRIPT = 500_000
_DIRECTIVE = re.compile(r"#\s?TGPU\s+(.*)")
_FOREIGN = re.compile(r"#(?:PBS|BSUB)(?=\s)|#\s*GFLOW(?=\s)")


def script_text(path: str) -> str | None:
    """The text of a script; None if the file is not a script (does not start with `#!`)."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            start = stream.read(len(BOM_UTF8) + 2).removeprefix(BOM_UTF8)
            if not start.startswith(b"#!"):
                return None
            raw = start + stream.read(LARGEST_SCRIPT)
    except OSError:
        return None
    if len(raw) > LARGEST_SCRIPT:
        raise InvalidInput(f"is larger than {LARGEST_SCRIPT:,} bytes; submit a command", file=path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("is not UTF-8 text; submit it as a command", file=path) from error


def comments(text: str) -> Iterator[tuple[int, str]]:
    """The lines before the first line of code, with their line numbers."""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return
        yield number, stripped


def directives(text: str) -> list[tuple[int, str]]:
    """The `#TGPU` lines before the first line of code, with their line numbers."""
    matches = ((number, _DIRECTIVE.match(line)) for number, line in comments(text))
    return [(number, match[1]) for number, match in matches if match]


def foreign_directives(text: str) -> dict[str, int]:
    """The first line of each kind of directive for PBS, LSF or gflow, which nothing here reads."""
    first_lines: dict[str, int] = {}
    for number, line in comments(text):
        if match := _FOREIGN.match(line):
            first_lines.setdefault(match[0], number)
    return first_lines


def read_directives(parser: Parser, path: str, text: str) -> Namespace:
    """The options in the `#TGPU` lines; an error names the file and the line."""
    import shlex

    lines = []
    for number, line in directives(text):
        try:
            lines.append((number, shlex.split(line, comments=True)))
        except ValueError as error:
            raise InvalidInput(f"{error}", file=path, line=number) from error
    return read_options(parser, path, lines)


def read_options(parser: Parser, path: str, lines: Iterable[tuple[int, list[str]]]) -> Namespace:
    """The options in these lines of a script; an error names the file and the line."""
    args = parser.read([])
    for number, words in lines:
        parser.place = f"{path}, line {number}"
        try:
            args = parser.read(words, into=args)
        except InvalidRequest as error:
            raise InvalidInput(str(error), file=path, line=number) from None
        except SystemExit as ended:
            if ended.code:
                raise
            problem = "a script cannot ask for help, and nothing was submitted; remove the option"
            raise InvalidInput(problem, file=path, line=number) from None
    parser.place = ""
    return args
