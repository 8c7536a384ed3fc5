"""Graph pass: operators that are made of others become these, so that parts of them fuse with what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from burnish import ops
from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, renamed_tensors, rewrite
from burnish.ops.operator import Application


def decompose(graph: Graph) -> Graph:
    """``graph`` with the parts of operators in place of them.

    The parts' results have the names of the operators' outputs, by which a strategy knows them.
    """
    results: dict[str, str] = {}
    made = rewrite(graph, partial(_parts, results))
    computed = made.producers()
    names = {new: old for old, new in results.items() if new in computed and old not in made.types}
    return renamed_tensors(made, {name: names.get(name, name) for name in made.types}) if names else made


def _parts(results: dict[str, str], new: Rewrite, node: Node) -> Sequence[str] | None:
    """The names of what stands for a node's outputs, which are noted in ``results``; None to keep it."""
    operator = ops.operator_named(node.op)
    if operator.parts is None:
        return None
    types = tuple((new.types[name].shape, new.types[name].dtype) for name in node.inputs)
    none, wanted = (None,) * len(node.outputs), (False,) * len(node.inputs)
    attrs = operator.complete(node.attrs)
    found = operator.parts(Application(new, node.inputs, node.outputs, none, wanted, types, attrs))
    results.update({} if found is None else zip(node.outputs, found, strict=True))
    return found
