"""A stand-in for Lightning: one loop, callbacks, checkpoints."""

import pickle
import signal
from pathlib import Path

from torch import nn

from lightning import pytorch

__all__ = ["LightningModule", "Trainer", "pytorch"]


class LightningModule(nn.Module):
    def parameters(self):
        return self.layer.parameters()


class Trainer:
    def __init__(self, *, max_steps, max_epochs, logger, enable_progress_bar, callbacks):
        self.max_steps = max_steps
        self.callbacks = callbacks
        self.global_step = 0
        self.should_stop = False

    def fit(self, module, data, ckpt_path=None):
        self.module = module
        self.optimizer = module.configure_optimizers()
        if ckpt_path is not None:
            with open(ckpt_path, "rb") as file:
                state = pickle.load(file)
            self.global_step = state["global_step"]
            module.layer.load_state_dict(state["state_dict"])
        told = []
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        for index, batch in enumerate(data):
            if told:
                self._call("on_exception", SystemExit(143))
                raise SystemExit(143)
            if self.global_step >= self.max_steps or self.should_stop:
                return
            module.training_step(batch, index).backward()
            self.optimizer.step()
            self.global_step += 1
            self._call("on_train_batch_end", None, batch, index)

    def _call(self, hook, *words):
        for callback in self.callbacks:
            getattr(callback, hook)(self, self.module, *words)

    def save_checkpoint(self, path):
        state = {"global_step": self.global_step, "state_dict": self.module.layer.state_dict()}
        self._call("on_save_checkpoint", state)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(state))
        part.replace(path)
