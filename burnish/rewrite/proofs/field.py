"""Exact evaluation of operators in a prime field, many tensors at once: what substitutions are found and tested with.

A definition's index expressions are evaluated with values in GF(p), with the field's sums, products and quotients.
``max`` and ``min`` follow an order of the field's elements that has nothing to do with its sums, and a function such as
``exp`` is a fixed random one: what holds for them here holds for any order and any function.
Two different polynomials of degree d agree at a random point with probability ≤ d / p (Schwartz and Zippel).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from math import prod
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
_SPREAD = 2**6 * 3**4 * 5 * 7 * 331  # in the order, numbers of definitions (0 to 17, simple fractions) stand as they do
LOWEST = -1  # what max starts from: no element of the field, below all of them
_DENOMINATOR = 1 << 8  # of the fractions that a definition's floating-point constants stand for


@dataclass(frozen=True)
class PrimeField:
    """GF(``prime``), ``prime`` < 2³¹. Elements are int64 in [0, prime)."""

    prime: int = PRIMES[0]

    def modulo(self, x: np.ndarray) -> np.ndarray:
        """``x % prime``, several times as fast: NumPy divides by constants by products, but finds no remainder so."""
        return x - x // self.prime * self.prime

    def element(self, value: float) -> int:
        """The element that a number of a definition stands for: a fraction with a small denominator, or ±infinity."""
        if np.isinf(value):
            return LOWEST
        fraction = Fraction(value).limit_denominator(_DENOMINATOR)
        if abs(float(fraction) - value) > 2e-7 * abs(value):
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
        place = self.modulo(x * _SPREAD + self.prime // 2)
        return np.where(x == LOWEST, LOWEST, place)

    def ranked(self, place: np.ndarray) -> np.ndarray:
        """The element of a place: the inverse of :meth:`rank`."""
        factor = pow(_SPREAD, -1, self.prime)
        return np.where(place == LOWEST, LOWEST, self.modulo(self.modulo(place - self.prime // 2) * factor))

    def function(self, name: str, x: np.ndarray) -> np.ndarray:
        """A fixed pseudo-random function for each name: a polynomial of degree 3 of the mixed bits."""
        seed = crc32(name.encode()) % self.prime
        y = ((x ^ (x >> 15)) % self.prime + seed) % self.prime
        y = y * y % self.prime * y % self.prime
        return ((y ^ (y >> 13)) * 48_271 + seed) % self.prime


# --- one operator -----------------------------------------------------------------------------------------------------

Types = tuple[tuple[tuple[int, ...], str], ...]
Values = Mapping[str, np.ndarray]
Step = Callable[[Values], np.ndarray]  # an expression whose value depends on tensors


def evaluate_operator(
    op: str, inputs: Sequence[np.ndarray], attrs: Mapping[str, Attribute], field: PrimeField = PrimeField()
) -> list[np.ndarray]:
    """Values of an operator's outputs. Arrays are [B, *shape]: ``B`` independent instances of the operator."""
    return operator_plan(op, tuple(a.shape[1:] for a in inputs), tuple(sorted(attrs.items())), field)(inputs)


@lru_cache(maxsize=1 << 12)
def operator_plan(
    op: str, shapes: tuple[tuple[int, ...], ...], attrs: tuple[tuple[str, Attribute], ...], field: PrimeField
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Compiled evaluation of an operator over the field: all that does not depend on its inputs' values is done once.

    ``attrs``: in order of their names.
    """
    placeholders = tuple(placeholder(shape, "float32", f"x{i}") for i, shape in enumerate(shapes))
    outputs = ops.OPERATORS[op].define("y", placeholders, dict(attrs))
    steps = [(s.name, _Stage(s, field).step()) for s in stages(outputs) if s.body is not None]

    def evaluate(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = {t.name: a for t, a in zip(placeholders, inputs, strict=True)}
        for name, step in steps:
            values[name] = step(values)
        return [values[t.name] for t in outputs]

    return evaluate


class _Stage:
    """One stage of a definition over the batch. Arrays of the walk are [B or 1, reduced axes…, output axes…]."""

    def __init__(self, stage: Tensor, field: PrimeField) -> None:
        body = stage.body
        assert body is not None
        self.stage, self.field = stage, field
        self.reduction = body if isinstance(body, Reduce) else None
        axes = [(a.var.name, a.extent) for a in self.reduction.axes] if self.reduction is not None else []
        axes += [(v.name, n) for v, n in zip(stage.axes, stage.shape, strict=True)]
        self.grid = tuple(n for _, n in axes)
        self.places = {name: 1 + i for i, (name, _) in enumerate(axes)}

    def step(self) -> Step:
        """Evaluation step of the stage, whose value is [B, *shape]."""
        body = self.stage.body if self.reduction is None else self.reduction.body
        assert body is not None
        element = _step(self.of(body))

        def run(values: Values) -> np.ndarray:
            value = element(values)
            batch = max((len(v) for v in values.values()), default=1)
            if value.shape != (batch, *self.grid):
                value = np.broadcast_to(value, (batch, *self.grid))
            return value if self.reduction is None else self.reduced(self.reduction.kind, value)

        return run

    def reduced(self, kind: str, value: np.ndarray) -> np.ndarray:
        p, count = self.field.prime, len(self.grid) - len(self.stage.shape)
        value = value.reshape(len(value), prod(self.grid[:count]), *self.stage.shape)
        if kind == "sum":
            return self.field.modulo(value.sum(axis=1))
        if kind in ("max", "min"):
            rank = self.field.rank(value)
            if kind == "max":
                return self.field.ranked(rank.max(axis=1))
            rank = np.where(rank == LOWEST, p, rank).min(axis=1)  # in a minimum, infinity is the greatest
            return self.field.ranked(np.where(rank == p, LOWEST, rank))
        return reduce(lambda a, b: a * b % p, np.moveaxis(value, 1, 0))

    def of(self, e: Expr) -> np.ndarray | Step:
        """The value of an expression, broadcastable to batch and grid, or what gives it. Integers are exact."""
        p = self.field.prime
        match e:
            case Const(value, dtype):
                return np.asarray(self.field.element(float(value)) if dtype in FLOATS else value)
            case Var(name):
                place = self.places[name]
                extent = self.grid[place - 1]
                return np.arange(extent).reshape([-1 if d == place else 1 for d in range(1 + len(self.grid))])
            case Cast(dtype, value):
                whole = dtype in FLOATS and value.dtype not in FLOATS
                return _apply(lambda x: x % p, self.of(value)) if whole else self.of(value)
            case Not(a):
                return _apply(np.logical_not, self.of(a))
            case Call(fn, args):
                return _apply(lambda *x: self.called(fn, x), *map(self.of, args))
            case Select(cond, a, b):
                return _apply(np.where, self.of(cond), self.of(a), self.of(b))
            case Load(buffer, indices):
                return self.load(buffer.name, buffer.shape, [self.of(i) for i in indices])
            case Binary(op, a, b):
                x, y = self.of(a), self.of(b)
                exact = OPERATORS[op]
                return _apply(lambda x, y: self.binary(op, x, y), x, y) if a.dtype in FLOATS else _apply(exact, x, y)
        raise AssertionError(e)

    def called(self, name: str, args: Sequence[np.ndarray]) -> np.ndarray:
        return self.field.function(name, reduce(lambda x, y: self.field.function(name, x) ^ y, args))

    def binary(self, op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """An operator on elements of the field."""
        if op == "+":
            return self.field.modulo(x + y)
        if op == "-":
            return self.field.modulo(x - y)
        if op == "*":
            return self.field.modulo(x * y)
        if op == "/":
            return self.field.modulo(x * self.field.inverse(y))
        a, b = self.field.rank(x), self.field.rank(y)
        if op in ("max", "min"):
            return np.where((a >= b) == (op == "max"), x, y)
        return np.asarray(OPERATORS[op](a, b))

    def load(self, name: str, shape: tuple[int, ...], indices: Sequence[np.ndarray | Step]) -> Step:
        """Elements of a tensor. An index outside is one that no ``Select`` takes: any element does."""
        flat = np.zeros((1,) * (1 + len(self.grid)), np.int64)
        for i, n in zip(indices, shape, strict=True):
            assert isinstance(i, np.ndarray)  # tensors are floating-point: none says where to read
            flat = flat * n + np.clip(i, 0, max(n - 1, 0))
        grid = flat.shape[1:]
        flat = flat.reshape(-1)
        count = prod(shape)
        whole = len(flat) == count and np.array_equal(flat, np.arange(len(flat)))

        def read(values: Values) -> np.ndarray:
            value = values[name]
            rows = value.reshape(len(value), count)
            return (rows if whole else rows.take(flat, axis=1)).reshape(len(value), *grid)

        return read


def _step(value: np.ndarray | Step) -> Step:
    return (lambda values: value) if isinstance(value, np.ndarray) else value


def _apply(function: Callable[..., np.ndarray], *args: np.ndarray | Step) -> np.ndarray | Step:
    """``function`` of values: its value if no tensor is among them, else what gives it."""
    if all(isinstance(a, np.ndarray) for a in args):
        return np.asarray(function(*args))
    steps = [_step(a) for a in args]
    return lambda values: function(*(step(values) for step in steps))


# --- a graph ----------------------------------------------------------------------------------------------------------


def evaluate_graph(graph: Graph, feeds: Mapping[str, np.ndarray], field: PrimeField = PrimeField()) -> list[np.ndarray]:
    """Values of the graph's outputs. ``feeds`` hold elements, [B, *shape] for each input."""
    values = {name: feeds[name] for name in graph.inputs}
    values |= {name: field.encode(array)[None] for name, array in graph.constants.items()}
    for node in graph.nodes:
        outputs = evaluate_operator(node.op, [values[n] for n in node.inputs], node.attrs, field)
        values.update(zip(node.outputs, outputs, strict=True))
    return [values[name] for name in graph.outputs]
