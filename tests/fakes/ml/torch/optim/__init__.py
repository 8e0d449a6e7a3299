import os
import time
from pathlib import Path

from torch.optim import lr_scheduler

__all__ = ["AdamW", "lr_scheduler"]


HELD_AT = 30


def _hold(steps):
    """The first attempt goes no further until it is told to stop: nothing depends on speed."""
    if os.environ.get("TGPU_ATTEMPT") != "1" or steps < HELD_AT:
        return
    give_up = time.monotonic() + 60
    while not Path(os.environ["TGPU_STOP_FILE"]).exists():
        assert time.monotonic() < give_up, "nobody has told us to stop"
        time.sleep(0.01)


class AdamW:
    """Every step adds one to the weight."""

    def __init__(self, parameters, lr):
        self.parameters = list(parameters)
        self.lr = lr
        self.steps = 0

    def zero_grad(self):
        pass

    def step(self):
        self.steps += 1
        _hold(self.steps)
        for parameter in self.parameters:
            parameter.value += 1

    def state_dict(self):
        return {"steps": self.steps, "lr": self.lr}

    def load_state_dict(self, state):
        self.steps, self.lr = state["steps"], state["lr"]
