"""All errors of the Kubernetes API, grouped by what the caller knows afterwards.

KubernetesError
├── InvalidConfiguration    no usable kubeconfig, service account or certificate
├── Rejected                the API server answered no; nothing was changed
│   ├── BadRequest          400, 405, 406, 415: the request itself is malformed
│   ├── Unauthorized        401: the credentials are missing, wrong or expired
│   ├── Forbidden           403: RBAC or an admission policy forbids it
│   ├── NotFound            404: no such object, or no such resource
│   ├── Conflict            409: the object has changed, is assigned, or has another uid
│   │   └── AlreadyExists   409: an object of this name exists
│   ├── Gone                410: the resource version or continue token is too old; list again
│   ├── TooLarge            413: the object exceeds the server's limit
│   ├── Invalid             422: validation failed; `causes` names the fields
│   └── TooManyRequests     429: overloaded; `retry_after_seconds` says when to try again
│       └── EvictionBlocked 429: a PodDisruptionBudget does not allow this eviction now
├── Unreachable             no connection; the request was not sent, nothing was changed
├── OutcomeUnknown          sent, but no answer came (timeout, lost connection, 5xx): read to learn
└── MalformedAnswer         an answer that is no Kubernetes object of the expected form
"""

from collections.abc import Mapping

import msgspec


class KubernetesError(Exception):
    """The base of all errors of this package; `code` stays the same from version to version."""

    code = "kubernetes_error"


class InvalidConfiguration(KubernetesError):
    """There is no usable kubeconfig, service account or certificate."""

    code = "kubernetes_invalid_configuration"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One field that failed, and why."""

    reason: str = ""
    message: str = ""
    field: str = ""


class Rejected(KubernetesError):
    """The API server answered no; nothing was changed."""

    code = "kubernetes_rejected"

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", causes: tuple[Cause, ...] = ()
    ) -> None:
        """Keep what programs can use: the HTTP status, Kubernetes' reason and the causes."""
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.causes = causes


class BadRequest(Rejected):
    """The request itself is malformed."""

    code = "kubernetes_bad_request"


class Unauthorized(Rejected):
    """The credentials are missing, wrong or expired."""

    code = "kubernetes_unauthorized"


class Forbidden(Rejected):
    """RBAC or an admission policy forbids it."""

    code = "kubernetes_forbidden"


class NotFound(Rejected):
    """No such object, or no such resource."""

    code = "kubernetes_not_found"


class Conflict(Rejected):
    """The object has changed, is assigned already, or has another uid."""

    code = "kubernetes_conflict"


class AlreadyExists(Conflict):
    """An object of this name exists."""

    code = "kubernetes_already_exists"


class Gone(Rejected):
    """The resource version or continue token is too old; list again."""

    code = "kubernetes_gone"


class TooLarge(Rejected):
    """The object exceeds the server's limit."""

    code = "kubernetes_too_large"


class Invalid(Rejected):
    """Validation failed; `causes` names the fields."""

    code = "kubernetes_invalid"


class TooManyRequests(Rejected):
    """The API server is overloaded, or the request has to wait."""

    code = "kubernetes_too_many_requests"
    retry_after_seconds: float | None = None


class EvictionBlocked(TooManyRequests):
    """A PodDisruptionBudget does not allow this eviction now."""

    code = "kubernetes_eviction_blocked"


class Unreachable(KubernetesError):
    """No connection: the request was not sent, nothing was changed."""

    code = "kubernetes_unreachable"


class OutcomeUnknown(KubernetesError):
    """The request was sent and no usable answer came; it may have been carried out."""

    code = "kubernetes_outcome_unknown"
    retry_after_seconds: float | None = None


class MalformedAnswer(KubernetesError):
    """The answer is no Kubernetes object of the expected form."""

    code = "kubernetes_malformed_answer"


class _Details(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: float = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server answers when it has no object to answer with."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_BY_STATUS: dict[int, type[Rejected]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: Invalid,
    429: TooManyRequests,
}


def error_of_answer(
    what: str, http_status: int, headers: Mapping[str, str], body: bytes
) -> KubernetesError:
    """The error that an answer of 300 and above means; `what` names the request."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        # A proxy or load balancer answers with text of its own.
        status = Status(message=body[:200].decode(errors="replace").strip())
    return error_of_status(what, http_status, status, _seconds(headers.get("retry-after", "")))


def error_of_status(
    what: str, http_status: int, status: Status, retry_after: float | None = None
) -> KubernetesError:
    """The error that a Status object means, in an answer or in a watch."""
    details = status.details or _Details()
    message = f"{what}: {http_status} {status.reason or 'error'}: {status.message or 'no message'}"
    if retry_after is None and details.retry_after_seconds:
        retry_after = details.retry_after_seconds
    if http_status >= 500:
        unknown = OutcomeUnknown(message)
        unknown.retry_after_seconds = retry_after
        return unknown
    kind = _BY_STATUS.get(http_status, BadRequest)
    if status.reason == "AlreadyExists":
        kind = AlreadyExists
    elif kind is TooManyRequests and any(c.reason == "DisruptionBudget" for c in details.causes):
        kind = EvictionBlocked
    error = kind(message, status=http_status, reason=status.reason, causes=details.causes)
    if isinstance(error, TooManyRequests):
        error.retry_after_seconds = retry_after
    return error


def _seconds(header: str) -> float | None:
    """Retry-After in seconds; its other form, a date, is not used by Kubernetes."""
    try:
        return max(0.0, float(header))
    except ValueError:
        return None
