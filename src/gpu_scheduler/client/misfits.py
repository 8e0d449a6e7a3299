"""Now `body_check`: a program that loaded the client before the upgrade imports this late."""

from gpu_scheduler.client.body_check import refusal

__all__ = ["refusal"]
