"""Members of one gang on this node take a step together, or none of them does.

Each comes with a step and waits. When all are there, every step hears ""; when one of them has come
to its end before, the others hear why they wait in vain.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.agent.launcher.attempt import Attempt
from gpu_scheduler.agent.launcher.forms import Key
from gpu_scheduler.agent.work import NOT_BEGUN

GANG = "gang"
"""Why a member does not begin that was ready itself; the server uses the same word."""
Step = Callable[[str], None]


class Gangs:
    """Who waits for whom. Each step is called once, and by `call`: one may fail for itself."""

    def __init__(self, attempts: dict[Key, Attempt], call: Callable[..., object]) -> None:
        """`attempts` is the launcher's own table."""
        self._attempts = attempts
        self._call = call
        self._waiting: dict[str, dict[int, tuple[Attempt, Step]]] = {}

    def meet(self, attempt: Attempt, step: Step) -> None:
        """Wait until all members are as far as this one."""
        name, member = attempt.key
        if attempt.work.members_here <= 1 or attempt.stopped_by:
            step("")
            return
        missing = [o for o in self._attempts.values() if o.key[0] == name and _comes_no_more(o)]
        if missing:
            # One that waited in vain itself is not the reason.
            self._in_vain(attempt, step, min(missing, key=lambda o: o.stopped_by == GANG))
            return
        here = self._waiting.setdefault(name, {})
        here[member] = (attempt, step)
        if len(here) >= attempt.work.members_here:
            del self._waiting[name]
            for _, (_, each) in sorted(here.items()):
                self._call(each, "")

    def waits(self, attempt: Attempt) -> bool:
        """Tell whether it has come and others have not."""
        return attempt.key[1] in self._waiting.get(attempt.key[0], {})

    def leave(self, attempt: Attempt) -> None:
        """A member is told to stop: it takes its step now, which will see that."""
        found = self._waiting.get(attempt.key[0], {}).pop(attempt.key[1], None)
        if found is not None:
            self._call(found[1], "")

    def give_up(self, name: str, why: str) -> None:
        """Those who wait have done so for long enough: none of them is the one that is missing."""
        for _, (attempt, step) in sorted(self._waiting.pop(name, {}).items()):
            attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
            self._call(step, why)

    def gone(self, attempt: Attempt) -> None:
        """A member has come to its end."""
        waiting = self._waiting.pop(attempt.key[0], {})
        waiting.pop(attempt.key[1], None)
        for _, (other, step) in sorted(waiting.items()):
            self._in_vain(other, step, attempt)

    def _in_vain(self, attempt: Attempt, step: Step, other: Attempt) -> None:
        attempt.stopped_by = attempt.stopped_by or GANG
        self._call(step, f"member {other.key[1]} of the gang did not get ready")


def _comes_no_more(attempt: Attempt) -> bool:
    return attempt.given_up or attempt.ending is not None or attempt.over is not None
