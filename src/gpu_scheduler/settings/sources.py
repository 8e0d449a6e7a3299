"""Where values come from: a flag wins over a variable, a variable over the file, that over the
default.

Text comes in from files and variables; a `Loaded` goes out, or an error that names for each mistake
the file and line or the variable, the value, and what is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpu_scheduler.client.credentials import CLIENT_VARIABLES
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.settings import other_names
from gpu_scheduler.settings.access import TenantEntry
from gpu_scheduler.settings.catalogue import ITEMS, PREFIX, Value, unknown_key
from gpu_scheduler.settings.groups import GROUPS, Settings
from gpu_scheduler.settings.mistakes import Mistakes, told_by
from gpu_scheduler.settings.places import STATE_VARIABLE, config_candidates
from gpu_scheduler.settings.trusted import read_trusted
from gpu_scheduler.wire.misfits import misfit
from gpu_scheduler.wire.tenants import TenantPatch, read_tenant

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
NO_SETTINGS = (CONFIG_VARIABLE, STATE_VARIABLE, *CLIENT_VARIABLES)
LARGEST_FILE = 1_000_000
TENANTS = "tenants"
TENANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings, where each value came from, and what was read but has no use yet."""

    settings: Settings
    origins: dict[str, str]
    file: str | None
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One value in a source, and where it stands."""

    value: Value
    origin: str


def load(
    config: str | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Read all sources. `flags` has values by key, as `{"api.http_port": 0}`; None is no value."""
    loaded, mistakes = read_all(config, flags=flags, environ=environ)
    mistakes.check()
    return loaded


def read_all(
    config: str | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Loaded, Mistakes]:
    """The same, with what is wrong; in the place of a wrong value stands the default."""
    mistakes = Mistakes()
    variables = os.environ if environ is None else environ
    file = config_file(config, variables)
    found = {key: Found(value=item.default, origin="default") for key, item in ITEMS.items()}
    tenants: tuple[TenantEntry, ...] = ()
    if file is not None:
        values, tenants = read_file(file, mistakes)
        found.update(values)
    found.update(read_variables(variables, mistakes))
    found.update(read_flags(flags or {}, mistakes))
    groups = {
        group: kind(**{item.name: found[item.key].value for item in _items_of(group)})
        for group, kind in GROUPS.items()
    }
    settings = Settings(**groups, tenants=tenants)
    loaded = Loaded(
        settings=settings,
        origins={key: one.origin for key, one in found.items() if key in ITEMS},
        file=file,
        notices=tuple(_of_no_use(found, settings)),
    )
    return loaded, mistakes


def _of_no_use(found: Mapping[str, Found], settings: Settings) -> Iterable[str]:
    """What was set for PostgreSQL without naming one, and what other schedulers need."""
    for item in () if settings.database.is_postgresql else _items_of("database"):
        origin = found[item.key].origin
        if origin != "default" and item.name != "url":
            yield f"{origin}: {item.key} has no use with SQLite; name database.host as well"
    for key, why in other_names.UNUSED.items():
        if key in found:
            yield f"{found[key].origin}: {key} has no use: {why}"


def config_file(config: str | None, variables: Mapping[str, str]) -> str | None:
    """The file to read: the one that is named, or the first usual one that exists."""
    named = config or variables.get(CONFIG_VARIABLE)
    if named:
        return named
    return next((path for path in config_candidates(variables) if Path(path).is_file()), None)


def read_file(file: str, mistakes: Mistakes) -> tuple[dict[str, Found], tuple[TenantEntry, ...]]:
    """The values of a YAML or JSON file. YAML reads both, and knows the line of every value."""
    with mistakes.gathered():
        loader = _loader(file)
        try:
            root = loader.get_single_node()
            if root is not None:
                reader = _Reader(file, loader, mistakes)
                return _groups(reader, root), reader.tenants()
        except yaml.YAMLError as error:
            raise _not_yaml(file, error) from error
        finally:
            loader.dispose()
    return {}, ()


def read_variables(variables: Mapping[str, str], mistakes: Mistakes) -> dict[str, Found]:
    """The values of GPU_SCHEDULER_<GROUP>_<NAME>; an unknown one is refused, as a typo would be."""
    by_variable = {item.variable: item for item in ITEMS.values()}
    found = {}
    for name in sorted(variables):
        if not name.startswith(PREFIX) or name in NO_SETTINGS:
            continue
        if name not in by_variable:
            near = get_close_matches(name, by_variable, n=1)
            advice = f"did you mean {near[0]}?" if near else "'tgpu config show' lists all settings"
            mistakes.add(InvalidRequest(f"variable {name} names no setting; {advice}"))
            continue
        item = by_variable[name]
        try:
            value = item.from_text(variables[name])
        except InvalidRequest as error:
            mistakes.groups.add(item.group)
            for told in told_by(error):
                mistakes.add(InvalidRequest(f"variable {name}: {told}"))
        else:
            found[item.key] = Found(value=value, origin=f"variable {name}")
    return found


def read_flags(flags: Mapping[str, object], mistakes: Mistakes) -> dict[str, Found]:
    """The values of flags by key; a text is read like a variable."""
    found = {}
    for key, value in flags.items():
        if value is None:
            continue
        with mistakes.gathered(place="command line", group=key.partition(".")[0]):
            if key not in ITEMS:
                raise InvalidRequest(unknown_key(key))
            item = ITEMS[key]
            read = item.from_text(value) if isinstance(value, str) else item.checked(value)
            found[key] = Found(value=read, origin="flag")
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """A file being read: its name for messages, and PyYAML's constructor for values."""

    file: str
    loader: yaml.SafeLoader
    mistakes: Mistakes
    tenant_nodes: list[yaml.Node] = field(default_factory=list)

    def tenants(self) -> tuple[TenantEntry, ...]:
        """The tenants that were met."""
        return tuple(_tenants(self, self.tenant_nodes[0])) if self.tenant_nodes else ()

    def refuse(self, message: str, node: yaml.Node) -> None:
        """Note a mistake, and read on."""
        line = node.start_mark.line + 1
        self.mistakes.add(InvalidInput(message, file=self.file, line=line))

    def value(self, node: yaml.Node) -> Any:
        return self.loader.construct_object(node, deep=True)

    def entries(self, node: yaml.Node, what: str) -> Iterable[tuple[str, yaml.Node, yaml.Node]]:
        """The keys of a mapping with their nodes; a key that stands twice is refused."""
        if not isinstance(node, yaml.MappingNode):
            self.refuse(f"{what} must be names with values, written as 'name: value'", node)
            return
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = str(self.value(key_node))
            if key in seen:
                told = f"'{key}' stands here again, after line {seen[key]}; remove one"
                self.refuse(told, key_node)
                continue
            seen[key] = key_node.start_mark.line + 1
            yield key, key_node, value_node


def _groups(reader: _Reader, root: yaml.Node) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for group, group_key, group_node in reader.entries(root, "the file"):
        if group == TENANTS:
            reader.tenant_nodes.append(group_node)
            continue
        if group not in GROUPS and group not in other_names.GROUPS:
            reader.refuse(unknown_key(group), group_key)
            continue
        if isinstance(group_node, yaml.ScalarNode) and reader.value(group_node) is None:
            continue
        if group == "auth" and isinstance(reader.value(group_node), bool):
            line = group_key.start_mark.line + 1
            found["auth.enabled"] = Found(
                value=reader.value(group_node), origin=f"{reader.file}, line {line}"
            )
            continue
        for name, name_node, node in reader.entries(group_node, f"group '{group}'"):
            origin = f"{reader.file}, line {name_node.start_mark.line + 1}"
            try:
                values = _values(f"{group}.{name}", reader.value(node))
            except InvalidRequest as error:
                reader.mistakes.groups.add(group)
                place = name_node if isinstance(error, _UnknownKey) else node
                for told in told_by(error):
                    reader.refuse(told, place)
                continue
            if f"{group}.{name}" in other_names.TOGETHER:
                values = {key: _added(found.get(key), value) for key, value in values.items()}
            found.update({key: Found(value=value, origin=origin) for key, value in values.items()})
    return found


def _added(before: Found | None, value: Any) -> Value:
    """A list with what was found of it before in front."""
    former: Any = () if before is None else before.value
    joined: tuple[str, ...] = (*former, *value)
    return joined


class _UnknownKey(InvalidRequest):
    """No setting has this name."""


def _values(key: str, value: Any) -> dict[str, Value]:
    """The value of a setting, also under a name from elsewhere."""
    if key in ITEMS:
        known = other_names.WORDS.get(key, {})
        return {key: ITEMS[key].checked(known.get(str(value), value))}
    if key in other_names.UNUSED:
        return {key: ""}
    if key not in other_names.NAMES:
        raise _UnknownKey(unknown_key(key))
    read = other_names.NAMES[key](value)
    return {
        own: one if own in other_names.UNUSED else ITEMS[own].checked(one)
        for own, one in read.items()
    }


def _tenants(reader: _Reader, root: yaml.Node) -> Iterable[TenantEntry]:
    """Tenants by id, each with the fields that the REST API knows."""
    if isinstance(root, yaml.ScalarNode) and reader.value(root) is None:
        return
    for tenant_id, key, node in reader.entries(root, "tenants"):
        if not TENANT_ID.fullmatch(tenant_id):
            reader.refuse(
                f"tenant '{tenant_id[:80]}' cannot be an id; use letters, digits, '.', '_' and '-'",
                key,
            )
            continue
        value = reader.value(node)
        try:
            patch = msgspec.convert({} if value is None else value, TenantPatch)
            read_tenant(patch, Tenant(id=tenant_id))
        except msgspec.ValidationError as error:
            reader.refuse(f"tenant '{tenant_id}': {misfit(error, TenantPatch)}", node)
            continue
        except InvalidRequest as error:
            reader.refuse(f"tenant '{tenant_id}': {error}", node)
            continue
        origin = f"{reader.file}, line {key.start_mark.line + 1}"
        yield TenantEntry(tenant_id, patch, origin)


def _text(file: str) -> str:
    raw = read_trusted(file, LARGEST_FILE)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InvalidInput("is not UTF-8 text", file=file, line=line) from error


def _loader(file: str) -> yaml.SafeLoader:
    text = _text(file)
    try:
        return yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        told = f"has a character that no text may have (#x{error.character:04x}); remove it"
        raise InvalidInput(told, file=file, line=line) from error


def _not_yaml(file: str, error: yaml.YAMLError) -> InvalidInput:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be read"
    line = mark.line + 1 if mark is not None else None
    return InvalidInput(f"this is neither YAML nor JSON: {problem}", file=file, line=line)


def _items_of(group: str) -> Iterable[Any]:
    return (item for item in ITEMS.values() if item.group == group)
