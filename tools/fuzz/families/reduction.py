"""Draws of reductions, normalizations and softmax."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tools.fuzz.families.common import Draw, within
from tools.fuzz.sketch import FLOATS, NUMBERS, Sketch

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp", "ReduceLogSum",
)  # fmt: skip


def reduce(s: Sketch) -> None:
    op = s.choose(("ReduceSum", "ReduceMean", "ReduceMax")) if s.chance(0.4) else s.choose(REDUCTIONS)
    dtypes = s.types(op, 0, FLOATS if s.chance(0.8) else NUMBERS)
    x = s.pick(dtypes, fits=lambda v: v.size > 0)
    if op == "ReduceLogSum":
        x = within(s, x, 0.05, 100)
    if op == "ReduceLogSumExp":
        x = within(s, x, -20, 20)
    rank = s.value(x).ndim
    keepdims = s.choose((None, 0, 1))
    if rank == 0 or s.chance(0.12):
        noop = s.choose((None, None, 1)) if s.opset >= 18 else None
        s.add(op, x, keepdims=keepdims, noop_with_empty_axes=noop)
        return
    axes = s.split_axes(rank)
    if s.opset >= (13 if op == "ReduceSum" else 18):
        s.add(op, x, s.index(axes), keepdims=keepdims)
    else:
        s.add(op, x, axes=axes, keepdims=keepdims)


def arg(s: Sketch) -> None:
    op = s.choose(("ArgMax", "ArgMin"))
    x = s.pick(s.types(op, 0, NUMBERS), (1, 2, 3, 4), fits=lambda v: v.size > 0)
    s.add(op, x, axis=s.axis(s.value(x).ndim), keepdims=s.choose((None, 0, 1)))


def softmax(s: Sketch) -> None:
    op = s.choose(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    x = within(s, s.pick(s.types(op, 0, FLOATS), (1, 2, 3, 4), fits=lambda v: v.size > 0), -50, 50)
    rank = s.value(x).ndim
    absent = s.chance(0.2) and (rank > 1 or s.opset >= 13)  # the default of before is axis 1
    s.add(op, x, axis=None if absent else s.axis(rank))


def centred(s: Sketch) -> None:
    """x minus a reduction of it: what normalizations are made of."""
    x = s.pick(FLOATS, (1, 2, 3, 4), fits=lambda v: v.size > 0)
    axis = s.between(0, s.value(x).ndim - 1)
    op = s.choose(("ReduceMean", "ReduceMax", "ReduceMin"))
    if s.opset >= 18:
        middle = s.add(op, x, s.index([axis]), keepdims=1)
    else:
        middle = s.add(op, x, axes=[axis], keepdims=1)
    s.add(s.choose(("Sub", "Mul", "Add")), x, middle)


def channels(s: Sketch, x: str, count: int, positive: int = -1) -> list[str]:
    """``count`` vectors of one value a channel of ``x``; the one at ``positive`` is above 0."""
    extent, dtype = s.value(x).shape[1], s.kind(x)
    return [s.new(s.floats((extent,), dtype, 0.3 if i == positive else -1.0, 2.0), s.chance(0.9)) for i in range(count)]


def batch_norm(s: Sketch) -> None:
    x = s.pick(s.types("BatchNormalization", 0, FLOATS), (2, 3, 4), fits=lambda v: v.size > 0)
    s.add("BatchNormalization", x, *channels(s, x, 4, 3), epsilon=s.choose((None, 1e-3)))


def instance_norm(s: Sketch) -> None:
    x = s.pick(s.types("InstanceNormalization", 0, FLOATS), (3, 4), fits=lambda v: v.size > 3 * v.shape[0] * v.shape[1])
    s.add("InstanceNormalization", x, *channels(s, x, 2), epsilon=s.choose((None, 1e-3)))


def group_norm(s: Sketch) -> None:
    x = s.pick(s.types("GroupNormalization", 0, FLOATS), (3, 4), fits=lambda v: v.size > 8)
    extent = s.value(x).shape[1]
    groups = s.choose([g for g in (1, 2, 3, 4, 8, extent) if extent % g == 0])
    size = groups if s.opset < 21 else extent
    parameters = [s.new(s.floats((size,), s.kind(x)), s.chance(0.9)) for _ in range(2)]
    s.add("GroupNormalization", x, *parameters, num_groups=groups, epsilon=s.choose((None, 1e-3)))


def layer_norm(s: Sketch) -> None:
    op = s.choose(("LayerNormalization", "LayerNormalization", "RMSNormalization"))
    x = s.pick(s.types(op, 0, FLOATS), (1, 2, 3, 4), fits=lambda v: v.size > 0)
    shape = s.value(x).shape
    axis = s.between(0, len(shape) - 1) if s.chance(0.4) else len(shape) - 1
    count = 1 if op == "RMSNormalization" else s.between(1, 2)
    parameters = [s.new(s.floats(shape[axis:], s.kind(x)), s.chance(0.8)) for _ in range(count)]
    s.add(op, x, *parameters, axis=axis - len(shape) if s.chance(0.5) else axis, epsilon=s.choose((None, 1e-3)))


def lp_norm(s: Sketch) -> None:
    x = s.pick(s.types("LpNormalization", 0, FLOATS), (1, 2, 3, 4), fits=lambda v: v.size > 0)
    axis = s.axis(s.value(x).ndim)
    if bool((np.abs(s.value(x)).sum(axis) < 1e-2).any()):
        x = s.add("Add", s.add("Abs", x), s.constant(np.asarray(0.5, s.value(x).dtype)))
    s.add("LpNormalization", x, axis=axis, p=s.choose((None, 1, 2)))


def lrn(s: Sketch) -> None:
    x = s.pick(s.types("LRN", 0, FLOATS), (3, 4), fits=lambda v: v.size > 0)
    s.add("LRN", x, size=s.choose((1, 3, 5)), alpha=s.choose((None, 0.01)), beta=s.choose((None, 0.5)))


DRAWS: Mapping[str, Draw] = {"reduce": reduce, "reduce2": reduce, "arg": arg, "softmax": softmax, "centred": centred}
NORMALIZATION_DRAWS: Mapping[str, Draw] = {
    "batch_norm": batch_norm, "instance_norm": instance_norm, "group_norm": group_norm, "layer_norm": layer_norm,
    "lp_norm": lp_norm, "lrn": lrn, "softmax": softmax,
}  # fmt: skip
