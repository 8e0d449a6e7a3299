"""`tgpu config`: print, explain and check settings."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

from gpu_scheduler.cli.connection import add_tabs, print_answer, warn
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import print_json, print_pairs, print_table
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.settings.fields import ErrorCollector, messages_of
from gpu_scheduler.settings.sources import Loaded, load, read_all

ACTIONS = ("sample", "show", "check", "schema")


def register_config(parser: ArgumentParser) -> None:
    """Add the options."""
    add = Options(parser)
    add.choice("action", ACTIONS, "what to print; check only reads")
    add.word("file", "FILE", "the file to read, as --config; or for show one setting", nargs="?")
    default = "default: $GPU_SCHEDULER_CONFIG, then the default locations"
    add.value("--config", None, "FILE", default)
    add.flag("--json", "print JSON instead of text")
    add_tabs(parser)


def register_sample(parser: ArgumentParser) -> None:
    """Add the options of `config-sample`."""
    parser.add_argument("--yaml", action="store_true", help="YAML with explanations, not JSON")
    parser.add_argument("--json", action="store_true", help="JSON, which is the default")


def run_sample(args: Namespace) -> int:
    """Print a configuration file with every setting."""
    args.json = not args.yaml
    return _sample(args)


def run_config(args: Namespace) -> int:
    """Print or check settings."""
    if args.action in ("sample", "schema") and (args.file or args.config):
        file = args.file or args.config
        raise InvalidRequest(
            f"'tgpu config {args.action}' prints to stdout and takes no file; write "
            f"'tgpu config {args.action} > {file}'"
        )
    if args.action == "sample":
        return _sample(args)
    if args.action == "schema":
        from gpu_scheduler.settings.catalogue import json_schema

        print_json(json_schema())
        return 0
    if args.file and args.config and args.file != args.config:
        raise InvalidRequest("two files given; leave out one")
    if args.action == "show" and args.file and _is_key(args.file):
        return _show_one(args)
    warnings: tuple[str, ...] = ()
    if args.action == "check":
        # Whether a server would start with these settings, and its warnings.
        loaded, warnings = checked_settings(args.file or args.config, has_nodes=True)
    else:
        loaded = load(args.file or args.config)
    notices = (*loaded.notices, *warnings)
    for notice in notices:
        warn(f"note: {notice}")
    if args.action == "check":
        return print_answer(
            args,
            {"file": loaded.file, "valid": True, "notices": list(notices)},
            f"{loaded.file or 'no file; variables and defaults'}: valid",
        )
    from gpu_scheduler.settings.catalogue import HIDDEN, ITEMS, plain_values

    values = {
        key: HIDDEN if value and ITEMS[key].secret else value
        for key, value in plain_values(loaded.settings).items()
    }
    rows = [(key, _text(value), loaded.origins[key]) for key, value in values.items()]
    return print_answer(
        args,
        {key: {"value": value, "from": loaded.origins[key]} for key, value in values.items()},
        lambda: print_table(("SETTING", "VALUE", "FROM"), rows),
    )


def _is_key(word: str) -> bool:
    """Whether the word is the name of a setting and not of a file."""
    from gpu_scheduler.settings.catalogue import ITEMS
    from gpu_scheduler.settings.schema import GROUPS

    if Path(word).exists() or word.endswith((".yaml", ".yml", ".json")):
        return False
    group, dot, _ = word.partition(".")
    return bool(dot and group in GROUPS) or any(item.name == word for item in ITEMS.values())


def _show_one(args: Namespace) -> int:
    """Print one setting: its value, its origin and what it does."""
    from gpu_scheduler.settings.catalogue import HIDDEN, ITEMS, plain_values, unknown_key

    item = ITEMS.get(args.file)
    if item is None:
        keys = [key for key, other in ITEMS.items() if other.name == args.file]
        advice = f"there is no setting '{args.file}'; did you mean '{' or '.join(keys)}'?"
        raise InvalidRequest(advice if keys else unknown_key(args.file))
    loaded = load(args.config)
    value = plain_values(loaded.settings)[item.key]
    value = HIDDEN if value and item.secret else value
    origin = loaded.origins[item.key]
    pairs = [
        *(("setting", item.key), ("value", _text(value)), ("from", origin)),
        *(("allowed", item.allowed), ("about", f"{item.about} {item.note}".strip())),
    ]
    document = {"key": item.key, "value": value, "from": origin, "about": item.about}
    return print_answer(args, document, lambda: print_pairs(pairs))


def _sample(args: Namespace) -> int:
    from gpu_scheduler.settings.catalogue import plain_values
    from gpu_scheduler.settings.catalogue import sample as sample_text
    from gpu_scheduler.settings.schema import Settings

    if not args.json:
        print(sample_text(), end="")
        return 0
    nested: dict[str, dict[str, object]] = {}
    for key, value in plain_values(Settings()).items():
        group, _, name = key.partition(".")
        nested.setdefault(group, {})[name] = value
    print_json(nested)
    return 0


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return os.pathsep.join(value) if value else "-"
    if isinstance(value, dict):
        return ", ".join(value) or "-"
    return "-" if value == "" else str(value)


# Checked settings, for commands that start a server

_KEY = re.compile(r"[a-z]+\.[a-z_]+")
_KEY_BY_MEANING = ("simulated GPUs", "gpu.simulate")
"""Errors name this setting by its meaning, because it is also an option of the command line."""


def checked_settings(
    config: str | None,
    *,
    flags: Mapping[str, object] | None = None,
    has_nodes: bool,
    hands_over: bool = False,
) -> tuple[Loaded, tuple[str, ...]]:
    """Read all sources and apply the rules of a start; returns the settings and warnings.

    Invalid values and broken rules are reported together. A caller that `hands_over` to another
    process leaves the rules to that process if all values are valid: they take a second to load.
    """
    loaded, errors = read_all(config, flags=flags)
    if hands_over and not errors and _is_valid_declaration(loaded.settings.gpu.simulate):
        return loaded, ()
    from gpu_scheduler.server.settings_rules import check_settings

    warnings: tuple[str, ...] = ()
    try:
        warnings = check_settings(
            loaded.settings, has_nodes=has_nodes, is_onlooker=True, unread=errors.groups
        )
    except (InvalidInput, InvalidRequest) as error:
        _add_broken_rules(errors, error, loaded.origins)
    errors.raise_if_any()
    return loaded, warnings


def _is_valid_declaration(gpus: str) -> bool:
    """Whether --simulate is valid, which is checked at once."""
    if not gpus:
        return True
    from gpu_scheduler.agent.devices.declared import parse_declared

    try:
        parse_declared(gpus)
    except InvalidRequest:
        return False
    return True


def _add_broken_rules(
    errors: ErrorCollector, error: InvalidInput | InvalidRequest, origins: Mapping[str, str]
) -> None:
    """Add the broken rules, each with the origin of a setting that it names."""
    sentences = messages_of(error)
    if len(sentences) == 1 and not errors:
        errors.add(error)
        return
    for sentence in sentences:
        keys = _KEY.findall(sentence.replace(*_KEY_BY_MEANING))
        places = (origins.get(key, "default") for key in keys)
        place = next((place for place in places if place != "default"), "")
        errors.add(InvalidRequest(sentence), place="command line" if place == "flag" else place)
