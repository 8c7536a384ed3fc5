"""ONNX operators that run between segments, on values: control flow and sequences.

A value is an array; a sequence a list of them; an optional that holds nothing, or an input that is left out, is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from burnish.errors import InputError
from burnish.frontend.onnx.dtypes import dtype_name
from burnish.loops.numeric import numpy_dtype

MOST_STEPS = 1 << 31  # of a loop without a limit


@dataclass(eq=False, slots=True)
class EagerNode:
    """A node and the values that it reads. ``run`` executes one of its subgraphs, by name, on values."""

    label: str
    inputs: Sequence[Any]
    attrs: Mapping[str, Any]
    outputs: int
    opset: int
    run: Callable[[str, Sequence[Any]], list[Any]]

    def input(self, position: int, default: Any = None) -> Any:
        """The value of an input, or ``default`` if it is left out."""
        found = self.inputs[position] if position < len(self.inputs) else None
        return default if found is None else found

    def once(self, make: Callable[[], Any]) -> Any:
        """Memoized ``make()``, which depends on the node's attributes alone; kept among them, under the empty name."""
        kept: Any = self.attrs
        if "" not in kept:
            kept[""] = make()
        return kept[""]

    def number(self, position: int, default: float) -> float:
        """The one element of an input, as a Python number."""
        found = self.input(position)
        return default if found is None else found.reshape(-1)[0].item()

    def invalid(self, what: str, found: object, allowed: str) -> InputError:
        """The error of a value that the standard does not allow."""
        return InputError(f"{self.label}: {what}: found {found}; allowed: {allowed}")


Eager = Callable[[EagerNode], Sequence[Any]]


# --- control flow -----------------------------------------------------------------------------------------------------


def _if(n: EagerNode) -> list[Any]:
    return n.run("then_branch" if n.number(0, 0) else "else_branch", [])


def _loop(n: EagerNode) -> list[Any]:
    most, going = int(n.number(0, MOST_STEPS)), bool(n.number(1, 1))
    carried = list(n.inputs[2:])
    body: onnx.GraphProto = n.attrs["body"]
    scanned: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while going and step < most:
        condition, *results = n.run("body", [np.array(step, np.int64), np.array(True), *carried])
        going, carried = bool(condition.reshape(-1)[0]), results[: len(carried)]
        for parts, value in zip(scanned, results[len(carried) :], strict=True):
            parts.append(value)
        step += 1
    declared = body.output[1 + len(carried) :]
    return [*carried, *(_stacked(parts, value) for parts, value in zip(scanned, declared, strict=True))]


def _scan(n: EagerNode) -> list[Any]:
    return _scan_batch(n) if n.opset < 9 else _scan_one(n)


def _scan_batch(n: EagerNode) -> list[Any]:
    """Opset 8: the first dimension of everything is a batch, whose sequences have lengths of their own."""
    count = n.attrs["num_scan_inputs"]
    states, inputs = n.inputs[1 : len(n.inputs) - count], n.inputs[len(n.inputs) - count :]
    batch, steps = inputs[0].shape[:2]
    lengths = n.input(0, np.full(batch, steps, np.int64))
    rows = []
    for at in range(batch):
        own = [*(s[at] for s in states), *(x[at, : int(lengths[at])] for x in inputs)]
        attrs = {"body": n.attrs["body"], "num_scan_inputs": count}
        attrs["scan_input_directions"] = n.attrs.get("directions", [0] * count)
        rows.append(_scan_one(replace(n, inputs=[np.ascontiguousarray(x) for x in own], attrs=attrs)))
    results = []
    for position, parts in enumerate(zip(*rows, strict=True)):
        if position >= len(states):  # outputs of shorter sequences end in zeros
            parts = tuple(np.pad(p, [(0, steps - len(p)), *[(0, 0)] * (p.ndim - 1)]) for p in parts)
        results.append(np.stack(parts))
    return results


def _scan_one(n: EagerNode) -> list[Any]:
    body, count = n.attrs["body"], n.attrs["num_scan_inputs"]
    carried, inputs = list(n.inputs[: len(n.inputs) - count]), n.inputs[len(n.inputs) - count :]
    axes, backward = n.attrs.get("scan_input_axes", [0] * count), n.attrs.get("scan_input_directions", [0] * count)
    moved = [np.moveaxis(x, axis, 0) for x, axis in zip(inputs, axes, strict=True)]
    moved = [x[::-1] if back else x for x, back in zip(moved, backward, strict=True)]
    results = len(body.output) - len(carried)
    scanned: list[list[Any]] = [[] for _ in range(results)]
    for step in range(len(moved[0])):
        found = n.run("body", [*carried, *(np.ascontiguousarray(x[step]) for x in moved)])
        carried = found[: len(carried)]
        for parts, value in zip(scanned, found[len(carried) :], strict=True):
            parts.append(value)
    out_axes, out_back = n.attrs.get("scan_output_axes", [0] * results), n.attrs.get("scan_output_directions")
    outputs = []
    for at, parts in enumerate(scanned):
        whole = _stacked(parts[::-1] if out_back and out_back[at] else parts, body.output[len(carried) + at])
        outputs.append(np.ascontiguousarray(np.moveaxis(whole, 0, out_axes[at])))
    return [*carried, *outputs]


def _stacked(parts: Sequence[np.ndarray], declared: onnx.ValueInfoProto) -> np.ndarray:
    """The parts along a new first dimension; of none an empty array of the declared type."""
    if parts:
        return np.stack(parts)
    tensor = declared.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim]
    return np.zeros((0, *shape), numpy_dtype(dtype_name(tensor.elem_type, f"output '{declared.name}'")))


# --- sequences and optionals ------------------------------------------------------------------------------------------


def _position(n: EagerNode, length: int, default: int, last: int) -> int:
    """Input 1 or 2 as a position of a sequence, from the front."""
    at = int(n.number(default, length))
    if not -length <= at <= last:
        raise n.invalid("position", at, f"{-length} to {last} for a sequence of {length}")
    return at + length if at < 0 else at


def _sequence_at(n: EagerNode) -> list[Any]:
    items = n.inputs[0]
    return [items[_position(n, len(items), 1, len(items) - 1)]]


def _sequence_insert(n: EagerNode) -> list[Any]:
    items, at = list(n.inputs[0]), _position(n, len(n.inputs[0]), 2, len(n.inputs[0]))
    return [[*items[:at], n.inputs[1], *items[at:]]]


def _sequence_erase(n: EagerNode) -> list[Any]:
    items = list(n.inputs[0])
    at = _position(n, len(items), 1, len(items) - 1) if n.input(1) is not None else len(items) - 1
    if at < 0:
        raise n.invalid("sequence", "no element", "one at least")
    return [[*items[:at], *items[at + 1 :]]]


def _split_to_sequence(n: EagerNode) -> list[Any]:
    x, axis, split = n.inputs[0], n.attrs.get("axis", 0), n.input(1)
    extent = x.shape[axis]
    if split is None:
        parts = np.split(x, extent, axis) if extent else []
        if not n.attrs.get("keepdims", 1):
            parts = [np.squeeze(part, axis) for part in parts]
        return [[np.ascontiguousarray(part) for part in parts]]
    if split.ndim == 0:
        size = int(split)
        if size <= 0:
            raise n.invalid("split", size, "1 or more")
        ends = list(range(size, extent, size))
    else:
        if split.sum() != extent:
            raise n.invalid("split", split.tolist(), f"sizes that add up to {extent}")
        ends = np.cumsum(split)[:-1].tolist()
    return [[np.ascontiguousarray(part) for part in np.split(x, ends, axis)]]


def _concat_from_sequence(n: EagerNode) -> list[Any]:
    items, axis = n.inputs[0], n.attrs["axis"]
    if not items:
        raise n.invalid("sequence", "no element", "one at least")
    return [np.stack(items, axis) if n.attrs.get("new_axis", 0) else np.concatenate(items, axis)]


def _sequence_map(n: EagerNode) -> list[Any]:
    length = len(n.inputs[0])
    columns = [value if isinstance(value, list) else [value] * length for value in n.inputs]
    rows = [n.run("body", [column[at] for column in columns]) for at in range(length)]
    return [[row[output] for row in rows] for output in range(n.outputs)]


def _optional_get(n: EagerNode) -> list[Any]:
    if n.inputs[0] is None:
        raise n.invalid("input 0", "an optional that holds nothing", "one that holds a value")
    return [n.inputs[0]]


SEQUENCES: Mapping[str, Eager] = {
    "SequenceEmpty": lambda n: [[]],
    "SequenceConstruct": lambda n: [list(n.inputs)],
    "SequenceAt": _sequence_at,
    "SequenceInsert": _sequence_insert,
    "SequenceErase": _sequence_erase,
    "SequenceLength": lambda n: [np.array(len(n.inputs[0]), np.int64)],
    "SequenceMap": _sequence_map,
    "SplitToSequence": _split_to_sequence,
    "ConcatFromSequence": _concat_from_sequence,
    "Optional": lambda n: [n.input(0)],
    "OptionalHasElement": lambda n: [np.array(n.input(0) is not None)],
    "OptionalGetElement": _optional_get,
}
EAGER: Mapping[str, Eager] = {
    **SEQUENCES,
    "Identity": lambda n: [n.inputs[0]],  # of a sequence
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
