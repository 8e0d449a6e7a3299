"""Old name of `wait`: a program that loaded the client before the upgrade imports this late."""

from gpu_scheduler.client.wait import EventStream, wait_for

__all__ = ["EventStream", "wait_for"]
