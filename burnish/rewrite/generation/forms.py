"""Operators as linear and bilinear forms over a prime field, so that many terms are fingerprinted by one product.

A tensor's fingerprint is two random linear forms of its elements. Of L(a) + M(b) it is a form of a plus one of b; of a
bilinear B(a, b) it is aᵀ F b with F the form of B's values at unit tensors. So no term is evaluated to distinguish it
from others: only what a later term is built from. The forms come from the operators' definitions, evaluated at unit
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from burnish.errors import RuleError
from burnish.rewrite.generation.domains import Instance, Shape
from burnish.rewrite.proofs.field import PrimeField, evaluate_graph

_HALF = 16  # bits of an element's low part
_LOW = (1 << _HALF) - 1
_EXACT = 64  # products of a low part and an element that float64 sums exactly: 2^16 · 2^31 · 2^6 = 2^53
_CELLS = 1 << 16  # elements of a product computed together: what they need stays in the cache
_CHUNK = 256  # instances evaluated together: what they need stays in the cache
_PAIRS = 1 << 14  # pairs of tensors multiplied at a time
_TRIALS = 16  # random tensors on which a form must agree with the definition


def product_modulo(a: np.ndarray, b: np.ndarray, over: PrimeField) -> np.ndarray:
    """``a`` [n, k] times ``b`` [k, m] over the field; all are elements, int64."""
    out = np.empty((len(a), b.shape[1]), np.int64)
    columns = b.astype(np.float64)
    step = max(1, _CELLS // max(a.shape[1], b.shape[1], 1))
    for start in range(0, len(a), step):
        out[start : start + step] = _product(a[start : start + step], columns, over)
    return out


def _product(a: np.ndarray, b: np.ndarray, over: PrimeField) -> np.ndarray:
    total = np.zeros((len(a), b.shape[1]), np.int64)
    for start in range(0, a.shape[1], _EXACT):
        rows, columns = a[:, start : start + _EXACT], b[start : start + _EXACT]
        high = ((rows >> _HALF).astype(np.float64) @ columns).astype(np.int64)
        low = ((rows & _LOW).astype(np.float64) @ columns).astype(np.int64)
        total = over.modulo((over.modulo(high) << _HALF) + low + total)
    return total


def dot_modulo(a: np.ndarray, b: np.ndarray, over: PrimeField) -> np.ndarray:
    """Products [n] of the rows of ``a`` with those of ``b``, both [n, k]."""
    total = np.zeros(len(a), np.int64)
    for start in range(0, a.shape[1], _EXACT):
        rows, others = a[:, start : start + _EXACT], b[:, start : start + _EXACT].astype(np.float64)
        high = np.einsum("ij,ij->i", (rows >> _HALF).astype(np.float64), others).astype(np.int64)
        low = np.einsum("ij,ij->i", (rows & _LOW).astype(np.float64), others).astype(np.int64)
        total = over.modulo((over.modulo(high) << _HALF) + low + total)
    return total


def evaluate(instance: Instance, inputs: list[np.ndarray], field: PrimeField) -> np.ndarray:
    """Values [B, elements] of the operator for inputs [B, elements]."""
    pieces = []
    for start in range(0, len(inputs[0]), _CHUNK):
        feeds = {
            name: values[start : start + _CHUNK].reshape(-1, *shape)
            for name, values, shape in zip(instance.graph.inputs, inputs, instance.shapes, strict=True)
        }
        (value,) = evaluate_graph(instance.graph, feeds, field)
        pieces.append(value.reshape(-1, prod(instance.shape)))
    return np.concatenate(pieces)


@dataclass(frozen=True)
class FingerprintForm:
    """Fingerprint formula of a result: its two fingerprints from the arguments' elements.

    linear: ``parts`` [2, elements] for each argument; bilinear: one part [2, elements of a, elements of b];
    opaque: the result has to be evaluated.
    """

    kind: Literal["linear", "bilinear", "opaque"]
    parts: tuple[np.ndarray, ...] = ()


def projection(shape: Shape, field: PrimeField) -> np.ndarray:
    """The two random forms [2, elements] of tensors of a shape; of one shape always the same."""
    seed = [len(shape), *shape]
    return field.random(np.random.default_rng(seed), (2, prod(shape)))


def form(instance: Instance, field: PrimeField) -> FingerprintForm:
    """The operator's form, checked against its definition on random tensors.

    Raises RuleError for an operator of two tensors that is neither linear nor bilinear.
    """
    random = np.random.default_rng(0)
    forms = projection(instance.shape, field)
    sizes = [prod(shape) for shape in instance.shapes]
    trial = [field.random(random, (_TRIALS, n)) for n in sizes]
    expected = product_modulo(evaluate(instance, trial, field), forms.T, field)
    parts = []
    for i, n in enumerate(sizes):
        units = [np.eye(n, dtype=np.int64) if i == j else np.zeros((n, m), np.int64) for j, m in enumerate(sizes)]
        parts.append(product_modulo(forms, evaluate(instance, units, field).T, field))
    linear = FingerprintForm("linear", tuple(parts))
    if np.array_equal(fingerprints(linear, trial, field), expected):
        return linear
    if len(sizes) == 1:
        return FingerprintForm("opaque")
    if len(sizes) == 2:
        bilinear = FingerprintForm("bilinear", (_bilinear(instance, forms, field),))
        if np.array_equal(fingerprints(bilinear, trial, field), expected):
            return bilinear
    raise RuleError(f"operator '{instance.word}' of a domain is neither linear nor bilinear nor of one tensor")


def _bilinear(instance: Instance, forms: np.ndarray, field: PrimeField) -> np.ndarray:
    n, m = (prod(shape) for shape in instance.shapes)
    left, right = np.eye(n, dtype=np.int64).repeat(m, 0), np.tile(np.eye(m, dtype=np.int64), (n, 1))
    values = evaluate(instance, [left, right], field)
    return product_modulo(forms, values.T, field).reshape(2, n, m)


def fingerprints(form: FingerprintForm, inputs: Sequence[np.ndarray], field: PrimeField) -> np.ndarray:
    """The two forms [B, 2] of the result for inputs [B, elements]."""
    if form.kind == "linear":
        terms = [product_modulo(x, part.T, field) for x, part in zip(inputs, form.parts, strict=True)]
        return field.modulo(np.sum(terms, axis=0))
    x, y = inputs
    return np.stack([dot_modulo(product_modulo(x, part, field), y, field) for part in form.parts[0]], axis=1)


def chosen(
    form: FingerprintForm, inputs: tuple[np.ndarray, np.ndarray], rows: tuple[np.ndarray, np.ndarray], field: PrimeField
) -> np.ndarray:
    """The two forms [B, 2] of the results for the pairs (x[rows[0]], y[rows[1]])."""
    if form.kind == "linear":
        parts = [product_modulo(v, p.T, field)[r] for v, p, r in zip(inputs, form.parts, rows, strict=True)]
        return field.modulo(parts[0] + parts[1])
    x, y = inputs
    out = np.empty((len(rows[0]), 2), np.int64)
    for i, part in enumerate(form.parts[0]):
        narrow = len(x) * y.shape[1] <= len(y) * x.shape[1]
        left, right = (product_modulo(x, part, field), y) if narrow else (x, product_modulo(y, part.T, field))
        for start in range(0, len(out), _PAIRS):
            piece = slice(start, start + _PAIRS)
            out[piece, i] = dot_modulo(left[rows[0][piece]], right[rows[1][piece]], field)
    return out


def table(form: FingerprintForm, x: np.ndarray, y: np.ndarray, field: PrimeField) -> np.ndarray:
    """The two forms [n, m, 2] of the results for all pairs of ``x`` [n, elements] and ``y`` [m, elements]."""
    if form.kind == "linear":
        left, right = (product_modulo(v, part.T, field) for v, part in zip((x, y), form.parts, strict=True))
        return field.modulo(left[:, None] + right[None])
    if len(x) <= len(y):
        return np.stack([product_modulo(product_modulo(x, part, field), y.T, field) for part in form.parts[0]], axis=2)
    return np.stack([product_modulo(x, product_modulo(part, y.T, field), field) for part in form.parts[0]], axis=2)


def key(forms: np.ndarray) -> np.ndarray:
    """One 62-bit fingerprint for each pair of forms [..., 2]."""
    return (forms[..., 0] << 31) | forms[..., 1]
