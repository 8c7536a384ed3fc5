"""Counts of n-grams as loops: walks down a tree of the pool's token sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.loops.sizes import hinted
from burnish.ops.native.tables import lower_bound
from burnish.ops.operator import NativeCall, TensorType

MODES = ("TF", "IDF", "TFIDF")


def _below(tokens: Any, tree: Any, node: int, token: int) -> int:
    """The node of a token below another one; 0 where there is none. Those below one lie side by side, in order."""
    found = lower_bound(tokens, tree[node, 0], tree[node, 1], token)
    return found if found < tree[node, 1] and tokens[found] == token else 0


def _count(
    x: Any, out: Any, tokens: Any, tree: Any, scale: Any, least: int, most: int, skips: int, mode: int, begin: int,
    end: int,
) -> None:  # fmt: skip
    """Rows ``begin`` to ``end`` of tokens. ``tree`` [nodes, 3]: the nodes below one, and what counts it or -1."""
    length, columns = x.shape[1], out.shape[1]
    for row in range(begin, end):
        for c in range(columns):
            out[row, c] = 0
        for skip in range(skips + 1):
            for first in range(length):
                node, at, size = 0, first, 0
                while at < length and size < most:
                    node, size = _below(tokens, tree, node, x[row, at]), size + 1
                    if node == 0:
                        break
                    column = tree[node, 2]
                    if column >= 0 and size >= least and (size > 1 or skip == 0):
                        out[row, column] += 1
                    at += skip + 1
        if mode > 0:
            for c in range(columns):
                if mode == 2:
                    out[row, c] = out[row, c] * scale[c]
                else:
                    out[row, c] = scale[c] if out[row, c] > 0 else 0


def count_ngrams_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``count_ngrams``."""
    ((shape, dtype),), ((found, kind),) = inputs, outputs
    rows = shape[0] if len(shape) == 2 else 1
    grams = pool_of(attrs["pool"], attrs["starts"])
    tokens, tree = _tree({gram: attrs["indexes"][number] for gram, number in grams.items()})
    scale = np.ones(max(found[-1], 1), np.float32)
    if attrs["weights"]:
        scale[list(attrs["indexes"])] = attrs["weights"]
    views = (((rows, shape[-1]), dtype), ((rows, found[-1]), kind))
    numbers = (*attrs["lengths"], attrs["skips"], MODES.index(attrs["mode"]))
    work = hinted(rows) * hinted(shape[-1]) * 16
    return NativeCall(_count, views, numbers, rows, work, (), (tokens, tree, scale))


def pool_of(pool: Sequence[int], starts: Sequence[int]) -> dict[tuple[int, ...], int]:
    """The n-grams of a pool, whose ones of 1, 2, … tokens begin at ``starts``, and their numbers."""
    known: dict[tuple[int, ...], int] = {}
    for size, (begin, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        for at in range(begin, end, size):
            known[tuple(pool[at : at + size])] = len(known)
    return known


def _tree(columns: Mapping[tuple[int, ...], int]) -> tuple[np.ndarray, np.ndarray]:
    """The token of each node of the tree of sequences, and ``tree`` as of :func:`_count`; node 0 is its root."""
    paths = {path[:n] for path in columns for n in range(len(path) + 1)} | {()}
    order = sorted(paths, key=lambda path: (len(path), path))
    place = {path: at for at, path in enumerate(order)}
    tokens, tree = np.zeros(len(order), np.int64), np.zeros((len(order), 3), np.int64)
    tree[:, 2] = -1
    for path, at in place.items():
        if path:
            tokens[at] = path[-1]
            above = place[path[:-1]]
            tree[above, 0] = tree[above, 0] or at
            tree[above, 1] = at + 1
        if path in columns:
            tree[at, 2] = columns[path]
    return tokens, tree
