"""Kinds of notifications, and the rules of a job for its notifications."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest

LONGEST_TARGET = 2000
MOST_RULES = 10


class Notice(StrEnum):
    """A kind of notification. `END` is every end of a job, `FAIL` only a bad one."""

    START = "start"
    END = "end"
    FAIL = "fail"
    PREEMPTED = "preempted"
    IDLE = "idle"
    MEMORY = "memory"
    NOT_READY = "not_ready"
    RESTART = "restart"
    GPU_FREE = "gpu_free"
    BUDGET = "budget"
    TROUBLE = "trouble"


OF_JOBS = (
    *(Notice.START, Notice.END, Notice.FAIL),
    *(Notice.PREEMPTED, Notice.IDLE, Notice.MEMORY),
    *(Notice.NOT_READY, Notice.RESTART),
)
"""Notifications of jobs; the others are about the machine or a tenant."""


NONE = "none"
"""The rule of a job that wants no default notifications."""


@dataclass(frozen=True, slots=True)
class NotifyRule:
    """Send these notifications to `target` (empty: the default one); none: see `NONE`."""

    notices: tuple[Notice, ...]
    target: str = ""

    def __str__(self) -> str:
        kinds = ",".join(self.notices) or NONE
        return f"{kinds}:{self.target}" if self.target else kinds


def read_rules(texts: Iterable[str]) -> tuple[NotifyRule, ...]:
    """Read `end,fail`, `end:TARGET`, `all:https://...` or `none`, each thing once."""
    rules = tuple(dict.fromkeys(_rule(text) for text in texts))
    if len(rules) > MOST_RULES:
        raise InvalidRequest(f"notify has {len(rules)} rules; allowed are {MOST_RULES}")
    return rules


def _rule(text: str) -> NotifyRule:
    kinds, _, target = text.strip().partition(":")
    if text.strip().lower() == NONE:
        return NotifyRule(())
    named = [kind.strip().lower() for kind in kinds.split(",") if kind.strip()]
    allowed = [kind.value for kind in OF_JOBS]
    for kind in named:
        if kind not in (*allowed, "all"):
            raise InvalidRequest(
                f"notify is '{text[:80]}': there is no '{kind[:40]}'; write some of "
                f"{', '.join(allowed)} or all, with :TARGET behind, as in end,fail:slack, or none "
                "alone"
            )
    if not named:
        raise InvalidRequest(
            f"notify is '{text[:80]}' and names no event; write for example end or end,fail:slack"
        )
    if len(target) > LONGEST_TARGET or not target.isprintable() or " " in target:
        raise InvalidRequest(f"notify is '{text[:80]}': its target is not a valid name or address")
    wanted = OF_JOBS if "all" in named else tuple(k for k in OF_JOBS if k.value in named)
    return NotifyRule(wanted, target)
