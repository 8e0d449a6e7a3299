# ruff: noqa: T201
"""DistributedDataParallel under torchrun that resumes after a preemption.

    tgpu submit -G 4 --grace 60s -- torchrun --standalone --nproc-per-node=gpu torchrun_ddp.py

All ranks must stop in the same step, or the others would wait for a rank that has exited. They
agree on it with one small all-reduce per step. Rank 0 saves, and all ranks wait for it.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def stop_requested() -> bool:
    """The scheduler writes this file before it sends any signal."""
    return Path(os.environ.get("TGPU_STOP_FILE", "/nonexistent")).exists()


def all_stop(device: torch.device) -> bool:
    """Whether any rank has a stop request; the same result on all ranks."""
    stop = torch.tensor([1.0 if stop_requested() else 0.0], device=device)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    return stop.item() > 0


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

    # torchrun forwards SIGTERM to its workers; they exit after they have agreed on the step.
    signal.signal(signal.SIGTERM, lambda *_: None)

    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0

    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        step = state["step"]
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"rank {rank} resumed at step {step}", flush=True)

    while step < args.steps:
        inputs = torch.randn(32, 8, device=device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(args.slow)
        stopping = all_stop(device)
        if stopping or step % args.save_every == 0 or step == args.steps:
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
                state = {
                    "step": step,
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                }
                save(args.checkpoint, state)
            dist.barrier()
        if stopping:
            break
    if rank == 0:
        print(f"{'finished' if step >= args.steps else 'stopped'} at step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
