"""The settings for people and programs: a sample file, a reference page, a JSON Schema.

`python -m gpu_scheduler.settings.describe` prints the page that stands in
docs/reference/settings.md; a test compares the two.
"""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

import msgspec

from gpu_scheduler.settings.catalogue import ITEMS, Item, Value
from gpu_scheduler.settings.groups import GROUPS

INTRODUCTION = """\
# Settings

<!-- Made from the code by `python -m gpu_scheduler.settings.describe`; edit the code instead. -->

A value comes from a flag, else from a variable, else from a file, else it is the default.

- **File**: YAML or JSON, named by `--config` or `$GPU_SCHEDULER_CONFIG`, else the first that
  exists of `/etc/gpu-scheduler/config.yaml` and `~/.config/gpu-scheduler/config.yaml` (by
  `$XDG_CONFIG_HOME`). It must belong to root or to you, and neither others nor a shared
  group may be able to write it.
- **Variables**: `GPU_SCHEDULER_<GROUP>_<NAME>`, such as `GPU_SCHEDULER_API_HTTP_PORT=8080`. A list
  is separated by commas, a table (names with values) is JSON.
- **Flags** of `tgpu up`.

A key that does not exist, stands twice, has the wrong type or is out of range is refused with the
file and line or the variable, the value, and what is allowed.

| command | what it does |
|---|---|
| `tgpu config sample` | prints a file with every setting at its default, explained |
| `tgpu config show` | prints the values in force and where each comes from |
| `tgpu config check [FILE]` | reads and starts nothing; names all that is wrong; then exit code 2 |
| `tgpu config schema` | prints a JSON Schema for editors |

The state directory is `--state-dir`, `$GPU_SCHEDULER_STATE_DIR` or `files.state_dir`; else
`/var/lib/gpu-scheduler` for root, and `$XDG_STATE_HOME/gpu-scheduler` or
`~/.local/state/gpu-scheduler` for others.
"""
TENANTS_PAGE = """\
## tenants

Tenants by id, each with [the fields of the REST API](rest.md). At every start each tenant is made
if it is not there, and gets the values that the file names; what the file does not name stays as it
was set by `tgpu tenants`. Only in a file.

```yaml
tenants:
  vision:
    linux_groups: [vision, cameras] # members of these groups belong to the tenant
    users: [mia]                    # and these users
    admins: [ann]                   # these may see and touch all its jobs
    max_gpus: 16
```
"""
TENANTS_SAMPLE = (
    "# Tenants by id: who belongs to them, and what they may have. For example:",
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
    """A YAML file with every setting at its default, commented out."""
    lines = [
        "# Settings of gpu-scheduler. Every value is the default; remove its '#' to change it.",
    ]
    for group, kind in GROUPS.items():
        lines += ["", f"# {kind.__doc__}", f"{group}:"]
        for item in _items_of(group):
            lines += _wrapped(f"{item.about} Allowed: {item.allowed}.", "  # ")
            lines.append(f"  #{item.name}: {json.dumps(_plain(item.default))}")
    lines += ["", *TENANTS_SAMPLE]
    return "\n".join(lines) + "\n"


def json_schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) of the file."""
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
                "properties": {item.name: _property(item) for item in _items_of(group)},
            }
            for group, kind in GROUPS.items()
        }
        | {"tenants": TENANTS_SCHEMA},
    }


def reference_page() -> str:
    """The reference page, in Markdown."""
    lines = [INTRODUCTION]
    for group, kind in GROUPS.items():
        lines += [f"## {group}", "", f"{kind.__doc__}", ""]
        lines += ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
        lines += [_row(item) for item in _items_of(group)]
        lines.append("")
        for item in _items_of(group):
            lines += _form_rows(item)
    lines += [TENANTS_PAGE]
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


def _form_rows(item: Item) -> list[str]:
    """What an entry of a table may have, for tables whose entries have fields."""
    _, forms = msgspec.json.schema_components([item.form] if item.form else [])
    if not forms:
        return []
    (form,) = forms.values()
    lines = [f"Each entry of `{item.key}`:", "", "| field | default | meaning |", "|---|---|---|"]
    for name, field in form["properties"].items():
        default = f"`{json.dumps(field['default'])}`" if "default" in field else "(needed)"
        choices = ", ".join(f"`{choice}`" for choice in field.get("enum", ()))
        about = field.get("description", "") + (f" One of {choices}." if choices else "")
        lines.append(f"| `{name}` | {default} | {about} |")
    return [*lines, ""]


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


def _items_of(group: str) -> list[Item]:
    return [item for item in ITEMS.values() if item.group == group]


def _inline(form: Any) -> Any:
    """The schema of a form without references to elsewhere."""
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
