"""All errors, grouped by who has to act.

SchedulerError
├── CallerError            the request is wrong; the caller can fix it
│   ├── InvalidRequest     a field has an invalid value
│   ├── InvalidInput       a file, or one line of it, is invalid (carries file and line)
│   ├── NeverFits          no known node, empty and healthy, could ever run the request
│   ├── QuotaTooSmall      the request alone is larger than the whole quota
│   ├── Forbidden          the caller may not do this
│   ├── UnknownThing       the request names a job, tenant, node or policy that does not exist
│   ├── AlreadyExists      the id is already in use
│   └── WrongState         the current state of the job does not allow the request
├── ClusterError           the cluster cannot do it now; the same call may work later
│   ├── NotLeader          another server is the leader, or none yet; nothing was done
│   ├── QueueFull          the queue is full
│   └── TooManyJobs        a user or tenant has too many waiting jobs
├── StoreError             the store cannot be used; an admin has to act
│   ├── StoreUnavailable   not readable or writable now: disk full, locked, read-only, missing
│   │   └── OutcomeUnknown a commit was interrupted, and its result is unknown
│   ├── StoreDamaged       the stored data is corrupt
│   └── StoreTooNew        a newer version of the program wrote the store
└── InternalError          a bug: an invariant of the code was violated

A message says what was asked, what was found and what to do.
Waiting is not an error: see `reasons`.
"""


class SchedulerError(Exception):
    """The base of every error that this project raises on purpose."""

    code = "error"
    exit_code = 1
    index: int | None = None
    """In a request with several items, the index of the faulty one."""
    data: tuple[tuple[str, str | int], ...] = ()
    """The data of the message, for programs."""


class CallerError(SchedulerError):
    """The request is wrong; the caller can fix it."""

    code = "caller_error"
    exit_code = 2


class InvalidRequest(CallerError):
    """A field has an invalid value."""

    code = "invalid_request"


class InvalidInput(CallerError):
    """A file, or one line of it, is invalid."""

    code = "invalid_input"

    def __init__(self, message: str, *, file: str, line: int | None = None) -> None:
        """Start with the file and line, so that an editor can jump to it."""
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {message}")
        self.file = file
        self.line = line


def read_error_detail(error: Exception) -> str:
    """Why a file cannot be read, without its name."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {error.start + 1})"
    return getattr(error, "strerror", None) or str(error)


class NeverFits(CallerError):
    """No known node, empty and healthy, could ever run the request."""

    code = "never_fits"


class QuotaTooSmall(CallerError):
    """The request alone is larger than the whole quota."""

    code = "quota_exceeded"


class Forbidden(CallerError):
    """The caller is known and may not do this."""

    code = "forbidden"


class UnknownThing(CallerError):
    """The request names something that does not exist."""

    code = "not_found"


class AlreadyExists(CallerError):
    """The id is already in use."""

    code = "already_exists"


class WrongState(CallerError):
    """The current state does not allow the request."""

    code = "wrong_state"


class ClusterError(SchedulerError):
    """The cluster cannot do this now; the same call may work later."""

    code = "cluster_error"


class NotLeader(ClusterError):
    """This server is not the leader; the request was not carried out."""

    code = "not_leader"


class QueueFull(ClusterError):
    """The queue is full."""

    code = "queue_full"


class TooManyJobs(ClusterError):
    """A user or tenant has too many waiting jobs."""

    code = "too_many_jobs"


class StoreError(SchedulerError):
    """The store cannot be used; an admin has to act."""

    code = "store_error"
    exit_code = 4


class StoreUnavailable(StoreError):
    """The store cannot be read or written now; the same call may work later."""

    code = "unavailable"


class OutcomeUnknown(StoreUnavailable):
    """A commit was interrupted, and its result is unknown."""

    code = "outcome_unknown"


class StoreDamaged(StoreError):
    """The stored data is corrupt."""

    code = "store_damaged"
    exit_code = 5


class StoreTooNew(StoreError):
    """A newer version of the program wrote the store."""

    code = "store_too_new"
    exit_code = 6


class InternalError(SchedulerError):
    """A bug: an invariant of the code was violated; please report it."""

    code = "internal_error"
