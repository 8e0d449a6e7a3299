"""The shape of a decoder: how many parameters it has, and what its cache takes per token."""

from __future__ import annotations

from dataclasses import dataclass

GATED = 3
"""Matrices of a gated feed-forward block: gate, up, down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a `config.json` says about a decoder.

    `intermediate` is that of one expert where there are several. `latent` is the width of a
    compressed cache (DeepSeek's latent attention) and replaces the heads there. `layer_norms`
    counts vectors of the hidden size in each layer, `head_norms` those of the size of a head.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    attention_bias: bool = False
    experts: int = 1
    latent: int = 0
    layer_norms: int = 2
    head_norms: int = 0

    @property
    def embedding_parameters(self) -> int:
        """The table of words, and the output layer if it is one of its own."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def attention_width(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """The width of all keys (or values)."""
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """All of them, for a Llama-like decoder; exact for the models of `known`."""
        attention = self.hidden * (2 * self.attention_width + 2 * self.kv_width)
        if self.attention_bias:
            attention += self.attention_width + 2 * self.kv_width
        feed_forward = self.experts * GATED * self.hidden * self.intermediate
        router = self.hidden * self.experts if self.experts > 1 else 0
        norms = self.layer_norms * self.hidden + self.head_norms * self.head_dim
        layer = attention + feed_forward + router + norms
        return self.layers * layer + self.embedding_parameters + self.hidden

    @property
    def cache_values_per_token(self) -> int:
        """Numbers that are kept for each token: a key and a value in each layer."""
        per_layer = self.latent or 2 * self.kv_width
        return self.layers * per_layer

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of low-rank adapters on every linear layer of the blocks."""
        hidden, wide = self.hidden, self.intermediate
        attention = 2 * (hidden + self.attention_width) + 2 * (hidden + self.kv_width)
        feed_forward = self.experts * GATED * (hidden + wide)
        return self.layers * rank * (attention + feed_forward)
