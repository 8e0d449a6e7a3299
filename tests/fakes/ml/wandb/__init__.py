"""A stand-in for wandb: what it is told goes to the file in WANDB_STANDIN_FILE, line by line."""

import json
import os
import uuid
from types import SimpleNamespace

util = SimpleNamespace(generate_id=lambda: uuid.uuid4().hex[:8])


def _tell(**what):
    with open(os.environ["WANDB_STANDIN_FILE"], "a") as file:
        file.write(json.dumps(what) + "\n")


class Run:
    def __init__(self, id):
        self.id = id

    def log(self, values, step):
        _tell(run=self.id, step=step)

    def mark_preempting(self):
        _tell(run=self.id, preempting=True)

    def finish(self, exit_code=0):
        _tell(run=self.id, exit_code=exit_code)


def init(*, project, id, resume, group, config):
    assert resume == "allow"
    _tell(run=id, init=True, group=group)
    return Run(id)
