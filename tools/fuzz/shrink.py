"""Failing models made small: outputs, nodes, extents and values dropped while the same kind of failure stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, printer

from tools.fuzz.generate import is_valid
from tools.fuzz.sketch import needed_nodes
from tools.fuzz.standard import BFLOAT16, NotComputable, is_float, make_model, walk

MOST_TRIES = 250  # trials that shrinking one model may take


@dataclass(frozen=True, eq=False)
class Case:
    """A model with its feeds, taken apart."""

    nodes: tuple[onnx.NodeProto, ...]
    feeds: dict[str, np.ndarray]
    constants: dict[str, np.ndarray]
    outputs: tuple[str, ...]
    opset: int

    def size(self) -> tuple[int, int, int]:
        """Size of a model, which shrinking lowers: nodes first, then outputs, then elements."""
        elements = sum(a.size for a in (*self.feeds.values(), *self.constants.values()))
        return len(self.nodes), len(self.outputs), elements


def take_apart(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Case:
    """The parts of a model."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    opset = next(o.version for o in model.opset_import if o.domain == "")
    outputs = tuple(value.name for value in model.graph.output)
    return Case(tuple(model.graph.node), dict(feeds), constants, outputs, opset)


def put_together(case: Case) -> onnx.ModelProto | None:
    """A valid model of the parts that are needed, or None if its oracles refuse it."""
    loose = make_model(case.nodes, case.feeds, case.constants, {}, case.opset)
    try:
        values = walk(loose, case.feeds)
    except (NotComputable, KeyError):
        return None
    if not values.keys() >= set(case.outputs):
        return None
    outputs = {name: values[name] for name in case.outputs}
    model = make_model(case.nodes, case.feeds, case.constants, outputs, case.opset)
    return model if is_valid(model) else None


def trimmed(case: Case) -> Case:
    """Without what no output needs."""
    nodes = tuple(needed_nodes(case.nodes, case.outputs))
    read = {name for node in nodes for name in node.input} | set(case.outputs)
    feeds = {n: a for n, a in case.feeds.items() if n in read}
    return replace(case, nodes=nodes, feeds=feeds, constants={n: a for n, a in case.constants.items() if n in read})


def smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them, the boldest first."""
    if len(case.outputs) > 1:
        for name in case.outputs:
            yield trimmed(replace(case, outputs=(name,)))
        for name in case.outputs:
            yield trimmed(replace(case, outputs=tuple(n for n in case.outputs if n != name)))
    yield from _earlier_outputs(case)
    yield from _cut(case)
    yield from _bypassed(case)
    yield from _resized(case)
    yield from _constants(case)


def _earlier_outputs(case: Case) -> Iterator[Case]:
    """An output replaced by an input of the node that makes it."""
    makers = {name: node for node in case.nodes for name in node.output}
    made = set(makers)
    for name in case.outputs:
        if name in makers:
            for other in dict.fromkeys(n for n in makers[name].input if n in made and n not in case.outputs):
                yield trimmed(replace(case, outputs=tuple(other if n == name else n for n in case.outputs)))


def _cut(case: Case) -> Iterator[Case]:
    """A value that a node makes, given as an input instead."""
    try:
        values = walk(make_model(case.nodes, case.feeds, case.constants, {}, case.opset), case.feeds)
    except NotComputable:
        return
    for node in reversed(case.nodes):
        nodes = tuple(n for n in case.nodes if n is not node)
        given = {name: values[name] for name in node.output if name and name not in case.outputs}
        if given:
            yield trimmed(replace(case, nodes=nodes, feeds={**case.feeds, **given}))


def _bypassed(case: Case) -> Iterator[Case]:
    """A node left out: what it makes is one of its inputs."""
    for node in case.nodes:
        if node.output[0] in case.outputs:
            continue
        for source in dict.fromkeys(n for n in node.input if n):
            nodes = []
            for other in case.nodes:
                if other is not node:
                    copy = onnx.NodeProto.FromString(other.SerializeToString())
                    copy.input[:] = [source if n == node.output[0] else n for n in other.input]
                    nodes.append(copy)
            yield trimmed(replace(case, nodes=tuple(nodes)))


def _resized(case: Case) -> Iterator[Case]:
    """One extent made smaller wherever it occurs, in shapes and in integers that are constants or attributes."""
    arrays = (*case.feeds.values(), *case.constants.values())
    for extent in sorted({e for a in arrays for e in a.shape if e > 1}, reverse=True):
        for less in dict.fromkeys((1, 2, 3, extent // 2, extent - 1)):
            if 0 < less < extent:
                feeds, constants = (
                    {name: _with_extent(a, extent, less) for name, a in part.items()}
                    for part in (case.feeds, case.constants)
                )
                yield replace(case, feeds=feeds, constants=constants)


def _with_extent(array: np.ndarray, extent: int, less: int) -> np.ndarray:
    taken = array[tuple(slice(less) if e == extent else slice(None) for e in array.shape)]
    if array.dtype == np.int64 and array.ndim <= 1:
        taken = np.where(taken == extent, less, taken)
    return np.ascontiguousarray(taken) if array.ndim else np.asarray(taken)


def _constants(case: Case) -> Iterator[Case]:
    """Inputs and constants that hold plain values."""
    for part in ("feeds", "constants"):
        arrays: dict[str, np.ndarray] = getattr(case, part)
        for name, array in arrays.items():
            if is_float(array) and array.size and len(np.unique(array)) > 1:
                plain = (np.arange(array.size) % 7 + 1).reshape(array.shape).astype(array.dtype)
                if not np.array_equal(plain, array):
                    yield replace(case, **{part: {**arrays, name: plain}})  # type: ignore[arg-type]


def shrink(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    fails: Callable[[onnx.ModelProto, dict[str, np.ndarray]], bool],
    tries: int = MOST_TRIES,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The smallest model found for which ``fails`` holds, as it does for ``model``, and its feeds."""
    case = take_apart(model, feeds)
    best, seen = model, {model.SerializeToString()}
    while tries > 0:
        for candidate in smaller(case):
            if not candidate.nodes or candidate.size() > case.size():
                continue
            made = put_together(candidate)
            if made is None or made.SerializeToString() in seen:
                continue
            seen.add(made.SerializeToString())
            tries -= 1
            if fails(made, candidate.feeds):
                case, best = candidate, made
                break
            if tries <= 0:
                break
        else:
            break
    return best, case.feeds


def as_text(model: onnx.ModelProto) -> str:
    """The model in onnx's textual form, with the values of long constants left out."""
    return re.sub(r"= *\{[^{}\n]{120,}\}", lambda match: match.group()[:60] + " …}", printer.to_text(model))


def save(folder: Path, name: str, model: onnx.ModelProto, feeds: dict[str, np.ndarray], notes: Sequence[str]) -> None:
    """Writes NAME.onnx, NAME.npz with its inputs (bfloat16 as float32), and NAME.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    arrays = {key: a.astype(np.float32) if a.dtype == BFLOAT16 else a for key, a in feeds.items()}
    np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    (folder / f"{name}.txt").write_text("\n".join([*notes, as_text(model)]) + "\n")
