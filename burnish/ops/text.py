"""Opaque operators of token sequences: counts of n-grams."""

from __future__ import annotations

import numpy as np

from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.native.tokens import count_ngrams_call, pool_of
from burnish.ops.operator import Floats, Ints, internal, opaque, require, require_input


def _count_ngrams(
    x: np.ndarray,
    pool: Ints,
    starts: Ints,
    indexes: Ints,
    weights: Floats,
    lengths: Ints,
    skips: int,
    mode: str,
) -> np.ndarray:
    rows = x.reshape(-1, x.shape[-1]) if x.ndim == 2 else x.reshape(1, -1)
    known = pool_of(pool, starts)
    counts = np.zeros((len(rows), max(indexes, default=-1) + 1), np.float32)
    for row, tokens in zip(counts, rows.tolist(), strict=True):
        for size in range(lengths[0], lengths[1] + 1):
            for skip in range(skips + 1 if size > 1 else 1):
                reach = (size - 1) * (skip + 1)
                for first in range(len(tokens) - reach):
                    found = known.get(tuple(tokens[first : first + reach + 1 : skip + 1]))
                    if found is not None:
                        row[indexes[found]] += 1
    scale = np.ones(counts.shape[1], np.float32)
    if weights:
        scale[list(indexes)] = weights
    value = counts if mode == "TF" else (counts > 0) * (scale if mode == "IDF" else 1)
    value = counts * scale if mode == "TFIDF" else value
    return value.astype(np.float32).reshape(*x.shape[:-1], -1)


@opaque(_count_ngrams, count_ngrams_call)
def count_ngrams(
    name: str,
    x: Tensor,
    *,
    pool: Ints,
    starts: Ints,
    indexes: Ints,
    weights: Floats = (),
    lengths: Ints,
    skips: int = 0,
    mode: str = "TF",
) -> Tensor:
    """N-gram counts of a ``pool`` in rows of tokens ``x`` [C] or [N, C].

    Counts (TF), or weights of those that occur (IDF), or both (TFIDF).

    ``starts``: where the n-grams of 1, 2, … tokens begin in the pool; ``indexes``: where each is counted; ``lengths``:
    the least and the greatest that are counted; ``skips``: how many tokens may lie between two of an n-gram.
    """
    require_input(x, "x", dtype=("int64", "int32"))
    require(len(x.shape) in (1, 2), "input 'x'", f"shape {list(x.shape)}", "[C] or [N, C]")
    require(mode in ("TF", "IDF", "TFIDF"), "attribute 'mode'", mode, "TF, IDF, TFIDF")
    return placeholder((*x.shape[:-1], max(indexes, default=-1) + 1), "float32", name)


OPERATORS = internal(count_ngrams)
