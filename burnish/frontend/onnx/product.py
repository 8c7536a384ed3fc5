"""Translators of ONNX matrix products and of Einsum, which becomes one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.loops.expr import FLOATS


def _matmul(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("matmul", *n.inputs)


def _gemm(c: OnnxContext, n: OnnxNode) -> str:
    """``alpha * A' B' + beta * C``."""
    ranks = [c.rank(x) for x in n.inputs if x]
    if ranks[:2] != [2, 2] or max(ranks) > 2:
        c.invalid("inputs", f"{ranks} dimensions", "matrices, and a third of 2 dimensions at most")
    transpose_a, transpose_b = bool(n.attr("transA", 0)), bool(n.attr("transB", 0))
    y = c.add("matmul", *n.inputs[:2], transpose_a=transpose_a, transpose_b=transpose_b)
    alpha, beta, bias = n.attr("alpha", 1.0), n.attr("beta", 1.0), n.input(2)
    if c.dtype(y) not in FLOATS and not (float(alpha).is_integer() and float(beta).is_integer()):
        c.refuse("attributes 'alpha' and 'beta'", f"{alpha} and {beta} for dtype {c.dtype(y)}", "whole numbers")
    y = c.cast(y, c.dtype(n.inputs[0]))
    if bias:
        c.require_onto(bias, "C", c.shape(y))
    if alpha != 1.0:
        y = c.add("mul", y, c.scalar(alpha, y))
    if not bias or beta == 0.0:
        return y
    return c.add("add", y, bias if beta == 1.0 else c.add("mul", bias, c.scalar(beta, bias)))


def _einsum(c: OnnxContext, n: OnnxNode) -> str:
    equation = _without_ellipsis(c, n, n.attrs["equation"].replace(" ", ""))
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(n.inputs):
        c.invalid("attribute 'equation'", f"{len(terms)} terms, {equation}", f"{len(n.inputs)}, one for each input")
    if not arrow:
        result = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    if any(not v.isalpha() for v in left.replace(",", "") + result):
        c.invalid("attribute 'equation'", equation, "letters, commas, one arrow and ellipses")
    simple = all(len(t) == c.rank(x) for t, x in zip(terms, n.inputs, strict=True))
    if not simple or not set(result) <= set(left) or len(set(result)) != len(result):
        c.invalid("attribute 'equation'", equation, "one letter a dimension, and results of those, each once")
    operands = _broadcast(c, [_diagonal(c, x, term) for x, term in zip(n.inputs, terms, strict=True)])
    x, labels = operands[0]
    for position in range(1, len(terms)):
        needed = set(result).union(*terms[position + 1 :])
        x, labels = _contract(c, (x, labels), operands[position], needed)
    x, labels = _sum_out(c, x, labels, set(result))
    return c.transpose(x, [labels.index(label) for label in result])


_SPARE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _without_ellipsis(c: OnnxContext, n: OnnxNode, equation: str) -> str:
    """The equation with letters for the dimensions that an ellipsis stands for; an implicit result begins with them."""
    if "..." not in equation:
        return equation
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    counts = [c.rank(x) - len(t.replace("...", "")) for t, x in zip(terms, n.inputs, strict=False) if "..." in t]
    if len(terms) != len(n.inputs) or min(counts, default=0) < 0 or len(set(counts)) > 1:
        c.refuse("attribute 'equation'", equation, "as many terms as inputs, and ellipses of equally many dimensions")
    free = "".join(letter for letter in _SPARE if letter not in equation)[: counts[0] if counts else 0]
    if not arrow:
        labels = left.replace("...", "").replace(",", "")
        result = "..." + "".join(sorted(v for v in set(labels) if labels.count(v) == 1))
    return f"{left}->{result}".replace("...", free)


def _diagonal(c: OnnxContext, x: str, labels: str) -> tuple[str, str]:
    """A tensor in which every label is one dimension: of those that share one, the diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first, second = labels.index(label), labels.rindex(label)
            order = [*(d for d in range(len(labels)) if d not in (first, second)), first, second]
            moved = c.transpose(x, order)
            *rest, extent, other = c.shape(moved)
            if extent != other:
                c.invalid("attribute 'equation'", f"{label} of extents {extent} and {other}", "one extent a letter")
            flat = c.reshape(moved, (*rest, extent * extent))
            steps = (*[1] * len(rest), extent + 1 if extent > 1 else 1)
            x = c.add("slice", flat, starts=(0,) * len(steps), extents=(*rest, extent), steps=steps)
            labels = "".join(labels[d] for d in order[:-1])
    return x, labels


def _broadcast(c: OnnxContext, operands: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The operands without dimensions of extent 1 that are longer in others: those hold the same for all of them."""
    extents: dict[str, int] = {}
    for x, labels in operands:
        for label, extent in zip(labels, c.shape(x), strict=True):
            known = extents.get(label, 1)
            if known != 1 and extent not in (1, known):
                c.invalid(
                    "attribute 'equation'", f"{label} of extents {known} and {extent}", "one extent a letter, or 1"
                )
            extents[label] = extent if known == 1 else known
    found = []
    for x, labels in operands:
        shape = c.shape(x)
        kept = [d for d, label in enumerate(labels) if shape[d] == extents[label]]
        found.append((c.reshape(x, [shape[d] for d in kept]), "".join(labels[d] for d in kept)))
    return found


def _sum_out(c: OnnxContext, x: str, labels: str, needed: set[str]) -> tuple[str, str]:
    """``x`` summed over the labels that nothing needs any more."""
    axes = tuple(d for d, label in enumerate(labels) if label not in needed)
    if not axes:
        return x, labels
    return c.add("reduce_sum", x, axes=axes, keepdims=False), "".join(v for v in labels if v in needed)


def _stretched(c: OnnxContext, a: tuple[str, str], b: tuple[str, str]) -> tuple[str, str]:
    """``a`` without the labels of extent 1 that have another one in ``b``: there each element meets the same one."""
    (x, labels), extents = a, dict(zip(b[1], c.shape(b[0]), strict=True))
    shape = dict(zip(labels, c.shape(x), strict=True))
    for label in labels:
        extent, other = shape[label], extents.get(label, shape[label])
        if extent != other and 1 not in (extent, other):
            c.invalid("attribute 'equation'", f"{label} of extents {extent} and {other}", "one extent a letter, or 1")
    kept = "".join(v for v in labels if shape[v] != 1 or extents.get(v, 1) == 1)
    return c.reshape(x, [shape[v] for v in kept]), kept


def _contract(c: OnnxContext, a: tuple[str, str], b: tuple[str, str], needed: set[str]) -> tuple[str, str]:
    """Product of two labelled tensors as one batched matrix product [batch, M, K] × [batch, K, N]."""
    a, b = _stretched(c, a, b), _stretched(c, b, a)
    x, left = _sum_out(c, *a, needed | set(b[1]))
    y, right = _sum_out(c, *b, needed | set(a[1]))
    batch = [v for v in left if v in right and v in needed]
    inner = [v for v in left if v in right and v not in needed]
    rows, columns = [v for v in left if v not in right], [v for v in right if v not in left]
    extent = {**dict(zip(left, c.shape(x), strict=True)), **dict(zip(right, c.shape(y), strict=True))}

    def matrix(tensor: str, labels: str, *parts: list[str]) -> str:
        order = [v for part in parts for v in part]
        moved = c.transpose(tensor, [labels.index(v) for v in order])
        return c.reshape(moved, [math.prod(extent[v] for v in part) for part in parts])

    left_matrix, right_matrix = matrix(x, left, batch, rows, inner), matrix(y, right, batch, inner, columns)
    product = c.cast(c.add("matmul", left_matrix, right_matrix), c.dtype(x))  # sums of narrow integers are wider
    order = [*batch, *rows, *columns]
    return c.reshape(product, [extent[v] for v in order]), "".join(order)


TRANSLATORS: Mapping[str, Translator] = {"MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum}
