"""Rules across settings, checked before a server starts.

Settings come in; warnings go out, or one error with every rule that is broken. `tgpu config check`
uses the same rules as a starting server, so that both always agree. The rules only read files that
the settings name; they create nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable

from gpu_scheduler.agent.devices.declared import parse_declared
from gpu_scheduler.client.address import read_address
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.identity import DEFAULT_TENANT
from gpu_scheduler.model.quota_tree import unmatched_names
from gpu_scheduler.notify.delivery import Senders
from gpu_scheduler.notify.event_rules import target_warnings
from gpu_scheduler.server.from_settings import check_node_timeouts, prices_of
from gpu_scheduler.server.network_access import Certificate, check_access, check_grpc, verifier_of
from gpu_scheduler.server.storage import check_database
from gpu_scheduler.settings.fields import ErrorCollector
from gpu_scheduler.settings.schema import Settings

Rule = Callable[[Settings], Iterable[str] | None]
"""Raises an error, or returns warnings."""


def check_settings(
    settings: Settings,
    *,
    has_nodes: bool,
    is_onlooker: bool = False,
    unread: Collection[str] = (),
) -> tuple[str, ...]:
    """Reject settings with which a server would not start; return warnings about risky ones.

    With `has_nodes` agents connect over TCP, as with `tgpu server`. With `is_onlooker` a file that
    only the server's user can read is a warning instead of an error. Rules about `unread` groups
    are skipped, because a value of these groups is already wrong.
    """
    warnings: list[str] = []
    errors = ErrorCollector()
    for groups, rule in (*RULES, *(NODE_RULES if has_nodes else ())):
        if not unread or not set(groups.split()) & set(unread):
            with errors.collect():
                warnings += _apply(rule, settings, is_onlooker)
    errors.raise_if_any()
    return tuple(warnings)


def _apply(rule: Rule, settings: Settings, is_onlooker: bool) -> Iterable[str]:
    try:
        return rule(settings) or ()
    except InvalidInput as error:
        if not (is_onlooker and isinstance(error.__cause__, PermissionError)):
            raise
        return (f"{error}, so it was not checked; the server's user must be able to read it",)


def _check_fencing(settings: Settings) -> Iterable[str]:
    """Only warn: the server's user may see and run programs that the caller cannot."""
    command = settings.nodes.fencing_command
    if not command or shutil.which(command[0]) is not None:
        return ()
    warning = (
        f"nodes.fencing_command begins with '{command[0]}', which is not an executable program "
        "here; without it no lost node can be declared dead"
    )
    return (warning,)


def _check_quota_tree(settings: Settings) -> Iterable[str]:
    """Only warn about likely mistakes: other tenants may be created with the command line."""
    tenants = {DEFAULT_TENANT, *(entry.id for entry in settings.tenants)}
    found = unmatched_names(settings.quota_tree, tenants=tenants, models=())
    return [warning for warning in found if "did you mean" in warning]


def _check_address(settings: Settings) -> None:
    if settings.server.address:
        check_server_address(settings.server.address)


def check_server_address(address: str) -> None:
    """Reject an address that other servers could not use."""
    try:
        read_address(address)
    except InvalidRequest as error:
        raise InvalidRequest(f"server.address cannot be used: {error}") from None


def _check_declared_gpus(settings: Settings) -> None:
    if settings.gpu.simulate:
        parse_declared(settings.gpu.simulate)


def _check_certificate(settings: Settings) -> None:
    if settings.api.tls_certificate and settings.api.tls_key:
        Certificate(settings.api)


def _check_notifications(settings: Settings) -> Iterable[str]:
    Senders(settings.notifications)
    return target_warnings(settings.notifications)


def _check_directories(settings: Settings) -> None:
    errors = ErrorCollector()
    for name in ("allowed_script_paths", "conda_roots"):
        for path in getattr(settings.security, name):
            if not path.startswith("/") or ".." in path.split("/"):
                errors.add(
                    InvalidRequest(
                        f"security.{name} has '{path}'; each entry must be an absolute path "
                        "without '..', such as /data"
                    )
                )
    errors.raise_if_any()


def _check_issuer(settings: Settings) -> None:
    verifier_of(settings.auth)


def _check_prices(settings: Settings) -> None:
    prices_of(settings.costs)


RULES: tuple[tuple[str, Rule], ...] = (
    ("api auth", check_access),
    ("nodes agent", lambda settings: check_node_timeouts(settings.nodes, settings.agent)),
    ("agent", lambda settings: settings.agent.check()),
    ("nodes", _check_fencing),
    ("policy", lambda settings: settings.policy.check()),
    ("replication", lambda settings: settings.replication.check()),
    ("server", _check_address),
    ("database", lambda settings: check_database(settings.database)),
    ("gpu", _check_declared_gpus),
    ("quota_tree tenants", _check_quota_tree),
    ("api", _check_certificate),
    ("auth", _check_issuer),
    ("notifications", _check_notifications),
    ("security", _check_directories),
    ("costs", _check_prices),
)
"""Each rule with the groups of settings that it reads."""
NODE_RULES: tuple[tuple[str, Rule], ...] = (("api grpc", check_grpc),)
