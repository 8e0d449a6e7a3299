"""GPU models: how people call them, how much memory they have, how fast NVLink joins them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is known of a model. Several sizes: the first is meant when none is named.

    `nvlink_gbps` is the sum over all links and both directions, as data sheets give it; 0 for cards
    that are not joined by default.
    """

    sizes_gb: tuple[int, ...]
    nvlink_gbps: int = 0


MODELS: dict[str, Model] = {
    "P100": Model(sizes_gb=(16, 12), nvlink_gbps=160),
    "V100": Model(sizes_gb=(32, 16), nvlink_gbps=300),
    "A100": Model(sizes_gb=(80, 40), nvlink_gbps=600),
    "A800": Model(sizes_gb=(80, 40), nvlink_gbps=400),
    "H100": Model(sizes_gb=(80, 94), nvlink_gbps=900),
    "H800": Model(sizes_gb=(80,), nvlink_gbps=400),
    "H20": Model(sizes_gb=(96, 141), nvlink_gbps=900),
    "H200": Model(sizes_gb=(141,), nvlink_gbps=900),
    "B100": Model(sizes_gb=(192,), nvlink_gbps=1800),
    "B200": Model(sizes_gb=(180, 192), nvlink_gbps=1800),
    "B300": Model(sizes_gb=(288,), nvlink_gbps=1800),
    "T4": Model(sizes_gb=(16,)),
    "L4": Model(sizes_gb=(24,)),
    "L40": Model(sizes_gb=(48,)),
    "L40S": Model(sizes_gb=(48,)),
    "A2": Model(sizes_gb=(16,)),
    "A10": Model(sizes_gb=(24,)),
    "A10G": Model(sizes_gb=(24,)),
    "A16": Model(sizes_gb=(16,)),
    "A30": Model(sizes_gb=(24,)),
    "A40": Model(sizes_gb=(48,)),
    "RTXA4000": Model(sizes_gb=(16,)),
    "RTXA5000": Model(sizes_gb=(24,)),
    "RTXA6000": Model(sizes_gb=(48,)),
    "RTX6000Ada": Model(sizes_gb=(48,)),
    "RTX2080Ti": Model(sizes_gb=(11,)),
    "RTX3080": Model(sizes_gb=(10, 12)),
    "RTX3090": Model(sizes_gb=(24,)),
    "RTX4080": Model(sizes_gb=(16,)),
    "RTX4090": Model(sizes_gb=(24,)),
    "RTX5080": Model(sizes_gb=(16,)),
    "RTX5090": Model(sizes_gb=(32,)),
    "GTX1080Ti": Model(sizes_gb=(11,)),
    "GPU": Model(sizes_gb=(16,)),
}

# Words of a product name that say how it is built or sold, not which chip it is.
_PACKAGING = re.compile(
    r"nvidia|tesla|geforce|quadro|generation|graphics|gpu|sxm\d*|pcie?|nvl|nvlink|hbm\w*"
    r"|\d+gb|\d+gb\w*",
    re.IGNORECASE,
)


def short_model(name: str) -> str:
    """The name that people use: 'NVIDIA A100-SXM4-80GB' is A100, 'GeForce RTX 4090' is RTX4090."""
    bare = name.partition(" MIG ")[0]
    words = [word for word in re.split(r"[\s\-/]+", bare) if word]
    kept = [word for word in words if not _PACKAGING.fullmatch(word)]
    return "".join(kept) or "GPU"


def known_model(name: str) -> str:
    """The table's spelling of a model, or the name as it was written."""
    plain = name.replace("-", "").replace(" ", "").casefold()
    return next((model for model in MODELS if model.casefold() == plain), name)
