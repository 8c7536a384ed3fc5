"""Hostile ONNX models: valid ones of every family with one thing changed, and kinds that are made by hand.

Each must be refused by name, in little time and memory; a model that a rule of the standard forbids gets no answer.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import burnish as bn
from burnish.errors import BurnishError

MANY = 1 << 40
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def vector(*values: float, dtype: str = "int64") -> np.ndarray:
    return np.array(values, dtype)


def ones(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


def info(name: str, shape: Sequence[int | str] | None = (), element: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def single(
    op: str,
    *inputs: Any,
    outputs: int = 1,
    opset: int = 17,
    domain: str = "",
    version: int = 1,
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one node: arrays are initializers, tuples shapes of float inputs, pairs of these with an element type
    inputs of that, None is left out.
    """
    names, given, constants = list[str](), [], []
    for at, value in enumerate(inputs):
        names.append("" if value is None else f"x{at}")
        if isinstance(value, (np.ndarray, np.generic)):
            constants.append(numpy_helper.from_array(np.asarray(value), f"x{at}"))
        elif isinstance(value, list):
            given.append(info(f"x{at}", value[0], value[1]))
        elif value is not None:
            given.append(info(f"x{at}", value))
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="suspect", domain=domain)
    for key, value in attrs.items():
        empty = (
            onnx.AttributeProto.FLOATS
            if key.endswith(("floats", "coefficients", "weights", "rho"))
            else onnx.AttributeProto.INTS
        )
        node.attribute.append(helper.make_attribute(key, value, attr_type=empty if value == [] else None))
    return model(
        [node], given, constants, [f"y{i}" for i in range(outputs)], opset, {domain: version} if domain else {}
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    domains: dict[str, int] | None = None,
) -> onnx.ModelProto:
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results, constants)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def subgraph(nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", inputs, outputs)


def tensor(name: str, dims: Sequence[int], raw: bytes, element: int = FLOAT) -> onnx.TensorProto:
    return onnx.TensorProto(name=name, dims=dims, data_type=element, raw_data=raw)


def ml(op: str, *inputs: Any, version: int = 3, **attrs: Any) -> onnx.ModelProto:
    return single(op, *inputs, domain="ai.onnx.ml", version=version, **attrs)


# --- changes of valid models ------------------------------------------------------------------------------------------

VALID: dict[str, Callable[[], onnx.ModelProto]] = {
    "add": lambda: single("Add", (2, 3), ones(3)),
    "conv": lambda: single("Conv", (1, 3, 8, 8), ones(4, 3, 3, 3), ones(4), strides=[1, 1]),
    "pool": lambda: single("MaxPool", (1, 3, 8, 8), kernel_shape=[2, 2]),
    "gemm": lambda: single("Gemm", (2, 3), ones(3, 4), ones(4), alpha=0.5),
    "softmax": lambda: single("Softmax", (2, 3), axis=-1),
    "reduce": lambda: single("ReduceSum", (2, 3), vector(1), keepdims=0),
    "gather": lambda: single("Gather", (4, 3), vector(0, 3), axis=0),
    "scatter": lambda: single("ScatterND", (4, 3), vector(1).reshape(1, 1), ones(1, 3), reduction="add", opset=18),
    "slice": lambda: single("Slice", (4, 3), vector(0), vector(2), vector(0), vector(1)),
    "reshape": lambda: single("Reshape", (2, 3), vector(3, 2), allowzero=0),
    "transpose": lambda: single("Transpose", (2, 3), perm=[1, 0]),
    "concat": lambda: single("Concat", (2, 3), (2, 4), axis=1),
    "split": lambda: single("Split", (2, 4), vector(1, 3), outputs=2, axis=1),
    "pad": lambda: single("Pad", (2, 3), vector(0, 1, 0, 1), mode="reflect"),
    "resize": lambda: single("Resize", (1, 1, 2, 2), None, ones(4), mode="linear"),
    "norm": lambda: single("LayerNormalization", (2, 3), ones(3), ones(3), epsilon=1e-5),
    "lstm": lambda: single("LSTM", (3, 1, 2), ones(1, 8, 2), ones(1, 8, 2), hidden_size=2),
    "topk": lambda: single("TopK", (2, 4), vector(2), outputs=2, axis=1),
    "quantize": lambda: single("QuantizeLinear", (2, 3), ones(3), np.zeros(3, np.uint8), axis=1),
    "trees": lambda: trees(),
    "linear": lambda: ml("LinearRegressor", (2, 3), coefficients=[1.0, 2.0, 3.0], targets=1),
    "if": lambda: branching(),
    "loop": lambda: looping(),
}


def _first(proto: onnx.ModelProto) -> onnx.NodeProto:
    return proto.graph.node[0]


def _unknown_attribute(proto: onnx.ModelProto) -> None:
    _first(proto).attribute.append(helper.make_attribute("unheard", 1))


def _attribute_twice(proto: onnx.ModelProto) -> None:
    node = _first(proto)
    node.attribute.append(node.attribute[0] if node.attribute else helper.make_attribute("unheard", 1))


def _attribute_of_another_type(proto: onnx.ModelProto) -> None:
    node, other = _first(proto), helper.make_attribute("unheard", [b"a", b"b"])
    if node.attribute:
        other.name = node.attribute[0].name
        del node.attribute[0]
    node.attribute.append(other)


def _attribute_without_value(proto: onnx.ModelProto) -> None:
    node = _first(proto)
    node.attribute.append(onnx.AttributeProto(name="unheard", type=onnx.AttributeProto.TENSOR))


def _first_input_left_out(proto: onnx.ModelProto) -> None:
    node = _first(proto)
    if node.op_type == "Loop":
        node.input[2] = "nothing"
    else:
        node.input[0] = ""


def _input_of_nobody(proto: onnx.ModelProto) -> None:
    _first(proto).input[0] = "nobody"


def _cycle(proto: onnx.ModelProto) -> None:
    _first(proto).input[0] = _first(proto).output[0]


def _too_many_inputs(proto: onnx.ModelProto) -> None:
    node = _first(proto)
    node.input.extend(["nothing"] * 300)


def _too_many_outputs(proto: onnx.ModelProto) -> None:
    node = _first(proto)
    node.output.extend([f"more{i}" for i in range(300)] if node.op_type != "Split" else [node.output[0]])


def _defined_twice(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(_first(proto))


def _output_of_nobody(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "nobody"


def _no_outputs(proto: onnx.ModelProto) -> None:
    del proto.graph.output[:]


def _no_type(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].ClearField("type")


def _unknown_element(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = 99


def _complex_element(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.COMPLEX128


def _texts(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING


def _huge_input(proto: onnx.ModelProto) -> None:
    for d in proto.graph.input[0].type.tensor_type.shape.dim:
        d.dim_value = MANY


def _old_opset(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = -5


def _new_opset(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 1 << 40


def _unheard_operator(proto: onnx.ModelProto) -> None:
    _first(proto).op_type = "Unheard"


def _unheard_domain(proto: onnx.ModelProto) -> None:
    _first(proto).domain = "unheard"


def _input_twice(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(proto.graph.input[0])


def _sparse(proto: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(ones(1), "s")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, numpy_helper.from_array(vector(0)), [MANY]))


CHANGES: Sequence[Callable[[onnx.ModelProto], None]] = (
    _unknown_attribute,
    _attribute_twice,
    _attribute_of_another_type,
    _attribute_without_value,
    _first_input_left_out,
    _input_of_nobody,
    _cycle,
    _too_many_inputs,
    _too_many_outputs,
    _defined_twice,
    _output_of_nobody,
    _no_outputs,
    _no_type,
    _unknown_element,
    _complex_element,
    _texts,
    _huge_input,
    _old_opset,
    _new_opset,
    _unheard_operator,
    _unheard_domain,
    _input_twice,
    _sparse,
)


def _short_data(t: onnx.TensorProto) -> None:
    t.raw_data = t.raw_data[:-1]


def _long_data(t: onnx.TensorProto) -> None:
    t.raw_data = t.raw_data + b"\0" * 7


def _negative_dims(t: onnx.TensorProto) -> None:
    t.dims.extend([-1, -1])


def _overflowing_dims(t: onnx.TensorProto) -> None:
    t.dims.extend([1 << 62, 8])


def _no_element(t: onnx.TensorProto) -> None:
    t.data_type = 0


def _texts_as_raw(t: onnx.TensorProto) -> None:
    t.data_type = TensorProto.STRING


def _external(location: str) -> Callable[[onnx.TensorProto], None]:
    def change(t: onnx.TensorProto) -> None:
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "-1"), ("length", str(1 << 60))):
            t.external_data.add(key=key, value=value)

    change.__name__ = f"external_{location.strip('/.').replace('/', '_') or 'nowhere'}"
    return change


def _both_kinds_of_data(t: onnx.TensorProto) -> None:
    t.float_data.extend([1.0] * 1000)
    t.ClearField("raw_data")


TENSOR_CHANGES: Sequence[Callable[[onnx.TensorProto], None]] = (
    _short_data,
    _long_data,
    _negative_dims,
    _overflowing_dims,
    _no_element,
    _texts_as_raw,
    _external("/etc/passwd"),
    _external("../weights.bin"),
    _external(""),
    _external("/dev/zero"),
    _both_kinds_of_data,
)


OF_NUMBERS = ("add", "conv", "pool", "gemm", "softmax", "reduce", "lstm", "norm")  # operators that take no texts


def changed() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Valid models of every family with one thing changed, of the nodes or of a tensor."""
    for family, build in VALID.items():
        for change in CHANGES:
            if change is _texts and family not in OF_NUMBERS:
                continue
            proto = build()
            change(proto)
            yield f"{family}:{change.__name__.strip('_')}", proto
        for spoil in TENSOR_CHANGES:
            proto = build()
            if proto.graph.initializer:
                spoil(proto.graph.initializer[0])
                yield f"{family}:{spoil.__name__.strip('_')}", proto


# --- trees ------------------------------------------------------------------------------------------------------------

TREE: dict[str, Any] = {
    "n_targets": 1,
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}


def trees(**changes: Any) -> onnx.ModelProto:
    attrs = {k: v for k, v in (TREE | changes).items() if v is not None}
    return ml("TreeEnsembleRegressor", (2, 3), **attrs)


def classes(**changes: Any) -> onnx.ModelProto:
    attrs = {k.replace("target_", "class_"): v for k, v in TREE.items() if k != "n_targets"}
    attrs |= {"classlabels_int64s": [0, 1], "class_ids": [0, 1]} | changes
    return ml("TreeEnsembleClassifier", (2, 3), outputs=2, **attrs)


def new_trees(**changes: Any) -> onnx.ModelProto:
    def held(*values: float, dtype: str = "float32") -> onnx.TensorProto:
        return numpy_helper.from_array(vector(*values, dtype=dtype))

    attrs: dict[str, Any] = {
        "n_targets": 1,
        "nodes_modes": held(0, dtype="uint8"),
        "nodes_splits": held(0.5),
        "nodes_featureids": [0],
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [1],
        "nodes_trueleafs": [1],
        "nodes_falseleafs": [1],
        "tree_roots": [0],
        "leaf_targetids": [0, 0],
        "leaf_weights": held(1, 2),
    }
    attrs |= changes
    return ml("TreeEnsemble", (2, 3), version=5, **{k: v for k, v in attrs.items() if v is not None})


def tree_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    for name, changes in {
        "own child": {"nodes_truenodeids": [0, 0, 0]},
        "child of a leaf's parent twice": {"nodes_truenodeids": [2, 0, 0]},
        "two roots that are no trees": {
            "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
            "nodes_truenodeids": [2, 0, 0],
            "nodes_falsenodeids": [2, 1, 0],
        },
        "two nodes that are children of each other": {
            "nodes_modes": ["LEAF", "BRANCH_LEQ", "BRANCH_LEQ"],
            "nodes_truenodeids": [0, 2, 1],
            "nodes_falsenodeids": [0, 2, 1],
        },
        "no root": {
            "nodes_treeids": [0],
            "nodes_nodeids": [0],
            "nodes_featureids": [0],
            "nodes_values": [0.5],
            "nodes_modes": ["BRANCH_LEQ"],
            "nodes_truenodeids": [0],
            "nodes_falsenodeids": [0],
            "target_treeids": [0],
            "target_nodeids": [0],
            "target_ids": [0],
            "target_weights": [1.0],
        },
        "child of another tree": {"nodes_treeids": [0, 0, 1]},
        "child that is no node": {"nodes_falsenodeids": [7, 0, 0]},
        "too few features": {"nodes_featureids": [9, 0, 0]},
        "feature below none": {"nodes_featureids": [-1, 0, 0]},
        "feature beyond int": {"nodes_featureids": [MANY, 0, 0]},
        "targets of 2^40": {"n_targets": MANY},
        "targets of 0": {"n_targets": 0},
        "targets below 0": {"n_targets": -3},
        "target out of range": {"target_ids": [0, 5]},
        "fewer weights": {"target_weights": [1.0]},
        "fewer modes": {"nodes_modes": ["BRANCH_LEQ", "LEAF"]},
        "fewer values": {"nodes_values": [0.5]},
        "more values": {"nodes_values": [0.5] * 9},
        "fewer features": {"nodes_featureids": [0]},
        "fewer children": {"nodes_truenodeids": []},
        "fewer ids": {"nodes_nodeids": [0, 1]},
        "node twice": {"nodes_nodeids": [0, 1, 1]},
        "unknown mode": {"nodes_modes": ["BRANCH_MAYBE", "LEAF", "LEAF"]},
        "unknown aggregate": {"aggregate_function": "MODE"},
        "unknown transform": {"post_transform": "COSINE"},
        "base values of another number": {"base_values": [1.0, 2.0, 3.0]},
        "missing tracks of another number": {"nodes_missing_value_tracks_true": [1, 0]},
        "no modes": {"nodes_modes": None},
    }.items():
        yield f"trees: {name}", trees(**changes)
    for name, changes in {
        "class out of range": {"class_ids": [0, 7]},
        "class below 0": {"class_ids": [0, -1]},
        "no labels": {"classlabels_int64s": []},
        "class of 2^40": {"class_ids": [0, MANY]},
        "no classes": {"class_ids": [], "class_treeids": [], "class_nodeids": [], "class_weights": []},
        "one label": {"classlabels_int64s": [3]},
    }.items():
        yield f"classes: {name}", classes(**changes)
    for name, changes in {
        "own child": {"nodes_truenodeids": [0], "nodes_trueleafs": [0]},
        "leaf out of range": {"nodes_falsenodeids": [9]},
        "root out of range": {"tree_roots": [4]},
        "root below 0": {"tree_roots": [-1]},
        "targets of 2^40": {"n_targets": MANY},
        "target out of range": {"leaf_targetids": [0, 3]},
        "target below 0": {"leaf_targetids": [0, -1]},
        "feature below 0": {"nodes_featureids": [-2]},
        "feature out of range": {"nodes_featureids": [3]},
        "fewer features": {"nodes_featureids": []},
        "fewer flags": {"nodes_trueleafs": []},
        "flags beyond one": {"nodes_trueleafs": [2]},
        "unknown mode": {"nodes_modes": numpy_helper.from_array(np.array([99], np.uint8))},
        "fewer splits": {"nodes_splits": numpy_helper.from_array(np.zeros(0, np.float32))},
        "aggregate out of range": {"aggregate_function": 9},
        "fewer targets of leaves": {"leaf_targetids": [0]},
    }.items():
        yield f"new trees: {name}", new_trees(**changes)


# --- control flow, functions ------------------------------------------------------------------------------------------


def branching(then: Any = None, other: Any = None, condition: Any = None, outputs: int = 1) -> onnx.ModelProto:
    relu = subgraph([helper.make_node("Relu", ["x0"], ["r"])], [], [info("r", None)])
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node("If", ["c"], names, name="suspect", then_branch=then or relu, else_branch=other or relu)
    constant = numpy_helper.from_array(np.array(True) if condition is None else condition, "c")
    return model([node], [info("x0", [2, 3])], [constant], names)


def body(nodes: Sequence[onnx.NodeProto] | None = None, inputs: Any = None, outputs: Any = None) -> onnx.GraphProto:
    own = nodes or [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])]
    given = inputs or [info("i", [], INT64), info("c", [], TensorProto.BOOL), info("v", None)]
    return subgraph(own, given, outputs or [info("d", [], TensorProto.BOOL), info("w", None)])


def looping(graph: onnx.GraphProto | None = None, steps: Any = None, outputs: int = 1) -> onnx.ModelProto:
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node("Loop", ["m", "", "x0"], names, name="suspect", body=graph or body())
    constant = numpy_helper.from_array(vector(3).reshape(()) if steps is None else steps, "m")
    return model([node], [info("x0", [2, 3])], [constant], names)


def scanning(graph: onnx.GraphProto, **attrs: Any) -> onnx.ModelProto:
    node = helper.make_node("Scan", ["x0", "x1"], ["y0", "y1"], name="suspect", body=graph, **attrs)
    return model([node], [info("x0", [3]), info("x1", [4, 3])], (), ["y0", "y1"])


def control_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    node = helper.make_node
    relu, d, w = node("Relu", ["x0"], ["r"]), node("Identity", ["c"], ["d"]), node("Neg", ["v"], ["w"])
    flag = info("d", [], TensorProto.BOOL)
    cast = node("Cast", ["v"], ["w"], to=TensorProto.DOUBLE)
    number, bool_ = info("i", [], INT64), info("c", [], TensorProto.BOOL)
    none = info("r", None)
    yield "If: a branch with inputs", branching(subgraph([relu], [info("p", [2])], [none]))
    yield "If: another branch with inputs", branching(other=subgraph([relu], [info("p", [2])], [none]))
    yield "If: a branch of two outputs", branching(subgraph([relu], [], [none, none]))
    yield "If: branches of fewer outputs", branching(outputs=2)
    yield (
        "If: branches of two types",
        branching(
            other=subgraph([node("Cast", ["x0"], ["r"], to=INT64)], [], [info("r", None, INT64)]),
            then=subgraph([relu], [], [info("r", None, FLOAT)]),
        ),
    )
    yield "If: a branch declared of another type", branching(subgraph([relu], [], [info("r", [2, 3], INT64)]))
    yield "If: a branch whose output is nothing's", branching(subgraph([relu], [], [info("nobody", None)]))
    yield "If: an empty condition", branching(condition=np.zeros(0, bool))
    yield "If: a condition of two", branching(condition=np.array([True, False]))
    yield "If: a condition of floats", branching(condition=np.array(1, np.float32))
    yield "Loop: fewer inputs of the body", looping(body([d, node("Neg", ["x0"], ["w"])], [number, bool_]))
    yield "Loop: more inputs of the body", looping(body(inputs=[number, bool_, info("v", None), info("u", None)]))
    yield "Loop: fewer outputs of the body", looping(body([d], outputs=[flag]))
    yield "Loop: no outputs of the body", looping(subgraph([d, w], [number, bool_, info("v", None)], []))
    yield "Loop: more outputs of the node", looping(outputs=3)
    yield "Loop: a carried value that changes its type", looping(body([d, cast], outputs=[flag, info("w", None, 11)]))
    yield (
        "Loop: a carried value that changes its type unsaid",
        looping(body([d, cast], outputs=[flag, info("w", None, 0)])),
    )
    yield (
        "Loop: a carried value declared of another type",
        looping(body(inputs=[number, bool_, info("v", None, TensorProto.DOUBLE)])),
    )
    yield (
        "Loop: a condition that is no bool",
        looping(body([node("Identity", ["i"], ["d"]), w], outputs=[info("d", [], INT64), info("w", None)])),
    )
    yield "Loop: steps below 0 of two", looping(steps=vector(-1, -2))
    yield "Loop: no steps", looping(steps=np.zeros(0, np.int64))
    yield "Loop: steps as floats", looping(steps=np.array(3, np.float32))
    for name, outputs, attrs in (
        ("scan inputs of 0", 2, {"num_scan_inputs": 0}),
        ("scan inputs of 9", 2, {"num_scan_inputs": 9}),
        ("scan inputs below 0", 2, {"num_scan_inputs": -1}),
        ("axes of another number", 2, {"scan_input_axes": [0, 0]}),
        ("axis out of range", 2, {"scan_input_axes": [5]}),
        ("directions unknown", 2, {"scan_input_directions": [7]}),
        ("directions of another number", 2, {"scan_input_directions": [0, 0, 0]}),
        ("output axes out of range", 2, {"scan_output_axes": [9]}),
        ("output axes of another number", 2, {"scan_output_axes": [0, 0]}),
        ("fewer outputs", 1, {}),
    ):
        own = subgraph(
            [node("Add", ["a", "b"], ["s"]), node("Neg", ["s"], ["t"]), node("Abs", ["s"], ["u"])],
            [info("a", [3]), info("b", [3])],
            [info(n, [3]) for n in "stu"[:outputs]],
        )
        yield f"Scan: {name}", scanning(own, **({"num_scan_inputs": 1} | attrs))
    changes = subgraph(
        [node("Cast", ["a"], ["s"], to=11), node("Neg", ["b"], ["t"])],
        [info("a", [3]), info("b", [3])],
        [info("s", [3], 11), info("t", [3])],
    )
    yield "Scan: a state that changes its type", scanning(changes, num_scan_inputs=1)


def with_functions(
    calls: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto], outputs: Sequence[str] = ("y",)
) -> onnx.ModelProto:
    proto = model(calls, [info("x", [2, 3])], (), outputs, 17, {"mine": 1})
    proto.functions.extend(functions)
    return proto


def function(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str] = ("a",),
    outputs: Sequence[str] = ("b",),
    attributes: Sequence[str] = (),
    defaults: Sequence[onnx.AttributeProto] = (),
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_function(
        "mine", name, list(inputs), list(outputs), list(nodes), imports, list(attributes), list(defaults)
    )


def referring(attribute: str, kind: int, source: str, op: str = "LeakyRelu") -> onnx.NodeProto:
    node = helper.make_node(op, ["a"], ["b"])
    node.attribute.append(onnx.AttributeProto(name=attribute, type=kind, ref_attr_name=source))
    return node


def function_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    node, kind = helper.make_node, onnx.AttributeProto.FLOAT

    def call(name: str, x: str = "x", y: str = "y", **attrs: Any) -> onnx.NodeProto:
        return node(name, [x], [y], name="suspect", domain="mine", **attrs)

    levels = [function("F0", [node("Relu", ["a"], ["b"])])]
    for level in range(1, 26):
        levels.append(function(f"F{level}", [call(f"F{level - 1}", "a", "t"), call(f"F{level - 1}", "t", "b")]))
    yield "functions that double over 25 levels", with_functions([call("F25")], levels)
    wide = [function("F0", [node("Relu", ["a"], ["b"])])]
    for level in range(1, 5):
        steps = [call(f"F{level - 1}", "a" if i == 0 else f"t{i}", "b" if i == 99 else f"t{i + 1}") for i in range(100)]
        wide.append(function(f"F{level}", steps))
    yield "functions of a hundred calls over 4 levels", with_functions([call("F4")], wide)
    chain = [function("F0", [node("Relu", ["a"], ["b"])])]
    chain += [function(f"F{i}", [call(f"F{i - 1}", "a", "b")]) for i in range(1, 3000)]
    yield "functions of 3000 levels", with_functions([call("F2999")], chain)
    yield (
        "functions in a circle",
        with_functions([call("F0")], [function(f"F{i}", [call(f"F{(i + 1) % 3}", "a", "b")]) for i in range(3)]),
    )
    inner = subgraph([call("F", "a", "r")], [], [info("r", None)])
    branch = node("If", ["c"], ["b"], then_branch=inner, else_branch=inner)
    constant = node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    yield "a function that calls itself from a branch", with_functions([call("F")], [function("F", [constant, branch])])
    leaky = referring("alpha", kind, "slope")
    yield "a reference to no attribute", with_functions([call("F")], [function("F", [leaky])])
    yield (
        "a default of another type",
        with_functions([call("F")], [function("F", [leaky], defaults=[helper.make_attribute("slope", "steep")])]),
    )
    yield (
        "a value of another type",
        with_functions(
            [call("F", slope=[1, 2])], [function("F", [leaky], defaults=[helper.make_attribute("slope", 0.5)])]
        ),
    )
    yield "an unknown attribute", with_functions([call("F", slop=0.5)], [function("F", [leaky], attributes=["slope"])])
    yield (
        "an attribute declared twice",
        with_functions(
            [call("F", slope=0.5)],
            [function("F", [leaky], attributes=["slope"], defaults=[helper.make_attribute("slope", 0.5)])],
        ),
    )
    neg = node("Neg", ["a"], ["b"])
    yield "a function defined twice", with_functions([call("F")], [function("F", [neg]), function("F", [neg])])
    yield (
        "more inputs than the function has",
        with_functions([node("F", ["x", "x"], ["y"], domain="mine")], [function("F", [neg])]),
    )
    yield (
        "more outputs than the function has",
        with_functions([node("F", ["x"], ["y", "z"], domain="mine")], [function("F", [neg])]),
    )
    yield "an input declared twice", with_functions([call("F")], [function("F", [neg], ["a", "a"])])
    yield "an output that nothing computes", with_functions([call("F")], [function("F", [neg], outputs=["nobody"])])
    yield "names of the caller", with_functions([call("F")], [function("F", [node("Neg", ["x"], ["b"])])])
    yield (
        "nodes in the wrong order",
        with_functions([call("F")], [function("F", [node("Neg", ["t"], ["b"]), node("Abs", ["a"], ["t"])])]),
    )
    yield (
        "a required attribute that nobody gives",
        with_functions(
            [call("F")], [function("F", [referring("to", onnx.AttributeProto.INT, "to", "Cast")], attributes=["to"])]
        ),
    )
    missing = call("F")
    missing.overload = "other"
    yield "an overload that is not there", with_functions([missing], [function("F", [neg])])
    yield (
        "an operator within that nobody knows",
        with_functions([call("F")], [function("F", [node("Unheard", ["a"], ["b"])])]),
    )


# --- operators --------------------------------------------------------------------------------------------------------


def operator_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    image, weight = (1, 3, 8, 8), ones(4, 3, 3, 3)
    yield "Conv: a kernel of extent 0", single("Conv", image, ones(4, 3, 0, 3))
    yield "Conv: no channels", single("Conv", image, ones(4, 0, 3, 3))
    for name, attrs in {
        "kernel_shape that is not the weight's": {"kernel_shape": [5, 5]},
        "kernel_shape of 3": {"kernel_shape": [3, 3, 3]},
        "strides of 0": {"strides": [0, 1]},
        "strides below 0": {"strides": [-1, 1]},
        "strides of 1": {"strides": [1]},
        "dilations of 0": {"dilations": [0, 0]},
        "dilations of 2^62": {"dilations": [1 << 62, 1]},
        "pads of 3": {"pads": [1, 1, 1]},
        "pads of 2^62": {"pads": [1 << 62] * 4},
        "pads that leave nothing": {"pads": [-9] * 4},
        "group of 0": {"group": 0},
        "group of 2": {"group": 2},
        "group below 0": {"group": -1},
        "group of 2^40": {"group": MANY},
        "auto_pad unknown": {"auto_pad": "MAYBE"},
        "pads of 2^20": {"pads": [1 << 20] * 4},
    }.items():
        yield f"Conv: {name}", single("Conv", image, weight, **attrs)
    yield "Conv: a bias of another length", single("Conv", image, weight, ones(5))
    yield "Conv: a bias of two dimensions", single("Conv", image, weight, ones(1, 4))
    yield "Conv: other channels", single("Conv", image, ones(4, 2, 3, 3))
    yield "Conv: no spatial dimensions", single("Conv", (1, 3), ones(4, 3))
    yield "Conv: a number", single("Conv", (), weight)
    for name, attrs in {
        "group of 3": {"group": 3},
        "output_padding below 0": {"output_padding": [-5, -5]},
        "strides of 2^31": {"strides": [1 << 31] * 2},
        "kernel_shape that is not the weight's": {"kernel_shape": [9, 9]},
        "output_shape of 1": {"output_shape": [16]},
        "output_shape of 2^40": {"output_shape": [MANY, MANY]},
        "output_shape below 0": {"output_shape": [-4, -4]},
        "output_padding of 3": {"output_padding": [0, 0, 0]},
        "group of 0": {"group": 0},
    }.items():
        yield f"ConvTranspose: {name}", single("ConvTranspose", (1, 4, 8, 8), weight, **attrs)
    for op in ("MaxPool", "AveragePool", "LpPool"):
        for name, attrs in {
            "a kernel of 0": {"kernel_shape": [0, 2]},
            "a kernel below 0": {"kernel_shape": [-2, 2]},
            "a kernel of 3": {"kernel_shape": [2, 2, 2]},
            "a kernel larger than the image": {"kernel_shape": [99, 99]},
            "strides of 0": {"kernel_shape": [2, 2], "strides": [0, 0]},
            "a kernel of 2^40": {"kernel_shape": [MANY, 1]},
            "pads of 1": {"kernel_shape": [2, 2], "pads": [1]},
            "no kernel": {},
            "pads of 2^40": {"kernel_shape": [2, 2], "pads": [MANY] * 4},
        }.items():
            yield f"{op}: {name}", single(op, image, **attrs)
    rois = (ones(2, 4), vector(0, 0))
    for name, attrs in {
        "sampling_ratio of 2^30": {"sampling_ratio": 1 << 30},
        "sampling_ratio below 0": {"sampling_ratio": -1},
        "output_height of 0": {"output_height": 0},
        "output_height of 2^40": {"output_height": MANY},
        "output_width below 0": {"output_width": -2},
        "mode unknown": {"mode": "median"},
        "coordinates unknown": {"coordinate_transformation_mode": "sideways"},
    }.items():
        yield f"RoiAlign: {name}", single("RoiAlign", image, *rois, **attrs)
    yield "RoiAlign: a batch index out of range", single("RoiAlign", image, ones(2, 4), vector(0, 5))
    yield "RoiAlign: a batch index below 0", single("RoiAlign", image, ones(2, 4), vector(0, -1))
    yield "RoiAlign: fewer batch indices", single("RoiAlign", image, ones(2, 4), vector(0))
    yield "RoiAlign: boxes of 3 numbers", single("RoiAlign", image, ones(2, 3), vector(0, 0))
    yield "RoiAlign: a line", single("RoiAlign", (1, 3, 8), *rois)
    yield from _broadcast_models()
    yield from _resize_models()
    yield from _index_models()
    yield from _shape_models()
    yield from _other_models()


def _broadcast_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Operands whose broadcast would change the shape that the standard says the result has."""
    x, byte = (2, 3), np.ones((2, 3), np.uint8)
    for shape in ((5, 4), (5,), (2, 4, 4), (1, 1, 4), (3,)):
        yield f"Gemm: C of {shape}", single("Gemm", (2, 3), (3, 1), shape)
    for op in ("Sum", "Mean", "Max", "Min"):
        yield f"{op}: two shapes before opset 8", single(op, x, (1, 3), opset=7)
    yield "Clip: a row of bounds", single("Clip", x, (3,))
    yield "LayerNormalization: a scale of more dimensions", single("LayerNormalization", x, (1, 1, 3))
    yield "LayerNormalization: a bias that would repeat x", single("LayerNormalization", (2, 1), (1,), (3,))
    yield "Trilu: two diagonals", single("Trilu", x, np.array([1, 1]))
    yield "OneHot: two depths", single("OneHot", [(2,), INT64], np.array([3, 3]), ones(2))
    yield "Dropout: two ratios", single("Dropout", x, ones(2))
    yield "MatMulInteger: a row of zero points of a", single("MatMulInteger", byte, byte.T, byte[:1], byte[0, 0])
    yield (
        "MatMulInteger: a column of zero points of b",
        single("MatMulInteger", byte, byte.T, byte[0, 0], byte.T[:, :1]),
    )
    for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        yield f"{op}: one target for all", single(op, x, [(1,), INT64])
        yield f"{op}: a column of weights", single(op, x, [(2,), INT64], (3, 1))


def _resize_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    image = (1, 1, 4, 4)
    twice = ones(4) * np.float32(2)
    yield "Resize: scales and sizes", single("Resize", image, None, twice, vector(1, 1, 8, 8))
    yield "Resize: neither scales nor sizes", single("Resize", image)
    yield "Resize: scales of 3", single("Resize", image, None, ones(3))
    yield "Resize: scales of 0", single("Resize", image, None, ones(4) * 0)
    yield "Resize: scales of NaN", single("Resize", image, None, ones(4) * np.float32(np.nan))
    yield "Resize: scales of 1e30", single("Resize", image, None, ones(4) * np.float32(1e30))
    yield "Resize: scales below 0", single("Resize", image, None, ones(4) * np.float32(-1))
    yield "Resize: sizes below 0", single("Resize", image, None, None, vector(1, 1, -8, 8))
    yield "Resize: sizes of 2^40", single("Resize", image, None, None, vector(1, 1, MANY, 1))
    yield "Resize: sizes whose product overflows", single("Resize", image, None, None, vector(1, 1, 1 << 32, 1 << 32))
    yield "Resize: cubic of 2^34", single("Resize", image, None, None, vector(1, 1, 1 << 34, 4), mode="cubic")
    yield "Resize: mode unknown", single("Resize", image, None, twice, mode="spline")
    yield "Resize: nearest_mode unknown", single("Resize", image, None, twice, nearest_mode="odd")
    yield "Resize: coordinates unknown", single("Resize", image, None, twice, coordinate_transformation_mode="sideways")
    for name, attrs in {
        "axes out of range": {"axes": [9]},
        "axes twice": {"axes": [2, 2]},
        "axes below": {"axes": [-9]},
        "policy unknown": {"axes": [2], "keep_aspect_ratio_policy": "never"},
    }.items():
        count = len(attrs["axes"])
        yield f"Resize: {name}", single("Resize", image, None, None, vector(*[8] * count), opset=18, **attrs)
    yield (
        "Resize: a roi of 3",
        single("Resize", image, ones(3), twice, coordinate_transformation_mode="tf_crop_and_resize"),
    )
    yield "Upsample: scales of 2", single("Upsample", image, ones(2), opset=9)
    yield "Upsample: scales below 1", single("Upsample", image, ones(4) * np.float32(0), opset=9)


def _index_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    table = (4, 3)
    for value in (4, -5, MANY, -MANY):
        wrong = vector(value)
        yield f"Gather: index {value}", single("Gather", table, wrong)
        yield f"Gather: scalar index {value}", single("Gather", table, wrong.reshape(()))
        yield f"GatherElements: index {value}", single("GatherElements", table, wrong.reshape(1, 1))
        yield f"GatherND: index {value}", single("GatherND", table, wrong.reshape(1, 1))
        yield f"ScatterElements: index {value}", single("ScatterElements", table, wrong.reshape(1, 1), ones(1, 1))
        yield (
            f"ScatterElements: index {value} that adds",
            single("ScatterElements", table, wrong.reshape(1, 1), ones(1, 1), reduction="add"),
        )
        yield f"Scatter: index {value}", single("Scatter", table, wrong.reshape(1, 1), ones(1, 1), opset=9)
        yield f"ScatterND: index {value}", single("ScatterND", table, wrong.reshape(1, 1), ones(1, 3))
        yield f"ScatterND: index {value} of two", single("ScatterND", table, vector(0, value).reshape(1, 2), ones(1))
        yield f"ArrayFeatureExtractor: index {value}", ml("ArrayFeatureExtractor", table, wrong)
    for value in (16, -1, MANY):
        yield (
            f"MaxUnpool: index {value}",
            single(
                "MaxUnpool",
                (1, 1, 2, 2),
                vector(0, 1, 2, value).reshape(1, 1, 2, 2),
                kernel_shape=[2, 2],
                strides=[2, 2],
            ),
        )
    yield (
        "MaxUnpool: indices of another shape",
        single("MaxUnpool", (1, 1, 2, 2), vector(0, 1).reshape(1, 1, 1, 2), kernel_shape=[2, 2]),
    )
    yield (
        "MaxUnpool: an output_shape that is smaller",
        single(
            "MaxUnpool",
            (1, 1, 2, 2),
            vector(0, 1, 2, 3).reshape(1, 1, 2, 2),
            vector(1, 1, 2, 2),
            kernel_shape=[2, 2],
            strides=[2, 2],
        ),
    )
    for start in (-1, 3, MANY):
        yield (
            f"TensorScatter: write index {start}",
            single("TensorScatter", (1, 1, 4, 2), (1, 1, 2, 2), vector(start), opset=24),
        )
    for length in (-1, 9):
        yield f"ReverseSequence: a length of {length}", single("ReverseSequence", (4, 3), vector(1, 2, length))
    yield "ReverseSequence: lengths of another number", single("ReverseSequence", (4, 3), vector(1, 2))
    yield (
        "ReverseSequence: one axis twice",
        single("ReverseSequence", (4, 3), vector(1, 2, 1), time_axis=1, batch_axis=1),
    )
    yield "NegativeLogLikelihoodLoss: a class out of range", single("NegativeLogLikelihoodLoss", (2, 3), vector(0, 3))
    yield "SoftmaxCrossEntropyLoss: a class out of range", single("SoftmaxCrossEntropyLoss", (2, 3), vector(0, 3))
    yield "GatherElements: another rank", single("GatherElements", table, vector(0))
    yield "ScatterElements: another rank", single("ScatterElements", table, vector(0), ones(1))
    yield (
        "ScatterElements: updates of another shape",
        single("ScatterElements", table, vector(0).reshape(1, 1), ones(2, 1)),
    )
    yield (
        "ScatterElements: reduction unknown",
        single("ScatterElements", table, vector(0).reshape(1, 1), ones(1, 1), reduction="xor"),
    )
    yield "ScatterND: deeper than the data", single("ScatterND", table, vector(0, 0, 0).reshape(1, 3), ones(1))
    yield "ScatterND: updates of another shape", single("ScatterND", table, vector(0).reshape(1, 1), ones(3, 1))
    yield "GatherND: deeper than the data", single("GatherND", table, vector(0, 0, 0).reshape(1, 3))
    yield "GatherND: batch_dims out of range", single("GatherND", table, vector(0).reshape(1, 1), batch_dims=5)
    yield "GatherND: batch_dims below 0", single("GatherND", table, vector(0).reshape(1, 1), batch_dims=-1)
    yield "Gather: an index of floats", single("Gather", table, ones(1))
    yield (
        "EmbedLayerNormalization: a word out of range",
        single(
            "EmbedLayerNormalization",
            np.array([[0, 9]], np.int32),
            None,
            ones(4, 8),
            ones(4, 8),
            None,
            ones(8),
            ones(8),
            outputs=2,
            domain="com.microsoft",
        ),
    )
    yield (
        "EmbedLayerNormalization: too few positions",
        single(
            "EmbedLayerNormalization",
            np.zeros((1, 9), np.int32),
            None,
            ones(4, 8),
            ones(4, 8),
            None,
            ones(8),
            ones(8),
            outputs=2,
            domain="com.microsoft",
        ),
    )
    yield (
        "RotaryEmbedding: a position out of range",
        single(
            "RotaryEmbedding",
            (1, 2, 8),
            vector(0, 9).reshape(1, 2),
            ones(4, 2),
            ones(4, 2),
            num_heads=2,
            domain="com.microsoft",
        ),
    )


def _shape_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    x = (2, 3)
    for name, value in {
        "of 2^40": [MANY, MANY],
        "of another size": [4, 4],
        "two of -1": [-1, -1],
        "below -1": [-2, 3],
        "product 2^64": [1 << 32, 1 << 32],
    }.items():
        yield f"Reshape: {name}", single("Reshape", x, vector(*value))
    yield "Reshape: a shape of two dimensions", single("Reshape", x, vector(2, 3).reshape(1, 2))
    yield "Reshape: 0 beyond the rank", single("Reshape", x, vector(2, 3, 0))
    yield "Reshape: 0 and -1 where 0 is allowed", single("Reshape", (0, 3), vector(0, -1), allowzero=1)
    yield "Expand: 2^40", single("Expand", x, vector(MANY, 2, 3))
    yield "Expand: below 0", single("Expand", x, vector(-4, 2, 3))
    yield "Expand: another extent", single("Expand", x, vector(5, 3))
    yield "Tile: 2^40", single("Tile", x, vector(MANY, MANY))
    yield "Tile: below 0", single("Tile", x, vector(-1, 1))
    yield "Tile: fewer repeats", single("Tile", x, vector(2))
    yield "ConstantOfShape: 2^40", single("ConstantOfShape", vector(MANY))
    yield "ConstantOfShape: below 0", single("ConstantOfShape", vector(-3))
    yield (
        "ConstantOfShape: a value of two",
        single("ConstantOfShape", vector(3), value=numpy_helper.from_array(ones(2))),
    )
    for name, ends in {"2^40 steps": (0, MANY, 1), "a step of 0": (0, 5, 0)}.items():
        yield f"Range: {name}", single("Range", *(np.array(v) for v in ends))
    yield "Range: a start of two", single("Range", vector(0, 1), np.array(5), np.array(1))
    for name, pads in {
        "2^40": [MANY, 0, 0, 0],
        "fewer": [1, 1],
        "below the extent": [-5, 0, 0, 0],
        "the sum below 0": [0, -2, 0, -2],
    }.items():
        yield f"Pad: {name}", single("Pad", x, vector(*pads))
    yield "Pad: mode unknown", single("Pad", x, vector(0, 0, 0, 0), mode="maybe")
    yield "Pad: reflection beyond the extent", single("Pad", x, vector(0, 7, 0, 0), mode="reflect")
    yield "Pad: axes out of range", single("Pad", x, vector(1, 1), None, vector(7), opset=18)
    yield "Pad: axes twice", single("Pad", x, vector(1, 1, 1, 1), None, vector(0, 0), opset=18)
    yield "Transpose: a dimension twice", single("Transpose", x, perm=[0, 0])
    yield "Transpose: out of range", single("Transpose", x, perm=[0, 5])
    yield "Transpose: fewer", single("Transpose", x, perm=[0])
    yield "Concat: other extents", single("Concat", (2, 3), (4, 4), axis=0)
    yield "Concat: other ranks", single("Concat", (2, 3), (2, 3, 1), axis=0)
    yield "Concat: axis out of range", single("Concat", x, x, axis=2)
    yield "Split: sizes that do not add up", single("Split", x, vector(5, 5), outputs=2)
    yield "Split: sizes of another number", single("Split", x, vector(1, 1), outputs=3)
    yield "Split: num_outputs that is not theirs", single("Split", x, outputs=2, num_outputs=7, opset=18)
    yield "Squeeze: an extent that is not 1", single("Squeeze", x, vector(0))
    yield "Squeeze: out of range", single("Squeeze", x, vector(9))
    yield "Unsqueeze: an axis twice", single("Unsqueeze", x, vector(0, 0))
    yield "Unsqueeze: out of range", single("Unsqueeze", x, vector(99))
    yield "Flatten: out of range", single("Flatten", x, axis=7)
    yield "Slice: starts of another number", single("Slice", x, vector(0, 0), vector(1))
    yield "Slice: an axis twice", single("Slice", x, vector(0, 0), vector(1, 1), vector(0, 0))
    yield "Slice: a step of 0", single("Slice", x, vector(0), vector(1), vector(0), vector(0))
    yield "Slice: axes out of range", single("Slice", x, vector(0), vector(1), vector(8))
    yield "DepthToSpace: a block of 0", single("DepthToSpace", (1, 4, 2, 2), blocksize=0)
    yield "DepthToSpace: a block below 0", single("DepthToSpace", (1, 4, 2, 2), blocksize=-2)
    yield "DepthToSpace: channels that do not divide", single("DepthToSpace", (1, 3, 2, 2), blocksize=2)
    yield "SpaceToDepth: a block of 2^40", single("SpaceToDepth", (1, 3, 2, 2), blocksize=MANY)
    yield "OneHot: a depth of 2^40", single("OneHot", vector(1), np.array(MANY), ones(2))
    yield "OneHot: a depth below 0", single("OneHot", vector(1), np.array(-2), ones(2))
    yield "OneHot: three values", single("OneHot", vector(1), np.array(3), ones(3))
    yield "OneHot: axis out of range", single("OneHot", vector(1), np.array(3), ones(2), axis=9)
    yield "EyeLike: a vector", single("EyeLike", (3,))
    yield "Trilu: a vector", single("Trilu", (3,))
    yield "CenterCropPad: 2^40", single("CenterCropPad", x, vector(MANY, MANY), opset=18)
    yield "CenterCropPad: fewer", single("CenterCropPad", x, vector(1), opset=18)
    yield "Col2Im: an image of 2^40", single("Col2Im", (1, 4, 4), vector(MANY, MANY), vector(2, 2), opset=18)
    yield "Col2Im: an image of another size", single("Col2Im", (1, 4, 4), vector(9, 9), vector(2, 2), opset=18)
    yield "Col2Im: a block of 0", single("Col2Im", (1, 4, 4), vector(4, 4), vector(0, 0), opset=18)


def _other_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    x, image = (2, 3), (2, 6, 4, 4)
    yield "MatMul: other extents", single("MatMul", x, ones(4, 2))
    yield "MatMul: a number", single("MatMul", x, ones())
    yield "Gemm: other extents", single("Gemm", x, ones(4, 2))
    yield "Gemm: three dimensions", single("Gemm", (1, 2, 3), ones(3, 2))
    yield "Gemm: a bias that does not fit", single("Gemm", x, ones(3, 4), ones(7))
    yield "Gemm: a bias of more dimensions", single("Gemm", x, ones(3, 4), ones(1, 1, 4))
    for equation in ("ij,jk->iz", "ij->ijj", "i,j->ij", "", "->", "ij->i->j", "i1,jk->k", "...ij,jk->ik"):
        yield f"Einsum: {equation}", single("Einsum", (2, 3), (4, 5), equation=equation)
    yield "Add: shapes that do not fit", single("Add", x, ones(4))
    yield "Add: two types", single("Add", x, ones(3, dtype="float64"))
    yield "Where: a condition of floats", single("Where", ones(3), x, x)
    yield "Clip: bounds of two", single("Clip", x, ones(2))
    yield "Cast: to nothing", single("Cast", x, to=0)
    yield "Cast: to 99", single("Cast", x, to=99)
    yield "BitShift: no direction", single("BitShift", np.ones(3, np.uint8), np.ones(3, np.uint8), direction="UP")
    yield "TopK: k of 2^40", single("TopK", x, vector(MANY), outputs=2)
    yield "TopK: k below 0", single("TopK", x, vector(-1), outputs=2)
    yield "TopK: k of two", single("TopK", x, vector(1, 2), outputs=2)
    yield "TopK: axis out of range", single("TopK", x, vector(1), outputs=2, axis=4)
    yield "ReduceSum: axes out of range", single("ReduceSum", x, vector(7))
    yield "ReduceSum: axes twice", single("ReduceSum", x, vector(0, 0))
    yield "ReduceSum: axes twice by their signs", single("ReduceSum", x, vector(0, -2))
    yield "ArgMax: axis out of range", single("ArgMax", x, axis=2)
    yield "ArgMax: of nothing", single("ArgMax", (0, 3), axis=0)
    yield "ReduceMax: axes out of range", single("ReduceMax", x, axes=[5])
    yield "Softmax: axis out of range", single("Softmax", x, axis=5)
    yield "Softmax: axis of 2^40", single("Softmax", x, axis=-MANY)
    yield "CumSum: axis out of range", single("CumSum", x, np.array(4))
    yield "CumSum: axes", single("CumSum", x, vector(0, 1))
    yield "BatchNormalization: other channels", single("BatchNormalization", image, *[ones(5)] * 4)
    yield "BatchNormalization: a table of scales", single("BatchNormalization", image, *[ones(6, 1)] * 4)
    yield "InstanceNormalization: other channels", single("InstanceNormalization", image, ones(5), ones(5))
    yield "LayerNormalization: axis out of range", single("LayerNormalization", x, ones(3), axis=9)
    yield "LayerNormalization: another scale", single("LayerNormalization", x, ones(4))
    for groups in (0, -1, 4, MANY):
        yield (
            f"GroupNormalization: {groups} groups",
            single("GroupNormalization", image, ones(6), ones(6), num_groups=groups, opset=21),
        )
    yield (
        "GroupNormalization: other scales",
        single("GroupNormalization", image, ones(2), ones(2), num_groups=3, opset=21),
    )
    yield (
        "GroupNormalization: scales of another opset",
        single("GroupNormalization", image, ones(6), ones(6), num_groups=3, opset=18),
    )
    yield "LpNormalization: p of 7", single("LpNormalization", x, p=7)
    yield "LRN: a size of 0", single("LRN", image, size=0)
    yield "LRN: a size below 0", single("LRN", image, size=-3)
    yield "Dropout: a ratio of 2", single("Dropout", x, np.array(2, np.float32), np.array(True))
    yield "PRelu: another slope", single("PRelu", x, ones(7))
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        w, r = ones(1, 2 * gates, 2), ones(1, 2 * gates, 2)
        yield f"{op}: another weight", single(op, (3, 1, 2), ones(1, 7, 2), r, hidden_size=2)
        yield f"{op}: hidden_size of 2^40", single(op, (3, 1, 2), w, r, hidden_size=MANY)
        yield f"{op}: hidden_size of 0", single(op, (3, 1, 2), w, r, hidden_size=0)
        yield f"{op}: direction unknown", single(op, (3, 1, 2), w, r, hidden_size=2, direction="up")
        yield (
            f"{op}: two directions of one weight",
            single(op, (3, 1, 2), w, r, hidden_size=2, direction="bidirectional"),
        )
        yield f"{op}: layout of 5", single(op, (3, 1, 2), w, r, hidden_size=2, layout=5)
        yield f"{op}: a bias of another length", single(op, (3, 1, 2), w, r, ones(1, 3), hidden_size=2)
        yield (
            f"{op}: lengths beyond the steps",
            single(op, (3, 1, 2), w, r, None, np.array([9], np.int32), hidden_size=2),
        )
        yield (
            f"{op}: lengths of another number",
            single(op, (3, 1, 2), w, r, None, np.array([1, 2], np.int32), hidden_size=2),
        )
        yield f"{op}: a state of another shape", single(op, (3, 1, 2), w, r, None, None, ones(1, 1, 9), hidden_size=2)
        yield f"{op}: a matrix", single(op, (3, 2), w, r, hidden_size=2)
    yield (
        "QuantizeLinear: a scale of another length",
        single("QuantizeLinear", x, ones(5), np.zeros(5, np.uint8), axis=1),
    )
    yield "QuantizeLinear: axis out of range", single("QuantizeLinear", x, ones(3), np.zeros(3, np.uint8), axis=7)
    yield "QuantizeLinear: two lengths", single("QuantizeLinear", x, ones(3), np.zeros(2, np.uint8), axis=1)
    yield (
        "DequantizeLinear: two types",
        single("DequantizeLinear", np.ones((2, 3), np.uint8), ones(), np.array(1, np.int8)),
    )
    yield "QuantizeLinear: blocks of 0", single("QuantizeLinear", x, ones(2, 1), axis=1, block_size=-2, opset=21)
    yield (
        "QLinearMatMul: other extents",
        single(
            "QLinearMatMul",
            np.ones((2, 3), np.uint8),
            ones(),
            np.array(0, np.uint8),
            np.ones((4, 2), np.uint8),
            ones(),
            np.array(0, np.uint8),
            ones(),
            np.array(0, np.uint8),
        ),
    )
    yield "LabelEncoder: 2 keys and 1 value", ml("LabelEncoder", [(2,), INT64], keys_int64s=[1, 2], values_floats=[0.5])
    yield "LabelEncoder: no keys", ml("LabelEncoder", [(2,), INT64], values_floats=[0.5])
    yield "LabelEncoder: empty tables", ml("LabelEncoder", [(2,), INT64], keys_int64s=[], values_floats=[])
    yield "LabelEncoder: keys of another type", ml("LabelEncoder", (2,), keys_int64s=[1], values_floats=[0.5])
    yield (
        "LinearRegressor: coefficients that do not divide",
        ml("LinearRegressor", x, coefficients=[1.0, 2.0], targets=1),
    )
    yield "LinearRegressor: 2^40 targets", ml("LinearRegressor", x, coefficients=[1.0, 2.0, 3.0], targets=MANY)
    yield "LinearRegressor: 0 targets", ml("LinearRegressor", x, coefficients=[1.0, 2.0, 3.0], targets=0)
    yield (
        "LinearRegressor: more intercepts",
        ml("LinearRegressor", x, coefficients=[1.0, 2.0, 3.0], intercepts=[1.0, 2.0]),
    )
    yield (
        "LinearClassifier: labels of another number",
        ml("LinearClassifier", x, outputs=2, coefficients=[1.0] * 9, classlabels_ints=[1, 2]),
    )
    yield (
        "LinearClassifier: no coefficients",
        ml("LinearClassifier", x, outputs=2, coefficients=[], classlabels_ints=[1]),
    )
    yield "Scaler: an offset of another length", ml("Scaler", x, offset=[1.0, 2.0], scale=[1.0])
    yield "Imputer: values of another length", ml("Imputer", x, imputed_value_floats=[1.0, 2.0])
    yield "Imputer: no values", ml("Imputer", x)
    yield "Normalizer: norm unknown", ml("Normalizer", x, norm="L9")
    yield "FeatureVectorizer: dimensions of another number", ml("FeatureVectorizer", x, x, inputdimensions=[3])
    yield "FeatureVectorizer: dimensions beyond", ml("FeatureVectorizer", x, x, inputdimensions=[3, 9])
    support: dict[str, Any] = {
        "kernel_type": "RBF",
        "kernel_params": [0.5, 0.0, 3.0],
        "n_supports": 2,
        "support_vectors": [1.0] * 6,
        "coefficients": [1.0, -1.0],
        "rho": [0.1],
    }
    for name, changes in {
        "supports of 2^40": {"n_supports": MANY},
        "supports of 3": {"n_supports": 3},
        "kernel unknown": {"kernel_type": "COS"},
        "fewer parameters": {"kernel_params": [0.5]},
        "fewer coefficients": {"coefficients": [1.0]},
        "supports below 0": {"n_supports": -2},
        "no rho": {"rho": []},
    }.items():
        yield f"SVMRegressor: {name}", ml("SVMRegressor", x, **(support | changes))
    for name, changes in {
        "vectors of another number": {"vectors_per_class": [1, 5]},
        "vectors of 2^40": {"vectors_per_class": [MANY, 1]},
        "one class": {"classlabels_ints": [0]},
        "no labels": {"classlabels_ints": []},
    }.items():
        own = {k: v for k, v in support.items() if k != "n_supports"}
        own |= {"vectors_per_class": [1, 1], "classlabels_ints": [0, 1]} | changes
        yield f"SVMClassifier: {name}", ml("SVMClassifier", x, outputs=2, **own)
    yield "DFT: a length of 2^40", single("DFT", (1, 8, 1), np.array(MANY), opset=17)
    yield "DFT: a length below 0", single("DFT", (1, 8, 1), np.array(-3), opset=17)
    yield "DFT: three parts", single("DFT", (1, 8, 3), opset=17)
    yield "STFT: a step of 0", single("STFT", (1, 8, 1), np.array(0), ones(4))
    yield "STFT: a window of 2^40", single("STFT", (1, 8, 1), np.array(1), None, np.array(MANY))
    yield "HannWindow: 2^40", single("HannWindow", np.array(MANY))
    yield "HannWindow: below 0", single("HannWindow", np.array(-4))
    yield (
        "MelWeightMatrix: 2^40 bins",
        single(
            "MelWeightMatrix",
            np.array(MANY),
            np.array(16),
            np.array(8000),
            np.array(0, np.float32),
            np.array(4000, np.float32),
        ),
    )
    yield "GridSample: a grid of 3", single("GridSample", (1, 1, 4, 4), ones(1, 2, 2, 3), opset=16)
    yield "GridSample: another batch", single("GridSample", (1, 1, 4, 4), ones(3, 2, 2, 2), opset=16)
    yield "GridSample: mode unknown", single("GridSample", (1, 1, 4, 4), ones(1, 2, 2, 2), mode="spline", opset=16)
    yield "AffineGrid: a size of 2^40", single("AffineGrid", (1, 2, 3), vector(1, 1, MANY, MANY), opset=20)
    yield (
        "DeformConv: an offset of another shape",
        single("DeformConv", (1, 1, 4, 4), ones(1, 1, 2, 2), ones(1, 3, 3, 3), opset=19),
    )
    yield "RandomUniform: 2^40", single("RandomUniform", shape=[MANY, MANY])
    yield "RandomUniform: below 0", single("RandomUniform", shape=[-4])
    yield "Multinomial: 2^40 samples", single("Multinomial", x, sample_size=MANY)
    yield "Constant: nothing", single("Constant")
    yield "Constant: two values", single("Constant", value_int=1, value_float=1.0)
    yield (
        "Constant: a sparse value",
        single(
            "Constant",
            sparse_value=helper.make_sparse_tensor(
                numpy_helper.from_array(ones(1), "v"), numpy_helper.from_array(vector(9), "i"), [4]
            ),
        ),
    )
    yield "Constant: data that is short", single("Constant", value=tensor("v", [4], b"\0" * 3))
    yield "Constant: dims below 0", single("Constant", value=tensor("v", [-4], b"\0" * 16))
    yield "Constant: dims whose product overflows", single("Constant", value=tensor("v", [1 << 33, 1 << 33], b""))
    for what, changed in {"other sizes": {"K": 99}, "bits of 99": {"bits": 99}}.items():
        sizes = {"K": 64, "N": 8, "bits": 4, "block_size": 32, **changed}
        packed = np.ones((8, 2, 16), np.uint8)
        yield f"MatMulNBits: {what}", single("MatMulNBits", (1, 64), packed, ones(16), **sizes, domain="com.microsoft")
    yield (
        "Attention: heads of 0",
        single("Attention", (1, 2, 8), ones(8, 24), ones(24), num_heads=0, domain="com.microsoft"),
    )
    yield (
        "Attention: heads of 7",
        single("Attention", (1, 2, 8), ones(8, 24), ones(24), num_heads=7, domain="com.microsoft"),
    )


def models(quick: bool = False) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Hostile models by name; ``quick``: the changes of three families, and what is made by hand of whole graphs."""
    yield from (each for each in changed() if not quick or each[0].startswith(("conv:", "gather:", "loop:")))
    yield from tree_models()
    yield from control_models()
    yield from function_models()
    if not quick:
        yield from operator_models()


# --- the child --------------------------------------------------------------------------------------------------------

SECONDS, BYTES = 10, 2 << 30  # for each model, beside what the process has before


def outcomes(quick: bool) -> Iterator[tuple[str, str]]:
    """Names of models, and how each was refused: an empty text, or what happened instead."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    bn.compile(single("Relu", (2, 3)), threads=1, rewrite=False)  # what is imported at the first
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGVTALRM, ring)
    for name, proto in models(quick):
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            bn.compile(proto, threads=1, rewrite=False)
            yield name, "it was compiled"
        except BurnishError as error:
            named = "'" in str(error) or "model" in str(error).lower() or "function" in str(error)
            yield name, "" if named else f"it was refused without a name: {error}"
        except BaseException as error:
            yield name, f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


if __name__ == "__main__":
    print(json.dumps(list(outcomes("quick" in sys.argv))))
