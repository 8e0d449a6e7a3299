"""What is wrong with settings, gathered so that all of it is told at once.

One mistake is raised as it is. Several become one error with a line for each, in the order in which
they were found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.model.errors import CallerError, InvalidInput, InvalidRequest


class SeveralMistakes(InvalidRequest):
    """More than one thing is wrong; `mistakes` are the sentences, each with its place."""

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        """Say how many, then each on a line of its own."""
        lines = "".join(f"\n  {mistake}" for mistake in mistakes)
        super().__init__(f"{len(mistakes)} mistakes in the settings:{lines}")
        self.mistakes = mistakes


class Mistakes:
    """What was found so far. `groups` are those of which some value could not be read."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.groups: set[str] = set()
        self._found: list[tuple[str, CallerError]] = []

    def __bool__(self) -> bool:
        """Tell whether anything is wrong."""
        return bool(self._found)

    def add(self, error: CallerError, *, place: str = "") -> None:
        """Note a mistake; `place` is for those that do not say where they are."""
        self._found.append((place, error))

    @contextmanager
    def gathered(self, *, place: str = "", group: str = "") -> Iterator[None]:
        """Note what is refused in the block, and go on behind it."""
        try:
            yield
        except (InvalidRequest, InvalidInput) as error:
            self.add(error, place=place)
            if group:
                self.groups.add(group)

    def check(self) -> None:
        """Raise what was found, if anything was."""
        if len(self._found) == 1 and not isinstance(self._found[0][1], SeveralMistakes):
            raise self._found[0][1]
        if self._found:
            raise SeveralMistakes(
                tuple(
                    f"{place}: {told}" if place else told
                    for place, error in self._found
                    for told in told_by(error)
                )
            )


def told_by(error: CallerError) -> tuple[str, ...]:
    """The sentences of an error, one for each mistake."""
    return error.mistakes if isinstance(error, SeveralMistakes) else (str(error),)
