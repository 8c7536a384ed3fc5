"""Structures of graphs (rows of CSR matrices) in a model: what of its inputs must be checked at a call.

A definition that reduces over a loaded extent, or reads at a loaded row as it is, relies on what is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from burnish.errors import ModelError
from burnish.graph.graph import Graph, Node
from burnish.loops.expr import INDEX, Cast, Expr, Load, Reduce
from burnish.loops.loaded import is_loaded
from burnish.loops.tensor import placeholder, stages
from burnish.loops.traverse import loads
from burnish.ops import OPERATORS, is_opaque


class Relied(NamedTuple):
    """Precondition on a tensor that kernels rely on: its ``kind`` is offsets up to ``limit``, or rows below it.

    ``limit``: an extent, a number or a size of open dimensions.
    """

    name: str
    kind: str
    limit: int


def relied_on(graph: Graph) -> tuple[Relied, ...]:
    """The inputs and constants that kernels read positions and rows from without a check, and what these may be.

    Raises ModelError for a structure that is computed, by anything but operators on structures.
    """
    makers = graph.producers()
    found: dict[Relied, None] = {}
    for node in graph.nodes:
        for number, kind, limit in _relied(graph, node):
            name = node.inputs[number]
            made = makers.get(name)
            if name in graph.inputs or name in graph.constants:
                found[Relied(name, kind, limit)] = None
            elif made is not None and not OPERATORS[made.op].traits.structure:
                argument = OPERATORS[node.op].arguments[number]
                raise ModelError(
                    f"node '{node.name or node.outputs[0]}': input '{argument}' of {node.op}: found the result of "
                    f"'{made.op}'; allowed: an input of the model, a constant, or the result of an operator on "
                    f"structures, as only these are checked"
                )
    return tuple(found)


def _relied(graph: Graph, node: Node) -> Iterator[tuple[int, str, int]]:
    """The operands of a node that it relies on, by their numbers."""
    if is_opaque(node.op) or not any(graph.types[name].dtype.startswith(("int", "uint")) for name in node.inputs):
        return
    inputs = [placeholder(graph.types[n].shape, graph.types[n].dtype, f"x{i}") for i, n in enumerate(node.inputs)]
    numbers = {t.name: i for i, t in enumerate(inputs)}
    bodies = [t.body for t in stages(OPERATORS[node.op].define("y", inputs, dict(node.attrs))) if t.body is not None]
    rows = [axis for body in bodies if isinstance(body, Reduce) for axis in body.axes if is_loaded(axis.extent)]
    for axis in rows:
        extent = axis.extent
        for end in axis.ends:
            source = _plain(end)
            if source in numbers and is_loaded(extent):
                yield numbers[source], "offsets", extent.most
    for body in bodies:
        for access in loads(body.body if isinstance(body, Reduce) else body):
            for index, extent in zip(access.indices, access.buffer.shape, strict=True):
                source = _plain(index)
                if source in numbers:
                    yield numbers[source], "rows", extent


def _plain(index: Expr) -> str:
    """The buffer whose element an expression is, as it is; nothing of any other."""
    inner = index.value if isinstance(index, Cast) and index.type == INDEX else index
    return inner.buffer.name if isinstance(inner, Load) else ""
