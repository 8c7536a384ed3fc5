"""Bounds of magnitudes: of elements of a tensor, and of rows of them, for any inputs of a call; of what is not NaN.

A normalized row of n elements is no longer than the root of n; what constants make of it follows. So attention behind a
normalization has scores of which a bound is known when a model is compiled: rows q and k are at most as long as the
greatest singular value of their weights times the row that these multiply, and ``|q . k| <= |q| |k|``.

Source: Cauchy and Schwarz; the spectral norm of a matrix (Golub and Van Loan, Matrix Computations, section 2.3).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod, sqrt
from typing import Any

import numpy as np

from burnish.graph.graph import Node
from burnish.graph.rewrite import Rewrite
from burnish.loops.sizes import is_size
from burnish.ops import OPERATORS

MOVED = ("identity", "cast", "reshape", "transpose", "expand", "slice")  # whose elements are those of their input
MOST_ELEMENTS = 1 << 26  # of a matrix of which the spectral norm is computed
FARTHEST = 64  # nodes that a bound is followed through
LARGEST = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": 3.4e38, "float64": 1.79e308}  # beyond: infinity
LEAST_EPSILON = 1e-37  # that float32 does not round to 0


class Magnitudes:
    """Upper bounds of magnitudes in a graph that is being rewritten, but for rounding; infinity where none is known."""

    def __init__(self, graph: Rewrite) -> None:
        self.graph = graph
        self._elements: dict[str, float] = {}
        self._rows: dict[tuple[str, int, int], float] = {}
        self._depth = 0

    def element(self, name: str) -> float:
        """The greatest absolute value of an element."""
        if name not in self._elements:
            self._elements[name] = self._followed(self._element, name)
        return self._elements[name]

    def row(self, name: str, axis: int = -1, width: int = 0) -> float:
        """The greatest Euclidean norm along ``axis``, counted from the end; with ``width``, a divisor of its extent, of
        as many neighbours, the first at a multiple of it.
        """
        shape = self.graph.types[name].shape
        extent = shape[axis] if -axis <= len(shape) else 1
        if is_size(extent):
            return inf
        key = (name, axis, width or extent)
        if key not in self._rows:
            self._rows[key] = inf if extent == 0 or extent % key[2] else self._followed(self._row, *key)
        return self._rows[key]

    def _followed(self, bound: Callable[..., float], name: str, *of: int) -> float:
        """Bound of a tensor; infinity of one that too many nodes are followed for, or that overflows its dtype."""
        if self._depth == FARTHEST:
            return inf
        self._depth += 1
        found = bound(name, *of)
        self._depth -= 1
        return found if found <= LARGEST.get(self.graph.types[name].dtype, 0.0) else inf

    # --- elements -----------------------------------------------------------------------------------------------------

    def _element(self, name: str) -> float:
        value, node = self.graph.value(name), self.graph.producer(name)
        if value is not None:
            return _greatest(value)
        if node is None:
            return inf
        if node.op in ("tanh", "sigmoid", "softmax", "erf", "sin", "cos"):
            return 1.0
        if node.op in MOVED:
            return self.element(node.inputs[0])
        if node.op in ("add", "sub"):
            return self.element(node.inputs[0]) + self.element(node.inputs[1])
        if node.op in ("mul", "div"):
            return _scaled(self.element(node.inputs[0]), self._factor(node))
        if node.op == "matmul":
            turned = [bool(node.attrs.get(key)) for key in ("transpose_a", "transpose_b")]
            if min(len(self.graph.types[n].shape) for n in node.inputs) < 2:
                return inf
            left, right = node.inputs
            return _scaled(self.row(left, -2 if turned[0] else -1), self.row(right, -1 if turned[1] else -2))
        return inf

    def _factor(self, node: Node) -> float:
        """The greatest factor of a multiplication, or the greatest reciprocal of a divisor."""
        if node.op == "mul":
            return self.element(node.inputs[1])
        value = self.graph.value(node.inputs[1])
        return inf if value is None or not np.all(value) else _greatest(1.0 / value.astype(np.float64))

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _row(self, name: str, axis: int, width: int) -> float:
        value, node = self.graph.value(name), self.graph.producer(name)
        if value is not None:
            return _longest(value, axis, width)
        if node is None:
            return inf
        if node.op in ("layer_norm", "rms_norm"):
            return self._normalized(node, axis)
        if node.op == "div" and self._is_own_deviation(node, axis):
            return sqrt(self.graph.types[name].shape[axis])
        if node.op in MOVED:
            return self._moved(node, axis, width)
        if node.op in ("add", "sub"):
            return sum(self._spread(n, name, axis, width) for n in node.inputs)
        if node.op == "mul":
            return min(
                _scaled(self._spread(x, name, axis, width), self.element(factor))
                for x, factor in (node.inputs, node.inputs[::-1])
            )
        if node.op == "div":
            return _scaled(self._spread(node.inputs[0], name, axis, width), self._factor(node))
        if node.op == "matmul":
            return self._multiplied(node, axis, width)
        return _scaled(self.element(name), sqrt(width))

    def _spread(self, name: str, whole: str, axis: int, width: int) -> float:
        """The norm of an operand that is perhaps the same for all elements along an axis of the result."""
        shape, extent = self.graph.types[name].shape, self.graph.types[whole].shape[axis]
        own = shape[axis] if -axis <= len(shape) else 1
        return self.row(name, axis, width) if own == extent else self.element(name) * sqrt(width)

    def _normalized(self, node: Node, axis: int) -> float:
        """A normalization over dimensions of which ``axis`` is one: its scale times the root of their elements."""
        shape, over = self.graph.types[node.outputs[0]].shape, self._dimensions(node)
        if -axis > len(over):
            return inf
        scale, bias = (*node.inputs[1:], "", "")[:2]
        found = sqrt(prod(over)) * (self.element(scale) if scale else 1.0)
        return found + (self.element(bias) * sqrt(shape[axis]) if bias else 0.0)

    def _dimensions(self, node: Node) -> tuple[int, ...]:
        """The extents of the last dimensions, which a normalization is over; none where it is over others, one of them
        is open, or nothing keeps its divisor from 0.
        """
        attrs: Any = OPERATORS[node.op].complete(node.attrs)
        over = self.graph.types[node.outputs[0]].shape[attrs["axis"] :]
        unknown = attrs["trailing"] or attrs["epsilon"] < LEAST_EPSILON or any(map(is_size, over))
        return () if unknown else over

    def _is_own_deviation(self, node: Node, axis: int) -> bool:
        """Whether a quotient is ``x / sqrt(mean(x * x) + c)`` along ``axis``, a normalization that is written out, with
        c > 0: without it squares may be 0 where elements are not.
        """
        root = self.graph.producer(node.inputs[1])
        total = None if root is None or root.op != "sqrt" else self.graph.producer(root.inputs[0])
        if total is None or total.op != "add":
            return False
        parts = [(self.graph.value(n), self.graph.producer(m)) for n, m in (total.inputs, total.inputs[::-1])]
        mean = next((m for value, m in parts if value is not None and np.all(value > 0)), None)
        if mean is None or mean.op != "reduce_mean" or not mean.attrs.get("keepdims", True):
            return False
        square, rank = self.graph.producer(mean.inputs[0]), len(self.graph.types[mean.inputs[0]].shape)
        axes: Any = mean.attrs.get("axes", ())
        own = [a - rank if a >= 0 else a for a in axes] == [axis]
        return own and square is not None and square.op == "mul" and {*square.inputs} == {node.inputs[0]}

    def _moved(self, node: Node, axis: int, width: int) -> float:
        """Rows of what only has another place, shape or type."""
        (source, *_), attrs = node.inputs, node.attrs
        old, new = (self.graph.types[n].shape for n in (source, node.outputs[0]))
        if node.op == "expand":
            return self._spread(source, node.outputs[0], axis, width)
        if min(len(old), len(new)) < -axis:
            return inf
        if node.op == "transpose":
            perm: Any = attrs["perm"]
            return self.row(source, perm[axis] - len(old), width)
        if node.op == "slice":
            return self.row(source, axis)
        if old[axis:] != new[axis:]:
            divides = axis == -1 and not is_size(old[-1]) and old[-1] % new[-1] == 0
            return self.row(source, -1, width) if divides else inf
        return self.row(source, axis, width)

    def _multiplied(self, node: Node, axis: int, width: int) -> float:
        """Rows times a constant matrix: the norm of its columns, ``width`` at a time."""
        matrix = self.graph.value(node.inputs[1])
        known = matrix is not None and matrix.ndim == 2 and matrix.size <= MOST_ELEMENTS
        if axis != -1 or not known or matrix is None or node.attrs.get("transpose_a"):
            return inf
        columns = (matrix.T if node.attrs.get("transpose_b") else matrix).astype(np.float64)
        before, scale, shift = self._affine(node.inputs[0], len(columns))
        if before == inf:
            return inf
        return before * spectral_norm(scale[:, None] * columns, width) + _longest(shift @ columns, -1, width)

    def _affine(self, name: str, extent: int) -> tuple[float, np.ndarray, np.ndarray]:
        """Rows as ``r * scale + shift``, both constants: the norm of the longest r, and these."""
        scale, shift = np.ones(extent), np.zeros(extent)
        while (node := self.graph.producer(name)) is not None:
            if node.op in ("cast", "identity"):
                name = node.inputs[0]
                continue
            if node.op in ("layer_norm", "rms_norm"):
                parts = [part for n in node.inputs[1:] if (part := self._vector(n, extent)) is not None]
                if self._dimensions(node) == (extent,) and len(parts) == len(node.inputs) - 1:
                    shift = shift + scale * parts[1] if len(parts) > 1 else shift
                    return sqrt(extent), scale * parts[0] if parts else scale, shift
            found = self._term(node, extent) if node.op in ("add", "mul") else None
            if found is None:
                break
            name, vector = found
            scale, shift = (scale, shift + scale * vector) if node.op == "add" else (scale * vector, shift)
        return self.row(name, -1), scale, shift

    def _term(self, node: Node, extent: int) -> tuple[str, np.ndarray] | None:
        """The operand of a sum or product by a constant of the last axis, and that."""
        for name, other in (node.inputs, node.inputs[::-1]):
            vector = self._vector(other, extent)
            if vector is not None and self.graph.types[name].shape == self.graph.types[node.outputs[0]].shape:
                return name, vector
        return None

    def _vector(self, name: str, extent: int) -> np.ndarray | None:
        """A constant that is one number, or one for each element of the last axis."""
        value = self.graph.value(name)
        known = value is not None and (value.size == 1 or (value.size == extent == value.shape[-1]))
        return np.broadcast_to(value.reshape(-1).astype(np.float64), (extent,)) if known and value is not None else None


def spectral_norm(matrix: np.ndarray, width: int) -> float:
    """The greatest singular value of a matrix [K, N], of ``width`` of its columns at a time, which divides N."""
    depth, columns = matrix.shape
    most = _greatest(matrix)
    if most in (0.0, inf):
        return most
    parts = (matrix / most).astype(np.float32).reshape(depth, columns // width, width).transpose(1, 0, 2)
    small = parts.swapaxes(1, 2) @ parts if width <= depth else parts @ parts.swapaxes(1, 2)
    return most * sqrt(max(float(np.linalg.eigvalsh(small.astype(np.float64)).max()), 0.0))


def _greatest(value: np.ndarray) -> float:
    found = float(np.abs(value.astype(np.float64)).max(initial=0.0))
    return found if found == found else inf


def _longest(value: np.ndarray, axis: int, width: int) -> float:
    """The longest row of a constant, ``width`` elements at a time."""
    if -axis > value.ndim:
        return _greatest(value)
    rows = np.moveaxis(value.astype(np.float64), axis, -1).reshape(-1, width)
    with np.errstate(over="ignore"):
        found = float(np.sqrt((rows * rows).sum(-1)).max(initial=0.0))
    return found if found == found else inf


def _scaled(bound: float, factor: float) -> float:
    """A bound times another; none where one of both is not known."""
    return inf if inf in (bound, factor) else bound * factor
