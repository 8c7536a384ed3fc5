"""Models with extents that depend on values: one module, beside onnxruntime, from nothing found to everything."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import burnish as bn
from burnish.driver.segmented import SegmentedModule
from burnish.errors import VerificationError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from burnish.loops.sizes import dim
from burnish.runtime.executable import Count
from burnish.runtime.module import Module

RANDOM = np.random.default_rng(5)
KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
Feeds = Sequence[np.ndarray]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def model(nodes: Sequence[Any], feeds: Feeds, outputs: Sequence[str], **constants: Any) -> onnx.ModelProto:
    """Inputs are called a, b, ...; the types of outputs are what nodes make them."""
    inputs = [helper.make_tensor_value_info(chr(97 + i), KINDS[str(a.dtype)], a.shape) for i, a in enumerate(feeds)]
    held = [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    found = [helper.make_empty_tensor_value_info(name) for name in outputs]
    made = helper.make_model(
        helper.make_graph(list(nodes), "g", inputs, found, held),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8,
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(made)


def beside_onnxruntime(cache: Path, proto: onnx.ModelProto, *calls: Feeds, kind: type = Module) -> Any:
    """The compiled model, also as it is read from a file, gives what onnxruntime does."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    module = bn.compile(proto, threads=2, cache_dir=cache)
    assert type(module) is kind and (kind is SegmentedModule or not module.slow)
    module.save(cache / "m.bn")
    loaded = bn.load(cache / "m.bn")
    for feeds in calls:
        expected = session.run(None, {i.name: f for i, f in zip(session.get_inputs(), feeds, strict=True)})
        for own in (module, loaded):
            found = own(*feeds)
            for a, b in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return module


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def masks(*shape: int) -> list[np.ndarray]:
    return [RANDOM.integers(0, 2, shape).astype(np.float32), np.zeros(shape, np.float32), np.ones(shape, np.float32)]


@pytest.mark.parametrize("shape", [(), (7,), (4, 5), (2, 3, 0), (2, 1, 3, 4)])
def test_nonzero(cache: Path, shape: tuple[int, ...]) -> None:
    found = masks(*shape)
    beside_onnxruntime(cache, model([node("NonZero", "a", "y")], found[:1], ["y"]), *[[x] for x in found])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "bool", "int8"])
def test_positions_of_every_kind_of_number(cache: Path, dtype: str) -> None:
    b = GraphBuilder()
    graph = b.build(*b.add_many("nonzero", b.input("x", (6,), dtype), count=dim("n", 0, 6)))
    module = bn.compile(graph, rewrite=False, cache_dir=cache)
    values = np.array([0, -0.0, 3, np.nan if "float" in dtype else 1, -1, 0]).astype(module.inputs[0].dtype)
    places, count = module(values)
    assert places.tolist() == [[2, 3, 4]] and count == 3


def test_what_follows_is_in_the_same_module(cache: Path) -> None:
    """Rows that a mask chooses through a product, a softmax and sums, whose mean divides by how many there are."""
    nodes = [
        node("ReduceMax", "a axis", "r", keepdims=0), node("Greater", "r one", "m"), node("NonZero", "m", "p"),
        node("Transpose", "p", "t", perm=[1, 0]), node("GatherND", "a t", "g"), node("MatMul", "g w", "h"),
        node("Softmax", "h", "s", axis=-1), node("Shape", "h", "e"), node("Gather", "e zero", "n"),
        node("Cast", "n", "f", to=TensorProto.FLOAT), node("ReduceSum", "h rows", "u", keepdims=0),
        node("Max", "f least", "d"), node("Div", "u d", "mean"), node("Concat", "s s", "both", axis=0),
    ]  # fmt: skip
    x = RANDOM.standard_normal((40, 8), dtype=np.float32)
    constants = {"axis": [1], "one": np.float32(1), "w": RANDOM.standard_normal((8, 6), dtype=np.float32)}
    constants |= {"zero": 0, "rows": [0], "least": np.float32(1)}
    module = beside_onnxruntime(cache, model(nodes, [x], ["s", "mean", "both"], **constants), [x], [x * 3], [x * 0])
    assert sum(isinstance(step, Count) for step in module.executable.steps) == 1


def test_indices_along_a_line_and_two_counts(cache: Path) -> None:
    nodes = [
        node("NonZero", "a", "p"), node("Squeeze", "p zero", "s"), node("NonZero", "b", "q"),
        node("Squeeze", "q zero", "u"), node("Concat", "s u", "both", axis=0), node("Gather", "c s", "g", axis=1),
        node("ReduceSum", "g", "total", keepdims=0), node("Range", "none count step", "line"),
    ]  # fmt: skip
    counts = [node("Shape", "s", "e"), node("Squeeze", "e zero", "count")]
    feeds = [
        [a, b, RANDOM.standard_normal((3, 20), dtype=np.float32)] for a, b in zip(masks(20), masks(20), strict=True)
    ]
    proto = model([*nodes[:-1], *counts, nodes[-1]], feeds[0], ["both", "g", "total", "line"], zero=[0], none=0, step=1)
    beside_onnxruntime(cache, proto, *feeds)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress(cache: Path, axis: int | None) -> None:
    attrs = {} if axis is None else {"axis": axis}
    nodes = [node("Compress", "a b", "c", **attrs), node("Relu", "c", "y")]
    for length in (3, 7) if axis is None else (3,):
        x = RANDOM.standard_normal((5, 7), dtype=np.float32)
        feeds = [[x, m.astype(bool)] for m in masks(length)]
        beside_onnxruntime(cache, model(nodes, feeds[0], ["c", "y"]), *feeds)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("in_order", [0, 1])
def test_unique(cache: Path, in_order: int, axis: int | None) -> None:
    attrs = {} if axis is None else {"axis": axis}
    for dtype in ("float32", "int64"):
        feeds = [[RANDOM.integers(0, most, (3, 12)).astype(dtype)] for most in (1, 2, 100)]
        proto = model([node("Unique", "a", "y i v c", sorted=in_order, **attrs)], feeds[0], ["y", "i", "v", "c"])
        beside_onnxruntime(cache, proto, *feeds)


def test_no_numbers_are_one_value_and_the_greatest(cache: Path) -> None:
    x = np.array([np.nan, 2, np.inf, np.nan, -1, 2], np.float32)
    values, first, which, counts = bn.compile(model([node("Unique", "a", "y i v c")], [x], "yivc"), cache_dir=cache)(x)
    assert np.array_equal(values, np.array([-1, 2, np.inf, np.nan], np.float32), equal_nan=True)
    assert [a.tolist() for a in (first, which, counts)] == [[4, 1, 2, 0], [3, 1, 2, 3, 0, 1], [1, 2, 1, 2]]


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("most", "least"), [(5, 0.5), (0, 0.0), (1000, 0.2)])
def test_non_max_suppression_and_what_reads_it(cache: Path, center: int, most: int, least: float) -> None:
    boxes, scores = RANDOM.random((2, 60, 4), np.float32), RANDOM.random((2, 3, 60), np.float32)
    scores[:, :, 7] = scores[:, :, 9]  # ties
    nodes = [
        node("NonMaxSuppression", "a b most overlap least", "n", center_point_box=center), node("GatherND", "b n", "s"),
        node("Slice", "n two three one", "column"), node("Squeeze", "column one", "at"),
        node("Gather", "a at", "g", axis=1),
    ]  # fmt: skip
    constants: dict[str, Any] = {"most": [most], "overlap": np.array([0.3], np.float32), "two": [2], "three": [3]}
    constants |= {"least": np.array([least], np.float32), "one": [1]}
    proto = model(nodes, [boxes, scores], ["n", "s", "g"], **constants)
    beside_onnxruntime(cache, proto, [boxes, scores], [boxes, scores * 0], [boxes * 0 + 0.5, scores])


def test_an_extent_that_a_node_has_to_know_cuts_the_model(cache: Path) -> None:
    nodes = [
        node("NonZero", "a", "p"), node("Squeeze", "p zero", "s"), node("Gather", "b s", "g"), node("Shape", "g", "n"),
        node("Min", "n five", "k"), node("TopK", "g k", "v i"), node("Relu", "v", "y"),
    ]  # fmt: skip
    line = RANDOM.standard_normal(20, dtype=np.float32)
    feeds = [[m, line] for m in masks(20)]
    proto = model(nodes, feeds[0], ["v", "i", "y"], zero=[0], five=[5])
    beside_onnxruntime(cache, proto, *feeds, kind=SegmentedModule)


def test_definitions_say_the_same(cache: Path) -> None:
    b, x = GraphBuilder(), np.array([0, 2, 0, 3, 1], np.float32)
    places, count = b.add_many("nonzero", b.input("x", (5,)), count=dim("n", 0, 5))
    line = b.add("reshape", places, shape=(b.types[places].shape[1],))
    graph = b.build(b.add("exp", b.add("gather", "x", line, axis=0)), count)
    module = bn.compile(graph, rewrite=False, cache_dir=cache)
    for values in (x, x * 0, copy.copy(x) + 1):
        for own, other in zip(module(values), evaluate(graph, {"x": values}).values(), strict=True):
            assert own.shape == other.shape
            np.testing.assert_allclose(own, other, rtol=1e-6)
    small = [np.zeros(5, np.float32), np.zeros((), np.int64)]
    module.run_into([x], small)
    np.testing.assert_allclose(small[0][:3], np.exp([2, 3, 1]), rtol=1e-6)
    steps = sorted(module.executable.steps, key=lambda step: isinstance(step, Count))
    with pytest.raises(VerificationError, match="before it is counted"):
        type(module.executable)(**{**vars_of(module.executable), "steps": tuple(steps)})


def vars_of(executable: Any) -> dict[str, Any]:
    return {name: getattr(executable, name) for name in executable.__dataclass_fields__}


def test_a_small_part_of_a_large_output_is_all_that_is_kept(cache: Path) -> None:
    proto = model([node("NonZero", "a", "y")], [np.zeros((300, 300), np.float32)], ["y"])
    x = np.eye(300, dtype=np.float32)
    found = bn.compile(proto, cache_dir=cache)(x)
    assert found.shape == (2, 300) and found.base is None
