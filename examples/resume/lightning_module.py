# ruff: noqa: T201, ARG002
"""PyTorch Lightning training that resumes after a preemption.

    tgpu submit -G 1 --grace 60s -- python lightning_module.py

A callback checks after every batch whether the scheduler requests a stop, and saves. A Lightning
checkpoint contains everything that `fit` needs to resume, so nothing else has to be restored.
"""

import argparse
import os
import time
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn


def stop_requested() -> bool:
    """The scheduler writes this file before it sends any signal."""
    return Path(os.environ.get("TGPU_STOP_FILE", "/nonexistent")).exists()


class StopOnRequest(Callback):
    """Save and stop on request; tell the scheduler about every checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stopped = False

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        print(f"step {trainer.global_step}", flush=True)
        if stop_requested():
            self.stop(trainer)

    def on_exception(self, trainer, module, exception) -> None:
        # Lightning raises an exception between two batches after SIGTERM.
        if stop_requested():
            self.stop(trainer)

    def stop(self, trainer) -> None:
        if not self.stopped:
            self.stopped = True
            trainer.save_checkpoint(self.path)
            print(f"stopped at step {trainer.global_step}", flush=True)
        trainer.should_stop = True

    def on_save_checkpoint(self, trainer, module, checkpoint) -> None:
        if saved := os.environ.get("TGPU_CHECKPOINT_FILE"):
            Path(saved).touch()


class Regression(lightning.LightningModule):
    """A minimal model."""

    def __init__(self, slow: float) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.slow = slow

    def training_step(self, batch, batch_idx):
        time.sleep(self.slow)
        return (self.layer(batch) - batch.sum(dim=1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints"))
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep in each step")
    args = parser.parse_args()

    last = args.checkpoint / "last.ckpt"
    trainer = lightning.Trainer(
        max_steps=args.steps,
        max_epochs=-1,
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            # Always the same file: only the newest state is needed to resume.
            ModelCheckpoint(
                dirpath=args.checkpoint,
                filename="last",
                every_n_train_steps=args.save_every,
                save_top_k=1,
                enable_version_counter=False,
            ),
            StopOnRequest(last),
        ],
    )
    data = torch.utils.data.DataLoader(torch.randn(3200, 8), batch_size=32)
    resume = last if last.exists() else None
    if resume:
        print(f"resuming from {resume}", flush=True)
    trainer.fit(Regression(args.slow), data, ckpt_path=resume)
    if trainer.global_step >= args.steps:
        print(f"finished at step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
