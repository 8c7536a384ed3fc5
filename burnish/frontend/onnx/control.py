"""ONNX's If, Loop and Scan: subgraphs in the place of the node where import knows how often what runs, else a node with
bodies (``flow.py``), where the types of what it computes are static.

Else they, and operators whose results have shapes that depend on values, wait for the run: see ``segments.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import onnx

from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx.context import OnnxContext, OnnxNode, RuntimeValue, Translator
from burnish.frontend.onnx.flow import branch, empty_results, loop
from burnish.frontend.onnx.nodes import translate_subgraph
from burnish.loops.sizes import dims_of, extent_of, least

FEW_STEPS = 4  # of a loop that becomes nodes at any rate
FEW_UNROLLED = 256  # nodes that a loop of more steps becomes: more are one node, whose body is compiled once
MOST_UNROLLED = 2048  # nodes that a loop becomes whose states change their types from step to step


def _if(c: OnnxContext, n: OnnxNode) -> list[str]:
    bodies = n.attrs["then_branch"], n.attrs["else_branch"]
    if c.known(n.inputs[0]) is not None or not _may_flow(c):
        return translate_subgraph(c, bodies[0 if bool(_one(c, n.inputs[0], "cond")) else 1], [])
    if prod(c.shape(n.inputs[0])) != 1:
        c.invalid("input 'cond'", f"shape {list(c.shape(n.inputs[0]))}", "one element")
    try:
        return branch(c, n.inputs[0], bodies)
    except ModelError as error:  # a body may be wrong for what it never sees
        raise RuntimeValue(
            f"{n}: input 'cond': found '{n.inputs[0]}', which a call computes: {error}", n.inputs[0]
        ) from None


def _loop(c: OnnxContext, n: OnnxNode) -> list[str]:
    body, most, going = n.attrs["body"], _known(c, n.input(0)), _known(c, n.input(1))
    if any(name in c.lists for name in n.inputs[2:]):
        return _unrolled_loop(c, n)
    if most is not None and dims_of((most,)) and _may_flow(c):
        return _loop_of_bodies(c, n)
    if most is not None and not (0 < most <= FEW_STEPS or most * len(body.node) <= FEW_UNROLLED) and _may_flow(c):
        try:
            return _loop_of_bodies(c, n)
        except ModelError:
            return _unrolled_loop(c, n)
    try:
        return _unrolled_loop(c, n)
    except RuntimeValue as error:
        if not _may_flow(c) or (most is not None and going is not None and not most * going):
            raise
        try:
            return _loop_of_bodies(c, n)
        except RuntimeValue as found:
            raise RuntimeValue(str(found), found.tensor or error.tensor) from None
        except UnsupportedOperator:
            raise
        except ModelError as found:  # of a body that may never run
            raise RuntimeValue(str(found), error.tensor) from None


def _loop_of_bodies(c: OnnxContext, n: OnnxNode) -> list[str]:
    """A loop as one node, whose body is compiled once."""
    body: onnx.GraphProto = n.attrs["body"]
    most, going, states = _known(c, n.input(0)), _known(c, n.input(1)), n.inputs[2:]
    several = len(body.output) - 1 - len(states)
    number = extent_of(most) if most is not None and (not n.input(1) or going) else 0
    if several and least(number) < 1:
        raise RuntimeValue(
            f"{n}: found scan outputs of rounds whose number values decide; allowed: a number", n.input(0)
        )

    def translate(inner: OnnxContext, step: str, now: list[str]) -> list[str]:
        return translate_subgraph(inner, body, [step, inner.constant(True, "bool"), *now])

    return loop(c, body, n.input(0), n.input(1), states, translate, number if several else 0)


def _unrolled_loop(c: OnnxContext, n: OnnxNode) -> list[str]:
    """A loop as the nodes of all its steps."""
    body: onnx.GraphProto = n.attrs["body"]
    most = int(_one(c, n.input(0), "M")) if n.input(0) else MOST_UNROLLED
    going = bool(_one(c, n.input(1), "cond")) if n.input(1) else True
    _require_short(n, most if n.input(0) else 1, body)
    carried = list(n.inputs[2:])
    scanned: list[list[str]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    if scanned and not (going and most > 0):
        types = [((), "int64"), ((), "bool"), *((c.shape(x), c.dtype(x)) for x in carried)]
        return [*carried, *empty_results(c, body, types, 1 + len(carried))]
    for number in range(most):
        if not going:
            break
        _require_short(n, number, body)
        feeds = [c.constant(number, "int64"), c.constant(True, "bool"), *carried]
        condition, *results = translate_subgraph(c, body, feeds)
        _require_same(c, carried, results)
        carried = results[: len(carried)]
        for parts, value in zip(scanned, results[len(carried) :], strict=True):
            parts.append(value)
        # A body whose condition never changes hands on the constant that it was given.
        going = bool(c.static(condition, "the body's condition").reshape(-1)[0])
    return [*carried, *(_stack(c, parts, 0) for parts in scanned)]


def _scan(c: OnnxContext, n: OnnxNode) -> list[str]:
    if n.opset < 9:
        raise RuntimeValue(f"{n}: found a batch of sequences; allowed: opset 9 and later", "")
    body, count = n.attrs["body"], n.attrs["num_scan_inputs"]
    carried, inputs = list(n.inputs[: len(n.inputs) - count]), n.inputs[len(n.inputs) - count :]
    axes = [c.axis(x, a) for x, a in zip(inputs, n.attr("scan_input_axes", [0] * count), strict=True)]
    backward = n.attr("scan_input_directions", [0] * count)
    steps, parts = c.shape(inputs[0])[axes[0]], len(body.output) - len(carried)
    if any(c.shape(x)[axis] != steps for x, axis in zip(inputs, axes, strict=True)):
        found = [c.shape(x)[axis] for x, axis in zip(inputs, axes, strict=True)]
        c.invalid("scan inputs", f"lengths {found}", "one length")
    open_ = bool(dims_of((steps,)))
    if not open_ and not steps:
        types = [(c.shape(x), c.dtype(x)) for x in carried]
        types += [(_without(c.shape(x), axis), c.dtype(x)) for x, axis in zip(inputs, axes, strict=True)]
        return [*carried, *empty_results(c, body, types, len(carried))]
    short = not open_ and (steps <= FEW_STEPS or steps * len(body.node) <= FEW_UNROLLED)
    if not short and _may_flow(c):
        carried, scanned = _scan_of_bodies(c, n, carried, inputs, axes, backward, steps)
    else:
        carried, scanned = _unrolled_scan(c, n, carried, inputs, axes, backward, steps)
    out_axes = n.attr("scan_output_axes", [0] * parts)
    reversed_ = n.attr("scan_output_directions", [0] * parts)
    return [*carried, *map(partial(_arranged, c), scanned, out_axes, reversed_)]


def _scan_of_bodies(
    c: OnnxContext, n: OnnxNode, carried: Sequence[str], inputs: Sequence[str], axes: Sequence[int],
    backward: Sequence[int], steps: int,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """The states and the results of all steps, along their first dimension, of a scan as one node."""
    body: onnx.GraphProto = n.attrs["body"]
    if dims_of((steps,)):
        limit = c.reshape(c.add("shape_of", inputs[0], dims=(axes[0],)), ())
    else:
        limit = c.constant(steps, "int64")
    last = c.add("sub", limit, c.constant(1, "int64"))

    def translate(inner: OnnxContext, step: str, now: list[str]) -> list[str]:
        back = inner.add("sub", last, step) if any(backward) else step
        parts = [
            inner.add("gather", x, back if reverse else step, axis=axis)
            for x, axis, reverse in zip(inputs, axes, backward, strict=True)
        ]
        return [inner.constant(True, "bool"), *translate_subgraph(inner, body, [*now, *parts])]

    found = loop(c, body, limit, "", carried, translate, steps, [*dict.fromkeys((last, *inputs))])
    return found[: len(carried)], found[len(carried) :]


def _unrolled_scan(
    c: OnnxContext, n: OnnxNode, carried: Sequence[str], inputs: Sequence[str], axes: Sequence[int],
    backward: Sequence[int], steps: int,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """As :func:`_scan_of_bodies`, as the nodes of all steps."""
    body: onnx.GraphProto = n.attrs["body"]
    _require_short(n, steps, body)
    scanned: list[list[str]] = [[] for _ in range(len(body.output) - len(carried))]
    for step in range(steps):
        feeds = [
            _at(c, x, axis, steps - 1 - step if back else step)
            for x, axis, back in zip(inputs, axes, backward, strict=True)
        ]
        results = translate_subgraph(c, body, [*carried, *feeds])
        _require_same(c, carried, results)
        carried = results[: len(carried)]
        for parts, value in zip(scanned, results[len(carried) :], strict=True):
            parts.append(value)
    return list(carried), [_stack(c, parts, 0) for parts in scanned]


def _arranged(c: OnnxContext, x: str, axis: int, back: int) -> str:
    """The results of all steps, which lie along the first dimension, along another, from the last step if ``back``."""
    shape = c.shape(x)
    rank = len(shape)
    if not -rank <= axis < rank:
        c.invalid("attribute 'scan_output_axes'", axis, f"{-rank} to {rank - 1}")
    if back:
        starts = (shape[0] - 1, *[0] * (rank - 1))
        x = c.add("slice", x, starts=starts, extents=shape, steps=(-1, *[1] * (rank - 1)))
    at = axis % rank
    return c.transpose(x, [*range(1, at + 1), 0, *range(at + 1, rank)])


def _may_flow(c: OnnxContext) -> bool:
    """Whether control flow may become a node with bodies: there is no gradient through one."""
    return c.flow and not c.training


def _known(c: OnnxContext, name: str) -> Any:
    """The one element of a value that is known, a number or a size; None for another, and for none."""
    found = c.known(name) if name else None
    return found.reshape(-1)[0] if found is not None and found.size == 1 else None


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _one(c: OnnxContext, name: str, what: str) -> Any:
    """The one element of a value that is known."""
    found = c.static(name, what)
    if found.size != 1:
        c.invalid(f"input '{what}'", f"shape {list(found.shape)}", "one element")
    return found.reshape(-1)[0]


def _require_same(c: OnnxContext, before: Sequence[str], after: Sequence[str]) -> None:
    """Refuses carried values that change their type from one step to the next."""
    for old, new in zip(before, after, strict=False):
        if old not in c.lists and new not in c.lists and c.dtype(old) != c.dtype(new):
            c.invalid(f"carried value '{new}'", f"dtype {c.dtype(new)}", f"{c.dtype(old)}, as before the step")


def _require_short(n: OnnxNode, steps: int, body: onnx.GraphProto) -> None:
    """Raises RuntimeValue for a loop that would become too many nodes."""
    if steps * max(len(body.node), 1) > MOST_UNROLLED:
        raise RuntimeValue(f"{n}: found {steps} steps of {len(body.node)} nodes; allowed: {MOST_UNROLLED} in all", "")


def _at(c: OnnxContext, x: str, axis: int, position: int) -> str:
    """The slice of ``x`` at a position along ``axis``, without that dimension."""
    shape = c.shape(x)
    return c.reshape(c.slice(x, axis, position, position + 1), (*shape[:axis], *shape[axis + 1 :]))


def _stack(c: OnnxContext, parts: Sequence[str], axis: int) -> str:
    """The parts along a new dimension."""
    shape = c.shape(parts[0])
    if not -len(shape) <= axis + 1 <= len(shape) + 1:
        c.invalid("attribute 'scan_output_axes'", axis, f"{-len(shape) - 1} to {len(shape)}")
    at = axis % (len(shape) + 1)
    return c.add("concat", *(c.reshape(p, (*shape[:at], 1, *shape[at:])) for p in parts), axis=at)


def _at_run_time(c: OnnxContext, n: OnnxNode) -> list[str]:
    """Run-time operator: import cannot translate it, even on constant inputs."""
    raise RuntimeValue(f"{n}: found results that are no tensors of numbers of a known shape; allowed: in a call", "")


AT_RUN_TIME = (
    "Optional", "OptionalHasElement", "OptionalGetElement", "RegexFullMatch", "StringConcat", "StringNormalizer",
    "StringSplit", "TfIdfVectorizer", "ai.onnx.ml.CategoryMapper", "ai.onnx.ml.ZipMap", "com.microsoft.Tokenizer",
)  # fmt: skip
TRANSLATORS: Mapping[str, Translator] = {
    "If": _if, "Loop": _loop, "Scan": _scan, **dict.fromkeys(AT_RUN_TIME, _at_run_time)
}  # fmt: skip
