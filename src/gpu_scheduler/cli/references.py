"""Jobs as people name them, to the ids of the server.

`12`, `job-12`, `1-3,7`, `12_4`, `12_[1-3]`, `last`, `last_4`, `@~1` (the one
before the last), `all`.
"""

from __future__ import annotations

import re

from gpu_scheduler.cli.reach import mine
from gpu_scheduler.client.forms import ACTIVE
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_scheduler.client.client import Client

MOST_JOBS = 100_000
NONE = "'all' means your jobs that wait or run, and there are none"
EXPECTED = "write 12, job-12, 1-3,7, 12_4, 12_[1-3], last, last_4, @~1 or all"
_TASKS = r"(?:_(?:(\d{1,18})|\[([\d,:-]+)\]|(\d+-\d+)))?"
_ONE = rf"(?:job-)?(\d{{1,18}}){_TASKS}"
_RANGE = r"(?:job-)?(\d{1,18})-(?:job-)?(\d{1,18})"
_BACK = rf"(?:last|@(?:~(\d{{1,9}}))?){_TASKS}"


class Reference:
    """A job, or some tasks of one."""

    __slots__ = ("job_id", "tasks")

    def __init__(self, job_id: str, tasks: str | None = None) -> None:
        self.job_id = job_id
        self.tasks = tasks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return f"Reference({str(self)!r})"

    def __str__(self) -> str:
        """As the server writes it; several tasks stand in brackets."""
        if self.tasks is None:
            return self.job_id
        one = self.tasks.isdecimal()
        return f"{self.job_id}_{self.tasks}" if one else f"{self.job_id}_[{self.tasks}]"


def references(client: Client, words: Iterable[str]) -> list[Reference]:
    """Every job that is named, once, in the order of naming."""
    found: dict[Reference, None] = {}
    for word in words:
        for part in _parts(word):
            for reference in _meant(client, part):
                found[reference] = None
    if len(found) > MOST_JOBS:
        raise InvalidRequest(f"these are more than {MOST_JOBS:,} jobs; name fewer at once")
    return list(found)


def one_reference(client: Client, word: str) -> Reference:
    """The only job that is named."""
    found = references(client, [word])
    if len(found) != 1:
        raise InvalidRequest(f"'{word}' names {len(found)} jobs; name one")
    return found[0]


def _parts(word: str) -> list[str]:
    """Split at commas that are not in brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", word)]


def _meant(client: Client, part: str) -> Iterator[Reference]:
    if match := re.fullmatch(_ONE, part, re.ASCII):
        yield Reference(f"job-{int(match[1])}", match[2] or match[3] or match[4])
    elif match := re.fullmatch(_RANGE, part, re.ASCII):
        first, last = int(match[1]), int(match[2])
        if not first <= last < first + MOST_JOBS:
            raise InvalidRequest(f"'{part}' is no range of at most {MOST_JOBS:,} jobs")
        for number in range(first, last + 1):
            yield Reference(f"job-{number}")
    elif match := re.fullmatch(_BACK, part, re.ASCII):
        yield Reference(_recent(client, int(match[1] or 0)), match[2] or match[3] or match[4])
    elif part == "all":
        for job in client.list(state=ACTIVE, user=mine()):
            yield Reference(job["id"])
    else:
        raise InvalidRequest(f"'{part}' is no job; {EXPECTED}")


def _recent(client: Client, back: int) -> str:
    page = client.page(user=mine(), sort="-number", limit=1, offset=back)
    if not page["jobs"]:
        raise UnknownThing("you have not submitted that many jobs")
    return str(page["jobs"][0]["id"])
