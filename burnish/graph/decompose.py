"""Graph pass: operators that are made of others become these, so that parts of them fuse with what is around them."""

from __future__ import annotations

from collections.abc import Sequence

from burnish import ops
from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.ops.operator import Application


def decompose(graph: Graph) -> Graph:
    """``graph`` with the parts of operators in place of them."""
    return rewrite(graph, _parts)


def _parts(new: Rewrite, node: Node) -> Sequence[str] | None:
    operator = ops.operator_named(node.op)
    if operator.parts is None:
        return None
    types = tuple((new.types[name].shape, new.types[name].dtype) for name in node.inputs)
    none, wanted = (None,) * len(node.outputs), (False,) * len(node.inputs)
    attrs = operator.complete(node.attrs)
    return operator.parts(Application(new, node.inputs, node.outputs, none, wanted, types, attrs))
