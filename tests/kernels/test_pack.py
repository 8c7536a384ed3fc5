"""Weights that are graph inputs: packed at each call, read by the templates that constant weights have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from burnish.driver.compilation import Compilation, assemble, compile_kernels
from burnish.graph.estimates import Estimate, label_of
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.kernels.templates import template_called
from burnish.loops.numeric import numpy_dtype
from burnish.loops.sizes import dim
from burnish.machines.target import host, target
from burnish.pipeline.plan import DEFAULTS, Choices
from burnish.runtime.module import Module
from tests.marks import slow

Native = Callable[..., dict[str, np.ndarray]]
NARROW = "cpu,-amx"  # without matrix tiles, whichever machine this is


@dataclass(frozen=True)
class Layer:
    """A convolution of a batch of square images, with bias and ReLU."""

    batch: int
    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    op: str = "conv2d"


LAYERS = {
    "dense": Layer(1, 64, 64, 14, 3),
    "odd": Layer(2, 20, 37, 8, 3),
    "odd-blocks": Layer(1, 33, 50, 9, 3),
    "strided": Layer(1, 32, 64, 15, 3, stride=2),
    "stem": Layer(1, 3, 20, 30, 7, stride=2),
    "dilated": Layer(1, 32, 32, 12, 3, dilation=2),
    "pointwise": Layer(1, 64, 48, 16, 1),
    "pointwise-odd": Layer(1, 40, 70, 15, 1),
    "wide-window": Layer(2, 16, 16, 8, 5),
    "depthwise": Layer(1, 32, 32, 14, 3, groups=32),
    "depthwise-odd": Layer(1, 40, 40, 14, 3, groups=40),
    "groups-of-vectors": Layer(1, 64, 64, 14, 3, groups=4),
    "small-groups": Layer(1, 64, 64, 14, 3, groups=16),
    "banded": Layer(1, 48, 96, 10, 3, groups=8),
    "single": Layer(1, 1, 1, 5, 3),
    "transposed": Layer(1, 32, 32, 6, 4, stride=2, op="conv2d_transpose"),
    "transposed-odd": Layer(1, 20, 24, 6, 4, stride=2, op="conv2d_transpose"),
    "transposed-few": Layer(1, 32, 3, 6, 4, stride=2, op="conv2d_transpose"),
    "transposed-stride-1": Layer(1, 32, 32, 6, 3, op="conv2d_transpose"),
    "transposed-groups": Layer(1, 64, 64, 5, 4, stride=2, groups=2, op="conv2d_transpose"),
    "transposed-ragged": Layer(2, 32, 32, 7, 3, stride=2, op="conv2d_transpose"),
    "transposed-ragged-odd": Layer(1, 20, 24, 6, 5, stride=3, op="conv2d_transpose"),
    "transposed-few-blocks": Layer(2, 32, 10, 6, 4, stride=2, op="conv2d_transpose"),
    "transposed-few-ragged": Layer(1, 16, 12, 7, 3, stride=2, op="conv2d_transpose"),
    "transposed-pixel": Layer(1, 32, 32, 1, 4, op="conv2d_transpose"),
}


def graph_of(layer: Layer, constant: bool) -> tuple[Graph, dict[str, np.ndarray]]:
    """The layer with weight and bias as constants or as inputs, and feeds."""
    random = np.random.default_rng(3)
    transposed = layer.op == "conv2d_transpose"
    first, second = (layer.inputs, layer.outputs) if transposed else (layer.outputs, layer.inputs)
    shape = (first, second // layer.groups, layer.kernel, layer.kernel)
    weights = {
        "w": random.standard_normal(shape, np.float32) / np.float32(np.sqrt(layer.inputs) * layer.kernel),
        "b": random.standard_normal(layer.outputs, np.float32),
    }
    feeds = {"x": random.standard_normal((layer.batch, layer.inputs, layer.size, layer.size), np.float32)}
    g = GraphBuilder()
    x = g.input("x", feeds["x"].shape)
    for name, value in weights.items():
        if constant:
            g.constant(value, name)
        else:
            g.input(name, value.shape)
            feeds[name] = value
    pads = (0,) * 4 if layer.size == 1 else (layer.kernel // 2 * layer.dilation,) * 4
    y = g.add(
        layer.op, x, "w", "b",
        strides=(layer.stride,) * 2, pads=pads, dilations=(layer.dilation,) * 2, groups=layer.groups,
    )  # fmt: skip
    return g.build(g.add("relu", y)), feeds


def templates_of(made: Compilation) -> list[str]:
    """The templates of the kernels that compute, not of those that copy."""
    copies = {"pack", "transpose", "generic"}
    return [s.kernel.template for s in made.stages if s.kernel.template not in copies]


def run_fenced(made: Compilation, feeds: Mapping[str, np.ndarray], native: Native, edge: str) -> np.ndarray:
    """The model's only output, every kernel run between forbidden pages; what nobody has written is NaN."""
    values: dict[str, np.ndarray] = dict(feeds)
    for step in made.steps:
        if not hasattr(step, "kernel"):  # an alias
            shape = made.graph.types[step.outputs[0]].shape
            values[step.outputs[0]] = values[step.inputs[0]].reshape(shape)
            continue
        task = step.task
        match = template_called(step.kernel.template, made.target).on(task, made.target)
        program = match.apply(step.kernel.choice).program
        shapes = {p.name: p.shape for p in program.params}
        arrays = {t.name: values[step.values[t.name]].reshape(shapes[t.name]) for t in task.inputs}
        found = native(program, arrays, edge=edge, machine=made.target)
        values.update({step.values[t.name]: found[t.name] for t in task.outputs})
    (output,) = made.graph.outputs
    return values[output].reshape(made.graph.types[output].shape)


def assert_close(found: np.ndarray, graph: Graph, feeds: Mapping[str, np.ndarray]) -> None:
    expected = evaluate(graph, feeds, "float64")[graph.outputs[0]]
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("machine", slow(["cpu", NARROW], NARROW))
@pytest.mark.parametrize("name", LAYERS)
def test_kernels_stay_within_packed_weights(name: str, machine: str, edge: str, native: Native) -> None:
    graph, feeds = graph_of(LAYERS[name], constant=False)
    made = compile_kernels(graph, target(machine))
    assert_close(run_fenced(made, feeds, native, edge), graph, feeds)


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4", "aarch64-neoverse-n1"])
@pytest.mark.parametrize("name", LAYERS)
def test_no_convolution_is_left_to_the_generic_template(name: str, machine: str) -> None:
    made = compile_kernels(graph_of(LAYERS[name], constant=True)[0], target(machine))
    left = [s.group for s in made.stages if s.group.anchor is not None and s.kernel.template == "generic"]
    assert not [g for g in left if "conv2d" in g.anchor.op or g.anchor.op == LAYERS[name].op]


@pytest.mark.parametrize("name", LAYERS)
def test_templates_are_those_of_constant_weights(name: str) -> None:
    constant = compile_kernels(graph_of(LAYERS[name], constant=True)[0], host(), choices=_only("conv2d"))
    graph, feeds = graph_of(LAYERS[name], constant=False)
    made = compile_kernels(graph, host(), choices=_only("conv2d"))
    assert templates_of(made) == templates_of(constant) != []
    assert_close(Module(assemble(made))(*feeds.values()), graph, feeds)


def _only(label: str) -> Choices:
    """Choices that take the algorithm ``label`` wherever there is one."""

    def decide(graph: Graph, node: Node, found: Sequence[Estimate]) -> Estimate:
        return next((e for e in found if label_of(e) == label), found[0])

    return Choices(decide, DEFAULTS.recipe)


ALGORITHMS = (
    "winograd_conv2d m=2", "winograd_conv2d m=4", "winograd_conv2d m=2 raw weight", "winograd_conv2d m=4 raw weight",
    "polyphase_conv2d m=2", "polyphase_conv2d m=4", "split_conv2d", "split_stem",
)  # fmt: skip


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("name", slow(["dense", "odd", "strided", "stem", "groups-of-vectors"], "odd", "stem"))
@pytest.mark.parametrize("label", ALGORITHMS)
def test_every_algorithm_transforms_its_weights(label: str, name: str, edge: str, native: Native) -> None:
    graph, feeds = graph_of(LAYERS[name], constant=False)
    made = compile_kernels(graph, host(), choices=_only(label))
    if label.split()[0] not in {node.op for node in made.graph.nodes}:
        pytest.skip("the layer does not have this algorithm on this machine")
    wanted = "winograd_raw_weight" if label.endswith("raw weight") else label.split()[0]
    assert wanted in templates_of(made)[0] or label == "split_stem"
    assert_close(run_fenced(made, feeds, native, edge), graph, feeds)
    assert_close(Module(assemble(made))(*feeds.values()), graph, feeds)


def test_other_weights_give_other_results() -> None:
    graph, feeds = graph_of(LAYERS["dense"], constant=False)
    module = Module(assemble(compile_kernels(graph, host())))
    for scale in (1.0, -2.0, 0.5):
        changed = {**feeds, "w": feeds["w"] * np.float32(scale)}
        assert_close(module(*changed.values()), graph, changed)


def test_a_weight_is_transformed_within_for_batches_of_any_size() -> None:
    def graph_of_batch(size: int) -> Graph:
        g = GraphBuilder()
        x, w = g.input("x", (size, 32, 14, 14)), g.input("w", (64, 32, 3, 3))
        return g.build(g.add("relu", g.add("conv2d", g.add("relu", x), w, pads=(1, 1, 1, 1))))

    random = np.random.default_rng(0)
    choices = _only("winograd_conv2d m=4 raw weight")
    made = compile_kernels(graph_of_batch(dim("n", 1, 8, hint=1)), host(), choices=choices)
    assert templates_of(made) == ["winograd_raw_weight"]
    module = Module(assemble(made), 3)
    for size in (1, 3):
        feeds = {"x": random.standard_normal((size, 32, 14, 14)), "w": random.standard_normal((64, 32, 3, 3)) / 17}
        feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
        assert_close(module(*feeds.values()), graph_of_batch(size), feeds)


def test_one_weight_for_two_convolutions_is_transformed_once() -> None:
    g = GraphBuilder()
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((1, 32, 14, 14), np.float32),
        "w": random.standard_normal((32, 32, 3, 3), np.float32) / np.float32(17),
    }
    for name, value in feeds.items():
        g.input(name, value.shape)
    y = g.add("relu", g.add("conv2d", "x", "w", pads=(1, 1, 1, 1)))
    graph = g.build(g.add("conv2d", y, "w", pads=(1, 1, 1, 1)))
    made = compile_kernels(graph, host(), choices=_only("winograd_conv2d m=4"))
    assert sum("w" in s.group.inputs for s in made.stages) == 1
    assert_close(Module(assemble(made))(*feeds.values()), graph, feeds)


def test_a_weight_that_is_computed_or_read_otherwise_is_packed_too() -> None:
    g = GraphBuilder()
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((1, 32, 14, 14), np.float32),
        "w": random.standard_normal((32, 32, 3, 3), np.float32) / np.float32(17),
        "mask": random.standard_normal((32, 32, 3, 3), np.float32),
    }
    for name, value in feeds.items():
        g.input(name, value.shape)
    masked = g.add("mul", "w", "mask")
    y = g.add("conv2d", "x", masked, pads=(1, 1, 1, 1))
    graph = g.build(y, masked)
    made = compile_kernels(graph, host(), choices=_only("conv2d"))
    assert templates_of(made) == ["direct_conv2d"]
    found, product = Module(assemble(made))(*feeds.values())
    np.testing.assert_array_equal(product, feeds["w"] * feeds["mask"])
    assert_close(found, graph, feeds)


def test_packing_names_the_time_of_every_parameter() -> None:
    made = compile_kernels(graph_of(LAYERS["odd"], constant=False)[0], target(NARROW), choices=_only("conv2d"))
    (stage,) = [s for s in made.stages if s.kernel.template not in ("pack", "transpose")]
    assert set(stage.task.packing.values()) == {"call"}
    assert {stage.values[name].partition("@")[0] for name in stage.task.packing} >= {"w"}
    for name, tag in stage.kernel.packing.items():
        assert numpy_dtype(made.graph.types[stage.values[name]].dtype) == np.float32
        assert str(made.layouts[stage.values[name]]) == tag


@pytest.mark.parametrize("length", [1, 5, 40])
def test_a_vector_that_a_matrix_is_multiplied_by_is_packed(length: int) -> None:
    g = GraphBuilder()
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((4, length), np.float32),
        "columns": random.standard_normal((length, 3), np.float32),
    }
    for name, value in feeds.items():
        g.input(name, value.shape)
    vector = g.add("reshape", g.add("slice", "columns", starts=(0, 1), extents=(length, 1)), shape=(length,))
    graph = g.build(g.add("matmul", "x", vector))
    assert_close(Module(assemble(compile_kernels(graph, host())))(*feeds.values()), graph, feeds)
