"""Now `body_check`: a program that loaded the client before the upgrade imports this late."""

from gpu_scheduler.client import http1

if not hasattr(http1, "encode_utf8"):  # the program still has the old module, with the old name
    http1.encode_utf8 = http1.as_utf8  # type: ignore[attr-defined]

from gpu_scheduler.client.body_check import refusal

__all__ = ["refusal"]
