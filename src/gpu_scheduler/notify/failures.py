"""Why something could not be delivered."""

from __future__ import annotations


class DeliveryFailed(Exception):
    """A try that failed. `everybody`: the receiver itself is unwell, others need not be tried."""

    def __init__(self, why: str, *, everybody: bool = False) -> None:
        super().__init__(why)
        self.everybody = everybody
