"""Processes that meet in a directory made by the fake torchrun."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

ReduceOp = SimpleNamespace(MAX=max)
_round = 0


def init_process_group(backend):
    assert backend == "gloo"
    barrier()


def get_rank():
    return int(os.environ["RANK"])


def all_reduce(tensor, op):
    tensor.value = op(_exchanged(tensor.value))


def barrier():
    _exchanged(0.0)


def destroy_process_group():
    pass


def _exchanged(value):
    """What every rank has said in this round."""
    global _round
    _round += 1
    place = Path(os.environ["MEETING_PLACE"])
    ranks = range(int(os.environ["WORLD_SIZE"]))
    mine = place / f"{_round}.{get_rank()}"
    part = mine.with_suffix(f".{get_rank()}.part")
    part.write_text(str(value))
    part.rename(mine)
    give_up = time.monotonic() + 60
    said = [place / f"{_round}.{rank}" for rank in ranks]
    while not all(file.exists() for file in said):
        assert time.monotonic() < give_up, "a rank is gone"
        time.sleep(0.002)
    return [float(file.read_text()) for file in said]
