# ruff: noqa: T201
"""One Weights & Biases run for all attempts of a job.

    tgpu submit -G 1 --grace 60s -- python wandb_run.py

The checkpoint contains the run id, so the next attempt continues the same curve. Jobs of a sweep
(`tgpu submit --param lr=0.1,0.01`) form one group.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import wandb
from torch import nn


def stop_reason() -> str:
    """`preempted`, `timeout` or `cancelled` if the scheduler requests a stop; otherwise empty."""
    try:
        return Path(os.environ.get("TGPU_STOP_FILE", "/nonexistent")).read_text().strip()
    except OSError:
        return ""


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
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep in each step")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: None)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step, run_id = 0, None
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        step, run_id = state["step"], state["wandb_id"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"resumed at step {step}", flush=True)

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "tgpu-examples"),
        id=run_id or wandb.util.generate_id(),
        resume="allow",
        group=os.environ.get("TGPU_SWEEP"),
        config={"lr": args.lr, "job": os.environ.get("TGPU_JOB_ID")},
    )

    def keep() -> None:
        save(
            args.checkpoint,
            {
                "step": step,
                "wandb_id": run.id,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            },
        )

    while step < args.steps:
        inputs = torch.randn(32, 8, device=device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(args.slow)
        # wandb drops points whose step was logged before, so repeated steps are harmless.
        run.log({"loss": loss.item()}, step=step)
        reason = stop_reason()
        if reason or step % args.save_every == 0 or step == args.steps:
            keep()
        if reason:
            if reason == "preempted":
                run.mark_preempting()
            run.finish(exit_code=1)
            print(f"stopped at step {step}: {reason}", flush=True)
            return
    run.finish()
    print(f"finished at step {step}", flush=True)


if __name__ == "__main__":
    main()
