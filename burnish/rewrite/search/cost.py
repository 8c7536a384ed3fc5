"""Predicted seconds of operators, for searches to minimize: machines in three numbers, and the compiler's target."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from burnish.graph.costs import (
    DIRECT_EFFICIENCY,
    KERNEL,
    POOL_EFFICIENCY,
    SMALL_EFFICIENCY,
    cache_seconds,
    copy_seconds,
    product_in_parts,
    product_in_parts_seconds,
    roofline_seconds,
)
from burnish.graph.divide import COPIED
from burnish.graph.estimates import Estimate, estimates, label_of, window_of
from burnish.graph.fusion_properties import contiguous_when_joined
from burnish.machines.target import Target
from burnish.rewrite.search.table import CostedOperator

FREE = frozenset(("reshape", "identity", "part", "swap"))  # views: what reads them reads elsewhere
COLUMNS_EFFICIENCY = 0.96  # of a product that reads or writes by columns, to that of one by rows: 0.92 to 1.02
FUSED = 2.0e-8  # seconds of an operator in another's kernel: of graphs that are else equal, the smaller is better


@dataclass(frozen=True)
class TargetCost:
    """Analytic cost model of the compiler's kernels on a target, in seconds, by class of operator.

    ====================  ===========================================================================================
    view (``FREE``)       0
    join in place         KERNEL and a copy for each piece that is part of another tensor; pieces are written in place
    fused element-wise    FUSED and the reading of its further operands of full size through the caches
    convolution           KERNEL and the least estimate of its algorithms; else the roofline
    map that reads parts  FUSED and its traffic through the caches
    read by columns       a copy of each operand that is stored so (the maker is ``swap``), but of products; see below
    split product         KERNEL and :func:`product_in_parts_seconds`: by a matrix unit, in bfloat16 parts
    anything else         KERNEL and the roofline of arithmetic, traffic, and streaming of constants
    ====================  ===========================================================================================

    A tensor's layout is part of a graph: ``swap(y)`` of a product ``y`` is its transpose stored by columns. Products
    read operands either way, by kernels of their own; what else reads one, or is given it as an output, converts it.
    """

    target: Target

    def __call__(self, operation: CostedOperator) -> float:
        """Seconds of one operator."""
        return self._kernel(operation) + self._conversions(operation)

    def _conversions(self, operation: CostedOperator) -> float:
        """Seconds to store operands by rows that are stored by columns."""
        if operation.op == "matmul":
            return 0.0
        turned = [t.nbytes for t, own in zip(operation.inputs, by_columns(operation), strict=True) if own]
        return sum(copy_seconds(nbytes, nbytes, self.target) for nbytes in turned)

    def _kernel(self, operation: CostedOperator) -> float:
        if operation.op in FREE:
            return 0.0
        if joins_in_place(operation, self.target.lanes):
            pairs = zip(operation.makers, operation.inputs, strict=True)
            return sum(KERNEL + copy_seconds(t.nbytes, t.nbytes, self.target) for maker, t in pairs if maker == "part")
        if is_fused(operation):
            shape, operands = operation.outputs[0].shape, zip(operation.inputs, operation.fixed, strict=True)
            whole = [t.nbytes for t, fixed in operands if t.shape == shape and not fixed]
            return FUSED + cache_seconds(sum(whole[1:]), self.target)
        if operation.op == "conv2d":
            return KERNEL + self._convolution(operation)
        if operation.facts.elementwise and "part" in operation.makers:
            return FUSED + cache_seconds(traffic(operation), self.target)
        if self._is_split(operation):
            return KERNEL + product_in_parts_seconds(arithmetic(operation), operation.inputs[0].size, self.target)
        weights = sum(t.nbytes for t, fixed in zip(operation.inputs, operation.fixed, strict=True) if fixed)
        moved, efficiency = traffic(operation) - weights, self._efficiency(operation)
        return KERNEL + roofline_seconds(arithmetic(operation), moved, self.target, efficiency, weights)

    def kind(self, operation: CostedOperator) -> str:
        """Kernel class of an operator: estimates within a class err by similar factors."""
        if operation.facts.elementwise:
            return "fused" if is_fused(operation) else "map"
        if operation.op != "conv2d":
            return f"{operation.op} split" if self._is_split(operation) else operation.op
        groups = int(operation.attrs["groups"])  # type: ignore[arg-type]
        if groups == 1:
            found = self._algorithms(operation)
            return label_of(min(found, key=lambda e: e.seconds)) if found else "conv2d"
        return "depthwise" if groups == operation.inputs[1].shape[0] else "grouped"

    def _is_split(self, operation: CostedOperator) -> bool:
        """Whether a matrix unit computes a product, in bfloat16 parts."""
        if operation.op != "matmul" or not operation.fixed[1] or any(operation.attrs.values()):
            return False
        return product_in_parts(operation.inputs[0].shape, operation.inputs[1].shape, self.target)

    def _efficiency(self, operation: CostedOperator) -> float:
        if operation.op in ("max_pool2d", "avg_pool2d"):
            return POOL_EFFICIENCY
        if operation.op != "matmul":
            return 1.0 / self.target.lanes if operation.facts.kind != "injective" else 1.0
        shape = operation.outputs[0].shape
        rows = shape[-2] if len(shape) > 1 else 1
        efficiency = DIRECT_EFFICIENCY if min(rows, shape[-1] if shape else 1) >= 8 else SMALL_EFFICIENCY
        return efficiency * COLUMNS_EFFICIENCY if operation.fixed[0] or any(by_columns(operation)) else efficiency

    def _convolution(self, operation: CostedOperator) -> float:
        if found := self._algorithms(operation):
            return min(e.seconds for e in found)
        per_group = operation.inputs[1].shape[0] // int(operation.attrs["groups"])  # type: ignore[arg-type]
        efficiency = DIRECT_EFFICIENCY if per_group % self.target.lanes == 0 else SMALL_EFFICIENCY
        return roofline_seconds(arithmetic(operation), traffic(operation), self.target, efficiency)

    def _algorithms(self, operation: CostedOperator) -> list[Estimate]:
        """Candidate algorithms of a convolution, estimated; empty where there is no choice, as in ragged groups."""
        attrs, (x, weight) = operation.attrs, operation.inputs[:2]
        per_group = weight.shape[0] // int(attrs["groups"])  # type: ignore[arg-type]
        ragged = attrs["groups"] != 1 and per_group % self.target.lanes
        if ragged or attrs["dilations"] != (1, 1) or not operation.fixed[1]:
            return []
        pads: tuple[int, ...] = attrs["pads"]  # type: ignore[assignment]
        return estimates(window_of(x, weight, operation.outputs[0], attrs), pads, self.target)


def by_columns(operation: CostedOperator) -> tuple[bool, ...]:
    """Which operands are stored by columns: kernels compute their transposes. Weights are packed anyway."""
    return tuple(m == "swap" and not fixed for m, fixed in zip(operation.makers, operation.fixed, strict=True))


def is_fused(operation: CostedOperator) -> bool:
    """Whether an element-wise operator is computed with an operand that a kernel computes."""
    if not operation.facts.elementwise:
        return False
    shape = operation.outputs[0].shape
    operands = zip(operation.makers, operation.inputs, operation.fixed, strict=True)
    computed = [maker for maker, kind, fixed in operands if not fixed and kind.shape == shape]
    return any(maker not in ("input", "part", "concat", "item") for maker in computed)


def joins_in_place(operation: CostedOperator, lanes: int) -> bool:
    """Whether a join's pieces follow one another in memory, and kernels can write all of them there."""
    if operation.op != "concat" or operation.outputs[0].nbytes < COPIED:
        return False
    axis = operation.attrs["axis"]
    assert isinstance(axis, int)
    computed = not any(maker in ("input", "item", "constant", "reshape") for maker in operation.makers)
    return computed and contiguous_when_joined(operation.inputs, axis, lanes)


def arithmetic(operation: CostedOperator) -> float:
    """Operations: two for each product that is summed, one for each other element."""
    size = sum(t.size for t in operation.outputs)
    match operation.op:
        case "conv2d":
            return 2.0 * size * prod(operation.inputs[1].shape[1:])
        case "matmul":
            shape = operation.inputs[0].shape
            return 2.0 * size * (shape[-2] if operation.attrs["transpose_a"] and len(shape) > 1 else shape[-1])
        case "max_pool2d" | "avg_pool2d":
            return float(size * prod(operation.attrs["kernel"]))  # type: ignore[arg-type]
    return float(max(size, sum(t.size for t in operation.inputs)))


def traffic(operation: CostedOperator) -> float:
    """Bytes of all operands and results."""
    return float(sum(t.nbytes for t in (*operation.inputs, *operation.outputs)))
