"""Quantization steps between answers of quantized models and onnxruntime's: of whole networks, and of each layer alone.

`python -m benchmarks.integer_steps [MODEL ...] [--kinds qdq,qoperator,burnish] [--json]`: models are quantized by
onnxruntime's tool (QDQ, or QOperator) or by `bn.quantize`. Compared are all tensors of bytes that are computed: `whole`
of models that begin with the same input; `alone` with each layer fed with onnxruntime's own bytes, so that a difference
is the layer's and does not grow; `definition` says the same of onnxruntime beside the QDQ definition in float64 (of
models in QDQ). Shares are of elements, in percent: that differ, and that differ by more than one step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import burnish as bn
from benchmarks import models
from benchmarks.integers import BATCHES, NAMES, by_onnxruntime
from burnish.frontend.onnx.model import from_onnx
from burnish.graph.evaluate import evaluate
from burnish.measure import peers

KINDS = ("qdq", "qoperator", "burnish")
BYTES = {TensorProto.UINT8: np.uint8, TensorProto.INT8: np.int8}
GIVEN = ".given"  # behind the name of a tensor that comes from outside
Arrays = dict[str, np.ndarray]


@dataclass
class Steps:
    """Differences of the tensors of one kind of layer, in steps."""

    elements: int = 0
    off: int = 0
    more: int = 0
    most: int = 0

    def count(self, found: np.ndarray, wanted: np.ndarray) -> None:
        """Adds a tensor."""
        distance = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
        self.elements += distance.size
        self.off += int((distance > 0).sum())
        self.more += int((distance > 1).sum())
        self.most = max(self.most, int(distance.max(initial=0)))

    def as_json(self) -> dict[str, Any]:
        """Shares in percent."""
        share = 100 / max(self.elements, 1)
        return {
            "elements": self.elements, "off": round(self.off * share, 5), "more": round(self.more * share, 5),
            "most": self.most,
        }  # fmt: skip


def taps(model: onnx.ModelProto) -> dict[str, str]:
    """Tensors of bytes that nodes round floats or sums to, and the operator whose values these are."""
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            before = producers.get(node.input[0])
            while before is not None and before.op_type in ("Relu", "Clip") and before.input[0] in producers:
                before = producers[before.input[0]]
            found[node.output[0]] = before.op_type if before is not None else "QuantizeLinear"
        elif node.op_type.startswith("QLinear") or (node.op_type == "QGemm" and len(node.input) > 7):
            found[node.output[0]] = node.op_type
    return found


def with_taps(model: onnx.ModelProto, values: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """The model with its tensors of bytes as outputs; with ``values`` readers of these read inputs instead, of their
    shapes.
    """
    made, names = onnx.ModelProto(), taps(model)
    made.CopyFrom(model)
    kinds = _types(model)
    del made.graph.output[:]
    made.graph.output.extend(helper.make_tensor_value_info(name, kinds[name], None) for name in names)
    if values is not None:
        for node in made.graph.node:
            node.input[:] = [f"{name}{GIVEN}" if name in names else name for name in node.input]
        made.graph.input.extend(
            helper.make_tensor_value_info(f"{name}{GIVEN}", kinds[name], values[name].shape) for name in names
        )
        del made.graph.value_info[:]
    return made


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """uint8 or int8 of each tensor that :func:`taps` finds, as its zero point is."""
    constants = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        known = [constants[name] for name in node.input if constants.get(name) in BYTES]
        found[node.output[0]] = known[-1] if known else TensorProto.UINT8
    return found


def answers(model: onnx.ModelProto, feeds: Arrays, peer: bool) -> Arrays:
    """Outputs by name, of onnxruntime or of Burnish."""
    names = [value.name for value in model.graph.output]
    if peer:
        run = peers.onnxruntime(model.SerializeToString(), 1)
    else:
        run = peers.compiled(bn.compile(model, rewrite=False))
    return {name: np.array(a) for name, a in zip(names, run(feeds), strict=True)}


def by_operator(names: Mapping[str, str], found: Arrays, wanted: Arrays) -> dict[str, dict[str, Any]]:
    """Differences by the operator of the layer, and of the last tensor of all."""
    counted: dict[str, Steps] = defaultdict(Steps)
    for name, op in names.items():
        for key in (op, "all"):
            counted[key].count(found[name], wanted[name])
    last = list(names)[-1]
    counted["last"].count(found[last], wanted[last])
    return {op: steps.as_json() for op, steps in counted.items()}


def compared(model: onnx.ModelProto, feeds: Arrays) -> dict[str, Any]:
    """Differences of a quantized model from onnxruntime's answers."""
    names = taps(model)
    theirs = answers(with_taps(model), feeds, True)
    whole = by_operator(names, answers(with_taps(model), feeds, False), theirs)
    layers = with_taps(model, theirs)
    given = {**feeds, **{f"{name}{GIVEN}": value for name, value in theirs.items()}}
    read = {name for node in layers.graph.node for name in node.input}
    kept = [value for value in layers.graph.input if value.name in read]
    del layers.graph.input[:]
    layers.graph.input.extend(kept)
    given = {value.name: given[value.name] for value in kept}
    own = answers(layers, given, True)
    found = {"whole": whole, "alone": by_operator(names, answers(layers, given, False), own)}
    if not any(op.startswith("Q") and op != "QuantizeLinear" for op in names.values()):
        exact = evaluate(from_onnx(layers), given, "float64")
        found["definition"] = by_operator(names, own, {name: exact[name] for name in names})
    return found


def quantized(name: str, kind: str, folder: Path) -> tuple[onnx.ModelProto, Arrays]:
    """A model as one of the tools quantizes it, and an input."""
    source = models.build(name)
    batches = [models.inputs(name, seed) for seed in range(BATCHES)]
    path = folder / f"{name}.{kind}.onnx"
    if kind == "burnish":
        bn.quantize(source, batches, threads=1, measure=False, error=1e9).save(path)
    else:
        by_onnxruntime(source, batches, path, kind == "qoperator")
    return onnx.load(str(path)), batches[0]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    for name in options.names or NAMES:
        for kind in options.kinds.split(","):
            with tempfile.TemporaryDirectory() as folder:
                found = compared(*quantized(name, kind, Path(folder)))
            if options.json:
                print(json.dumps({"model": name, "kind": kind, **found}), flush=True)
                continue
            for part, rows in found.items():
                for op, row in rows.items():
                    counts = f"{row['off']:9.5f} % off, {row['more']:9.5f} % by more, at most {row['most']}"
                    print(f"{name} {kind} {part:10} {op:24} {row['elements']:9} {counts}", flush=True)


if __name__ == "__main__":
    main()
