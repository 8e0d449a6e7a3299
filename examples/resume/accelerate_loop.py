"""Hugging Face Accelerate training that resumes after a preemption.

    tgpu submit -G 2 --grace 60s -- accelerate launch --num_processes 2 accelerate_loop.py

`save_state` saves model, optimizer, schedule, random numbers and registered objects. A trigger
makes all processes stop in the same step.
"""

import argparse
import os
import shutil
import signal
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn


def stop_requested() -> bool:
    """The scheduler writes this file before it sends any signal."""
    return Path(os.environ.get("TGPU_STOP_FILE", "/nonexistent")).exists()


class Progress:
    """The number of finished steps; saved with the rest of the state."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict:
        return {"step": self.step}

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]


def save(accelerator: Accelerator, place: Path) -> None:
    """Save to a new directory, then replace the old one by a rename."""
    fresh = place.with_name(f"{place.name}.part")
    accelerator.save_state(str(fresh))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        old = place.with_name(f"{place.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            place.rename(old)
        fresh.rename(place)
        if saved := os.environ.get("TGPU_CHECKPOINT_FILE"):
            Path(saved).touch()
    accelerator.wait_for_everyone()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"))
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep in each step")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: None)

    accelerator = Accelerator()
    torch.manual_seed(accelerator.process_index)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)

    # If the process was killed between the two renames, the previous state still exists.
    for place in (args.checkpoint, args.checkpoint.with_name(f"{args.checkpoint.name}.old")):
        if place.exists():
            accelerator.load_state(str(place))
            accelerator.print(f"resumed at step {progress.step}", flush=True)
            break

    while progress.step < args.steps:
        inputs = torch.randn(32, 8, device=accelerator.device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        progress.step += 1
        time.sleep(args.slow)
        accelerator.print(f"step {progress.step} loss {loss.item():.4f}", flush=True)
        if stop_requested():
            accelerator.set_trigger()
        stopping = accelerator.check_trigger()
        if stopping or progress.step % args.save_every == 0 or progress.step == args.steps:
            save(accelerator, args.checkpoint)
        if stopping:
            accelerator.print(f"stopped at step {progress.step}", flush=True)
            return
    accelerator.print(f"finished at step {progress.step}", flush=True)


if __name__ == "__main__":
    main()
