"""Everything that can go wrong, by whose fault it is.

SchedulerError
├── CallerError            the request is wrong; the caller can mend it
│   ├── InvalidRequest     a field has a value that no scheduler could accept
│   ├── InvalidInput       a file or a row of it cannot be read (carries file and line)
│   ├── NeverFits          no known node could ever run this, even empty
│   ├── QuotaTooSmall      more than the whole quota of the tenant
│   ├── Forbidden          the caller may not do this
│   ├── UnknownThing       a job, tenant, node or policy of that name does not exist
│   ├── AlreadyExists      the id is taken
│   └── WrongState         the job is in a state that does not allow this move
├── ClusterError           the cluster cannot do it now
│   ├── NotLeader          another server leads now, or none does yet; nothing was done
│   ├── QueueFull          the queue holds as many tasks as it may
│   └── TooManyJobs        a user or tenant has as many jobs waiting as it may
├── StoreError             what is remembered cannot be used
│   ├── StoreUnavailable   it cannot be read or written now: disk full, locked, read-only, away
│   │   └── OutcomeUnknown a commit was interrupted, and whether it was kept is not known
│   ├── StoreDamaged       the file is not what was written; nothing may be built on it
│   └── StoreTooNew        a newer version of the program has written it
└── InternalError          our fault: a promise of the code was broken

A message says what was asked, what was found and what to do.
Waiting is not an error: see `reasons`.
"""


class SchedulerError(Exception):
    """The base of every error that this project raises on purpose."""

    code = "error"
    exit_code = 1
    index: int | None = None
    """Of several things that were given at once, which one is at fault."""
    data: tuple[tuple[str, str | int], ...] = ()
    """What the sentence says, for programs."""


class CallerError(SchedulerError):
    """The caller asked for something wrong and can mend it."""

    code = "caller_error"
    exit_code = 2


class InvalidRequest(CallerError):
    """A field has a value that could never be accepted."""

    code = "invalid_request"


class InvalidInput(CallerError):
    """A file, or one line of it, does not hold what it should."""

    code = "invalid_input"

    def __init__(self, message: str, *, file: str, line: int | None = None) -> None:
        """Name the place first, so that an editor can jump to it."""
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {message}")
        self.file = file
        self.line = line


def read_error_detail(error: Exception) -> str:
    """Why a file cannot be read, without its name, which stands before that."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text in UTF-8 (byte {error.start + 1})"
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
    """Something was named that does not exist."""

    code = "not_found"


class AlreadyExists(CallerError):
    """An id was given that is taken."""

    code = "already_exists"


class WrongState(CallerError):
    """The job's state does not allow what was asked."""

    code = "wrong_state"


class ClusterError(SchedulerError):
    """The cluster cannot do this now; the same call may work later."""

    code = "cluster_error"


class NotLeader(ClusterError):
    """This server does not lead (any more): what it was asked for was not done."""

    code = "not_leader"


class QueueFull(ClusterError):
    """The queue holds as many tasks as it may."""

    code = "queue_full"


class TooManyJobs(ClusterError):
    """A user or tenant has as many jobs waiting as it may."""

    code = "too_many_jobs"


class StoreError(SchedulerError):
    """What is remembered cannot be used; a person has to look."""

    code = "store_error"
    exit_code = 4


class StoreUnavailable(StoreError):
    """The store cannot be read or written now; the same call works when the cause is gone."""

    code = "unavailable"


class OutcomeUnknown(StoreUnavailable):
    """A commit was interrupted, and nobody could be asked whether it was kept."""

    code = "outcome_unknown"


class StoreDamaged(StoreError):
    """The store does not hold what was written to it."""

    code = "store_damaged"
    exit_code = 5


class StoreTooNew(StoreError):
    """The store was written by a newer version of the program."""

    code = "store_too_new"
    exit_code = 6


class InternalError(SchedulerError):
    """A promise of the code was broken; please report it."""

    code = "internal_error"
