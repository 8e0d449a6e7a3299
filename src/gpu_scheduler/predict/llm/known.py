"""Models whose shapes are published, by the name that people use.

From the `config.json` of each model's page on the Hugging Face Hub. That `Shape.parameters` gives
the published number of parameters for them is tested.
"""

from __future__ import annotations

from functools import partial

from gpu_scheduler.predict.llm.shape import Shape

_qwen2 = partial(Shape, head_dim=128, vocabulary=152_064, attention_bias=True)
_qwen3 = partial(Shape, head_dim=128, vocabulary=151_936, head_norms=2)
_llama3 = partial(Shape, head_dim=128, kv_heads=8, vocabulary=128_256)
_llama2 = partial(Shape, head_dim=128, vocabulary=32_000)
_gemma2 = partial(Shape, vocabulary=256_000, tied=True, layer_norms=4)

_QWEN2: dict[str, Shape] = {
    "0.5b": Shape(
        layers=24,
        hidden=896,
        heads=14,
        kv_heads=2,
        head_dim=64,
        intermediate=4864,
        vocabulary=151_936,
        tied=True,
        attention_bias=True,
    ),
    "1.5b": _qwen2(
        layers=28,
        hidden=1536,
        heads=12,
        kv_heads=2,
        intermediate=8960,
        vocabulary=151_936,
        tied=True,
    ),
    "3b": _qwen2(
        layers=36,
        hidden=2048,
        heads=16,
        kv_heads=2,
        intermediate=11_008,
        vocabulary=151_936,
        tied=True,
    ),
    "7b": _qwen2(layers=28, hidden=3584, heads=28, kv_heads=4, intermediate=18_944),
    "14b": _qwen2(layers=48, hidden=5120, heads=40, kv_heads=8, intermediate=13_824),
    "32b": _qwen2(layers=64, hidden=5120, heads=40, kv_heads=8, intermediate=27_648),
    "72b": _qwen2(layers=80, hidden=8192, heads=64, kv_heads=8, intermediate=29_568),
}
_QWEN3: dict[str, Shape] = {
    "0.6b": _qwen3(layers=28, hidden=1024, heads=16, kv_heads=8, intermediate=3072, tied=True),
    "1.7b": _qwen3(layers=28, hidden=2048, heads=16, kv_heads=8, intermediate=6144, tied=True),
    "4b": _qwen3(layers=36, hidden=2560, heads=32, kv_heads=8, intermediate=9728, tied=True),
    "8b": _qwen3(layers=36, hidden=4096, heads=32, kv_heads=8, intermediate=12_288),
    "14b": _qwen3(layers=40, hidden=5120, heads=40, kv_heads=8, intermediate=17_408),
    "32b": _qwen3(layers=64, hidden=5120, heads=64, kv_heads=8, intermediate=25_600),
    "30b": _qwen3(layers=48, hidden=2048, heads=32, kv_heads=4, intermediate=768, experts=128),
    "235b": _qwen3(layers=94, hidden=4096, heads=64, kv_heads=4, intermediate=1536, experts=128),
}
_LLAMA3: dict[str, Shape] = {
    "1b": _llama3(layers=16, hidden=2048, heads=32, head_dim=64, intermediate=8192, tied=True),
    "3b": _llama3(layers=28, hidden=3072, heads=24, intermediate=8192, tied=True),
    "8b": _llama3(layers=32, hidden=4096, heads=32, intermediate=14_336),
    "70b": _llama3(layers=80, hidden=8192, heads=64, intermediate=28_672),
    "405b": _llama3(layers=126, hidden=16_384, heads=128, intermediate=53_248),
}
_LLAMA2: dict[str, Shape] = {
    "7b": _llama2(layers=32, hidden=4096, heads=32, kv_heads=32, intermediate=11_008),
    "13b": _llama2(layers=40, hidden=5120, heads=40, kv_heads=40, intermediate=13_824),
    "70b": _llama2(layers=80, hidden=8192, heads=64, kv_heads=8, intermediate=28_672),
}
_MISTRAL: dict[str, Shape] = {
    "7b": _llama2(layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14_336),
}
_MIXTRAL: dict[str, Shape] = {
    "8x7b": _llama2(layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14_336, experts=8),
    "8x22b": _llama2(layers=56, hidden=6144, heads=48, kv_heads=8, intermediate=16_384, experts=8),
}
_PHI3: dict[str, Shape] = {
    "mini": Shape(
        layers=32,
        hidden=3072,
        heads=32,
        kv_heads=32,
        head_dim=96,
        intermediate=8192,
        vocabulary=32_064,
    ),
    "medium": Shape(
        layers=40,
        hidden=5120,
        heads=40,
        kv_heads=10,
        head_dim=128,
        intermediate=17_920,
        vocabulary=32_064,
    ),
}
_PHI4: dict[str, Shape] = {
    "": Shape(
        layers=40,
        hidden=5120,
        heads=40,
        kv_heads=10,
        head_dim=128,
        intermediate=17_920,
        vocabulary=100_352,
    ),
}
_GEMMA2: dict[str, Shape] = {
    "2b": _gemma2(layers=26, hidden=2304, heads=8, kv_heads=4, head_dim=256, intermediate=9216),
    "9b": _gemma2(layers=42, hidden=3584, heads=16, kv_heads=8, head_dim=256, intermediate=14_336),
    "27b": _gemma2(
        layers=46, hidden=4608, heads=32, kv_heads=16, head_dim=128, intermediate=36_864
    ),
}

FAMILIES: dict[str, dict[str, Shape]] = {
    "qwen2.5": _QWEN2,
    "qwen3": _QWEN3,
    "llama-3.1": _LLAMA3,
    "llama-2": _LLAMA2,
    "mistral": _MISTRAL,
    "mixtral": _MIXTRAL,
    "phi-3": _PHI3,
    "phi-4": _PHI4,
    "gemma-2": _GEMMA2,
}
"""Shapes by family and size."""

SPELLINGS: tuple[tuple[str, str], ...] = (
    # Distilled models have the shape of what they were distilled into.
    ("distill-qwen", "qwen2.5"),
    ("distill-llama", "llama-3.1"),
    ("qwen2.5", "qwen2.5"),
    ("qwen-2.5", "qwen2.5"),
    ("qwen3", "qwen3"),
    ("qwen-3-", "qwen3"),
    ("llama-3", "llama-3.1"),
    ("llama3", "llama-3.1"),
    ("llama-2", "llama-2"),
    ("llama2", "llama-2"),
    ("codellama", "llama-2"),
    ("mixtral", "mixtral"),
    ("mistral", "mistral"),
    ("phi-3", "phi-3"),
    ("phi3", "phi-3"),
    ("phi-4", "phi-4"),
    ("phi4", "phi-4"),
    ("gemma-2-", "gemma-2"),
    ("gemma2", "gemma-2"),
)
"""How families are written in names; the first that a name holds counts."""

LATENT: dict[str, tuple[int, Shape]] = {
    "deepseek-v3": (
        671_000_000_000,
        Shape(
            layers=61,
            hidden=7168,
            heads=128,
            kv_heads=128,
            head_dim=128,
            intermediate=2048,
            vocabulary=129_280,
            experts=256,
            latent=576,
        ),
    ),
}
"""Models that keep a compressed cache, with the parameters that their makers state."""


def all_known() -> dict[str, Shape]:
    """Every known decoder, as `family-size`."""
    return {
        f"{family}-{size}".rstrip("-"): shape
        for family, sizes in FAMILIES.items()
        for size, shape in sizes.items()
    }
