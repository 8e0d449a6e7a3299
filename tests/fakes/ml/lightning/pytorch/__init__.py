from lightning.pytorch import callbacks

__all__ = ["callbacks"]
