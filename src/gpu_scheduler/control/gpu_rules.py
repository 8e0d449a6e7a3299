"""What jobs may do with the devices that they hold, and what follows if they do more, or none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """What is done about a job that breaks a rule."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRules:
    """The rules, as a site has set them.

    A job on a shared device may exceed its memory there by `memory_tolerance_percent`; one that
    does so for longer than `memory_grace_ms` after the warning is stopped. A job whose devices are
    all below `idle_percent` for `idle_ms` is warned, and stopped `idle_grace_ms` later.
    Readings that lie further apart than `longest_gap_ms` say nothing about the time between them.
    """

    memory: Action = Action.OFF
    memory_grace_ms: int = 30_000
    memory_tolerance_percent: int = 10
    idle: Action = Action.OFF
    idle_percent: int = 5
    idle_ms: int = 30 * 60_000
    idle_grace_ms: int = 10 * 60_000
    idle_exempt_users: frozenset[str] = frozenset()
    idle_exempt_tenants: frozenset[str] = frozenset()
    idle_exempts_interactive: bool = False
    idle_opt_out: bool = True
    longest_gap_ms: int = 60_000


NO_RULES = GpuRules()
"""Jobs may do as they like."""
