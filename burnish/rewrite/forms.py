"""Operators as linear and bilinear forms over a prime field, so that many terms are fingerprinted by one product.

A tensor's fingerprint is two random linear forms of its elements. Of L(a) + M(b) it is a form of a plus one of b; of a
bilinear B(a, b) it is aᵀ F b with F the form of B's values at unit tensors. So no term is evaluated to be told from
others: only what a later term is built from. The forms come from the operators' definitions, evaluated at unit tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from burnish.errors import RuleError
from burnish.rewrite.domains import Instance, Shape
from burnish.rewrite.field import Field, evaluate_graph

_HALF = 1 << 16  # an element's low part
_EXACT = 64  # products of a low part and an element that float64 sums exactly: 2^16 · 2^31 · 2^6 = 2^53
_CHUNK = 256  # unit tensors evaluated at a time
_TRIALS = 16  # random tensors on which a form must agree with the definition


def product_modulo(a: np.ndarray, b: np.ndarray, prime: int) -> np.ndarray:
    """``a`` [n, k] times ``b`` [k, m] modulo ``prime``; all are elements, int64."""
    total = np.zeros((len(a), b.shape[1]), np.int64)
    for start in range(0, a.shape[1], _EXACT):
        rows, columns = a[:, start : start + _EXACT], b[start : start + _EXACT].astype(np.float64)
        high = (rows // _HALF).astype(np.float64) @ columns
        low = (rows % _HALF).astype(np.float64) @ columns
        total += (high.astype(np.int64) % prime * _HALF + low.astype(np.int64)) % prime
    return total % prime


def evaluate(instance: Instance, inputs: list[np.ndarray], field: Field) -> np.ndarray:
    """Values [B, elements] of the operator for inputs [B, elements]."""
    feeds = {
        name: values.reshape(len(values), *shape)
        for name, values, shape in zip(instance.graph.inputs, inputs, instance.shapes, strict=True)
    }
    (value,) = evaluate_graph(instance.graph, feeds, field)
    return value.reshape(len(value), prod(instance.shape))


@dataclass(frozen=True)
class Form:
    """How a result's two fingerprints follow from the arguments' elements.

    linear: ``parts`` [2, elements] for each argument; bilinear: one part [2, elements of a, elements of b];
    opaque: the result has to be evaluated.
    """

    kind: Literal["linear", "bilinear", "opaque"]
    parts: tuple[np.ndarray, ...] = ()


def projection(shape: Shape, field: Field) -> np.ndarray:
    """The two random forms [2, elements] of tensors of a shape; of one shape always the same."""
    seed = [len(shape), *shape]
    return field.random(np.random.default_rng(seed), (2, prod(shape)))


def form(instance: Instance, field: Field) -> Form:
    """The operator's form, checked against its definition on random tensors.

    Raises RuleError for an operator of two tensors that is neither linear nor bilinear.
    """
    random = np.random.default_rng(0)
    forms = projection(instance.shape, field)
    sizes = [prod(shape) for shape in instance.shapes]
    trial = [field.random(random, (_TRIALS, n)) for n in sizes]
    expected = product_modulo(evaluate(instance, trial, field), forms.T.copy(), field.prime)
    parts = []
    for i, n in enumerate(sizes):
        units = [np.eye(n, dtype=np.int64) if i == j else np.zeros((n, m), np.int64) for j, m in enumerate(sizes)]
        parts.append(product_modulo(forms, evaluate(instance, units, field).T.copy(), field.prime))
    linear = Form("linear", tuple(parts))
    if np.array_equal(fingerprints(linear, trial, field), expected):
        return linear
    if len(sizes) == 1:
        return Form("opaque")
    if len(sizes) == 2:
        bilinear = Form("bilinear", (_bilinear(instance, forms, field),))
        if np.array_equal(fingerprints(bilinear, trial, field), expected):
            return bilinear
    raise RuleError(f"operator '{instance.word}' of a domain is neither linear nor bilinear nor of one tensor")


def _bilinear(instance: Instance, forms: np.ndarray, field: Field) -> np.ndarray:
    n, m = (prod(shape) for shape in instance.shapes)
    left, right = np.eye(n, dtype=np.int64).repeat(m, 0), np.tile(np.eye(m, dtype=np.int64), (n, 1))
    chunks = [
        product_modulo(forms, evaluate(instance, [left[i : i + _CHUNK], right[i : i + _CHUNK]], field).T, field.prime)
        for i in range(0, n * m, _CHUNK)
    ]
    return np.concatenate(chunks, 1).reshape(2, n, m)


def fingerprints(form: Form, inputs: list[np.ndarray], field: Field) -> np.ndarray:
    """The two forms [B, 2] of the result for inputs [B, elements]."""
    p = field.prime
    if form.kind == "linear":
        return sum(product_modulo(x, part.T, p) for x, part in zip(inputs, form.parts, strict=True)) % p
    x, y = inputs
    rows = [product_modulo(x, part, p) for part in form.parts[0]]
    return np.stack([(row * y % p).sum(axis=1) % p for row in rows], axis=1)


def table(form: Form, x: np.ndarray, y: np.ndarray, field: Field) -> np.ndarray:
    """The two forms [n, m, 2] of the results for all pairs of ``x`` [n, elements] and ``y`` [m, elements]."""
    p = field.prime
    if form.kind == "linear":
        left, right = (product_modulo(v, part.T, p) for v, part in zip((x, y), form.parts, strict=True))
        return (left[:, None] + right[None]) % p
    if len(x) <= len(y):
        return np.stack([product_modulo(product_modulo(x, part, p), y.T, p) for part in form.parts[0]], axis=2)
    return np.stack([product_modulo(x, product_modulo(part, y.T, p), p) for part in form.parts[0]], axis=2)


def key(forms: np.ndarray) -> np.ndarray:
    """One 62-bit fingerprint for each pair of forms [..., 2]."""
    return (forms[..., 0] << 31) | forms[..., 1]
