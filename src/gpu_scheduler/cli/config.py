"""`tgpu config`: print, explain and check settings."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from gpu_scheduler.cli.output import print_json, print_table
from gpu_scheduler.cli.reach import warn
from gpu_scheduler.model.errors import InvalidRequest

HIDDEN = "(hidden)"
ACTIONS = ("sample", "show", "check", "schema")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("action", choices=ACTIONS, help="what to print; check only reads")
    add("file", nargs="?", metavar="FILE", help="the file to read, the same as --config")
    add("--config", metavar="FILE", help="default: $GPU_SCHEDULER_CONFIG, then the usual places")
    add("--json", action="store_true", help="print JSON instead of text")


def register_sample(parser: ArgumentParser) -> None:
    """Add the options of `config-sample`."""
    parser.add_argument("--yaml", action="store_true", help="YAML with explanations, not JSON")
    parser.add_argument("--json", action="store_true", help="JSON, which is the default")


def sample(args: Namespace) -> int:
    """Print a configuration file with every setting."""
    args.json = not args.yaml
    return _sample(args)


def run(args: Namespace) -> int:
    """Do what the first word says."""
    if args.action in ("sample", "schema") and (args.file or args.config):
        file = args.file or args.config
        raise InvalidRequest(
            f"'tgpu config {args.action}' reads and writes no file; write "
            f"'tgpu config {args.action} > {file}' to have it in one"
        )
    if args.action == "sample":
        return _sample(args)
    if args.action == "schema":
        from gpu_scheduler.settings import json_schema

        print_json(json_schema())
        return 0
    if args.file and args.config and args.file != args.config:
        raise InvalidRequest("two files are named; leave out one")
    if args.action == "check":
        return _check(args)
    from gpu_scheduler.settings import load

    loaded = load(args.file or args.config)
    for notice in loaded.notices:
        warn(f"note: {notice}")
    from gpu_scheduler.settings.describe import plain_values

    values = _without_secrets(plain_values(loaded.settings))
    if args.json:
        print_json(
            {key: {"value": value, "from": loaded.origins[key]} for key, value in values.items()}
        )
        return 0
    rows = [(key, _text(value), loaded.origins[key]) for key, value in values.items()]
    print_table(("SETTING", "VALUE", "FROM"), rows)
    return 0


def _check(args: Namespace) -> int:
    """Say whether a server would start with these settings, and of what it would warn."""
    from gpu_scheduler.cli.start_settings import checked_settings

    loaded, warnings = checked_settings(args.file or args.config, has_nodes=True)
    notices = (*loaded.notices, *warnings)
    for notice in notices:
        warn(f"note: {notice}")
    if args.json:
        print_json({"file": loaded.file, "valid": True, "notices": list(notices)})
    else:
        print(f"{loaded.file or 'no file; variables and defaults'}: good")
    return 0


def _sample(args: Namespace) -> int:
    from gpu_scheduler.settings import Settings
    from gpu_scheduler.settings import sample as sample_text
    from gpu_scheduler.settings.describe import plain_values

    if not args.json:
        print(sample_text(), end="")
        return 0
    nested: dict[str, dict[str, object]] = {}
    for key, value in plain_values(Settings()).items():
        group, _, name = key.partition(".")
        nested.setdefault(group, {})[name] = value
    print_json(nested)
    return 0


def _without_secrets(values: dict[str, object]) -> dict[str, object]:
    from gpu_scheduler.settings.catalogue import ITEMS

    return {key: HIDDEN if value and ITEMS[key].secret else value for key, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return os.pathsep.join(value) if value else "-"
    if isinstance(value, dict):
        return ", ".join(value) or "-"
    return "-" if value == "" else str(value)
