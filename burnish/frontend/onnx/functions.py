"""Operators that the standard defines by a function of others: the function's nodes are translated in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.defs
import onnx.helper

from burnish.errors import UnsupportedOperator
from burnish.frontend.onnx.context import Context, OnnxNode, Translator, attributes
from burnish.frontend.onnx.domains import key_of, split_key
from burnish.frontend.onnx.dtypes import element_type

FUNCTIONS = (
    "Attention", "CausalConvWithState", "LinearAttention", "MeanVarianceNormalization",
    "NegativeLogLikelihoodLoss", "RotaryEmbedding", "Shrink", "SoftmaxCrossEntropyLoss", "SwiGLU",
    "ai.onnx.preview.FlexAttention",
)  # fmt: skip


def expand(c: Context, n: OnnxNode) -> Sequence[str]:
    """The outputs of the standard's function for this node, by the translators of the operators it is made of."""
    body = _body(c, n)
    given = dict(n.attrs)
    for name, attribute in _schema(n).attributes.items():
        if name not in given and attribute.default_value.type:
            given.update(attributes([attribute.default_value]))
    names = {name: n.input(position) for position, name in enumerate(body.input)}
    made: set[str] = set()
    for position, node in enumerate(body.node):
        key = key_of(node.domain, node.op_type)
        if key not in c.translators:
            raise UnsupportedOperator(f"{n}: its function uses operator {key}, which is not supported")
        inner = OnnxNode(
            key, f"{n.name}/{position}", tuple(names.get(name, "") for name in node.input),
            tuple(f"{n.stem}/{name}" if name else "" for name in node.output),
            _resolved(node, given), next((o.version for o in body.opset_import if o.domain == node.domain), n.opset),
        )  # fmt: skip
        c.begin(inner)
        result = c.translators[key](c, inner)
        made |= c.made
        names.update(zip(node.output, [result] if isinstance(result, str) else result, strict=False))
    c.begin(n)
    c.made = made
    return [names.get(name, "") for name in body.output]


def _resolved(node: onnx.NodeProto, given: Mapping[str, Any]) -> dict[str, Any]:
    """A node's attributes, those that refer to the function's own replaced by their values."""
    found = dict(attributes([a for a in node.attribute if not a.ref_attr_name]))
    found.update({a.name: given[a.ref_attr_name] for a in node.attribute if a.ref_attr_name in given})
    return found


def _schema(n: OnnxNode) -> Any:  # an OpSchema, whose stubs lack functions
    domain, name = split_key(n.op)
    return onnx.defs.get_schema(name, n.opset, domain)


def _body(c: Context, n: OnnxNode) -> onnx.FunctionProto:
    """The function for these inputs' types, in the newest opset that is no newer than the model's."""
    schema = _schema(n)
    depends = schema.has_context_dependent_function
    versions = schema.context_dependent_function_opset_versions if depends else schema.function_opset_versions
    if not versions:
        raise UnsupportedOperator(f"{n}: the standard has no function for it in this opset")
    version = max((v for v in versions if v <= n.opset), default=min(versions))
    if not depends:
        return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(version))
    domain, name = split_key(n.op)
    node = onnx.helper.make_node(name, n.inputs, n.outputs, domain=domain)
    node.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in n.attrs.items())
    types = []
    for tensor in n.inputs:
        element = element_type(c.dtype(tensor)) if tensor else 0
        types.append(onnx.helper.make_tensor_type_proto(element, c.shape(tensor) if tensor else None))
    found = schema.get_context_dependent_function_with_opset_version(
        version, node.SerializeToString(), [t.SerializeToString() if t.tensor_type.elem_type else b"" for t in types]
    )
    return onnx.FunctionProto.FromString(found)


TRANSLATORS: Mapping[str, Translator] = dict.fromkeys(FUNCTIONS, expand)
