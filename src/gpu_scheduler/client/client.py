"""The blocking client.

Calls come in, jobs and documents as the server describes them go out. Errors are the exceptions of
`gpu_scheduler.model.errors` and `gpu_scheduler.client.errors`.
"""

from __future__ import annotations

import time

from gpu_scheduler.client import requests, retry
from gpu_scheduler.client.address import candidates
from gpu_scheduler.client.connection import Connection
from gpu_scheduler.client.errors import JobFailed, NoServer, Unreadable
from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.requests import API, job_path, joined, submission, submissions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any, Self, Unpack

    from gpu_scheduler.client.fields import Job, JobFields, Word

_PAGE = 1000


class JobHandle:
    """A submitted job: its id, and the requests about it."""

    __slots__ = ("_client", "id", "tasks")

    def __init__(self, client: Client, job_id: str, tasks: int = 1) -> None:
        self._client = client
        self.id = job_id
        self.tasks = tasks

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    def info(self) -> Job:
        """The job as the REST API shows it."""
        return self._client.get(self.id)

    def state(self) -> str:
        """The state of the job: pending, scheduled, running, completed, failed, ..."""
        return str(self.info()["state"])

    def wait(self, timeout: float | None = None) -> Job:
        """Wait for the end and return the job; raises `TimedOut` after the timeout."""
        return self._client.wait(self.id, timeout)

    def result(self, timeout: float | None = None) -> int:
        """Wait for the end; returns 0, or raises `JobFailed`."""
        job = self.wait(timeout)
        if job.get("state") != "completed":
            raise JobFailed(job)
        return requests.exit_code_of(job)

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """The output as text, in pieces; with `follow` until the job ends."""
        return self._client.logs(self.id, follow=follow)

    def cancel(self) -> Job:
        """Cancel the job, running or pending."""
        return self._client.cancel(self.id)

    def explain(self) -> dict[str, Any]:
        """Why the job waits and until when, or how it ended: `reason`, `expected_start`, ..."""
        return self._client.explain(self.id)

    def resubmit(self) -> JobHandle:
        """Submit it again as a new job after it has ended; see `Client.resubmit`."""
        return self._client.resubmit(self.id)

    def retry(self, *, cancelled: bool = False) -> dict[str, Any]:
        """Put it back into the queue after it failed or was cancelled; see `Client.retry`."""
        return self._client.retry(self.id, cancelled=cancelled)


class Client:
    """A server, by default the one of this machine.

    `server` is `unix:/path`, the path of a state directory, or `https://host:port`; several
    servers of one cluster with commas between them, of which the leader is found; else the
    variable TGPU_SERVER; else one's own server, then that of the machine. A server elsewhere is
    shown the token of GPU_SCHEDULER_TOKEN or GPU_SCHEDULER_TOKEN_FILE. Not for several threads at
    once: give each its own.
    """

    def __init__(self, server: str | None = None) -> None:
        self.connection = Connection(candidates(server))

    def __repr__(self) -> str:
        return f"Client({str(self.connection)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        self.connection.close()

    # --- jobs

    def submit(self, command: Sequence[Word] | None = None, **job: Unpack[JobFields]) -> JobHandle:
        """Submit one job. A single string as command is run by a shell."""
        answer = self.call("POST", f"{API}/jobs", submission(command, job))
        return JobHandle(self, answer["job_id"], answer.get("tasks", 1))

    def submit_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[JobHandle]:
        """Submit several jobs atomically; each is a mapping of fields with its `command`."""
        bodies = submissions(jobs)
        if not bodies:
            return []
        answer = self.call("POST", f"{API}/jobs/bulk", bodies)
        return [JobHandle(self, job_id) for job_id in answer["job_ids"]]

    def job(self, job: str | int) -> JobHandle:
        """Return a handle for an existing job."""
        return JobHandle(self, requests.job_id(job))

    def get(self, job: str | int) -> Job:
        """One job, or one task of an array (`12_4`), as the REST API shows it."""
        return self._object("GET", job_path(job))

    def page(self, **query: object) -> dict[str, Any]:
        """One page of jobs: `jobs`, `total` and `next_cursor`. Query as in the REST API."""
        return self._object("GET", target(f"{API}/jobs", query))

    def list(self, state: str | Iterable[str] | None = None, **query: object) -> Iterator[Job]:
        """Yield all jobs that match the query, page by page."""
        query = {"limit": _PAGE} | query | {"state": joined(state)}
        while True:
            page = self.page(**query)
            yield from page["jobs"]
            if not page.get("next_cursor"):
                return
            query["cursor"] = page["next_cursor"]

    def update(self, job: str | int, **changes: object) -> Job:
        """Change a pending job."""
        return self._object("PATCH", job_path(job), requests.changes(changes))

    def cancel(self, job: str | int, tasks: str | None = None) -> Job:
        """Cancel a job, or some tasks of an array such as `1-3`."""
        return self._object("DELETE", target(job_path(job), {"tasks": tasks}))

    def hold(self, job: str | int) -> Job:
        """Hold a job, so that it does not start."""
        return self._object("POST", job_path(job, "hold"))

    def release(self, job: str | int) -> Job:
        """Release a held job."""
        return self._object("POST", job_path(job, "release"))

    def retry(self, job: str | int, *, cancelled: bool = False) -> Job:
        """Put a job that failed or was cancelled back into the queue.

        Of an array the tasks that failed; with `cancelled`, or if it has ended without a
        failure, the cancelled ones as well.
        """
        query = {"cancelled": "true" if cancelled else None}
        return self._object("POST", target(job_path(job, "retry"), query))

    def resubmit(self, job: str | int) -> JobHandle:
        """Submit a job that has ended again, as a new job with the same environment.

        Also one that completed. The new job has no dependencies, begin time and deadline.
        """
        answer = self._object("POST", job_path(job, "resubmit"))
        return JobHandle(self, answer["job_id"], answer.get("tasks", 1))

    def correct_usage(
        self, job: str | int, attempt: int, run_seconds: float, reason: str
    ) -> dict[str, Any]:
        """Charge an ended attempt of a job or task for another run time (for admins)."""
        body = {"attempt": attempt, "run_seconds": run_seconds, "reason": reason}
        return self._object("POST", job_path(job, "correct-usage"), body)

    def explain(self, job: str | int) -> dict[str, Any]:
        """Why a job waits, and its expected start."""
        return self._object("GET", job_path(job, "explain"))

    def attempts(self, job: str | int) -> Any:
        """The attempts of a job; of a very large array the first ones, with `next_task`."""
        return self.call("GET", job_path(job, "attempts"))

    def tasks(self, job: str | int) -> Any:
        """The tasks of an array that have been started."""
        return self.call("GET", job_path(job, "tasks"))

    def logs(self, job: str | int, *, follow: bool = False, **query: object) -> Iterator[str]:
        """The output of a job as text, in pieces. Query: attempt, task, member, tail, offset."""
        from codecs import getincrementaldecoder  # noqa: PLC0415

        decoder = getincrementaldecoder("utf-8")("replace")
        for piece in self.log_bytes(job, follow=follow, **query):
            yield decoder.decode(piece)
        if rest := decoder.decode(b"", final=True):
            yield rest

    def log_bytes(
        self, job: str | int, *, follow: bool = False, **query: object
    ) -> Iterator[bytes]:
        """The output of a job as bytes."""
        path = target(job_path(job, "logs"), query | {"follow": 1 if follow else None})
        answer, pieces = self.connection.stream(path, {"Accept": "text/plain"})
        if answer.status >= 400:
            requests.decoded(answer.status, b"".join(pieces))
        return pieces

    def wait(self, job: str | int, timeout: float | None = None) -> Job:
        """Wait until a job has ended, through restarts of the server."""
        from gpu_scheduler.client.waiting import wait_for  # noqa: PLC0415

        return wait_for(self, job, timeout)

    # --- the rest

    def tenants(self) -> Sequence[dict[str, Any]]:
        """All tenants."""
        return list(self.call("GET", f"{API}/tenants")["tenants"])

    def gpus(self) -> Sequence[dict[str, Any]]:
        """All GPUs."""
        return list(self.call("GET", f"{API}/gpus")["gpus"])

    def nodes(self) -> Sequence[dict[str, Any]]:
        """All nodes."""
        return list(self.call("GET", f"{API}/nodes")["nodes"])

    def status(self, *, detailed: bool = False) -> dict[str, Any]:
        """The cluster in numbers; detailed, also how many jobs wait by priority."""
        more = "?detailed=true" if detailed else ""
        return self._object("GET", f"{API}/cluster/status{more}")

    def health(self) -> dict[str, Any]:
        """The health of the server and its parts."""
        answer, body = self.connection.request(
            "GET", f"{API}/health", requests.headers_for(None), None
        )
        # An unhealthy server says so with 503 and the same document.
        return dict(requests.decoded(200 if b'"status"' in body else answer.status, body))

    def usage(self, **query: object) -> Any:
        """The usage of accounts. Query: tenant_id, user, period."""
        return self.call("GET", target(f"{API}/usage", query))

    def events(self, after: int | None = None) -> Iterator[dict[str, Any]]:
        """Events as they happen; with `after` also those since that sequence number."""
        from gpu_scheduler.client.waiting import EventStream  # noqa: PLC0415

        stream = EventStream.open(self.connection, after)
        if stream is None:
            raise Unreadable("the server has no stream of events")
        with stream:
            while (event := stream.next(None)) is not None:
                yield event

    def call(self, method: str, path: str, body: object = None, *, once: bool = True) -> Any:
        """Send any request of the REST API; returns the document, or raises the error.

        What changes something carries a key (unless `once` is off), so that it is done once
        however often it is sent.
        """
        headers = requests.headers_for(body, once=once and method != "GET")
        for pause_s in retry.PAUSES_S:
            status, content = self._follow(method, path, headers, requests.encoded(body))
            if not retry.is_rate_limited(status, content):
                break
            time.sleep(pause_s)
        return requests.decoded(status, content)

    def _follow(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        """Send a request, and retry while there is no leader or no available server."""
        give_up = time.monotonic() + retry.FOLLOW_S
        is_safe = retry.is_repeatable(method, headers)
        last_answer: tuple[int, bytes] | None = None
        while True:
            has_others = self.connection.has_others
            can_wait = time.monotonic() < give_up
            try:
                answer, content = self.connection.request(method, path, headers, body)
            except (NoServer, Unreadable) as error:
                if last_answer is not None and not has_others:
                    return last_answer
                # If none of them has ever answered, waiting cannot help.
                has_answered = self.connection.address is not None
                is_harmless = is_safe or isinstance(error, NoServer)
                if not (can_wait and has_others and has_answered and is_harmless):
                    raise
            else:
                last_answer = answer.status, content
                if not can_wait or not retry.should_retry_elsewhere(
                    *last_answer, has_others=has_others, is_safe=is_safe
                ):
                    return last_answer
            self.connection.switch_server()
            time.sleep(retry.FOLLOW_PAUSE_S)

    def text(self, path: str) -> str:
        """Return a page that is not JSON, such as the metrics."""
        answer, content = self.connection.request("GET", path, {"Accept": "text/plain"}, None)
        if answer.status >= 400:
            requests.decoded(answer.status, content)
        return content.decode("utf-8", "replace")

    def _object(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = self.call(method, path, body)
        if not isinstance(answer, dict):
            raise Unreadable("the server's response has an unexpected form")
        return answer
