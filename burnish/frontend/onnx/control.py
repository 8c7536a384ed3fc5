"""ONNX's If, Loop and Scan where import knows how often what runs: subgraphs in the place of the node.

Else they, and operators whose results have shapes that depend on values, wait for the run: see ``segments.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from burnish.frontend.onnx.context import Context, OnnxNode, RuntimeValue, Translator
from burnish.frontend.onnx.nodes import translate_subgraph

MOST_UNROLLED = 2048  # nodes that a loop becomes: more run as a loop, whose body is compiled once


def _if(c: Context, n: OnnxNode) -> list[str]:
    chosen = "then_branch" if bool(_one(c, n.inputs[0], "cond")) else "else_branch"
    return translate_subgraph(c, n.attrs[chosen], [])


def _loop(c: Context, n: OnnxNode) -> list[str]:
    body: onnx.GraphProto = n.attrs["body"]
    most = int(_one(c, n.input(0), "M")) if n.input(0) else MOST_UNROLLED
    going = bool(_one(c, n.input(1), "cond")) if n.input(1) else True
    _require_short(n, most if n.input(0) else 1, body)
    carried = list(n.inputs[2:])
    scanned: list[list[str]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
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
    if scanned and not scanned[0]:
        raise RuntimeValue(f"{n}: found a loop of no steps with scan outputs; allowed: one step", "")
    return [*carried, *(_stack(c, parts, 0) for parts in scanned)]


def _scan(c: Context, n: OnnxNode) -> list[str]:
    if n.opset < 9:
        raise RuntimeValue(f"{n}: found a batch of sequences; allowed: opset 9 and later", "")
    body, count = n.attrs["body"], n.attrs["num_scan_inputs"]
    carried, inputs = list(n.inputs[: len(n.inputs) - count]), n.inputs[len(n.inputs) - count :]
    axes = [c.axis(x, a) for x, a in zip(inputs, n.attr("scan_input_axes", [0] * count), strict=True)]
    backward = n.attr("scan_input_directions", [0] * count)
    steps = c.shape(inputs[0])[axes[0]]
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
    if scanned and not steps:
        raise RuntimeValue(f"{n}: found a scan of no steps; allowed: one step", "")
    out_axes = n.attr("scan_output_axes", [0] * len(scanned))
    reversed_ = n.attr("scan_output_directions", [0] * len(scanned))
    outputs = [
        _stack(c, parts[::-1] if back else parts, axis)
        for parts, axis, back in zip(scanned, out_axes, reversed_, strict=True)
    ]
    return [*carried, *outputs]


def _one(c: Context, name: str, what: str) -> Any:
    """The one element of a value that is known."""
    found = c.static(name, what)
    if found.size != 1:
        c.invalid(f"input '{what}'", f"shape {list(found.shape)}", "one element")
    return found.reshape(-1)[0]


def _require_same(c: Context, before: Sequence[str], after: Sequence[str]) -> None:
    """Refuses carried values that change their type from one step to the next."""
    for old, new in zip(before, after, strict=False):
        if c.dtype(old) != c.dtype(new):
            c.invalid(f"carried value '{new}'", f"dtype {c.dtype(new)}", f"{c.dtype(old)}, as before the step")


def _require_short(n: OnnxNode, steps: int, body: onnx.GraphProto) -> None:
    """Raises RuntimeValue for a loop that would become too many nodes."""
    if steps * max(len(body.node), 1) > MOST_UNROLLED:
        raise RuntimeValue(f"{n}: found {steps} steps of {len(body.node)} nodes; allowed: {MOST_UNROLLED} in all", "")


def _at(c: Context, x: str, axis: int, position: int) -> str:
    """The slice of ``x`` at a position along ``axis``, without that dimension."""
    shape = c.shape(x)
    return c.reshape(c.slice(x, axis, position, position + 1), (*shape[:axis], *shape[axis + 1 :]))


def _stack(c: Context, parts: Sequence[str], axis: int) -> str:
    """The parts along a new dimension."""
    shape = c.shape(parts[0])
    if not -len(shape) <= axis + 1 <= len(shape) + 1:
        c.invalid("attribute 'scan_output_axes'", axis, f"{-len(shape) - 1} to {len(shape)}")
    at = axis % (len(shape) + 1)
    return c.add("concat", *(c.reshape(p, (*shape[:at], 1, *shape[at:])) for p in parts), axis=at)


def _at_run_time(c: Context, n: OnnxNode) -> list[str]:
    """An operator that import cannot translate, whatever it knows of its inputs."""
    raise RuntimeValue(f"{n}: found results that are no tensors of numbers of a known shape; allowed: in a call", "")


AT_RUN_TIME = (
    "SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase",
    "SequenceAt", "SequenceLength", "SplitToSequence", "ConcatFromSequence", "SequenceMap", "Optional",
    "OptionalHasElement", "OptionalGetElement", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
    "TfIdfVectorizer", "ai.onnx.ml.CategoryMapper", "ai.onnx.ml.ZipMap", "com.microsoft.Tokenizer",
)  # fmt: skip
TRANSLATORS: Mapping[str, Translator] = {
    "If": _if, "Loop": _loop, "Scan": _scan, **dict.fromkeys(AT_RUN_TIME, _at_run_time)
}  # fmt: skip
