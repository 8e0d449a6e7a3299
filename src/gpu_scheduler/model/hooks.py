"""Commands that a site runs around every attempt, and that they failed."""

from __future__ import annotations

from dataclasses import dataclass

PROLOG = "prolog"
EPILOG = "epilog"


@dataclass(frozen=True, slots=True)
class HookFailure:
    """A hook failed on a node, for one member of an attempt; `detail` says how."""

    node_id: str
    hook: str
    detail: str
