"""Operators that the standard defines by a function of others: the function's nodes are translated in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnx.defs
import onnx.helper

from burnish.errors import UnsupportedOperator
from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.frontend.onnx.domains import DEFAULT, key_of, split_key
from burnish.frontend.onnx.dtypes import element_type
from burnish.frontend.onnx.nodes import attributes, subgraphs, translate_nodes
from burnish.loops.sizes import is_size

FUNCTIONS = (
    "Attention", "CausalConvWithState", "LinearAttention", "MeanVarianceNormalization",
    "NegativeLogLikelihoodLoss", "RotaryEmbedding", "Shrink", "SoftmaxCrossEntropyLoss", "SwiGLU",
    "ai.onnx.preview.FlexAttention",
)  # fmt: skip
LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


def expand(c: OnnxContext, n: OnnxNode) -> Sequence[str]:
    """The outputs of the standard's function for this node, by the translators of the operators it is made of."""
    if n.op in LOSSES:
        _check_loss(c, n)
    body = _body(c, n)
    given = dict(n.attrs)
    for name, attribute in _schema(n).attributes.items():
        if name not in given and attribute.default_value.type:
            given.update(attributes(onnx.NodeProto(attribute=[attribute.default_value])))
    prefix = f"{n.stem}/"
    nodes = [_own(node, given, prefix) for node in body.node]
    unknown = sorted(_operators(nodes) - c.translators.keys())
    if unknown:
        raise UnsupportedOperator(f"{n}: its function uses operators {', '.join(unknown)}, which are not supported")
    names = {prefix + name: n.input(position) for position, name in enumerate(body.input)}
    node, made, opset = c.node, c.made, c.opset
    c.opset = next((o.version for o in body.opset_import if o.domain in DEFAULT), opset)
    try:
        translate_nodes(c, names, nodes, {name for inner in nodes for name in inner.input})
    finally:
        c.node, c.made, c.opset = node, made, opset
    found = [names.get(prefix + name, "") for name in body.output]
    c.made |= set(found) - {"", *n.inputs}
    return found


def _check_loss(c: OnnxContext, n: OnnxNode) -> None:
    """Refuses a target that is not a class for each of the scores' places, and weights that are not one a class."""
    scores, target = c.shape(n.inputs[0]), c.shape(n.inputs[1])
    if len(scores) < 2 or not c.may_be(target, (scores[0], *scores[2:])):
        c.invalid("scores and target", f"shapes {list(scores)} and {list(target)}", "[N, C, ...] and [N, ...]")
    if n.input(2) and not c.may_be(c.shape(n.input(2)), scores[1:2]):
        c.invalid("input 'weights'", f"shape {list(c.shape(n.input(2)))}", f"{list(scores[1:2])}, one for each class")


def _own(node: onnx.NodeProto, given: Mapping[str, Any], prefix: str) -> onnx.NodeProto:
    """A copy of a function's node: its names with a prefix, references to the function's attributes resolved."""
    own = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    own.input.extend(prefix + name if name else "" for name in node.input)
    own.output.extend(prefix + name if name else "" for name in node.output)
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                own.attribute.append(onnx.helper.make_attribute(attribute.name, given[attribute.ref_attr_name]))
            continue
        own.attribute.append(attribute)
        if attribute.type == onnx.AttributeProto.GRAPH:
            graph = own.attribute[-1].g
            inner = [_own(child, given, prefix) for child in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
            for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                value.name = prefix + value.name
    return own


def _operators(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The operators of nodes, also within their subgraphs."""
    found = set()
    for node in nodes:
        found.add(key_of(node.domain, node.op_type))
        for graph in subgraphs(node).values():
            found |= _operators(graph.node)
    return found


def _schema(n: OnnxNode) -> Any:  # an OpSchema, whose stubs lack functions
    domain, name = split_key(n.op)
    return onnx.defs.get_schema(name, n.opset, domain)


def _body(c: OnnxContext, n: OnnxNode) -> onnx.FunctionProto:
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
        shape = [str(e) if is_size(e) else e for e in c.shape(tensor)] if tensor else None
        types.append(onnx.helper.make_tensor_type_proto(element, shape))
    found = schema.get_context_dependent_function_with_opset_version(
        version, node.SerializeToString(), [t.SerializeToString() if t.tensor_type.elem_type else b"" for t in types]
    )
    return onnx.FunctionProto.FromString(found)


TRANSLATORS: Mapping[str, Translator] = dict.fromkeys(FUNCTIONS, expand)
