"""What onnxruntime refuses is refused by name: names, schemas, attributes, initializers, declared types, sizes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx import from_onnx
from burnish.frontend.onnx.context import MOST_BYTES
from burnish.frontend.onnx.model import import_onnx
from burnish.graph.evaluate import evaluate
from tests.frontend.test_onnx import model, node, relu

X = {"x": (2, 3)}


def changed(proto: onnx.ModelProto, change: Any) -> onnx.ModelProto:
    change(proto)
    return proto


def with_attribute(proto: onnx.ModelProto, name: str, value: Any) -> onnx.ModelProto:
    proto.graph.node[0].attribute.append(helper.make_attribute(name, value))
    return proto


def declare(proto: onnx.ModelProto, element: int, shape: Sequence[int], value: str = "") -> onnx.ModelProto:
    """The model with its output, or an inner value, declared."""
    info = helper.make_tensor_value_info(value or "y", element, shape)
    if value:
        proto.graph.value_info.append(info)
    else:
        proto.graph.output[0].CopyFrom(info)
    return proto


def weighted(dims: Sequence[int], numbers: int = 6, listed: tuple[int, Sequence[int]] | None = None) -> onnx.ModelProto:
    """x + w, where w has ``numbers`` numbers and says ``dims``; ``listed`` as an input too."""
    proto = model([node("Add", "x w", "y")], {"x": (6,)}, ["y"], {"w": np.ones(numbers, np.float32)})
    del proto.graph.initializer[0].dims[:]
    proto.graph.initializer[0].dims.extend(dims)
    if listed is not None:
        proto.graph.input.append(helper.make_tensor_value_info("w", *listed))
    return proto


def recursive() -> onnx.ModelProto:
    proto = model([helper.make_node("F", ["x"], ["y"], domain="my")], X, ["y"])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    call = helper.make_node("F", ["a"], ["b"], domain="my")
    proto.functions.append(helper.make_function("my", "F", ["a"], ["b"], [call], imports))
    proto.opset_import.append(imports[1])
    return proto


ELU = model([node("Elu", "x", "y", alpha=1.0)], X, ["y"])
INVALID = [
    (with_attribute(model([node("Elu", "x", "y", alpha=1.0)], X, ["y"]), "alpha", 2.0), "the_Elu.*'alpha': found 2 t"),
    (model([node("Relu", "x", "y", beta=1.0)], X, ["y"]), "the_Relu.*'beta': found an unknown.*no attributes"),
    (model([node("SpaceToDepth", "x", "y", blocksize=1, mode="CRD")], {"x": (1, 1, 2, 2)}, ["y"]), "'mode'.*blocksize"),
    (model([node("Elu", "x", "y", alpha=1)], X, ["y"]), "the_Elu.*'alpha': found type INT; allowed: FLOAT"),
    (model([node("Cast", "x", "y")], X, ["y"]), "the_Cast.*'to': found nothing; it is required"),
    (model([node("Relu", "x", ""), node("Elu", "x", "y")], X, ["y"]), "the_Relu.*output 0 is missing"),
    (model([node("Relu", "x", "_"), node("Elu", "x", "y")], X, ["y"]), "the_Relu.*output 0 is missing"),
    (model([node("Relu", "x", "y z")], X, ["y"]), "the_Relu.*outputs: found 2; allowed: 1"),
    (model([node("Relu", "x x", "y")], X, ["y"]), "the_Relu.*inputs: found 2; allowed: 1"),
    (model([node("Relu", "", "y")], X, ["y"]), "the_Relu.*input 0 is missing"),
    (model([node("Relu", "_", "y")], X, ["y"]), "the_Relu.*input 0 is missing"),
    (model([node("Add", "x", "y")], X, ["y"]), "the_Add.*input 1 is missing; 2 are required"),
    (model([node("Mish", "x", "y")], X, ["y"]), "the_Mish.*opset 17.*does not define"),
    (model([node("Upsample", "x s", "y")], X, ["y"], {"s": np.ones(2, np.float32)}), "the_Upsample.*does not define"),
    (model([node("Relu", "z", "y"), node("Elu", "x", "z")], X, ["y"]), "the_Relu.*'z'.*before it; the order"),
    (model([node("Relu", "z", "y"), node("Elu", "y", "z")], X, ["y"]), "the_Relu.*without cycles"),
    (model([node("Relu", "x", "y"), node("Elu", "x", "y")], X, ["y"]), r"the_Elu.*outputs \['y'\] are defined before"),
    (model([node("Split", "x", "y y", axis=0)], X, ["y"]), r"the_Split.*outputs \['y'\] are defined before"),
    (changed(relu(), lambda m: m.graph.input.append(m.graph.input[0])), r"inputs \['x'\] are defined twice"),
    (changed(weighted([6]), lambda m: m.graph.initializer.append(m.graph.initializer[0])), r"initializers \['w'\]"),
    (changed(relu(), lambda m: m.graph.input[0].ClearField("type")), "input 'x': found no type"),
    (changed(relu(), lambda m: m.ClearField("opset_import")), "opset imports: found none; allowed: one at least"),
    (model([node("Add", "x w", "y")], X, ["y"], {"w": np.ones(3)}), "'w'.: found dtype float64; allowed: float32"),
    (model([node("And", "x x", "y")], X, ["y"]), "the_And.*input 0 .'x'.: found dtype float32; allowed: bool"),
    (model([node("Mod", "x x", "y")], X, ["y"]), "the_Mod.*'fmod': found 0.*allowed: 1"),
    (declare(relu(), TensorProto.INT64, (2, 3)), "output 'y': declared with dtype int64; found: float32"),
    (declare(model([node("Relu", "x", "z"), node("Elu", "z", "y")], X, ["y"]), TensorProto.DOUBLE, (2, 3), "z"),
     "value 'z': declared with dtype float64; found: float32"),
    (weighted([-1]), r"initializer 'w': dimensions: found \[-1\]; allowed: none below 0"),
    (weighted([5]), r"initializer 'w': the data of a tensor with dimensions \[5\] cannot be read"),
    (weighted([7]), r"initializer 'w': the data of a tensor with dimensions \[7\] cannot be read"),
    (weighted([1 << 62, 8]), "initializer 'w': the data of a tensor .* cannot be read"),
    (weighted([6], listed=(TensorProto.INT64, (6,))), "initializer 'w': declared with dtype int64; found: float32"),
    (weighted([6], listed=(TensorProto.FLOAT, (3, 2))), r"initializer 'w': found shape \[6\]; allowed: that of the"),
    (recursive(), "functions my.F call one another without end"),
    (model([node("Flatten", "x", "y", axis=3)], X, ["y"]), "the_Flatten.*'axis': found 3; allowed: -2 to 2"),
    (model([node("Unsqueeze", "x a", "y")], X, ["y"], {"a": np.array([0, -4])}), "the_Unsqueeze.*axes: found"),
    (model([node("Split", "x", "y z", axis=1)], X, ["y"]), "the_Split.*2 parts of extent 3; allowed: equal parts"),
    (model([node("Split", "x s", "y z", axis=1)], X, ["y"], {"s": np.array([4, -1])}), "the_Split.*sizes that add up"),
    (model([node("Slice", "x a b a c", "y")], X, ["y"], {k: np.array([v]) for k, v in (("a", 0), ("b", 2), ("c", 0))}),
     "the_Slice.*steps other than 0"),
    (model([node("Pad", "x p", "y")], X, ["y"], {"p": np.array([1, 1])}),
     "the_Pad.*pads: found 2 integers; allowed: 4"),
    (model([node("Range", "a b c", "y")], X, ["y"], {"a": np.array(0), "b": np.array(9), "c": np.array(0)}),
     "the_Range.*delta other than 0"),
    (model([node("Resize", "x _ s", "y")], X, ["y"], {"s": np.array([1, np.inf], np.float32)}), "the_Resize.*finite"),
    (model([node("LSTM", "x w w", "y", hidden_size=2)], {"x": (3, 1, 2)}, ["y"], {"w": np.ones((1, 4, 2), np.float32)}),
     r"the_LSTM.*input 1: found shape \[1, 4, 2\]; allowed: shape \[1, 8, 2\]"),
    (model([node("RNN", "x w w", "y", hidden_size=2, activations=["Tanh", "Relu"])], {"x": (3, 1, 2)}, ["y"],
           {"w": np.ones((1, 2, 2), np.float32)}), "the_RNN.*'activations'.*allowed: 1 names, 1 for each direction"),
]  # fmt: skip


@pytest.mark.parametrize(("proto", "message"), INVALID, ids=[message[:30] for _, message in INVALID])
def test_invalid_models_are_no_models(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        from_onnx(proto)
    assert not isinstance(error.value, UnsupportedOperator)


UNSUPPORTED = [
    (model([node("LSTM", "x w w", "y", hidden_size=2, activations=["Sigmoid", "Cube", "Tanh"])], {"x": (3, 1, 2)},
           ["y"], {"w": np.ones((1, 8, 2), np.float32)}), "the_LSTM.*'activations': found cube; allowed: tanh"),
    (model([node("Identity", "x", "y")], X, ["y"], element=TensorProto.COMPLEX64), "COMPLEX64"),
    (model([node("Sin", "x", "y"), helper.make_node("F", ["y"], ["z"], "f", domain="my")], X, ["z"]), r"my.F \(f\)"),
    (changed(model([helper.make_node("F", ["x"], ["y"], domain="my")], X, ["y"]),
             lambda m: m.opset_import[0].CopyFrom(helper.make_opsetid("my", 1))), "not supported: my.F"),
]  # fmt: skip


@pytest.mark.parametrize(("proto", "message"), UNSUPPORTED, ids=[message[:30] for _, message in UNSUPPORTED])
def test_valid_models_beyond_burnish_are_unsupported(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(UnsupportedOperator, match=message):
        from_onnx(proto)


def test_a_model_without_the_default_domain_has_its_newest_opset() -> None:
    """As onnxruntime takes it."""
    proto = changed(relu(), lambda m: m.opset_import[0].CopyFrom(helper.make_opsetid("ai.onnx.ml", 3)))
    assert [n.op for n in from_onnx(proto).nodes] == ["relu"]


def test_declared_shapes_that_are_stale_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert from_onnx(declare(relu(), TensorProto.FLOAT, (7, 3))).types["y"].shape == (2, 3)
    assert "output 'y': its shape is declared otherwise; computed: [2, 3]" in caplog.text


# --- sizes ------------------------------------------------------------------------------------------------------------

LARGE = [
    ([node("Expand", "x s", "y")], {"s": np.array([1 << 30, 1 << 20, 2, 3])}),
    ([node("Tile", "x s", "y")], {"s": np.array([1 << 62, 1 << 62])}),
    ([node("Pad", "x s", "y")], {"s": np.array([1 << 62, 0, 0, 0])}),
    ([node("ConstantOfShape", "s", "c"), node("Add", "x c", "y")], {"s": np.array([1 << 50, 3])}),
    ([node("Range", "a b e", "c"), node("Relu", "x", "y")],
     {"a": np.array(0), "b": np.array(1 << 60), "e": np.array(1)}),
    ([node("Resize", "x _ s", "y")], {"s": np.array([1e18, 1.0], np.float32)}),
    ([node("OneHot", "i n v", "y")], {"i": np.array([1]), "n": np.array(1 << 50), "v": np.array([0, 1])}),
    ([*(node("Concat", f"t{i} t{i}", f"t{i + 1}", axis=0) for i in range(50)), node("Relu", "t50", "y")],
     {"t0": np.ones(4, np.float32)}),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "constants"), LARGE, ids=[nodes[0].op_type for nodes, _ in LARGE])
def test_tensors_that_no_memory_holds_are_refused(nodes: list, constants: dict[str, np.ndarray]) -> None:
    with pytest.raises(ModelError, match=rf"the_{nodes[0].op_type}.*found a tensor .* bytes; allowed: {MOST_BYTES}"):
        from_onnx(model(nodes, X, ["y"], constants))


def test_an_input_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(ModelError, match=r"input 'x': found a tensor float32.*bytes; allowed"):
        from_onnx(relu((1 << 40, 3)))


# --- functions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [17, 18, 13])
def test_functions_of_the_model_are_inlined(opset: int) -> None:
    """Nested, with attributes of the call, called twice, of another opset than the model's."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    leaky = helper.make_node("LeakyRelu", ["a"], ["t"], name="inner")
    reference = leaky.attribute.add()
    reference.name, reference.type, reference.ref_attr_name = "alpha", onnx.AttributeProto.FLOAT, "slope"
    outer = helper.make_function(
        "my", "Act", ["a"], ["r"], [leaky, helper.make_node("Minus", ["t"], ["r"], domain="my")], imports, ["slope"]
    )
    minus = helper.make_function("my", "Minus", ["a"], ["r"], [helper.make_node("Neg", ["a"], ["r"])], imports)
    nodes = [
        helper.make_node("Act", ["x"], ["z"], domain="my", slope=0.5),
        helper.make_node("Act", ["z"], ["y"], domain="my", slope=0.25),
    ]
    proto = model(nodes, {"x": (2,)}, ["y"])
    proto.opset_import.append(imports[1])
    proto.functions.extend([outer, minus])
    graph = from_onnx(proto)
    assert evaluate(graph, {"x": np.float32([4, -4])})["y"].tolist() == [1.0, -2.0]


def referring(
    attribute: str, source: str, op: str, inputs: str = "a", outputs: str = "b", **how: Any
) -> onnx.NodeProto:
    """A node whose attribute of floats is the function's attribute ``source``."""
    made = helper.make_node(op, [inputs], [outputs], **how)
    made.attribute.append(onnx.AttributeProto(name=attribute, type=onnx.AttributeProto.FLOAT, ref_attr_name=source))
    return made


def function(
    name: str, nodes: Sequence[onnx.NodeProto], attributes: Sequence[str] = (), opset: int = 17, overload: str = "",
    **defaults: Any,
) -> onnx.FunctionProto:  # fmt: skip
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    protos = [helper.make_attribute(key, value) for key, value in defaults.items()]
    outputs = [nodes[-1].output[0]] if nodes else ["a"]
    return helper.make_function("my", name, ["a"], outputs, nodes, imports, list(attributes), protos, overload=overload)


def called(functions: Sequence[onnx.FunctionProto], name: str = "F", overload: str = "", **attrs: Any) -> np.ndarray:
    """What a call of a function gives of [1, -1]."""
    call = helper.make_node(name, ["x"], ["y"], domain="my", **attrs)
    call.overload = overload
    proto = model([call], {"x": (2,)}, ["y"])
    proto.opset_import.append(helper.make_opsetid("my", 1))
    proto.functions.extend(functions)
    return evaluate(from_onnx(proto), {"x": np.float32([1, -1])})["y"]


LEAKY = referring("alpha", "slope", "LeakyRelu")


@pytest.mark.parametrize(("given", "slope"), [({}, 0.25), ({"slope": 0.75}, 0.75), ({"slope": 0.0}, 0.0)])
def test_what_a_call_leaves_out_has_the_default_of_the_function(given: dict[str, float], slope: float) -> None:
    assert called([function("F", [LEAKY], slope=0.25)], **given).tolist() == [1, -slope]


@pytest.mark.parametrize(
    ("attributes", "defaults", "given", "slope"),
    [
        ((), {"s": 0.5}, {}, 0.5),  # the outer function's default goes before the inner one's
        ((), {"s": 0.5}, {"s": 0.75}, 0.75),
        (("s",), {}, {"s": 0.75}, 0.75),
        (("s",), {}, {}, 0.25),  # nobody gives it: the inner one's
    ],
)
def test_defaults_pass_through_calls_of_functions_by_functions(
    attributes: Sequence[str], defaults: dict[str, float], given: dict[str, float], slope: float
) -> None:
    outer = function("F", [referring("slope", "s", "G", domain="my")], attributes, **defaults)
    for functions in ([outer, function("G", [LEAKY], slope=0.25)], [function("G", [LEAKY], slope=0.25), outer]):
        assert called(functions, **given).tolist() == [1, -slope]


def test_defaults_of_any_type_and_in_branches() -> None:
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, ref_attr_name="v"))
    two = numpy_helper.from_array(np.float32(2))
    assert called([function("F", [constant, helper.make_node("Add", ["a", "c"], ["b"])], v=two)]).tolist() == [3, 1]
    then = helper.make_graph(
        [referring("alpha", "slope", "LeakyRelu", "a", "r")], "then", [], [onnx.ValueInfoProto(name="r")]
    )
    true = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    branch = helper.make_node("If", ["c"], ["b"], then_branch=then, else_branch=then)
    assert called([function("F", [true, branch], slope=0.25)]).tolist() == [1, -0.25]


def test_overloads_are_functions_of_their_own() -> None:
    inner = function("F", [LEAKY], overload="inner", slope=0.25)
    call = helper.make_node("F", ["a"], ["b"], domain="my")
    call.overload = "inner"
    outer = function("F", [call], overload="outer")
    assert called([inner, outer], overload="outer").tolist() == [1, -0.25]
    assert called([inner, outer, function("F", [helper.make_node("Neg", ["a"], ["b"])])]).tolist() == [-1, 1]


def test_a_function_whose_output_is_its_input_and_one_of_an_older_opset() -> None:
    assert called([function("F", [])]).tolist() == [1, -1]
    older = helper.make_node("ReduceSum", ["a"], ["b"], axes=[0], keepdims=0)
    assert called([function("F", [older], opset=11)]).tolist() == 0


def test_a_default_of_the_model_may_be_overridden() -> None:
    proto = weighted([6], listed=(TensorProto.FLOAT, (6,)))
    x, w = np.arange(6, dtype=np.float32), np.full(6, 5, np.float32)
    assert evaluate(from_onnx(proto), {"x": x})["y"].tolist() == (x + 1).tolist()
    graph = import_onnx(proto, fix={"w": None}).graph
    assert set(graph.inputs) == {"x", "w"}
    assert evaluate(graph, {"x": x, "w": w})["y"].tolist() == (x + 5).tolist()
    assert evaluate(import_onnx(proto, fix={"w": w}).graph, {"x": x})["y"].tolist() == (x + 5).tolist()
    with pytest.raises(ModelError, match="fix: input 'x': found None; allowed: a value"):
        import_onnx(proto, fix={"x": None})


def test_string_lists_and_parameters_of_activations_are_read() -> None:
    """Written-out defaults of PyTorch, Keras and MATLAB; another activation for each direction of an RNN."""
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 2, 2)
    w = numpy_helper.from_array(np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 8, 2), "w")
    plain, written = (
        evaluate(from_onnx(proto), {"x": x})["y"]
        for proto in (
            changed(
                model([node("LSTM", "x w w", "y", hidden_size=2, direction="bidirectional", **attrs)],
                      {"x": x.shape}, ["y"]), lambda m: m.graph.initializer.append(w))
            for attrs in ({}, {"activations": ["Sigmoid", "Tanh", "TANH"] * 2, "activation_alpha": [0.01] * 6})
        )
    )  # fmt: skip
    np.testing.assert_array_equal(plain, written)
    weights = {"w": np.ones((2, 1, 2), np.float32), "r": np.zeros((2, 1, 1), np.float32)}
    attrs = {"hidden_size": 1, "direction": "bidirectional", "activations": ["Relu", "Sigmoid"]}
    y = evaluate(from_onnx(model([node("RNN", "x w r", "y", **attrs)], {"x": x.shape}, ["y"], weights)), {"x": x})["y"]
    total = x.sum(2)
    np.testing.assert_allclose(y[:, 0, :, 0], np.maximum(total, 0), rtol=1e-6)
    np.testing.assert_allclose(y[:, 1, :, 0], 1 / (1 + np.exp(-total)), rtol=1e-6)
