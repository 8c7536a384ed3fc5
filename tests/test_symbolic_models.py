"""Models with a dimension left open: one module for every number of rows, right at all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import burnish as bn
from burnish.cli.compiling import facts
from burnish.driver.check import check
from burnish.driver.segmented import SegmentedModule
from burnish.errors import InputError, ModelError, ParameterError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.measure.samples import module_inputs
from tools.fuzz.pages import FencedModule

ROWS = (1, 7, 32, 100, 512)


def draw(random: np.random.Generator, *shape: int) -> np.ndarray:
    return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def mlp(rows: Any) -> Graph:
    """Three dense layers."""
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (rows, 64))
    for i, (depth, columns) in enumerate([(64, 96), (96, 80), (80, 10)]):
        x = b.add("matmul", x, b.constant(draw(random, depth, columns), f"w{i}"))
        x = b.add("add", x, b.constant(draw(random, columns), f"b{i}"))
        x = b.add("relu", x) if i < 2 else x
    return b.build(x)


def block(rows: Any) -> Graph:
    """Normalization, a product, softmax, a product, and the input added; and the mean of every row."""
    random = np.random.default_rng(1)
    b = GraphBuilder()
    x = b.input("x", (rows, 64))
    gain, bias = b.constant(draw(random, 64), "gain"), b.constant(draw(random, 64), "bias")
    y = b.add("layer_norm", x, gain, bias, axis=1)
    y = b.add("softmax", b.add("matmul", y, b.constant(draw(random, 64, 40), "keys")), axis=1)
    y = b.add("add", b.add("matmul", y, b.constant(draw(random, 40, 64), "values")), x)
    return b.build(y, b.add("reduce_mean", y, axes=(1,), keepdims=False))


@pytest.mark.parametrize("target", ["cpu", "cpu,-amx"])
@pytest.mark.parametrize("graph", [mlp, block])
def test_one_module_is_right_for_every_number_of_rows(
    graph: Callable[[Any], Graph], target: str, tmp_path: Path
) -> None:
    module = bn.compile(graph(dim("rows", 1, 512)), target=target, threads=2, cache_dir=tmp_path)
    module.save(tmp_path / "m.bn")
    for each in (module, bn.load(tmp_path / "m.bn")):
        for rows in ROWS:
            x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
            found = each(x)
            expected = evaluate(graph(rows), {"x": x}).values()
            for y, z in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
                np.testing.assert_allclose(y, z, rtol=0, atol=2e-4 * np.abs(z).max())


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("graph", [mlp, block])
def test_no_byte_outside_of_buffers_is_touched_at_any_size(
    graph: Callable[[Any], Graph], edge: str, tmp_path: Path
) -> None:
    fenced = FencedModule(bn.compile(graph(dim("rows", 1, 512)), threads=2, cache_dir=tmp_path), edge)
    for rows in (1, 2, 7, 8, 9, 12, 13, 14, 15, 31, 32, 33, 511, 512):
        x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
        for y, z in zip(fenced.run([x], edge), evaluate(graph(rows), {"x": x}).values(), strict=True):
            np.testing.assert_allclose(y, z, rtol=0, atol=2e-4 * np.abs(z).max())


# --- from ONNX --------------------------------------------------------------------------------------------------------


def onnx_model(first: str | int, nodes: list[onnx.NodeProto] | None = None, opset: int = 17) -> onnx.ModelProto:
    """Gemm, Softmax and ReduceMean of x [first, 24], unless other nodes from x to y are given."""
    random = np.random.default_rng(2)
    nodes = nodes or [
        helper.make_node("Gemm", ["x", "w", "b"], ["a"]),
        helper.make_node("Softmax", ["a"], ["c"], axis=-1),
        helper.make_node("ReduceMean", ["c"], ["d"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["c", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [first, 24])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(draw(random, 24, 20), "w"), numpy_helper.from_array(draw(random, 20), "b")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def attention() -> onnx.ModelProto:
    """Two heads of self-attention over x [batch, sequence, 24], with reshapes and transposes as exporters write."""
    random, node = np.random.default_rng(4), helper.make_node
    nodes, weights = [], [numpy_helper.from_array(draw(random, 24, 24), f"w{p}") for p in "qkvo"]
    weights += [
        numpy_helper.from_array(np.array(v), k) for k, v in {"split": [0, 0, 2, 12], "join": [0, 0, 24]}.items()
    ]
    for p, perm in {"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3)}.items():
        nodes.append(node("MatMul", ["x", f"w{p}"], [f"a{p}"]))
        nodes.append(node("Reshape", [f"a{p}", "split"], [f"r{p}"]))
        nodes.append(node("Transpose", [f"r{p}"], [f"t{p}"], perm=perm))
    nodes += [
        node("MatMul", ["tq", "tk"], ["s"]), node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "tv"], ["o"]),
        node("Transpose", ["o"], ["u"], perm=(0, 2, 1, 3)), node("Reshape", ["u", "join"], ["j"]),
        node("MatMul", ["j", "wo"], ["z"]), node("Add", ["z", "x"], ["y"]),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", 24])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return made


def test_attention_takes_any_batch_and_any_sequence(tmp_path: Path) -> None:
    module = bn.compile(attention(), shapes={"batch": (1, 6), "sequence": (1, 40)}, threads=2, cache_dir=tmp_path)
    reference = ReferenceEvaluator(attention())
    for batch, sequence in [(1, 1), (1, 40), (2, 7), (3, 13), (6, 16), (6, 40)]:
        x = np.random.default_rng(sequence).standard_normal((batch, sequence, 24)).astype(np.float32)
        (expected,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(module(x), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def pixels(*shape: int | str) -> onnx.ModelProto:
    """Convolutions, pooling and a classifier over images x of this shape, of 16 channels."""
    random, node = np.random.default_rng(5), helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]), node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]), node("Conv", ["c", "w2"], ["d"]),
        node("Conv", ["d", "w3"], ["e"], pads=[1, 1, 1, 1], group=32), node("GlobalAveragePool", ["e"], ["f"]),
        node("Flatten", ["f"], ["g"]), node("Gemm", ["g", "w4", "b4"], ["y"], transB=1),
    ]  # fmt: skip
    weights = {"w1": (32, 16, 3, 3), "w2": (32, 32, 1, 1), "w3": (32, 1, 3, 3), "w4": (10, 32), "b4": (10,)}
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(draw(random, *size), name) for name, size in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("exact", [False, True])
def test_convolutions_take_any_batch(exact: bool, tmp_path: Path) -> None:
    model = pixels("batch", 16, 12, 12)
    module = bn.compile(model, shapes={"batch": (1, 9)}, threads=2, exact=exact, cache_dir=tmp_path)
    reference = ReferenceEvaluator(model)
    for batch in (1, 2, 3, 4, 8, 9):
        x = np.random.default_rng(batch).standard_normal((batch, 16, 12, 12)).astype(np.float32)
        (expected,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(module(x), expected, rtol=0, atol=2e-4 * np.abs(expected).max())


def test_heights_of_images_are_compiled_when_they_are_met() -> None:
    with pytest.warns(UserWarning, match=r"Conv.*found shape \[1, 16, h, 12\]; allowed: an open dim.*each size"):
        module = bn.compile(pixels(1, 16, "h", 12), shapes={"h": (2, 64)})
    reference = ReferenceEvaluator(pixels(1, 16, "h", 12))
    for height in (4, 12, 4):
        x = np.random.default_rng(height).standard_normal((1, 16, height, 12)).astype(np.float32)
        (expected,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(module(x), expected, rtol=0, atol=2e-4 * np.abs(expected).max())


def moved(rows: Any) -> Graph:
    """Views with extents of 1 before an open one, positions cut from a constant, sums of integers, and resampling."""
    b = GraphBuilder()
    x = b.input("x", (3, rows, 2, 4, 5))
    part = b.add("slice", x, starts=(1, 0, 0, 0, 0), extents=(1, rows, 2, 4, 5))
    image = b.add("reshape", part, shape=(rows, 2, 4, 5))
    flat = b.add("reshape", x, shape=(3 * rows, 40))
    counted = b.add("slice", b.constant(np.arange(32)), starts=(0,), extents=(rows,))
    ones = b.add("expand", b.constant(1), shape=(rows,))
    scales = {"sizes": (rows, 2, 8, 10), "scales": (1.0, 1.0, 2.0, 2.0)}
    up = b.add("resize", image, mode="linear", coordinates="half_pixel", **scales)
    nearest = b.add("resize", image, mode="nearest", coordinates="asymmetric", rounding="floor", **scales)
    return b.build(flat, b.add("add", counted, b.add("reduce_sum", ones, axes=(0,))), up, nearest)


def test_views_and_positions_of_open_extents(tmp_path: Path) -> None:
    module = bn.compile(moved(dim("rows", 1, 32)), threads=1, cache_dir=tmp_path)
    for rows in (1, 7, 32):
        x = np.random.default_rng(rows).standard_normal((3, rows, 2, 4, 5)).astype(np.float32)
        expected = evaluate(moved(rows), {"x": x})
        for found, name in zip(module(x), moved(rows).outputs, strict=True):
            np.testing.assert_allclose(found, expected[name], rtol=0, atol=1e-5)


def part_and_mean(rows: Any) -> Graph:
    """A slice whose place in an open input is known, and the mean of integers whose number is open."""
    b = GraphBuilder()
    x = b.input("x", (rows, 3), "int64")
    later = b.add("slice", x, starts=(2, 0), extents=(rows - 2, 3))
    return b.build(later, b.add("reduce_mean", x, axes=(0, 1), keepdims=False))


def test_a_part_of_an_open_input_and_a_mean_of_integers(tmp_path: Path) -> None:
    module = bn.compile(part_and_mean(dim("rows", 3, 9)), threads=1, cache_dir=tmp_path)
    for rows in (3, 4, 9):
        x = np.arange(-7, 3 * rows - 7).reshape(rows, 3)
        for found, expected in zip(module(x), evaluate(part_and_mean(rows), {"x": x}).values(), strict=True):
            np.testing.assert_array_equal(found, expected)


def framed(batch: Any, steps: Any) -> Graph:
    """Normalizations over an open number of places, and a padded tensor with two open dimensions."""
    b = GraphBuilder()
    x = b.input("x", (batch, 4, steps))
    scale, bias = (b.constant(np.linspace(low, 2, 4).astype(np.float32)) for low in (1, -1))
    padded = b.add("pad", x, pads=(0, 0, 1, 0, 0, 2), value=3.0)
    grouped = b.add("group_norm", x, scale, bias, groups=2)
    return b.build(padded, grouped, b.add("instance_norm", x, scale, bias), b.add("layer_norm", x, axis=1))


def test_normalizations_and_pads_of_open_extents(tmp_path: Path) -> None:
    module = bn.compile(framed(dim("batch", 1, 4), dim("steps", 1, 33)), threads=1, cache_dir=tmp_path)
    for batch, steps in ((1, 1), (2, 7), (4, 33)):
        x = np.random.default_rng(steps).standard_normal((batch, 4, steps)).astype(np.float32)
        expected = evaluate(framed(batch, steps), {"x": x}, "float64")
        for found, name in zip(module(x), framed(batch, steps).outputs, strict=True):
            np.testing.assert_allclose(found, expected[name], rtol=0, atol=1e-5)


def test_an_open_extent_is_not_resampled() -> None:
    b = GraphBuilder()
    rows = dim("rows", 1, 32)
    b.input("x", (1, 2, rows, 5))
    with pytest.raises(ModelError, match=r"resize.*a number in dimension 2"):
        b.add("resize", "x", sizes=(1, 2, 2 * rows, 5))


@pytest.mark.parametrize("shapes", [{"batch": (1, 60)}, {"x": ("k", 24), "k": (2, 60, 2, 30)}])
def test_dimensions_of_an_onnx_model_stay_open_where_that_is_asked(shapes: dict[str, Any], tmp_path: Path) -> None:
    module = bn.compile(onnx_model("batch"), shapes=shapes, threads=1, cache_dir=tmp_path)
    for rows in (2, 8, 30, 60):
        x = np.random.default_rng(rows).standard_normal((rows, 24)).astype(np.float32)
        static = bn.compile(onnx_model(rows), threads=1, cache_dir=tmp_path, rewrite=False)
        np.testing.assert_allclose(module(x), static(x), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": ("q", 24)}, r"input 'x': dimension 'q' has no bounds; pass them: shapes=\{'q': \(1, 512\), …\}"),
        ({"rows": (1, 9)}, r"found names \['rows'\] of no model input; allowed: x, batch"),
        ({"batch": (1,)}, r"dimension 'batch': found \(1,\); allowed: \(low, high\), \(low, high, multiple\) or"),
        ({"batch": (9, 1)}, "dimension 'batch': found low 9, high 1"),
    ],
)
def test_dimensions_without_proper_bounds_are_refused(shapes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        bn.compile(onnx_model("batch"), shapes=shapes)


def test_extents_are_values_of_a_call() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)]
    module = bn.compile(onnx_model("batch", nodes), shapes={"batch": (1, 9)})
    for batch in (1, 4, 9):
        assert module(np.zeros((batch, 24), np.float32)).tolist() == [batch, 24]


def test_what_needs_numbers_is_compiled_for_each_size() -> None:
    nodes = [helper.make_node("Split", ["x"], ["y", "z"], axis=0, num_outputs=2)]
    with pytest.warns(UserWarning, match=r"Split.*not supported where extents depend on dimension 'batch'.*each size"):
        module = bn.compile(onnx_model("batch", nodes, opset=18), shapes={"batch": (2, 9)})
    for batch in (2, 5):
        x = np.arange(batch * 24, dtype=np.float32).reshape(batch, 24)
        assert np.array_equal(module(x), x[: (batch + 1) // 2])
    with pytest.raises(InputError, match="dimension 'batch': found 10 of input 'x'; allowed: 2 to 9"):
        module(np.zeros((10, 24), np.float32))


def graph_of(nodes: list[Any], constants: dict[str, np.ndarray], inputs: dict[str, Any], dtype: int) -> onnx.ModelProto:
    """A model of these nodes, whose result is y."""
    values = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    result = onnx.ValueInfoProto(name="y", type=onnx.helper.make_tensor_type_proto(dtype, None))
    graph = helper.make_graph(nodes, "g", values, [result], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("most", "hint"), [(37, 34), (62, 46), (40, 6), (33, 33)])
def test_sums_along_an_open_dimension_take_in_every_term(most: int, hint: int, tmp_path: Path) -> None:
    """A triangle: fewer tiles are free of its condition than of that on the loop's end."""
    node = helper.make_node("CumSum", ["x", "a"], ["y"])
    model = graph_of([node], {"a": np.int64(0)}, {"x": ["n"]}, TensorProto.FLOAT)
    module = bn.compile(model, shapes={"n": (1, most, 1, hint)}, threads=1, cache_dir=tmp_path)
    for n in {1, 2, 5, 8, hint, most - 1, most}:
        x = np.arange(1, n + 1, dtype=np.float32)
        assert np.array_equal(module(x), np.cumsum(x)), n


def test_what_reads_a_reversed_sum_along_an_open_dimension(tmp_path: Path) -> None:
    """The difference of two sizes may be a number."""
    nodes = [helper.make_node("CumSum", ["x", "a"], ["s"], reverse=1), helper.make_node("Neg", ["s"], ["y"])]
    model = graph_of(nodes, {"a": np.int64(0)}, {"x": ["n"]}, TensorProto.INT64)
    module = bn.compile(model, shapes={"n": (1, 8)}, threads=1, cache_dir=tmp_path)
    for n in (1, 5, 8):
        assert np.array_equal(module(np.arange(n)), -np.cumsum(np.arange(n)[::-1])[::-1])


@pytest.mark.filterwarnings("ignore:.*compiled at the first call of each size")
@pytest.mark.parametrize(("low", "kind"), [(1, SegmentedModule), (2, bn.Module)])
def test_a_squeeze_without_axes_drops_an_open_extent_that_is_1(low: int, kind: type, tmp_path: Path) -> None:
    nodes = [helper.make_node("Squeeze", ["x"], ["s"]), helper.make_node("Shape", ["s"], ["y"])]
    model = graph_of(nodes, {}, {"x": ["n", 3, 1]}, TensorProto.INT64)
    module = bn.compile(model, shapes={"n": (low, 8)}, threads=1, cache_dir=tmp_path)
    assert isinstance(module, kind)
    for n in {low, 2, 8}:
        assert module(np.zeros((n, 3, 1), np.int64)).tolist() == ([n, 3] if n > 1 else [3])


def test_whether_an_open_extent_equals_a_number_is_asked_at_the_call(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], [name])], name, [],
            [onnx.ValueInfoProto(name=name, type=helper.make_tensor_type_proto(TensorProto.FLOAT, None))],
        )
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Size", ["x"], ["s"]),
        helper.make_node("Equal", ["s", "one"], ["e"]),
        helper.make_node("If", ["e"], ["y"], **branches),
    ]
    model = graph_of(nodes, {"one": np.int64(1)}, {"x": ["n"]}, TensorProto.FLOAT)
    module = bn.compile(model, shapes={"n": (1, 8)}, threads=1, cache_dir=tmp_path)
    assert [module(np.ones(n, np.float32)).tolist() for n in (2, 1)] == [[1, 1], [-1]]


@pytest.mark.filterwarnings("ignore:.*compiled at the first call of each size")
def test_attention_of_any_number_of_heads(tmp_path: Path) -> None:
    """Its function in the standard is made for the shapes of its inputs, dimensions among them."""
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"])
    model = graph_of([node], {}, {"x": [1, "h", "n", 4]}, TensorProto.FLOAT)
    model.opset_import[0].version = 23
    module = bn.compile(model, shapes={"h": (1, 3), "n": (1, 9)}, threads=1, cache_dir=tmp_path)
    for heads, n in ((1, 1), (3, 9), (2, 5)):
        x = draw(np.random.default_rng(0), 1, heads, n, 4)
        scores = np.exp(x @ x.swapaxes(2, 3) / 2)
        assert np.allclose(module(x), scores / scores.sum(-1, keepdims=True) @ x, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*compiled at the first call of each size")
def test_einsum_broadcasts_extents_of_1(tmp_path: Path) -> None:
    node = helper.make_node("Einsum", ["x", "z"], ["y"], equation="...ij,...jk->...ik")
    model = graph_of([node], {}, {"x": ["n", 2, 3], "z": ["m", "k", 2]}, TensorProto.FLOAT)
    module = bn.compile(model, shapes={"n": (1, 4), "m": (1, 4), "k": (1, 3)}, threads=1, cache_dir=tmp_path)
    for n, m, k in ((1, 4, 3), (4, 1, 1), (4, 4, 3), (1, 1, 1)):
        x, z = draw(np.random.default_rng(0), n, 2, 3), draw(np.random.default_rng(1), m, k, 2)
        assert np.allclose(module(x, z), x @ np.broadcast_to(z, (m, 3, 2)), atol=1e-5)


@pytest.mark.parametrize("shapes", [{"batch": 3}, {"x": ("batch", 24), "batch": 3}, {"x": (3, 24)}])
def test_a_dimension_may_have_a_number(shapes: dict[str, Any]) -> None:
    assert bn.compile(onnx_model("batch"), shapes=shapes).inputs[0].shape == (3, 24)


def exported(opset: int = 17) -> onnx.ModelProto:
    """What exporters write of attention's reshapes: extents read from the input, divided, joined; positions counted."""

    def node(op: str, inputs: str, output: str, **attrs: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs.split(), [output], **attrs)

    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "b", axis=0), node("Gather", "s one", "n", axis=0),
        node("Gather", "s two", "d", axis=0), node("Div", "d heads", "h"),
        *(node("Unsqueeze", f"{name} zeros", f"{name}1") for name in ("b", "n", "heads", "h", "d")),
        node("Concat", "b1 n1 heads1 h1", "split", axis=0), node("Reshape", "x split", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3]), node("Mul", "b heads", "bh"),
        node("Unsqueeze", "bh zeros", "bh1"),
        node("Concat", "bh1 n1 h1", "flat", axis=0), node("Reshape", "t flat", "f"), node("Softmax", "f", "p", axis=1),
        node("Concat", "b1 heads1 n1 h1", "back", axis=0), node("Reshape", "p back", "q"),
        node("Transpose", "q", "u", perm=[0, 2, 1, 3]), node("Concat", "b1 n1 d1", "whole", axis=0),
        node("Reshape", "u whole", "v"), node("Range", "zero n one", "i"), node("Gather", "table i", "e"),
        node("Equal", "whole minus", "eq"), node("Where", "eq ones whole", "target"), node("Expand", "e target", "w"),
        node("Slice", "w zeros n1 ones_", "cut"), node("ConstantOfShape", "whole", "filled"),
        node("Add", "v cut", "a"), node("Add", "a filled", "y"),
    ]  # fmt: skip
    values = {
        "zero": np.int64(0), "one": np.int64(1), "two": np.int64(2), "heads": np.int64(4), "zeros": np.array([0]),
        "minus": np.array([-1]), "ones": np.array([1, 1, 1]), "ones_": np.array([1]),
        "table": np.random.default_rng(3).standard_normal((40, 16)).astype(np.float32),
    }  # fmt: skip
    io = [helper.make_tensor_value_info(*v) for v in (("x", 1, ["batch", "length", 16]), ("y", 1, None))]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], [numpy_helper.from_array(v, n) for n, v in values.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("shapes", [
    {"batch": 2, "length": (1, 40, 1, 8)}, {"batch": (1, 5, 1, 2), "length": 8}, {"batch": (1, 5), "length": (1, 40)},
])  # fmt: skip
def test_shape_arithmetic_of_exporters(shapes: dict[str, Any]) -> None:
    proto = exported()
    module = bn.compile(proto, shapes=shapes)
    assert isinstance(module, bn.Module)
    reference = ReferenceEvaluator(proto)
    for batch in (2,) if shapes["batch"] == 2 else (1, 3, 5):
        for length in (8,) if shapes["length"] == 8 else (1, 7, 16, 40):
            x = np.random.default_rng(length).standard_normal((batch, length, 16)).astype(np.float32)
            np.testing.assert_allclose(module(x), reference.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_what_people_and_scripts_are_told_of_open_dimensions(tmp_path: Path) -> None:
    module = bn.compile(block(dim("rows", 1, 512, hint=50)), threads=1, cache_dir=tmp_path)
    assert facts(module)["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["rows", 64]}]
    assert module_inputs(module)["x"].shape == (50, 64)
    assert repr(module).startswith("Module(x: float32[rows, 64] -> ")
    with pytest.raises(ParameterError, match="check: found open dimensions 'rows'"):
        check(block(dim("rows", 1, 512)), {})
