"""Translators of ONNX reductions, normalizations and softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.graph.graph import Attribute
from burnish.loops.expr import FLOATS


def _reduce(op: str, c: OnnxContext, n: OnnxNode) -> str:
    """Without axes over all of them; with ``noop_with_empty_axes`` over none."""
    x, axes = n.inputs[0], c.ints_of("axes", 1) or None
    if axes is None and n.attr("noop_with_empty_axes", 0):
        return c.add(_OF_ONE.get(op, op), x, **({} if op in _OF_ONE else {"axes": ()}))
    real = x if op not in _OF_REALS else _real(c, x)
    over = {} if axes is None else {"axes": axes}
    return c.cast(c.add(op, real, **over, keepdims=bool(n.attr("keepdims", 1))), c.dtype(x))


def _real(c: OnnxContext, x: str) -> str:
    """Integers as float64, in which onnxruntime computes roots and logarithms, whose fractions it cuts off."""
    return x if c.dtype(x) in FLOATS else c.cast(x, "float64")


_OF_REALS = ("reduce_l2", "reduce_logsumexp")
_OF_ONE = {  # what a reduction of a single element is
    "reduce_sum": "identity", "reduce_mean": "identity", "reduce_max": "identity", "reduce_min": "identity",
    "reduce_prod": "identity", "reduce_logsumexp": "identity", "reduce_l1": "abs", "reduce_l2": "abs",
}  # fmt: skip


def _reduce_log_sum(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    total = _reduce("reduce_sum", c, replace(n, inputs=(_real(c, x), *n.inputs[1:])))
    return c.cast(c.add("log", total), c.dtype(x))


def _arg(op: str, c: OnnxContext, n: OnnxNode) -> str:
    last = bool(n.attr("select_last_index", 0))
    return c.add(op, n.inputs[0], axis=n.attr("axis", 0), keepdims=bool(n.attr("keepdims", 1)), last=last)


def _cumsum(c: OnnxContext, n: OnnxNode) -> str:
    (axis,) = c.ints(n.inputs[1], "axis")
    exclusive, reverse = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
    return c.add("cumsum", n.inputs[0], axis=axis, exclusive=exclusive, reverse=reverse)


def _softmax(op: str, c: OnnxContext, n: OnnxNode) -> str:
    """Over one axis; before opset 13 over all dimensions from ``axis`` on, as one."""
    x, shape = n.inputs[0], c.shape(n.inputs[0])
    if n.opset >= 13:
        return c.add(op, x, axis=n.attr("axis", -1))
    axis = c.axis(x, n.attr("axis", 1))
    if math.prod(shape[axis + 1 :]) == 1:
        return c.add(op, x, axis=axis)
    return c.reshape(c.add(op, c.flatten(x, axis), axis=1), shape)


def _hardmax(c: OnnxContext, n: OnnxNode) -> str:
    x, shape = n.inputs[0], c.shape(n.inputs[0])
    axis = c.axis(x, n.attr("axis", -1 if n.opset >= 13 else 1))
    rows = x if n.opset >= 13 else c.flatten(x, axis)
    axis = axis if n.opset >= 13 else 1
    index = c.add("argmax", rows, axis=axis, keepdims=False)
    values = c.constant([0, 1], c.dtype(x))
    return c.reshape(c.add("one_hot", index, values, depth=c.shape(rows)[axis], axis=axis), shape)


def _batch_norm(c: OnnxContext, n: OnnxNode) -> str | list[str]:
    if not n.attr("spatial", 1):
        c.refuse("attribute 'spatial'", "0", "1")
    if n.attr("training_mode", 0):
        return _batch_norm_training(c, n)
    keeps = n.attr("momentum", 0.9)  # of the running statistics, where a step moves them
    moves = {} if abs(keeps - 0.9) < 1e-6 else {"momentum": 1 - float(keeps)}
    x, shape = n.inputs[0], c.shape(n.inputs[0])
    if len(shape) == 1:  # a batch of one channel
        x = c.reshape(x, (*shape, 1))
    inputs = [x, *n.inputs[1:]]
    y = _in_one_dtype("batch_norm", c, inputs, c.dtype(x), epsilon=n.attr("epsilon", 1e-5), **moves)
    return c.reshape(y, shape)


def _batch_norm_training(c: OnnxContext, n: OnnxNode) -> list[str]:
    """Batch normalization in training, by the statistics of the batch, with running ones of old and new."""
    x, scale, bias, mean, variance = n.inputs
    axes = tuple(d for d in range(c.rank(x)) if d != 1)
    wide = c.cast(x, c.dtype(mean))
    own_mean = c.add("reduce_mean", wide, axes=axes, keepdims=True)
    centred = c.add("sub", wide, own_mean)
    own = c.add("reduce_mean", c.add("mul", centred, centred), axes=axes, keepdims=False)
    found = c.reshape(own_mean, c.shape(mean))
    y = _in_one_dtype("batch_norm", c, [x, scale, bias, found, own], c.dtype(x), epsilon=n.attr("epsilon", 1e-5))
    momentum = n.attr("momentum", 0.9)
    running = [
        c.add("add", c.add("mul", old, c.scalar(momentum, old)), c.add("mul", new, c.scalar(1 - momentum, new)))
        for old, new in ((mean, found), (variance, c.cast(own, c.dtype(variance))))
    ]
    return [y, *running]


def _in_one_dtype(op: str, c: OnnxContext, inputs: Sequence[str], result: str, **attrs: Attribute) -> str:
    """``op`` of inputs of several floating dtypes, computed in one that holds them all; ``result`` is that of y."""
    found = {c.dtype(name) for name in inputs}
    wide = found.pop() if len(found) == 1 else "float64" if "float64" in found else "float32"
    return c.cast(c.add(op, *(c.cast(name, wide) for name in inputs), **attrs), result)


def _instance_norm(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("instance_norm", *n.inputs, epsilon=n.attr("epsilon", 1e-5))


def _group_norm(c: OnnxContext, n: OnnxNode) -> str:
    x, scale, bias = n.inputs
    groups, channels = n.attrs["num_groups"], c.shape(x)[1]
    if n.opset < 21:  # scale and bias hold one value a group
        scale, bias = (
            c.reshape(c.add("expand", c.reshape(p, (groups, 1)), shape=(groups, channels // groups)), (channels,))
            for p in (scale, bias)
        )
    return c.add("group_norm", x, scale, bias, groups=groups, epsilon=n.attr("epsilon", 1e-5))


def _layer_norm(op: str, c: OnnxContext, n: OnnxNode) -> str | list[str]:
    x = n.inputs[0]
    axis = c.axis(x, n.attr("axis", -1))
    shape, given = c.shape(x)[axis:], [p for p in n.inputs[1:] if p]
    result = c.dtype(n.inputs[1])  # of RMSNormalization-23, where it is the scale's; of others it is the only one
    epsilon = n.attr("epsilon", 1e-5)
    for p, what in zip(given, ("Scale", "B"), strict=False):
        c.require_onto(p, what, c.shape(x))
    if all(e == 1 for p in given for e in c.shape(p)[: -len(shape)]):
        own = [c.reshape(p, c.shape(p)[-len(shape) :]) for p in given]
        parameters = [p if c.shape(p) == shape else c.add("expand", p, shape=shape) for p in own]
        y = _in_one_dtype(op, c, [x, *parameters], result, axis=axis, epsilon=epsilon)
    else:  # numbers of their own for every sample
        ones = c.add("expand", c.scalar(1, x), shape=shape)
        y = c.cast(_in_one_dtype(op, c, [x, ones], c.dtype(x), axis=axis, epsilon=epsilon), result)
        for p, step in zip(given, ("mul", "add"), strict=False):
            y = c.add(step, y, c.cast(p, result))
    if len(n.outputs) == 1 or op != "layer_norm":
        return y
    return [y, *statistics(c, x, tuple(range(axis, c.rank(x))), epsilon)]


def statistics(c: OnnxContext, x: str, axes: tuple[int, ...], epsilon: float) -> tuple[str, str]:
    """Mean and inverse standard deviation over ``axes``, kept with extent 1, in float32 or wider."""
    wide = c.cast(x, "float64" if c.dtype(x) == "float64" else "float32")
    mean = c.add("reduce_mean", wide, axes=axes)
    centred = c.add("sub", wide, mean)
    variance = c.add("reduce_mean", c.add("mul", centred, centred), axes=axes)
    return mean, c.add("rsqrt", c.add("add", variance, c.scalar(epsilon, variance)))


def _lp_norm(c: OnnxContext, n: OnnxNode) -> str:
    x, order = n.inputs[0], n.attr("p", 2)
    if order not in (1, 2):
        c.refuse("attribute 'p'", order, "1, 2")
    norm = c.add(f"reduce_l{order}", x, axes=(n.attr("axis", -1),), keepdims=True)
    zero = c.scalar(0, x)  # by the standard's text: where the norm is zero, so is the result
    return c.add("where", c.add("equal", norm, zero), zero, c.add("div", x, norm))


def _lrn(c: OnnxContext, n: OnnxNode) -> str:
    alpha, beta, bias = n.attr("alpha", 1e-4), n.attr("beta", 0.75), n.attr("bias", 1.0)
    return c.add("lrn", n.inputs[0], size=n.attrs["size"], alpha=alpha, beta=beta, bias=bias)


TRANSLATORS: Mapping[str, Translator] = {
    "ReduceSum": partial(_reduce, "reduce_sum"),
    "ReduceMean": partial(_reduce, "reduce_mean"),
    "ReduceMax": partial(_reduce, "reduce_max"),
    "ReduceMin": partial(_reduce, "reduce_min"),
    "ReduceProd": partial(_reduce, "reduce_prod"),
    "ReduceL1": partial(_reduce, "reduce_l1"),
    "ReduceL2": partial(_reduce, "reduce_l2"),
    "ReduceSumSquare": partial(_reduce, "reduce_sumsq"),
    "ReduceLogSumExp": partial(_reduce, "reduce_logsumexp"),
    "ReduceLogSum": _reduce_log_sum,
    "ArgMax": partial(_arg, "argmax"),
    "ArgMin": partial(_arg, "argmin"),
    "CumSum": _cumsum,
    "Softmax": partial(_softmax, "softmax"),
    "LogSoftmax": partial(_softmax, "log_softmax"),
    "Hardmax": _hardmax,
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LayerNormalization": partial(_layer_norm, "layer_norm"),
    "RMSNormalization": partial(_layer_norm, "rms_norm"),
    "LpNormalization": _lp_norm,
    "LRN": _lrn,
}
