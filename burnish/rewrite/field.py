"""Exact evaluation of operators in a prime field, many tensors at once: what substitutions are found and tested with.

A definition's index expressions are evaluated with values in GF(p), with the field's sums, products and quotients.
``max`` and ``min`` follow an order of the field's elements that has nothing to do with its sums, and a function such as
``exp`` is a fixed random one: what holds for them here holds for any order and any function.
Two different polynomials of degree d agree at a random point with probability ≤ d / p (Schwartz and Zippel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from zlib import crc32

import numpy as np

from burnish import ops
from burnish.errors import ModelError
from burnish.graph.graph import Attribute, Graph
from burnish.loops.expr import (
    FLOATS,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Reduce,
    Select,
    Var,
)
from burnish.loops.numeric import OPERATORS
from burnish.loops.tensor import Tensor, placeholder, stages

PRIMES = (2**31 - 1, 2**31 - 19)  # products of two elements fit in an int64
LOWEST = -1  # what max starts from: no element of the field, below all of them
_DENOMINATOR = 1 << 12  # of the fractions that a definition's floating-point constants stand for


@dataclass(frozen=True)
class Field:
    """GF(``prime``), ``prime`` < 2³¹. Elements are int64 in [0, prime)."""

    prime: int = PRIMES[0]

    def modulo(self, x: np.ndarray) -> np.ndarray:
        """``x % prime``, several times as fast: NumPy divides by a constant with products, but takes no such remainder."""
        return x - x // self.prime * self.prime

    def element(self, value: float) -> int:
        """The element that a number of a definition stands for: a fraction with a small denominator, or ±infinity."""
        if np.isinf(value):
            return LOWEST
        fraction = Fraction(value).limit_denominator(_DENOMINATOR)
        if abs(float(fraction) - value) > 1e-6 * abs(value):
            raise ModelError(f"{value} is no simple fraction: it has no place in a finite field")
        return fraction.numerator * pow(fraction.denominator, -1, self.prime) % self.prime

    def encode(self, array: np.ndarray) -> np.ndarray:
        """A constant tensor as elements."""
        values, places = np.unique(array, return_inverse=True)
        return np.array([self.element(float(v)) for v in values], np.int64)[places].reshape(array.shape)

    def random(self, random: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        """Independent elements."""
        return random.integers(0, self.prime, shape, np.int64)

    def inverse(self, x: np.ndarray) -> np.ndarray:
        """x⁻¹ by Fermat's little theorem; of 0, 0."""
        result, power, exponent = np.ones_like(x), x, self.prime - 2
        while exponent:
            if exponent & 1:
                result = result * power % self.prime
            power = power * power % self.prime
            exponent >>= 1
        return result

    def rank(self, x: np.ndarray) -> np.ndarray:
        """An element's place in the order that max and min follow: an affine bijection, 0 in the middle."""
        place = self.modulo(x * 1_103_515_245 + self.prime // 2)
        return np.where(x == LOWEST, LOWEST, place)

    def ranked(self, place: np.ndarray) -> np.ndarray:
        """The element of a place: the inverse of :meth:`rank`."""
        factor = pow(1_103_515_245, -1, self.prime)
        return np.where(place == LOWEST, LOWEST, self.modulo(self.modulo(place - self.prime // 2) * factor))

    def function(self, name: str, x: np.ndarray) -> np.ndarray:
        """A fixed pseudo-random function for each name: a polynomial of degree 3 of the mixed bits."""
        seed = crc32(name.encode()) % self.prime
        y = ((x ^ (x >> 15)) % self.prime + seed) % self.prime
        y = y * y % self.prime * y % self.prime
        return ((y ^ (y >> 13)) * 48_271 + seed) % self.prime


# --- one operator -----------------------------------------------------------------------------------------------------

Types = tuple[tuple[tuple[int, ...], str], ...]


@lru_cache(maxsize=4096)
def _definition(op: str, types: Types, attrs: tuple[tuple[str, Attribute], ...]) -> tuple[Sequence[Tensor], ...]:
    inputs = tuple(placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(types))
    return inputs, ops.OPERATORS[op].define("y", inputs, dict(attrs))


def evaluate_operator(
    op: str, inputs: Sequence[np.ndarray], attrs: Mapping[str, Attribute], field: Field = Field()
) -> list[np.ndarray]:
    """Values of an operator's outputs. Arrays are [B, *shape]: ``B`` independent instances of the operator."""
    types = tuple((a.shape[1:], "float32") for a in inputs)
    placeholders, outputs = _definition(op, types, tuple(sorted(attrs.items())))
    values = {t.name: a for t, a in zip(placeholders, inputs, strict=True)}
    for stage in stages(outputs):
        if stage.body is not None:
            values[stage.name] = _Stage(stage, values, field).value()
    return [values[t.name] for t in outputs]


class _Stage:
    """One stage of a definition over the batch. Arrays of the walk are [B or 1, reduced axes…, output axes…]."""

    def __init__(self, stage: Tensor, values: Mapping[str, np.ndarray], field: Field) -> None:
        body = stage.body
        assert body is not None
        self.stage, self.values, self.field = stage, values, field
        self.reduction = body if isinstance(body, Reduce) else None
        axes = [(a.var.name, a.extent) for a in self.reduction.axes] if self.reduction is not None else []
        axes += [(v.name, n) for v, n in zip(stage.axes, stage.shape, strict=True)]
        self.grid = tuple(n for _, n in axes)
        self.places = {name: 1 + i for i, (name, _) in enumerate(axes)}

    def value(self) -> np.ndarray:
        body = self.stage.body if self.reduction is None else self.reduction.body
        assert body is not None
        value = np.asarray(self.of(body))
        batch = max((v.shape[0] for v in self.values.values()), default=1)
        value = np.broadcast_to(value, (batch, *self.grid))
        if self.reduction is not None:
            axes = tuple(range(1, 1 + len(self.reduction.axes)))
            value = self.reduced(self.reduction.kind, value, axes)
        return value

    def reduced(self, kind: str, value: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        p = self.field.prime
        if kind == "sum":
            return self.field.modulo(value.sum(axis=axes))
        if kind in ("max", "min"):
            rank = self.field.rank(value)
            if kind == "max":
                return self.field.ranked(rank.max(axis=axes))
            rank = np.where(rank == LOWEST, p, rank).min(axis=axes)  # in a minimum, infinity is the greatest
            return self.field.ranked(np.where(rank == p, LOWEST, rank))
        flat = np.moveaxis(value, axes, range(len(axes))).reshape(-1, *np.delete(value.shape, axes))
        return reduce(lambda a, b: a * b % p, flat)

    def of(self, e: Expr) -> np.ndarray:
        """The value of an expression, broadcastable to the batch and the grid. Integers and truth values are exact."""
        match e:
            case Const(value, dtype):
                return np.asarray(self.field.element(float(value)) if dtype in FLOATS else value)
            case Var(name):
                place = self.places[name]
                extent = self.grid[place - 1]
                return np.arange(extent).reshape([-1 if d == place else 1 for d in range(1 + len(self.grid))])
            case Cast(dtype, value):
                inner = self.of(value)
                return inner % self.field.prime if dtype in FLOATS and value.dtype not in FLOATS else inner
            case Not(a):
                return np.logical_not(self.of(a))
            case Call(fn, args):
                mixed = reduce(lambda x, y: self.field.function(fn, x) ^ y, map(self.of, args))
                return self.field.function(fn, mixed)
            case Select(cond, a, b):
                return np.where(self.of(cond), self.of(a), self.of(b))
            case Load(buffer, indices):
                return self.load(self.values[buffer.name], [self.of(i) for i in indices])
            case Binary(op, a, b):
                x, y = self.of(a), self.of(b)
                return self.binary(op, x, y) if a.dtype in FLOATS else np.asarray(OPERATORS[op](x, y))
        raise AssertionError(e)

    def binary(self, op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """An operator on elements of the field."""
        p = self.field.prime
        if op == "+":
            return self.field.modulo(np.asarray(x + y))
        if op == "-":
            return self.field.modulo(np.asarray(x - y))
        if op == "*":
            return self.field.modulo(np.asarray(x * y))
        if op == "/":
            return self.field.modulo(np.asarray(x * self.field.inverse(y)))
        a, b = self.field.rank(x), self.field.rank(y)
        if op in ("max", "min"):
            return np.where((a >= b) == (op == "max"), x, y)
        return np.asarray(OPERATORS[op](a, b))

    def load(self, array: np.ndarray, indices: Sequence[np.ndarray]) -> np.ndarray:
        """Elements of a tensor. An index outside is one that no ``Select`` takes: any element does."""
        inside = [np.clip(i, 0, n - 1) for i, n in zip(indices, array.shape[1:], strict=True)]
        shape = np.broadcast_shapes((1,) * (1 + len(self.grid)), *(i.shape for i in inside))[1:]
        flat = np.zeros(shape, np.int64)
        for i, n in zip(inside, array.shape[1:], strict=True):
            flat = flat * n + i
        return array.reshape(len(array), -1)[:, flat.reshape(-1)].reshape(len(array), *flat.shape[-len(shape) :])


# --- a graph ----------------------------------------------------------------------------------------------------------


def evaluate_graph(graph: Graph, feeds: Mapping[str, np.ndarray], field: Field = Field()) -> list[np.ndarray]:
    """Values of the graph's outputs. ``feeds`` hold elements, [B, *shape] for each input."""
    values = {name: feeds[name] for name in graph.inputs}
    values |= {name: field.encode(array)[None] for name, array in graph.constants.items()}
    for node in graph.nodes:
        outputs = evaluate_operator(node.op, [values[n] for n in node.inputs], node.attrs, field)
        values.update(zip(node.outputs, outputs, strict=True))
    return [values[name] for name in graph.outputs]
