"""Which requests the clients retry, and when they switch to another server."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

TOO_MANY_REQUESTS = 429
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 0.0)
"""The pauses before each retry of a request that exceeded the rate limit."""
UNAVAILABLE = 503
FOLLOW_S = 20.0
"""How long to look for the leader: a little longer than a failover takes."""
FOLLOW_PAUSE_S = 0.25
_NOT_LEADER = b'"not_leader"'
_OUTCOME_UNKNOWN = b'"outcome_unknown"'
_SERVER_PROBLEM = (b'"unavailable"', b'"cluster_error"')


def is_repeatable(method: str, headers: Mapping[str, str]) -> bool:
    """Tell whether a request is safe to send again to a server that may have processed it."""
    return method == "GET" or "Idempotency-Key" in headers


def is_rate_limited(status: int, body: bytes) -> bool:
    """Tell whether the request exceeded the rate limit and should be retried."""
    return status == TOO_MANY_REQUESTS and b'"too_fast"' in body


def should_retry_elsewhere(status: int, body: bytes, *, has_others: bool, is_safe: bool) -> bool:
    """Tell whether to retry, because the server is not the leader or is not available.

    A single server will soon lead or know the leader; with others, another one may be available. A
    request that may have taken effect is retried only if it `is_safe` to repeat.
    """
    if status != UNAVAILABLE:
        return False
    if _NOT_LEADER in body or (is_safe and _OUTCOME_UNKNOWN in body):
        return True
    return has_others and any(code in body for code in _SERVER_PROBLEM)
