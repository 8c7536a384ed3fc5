"""ONNX semantics, node by node: onnxruntime without optimizations, or onnx's own evaluator where that refuses."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

IR_VERSION = 10
# Operators that onnx's own evaluator computes wrongly in places: windows that pads fill, old forms, odd sizes.
UNSOUND = ("LRN", "Hardmax", "Resize", "Upsample", "ConvTranspose", "MaxPool", "AveragePool")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class NotComputable(Exception):  # noqa: N818 - reads as the refusal it is
    """Neither oracle computes this node on these values."""


def is_float(array: np.ndarray) -> bool:
    """Whether an array holds floats; bfloat16 is no kind of NumPy's own."""
    return array.dtype.kind == "f" or array.dtype == BFLOAT16


def type_info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    """The declaration of a value of the array's dtype and shape."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


@cache
def schema_types(op: str, opset: int, position: int) -> frozenset[str]:
    """NumPy names of the dtypes that the standard allows for one input; empty if there is no such operator."""
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return frozenset()
    if schema.deprecated or not schema.inputs:
        return frozenset()
    formal = schema.inputs[min(position, len(schema.inputs) - 1)]
    names = {text.removeprefix("tensor(").removesuffix(")") for text in formal.types if text.startswith("tensor(")}
    return frozenset({"float": "float32", "double": "float64"}.get(name, name) for name in names)


@cache
def known_operator(op: str, opset: int) -> bool:
    """Whether this opset has the operator."""
    return onnx.defs.has(op, opset, "") and not onnx.defs.get_schema(op, opset, "").deprecated


def one_node_model(node: onnx.NodeProto, inputs: Mapping[str, np.ndarray], opset: int) -> onnx.ModelProto:
    """A model of one node, all of whose inputs are the model's."""
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "one", [type_info(n, a) for n, a in inputs.items()], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def by_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs by onnxruntime with all optimizations off; raises what it raises."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, dict(feeds))]


def by_reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs by onnx's own evaluator; raises what it raises."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, dict(feeds))]


def compute_node(
    node: onnx.NodeProto, values: Mapping[str, np.ndarray], opset: int, oracle: str = "any"
) -> tuple[list[np.ndarray], str]:
    """The node's outputs and who computed them: ``ort`` or ``reference``. Raises NotComputable."""
    inputs = {name: values[name] for name in node.input if name}
    model = one_node_model(node, inputs, opset)
    reasons = []
    for name, run in (("ort", by_onnxruntime), ("reference", by_reference)):
        if oracle not in ("any", name):
            continue
        try:
            return run(model, inputs), name
        except Exception as error:
            reasons.append(f"{name}: {str(error)[:200]}")
    raise NotComputable(f"{node.op_type}: {'; '.join(reasons)}")


def walk(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], oracle: str = "any", keep: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """All values of a model by name, node by node. Raises NotComputable."""
    values, _ = walk_both(model, feeds, oracle)
    return values if keep is None else {name: values[name] for name in keep}


def walk_both(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], oracle: str = "any"
) -> tuple[dict[str, np.ndarray], dict[str, bool]]:
    """All values of a model by name, and those that onnxruntime alone does not give: whether they are sound."""
    values: dict[str, np.ndarray] = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    values.update(feeds)
    single: dict[str, bool] = {}
    opset = next(o.version for o in model.opset_import if o.domain == "")
    for node in model.graph.node:
        found, by = compute_node(node, values, opset, oracle)
        made = [name for name in node.output if name]
        values.update(zip(made, found, strict=True))
        sound = by == "ort" or node.op_type not in UNSOUND
        if by != "ort" or not single.keys().isdisjoint(node.input):
            single.update(dict.fromkeys(made, sound and all(single.get(name, True) for name in node.input)))
    return values, single


def make_model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    opset: int,
) -> onnx.ModelProto:
    """A model of these parts; ``outputs`` gives names and types."""
    graph = helper.make_graph(
        list(nodes), "fuzz", [type_info(n, a) for n, a in feeds.items()], [type_info(n, a) for n, a in outputs.items()],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(a) if a.ndim else a, n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """An attribute's value."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
