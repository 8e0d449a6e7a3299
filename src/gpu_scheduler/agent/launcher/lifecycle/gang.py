"""Members of gangs over several nodes wait here, prepared up to the command, for their commit.

Only the commit lets one run. It comes once from the server when the members on all nodes are
prepared and that is stored. Without it the member is given up after its own time, whoever is away;
a commit that comes later is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher.loop import Loop, Timer, wall_ms
from gpu_scheduler.agent.launcher.messages import Key
from gpu_scheduler.agent.work import NOT_BEGUN, Prepared

GANG = "gang"
Step = Callable[[str], None]


class Commits:
    """Who waits. Each step is called once: with "" at the commit, or with why there is none."""

    def __init__(
        self, attempts: dict[Key, Attempt], loop: Loop, report: Callable[[Prepared], None]
    ) -> None:
        """`attempts` is the launcher's own table."""
        self._attempts = attempts
        self._loop = loop
        self._report = report
        self._waiting: dict[Key, tuple[Attempt, Step, Timer]] = {}

    def wait(self, attempt: Attempt, step: Step) -> None:
        """Say that all is prepared, and wait; work that needs no commit goes on at once."""
        if not attempt.work.prepare_ms or attempt.stopped_by:
            step("")
            return
        attempt.prepared = True
        timer = self._loop.after(attempt.work.prepare_ms, lambda: self._give_up(attempt))
        self._waiting[attempt.key] = (attempt, step, timer)
        self._report(prepared_report(attempt))

    def commit(self, key: Key, prepare: Callable[[Attempt], None]) -> str:
        """Let it run; says why not if it cannot. `prepare` does what was only known now."""
        attempt = self._attempts.get(key)
        if attempt is None:
            return f"{key[0]} member {key[1]} is not known on this node"
        if attempt.committed or attempt.said_go or (attempt.over and attempt.over.ran):
            # Said again, perhaps to the launcher after the one that let it run.
            return ""
        if key not in self._waiting:
            return f"{key[0]} member {key[1]} does not wait for a commit any more"
        try:
            prepare(attempt)
        except OSError as error:
            self._end(attempt, f"cannot prepare the job: {error}")
            return ""
        attempt.committed = True
        self._end(attempt, "")
        return ""

    def leave(self, attempt: Attempt) -> None:
        """It is told to stop: it takes its step, which will see that."""
        self._end(attempt, "")

    def gone(self, attempt: Attempt) -> None:
        """A member has come to its end: those of its gang that wait here do so in vain."""
        self._forget(attempt)
        name = attempt.key[0]
        for key in sorted(key for key in self._waiting if key[0] == name):
            other = self._waiting[key][0]
            other.stopped_by = other.stopped_by or GANG
            self._end(other, f"member {attempt.key[1]} of the gang did not get ready")

    def _give_up(self, attempt: Attempt) -> None:
        """All that wait here for the same commit do so in vain, and none of them is to blame."""
        seconds = attempt.work.prepare_ms / 1000
        for key in sorted(key for key in self._waiting if key[0] == attempt.key[0]):
            member = self._waiting[key][0]
            member.stopped_by = member.stopped_by or NOT_BEGUN
            self._end(member, f"it was prepared, and no commit came within {seconds:g} s")

    def _end(self, attempt: Attempt, why: str) -> None:
        step = self._forget(attempt)
        if step is not None:
            self._loop.call(step, why)

    def _forget(self, attempt: Attempt) -> Step | None:
        found = self._waiting.pop(attempt.key, None)
        if found is None:
            return None
        found[2].cancel()
        attempt.prepared = False
        return found[1]


def prepared_report(attempt: Attempt) -> Prepared:
    """That it waits for its commit."""
    return Prepared(allocation_id=attempt.key[0], member=attempt.key[1], at_ms=wall_ms())


# --- Members of one gang on this node take a step together, or none of them does.
#
# Each comes with a step and waits. When all are there, every step hears ""; when one of them has
# come
# to its end before, the others hear why they wait in vain.

"""Why a member does not begin that was ready itself; the server uses the same word."""


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
