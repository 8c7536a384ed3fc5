"""Quantized export: QuantizeLinear and DequantizeLinear (QDQ) in the model that a Graph of floats is written as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from burnish.frontend.onnx.export.model import to_onnx
from burnish.graph.graph import Graph

QDQ_OPSET, QDQ_IR_VERSION = 21, 10  # the first with int4 and blocks; the format's version that came with it


@dataclass(frozen=True)
class AffineQuantizer:
    """The integers of a tensor: ``round(x / scale) + zero`` in the dtype of ``zero``; ``bits`` below 8: from 0 to what
    these hold, by a Clip before.
    """

    scale: np.float32
    zero: np.ndarray
    bits: int = 8


@dataclass(frozen=True)
class QuantizedWeight:
    """Constant integers of 8 or 4 bits, symmetric around 0, or of 1 to 4 bits odd numbers around 0; scales are one a
    channel of ``axis``, or one for every ``block`` elements along it.
    """

    integers: np.ndarray
    scale: np.ndarray
    axis: int
    bits: int = 8
    block: int = 0

    @property
    def value(self) -> np.ndarray:
        """The float32 numbers that the integers stand for."""
        whole = self.integers.astype(np.float32)
        if self.block:
            spread = np.repeat(self.scale, self.block, self.axis)
            return whole * np.take(spread, np.arange(whole.shape[self.axis]), self.axis)
        return whole * np.expand_dims(self.scale, tuple(d for d in range(whole.ndim) if d != self.axis))


@dataclass(frozen=True)
class Quantizers:
    """Quantizers of a graph: of activations by tensor, of weights by the result of the node that reads them.
    ``readers``: results of nodes that read the dequantized values of those activations; others read the floats.
    """

    activations: Mapping[str, AffineQuantizer] = field(default_factory=dict)
    weights: Mapping[str, QuantizedWeight] = field(default_factory=dict)
    readers: frozenset[str] = frozenset()


def to_qdq(graph: Graph, quantizers: Quantizers) -> onnx.ModelProto:
    """The graph as ONNX with QuantizeLinear and DequantizeLinear where ``quantizers`` says; a convolution's bias is
    int32 of the scale of its sums. Raises what ``to_onnx`` raises.
    """
    model = to_onnx(graph)
    proto = _Insertion(model, quantizers)
    for node in model.graph.node:
        proto.add(node)
    del model.graph.node[:]
    model.graph.node.extend(proto.nodes)
    read = {name for node in proto.nodes for name in node.input}
    kept = [t for t in model.graph.initializer if t.name in read] + proto.initializers
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.ir_version = QDQ_IR_VERSION
    model.opset_import[0].version = QDQ_OPSET
    return model


class _Insertion:
    """The nodes of a model so far, with quantizers among them."""

    def __init__(self, model: onnx.ModelProto, quantizers: Quantizers) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._quantizers = quantizers
        self._constants = {t.name: t for t in model.graph.initializer}
        self._taken = {*self._constants, *(i.name for i in model.graph.input)}
        self._taken.update(name for node in model.graph.node for name in node.output)
        self._dequantized: dict[str, str] = {}

    def add(self, node: onnx.NodeProto) -> None:
        """Adds a node behind the quantizers of what it reads."""
        (result, *_), inputs = node.output, list(node.input)
        if result in self._quantizers.readers:
            inputs = [self._activation(x) if x in self._quantizers.activations else x for x in inputs]
        weight = self._quantizers.weights.get(result)
        if weight is not None:
            if len(inputs) > 2 and inputs[2] in self._constants and node.input[0] in self._quantizers.activations:
                scale = self._quantizers.activations[node.input[0]].scale * weight.scale
                inputs[2] = self._bias(inputs[2], result, scale.astype(np.float32))
            inputs[1] = self._weight(inputs[1], result, weight)
        node.input[:] = inputs
        self.nodes.append(node)

    def _activation(self, x: str) -> str:
        """The dequantized integers of a tensor, which all readers share."""
        if x not in self._dequantized:
            quantizer = self._quantizers.activations[x]
            parameters = [
                self._constant(f"{x}.scale", np.asarray(quantizer.scale, np.float32)),
                self._constant(f"{x}.zero", quantizer.zero),
            ]
            limited = x if quantizer.bits == 8 else self._limited(x, quantizer)
            whole = self._emit("QuantizeLinear", f"{x}.quantized", limited, *parameters)
            self._dequantized[x] = self._emit("DequantizeLinear", f"{x}.dequantized", whole, *parameters)
        return self._dequantized[x]

    def _limited(self, x: str, quantizer: AffineQuantizer) -> str:
        """The tensor within what the quantizer's integers stand for."""
        ends = [(n - int(quantizer.zero)) * quantizer.scale for n in (0, (1 << quantizer.bits) - 1)]
        names = [
            self._constant(f"{x}.{end}", np.asarray(v, np.float32))
            for end, v in zip(("least", "most"), ends, strict=True)
        ]
        return self._emit("Clip", f"{x}.limited", x, *names)

    def _weight(self, name: str, result: str, weight: QuantizedWeight) -> str:
        whole = weight.integers.astype(np.int8 if not weight.block or weight.bits == 8 else ml_dtypes.int4)
        stem = f"{name}.{result}"
        parts = [self._constant(f"{stem}.quantized", whole), self._constant(f"{stem}.scale", weight.scale)]
        block = {"block_size": weight.block} if weight.block else {}
        return self._emit("DequantizeLinear", f"{stem}.dequantized", *parts, axis=weight.axis, **block)

    def _bias(self, name: str, result: str, scale: np.ndarray) -> str:
        """int32 numbers of the scale of the sums that they are added to, limited to what it holds."""
        value = onnx.numpy_helper.to_array(self._constants[name]).astype(np.float64)
        limits = np.iinfo(np.int32)
        whole = np.clip(np.rint(value / scale), limits.min, limits.max).astype(np.int32)
        stem = f"{name}.{result}"
        parts = [self._constant(f"{stem}.quantized", whole), self._constant(f"{stem}.scale", scale)]
        return self._emit("DequantizeLinear", f"{stem}.dequantized", *parts, axis=0)

    def _constant(self, stem: str, value: np.ndarray) -> str:
        name = self._fresh(stem)
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def _emit(self, op_type: str, stem: str, *inputs: str, **attrs: Any) -> str:
        name = self._fresh(stem)
        self.nodes.append(onnx.helper.make_node(op_type, [*inputs], [name], name=name, **attrs))
        return name

    def _fresh(self, stem: str) -> str:
        serial, name = 1, stem
        while name in self._taken:
            serial, name = serial + 1, f"{stem}.{serial}"
        self._taken.add(name)
        return name
