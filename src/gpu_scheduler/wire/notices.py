"""The JSON forms of whom can be told, and of what waits to be told."""

from __future__ import annotations

from msgspec import Struct


class TargetForm(Struct):
    """Somebody who can be told. What waits and went wrong is for admins."""

    name: str
    kind: str
    events: list[str]
    tenants: list[str]
    for_jobs: bool
    is_default: bool
    waiting: int | None = None
    oldest_at: str | None = None
    next_try_at: str | None = None
    last_error: str | None = None
    delivered: int | None = None
    failed_tries: int | None = None
    given_up: int | None = None


class TargetList(Struct):
    """All targets that the caller may know of."""

    targets: list[TargetForm]
    job_webhooks: bool


class TargetTested(Struct):
    """Whether a test got through, and if not, why."""

    target: str
    delivered: bool
    error: str = ""
