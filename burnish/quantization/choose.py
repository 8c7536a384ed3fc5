"""Which layers are quantized: those that are faster in turns with their float selves, as many as an error allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from burnish.driver.api import compile as compile_model
from burnish.frontend.onnx.export.quantized import Quantizers, to_qdq
from burnish.graph.graph import Graph
from burnish.measure.comparison import Comparison, time_in_turns
from burnish.measure.samples import module_inputs
from burnish.quantization.layers import LayeredGraph, QuantizableLayer, alone, signature

LAYER_SECONDS = 0.5  # of the comparison of a layer
MODEL_SECONDS = 10.0  # and of the whole model


@dataclass(frozen=True)
class Timing:
    """Construction of the modules to be timed."""

    threads: int | None
    cache_dir: Any

    def compiled(self, model: Any) -> Any:
        """A module of a graph or an ONNX model, as it is: without substitutions."""
        return compile_model(model, threads=self.threads, cache_dir=self.cache_dir, rewrite=False)


class LayerTimes:
    """Comparisons of layers with their float selves; layers of the same shapes are compared once."""

    def __init__(self, network: LayeredGraph, timing: Timing) -> None:
        self._network, self._timing = network, timing
        self._known: dict[str, Comparison] = {}

    def compare(self, layer: QuantizableLayer, quantizers: Quantizers) -> Comparison:
        """The layer's time as ``quantizers`` have it, over that in floats; both begin and end as in the network: with
        bytes where a quantized neighbour gives or takes them.
        """
        given = self._network.graph
        inner = [name for name in layer.node.inputs if name in quantizers.activations and self._is_between(name)]
        if any(quantizers.activations[name].bits < 8 for name in inner):
            inner = []  # of bytes from outside it is not seen that they are few bits
        gives = layer.result in quantizers.activations
        key = f"{signature(given, layer)}\n{len(inner)} {gives} {layer.key in quantizers.weights}"
        if key not in self._known:
            first = self._timing.compiled(alone(given, layer))
            second = self._timing.compiled(quantized_alone(given, layer, quantizers, inner, gives))
            feeds = [module_inputs(module) for module in (first, second)]
            self._known[key] = time_in_turns(first, second, feeds[0], most_seconds=LAYER_SECONDS, others=feeds[1])
        return self._known[key]

    def _is_between(self, name: str) -> bool:
        """Whether a tensor comes from a layer, by sums, limits, pools and views alone."""
        network, waiting = self._network, [name]
        while waiting:
            node = network.producers.get(waiting.pop())
            if node is None or node.op not in ("add", "relu", "clip", "max_pool2d", "concat", "conv2d", "matmul"):
                return False
            if node.op not in ("conv2d", "matmul"):
                waiting += [n for n in node.inputs if n not in network.graph.constants]
        return True


def quantized_alone(
    graph: Graph, layer: QuantizableLayer, quantizers: Quantizers, inner: Sequence[str], gives: bool
) -> onnx.ModelProto:
    """A quantized layer as a model, which takes the integers of ``inner`` operands, and gives its result's if so."""
    part = alone(graph, layer)
    own = {name: q for name, q in quantizers.activations.items() if name in layer.node.inputs}
    weights = {key: w for key, w in quantizers.weights.items() if key == layer.key}
    model = to_qdq(part, Quantizers(own, weights, frozenset({layer.key}) & quantizers.readers))
    proto = model.graph
    for name in inner:
        (before,) = (node for node in proto.node if node.op_type == "QuantizeLinear" and node.input[0] == name)
        proto.node.remove(before)
        (value,) = (value for value in proto.input if value.name == name)
        value.name = before.output[0]
        value.type.tensor_type.elem_type = _element_type(own[name].zero)
    if gives:
        quantizer = quantizers.activations[layer.result]
        parameters = {
            f"{layer.result}.own_scale": np.asarray(quantizer.scale),
            f"{layer.result}.own_zero": quantizer.zero,
        }
        proto.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in parameters.items())
        whole = f"{layer.result}.integers"
        proto.node.append(onnx.helper.make_node("QuantizeLinear", [layer.result, *parameters], [whole]))
        proto.output[0].name = whole
        proto.output[0].type.tensor_type.elem_type = _element_type(quantizer.zero)
    return model


def _element_type(zero: np.ndarray) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(zero.dtype))


# --- error ------------------------------------------------------------------------------------------------------------


def relative_error(found: Sequence[Sequence[np.ndarray]], expected: Sequence[Sequence[np.ndarray]]) -> float:
    """The error of answers over batches, of each float output by its norm: the largest. NaN is infinite."""
    worst = 0.0
    for mine, right in zip(zip(*found, strict=True), zip(*expected, strict=True), strict=True):
        if not np.issubdtype(right[0].dtype, np.floating):
            continue
        error = math.sqrt(
            sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(mine, right, strict=True))
        )
        norm = math.sqrt(sum(float(np.square(b.astype(np.float64)).sum()) for b in right))
        share = error / norm if norm else (0.0 if not error else math.inf)
        worst = max(worst, share if math.isfinite(share) else math.inf)
    return worst


def within_error(
    ranked: Sequence[QuantizableLayer], error_of: Callable[[Sequence[QuantizableLayer]], float], allowed: float
) -> tuple[list[QuantizableLayer], float]:
    """The layers, without as many of the first of ``ranked`` as must go for the error to be allowed, and their error.

    The number is found by halving: leaving out more is taken to err less.
    """
    error = error_of(ranked)
    if error <= allowed:
        return [*ranked], error
    low, high, best = 0, len(ranked), 0.0  # leaving out `low` is too few, `high` is enough
    while high - low > 1:
        middle = (low + high) // 2
        error = error_of(ranked[middle:])
        if error <= allowed:
            high, best = middle, error
        else:
            low = middle
    return [*ranked[high:]], best


def restricted(
    quantizers: Quantizers,
    network: LayeredGraph,
    layers: Sequence[QuantizableLayer],
    activations: bool,
    between: bool = True,
) -> Quantizers:
    """The quantizers of some of the layers."""
    tensors, readers = network.quantized_tensors(layers, activations, between)
    kept = {layer.key for layer in layers}
    return replace(
        quantizers,
        activations={name: quantizers.activations[name] for name in tensors},
        weights={key: w for key, w in quantizers.weights.items() if key in kept},
        readers=readers,
    )


def time_models(first: Any, second: Any, feeds: Mapping[str, np.ndarray]) -> Comparison:
    """The whole models in turns."""
    return time_in_turns(first, second, feeds, most_seconds=MODEL_SECONDS)
