"""The output of a job, one attempt after the other, until it has ended for good."""

from __future__ import annotations

from gpu_scheduler.cli.logs import Follower
from gpu_scheduler.cli.reach import warn
from gpu_scheduler.cli.waiting import wait_until
from gpu_scheduler.client.forms import is_over
from gpu_scheduler.model.errors import ClusterError, UnknownThing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpu_scheduler.cli.waiting import Notes
    from gpu_scheduler.client.client import Client

WAITING = ("pending", "preempted")


class Attempts:
    """Copies every attempt from the first that is wanted on, also those nobody saw begin.

    It knows how far it got, so that it can go on when it was interrupted.
    """

    def __init__(
        self,
        client: Client,
        job: str,
        notes: Notes,
        *,
        first: int = 1,
        query: Mapping[str, object] | None = None,
        write: Callable[[bytes], None] | None = None,
        between: Callable[[], None] | None = None,
    ) -> None:
        """The `query` says of which member; a tail is one of the first attempt.

        `between` is called when the output of an attempt has come to its end.
        """
        self._client = client
        self._job = job
        self._notes = notes
        self._write = write
        self._between = between
        self._query = dict(query or {})
        self._number = first
        self._is_told = False
        self._before = 0
        self._follower = self._follower_of(first)

    @property
    def copied(self) -> int:
        """How many bytes there were."""
        return self._before + self._follower.copied

    def until_its_end(self) -> Mapping[str, Any]:
        """Copy until the job is over; the job as it is then."""
        while True:
            self._copy()
            found = self._wait_until(self._is_settled)
            if not is_over(found) or self._has_begun_another(found):
                self._tell_its_end()
                found = self._wait_until(lambda job: is_over(job) or self._has_begun_another(job))
            if not self._has_begun_another(found):
                return found
            self._begin(self._number + 1)

    def _follower_of(self, attempt: int) -> Follower:
        return Follower(self._client, self._job, self._query | {"attempt": attempt}, self._write)

    def _copy(self) -> None:
        """Copy this attempt. If its output is out of reach, that of later ones may not be."""
        try:
            self._follower.copy()
        except (ClusterError, UnknownThing) as error:
            if not self._is_past(self._client.get(self._job)):
                raise
            warn(f"{self._job}: {error}")
        if self._between is not None:
            self._between()

    def _wait_until(self, ready: Callable[[dict[str, Any]], bool]) -> Mapping[str, Any]:
        found = wait_until(ready, self._client, self._job, self._notes)
        self._notes.clear()
        return found

    def _tell_its_end(self) -> None:
        if not self._is_told:
            self._notes.tell(f"attempt {self._number} of {self._job} is over; another one follows")
        self._is_told = True

    def _begin(self, attempt: int) -> None:
        self._notes.tell(f"attempt {attempt} of {self._job} begins")
        self._before += self._follower.copied
        self._query.pop("tail", None)
        self._number, self._is_told = attempt, False
        self._follower = self._follower_of(attempt)

    def _is_settled(self, job: Mapping[str, Any]) -> bool:
        """Whether the server knows what becomes of a job whose attempt has ended."""
        return is_over(job) or self._is_past(job)

    def _is_past(self, job: Mapping[str, Any]) -> bool:
        """Whether this attempt is over, and not the last one."""
        waits_again = job["state"] in WAITING and _attempt(job) == self._number
        return waits_again or self._has_begun_another(job)

    def _has_begun_another(self, job: Mapping[str, Any]) -> bool:
        return _attempt(job) > self._number


def _attempt(job: Mapping[str, Any]) -> int:
    return int(job.get("attempt") or 0)
