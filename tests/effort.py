"""How hard the tests search: `make test` searches briefly, `make test-all` and `make soak` fully.

`TEST_EFFORT=short` divides the number of generated cases by `SHORT_DIVISOR`; anything else searches
all of them.
"""

import os

SHORT_DIVISOR = 5
LEAST_EXAMPLES = 8
IS_SHORT = os.environ.get("TEST_EFFORT") == "short"


def examples(count: int) -> int:
    """The number of Hypothesis examples for a test that searches `count` of them in full."""
    return max(min(count, LEAST_EXAMPLES), count // SHORT_DIVISOR) if IS_SHORT else count
