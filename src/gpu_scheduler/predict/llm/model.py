"""What is known of one model, and how it is known: from its name, or from what stands in its files.

A model that is not in the table is estimated by stated rules: its size is read from its name, and
its cache is that of the nearest known model.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.predict.llm.known import FAMILIES, LATENT, SPELLINGS, all_known
from gpu_scheduler.predict.llm.shape import Shape

BILLION = 1_000_000_000
LARGEST = 100_000 * BILLION
"""Nobody has a model as large as this; whoever writes it has slipped."""
SHARED_BY_EXPERTS = 0.82
"""Experts share attention and embeddings: Mixtral 8x7B has 0.83 x 56 billion, 8x22B 0.80 x 176."""
_NUMBER = r"(\d+(?:\.\d+)?)"
_EXPERTS = re.compile(rf"(?<![a-z\d.])(\d+)x{_NUMBER}b(?![a-z])")
_SIZE = re.compile(rf"(?<![a-z\d.]){_NUMBER}(b|m)(?![a-z])")
_WORDS = re.compile(r"mini|medium|small|large|base")
_QUANTISED = (
    (re.compile(r"awq|gptq|int4|4bit|w4a16|nf4|q4_|bnb"), "int4"),
    (re.compile(r"int8|8bit|w8a8|q8_"), "int8"),
    (re.compile(r"fp8"), "fp8"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model: how many parameters it has, its shape (or the nearest one), and how that is known.

    `weight_bytes` is what the files hold, where they were looked at; `dtype` is the type that the
    name or the files speak of.
    """

    name: str
    parameters: int
    shape: Shape
    parameters_from: str
    shape_from: str
    dtype: str = ""
    weight_bytes: int = 0


def named_model(name: str, parameters: int | None = None) -> Model:
    """A model by its name, or by its name and a number of parameters."""
    plain = _plain(name)
    if parameters is None:
        for prefix, (stated, shape) in LATENT.items():
            if plain.startswith((prefix, "deepseek-r1")) and "distill" not in plain:
                return Model(
                    name=name,
                    parameters=stated,
                    shape=shape,
                    parameters_from="as its makers state",
                    shape_from=f"{prefix} (compressed cache)",
                    dtype=_dtype_of(plain) or "fp8",
                )
        known = _known(plain)
        if known is not None:
            label, shape = known
            return Model(
                name=name,
                parameters=shape.parameters,
                shape=shape,
                parameters_from=f"the published shape of {label}",
                shape_from=f"the published shape of {label}",
                dtype=_dtype_of(plain),
            )
    count, how = (parameters, "as given") if parameters else size_in(name)
    label, shape = nearest(count)
    return Model(
        name=name,
        parameters=count,
        shape=shape,
        parameters_from=how,
        shape_from=f"that of {label}, the known model nearest in size",
        dtype=_dtype_of(plain),
    )


def can_be_sized(name: str) -> bool:
    """Tell whether the name says how large the model is."""
    try:
        named_model(name)
    except InvalidRequest:
        return False
    return True


def size_in(name: str) -> tuple[int, str]:
    """The parameters that a name speaks of, and how they were read from it."""
    plain = _plain(name)
    if match := _EXPERTS.search(plain):
        amount = float(match[1]) * float(match[2]) * SHARED_BY_EXPERTS * BILLION
        return _checked(amount, match[0], name), (
            f"'{match[0]}' in the name, times {SHARED_BY_EXPERTS} for what the experts share"
        )
    if match := _SIZE.search(plain):
        unit = BILLION if match[2] == "b" else BILLION // 1000
        amount = float(match[1]) * unit
        return _checked(amount, match[0], name), f"'{match[0]}' in the name"
    raise InvalidRequest(
        f"how large '{name}' is cannot be told from its name; write the size as in "
        f"{name or 'model'}-7b, or the directory of the model, as in ./model"
    )


def _checked(amount: float, word: str, name: str) -> int:
    """The number of parameters, if a model can have so many."""
    if 1 <= amount < LARGEST:
        return round(amount)
    raise InvalidRequest(
        f"the model '{name}' would have {word} parameters, which is no size of a model; write one "
        "such as 7b or 350m, or the directory of the model, as in ./model"
    )


def nearest(parameters: int) -> tuple[str, Shape]:
    """The known model nearest in size, counted in factors; on a tie the smaller one."""
    known = sorted(all_known().items(), key=lambda item: (item[1].parameters, item[0]))
    return min(
        (item for item in known if item[1].experts == 1),
        key=lambda item: abs(math.log(item[1].parameters / parameters)),
    )


def _plain(name: str) -> str:
    """Lower case, without the organisation before the slash."""
    return name.rstrip("/").rpartition("/")[2].casefold().replace("_", "-")


def _known(plain: str) -> tuple[str, Shape] | None:
    spelled = next(((s, family) for s, family in SPELLINGS if s in plain), None)
    if spelled is None or "-vl" in plain or "vision" in plain:
        return None
    spelling, family = spelled
    sizes = FAMILIES[family]
    rest = plain.partition(spelling)[2]
    words = [match[0] for match in (_EXPERTS.search(rest), _SIZE.search(rest)) if match]
    words += [match[0] for match in (_WORDS.search(rest),) if match]
    for word in (*words, ""):
        if word in sizes:
            return f"{family}-{word}".rstrip("-"), sizes[word]
    return None


def _dtype_of(plain: str) -> str:
    return next((dtype for pattern, dtype in _QUANTISED if pattern.search(plain)), "")
