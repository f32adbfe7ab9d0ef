"""How many tokens a chunked loss works on at a time."""

from __future__ import annotations

from math import ceil

MOST_TOKENS = 4096
"""Enough for a product with the head to be as fast as it gets, few enough that their logits are small beside a model
(128,256 entries of a vocabulary in bf16: 1 GB)."""


def chunk_tokens(tokens: int) -> int:
    """Tokens of each chunk of a microbatch but the last, which may have fewer: at least two chunks, of equal size."""
    chunks = max(2, ceil(tokens / MOST_TOKENS))
    return ceil(tokens / chunks)


def chunk_sizes(tokens: int) -> list[int]:
    """Tokens of every chunk of a microbatch."""
    size = chunk_tokens(tokens)
    whole, rest = divmod(tokens, size)
    return [size] * whole + [rest] * (rest > 0)
