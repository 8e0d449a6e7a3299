"""What PostgreSQL says when something goes wrong, as errors of ours that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg
from psycopg import errors

from gpu_scheduler.model.errors import (
    InternalError,
    InvalidRequest,
    SchedulerError,
    StoreDamaged,
    StoreUnavailable,
)
from gpu_scheduler.store.postgres.address import Address

_AWAY = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
)
"""It may work later, or elsewhere: connections, shutdowns, disks, locks, time."""
_REMEDIES: tuple[tuple[type[psycopg.Error], str], ...] = (
    (errors.DiskFull, "its disk is full; make room there, nothing was half-written"),
    (errors.ReadOnlySqlTransaction, "it is a standby and cannot be written to; name the primary"),
    (errors.InvalidPassword, "it refused the password; check database.user and the password"),
    (errors.InvalidAuthorizationSpecification, "it refused the role; check database.user"),
    (errors.InvalidCatalogName, "there is no such database; make it with 'createdb'"),
    (errors.InsufficientPrivilege, "the role may not do that; make it the owner of the database"),
    (errors.TooManyConnections, "it has no connection left; lower database.pool_max"),
    (errors.CannotConnectNow, "it is starting or stopping"),
    (errors.AdminShutdown, "it is being stopped, or somebody ended our connection"),
    (errors.ConnectionTimeout, "it does not answer"),
)


def is_away(error: BaseException) -> bool:
    """Tell whether the database, and not what was asked of it, is the trouble."""
    return isinstance(error, _AWAY)


@contextmanager
def said_plainly(address: Address) -> Iterator[None]:
    """Raise our errors in place of those of PostgreSQL."""
    try:
        yield
    except psycopg.Error as error:
        raise of_postgres(error, address) from error


@contextmanager
def understood(address: Address) -> Iterator[None]:
    """While rows are made from what is stored: what makes no sense is damage."""
    try:
        with said_plainly(address):
            yield
    except (msgspec.MsgspecError, InvalidRequest, KeyError, ValueError) as error:
        raise StoreDamaged(
            f"the database {address} is damaged: a row cannot be understood ({error}). Nothing was "
            "changed; look at it with psql, or restore a backup"
        ) from error


def of_postgres(error: psycopg.Error, address: Address) -> SchedulerError:
    """The error of ours for one of PostgreSQL's."""
    found = said(error)
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return StoreUnavailable(f"the database {address} is not available: {remedy} ({found})")
    if is_away(error):
        return StoreUnavailable(f"the database {address} is not available: {found}")
    return InternalError(f"the database {address} refused a statement: {found}")


def said(error: psycopg.Error) -> str:
    """The first line of what PostgreSQL said."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
