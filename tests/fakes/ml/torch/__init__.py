"""A stand-in for torch: numbers instead of tensors, and a weight that counts optimizer steps."""

import pickle
import random
from types import SimpleNamespace

from torch import distributed, nn, optim, utils
from torch.numbers import Tensor

__all__ = ["Tensor", "distributed", "nn", "optim", "utils"]
cuda = SimpleNamespace(is_available=lambda: False)
PLAIN = (int, float, str, bool, bytes, type(None), Tensor)


def device(kind, index=0):
    return kind


def manual_seed(seed):
    random.seed(seed)


def get_rng_state():
    return Tensor(pickle.dumps(random.getstate()))


def set_rng_state(state):
    random.setstate(pickle.loads(state.value))


def randn(*size, device="cpu"):
    return Tensor(random.random())


def tensor(values, device="cpu"):
    return Tensor(values[0])


def save(state, path):
    _check_plain(state)
    with open(path, "wb") as file:
        pickle.dump(state, file)


def load(path, map_location=None, weights_only=False):
    with open(path, "rb") as file:
        return pickle.load(file)


def _check_plain(value):
    """`weights_only=True` takes nothing but tensors and plain values in dictionaries and lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_plain(key)
            _check_plain(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_plain(inner)
    elif not isinstance(value, PLAIN):
        raise TypeError(f"{type(value)} cannot be loaded with weights_only=True")
