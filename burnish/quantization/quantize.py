"""``burnish.quantize``: a model and data → the layers in integers that are faster and near enough, as standard ONNX."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from burnish.base.arguments import check_flag, check_number, refusal, typed
from burnish.driver.api import compile as compile_model
from burnish.driver.checks import check_common, check_model
from burnish.driver.importing import import_model, open_extents
from burnish.driver.torch_module import TorchModule
from burnish.errors import DataError, ModelError, ParameterError
from burnish.fitting.data import Loader, bound, is_tensor, source
from burnish.frontend.onnx.export.quantized import QDQ_OPSET, Quantizers, to_qdq
from burnish.frontend.torch.export import import_torch, is_network
from burnish.graph.bit_products import counts_few_bits
from burnish.graph.graph import Graph
from burnish.loops.sizes import hinted
from burnish.machines.target import host
from burnish.measure.comparison import Comparison
from burnish.quantization.calibrate import (
    Observed,
    activation_noise,
    blocked_weight,
    few_bit_quantizer,
    few_bit_weight,
    noise_of,
    observe,
    quantized_weight,
    quantizer_of,
)
from burnish.quantization.choose import (
    LayerTimes,
    Timing,
    relative_error,
    restricted,
    time_models,
    within_error,
)
from burnish.quantization.equalize import equalized
from burnish.quantization.layers import LayeredGraph, QuantizableLayer, prepared
from burnish.quantization.report import LayerChoice, QuantizationReport
from burnish.runtime.module import Module
from burnish.runtime.steps import TensorSpec

METHODS = ("minmax", "percentile", "entropy")
BLOCKS = (16, 32, 64, 128, 256)
FEW, FEW_WEIGHTS = (1, 2), (1, 2, 3, 4)  # bits of activations and of weights in products of few bits
HELD_OUT = 4  # one batch of this number is for the error


@typed
@dataclass(frozen=True)
class Quantization:
    """Options of quantizing a model.

    ``method``: how the range of an activation follows from what calibration saw, minmax, percentile or entropy.
    ``percentile``: of an activation's values that the range of this method covers. ``weights``: bits of weights, 8,
    without activations 8 or 4, with activations of few bits 1 to 4. ``activations``: bits of activations, 8, or 1 or
    2, whose ranges are of least squared error; 0 leaves them in floats, and weights get a scale a block. ``block``:
    elements of a column that have one scale, without activations. ``equalize``: whether channels between layers are
    scaled to reach as far before. ``error``: the largest error of the model's outputs on batches that were held out,
    as a share of their norm. ``measure``: whether a layer must be faster in integers here, and then the model;
    otherwise only the error decides.
    """

    method: str = "minmax"
    percentile: float = 99.99
    weights: int = 8
    activations: int | None = 8
    block: int = 32
    equalize: bool = True
    error: float = 0.1
    measure: bool = True

    def __post_init__(self) -> None:
        """Raises ParameterError."""
        if self.method not in METHODS:
            raise refusal("method", self.method, ", ".join(map(repr, METHODS)))
        check_number("percentile", self.percentile, 50.0, 100.0)
        if self.activations not in (8, *FEW, 0, None):
            raise refusal("activations", self.activations, "8, of few bits 1 or 2, or None for weights alone")
        allowed = (8,) if self.activations == 8 else FEW_WEIGHTS if self.activations else (8, 4)
        if self.weights not in allowed:
            kind = f"with {self.activations} bits of activations" if self.activations else "for weights alone"
            more = "; 8 or 4 with activations=None, 1 to 4 with activations=1 or 2" if self.activations == 8 else ""
            raise refusal("weights", self.weights, f"{' or '.join(map(str, allowed))} {kind}{more}")
        if self.block not in BLOCKS:
            raise refusal("block", self.block, ", ".join(map(str, BLOCKS)))
        check_number("error", self.error, 0.0, open_below=True)
        check_flag("equalize", self.equalize)
        check_flag("measure", self.measure)


@dataclass(frozen=True)
class QuantizedModel:
    """A quantized model: ``model`` in standard ONNX (QuantizeLinear and DequantizeLinear), and what was done."""

    model: onnx.ModelProto
    report: QuantizationReport
    signature: Any = None
    """Of the network of PyTorch that it was."""

    def __repr__(self) -> str:
        """Summary of its report in one line."""
        return f"QuantizedModel({self.report!r})"

    def save(self, path: str | Path) -> None:
        """Writes the ONNX file, which any runtime takes that has opset 21."""
        onnx.save(self.model, str(path))

    def compile(self, **arguments: Any) -> Any:
        """The compiled model; ``arguments`` are those of ``burnish.compile``."""
        made = compile_model(self.model, **arguments)
        if self.signature is not None and isinstance(made, Module):
            return TorchModule.called_as(made, self.signature)
        return made


def quantize(
    model: Any,
    calibration_data: Any,
    example_inputs: Any = None,
    *,
    method: str = "minmax",
    percentile: float = 99.99,
    weights: int = 8,
    activations: int | None = 8,
    block: int = 32,
    equalize: bool = True,
    error: float = 0.1,
    measure: bool = True,
    threads: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fix: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
) -> QuantizedModel:
    """Quantizes a model where that is faster, and its outputs stay within ``error`` of the float model's.

    ``model`` is an ONNX file or ``ModelProto``, a :class:`Graph`, or an ``nn.Module`` with ``example_inputs``.
    ``calibration_data``: inputs, as ``burnish.fit`` takes data, without labels: arrays of rows by name, the path of an
    .npz file, or an iterable (a list, a DataLoader) of batches of the model's own size. Batches say what a first extent
    is that the model leaves open. The last quarter of the batches is held out: on it the error is found, ``|quantized -
    float| / |float|`` of each output over all of these batches.

    Activations and weights have 8 bits (weights a scale for each output channel); or, with ``activations`` of 1 or 2
    bits, ``weights`` of 1 to 4, odd numbers around 0, whose products are counts of bits where these are fast; or, with
    ``activations=None``, weights of matrix products alone have 8 or 4, and a scale for every ``block`` elements. The
    range of an activation follows from the data by ``method``: all of it ("minmax"), all but a few values
    ("percentile"), or what has the least relative entropy ("entropy"); of 1 or 2 bits it is that of least squared
    error. ``equalize``: scales channels between two layers so that the weights of both reach as far. Layers that are
    not faster in integers, measured in turns with themselves in floats on ``threads`` threads, stay in floats; so do
    the layers of most noise, as many as the error demands; and all of them, if the model as a whole is not faster
    then. ``measure=False`` leaves it to the error alone. The result's ``report`` says which and why; it is saved by
    ``save`` as standard ONNX of opset 21, and compiled by ``compile``.

    Raises ParameterError, DataError for data that do not fit or are not finite, ModelError for models with states or
    open dimensions, and UnsupportedOperator for what has no form in ONNX.

    >>> w = np.random.default_rng(0).standard_normal((64, 8), "f4")
    >>> graph = bn.sym.graph(bn.sym.matmul(bn.sym.variable("x"), bn.sym.constant(w)), {"x": (4, 64)})
    >>> made = bn.quantize(graph, {"x": np.random.default_rng(1).standard_normal((32, 64), "f4")}, measure=False)
    >>> [layer.quantized for layer in made.report.layers], made.report.error < 0.02
    ([True], True)
    """
    options = Quantization(method, percentile, weights, activations, block, equalize, error, measure)
    check_common(threads=threads, exact=False, shapes=shapes, cache_dir=cache_dir)
    signature = None
    if is_network(model):
        network = import_torch(model, example_inputs, None, training=False)
        model, signature = network.graph, network.signature
    else:
        if example_inputs is not None:
            raise refusal("example_inputs", "some", "None for models that are no network of PyTorch")
        check_model(model)
    calibration_data = _listed(calibration_data)
    graph = _imported(model, calibration_data, shapes, fix)
    if graph.states or graph.counts:
        what = "states" if graph.states else "sizes that a call counts"
        raise ModelError(f"quantize: found a model with {what}; allowed: one of sizes that are known")
    if graph.dims:
        example = {name: tuple(map(hinted, graph.types[name].shape)) for name in graph.inputs}
        raise ModelError(f"quantize: found open dimensions; allowed: numbers, such as shapes={example}")
    if not any("float" in graph.types[name].dtype for name in graph.outputs):
        raise ModelError("quantize: found no output of floats; allowed: a model whose error can be told")
    batches = _batches(calibration_data, graph)
    held = max(1, len(batches) // HELD_OUT) if len(batches) > 1 else 0
    seen, unseen = batches[: len(batches) - held], batches[len(batches) - held :] or batches
    work = _Work(graph, options, Timing(threads, cache_dir), seen, unseen)
    made, report = work.result()
    return QuantizedModel(made, report, signature)


def _imported(model: Any, data: Any, shapes: Mapping[str, Any] | None, fix: Mapping[str, Any] | None) -> Graph:
    """The model's graph; first extents that it and ``shapes`` leave open are those of a list's batches, else 1."""
    found = import_model(model, shapes, fix, tell=False)
    if not found.assumed:
        return found.graph
    rows = _rows(data[0], next(iter(found.assumed))) if isinstance(data, list) and data else 1
    if rows == 1:
        warnings.warn(open_extents(found), stacklevel=3)
        return found.graph
    types = found.graph.types
    return import_model(model, {**(shapes or {}), **{n: (rows, *types[n].shape[1:]) for n in found.assumed}}, fix).graph


def _listed(data: Any) -> Any:
    """Data for calibration: those of an iterable of batches, which may be read once, as a list."""
    if isinstance(data, np.ndarray) or is_tensor(data):
        return (data,)
    whole = isinstance(data, (str, Path, Mapping, tuple)) or callable(getattr(data, "epoch", None))
    return data if whole or not isinstance(data, Iterable) else [*data]


def _rows(batch: Any, name: str) -> int:
    """Rows of a batch, by its array of that name, or its first; 1 where there is none."""
    value = batch
    if isinstance(batch, Mapping):
        value = batch.get(name)
    elif isinstance(batch, (tuple, list)):
        value = batch[0] if batch else None
    shape: Sequence[int] = getattr(value, "shape", ())
    return int(shape[0]) if len(shape) and shape[0] else 1


def _batches(data: Any, graph: Graph) -> list[dict[str, np.ndarray]]:
    """All whole batches, by the names of inputs."""
    specs = [TensorSpec(name, graph.types[name].shape, graph.types[name].dtype) for name in graph.inputs]
    given = source(Loader(data) if isinstance(data, list) else data, specs, shuffle=False)
    found = [bound(batch, specs) for batch in given.epoch(0)]
    whole = [b for b in found if all(a.shape == tuple(s.shape) for a, s in zip(b, specs, strict=True))]
    if not whole:
        raise DataError(f"calibration_data: found no batch of {', '.join(map(str, specs))}; allowed: one or more")
    return [dict(zip(graph.inputs, batch, strict=True)) for batch in whole]


class _Work:
    """A model on its way to a quantized one."""

    def __init__(
        self, graph: Graph, options: Quantization, timing: Timing,
        seen: list[dict[str, np.ndarray]], unseen: list[dict[str, np.ndarray]],
    ) -> None:  # fmt: skip
        self.options, self.timing, self.seen, self.unseen = options, timing, seen, unseen
        self.activations, self.few = bool(options.activations), options.activations in FEW
        self.graph, ready, self.pairs = graph, prepared(graph), 0
        if options.equalize and self.activations:
            ready, self.pairs = equalized(ready)
        self.network = LayeredGraph(ready)
        self.reasons: dict[str, str] = {}
        self.ratios: dict[str, float] = {}
        self.noises: dict[str, float] = {}
        self.quantizers = Quantizers()
        self.float_module = timing.compiled(graph)
        self.expected = [_answers(self.float_module, batch) for batch in unseen]

    def result(self) -> tuple[onnx.ModelProto, QuantizationReport]:
        """The model and the report."""
        layers = [layer for layer in self.network.layers if self._is_candidate(layer)]
        self.quantizers = self._calibrated(layers)
        fallback, ratio, error = "", math.nan, 0.0
        if self.options.measure:
            own = host()
            fast = own.has(own.machine.dialect.dots_bytes) or (self.few and counts_few_bits(own))
            if self.activations and not fast:
                fallback, layers = "this CPU has no dot products of bytes", []
            layers = self._faster(layers)
        if layers:
            layers, error = self._near(layers)
        if layers:
            model = self._model(layers)
            if self.options.measure:
                gain = self._gain(model)
                ratio = gain.ratio
                if not self._wins(gain):
                    why = (
                        f"the model takes {gain.ratio:.2f} ({gain.low:.2f} to {gain.high:.2f}) of the float one's time"
                    )
                    fallback, layers = f"{why}, which is not surely less", []
        elif not fallback:
            fallback = (
                "no layer is faster and near enough in integers" if self.options.measure else "no layer is near enough"
            )
        if not layers:
            model, error = to_qdq(prepared(self.graph), Quantizers()), 0.0
        kept = {layer.key for layer in layers}
        rows = [self._row(layer, kept, fallback) for layer in self.network.layers]
        sizes = (sum(a.nbytes for a in self.network.graph.constants.values()), _constant_bytes(model))
        counts = (len(self.seen), len(self.unseen))
        report = QuantizationReport(rows, error, self.options.error, ratio, fallback, self.pairs, counts, sizes)
        return model, report

    def _row(self, layer: QuantizableLayer, kept: set[str], fallback: str) -> LayerChoice:
        quantized = layer.key in kept
        reason = "" if quantized else self.reasons.get(layer.key, fallback)
        ratio, noise = self.ratios.get(layer.key, math.nan), self.noises.get(layer.key, math.nan)
        return LayerChoice(layer.name, layer.node.op, quantized, reason, ratio, noise)

    def _is_candidate(self, layer: QuantizableLayer) -> bool:
        if self.activations and (layer.constant or not self.few):
            return True
        if layer.node.op == "matmul" and layer.constant:
            return True
        if self.few:
            self.reasons[layer.key] = "a product of two activations: of few bits only those by weights are"
            return False
        kind = "a convolution" if layer.node.op == "conv2d" else "a product of two activations"
        self.reasons[layer.key] = f"{kind}: weights alone are quantized of matrix products"
        return False

    def _calibrated(self, layers: Sequence[QuantizableLayer]) -> Quantizers:
        """Quantizers of all layers, and the noise of each layer."""
        graph = self.network.graph
        tensors, readers = self.network.quantized_tensors(layers, self.activations, not self.few)
        names = [*tensors]
        observed: dict[str, Observed] = {}
        if names:
            taps = self.timing.compiled(graph.with_nodes(graph.nodes, outputs=names))
            counts = self.options.method != "minmax" or self.few
            observed = observe(lambda batch: _answers(taps, batch), names, self.seen, counts)
        second = {layer.node.inputs[1] for layer in layers if not layer.constant}
        second -= {layer.node.inputs[0] for layer in layers}
        found = {}
        for name, like in tensors.items():
            if self.few:
                found[name] = few_bit_quantizer(observed[like], int(self.options.activations or 0))
                continue
            limits = observed[like].limits(self.options.method, self.options.percentile)
            found[name] = quantizer_of(*limits, "int8" if name in second else "uint8")
        weights = {}
        for layer in layers:
            noise = sum(activation_noise(observed[n], found[n]) for n in layer.node.inputs[:2] if n in found)
            if layer.constant:
                value = graph.constants[layer.node.inputs[1]]
                weights[layer.key] = self._weight(layer, value)
                noise += noise_of(value, weights[layer.key])
            self.noises[layer.key] = noise
        return Quantizers(found, weights, readers)

    def _weight(self, layer: QuantizableLayer, value: np.ndarray) -> Any:
        if not self.activations:
            return blocked_weight(value, self.options.weights, self.options.block)
        axis = 0 if layer.node.op == "conv2d" else 1
        return few_bit_weight(value, axis, self.options.weights) if self.few else quantized_weight(value, axis)

    def _faster(self, layers: Sequence[QuantizableLayer]) -> list[QuantizableLayer]:
        """The layers that are faster in integers; of weights alone, that are not slower."""
        times, kept = LayerTimes(self.network, self.timing), []
        for layer in layers:
            found = times.compare(layer, self.quantizers)
            self.ratios[layer.key] = found.ratio
            if self._wins(found):
                kept.append(layer)
            else:
                self.reasons[layer.key] = (
                    f"takes {found.ratio:.2f} ({found.low:.2f} to {found.high:.2f}) of its float time"
                )
        return kept

    def _wins(self, found: Comparison) -> bool:
        """Whether integers are faster; weights alone, which take less memory, must not be slower."""
        return found.second_wins if self.activations else found.outcome == "ok" and found.low <= 1.0

    def _near(self, layers: Sequence[QuantizableLayer]) -> tuple[list[QuantizableLayer], float]:
        """As many layers as the error allows, those of most noise left out first."""
        ranked = sorted(layers, key=lambda layer: -self.noises[layer.key])
        kept, error = within_error(ranked, self._error, self.options.error)
        for layer in ranked[: len(ranked) - len(kept)]:
            self.reasons[layer.key] = f"with it the outputs err by more than {self.options.error:g}"
        return kept, error

    def _error(self, layers: Sequence[QuantizableLayer]) -> float:
        module = self.timing.compiled(self._model(layers))
        return relative_error([_answers(module, batch) for batch in self.unseen], self.expected)

    def _model(self, layers: Sequence[QuantizableLayer]) -> onnx.ModelProto:
        return to_qdq(
            self.network.graph, restricted(self.quantizers, self.network, layers, self.activations, not self.few)
        )

    def _gain(self, model: onnx.ModelProto) -> Comparison:
        return time_models(self.float_module, self.timing.compiled(model), self.unseen[0])


def _answers(module: Any, batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs for a batch, in order, as arrays of their own."""
    found = module(**batch)
    return [np.array(a) for a in (found if isinstance(found, tuple) else (found,))]


def _constant_bytes(model: onnx.ModelProto) -> int:
    return sum(len(t.raw_data) or onnx.numpy_helper.to_array(t).nbytes for t in model.graph.initializer)


def check_file_name(path: Path) -> None:
    """Raises ParameterError for the name of a file that other runtimes would not take as ONNX."""
    if path.suffix != ".onnx":
        raise ParameterError(f"--output: found '{path}'; allowed: a name that ends with .onnx")


def is_quantized(path: Path) -> bool:
    """Whether a file is a model that :meth:`QuantizedModel.save` has written."""
    try:
        model = onnx.load(str(path))
    except Exception:  # of a file that is no model
        return False
    return bool(model.producer_name == "burnish" and model.opset_import[0].version == QDQ_OPSET)
