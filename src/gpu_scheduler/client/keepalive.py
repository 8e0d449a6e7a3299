"""Now `socket_options`: a program that loaded the client before the upgrade imports this late."""

from gpu_scheduler.client.socket_options import notice_loss

__all__ = ["notice_loss"]
