"""What people decide about nodes, for the core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cordon:
    """Give a node no new work; what runs there goes on. `by` is who asks for it."""

    node_id: str
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a node become empty: no new work, and what still runs after `within_ms` is stopped.

    That waits again for a place elsewhere. Without `within_ms` it may end in its own time.
    """

    node_id: str
    by: str = ""
    reason: str = ""
    within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Uncordon:
    """Give a node work again that was cordoned or drained."""

    node_id: str


@dataclass(frozen=True, slots=True)
class LabelNode:
    """Set labels of a node, whatever its agent says; None takes one away."""

    node_id: str
    labels: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Forget a node; refused while its agent is there or something may run on it."""

    node_id: str


@dataclass(frozen=True, slots=True)
class ConfirmDead:
    """Somebody knows that a silent node is dead: what it ran may run elsewhere.

    With `silent_ms` they know it of the silence that began then, and of no later one.
    """

    node_id: str
    by: str
    silent_ms: int = 0


NodeCommand = Cordon | Drain | Uncordon | LabelNode | RemoveNode
