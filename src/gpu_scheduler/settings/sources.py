"""Sources of settings: flags win over variables, variables over the file, the file over defaults.

Text comes in from files and variables; a `Loaded` goes out, or an error that names for each problem
the file and line or the variable, the value, and what is allowed. A file may use names of other
schedulers (aliases); `tgpu config show` prints only our own names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpu_scheduler.client.credentials import CLIENT_VARIABLES
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.quota_tree import InvalidNode, QuotaNode, check_node_name, checked_tree
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.settings.catalogue import ITEMS, PREFIX, Value, items_of, unknown_key
from gpu_scheduler.settings.fields import ErrorCollector, messages_of
from gpu_scheduler.settings.file_paths import STATE_VARIABLE, config_candidates
from gpu_scheduler.settings.groups.network import TenantEntry
from gpu_scheduler.settings.schema import GROUPS, Settings
from gpu_scheduler.settings.trusted_files import read_trusted
from gpu_scheduler.wire.quota_tree import QuotaNodeFields, read_quota_node
from gpu_scheduler.wire.tenants import TenantPatch, read_tenant
from gpu_scheduler.wire.validation import describe_validation_error

Alias = Callable[[Any], dict[str, Any]]

UNUSED = {
    "scheduler.snapshot_interval": "state is in a database, and every change is stored at once",
    "storage.snapshot_dir": "state is in a database; `database` and `files.state_dir` say where",
    "storage.shared_storage": "leader election uses PostgreSQL, not a shared disk",
    "executor.docker.socket": "podman runs as the job's user; docker at /var/run/docker.sock is "
    "used with agent.container_engine_user: root",
    "executor.docker.default_image": "each job names its own image (--image); a job without one "
    "runs as a process, on nodes whose agent.execution_methods include that or are empty",
}
"""Accepted but without effect: reported once at the start."""


def _renamed(key: str) -> Alias:
    return lambda value: {key: value}


def _milliseconds(value: Any) -> dict[str, Any]:
    return {"scheduler.scheduling_interval_ms": round(_number(value, "schedule_interval") * 1000)}


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} is {value!r}; write a number")
    return float(value)


def _percent(name: str) -> Alias:
    def read(value: Any) -> dict[str, Any]:
        part = _number(value, name)
        if not 0 <= part <= 1:
            raise InvalidRequest(
                f"quota.{name} is {value!r}; write a part between 0.0 and 1.0, or per cent as "
                f"policy.{name}"
            )
        return {f"policy.{name}": round(part * 100)}

    return read


def _http_address(value: Any) -> dict[str, Any]:
    host, port = _address(value, "http_address")
    return {"api.http_port": port} | ({"api.host": host} if host else {})


def _grpc_address(value: Any) -> dict[str, Any]:
    _, port = _address(value, "grpc_address")
    return {"api.grpc_port": port}


def _address(value: Any, name: str) -> tuple[str, int]:
    """Parse `host:port` or `:port`. Without a host, `api.host` keeps its value."""
    host, colon, port = str(value).rpartition(":")
    if not colon or not port.isdecimal():
        raise InvalidRequest(f"server.{name} is {value!r}; write host:port, or :port")
    return host.strip("[]"), int(port)


def _log_format(value: Any) -> dict[str, Any]:
    if value not in {"json", "text"}:
        raise InvalidRequest(f"logging.format is {value!r}; write json or text")
    return {"logging.structured": value == "json"}


def _log_output(value: Any) -> dict[str, Any]:
    """A log file; both stdout and stderr mean standard error, where services log."""
    return {"files.log_file": "" if value in {"stdout", "stderr"} else value}


def _server(value: Any) -> dict[str, Any]:
    """One server of an agent; an empty value is ignored."""
    if not isinstance(value, str):
        raise InvalidRequest(f"the address of a server is {value!r}; write host:port")
    return {"agent.servers": [value] if value else []}


def _execution_method(value: Any) -> dict[str, Any]:
    if value not in {"docker", "process"}:
        raise InvalidRequest(f"executor.execution_method is {value!r}; write docker or process")
    return {"agent.execution_methods": ["container" if value == "docker" else value]}


def _docker(value: Any) -> dict[str, Any]:
    """A nested group without effect; an unknown key is an error."""
    known = [key for key in UNUSED if key.startswith("executor.docker.")]
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"executor.docker is {value!r}; known are {', '.join(known)}")
    read = {f"executor.docker.{name}": "" for name in value or ()}
    for key in read:
        if key not in known:
            raise InvalidRequest(f"there is no setting '{key}'; known are {', '.join(known)}")
    return read


ALIASES: dict[str, Alias] = {
    "server.http_address": _http_address,
    "server.grpc_address": _grpc_address,
    "scheduler.role": _renamed("server.role"),
    "scheduler.schedule_interval": _milliseconds,
    "replication.heartbeat_interval": _renamed("replication.heartbeat_interval_s"),
    "replication.heartbeat_timeout": _renamed("replication.heartbeat_timeout_s"),
    "quota.online_percent": _percent("online_percent"),
    "quota.batch_percent": _percent("batch_percent"),
    "agent.heartbeat_timeout": _renamed("nodes.suspect_after_s"),
    "agent.id": _renamed("agent.node_name"),
    "agent.heartbeat_interval": _renamed("agent.heartbeat_interval_s"),
    "scheduler.master_address": _server,
    "scheduler.standby_address": _server,
    "scheduler.connection_timeout": _renamed("agent.connection_timeout_s"),
    "scheduler.retry_interval": _renamed("agent.retry_interval_s"),
    "scheduler.max_retry_interval": _renamed("agent.max_retry_interval_s"),
    "gpu.health_check_interval": _renamed("gpu.monitor_interval_s"),
    "executor.execution_method": _execution_method,
    "executor.work_dir": _renamed("agent.work_directory"),
    "executor.docker": _docker,
    "logging.format": _log_format,
    "logging.output": _log_output,
}
LIST_ALIASES = frozenset({"scheduler.master_address", "scheduler.standby_address"})
"""Aliases that append to a list, in file order."""
VALUE_ALIASES = {
    "logging.level": {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR"},
}
"""Values that other schedulers write differently."""
ALIAS_GROUPS = frozenset(key.partition(".")[0] for key in (*ALIASES, *UNUSED))
"""Further groups that a file may have."""


CONFIG_VARIABLE = f"{PREFIX}CONFIG"
OTHER_VARIABLES = (CONFIG_VARIABLE, STATE_VARIABLE, *CLIENT_VARIABLES)
LARGEST_FILE = 1_000_000
TENANTS = "tenants"
QUOTA_TREE = "quota_tree"
TENANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings, the origin of each value, and notices about values without effect."""

    settings: Settings
    origins: dict[str, str]
    file: str | None
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One value and its origin."""

    value: Value
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLists:
    """What only a file has: tenants, and the nodes of the quota tree."""

    tenants: tuple[TenantEntry, ...] = ()
    quota_tree: tuple[QuotaNode, ...] = ()


def load(
    config: str | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Read all sources. `flags` has values by key, as `{"api.http_port": 0}`; None is ignored."""
    loaded, errors = read_all(config, flags=flags, environ=environ)
    errors.raise_if_any()
    return loaded


def read_all(
    config: str | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Loaded, ErrorCollector]:
    """Like `load`, but return the errors; a wrong value is replaced by the default."""
    errors = ErrorCollector()
    variables = os.environ if environ is None else environ
    file = config_file(config, variables)
    found = {key: Found(value=item.default, origin="default") for key, item in ITEMS.items()}
    lists = FileLists()
    if file is not None:
        values, lists = read_file(file, errors)
        found.update(values)
    found.update(read_variables(variables, errors))
    found.update(read_flags(flags or {}, errors))
    groups = {
        group: kind(**{item.name: found[item.key].value for item in items_of(group)})
        for group, kind in GROUPS.items()
    }
    settings = Settings(**groups, tenants=lists.tenants, quota_tree=lists.quota_tree)
    loaded = Loaded(
        settings=settings,
        origins={key: one.origin for key, one in found.items() if key in ITEMS},
        file=file,
        notices=tuple(_without_effect(found, settings)),
    )
    return loaded, errors


def _without_effect(found: Mapping[str, Found], settings: Settings) -> Iterable[str]:
    """Notices about PostgreSQL settings with SQLite, and settings that only others use."""
    for item in () if settings.database.is_postgresql else items_of("database"):
        origin = found[item.key].origin
        if origin != "default" and item.name not in {"url", "key_file"}:
            yield f"{origin}: {item.key} has no effect with SQLite; set database.host as well"
    for key, why in UNUSED.items():
        if key in found:
            yield f"{found[key].origin}: {key} has no effect: {why}"


def config_file(config: str | None, variables: Mapping[str, str]) -> str | None:
    """The file to read: the given one, or the first default file that exists."""
    named = config or variables.get(CONFIG_VARIABLE)
    if named:
        return named
    return next((path for path in config_candidates(variables) if Path(path).is_file()), None)


def read_file(file: str, errors: ErrorCollector) -> tuple[dict[str, Found], FileLists]:
    """The values of a YAML or JSON file. The YAML parser reads both and knows line numbers."""
    with errors.collect():
        loader = _loader(file)
        try:
            root = loader.get_single_node()
            if root is not None:
                reader = _Reader(file, loader, errors)
                return _groups(reader, root), reader.lists()
        except yaml.YAMLError as error:
            raise _not_yaml(file, error) from error
        except RecursionError:
            raise InvalidInput("is nested too deeply", file=file) from None
        finally:
            loader.dispose()
    return {}, FileLists()


def read_variables(variables: Mapping[str, str], errors: ErrorCollector) -> dict[str, Found]:
    """The values of GPU_SCHEDULER_<GROUP>_<NAME>; an unknown variable is an error."""
    by_variable = {item.variable: item for item in ITEMS.values()}
    found = {}
    for name in sorted(variables):
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
            continue
        if name not in by_variable:
            near = get_close_matches(name, by_variable, n=1)
            advice = f"did you mean {near[0]}?" if near else "'tgpu config show' lists all settings"
            errors.add(InvalidRequest(f"variable {name} names no setting; {advice}"))
            continue
        item = by_variable[name]
        try:
            value = item.from_text(variables[name])
        except InvalidRequest as error:
            errors.groups.add(item.group)
            for message in messages_of(error):
                errors.add(InvalidRequest(f"variable {name}: {message}"))
        else:
            found[item.key] = Found(value=value, origin=f"variable {name}")
    return found


def read_flags(flags: Mapping[str, object], errors: ErrorCollector) -> dict[str, Found]:
    """The values of flags by key; text is parsed like a variable."""
    found = {}
    for key, value in flags.items():
        if value is None:
            continue
        with errors.collect(place="command line", group=key.partition(".")[0]):
            if key not in ITEMS:
                raise InvalidRequest(unknown_key(key))
            item = ITEMS[key]
            read = item.from_text(value) if isinstance(value, str) else item.checked(value)
            found[key] = Found(value=read, origin="flag")
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """A file that is being read: its name for messages, and PyYAML's value constructor."""

    file: str
    loader: yaml.SafeLoader
    errors: ErrorCollector
    list_nodes: dict[str, yaml.Node] = field(default_factory=dict)

    def lists(self) -> FileLists:
        """The tenants and the quota tree in the file."""
        tenants, tree = self.list_nodes.get(TENANTS), self.list_nodes.get(QUOTA_TREE)
        return FileLists(
            tenants=() if tenants is None else tuple(_tenants(self, tenants)),
            quota_tree=() if tree is None else _quota_tree(self, tree),
        )

    def add_error(self, message: str, node: yaml.Node) -> None:
        """Collect an error and continue."""
        line = node.start_mark.line + 1
        self.errors.add(InvalidInput(message, file=self.file, line=line))

    def value(self, node: yaml.Node) -> Any:
        return self.loader.construct_object(node, deep=True)

    def entries(self, node: yaml.Node, what: str) -> Iterable[tuple[str, yaml.Node, yaml.Node]]:
        """The keys of a mapping with their nodes; a repeated key is an error."""
        if not isinstance(node, yaml.MappingNode):
            self.add_error(f"{what} must have entries of the form 'name: value'", node)
            return
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = str(self.value(key_node))
            if key in seen:
                problem = f"'{key}' is repeated, first on line {seen[key]}; remove one"
                self.add_error(problem, key_node)
                continue
            seen[key] = key_node.start_mark.line + 1
            yield key, key_node, value_node


def _groups(reader: _Reader, root: yaml.Node) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for group, group_key, group_node in reader.entries(root, "the file"):
        if group in {TENANTS, QUOTA_TREE}:
            reader.list_nodes[group] = group_node
            continue
        if group not in GROUPS and group not in ALIAS_GROUPS:
            reader.add_error(unknown_key(group), group_key)
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
                reader.errors.groups.add(group)
                place = name_node if isinstance(error, _UnknownKey) else node
                for message in messages_of(error):
                    reader.add_error(message, place)
                continue
            if f"{group}.{name}" in LIST_ALIASES:
                values = {key: _append(found.get(key), value) for key, value in values.items()}
            found.update({key: Found(value=value, origin=origin) for key, value in values.items()})
    return found


def _append(before: Found | None, value: Any) -> Value:
    """A list value with the values found earlier in front."""
    former: Any = () if before is None else before.value
    joined: tuple[str, ...] = (*former, *value)
    return joined


class _UnknownKey(InvalidRequest):
    """No setting has this name."""


def _values(key: str, value: Any) -> dict[str, Value]:
    """The value of a setting, or of an alias, by our own names."""
    if key in ITEMS:
        known = VALUE_ALIASES.get(key, {})
        return {key: ITEMS[key].checked(known.get(str(value), value))}
    if key in UNUSED:
        return {key: ""}
    if key not in ALIASES:
        raise _UnknownKey(unknown_key(key))
    read = ALIASES[key](value)
    return {own: one if own in UNUSED else ITEMS[own].checked(one) for own, one in read.items()}


def _tenants(reader: _Reader, root: yaml.Node) -> Iterable[TenantEntry]:
    """Tenants by id, each with the fields of the REST API."""
    if isinstance(root, yaml.ScalarNode) and reader.value(root) is None:
        return
    for tenant_id, key, node in reader.entries(root, "tenants"):
        if not TENANT_ID.fullmatch(tenant_id) or ".." in tenant_id:
            reader.add_error(
                f"tenant '{tenant_id[:80]}' is not a valid id; use letters, digits, '.', '_', '-'",
                key,
            )
            continue
        value = reader.value(node)
        try:
            patch = msgspec.convert({} if value is None else value, TenantPatch)
            read_tenant(patch, Tenant(id=tenant_id))
        except msgspec.ValidationError as error:
            reader.add_error(
                f"tenant '{tenant_id}': {describe_validation_error(error, TenantPatch)}", node
            )
            continue
        except InvalidRequest as error:
            reader.add_error(f"tenant '{tenant_id}': {error}", node)
            continue
        origin = f"{reader.file}, line {key.start_mark.line + 1}"
        yield TenantEntry(tenant_id, patch, origin)


def _quota_tree(reader: _Reader, root: yaml.Node) -> tuple[QuotaNode, ...]:
    """The nodes of the quota tree by name; none if there is any error."""
    if isinstance(root, yaml.ScalarNode) and reader.value(root) is None:
        return ()
    nodes: dict[str, QuotaNode] = {}
    places: dict[str, yaml.Node] = {}
    has_errors = False
    for name, key, node in reader.entries(root, QUOTA_TREE):
        try:
            check_node_name(name)
            value = reader.value(node)
            fields = msgspec.convert({} if value is None else value, QuotaNodeFields)
        except msgspec.ValidationError as error:
            problem = describe_validation_error(error, QuotaNodeFields)
            reader.add_error(f"node '{name}' of quota_tree: {problem}", node)
            has_errors = True
        except InvalidRequest as error:
            reader.add_error(f"{QUOTA_TREE}: {error}", key)
            has_errors = True
        else:
            origin = f"{reader.file}, line {key.start_mark.line + 1}"
            nodes[name] = replace(read_quota_node(name, fields), origin=origin)
            places[name] = key
    if has_errors:
        return ()
    try:
        return checked_tree(nodes.values())
    except InvalidNode as error:
        reader.add_error(f"{QUOTA_TREE}: {error}", places[error.node])
        return ()


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
        problem = f"has an invalid character (#x{error.character:04x}); remove it"
        raise InvalidInput(problem, file=file, line=line) from error


def _not_yaml(file: str, error: yaml.YAMLError) -> InvalidInput:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be read"
    line = mark.line + 1 if mark is not None else None
    return InvalidInput(f"not valid YAML or JSON: {problem}", file=file, line=line)
