"""The ONNX importer: files, shapes, names, what is folded at import, and refusals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx import from_onnx
from burnish.graph.evaluate import evaluate
from burnish.graph.fuse import fuse
from burnish.graph.passes import optimize
from burnish.graph.verify import verify

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
RANDOM = np.random.default_rng(3)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str | None]],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    element: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    infos = [helper.make_tensor_value_info(k, element, v) for k, v in inputs.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "test", infos, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """A node whose inputs and outputs are words; ``_`` is one that is left out."""
    names = [[("" if n == "_" else n) for n in words.split()] for words in (inputs, outputs)]
    return helper.make_node(op, *names, name=f"the_{op}", **attrs)


def relu(shape: Sequence[int | str | None] = (2, 3)) -> onnx.ModelProto:
    return model([node("Relu", "x", "y")], {"x": shape}, ["y"])


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nodes", "groups"),
    [
        ("bvlc_alexnet", 30, 15), ("densenet121", 489, 245), ("inception_v1", 200, 85), ("inception_v2", 234, 95),
        ("resnet50", 177, 58), ("shufflenet", 204, 79), ("squeezenet", 91, 39), ("vgg19", 63, 26),
        ("zfnet512", 30, 15),
    ],
)  # fmt: skip
def test_light_models_import(name: str, nodes: int, groups: int) -> None:
    graph = from_onnx(LIGHT / f"light_{name}.onnx")
    verify(graph)
    graph = optimize(graph)
    verify(graph)
    assert (len(graph.nodes), len(fuse(graph))) == (nodes, groups)


def test_uniform_weights_take_no_memory() -> None:
    graph = optimize(from_onnx(LIGHT / "light_vgg19.onnx"))
    assert sum(v.nbytes for v in graph.constants.values()) > 500e6
    assert sum(v.nbytes for v in graph.constants.values() if any(v.strides)) < 1e6


def test_path_bytes_and_proto_give_the_same_graph(tmp_path: Path) -> None:
    proto = relu()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    texts = {str(from_onnx(m)) for m in (path, str(path), proto.SerializeToString(), proto)}
    assert texts == {"graph(x: float32[2, 3]) -> (y):\n  y = relu(x) : float32[2, 3]\n"}


def test_external_data_is_read_from_beside_the_file(tmp_path: Path) -> None:
    w = RANDOM.standard_normal((2, 3), dtype=np.float32)
    proto = model([node("Add", "x w", "y")], {"x": (2, 3)}, ["y"], {"w": w})
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    np.testing.assert_array_equal(from_onnx(path).constants["w"], w)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="external data cannot be read"):
        from_onnx(path)


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", ["batch_size", "N", "unk__3", None, -1, "rows", "num_samples"])
def test_an_open_batch_is_one(batch: str | int | None) -> None:
    assert from_onnx(relu((batch, 3))).types["y"].shape == (1, 3)


def test_shapes_fix_open_dimensions() -> None:
    graph = from_onnx(relu(("batch", "sequence")), shapes={"x": (4, 7)})
    assert graph.types["y"].shape == (4, 7)


@pytest.mark.parametrize(
    ("shape", "given", "message"),
    [
        (
            ("batch", "length"),
            None,
            r"'x' has open dimensions \['length'\] in shape \[batch, length\]; pass .*"
            r"shapes=\{'x': \(batch, length\)\} .*\(on the command line --shape x=batch,length\)",
        ),
        (("width", 3), None, r"open dimensions \['width'\]"),
        (("N", 3), {"x": (2, 4)}, r"input 'x': found \[2, 4\]; allowed: \['N', 3\]"),
        (("N", 3), {"x": (2,)}, r"input 'x': found \[2\]"),
        (("N", 3), {"z": (2,)}, r"found names \['z'\] of no model input; allowed: x"),
    ],
)
def test_open_or_wrong_shapes_are_refused(shape: Any, given: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_onnx(relu(shape), shapes=given)


def test_shape_computations_are_folded_at_import() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "x target", "y"),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    graph = from_onnx(model(nodes, {"x": ("N", 3, 4)}, ["y"], constants), shapes={"x": (2, 3, 4)})
    assert [str(n) for n in graph.nodes] == ["y = reshape(x, shape=(2, 12))"]


def test_a_shape_that_depends_on_data_is_refused() -> None:
    nodes = [node("Cast", "x", "i", to=TensorProto.INT64), node("Reshape", "x i", "y")]
    with pytest.raises(UnsupportedOperator, match=r"'the_Reshape' .Reshape, opset 17.: input 'shape': found 'i'"):
        from_onnx(model(nodes, {"x": (4,)}, ["y"]))


# --- names and values -------------------------------------------------------------------------------------------------


def test_initializers_listed_as_inputs_are_constants() -> None:
    proto = model([node("Add", "x w", "y")], {"x": (2,), "w": (2,)}, ["y"], {"w": np.ones(2, np.float32)})
    graph = from_onnx(proto)
    assert graph.inputs == ("x",)
    assert list(graph.constants) == ["w"]


def test_outputs_that_are_inputs_or_constants_keep_their_names() -> None:
    nodes = [node("Identity", "x", "a"), node("Identity", "x", "b"), node("Shape", "x", "c")]
    graph = optimize(from_onnx(model(nodes, {"x": (2,)}, ["a", "b", "c"])))
    verify(graph)
    assert graph.outputs == ("a", "b", "c")
    values = evaluate(graph, {"x": np.float32([1, 2])})
    assert values["b"].tolist() == [1, 2]
    assert values["c"].tolist() == [2]


def test_upsample_and_swish() -> None:
    proto = model([node("Upsample", "x", "y", scales=[1.0, 1.0, 2.0, 3.0])], {"x": (1, 2, 3, 4)}, ["y"], opset=7)
    x = RANDOM.standard_normal((1, 2, 3, 4), dtype=np.float32)
    np.testing.assert_array_equal(evaluate(from_onnx(proto), {"x": x})["y"], x.repeat(2, 2).repeat(3, 3))
    for alpha in (1.0, 0.5):
        proto = model([node("Swish", "x", "y", alpha=alpha)], {"x": (1, 2, 3, 4)}, ["y"], opset=24)
        np.testing.assert_allclose(evaluate(from_onnx(proto), {"x": x})["y"], x / (1 + np.exp(-alpha * x)), rtol=1e-5)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def run_recurrent(op: str, x: np.ndarray, weights: dict[str, np.ndarray], **attrs: Any) -> dict[str, np.ndarray]:
    outputs = "y h c" if op == "LSTM" else "y h"
    proto = model(
        [node(op, "x w r b", outputs, hidden_size=3, **attrs)], {"x": x.shape}, outputs.split(), weights, opset=14
    )
    graph = from_onnx(proto)
    verify(graph)
    return evaluate(graph, {"x": x})


@pytest.mark.parametrize("op", GATES)
def test_directions_of_recurrent_layers(op: str) -> None:
    gates = GATES[op]
    x = RANDOM.standard_normal((5, 2, 4), dtype=np.float32)
    shapes = {"w": (2, 3 * gates, 4), "r": (2, 3 * gates, 3), "b": (2, 6 * gates)}
    weights = {k: RANDOM.standard_normal(s, dtype=np.float32) for k, s in shapes.items()}
    first, second = ({k: v[d : d + 1] for k, v in weights.items()} for d in (0, 1))
    forward, mirrored = run_recurrent(op, x, first), run_recurrent(op, x[::-1].copy(), second)
    reverse = run_recurrent(op, x, second, direction="reverse")
    np.testing.assert_allclose(reverse["y"], mirrored["y"][::-1], rtol=1e-5)
    np.testing.assert_allclose(reverse["h"], mirrored["h"], rtol=1e-5)
    both = run_recurrent(op, x, weights, direction="bidirectional")
    np.testing.assert_allclose(both["y"], np.concatenate([forward["y"], reverse["y"]], axis=1), rtol=1e-5)
    np.testing.assert_allclose(both["h"], np.concatenate([forward["h"], reverse["h"]], axis=0), rtol=1e-5)
    batch_first = run_recurrent(op, x.transpose(1, 0, 2).copy(), weights, direction="bidirectional", layout=1)
    np.testing.assert_allclose(batch_first["y"], both["y"].transpose(2, 0, 1, 3), rtol=1e-5)
    np.testing.assert_allclose(batch_first["h"], both["h"].transpose(1, 0, 2), rtol=1e-5)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"no model at all", b"\x89PNG\r\n", bytes(100)])
def test_what_is_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match=f"{len(data)} bytes|truncated"):
        from_onnx(data)


def test_every_truncation_is_refused_or_still_a_model() -> None:
    w = RANDOM.standard_normal((3, 4), dtype=np.float32)
    data = model([node("MatMul", "x w", "y")], {"x": (2, 3)}, ["y"], {"w": w}).SerializeToString()
    refused = 0
    for size in range(len(data)):
        try:
            from_onnx(data[:size])
        except ModelError:
            refused += 1
    assert refused >= len(data) - 2  # without the bytes after the graph, a model may be whole but for its opset


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.onnx': cannot be read: No such file"):
        from_onnx(tmp_path / "none.onnx")


def test_all_unsupported_operators_are_named_at_once() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Gradient", "a", "b", pattern="."),
        node("ImageDecoder", "b", "c"),
        helper.make_node("FusedThing", ["c"], ["y"], name="mine", domain="com.example"),
    ]
    with pytest.raises(UnsupportedOperator) as error:
        from_onnx(model(nodes, {"x": (2, 2)}, ["y"]))
    operators = "Gradient (the_Gradient)", "ImageDecoder (the_ImageDecoder)"
    for word in (*operators, "com.example.FusedThing (mine)"):
        assert word in str(error.value)


def corrupt_weight() -> onnx.ModelProto:
    proto = model([node("Add", "x w", "y")], {"x": (2,)}, ["y"], {"w": np.ones(2, np.float32)})
    proto.graph.initializer[0].raw_data = b"\0" * 5
    return proto


@pytest.mark.parametrize(
    ("proto", "error", "message"),
    [
        (model([node("Relu", "q", "y")], {"x": (2,)}, ["y"]), ModelError, r"'the_Relu' .*: inputs .'q'. are def"),
        (model([node("Relu", "x", "y")], {"x": (2,)}, ["z"]), ModelError, "model output 'z' is computed by no node"),
        (model([node("Relu", "x", "x")], {"x": (2,)}, ["x"]), ModelError, r"outputs \['x'\] are defined before"),
        (model([node("MatMul", "x x", "y")], {"x": (2, 3)}, ["y"]), ModelError, r"'the_MatMul' \(MatMul.*inner extent"),
        (model([node("And", "x x", "y")], {"x": (2,)}, ["y"]), ModelError, "the_And.*found dtype float32; allowed"),
        (model([node("Concat", "x x", "y")], {"x": (2,)}, ["y"]), ModelError, "the_Concat.*'axis': found nothing"),
        (model([node("Conv", "x", "y")], {"x": (1, 2, 3, 3)}, ["y"]), ModelError, "the_Conv.*input 1 is missing"),
        (model([node("Softmax", "x", "y", axis=3)], {"x": (2,)}, ["y"]), ModelError, "the_Softmax.*'axis'.*found 3"),
        (model([node("Resize", "x _ _ s", "y", mode="sinc")], {"x": (2,)}, ["y"], {"s": np.array([4])}),
         ModelError, "the_Resize.*'mode': found sinc; allowed: nearest, linear, cubic"),
        (model([node("RMSNormalization", "x w", "y")], {"x": (2,)}, ["y"], {"w": np.ones(3, np.float32)}, opset=23),
         ModelError, "the_RMSNormalization"),
        (model([node("Relu", "x", "y")], {"x": (2,)}, ["y"], opset=99), UnsupportedOperator, "found 99; allowed: 1 to"),
        (model([node("Relu", "x", "y")], {"x": (2,)}, ["y"], element=TensorProto.STRING), ModelError,
         "the_Relu.*input 0 .'x'.: found dtype string; allowed: bfloat16"),
        (model([node("LSTM", "x w r _ n", "y", hidden_size=2)], {"x": (3, 1, 2)}, ["y"], {
            "w": np.zeros((1, 8, 2), np.float32), "r": np.zeros((1, 8, 2), np.float32), "n": np.zeros(2, np.int32)}),
         ModelError, r"sequence_lens.: found shape .2.; allowed: shape .1."),
        (model([node("Gather", "x i", "y", axis=1)], {"x": (4, 3)}, ["y"], {"i": np.array([0, -4])}), ModelError,
         r"the_Gather.*'indices': found -4; allowed: -3 to 2, positions along dimension 1 of 'x' \[4, 3\]"),
        (model([node("Gather", "x i", "y")], {"x": (4, 3)}, ["y"], {"i": np.array(4)}), ModelError,
         "the_Gather.*'indices': found 4; allowed: -4 to 3"),
        (model([node("Gather", "x i", "y")], {"x": (0, 3)}, ["y"], {"i": np.array(0)}), ModelError,
         "the_Gather.*'indices': found 0; allowed: none"),
        (model([node("GatherElements", "x i", "y")], {"x": (4, 3)}, ["y"], {"i": np.array([[9]])}), ModelError,
         "the_GatherElements.*'indices': found 9; allowed: -4 to 3"),
        (model([node("GatherND", "x i", "y")], {"x": (4, 3)}, ["y"], {"i": np.array([[3, 2], [0, 3]])}), ModelError,
         "the_GatherND.*'indices': found 3; allowed: -3 to 2, positions along dimension 1"),
        (model([node("Shape", "x", "s"), node("Gather", "s i", "y")], {"x": (4, 3)}, ["y"], {"i": np.array([2])}),
         ModelError, "the_Gather.*'indices': found 2; allowed: -2 to 1"),
        (corrupt_weight(), ModelError, r"initializer 'w': the data of a tensor with dimensions \[2\] cannot be read"),
    ],
    ids=lambda value: value.graph.node[0].op_type if isinstance(value, onnx.ModelProto) else "",
)  # fmt: skip
def test_invalid_models_are_refused_by_name(proto: onnx.ModelProto, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_onnx(proto)
