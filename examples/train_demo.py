# ruff: noqa: T201
"""A training run that can be stopped at any time and resumes. It does not need torch.

    tgpu submit --gpus 1 --time 5m --signal USR1@30 -- python examples/train_demo.py

It saves its state every few steps, on SIGUSR1 (the warning before the time limit), and on SIGTERM
(time limit, preemption or cancel). The next attempt resumes. After each save it touches the file
named by TGPU_CHECKPOINT_FILE, so that the scheduler knows how little work a preemption would lose.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM


class Training:
    """A simulated training: a loss that decreases with every step."""

    def __init__(self, checkpoint: Path, learning_rate: float) -> None:
        self.checkpoint = checkpoint
        self.learning_rate = learning_rate
        self.step = 0
        self.loss = 10.0
        self.save_now = False
        self.stop_now = False

    def resume(self) -> None:
        """Load the state that an earlier attempt saved."""
        if not self.checkpoint.exists():
            return
        state = json.loads(self.checkpoint.read_text())
        self.step, self.loss = state["step"], state["loss"]
        print(f"resumed at step {self.step}", flush=True)

    def save(self) -> None:
        """Write the state atomically, and tell the scheduler."""
        part = self.checkpoint.with_suffix(".part")
        part.write_text(json.dumps({"step": self.step, "loss": self.loss}))
        part.replace(self.checkpoint)
        if marker := os.environ.get("TGPU_CHECKPOINT_FILE"):
            Path(marker).touch()
        print(f"saved at step {self.step}", flush=True)

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Only set flags: a save in the middle of a step would be inconsistent."""
        self.save_now = True
        self.stop_now = self.stop_now or number == signal.SIGTERM

    def run(self, steps: int, step_seconds: float, save_every: int) -> int:
        """Train to the end, or until a stop is requested."""
        while self.step < steps:
            time.sleep(step_seconds)
            self.step += 1
            self.loss *= 1 - self.learning_rate
            if self.save_now or self.step % save_every == 0:
                self.save_now = False
                self.save()
            if self.stop_now:
                return EXIT_TERMINATED
        print(f"finished {self.step} steps, loss {self.loss:.4f}", flush=True)
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A training run that can be stopped and resumed.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint", type=Path, default=Path("train_demo.checkpoint"))
    args = parser.parse_args()

    print(f"GPUs: {os.environ.get('CUDA_VISIBLE_DEVICES') or 'none'}", flush=True)
    training = Training(args.checkpoint, args.lr)
    training.resume()
    signal.signal(signal.SIGUSR1, training.on_signal)
    signal.signal(signal.SIGTERM, training.on_signal)
    return training.run(args.steps, args.step_seconds, args.save_every)


if __name__ == "__main__":
    sys.exit(main())
