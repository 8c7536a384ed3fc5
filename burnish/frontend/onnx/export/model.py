"""Writes a Graph as an ONNX model: constants, then node by node."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from burnish import ops
from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx.dtypes import element_type
from burnish.frontend.onnx.export import elementwise, movement, product, recurrent, reduction, sorting, window
from burnish.frontend.onnx.export.writer import OPSET, ExportedNode, Exporter, Writer
from burnish.graph.graph import Graph, Node
from burnish.graph.outputs import own_outputs
from burnish.loops.sizes import is_size

IR_VERSION = 9  # the format's version that came with opset 20
LIMIT_BYTES = 2**31 - 1  # of one protobuf message
HEADROOM_BYTES = 1 << 20  # of it for nodes and shapes
EXPORTERS: Mapping[str, Exporter] = {
    **elementwise.EXPORTERS,
    **movement.EXPORTERS,
    **product.EXPORTERS,
    **recurrent.EXPORTERS,
    **reduction.EXPORTERS,
    **sorting.EXPORTERS,
    **window.EXPORTERS,
}


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """The graph as a model of opset OPSET; names of inputs, outputs and tensors are the graph's.

    Open dimensions keep their names, and shapes that follow from them are computed from those of inputs. An output that
    is an input, or is listed twice, is copied under another name, as ONNX demands. Recurrent cells become products and
    gates. Raises UnsupportedOperator, by name, for what has no form in ONNX: the algorithms that a compilation chooses
    (export the graph before them), and dtypes that ONNX lacks for an operator; ModelError for constants of 2 GB and
    more.
    """
    _refuse_unsupported(graph)
    graph = own_outputs(graph)
    writer = Writer(graph)
    _add_constants(writer)
    for node in graph.nodes:
        _export(writer, node)
    produced = [name for node in graph.nodes for name in node.outputs if name not in graph.outputs]
    inputs, outputs, inner = (
        [_value_info(graph, name) for name in names] for names in (graph.inputs, graph.outputs, produced)
    )
    proto = onnx.helper.make_graph(
        writer.nodes, "burnish", inputs, outputs, list(writer.initializers.values()), value_info=inner
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    return onnx.helper.make_model(proto, opset_imports=[opset], ir_version=IR_VERSION, producer_name="burnish")


def _refuse_unsupported(graph: Graph) -> None:
    """Names every operator without an exporter at once."""
    if graph.states:
        raise UnsupportedOperator(f"to_onnx: ONNX has no states: {', '.join(graph.states)}")
    missing: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op not in EXPORTERS:
            missing.setdefault(node.op, []).append(node.name or node.outputs[0])
    if missing:
        words = [f"{op} ({', '.join(nodes[:5])}{', …' * (len(nodes) > 5)})" for op, nodes in missing.items()]
        raise UnsupportedOperator(f"to_onnx: ONNX has no operators for: {'; '.join(words)}")


def _add_constants(writer: Writer) -> None:
    """Adds the constants; one that is a view of a single element becomes ConstantOfShape, which takes no memory."""
    graph = writer.graph
    views = {name for name, array in graph.constants.items() if _is_fill(array)}
    total = sum(array.nbytes for name, array in graph.constants.items() if name not in views)
    if total > LIMIT_BYTES - HEADROOM_BYTES:
        raise ModelError(f"to_onnx: constants: found {total} bytes; allowed: less than 2 GB, ONNX's limit for one file")
    for name, array in graph.constants.items():
        if name in views:
            value = onnx.numpy_helper.from_array(np.array([array.flat[0]], array.dtype))
            shape = writer.ints(array.shape)
            writer.nodes.append(onnx.helper.make_node("ConstantOfShape", [shape], [name], name=name, value=value))
        else:
            writer.initialize(name, array)


def _is_fill(array: np.ndarray) -> bool:
    """Whether all elements are one place in memory."""
    return array.size > 1 and all(
        stride == 0 for extent, stride in zip(array.shape, array.strides, strict=True) if extent > 1
    )


def _export(writer: Writer, node: Node) -> None:
    """Writes one node; what it computes gets the names of its outputs."""
    attrs = ops.OPERATORS[node.op].complete(node.attrs)
    writer.node = ExportedNode(node.op, node.inputs, node.outputs, attrs, node.name or node.outputs[0])
    first = len(writer.nodes)
    result = EXPORTERS[node.op](writer, writer.node)
    results = [result] if isinstance(result, str) else list(result)
    written = {name for proto in writer.nodes[first:] for name in proto.output}
    for name, found in zip(node.outputs, results, strict=True):
        if found not in written:
            writer.nodes.append(onnx.helper.make_node("Identity", [found], [name], name=name))
            continue
        for proto in writer.nodes[first:]:
            for field in (proto.input, proto.output):
                field[:] = [name if other == found else other for other in field]


def _value_info(graph: Graph, name: str) -> onnx.ValueInfoProto:
    t = graph.types[name]
    shape = [(str(extent) if str(extent).isidentifier() else None) if is_size(extent) else extent for extent in t.shape]
    return onnx.helper.make_tensor_value_info(name, element_type(t.dtype), shape)
