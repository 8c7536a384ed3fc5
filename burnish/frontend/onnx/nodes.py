"""Translation of ONNX nodes, one after another, and of subgraphs in the place of the node that holds them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from burnish.errors import ModelError, UnsupportedOperator, VerificationError
from burnish.frontend.onnx.context import Context, OnnxNode, RuntimeValue
from burnish.frontend.onnx.domains import DEFAULT, NEWEST, key_of
from burnish.frontend.onnx.dtypes import dtype_name, to_array
from burnish.frontend.onnx.symbolic import note_sizes
from burnish.frontend.onnx.validity import check_declared, check_dtypes, label_of
from burnish.loops.sizes import Dim, dims_of


def translate_nodes(
    context: Context, names: dict[str, str], nodes: Sequence[onnx.NodeProto], used: Collection[str]
) -> None:
    """Adds the operators of all nodes; ``names`` maps names of the model to those of the graph, and gets the outputs.

    ``used``: names that are read by anything, the model's outputs among them.
    """
    before, context.names = context.names, names
    try:
        for position, node in enumerate(nodes):
            _translate(context, names, node, position)
            _refuse_missing_outputs(context.node, names, used)
    finally:
        context.names = before


def translate_subgraph(context: Context, graph: onnx.GraphProto, feeds: Sequence[str]) -> list[str]:
    """Adds the nodes of a subgraph, whose inputs are the graph tensors ``feeds``; returns those of its outputs.

    It sees the names of what is around it, which does not see its own.
    """
    names, node, made = dict(context.names), context.node, context.made
    for tensor in graph.initializer:
        found = context.constants.get(id(tensor))
        if found is None:
            array = to_array(tensor, f"initializer '{tensor.name}'", context.data)
            found = context.constants[id(tensor)] = (tensor, context.constant(array))
        names[tensor.name] = found[1]
    for value, feed in zip(graph.input, feeds, strict=True):
        _check_element(context, f"input '{value.name}' of subgraph '{graph.name}'", value, feed)
        names[value.name] = feed
    try:
        translate_nodes(context, names, graph.node, names_read(graph))
    finally:
        context.node, context.made = node, made
    missing = [value.name for value in graph.output if value.name not in names]
    if missing:
        raise ModelError(f"{node}: outputs {missing} of its subgraph '{graph.name}' are computed by no node")
    for value in graph.output:
        where = f"output '{value.name}' of subgraph '{graph.name}'"
        _check_element(context, where, value, names[value.name])
    return [names[value.name] for value in graph.output]


def _check_element(context: Context, where: str, value: onnx.ValueInfoProto, name: str) -> None:
    """Refuses a value of a subgraph that is declared with another element type than it has."""
    element = value.type.tensor_type.elem_type
    if element:
        check_declared(f"{context.node}: {where}", value, context.builder.types[name], dtype_name(element, where))


def names_read(graph: onnx.GraphProto) -> set[str]:
    """Names that nodes of a graph read, also from within subgraphs, and those of its outputs."""
    found = {value.name for value in graph.output}
    for node in graph.node:
        found.update(node.input)
        for inner in subgraphs(node).values():
            found |= names_read(inner)
    return found


def subgraphs(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    """The graphs among a node's attributes, by name."""
    graph = onnx.AttributeProto.AttributeType.GRAPH
    return {attribute.name: attribute.g for attribute in node.attribute if attribute.type == graph}


def _translate(context: Context, names: dict[str, str], node: onnx.NodeProto, position: int) -> None:
    """Adds one node's operators and binds its outputs in ``names``."""
    inputs = tuple(names[name] if name else "" for name in node.input)
    key = key_of(node.domain, node.op_type)
    opset = context.opset if node.domain in DEFAULT else context.versions.get(node.domain, NEWEST)
    n = OnnxNode(key, label_of(node, position), inputs, tuple(node.output), dict(attributes(node)), opset)
    context.begin(n)
    try:
        tensors = ["" if name in context.lists else name for name in inputs]
        check_dtypes(str(n), n.op, n.opset, tensors, [context.dtype(name) if name else "" for name in tensors])
        result = context.translators[key](context, n)
    except (ModelError, VerificationError) as error:
        text = str(error) if str(error).startswith("node '") else f"{n}: {error}"
        open_ = dims_known(context, inputs)
        if open_ and (not isinstance(error, UnsupportedOperator) or open_ & context.counted):
            raise RuntimeValue(text, getattr(error, "tensor", "")) from error  # extents that may agree in a call
        if text == str(error):
            raise
        kind = UnsupportedOperator if isinstance(error, UnsupportedOperator) else ModelError
        raise kind(text) from error
    except (KeyError, IndexError, ValueError, TypeError, ArithmeticError) as error:
        words = ", ".join(f"'{d}'" for d in sorted(map(str, dims_known(context, inputs))))
        if words and isinstance(error, TypeError):
            raise RuntimeValue(
                f"{n}: not supported where extents depend on dimension {words} ({error}); allowed: a number for it", ""
            ) from error
        raise ModelError(f"{n}: malformed inputs or attributes: {error!r}") from error
    found = [result] if isinstance(result, str) else list(result)
    for index, name in enumerate(node.output):
        if name and index < len(found) and found[index]:
            fresh = found[index] in context.made and name not in context.builder.types
            names[name] = context.builder.rename(found[index], name) if fresh else found[index]
    note_sizes(context, n, [names.get(name, "") for name in node.output])


def dims_known(context: Context, names: Sequence[str]) -> frozenset[Dim]:
    """The open dimensions in the shapes of tensors, and in their elements, as far as these are known as sizes."""
    elements = (v for name in names for v in context.sizes.get(name, np.zeros(0)).reshape(-1).tolist())
    shaped = (name for name in names if name in context.builder.types)
    return dims_of((*(extent for name in shaped for extent in context.shape(name)), *elements))


def _refuse_missing_outputs(node: OnnxNode, names: Collection[str], used: Collection[str]) -> None:
    """Optional outputs that no translator computes (a dropout's mask, …) may be there, but not be read."""
    for index, name in enumerate(node.outputs):
        if name in used and name and name not in names:
            raise UnsupportedOperator(f"{node}: output {index} ('{name}'): found in use; allowed: not used")


def attributes(node: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
    """Names and values of a node's attributes; texts are decoded."""
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            yield attribute.name, value.decode("utf-8", "replace")
        elif attribute.type == onnx.AttributeProto.STRINGS:
            yield attribute.name, [text.decode("utf-8", "replace") for text in value]
        else:
            yield attribute.name, value
