"""The settings as a list of `Item`s, and what is generated from it.

Generated are a sample file, the reference page and a JSON Schema.
`python -m gpu_scheduler.settings.catalogue` prints docs/reference/settings.md; a test compares
the two.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any

import msgspec

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.fields import ErrorCollector
from gpu_scheduler.settings.schema import GROUPS
from gpu_scheduler.wire.quota_tree import QuotaNodeFields
from gpu_scheduler.wire.validation import describe_validation_error

PREFIX = "GPU_SCHEDULER_"
HIDDEN = "(hidden)"
"""Shown instead of the value of a secret."""
Value = bool | int | float | str | tuple[str, ...] | dict[str, Any]

_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    tuple: "list",
    dict: "table",
}
_LONGEST_NAME = 100
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One setting: its name, description and allowed values."""

    group: str
    name: str
    default: Value
    about: str
    note: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    form: Any = None
    secret: bool = False

    @property
    def key(self) -> str:
        """The name in a file or on the command line: `api.http_port`."""
        return f"{self.group}.{self.name}"

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return f"{PREFIX}{self.group}_{self.name}".upper()

    @property
    def kind(self) -> str:
        """The type as in JSON Schema, except `list` (of strings) and `table` (an object)."""
        return _KINDS[type(self.default)]

    @property
    def allowed(self) -> str:
        """A description of the allowed values."""
        if self.choices:
            word = "some of" if self.kind == "list" else "one of"
            return f"{word} {', '.join(self.choices)}"
        if self.kind == "list":
            return "a list of strings"
        if self.kind == "table":
            return "names with values"
        if self.kind == "boolean":
            return "true or false"
        if self.kind == "string":
            return "a text"
        word = "a whole number" if self.kind == "integer" else "a number"
        return f"{word} from {_figure(self.least)} to {_figure(self.most)}"

    def checked(self, value: object) -> Value:
        """The value in the setting's type; raises `InvalidRequest` without the place."""
        read = self._table(value) if self.kind == "table" else self._typed(value)
        if read is None or not self._in_range(read):
            shown = "something else" if self.secret else _shown(value)
            raise InvalidRequest(f"{self.key} is {shown}; allowed is {self.allowed}")
        return read

    def from_text(self, text: str) -> Value:
        """The value of a variable or a flag; a list is separated by commas, a table is JSON."""
        word = text.strip()
        value: object = text
        if self.kind == "boolean":
            lowered = word.lower()
            value = lowered in _TRUE if lowered in _TRUE | _FALSE else text
        elif self.kind == "list":
            value = [part.strip() for part in text.split(",") if part.strip()]
        elif self.kind in ("integer", "number"):
            value = _number(word)
            value = text if value is None else value
        elif self.kind == "table":
            value = _json(text)
        return self.checked(value)

    def _typed(self, value: object) -> Value | None:
        match self.kind, value:
            case "boolean", bool() as flag:
                return flag
            case (("integer" | "number"), bool()):
                return None
            case "integer", int() as number:
                return number
            case "number", int() | float() as number:
                return float(number)
            case "string", str() as text:
                return text
            case "list", list() | tuple() as parts if all(isinstance(p, str) for p in parts):
                return tuple(parts)
        return None

    def _table(self, value: object) -> dict[str, Any] | None:
        """Every entry converted; the error names all that are invalid."""
        if not isinstance(value, dict):
            return None
        read = {}
        errors = ErrorCollector()
        for name, entry in value.items():
            with errors.collect():
                checked = self._name(name)
                read[checked] = self._entry(checked, entry)
        errors.raise_if_any()
        return read

    def _name(self, name: object) -> str:
        if isinstance(name, str) and name.isprintable() and 0 < len(name) < _LONGEST_NAME:
            return name
        raise InvalidRequest(f"{self.key} has an entry {_shown(name)}; it needs a name")

    def _entry(self, name: str, entry: object) -> Any:
        try:
            return msgspec.convert(entry, self.form)
        except msgspec.ValidationError as error:
            problem = describe_validation_error(error, self.form)
            raise InvalidRequest(f"{self.key}, entry '{name}': {problem}") from None

    def _in_range(self, value: Value) -> bool:
        if self.choices:
            chosen = value if isinstance(value, tuple) else (value,)
            return all(one in self.choices for one in chosen)
        if isinstance(value, str):
            return "\0" not in value
        if isinstance(value, dict):
            return True
        if isinstance(value, tuple):
            return not any("\0" in part for part in value)
        if self.least is not None and not value >= self.least:
            return False
        return self.most is None or value <= self.most


def items() -> Iterator[Item]:
    """Every setting, in the order of the groups."""
    for group, kind in GROUPS.items():
        for entry in fields(kind):
            default: Any = entry.default
            if entry.default_factory is not MISSING:
                default = entry.default_factory()
            yield Item(group=group, name=entry.name, default=default, **entry.metadata)


ITEMS: dict[str, Item] = {item.key: item for item in items()}


def unknown_key(key: str) -> str:
    """An error message for an unknown key, with the most similar known key."""
    group, _, name = key.partition(".")
    if group not in GROUPS:
        owners = [item.key for item in ITEMS.values() if item.name == group]
        if owners and not name:
            written = " or ".join(f"{key.partition('.')[0]}: {{{group}: ...}}" for key in owners)
            return f"there is no group '{group}'; write it in its group, as in {written}"
        near = get_close_matches(group, GROUPS, n=1)
        advice = f"did you mean '{near[0]}'?" if near else f"groups are {', '.join(GROUPS)}"
        return f"there is no group '{group}'; {advice}"
    names = [item.name for item in ITEMS.values() if item.group == group]
    near = get_close_matches(name, names, n=1)
    if near:
        return f"there is no setting '{key}'; did you mean '{group}.{near[0]}'?"
    elsewhere = [other.key for other in ITEMS.values() if other.name == name]
    advice = f"did you mean '{elsewhere[0]}'?" if elsewhere else f"'{group}' has {', '.join(names)}"
    return f"there is no setting '{key}'; {advice}"


def _number(text: str) -> int | float | None:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return None


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _figure(value: float | None) -> str:
    if value is None:
        return "any"
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _shown(value: object) -> str:
    """A value as written in a file: `true`, not `True`."""
    if isinstance(value, str | float):
        text = repr(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    return text if len(text) <= 80 else f"{text[:77]}..."


INTRODUCTION = """\
# Settings

<!-- Generated by `python -m gpu_scheduler.settings.catalogue`; edit the code instead. -->

Precedence: flag, variable, file, default.

- **File**: YAML or JSON, given by `--config` or `$GPU_SCHEDULER_CONFIG`, else the first that
  exists of `/etc/gpu-scheduler/config.yaml` and `~/.config/gpu-scheduler/config.yaml` (or below
  `$XDG_CONFIG_HOME`). It must belong to root or to you, and neither others nor a shared
  group may have write permission.
- **Variables**: `GPU_SCHEDULER_<GROUP>_<NAME>`, such as `GPU_SCHEDULER_API_HTTP_PORT=8080`. A list
  is separated by commas, a table (names with values) is JSON.
- **Flags** of `tgpu up`.

A key that is unknown or repeated, or a value of the wrong type or out of range, is an error. The
message names the file and line or the variable, the value, and what is allowed.

| command | what it does |
|---|---|
| `tgpu config sample` | prints a commented file with the default of every setting |
| `tgpu config show [SETTING]` | prints the values in use and their sources; or explains one |
| `tgpu config check [FILE]` | checks the settings; prints all errors and exits with code 2 |
| `tgpu config schema` | prints a JSON Schema for editors |

The state directory is `--state-dir`, `$GPU_SCHEDULER_STATE_DIR` or `files.state_dir`; else
`/var/lib/gpu-scheduler` for root, and `$XDG_STATE_HOME/gpu-scheduler` or
`~/.local/state/gpu-scheduler` for others.
"""
TENANTS_PAGE = """\
## tenants

Tenants by id, each with [the fields of the REST API](rest.md). At every start each tenant is
created if it does not exist, and gets the values in the file; other values stay as
set by `tgpu tenants`. Only in a file.

```yaml
tenants:
  vision:
    linux_groups: [vision, cameras] # members of these Linux groups belong to the tenant
    users: [mia]                    # and these users
    admins: [ann]                   # may see and control all jobs of the tenant
    max_gpus: 16
```
"""
QUOTA_TREE_PAGE = """\
## quota_tree

The nodes of the [quota tree](../explanation/quota-tree.md) by name: organisations, departments,
teams. A node with the id of a tenant holds the jobs of that tenant, and `TENANT/USER` those of one
of its users; all others are groups. Only in a file; read at every start.

```yaml
quota_tree:
  science: {guaranteed_gpus: 12, max_gpus: 24, models: {A100: {guaranteed_gpus: 4}}}
  physics: {parent: science, guaranteed_gpus: 8, weight: 2}
  optics: {parent: physics, guaranteed_gpus: 4, lending_limit: 2}
  optics/ann: {parent: optics, max_gpus: 2}
  biology:
    parent: science
    borrowing_limit: 4
    models: {A100: {guaranteed_gpus: 4, max_gpus: 6}}
    budget_gpu_hours: 2000
```
"""
QUOTA_TREE_SAMPLE = (
    "# The quota tree: nodes by name, with guaranteed and maximum GPUs. For example:",
    "#   science: {guaranteed_gpus: 12}",
    "#   vision: {parent: science, guaranteed_gpus: 8, max_gpus: 16}",
    "quota_tree:",
)
TENANTS_SAMPLE = (
    "# Tenants by id: members and limits. For example:",
    "#   vision: {linux_groups: [vision], admins: [ann], max_gpus: 8}",
    "tenants:",
)
TENANTS_SCHEMA = {
    "type": ["object", "null"],
    "description": "Tenants by id, each with the fields of the REST API.",
    "additionalProperties": {"type": ["object", "null"]},
}
WIDTH = 96


def sample() -> str:
    """A YAML file with the default of every setting, commented out."""
    lines = [
        "# Settings of gpu-scheduler. All values are defaults; remove the '#' to change one.",
    ]
    for group, kind in GROUPS.items():
        lines += ["", f"# {kind.__doc__}", f"{group}:"]
        for item in items_of(group):
            lines += _wrapped(f"{item.about} Allowed: {item.allowed}.", "  # ")
            lines.append(f"  #{item.name}: {json.dumps(_plain(item.default))}")
    lines += ["", *TENANTS_SAMPLE, "", *QUOTA_TREE_SAMPLE]
    return "\n".join(lines) + "\n"


def json_schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) of the file."""
    (node,), definitions = msgspec.json.schema_components(
        [QuotaNodeFields], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpu-scheduler settings",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            group: {
                "type": ["object", "null"],
                "description": kind.__doc__,
                "additionalProperties": False,
                "properties": {item.name: _property(item) for item in items_of(group)},
            }
            for group, kind in GROUPS.items()
        }
        | {
            "tenants": TENANTS_SCHEMA,
            "quota_tree": {
                "type": ["object", "null"],
                "description": "The nodes of the quota tree by name.",
                "additionalProperties": {"anyOf": [node, {"type": "null"}]},
            },
        },
        "$defs": definitions,
    }


def reference_page() -> str:
    """The reference page, in Markdown."""
    lines = [INTRODUCTION]
    for group, kind in GROUPS.items():
        lines += [f"## {group}", "", f"{kind.__doc__}", ""]
        lines += ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
        lines += [_row(item) for item in items_of(group)]
        lines.append("")
        for item in items_of(group):
            lines += _field_rows(item)
    _, forms = msgspec.json.schema_components([QuotaNodeFields])
    fields_of_node = forms[QuotaNodeFields.__name__]
    lines += [TENANTS_PAGE, QUOTA_TREE_PAGE, *_field_table(fields_of_node), ""]
    return "\n".join(lines)


def plain_values(settings: object) -> dict[str, Any]:
    """Settings as plain data by `group.name`, for JSON."""
    return {
        key: _plain(getattr(getattr(settings, item.group), item.name))
        for key, item in ITEMS.items()
    }


def _row(item: Item) -> str:
    note = f" *{item.note}*" if item.note else ""
    default = json.dumps(_plain(item.default))
    return f"| `{item.key}` | `{default}` | {item.allowed} | {item.about}{note} |"


def _field_rows(item: Item) -> list[str]:
    """The fields of a table's entries, for tables whose entries have fields."""
    _, forms = msgspec.json.schema_components([item.form] if item.form else [])
    if not forms:
        return []
    (form,) = forms.values()
    return [f"Each entry of `{item.key}`:", "", *_field_table(form), ""]


def _field_table(form: dict[str, Any]) -> list[str]:
    lines = ["| field | default | meaning |", "|---|---|---|"]
    for name, field in form["properties"].items():
        default = f"`{json.dumps(field['default'])}`" if "default" in field else "(required)"
        choices = ", ".join(f"`{choice}`" for choice in field.get("enum", ()))
        about = field.get("description", "") + (f" One of {choices}." if choices else "")
        lines.append(f"| `{name}` | {default} | {about} |")
    return lines


def _property(item: Item) -> dict[str, Any]:
    described: dict[str, Any] = {"description": item.about, "default": _plain(item.default)}
    if item.kind == "table":
        return described | {"type": "object", "additionalProperties": _inline(item.form)}
    if item.kind == "list":
        kind: dict[str, Any] = {"type": "string"}
        if item.choices:
            kind["enum"] = list(item.choices)
        return described | {"type": "array", "items": kind}
    described["type"] = item.kind
    if item.choices:
        described["enum"] = list(item.choices)
    if item.least is not None:
        described |= {"minimum": item.least, "maximum": item.most}
    return described


def items_of(group: str) -> list[Item]:
    """The settings of one group."""
    return [item for item in ITEMS.values() if item.group == group]


def _inline(form: Any) -> Any:
    """The schema of a form without references."""
    (schema,), forms = msgspec.json.schema_components([form])
    return next(iter(forms.values())) if forms else schema


def _plain(value: Value) -> Any:
    if isinstance(value, dict):
        return msgspec.to_builtins(value)
    return list(value) if isinstance(value, tuple) else value


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


if __name__ == "__main__":
    sys.stdout.write(reference_page())
