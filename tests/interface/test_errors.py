"""Errors: each code with its exit code, HTTP status, gRPC status and public Python classes."""

import asyncio
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import grpc

import gpu_scheduler
from gpu_scheduler.api.grpc.errors import abort_with
from gpu_scheduler.api.http.errors import STATUS, ErrorForm, error_form
from gpu_scheduler.client.errors import error_of
from gpu_scheduler.model.errors import SchedulerError
from tests.interface.stored import check_snapshot
from tests.interface.test_python import PUBLIC_ERRORS

PUBLIC = {name for names in PUBLIC_ERRORS.values() for name in names}


def test_errors_with_their_codes() -> None:
    found: dict[str, dict[str, Any]] = {}
    for kind in error_classes():
        error = kind.__new__(kind)
        Exception.__init__(error, "text")
        vars(error)["allowed"] = ()  # as for MethodNotAllowed
        status, form = error_form(error)
        known = found.setdefault(kind.code, {"exit_codes": [], "classes": []})
        known |= {"http": status, "grpc": grpc_status(status, form.code)}
        known["exit_codes"] = sorted({*known["exit_codes"], kind.exit_code})
        if kind.__name__ in PUBLIC:
            bases = [base.__name__ for base in kind.__mro__ if issubclass(base, SchedulerError)]
            known["classes"] = sorted([*known["classes"], " < ".join(bases)])
    check_snapshot("errors.json", found)


def test_api_error_codes_map_to_client_errors() -> None:
    found = {}
    for code, status in STATUS.items():
        error = error_of(status, {"code": code, "error": "text"})
        found[code] = {
            "http": status,
            "grpc": grpc_status(status, code),
            "exception": type(error).__name__,
            "exit_code": error.exit_code,
        }
    check_snapshot("error_codes.json", found)


def error_classes() -> Iterator[type[SchedulerError]]:
    """All error classes that the package defines."""
    for module in pkgutil.walk_packages(gpu_scheduler.__path__, f"{gpu_scheduler.__name__}."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    waiting: list[type[SchedulerError]] = [SchedulerError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__.startswith(gpu_scheduler.__name__):
            yield kind
            waiting += kind.__subclasses__()


def grpc_status(status: int, code: str) -> str:
    """The status with which a gRPC call ends."""
    call = Call()
    asyncio.run(abort_with(call, status, ErrorForm(error="text", code=code, details={})))  # type: ignore[arg-type]
    return call.ended_with.name


class Call:
    """Stands in for the context of a gRPC call."""

    ended_with = grpc.StatusCode.OK

    async def abort(self, code: grpc.StatusCode, *_: Any) -> None:
        self.ended_with = code
