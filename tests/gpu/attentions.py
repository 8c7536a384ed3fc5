"""Attention as tasks: heads, masks, scales, data types, and what comes before and behind."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from burnish.kernels.task import KernelTask
from burnish.loops.expr import Expr, select
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.ops import OPERATORS
from tests.gpu.cases import Case


def applied(op: str, name: str, *inputs: Tensor, **attrs: object) -> Tensor:
    """The result of an operator."""
    (found,) = OPERATORS[op].define(name, list(inputs), attrs)
    return found


@dataclass(frozen=True)
class Attended(Case):
    """Attention of ``shapes`` [B, H, S, D], [B, H, L, D] and [B, H, L, V]; ``attrs``: scale, causal, masked, across."""

    def task(self) -> KernelTask:
        dtype = self.dtypes[0] if self.dtypes else "float32"
        across = bool(self.attrs.get("across"))  # keys next to each other in memory
        shapes = [(*s[:2], s[3], s[2]) if across and n == "k" else s for s, n in zip(self.shapes, "qkv", strict=True)]
        q, k, v = (placeholder(s, dtype, n) for s, n in zip(shapes, "qkv", strict=True))
        inputs = [q, k, v]
        scores = applied("matmul", "scores", q, k, transpose_b=not across)
        scale = self.attrs.get("scale", 1.0)
        e = compute(scores.shape, lambda *i: scores[i] * scale, "scaled")
        if self.attrs.get("causal"):
            before = e

            def seen(*i: Expr) -> Expr:
                return select(i[3] <= i[2], before[i], -inf)

            e = compute(scores.shape, seen, "seen")
        if self.attrs.get("masked"):
            mask = placeholder((scores.shape[0], 1, 1, scores.shape[3]), dtype, "mask")
            inputs.append(mask)
            e = applied("add", "masked", e, mask)
        weights = applied("softmax", "weights", e, axis=-1)
        mixed = applied("matmul", "mixed", weights, v)
        (y,) = [applied("transpose", "y", mixed, perm=(0, 2, 1, 3))] if self.attrs.get("joined") else [mixed]
        return KernelTask("kernel", tuple(inputs), (y,), "attention", {}, frozenset())


def attended(
    rows: int, keys: int, depth: int, width: int = 0, heads: int = 2, dtype: str = "float32", **attrs: object
) -> Attended:
    """A case by its sizes."""
    shapes = [(1, heads, rows, depth), (1, heads, keys, depth), (1, heads, keys, width or depth)]
    choice = {k: attrs.pop(k) for k in ("warps", "rows_", "splits") if k in attrs}
    if "rows_" in choice:
        choice["rows"] = choice.pop("rows_")
    return Attended("attention", shapes, attrs, [dtype] * 3, "attention", choice)


__all__ = ["Attended", "attended", "np"]
