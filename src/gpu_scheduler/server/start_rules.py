"""The rules that settings have to keep together before a server starts: one list for all who ask.

Settings come in; warnings go out, or the refusal of every rule that is broken. A server that
starts and `tgpu config check` go by the same list, so that one never accepts what the other does
not. Nothing is opened or made here but files that the settings name, for reading.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable

from gpu_scheduler.agent.devices.declared import parse_declared
from gpu_scheduler.client.address import read_address
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.notify.delivery import Senders
from gpu_scheduler.notify.event_rules import unheard
from gpu_scheduler.server.access import Certificate, check_access, verifier_of
from gpu_scheduler.server.from_settings import check_patience, prices_of
from gpu_scheduler.server.grpc import check_grpc
from gpu_scheduler.server.storage import check_database
from gpu_scheduler.settings.fields import Mistakes
from gpu_scheduler.settings.schema import Settings

Rule = Callable[[Settings], Iterable[str] | None]
"""Refuses, or gives warnings."""


def check_settings(
    settings: Settings,
    *,
    has_nodes: bool,
    is_onlooker: bool = False,
    unread: Collection[str] = (),
) -> tuple[str, ...]:
    """Refuse settings with which no server would start; what is allowed and risky is said.

    With `has_nodes` agents come over TCP, as to `tgpu server`. An onlooker is told of files that
    only the server's user can read; a server is refused. Rules about groups that are `unread`, as
    something in them is wrong by itself, are passed over.
    """
    warnings: list[str] = []
    mistakes = Mistakes()
    for groups, rule in (*RULES, *(RULES_OF_NODES if has_nodes else ())):
        if not unread or not set(groups.split()) & set(unread):
            with mistakes.gathered():
                warnings += _applied(rule, settings, is_onlooker)
    mistakes.check()
    return tuple(warnings)


def _applied(rule: Rule, settings: Settings, is_onlooker: bool) -> Iterable[str]:
    try:
        return rule(settings) or ()
    except InvalidInput as error:
        if not (is_onlooker and isinstance(error.__cause__, PermissionError)):
            raise
        return (f"{error}, so it was not checked; the server's user must be able to",)


def _patience(settings: Settings) -> None:
    check_patience(settings.nodes, settings.agent)


def _agent(settings: Settings) -> None:
    settings.agent.check()


def _pools(settings: Settings) -> None:
    settings.policy.check()


def _fencing(settings: Settings) -> Iterable[str]:
    """The server's user may see and run what an onlooker cannot, so that is only a warning."""
    command = settings.nodes.fencing_command
    if not command or shutil.which(command[0]) is not None:
        return ()
    told = (
        f"nodes.fencing_command begins with '{command[0]}', and there is no such program here that "
        "may be run; no lost node would be known to be dead by it"
    )
    return (told,)


def _replication(settings: Settings) -> None:
    settings.replication.check()


def _address(settings: Settings) -> None:
    if settings.server.address:
        check_server_address(settings.server.address)


def check_server_address(address: str) -> None:
    """Refuse an address by which no other server could reach this one."""
    try:
        read_address(address)
    except InvalidRequest as error:
        raise InvalidRequest(f"server.address cannot be used: {error}") from None


def _database(settings: Settings) -> None:
    check_database(settings.database)


def _declared(settings: Settings) -> None:
    if settings.gpu.simulate:
        parse_declared(settings.gpu.simulate)


def _certificate(settings: Settings) -> None:
    if settings.api.tls_certificate and settings.api.tls_key:
        Certificate(settings.api)


def _issuer(settings: Settings) -> None:
    verifier_of(settings.auth)


def _notifications(settings: Settings) -> Iterable[str]:
    Senders(settings.notifications)
    return unheard(settings.notifications)


def _script_places(settings: Settings) -> None:
    security = settings.security
    mistakes = Mistakes()
    for name in ("allowed_script_paths", "conda_roots"):
        for path in getattr(security, name):
            if not path.startswith("/") or ".." in path.split("/"):
                told = f"security.{name} has '{path}', and each must be a whole path, such as /data"
                mistakes.add(InvalidRequest(told))
    mistakes.check()


def _prices(settings: Settings) -> None:
    prices_of(settings.costs)


RULES: tuple[tuple[str, Rule], ...] = (
    ("api auth", check_access),
    ("nodes agent", _patience),
    ("agent", _agent),
    ("nodes", _fencing),
    ("policy", _pools),
    ("replication", _replication),
    ("server", _address),
    ("database", _database),
    ("gpu", _declared),
    ("api", _certificate),
    ("auth", _issuer),
    ("notifications", _notifications),
    ("security", _script_places),
    ("costs", _prices),
)
"""Each with the groups of settings that it reads."""
RULES_OF_NODES: tuple[tuple[str, Rule], ...] = (("api grpc", check_grpc),)
