"""The graph verifier: every name defined once and before use, every type what the operator's definition says."""

from __future__ import annotations

from burnish.errors import ModelError, VerificationError
from burnish.graph.graph import Graph, infer_types, type_of


def verify(graph: Graph) -> None:
    """Raises VerificationError naming the node or tensor that breaks the grammar of :mod:`burnish.graph.graph`.

    Nodes that use a name before it is defined are either out of order or on a cycle; the message says which.
    """
    defined: dict[str, str] = {}
    for name in graph.inputs:
        _define(defined, name, "an input")
    for name, array in graph.constants.items():
        _define(defined, name, "a constant")
        if graph.types.get(name) != type_of(array):
            raise VerificationError(f"constant '{name}' is {type_of(array)}, its type says {graph.types.get(name)}")
    for position, node in enumerate(graph.nodes):
        for name in node.inputs:
            if name not in defined:
                where = f"node {position} '{node.name}' ({node.op})"
                raise VerificationError(f"{where} reads '{name}', {_why(graph, name)}")
        for name in node.outputs:
            _define(defined, name, f"node {position} '{node.name}'")
        _check_types(graph, position)
    for name in graph.outputs:
        if name not in defined:
            raise VerificationError(f"graph output '{name}' is defined by no input, constant or node")
    for name, state in graph.states.items():
        known = name in graph.inputs and 0 <= state.output < len(graph.outputs)
        wanted = graph.types.get(name)
        if not known or type_of(state.initial) != wanted or graph.types.get(graph.outputs[state.output]) != wanted:
            raise VerificationError(f"state '{name}' is no input, or its value before or after a call is not {wanted}")
    unused = sorted(set(graph.types) - set(defined))
    if unused:
        raise VerificationError(f"types are given for names that nothing defines: {unused}")


def _define(defined: dict[str, str], name: str, by: str) -> None:
    if name in defined:
        raise VerificationError(f"tensor '{name}' is defined twice: by {defined[name]} and by {by}")
    defined[name] = by


def _why(graph: Graph, name: str) -> str:
    """Reason why ``name`` is not defined where it is read."""
    producers = graph.producers()
    if name not in producers:
        return "which nothing defines"
    seen: set[str] = set()
    stack = list(producers[name].inputs)
    while stack:
        top = stack.pop()
        if top == name:
            return "which depends on itself: the graph has a cycle"
        if top not in seen and top in producers:
            stack.extend(producers[top].inputs)
        seen.add(top)
    return "which is defined only later: the nodes are not in topological order"


def _check_types(graph: Graph, position: int) -> None:
    node = graph.nodes[position]
    try:
        expected = infer_types(node.op, [graph.types[n] for n in node.inputs], node.attrs)
    except ModelError as error:
        raise VerificationError(f"node {position} '{node.name}': {error}") from error
    if len(node.outputs) != len(expected):
        raise VerificationError(
            f"node {position} '{node.name}' ({node.op}) has {len(node.outputs)} outputs; its definition {len(expected)}"
        )
    for name, type in zip(node.outputs, expected, strict=True):
        if graph.types.get(name) != type:
            raise VerificationError(
                f"node {position} '{node.name}' ({node.op}): output '{name}' is {graph.types.get(name)}, "
                f"its definition gives {type}"
            )
