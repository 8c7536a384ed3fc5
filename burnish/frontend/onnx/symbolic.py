"""Shape arithmetic of exporters: integer tensors computed from open extents, evaluated with sizes as elements.

Such a tensor is an array of Python integers and sizes (``loops.sizes``) beside the graph's own tensor, which is dropped
where nothing reads its values at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from burnish.frontend.onnx.context import OnnxContext, OnnxNode
from burnish.loops.sizes import greatest, is_size, larger, least, smaller

Known = np.ndarray  # of objects: integers, booleans and sizes
Rule = Callable[[OnnxContext, OnnxNode, Sequence[Known | None]], Sequence[Known]]


class _Undecided(Exception):  # noqa: N818 - no error: the value is computed
    """A value that depends on the dimensions in a way that no size says."""


def note_sizes(context: OnnxContext, node: OnnxNode, results: Sequence[str]) -> None:
    """Remembers the values of a node's results as sizes, where they follow from open extents and constants."""
    rule = _RULES.get(node.op)
    if rule is None:
        return
    inputs = [_known(context, name) if name else None for name in node.inputs]
    open_ = any(name in context.sizes for name in node.inputs)
    missing = any(v is None for v, name in zip(inputs, node.inputs, strict=True) if name)
    if node.op not in _OF_SHAPES and (missing or not open_):
        return
    try:
        found = rule(context, node, inputs)
    except (_Undecided, TypeError, ValueError, IndexError, ArithmeticError):
        return  # the tensor is what a call computes
    for name, value in zip(results, found, strict=False):
        if name not in context.builder.constants:
            context.sizes[name] = value


def _known(context: OnnxContext, name: str) -> Known | None:
    """A value as an array of objects, if it is an integer's or boolean's and known."""
    if name in context.sizes:
        return context.sizes[name]
    array = context.builder.constants.get(name)
    if array is None or array.dtype.kind not in "iub" or array.size > 64:
        return None
    return array.astype(object)


def _objects(values: Sequence[Any], shape: Sequence[int]) -> Known:
    """An array of objects; NumPy would ask a sequence of sizes for more than it is."""
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape)


def _elementwise(compute: Callable[..., Any]) -> Rule:
    def rule(context: OnnxContext, node: OnnxNode, inputs: Sequence[Known | None]) -> Sequence[Known]:
        arrays = np.broadcast_arrays(*[v for v in inputs if v is not None], subok=False)
        columns = zip(*(a.reshape(-1).tolist() for a in arrays), strict=True)
        return [_objects([compute(*row) for row in columns], arrays[0].shape)]

    return rule


def _moved(move: Callable[[OnnxNode, Sequence[Any]], Known]) -> Rule:
    return lambda context, node, inputs: [move(node, inputs)]


def _shape(context: OnnxContext, node: OnnxNode, inputs: Sequence[Known | None]) -> Sequence[Known]:
    shape = context.shape(node.inputs[0])
    part = shape[node.attr("start", 0) : node.attr("end", len(shape))]
    return [_objects(part, (len(part),))]


def _size(context: OnnxContext, node: OnnxNode, inputs: Sequence[Known | None]) -> Sequence[Known]:
    return [_objects([prod(context.shape(node.inputs[0]))], ())]


def _cast(context: OnnxContext, node: OnnxNode, inputs: Sequence[Known | None]) -> Sequence[Known]:
    if context.dtype(node.inputs[0]) == "bool" or node.attrs["to"] not in (6, 7):  # TensorProto.INT32, INT64
        raise _Undecided
    return [inputs[0]]  # type: ignore[list-item]


def _quotient(a: Any, b: Any) -> Any:
    """Division that rounds towards 0, which is down for what is not negative."""
    if isinstance(b, int) and b > 0 and least(a) >= 0:
        return a // b
    raise _Undecided


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(b, int) and b > 0 and least(a) >= 0:
        return a % b
    raise _Undecided


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are equal; undecided where that depends on the dimensions."""
    if least(a - b) > 0 or greatest(a - b) < 0:
        return False
    if is_size(a - b):
        raise _Undecided
    return bool(a - b == 0)


def _extreme(choose: Callable[[int, int], int | None], *values: Any) -> Any:
    """The value that ``choose`` prefers of every two; undecided where that depends on the dimensions."""
    found = values[0]
    for value in values[1:]:
        found = choose(found, value)
        if found is None:
            raise _Undecided
    return found


def _gather(node: OnnxNode, inputs: Sequence[Any]) -> Known:
    values, index = inputs
    return _objects_like(np.take(values, index.astype(np.int64), axis=node.attr("axis", 0)))


def _slice(node: OnnxNode, inputs: Sequence[Any]) -> Known:
    values, *rest = inputs
    starts, ends = ([int(v) for v in r] for r in rest[:2])
    steps = [int(v) for v in rest[3]] if len(rest) > 3 and rest[3] is not None else [1]
    if values.ndim != 1 or len(starts) != 1:
        raise _Undecided
    return values[starts[0] : ends[0] : steps[0]]


def _squeeze(node: OnnxNode, inputs: Sequence[Any]) -> Known:
    return inputs[0].reshape(()) if inputs[0].size == 1 else inputs[0]


def _unsqueeze(node: OnnxNode, inputs: Sequence[Any]) -> Known:
    if inputs[0].ndim:
        raise _Undecided
    return inputs[0].reshape(1)


def _reshape(node: OnnxNode, inputs: Sequence[Any]) -> Known:
    return inputs[0].reshape([int(v) for v in inputs[1]])


def _concat(node: OnnxNode, inputs: Sequence[Any]) -> Known:
    return np.concatenate(inputs, axis=node.attrs["axis"])


def _reduce_prod(node: OnnxNode, inputs: Sequence[Any]) -> Known:
    if inputs[0].ndim != 1:
        raise _Undecided
    return _objects([prod(inputs[0].tolist())], (1,) if node.attr("keepdims", 1) else ())


def _where(condition: Any, a: Any, b: Any) -> Any:
    return a if bool(condition) else b


def _objects_like(found: Any) -> Known:
    """Object array of a NumPy result, which for one element is the element itself."""
    return found if isinstance(found, np.ndarray) else _objects([found], ())


_OF_SHAPES = {"Shape": _shape, "Size": _size}
_RULES: Mapping[str, Rule] = {
    **_OF_SHAPES,
    "Identity": lambda context, node, inputs: [inputs[0]],  # type: ignore[list-item]
    "Cast": _cast,
    "Gather": _moved(_gather),
    "Slice": _moved(_slice),
    "Concat": _moved(_concat),
    "Squeeze": _moved(_squeeze),
    "Unsqueeze": _moved(_unsqueeze),
    "Reshape": _moved(_reshape),
    "ReduceProd": _moved(_reduce_prod),
    "Add": _elementwise(lambda a, b: a + b),
    "Sub": _elementwise(lambda a, b: a - b),
    "Mul": _elementwise(lambda a, b: a * b),
    "Div": _elementwise(_quotient),
    "Mod": _elementwise(_remainder),
    "Neg": _elementwise(lambda a: -a),
    "Max": _elementwise(partial(_extreme, larger)),
    "Min": _elementwise(partial(_extreme, smaller)),
    "Equal": _elementwise(_equal),
    "Greater": _elementwise(lambda a, b: bool(a > b)),
    "GreaterOrEqual": _elementwise(lambda a, b: bool(a >= b)),
    "Less": _elementwise(lambda a, b: bool(a < b)),
    "LessOrEqual": _elementwise(lambda a, b: bool(a <= b)),
    "Not": _elementwise(lambda a: not a),
    "Where": _elementwise(_where),
}
