# ruff: noqa: T201
"""Plain PyTorch training that resumes after a preemption.

    tgpu submit -G 1 --grace 60s -- python plain_pytorch.py --steps 10000

The state is everything that the next step needs: step, model, optimizer, schedule, random numbers.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn


def stop_requested() -> bool:
    """The scheduler writes this file before it sends any signal."""
    return Path(os.environ.get("TGPU_STOP_FILE", "/nonexistent")).exists()


def save(path: Path, state: dict) -> None:
    """Save atomically, then tell the scheduler that a checkpoint exists."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)
    if saved := os.environ.get("TGPU_CHECKPOINT_FILE"):
        Path(saved).touch()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep in each step")
    args = parser.parse_args()

    # SIGTERM follows the stop file; by default it would end the process in the middle of a step.
    signal.signal(signal.SIGTERM, lambda *_: None)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100)
    step = 0

    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"].cpu())
        print(f"resumed at step {step}", flush=True)

    while step < args.steps:
        # Draw on the CPU, so that only the CPU generator has to be saved. If the model draws on the
        # GPU, as dropout does, save torch.cuda.get_rng_state_all() as well.
        inputs = torch.randn(32, 8).to(device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        time.sleep(args.slow)
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        stopping = stop_requested()
        if stopping or step % args.save_every == 0 or step == args.steps:
            save(
                args.checkpoint,
                {
                    "step": step,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "random": torch.get_rng_state(),
                },
            )
        if stopping:
            print(f"stopped at step {step}", flush=True)
            return
    print(f"finished at step {step}", flush=True)


if __name__ == "__main__":
    main()
