"""Exponential back-off with jitter: a failure comes in, the delay before the next try goes out."""

from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Delays that double from `first_seconds` to `longest_seconds`, each 50 to 100 % of its step.

    The jitter keeps many clients that failed together from coming back together.
    """

    first_seconds: float = 0.2
    longest_seconds: float = 10.0
    random: Random = field(default_factory=Random)
    failures: int = 0

    def next_delay(self) -> float:
        """The delay after one more failure."""
        step = min(self.longest_seconds, self.first_seconds * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return step * self.random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again from the first delay, after a success."""
        self.failures = 0
