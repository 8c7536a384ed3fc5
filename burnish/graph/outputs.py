"""Output buffers: each graph output has its own; an input, a constant or another output is copied there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from burnish.graph.graph import Graph, Node


def own_outputs(graph: Graph) -> Graph:
    """``graph`` with each output computed by a node, and listed once.

    A constant that is an output gives its name to the copy. The copy of an input, or of an output that is listed again,
    gets a new name, since the old one is taken.
    """
    computed = graph.producers()
    outputs: list[str] = []
    copies: list[Node] = []
    types, constants = dict(graph.types), dict(graph.constants)
    renamed: dict[str, str] = {}
    for name in graph.outputs:
        if name in computed and name not in outputs:
            outputs.append(name)
            continue
        source, copy = name, _fresh(name, types)
        types[copy] = types[name]
        if name in constants:
            source, copy = copy, name
            constants[source] = constants.pop(name)
            renamed[name] = source
        copies.append(Node("identity", (source,), (copy,), {}, copy))
        computed[copy] = copies[-1]
        outputs.append(copy)
    nodes = [replace(n, inputs=tuple(renamed.get(i, i) for i in n.inputs)) for n in graph.nodes]
    return graph.with_nodes([*nodes, *copies], outputs=outputs, types=types, constants=constants) if copies else graph


def _fresh(name: str, taken: Collection[str]) -> str:
    serial = 1
    while f"{name}.{serial}" in taken:
        serial += 1
    return f"{name}.{serial}"
