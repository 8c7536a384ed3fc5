"""Rewrite driver of graph passes: a rule sees one node at a time and may put other nodes in its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Attribute, Graph, GraphBuilder, Node, TensorType

Rule = Callable[["Rewrite", Node], Sequence[str] | None]


class Rewrite(GraphBuilder):
    """Graph under construction by a pass, with what a rule may ask about it and about the old one."""

    def __init__(self, source: Graph) -> None:
        super().__init__()
        self.source = source
        self._producers: dict[str, Node] = {}
        self._derived: dict[tuple[str, str], str] = {}
        self._before = {node.outputs: (node.op, node.attrs) for node in source.nodes}
        self._uses = Counter(name for node in source.nodes for name in node.inputs)
        self._uses.update(source.outputs)

    def producer(self, name: str) -> Node | None:
        """The node of the new graph that computes ``name``."""
        return self._producers.get(name)

    def value(self, name: str) -> np.ndarray | None:
        """The value of a constant; None for any other tensor."""
        return self.constants.get(name)

    def derived(self, name: str, what: str, make: Callable[[np.ndarray], np.ndarray]) -> str:
        """Constant computed by ``make`` from the constant ``name``: one for all nodes that ask for the same of it.

        A layer's weight is read at every time step; a copy a step would not stay in any cache.
        """
        found = self._derived.get((name, what))
        if found is None:
            made = self.constant(make(self.constants[name]), self.fresh(f"{name}.{what}"))
            found = self._derived[name, what] = made
        return found

    def used_once(self, name: str) -> bool:
        """Whether one node reads the tensor, once, and it is no graph output."""
        return self._uses.get(name, 1) == 1 and name not in self.source.outputs

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        """The nodes of the old graph that read each tensor."""
        return self.source.consumers()

    def is_rounded(self, node: Node) -> bool:
        """Whether a result comes, element by element, to a node that a rounding error moves by more than itself: what
        gives a quantum of a quantized value, an index, a comparison.
        """
        waiting, seen = [*node.outputs], set(node.outputs)
        while waiting:
            for reader in self.readers.get(waiting.pop(), ()):
                facts = facts_of(self.source, reader)
                if facts.steps:
                    return True
                if facts.kind == "injective" and not seen.issuperset(reader.outputs):
                    seen.update(reader.outputs)
                    waiting += reader.outputs
        return False

    def replace(self, node: Node, op: str, *inputs: str, **attrs: Attribute) -> tuple[str, ...]:
        """Adds ``op`` under the output names and the node name of ``node``."""
        return self.add_many(op, *inputs, names=node.outputs, node=node.name, **attrs)

    def keep(self, node: Node) -> tuple[str, ...]:
        """Adds the node as it is."""
        before, now = self.source.types, self.types
        own = self._before.get(node.outputs) == (node.op, node.attrs)  # results are of its types if operands are
        if not own or not node.name or any(now.get(n) != before.get(n, now) for n in node.inputs):
            return self.replace(node, node.op, *node.inputs, **node.attrs)
        for name in node.outputs:
            self._define(name, before[name])
            self._producers[name] = node
        self._nodes.append(node)
        return node.outputs

    def add_many(
        self, op: str, *inputs: str, names: Sequence[str] | None = None, node: str = "", **attrs: Attribute
    ) -> tuple[str, ...]:
        """See :meth:`GraphBuilder.add_many`."""
        outputs = super().add_many(op, *inputs, names=names, node=node, **attrs)
        self._producers.update((name, self._nodes[-1]) for name in outputs)
        return outputs

    def _taken(self, name: str) -> bool:
        return super()._taken(name) or name in self.source.types  # which a later node may define


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """``graph`` with ``rule`` applied to every node in topological order, without the nodes that this leaves unused.

    The rule gets the node with its inputs already rewritten, and returns the names that stand for the node's outputs,
    or None to keep it. Names of graph inputs and outputs do not change.
    """
    new = Rewrite(graph)
    for name in graph.inputs:
        new.input(name, graph.types[name].shape, graph.types[name].dtype)
    for name, array in graph.constants.items():
        new.constant(array, name)
    renamed: dict[str, str] = {}
    for node in graph.nodes:
        if not renamed.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs))
        outputs = rule(new, node)
        if outputs is None:
            outputs = new.keep(node)
        renamed.update((old, now) for old, now in zip(node.outputs, outputs, strict=True) if old != now)
    built = restore_outputs(new.build(*(renamed.get(n, n) for n in graph.outputs)), graph.outputs)
    return drop_dead(replace(built, states=graph.states))


def drop_dead(graph: Graph) -> Graph:
    """``graph`` without the nodes that no output depends on, be it by an extent alone."""
    needed, counts = set(graph.outputs), graph.counts
    nodes = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
            if counts:
                needed.update(counts[d] for d in graph.dims_read(node) if d in counts)
    return graph.with_nodes(nodes[::-1])


def restore_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """``graph`` with outputs called ``names``: tensors are renamed where possible, else copied by an identity node."""
    computed = graph.producers()
    renamed: dict[str, str] = {}
    copies: list[Node] = []
    types: dict[str, TensorType] = dict(graph.types)
    for found, name in zip(graph.outputs, names, strict=True):
        if found == name:
            continue
        types[name] = graph.types[found]
        if found in computed and found not in names and found not in renamed:
            renamed[found] = name
        else:
            copies.append(Node("identity", (renamed.get(found, found),), (name,), {}, name))
    if not renamed and not copies:
        return graph
    nodes = [
        replace(
            node,
            inputs=tuple(renamed.get(n, n) for n in node.inputs),
            outputs=tuple(renamed.get(n, n) for n in node.outputs),
        )
        for node in graph.nodes
    ]
    return graph.with_nodes([*nodes, *copies], outputs=names, types=types)


def renamed_tensors(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for all its tensors: old name -> new name, each new one once."""

    def of(old: Sequence[str]) -> tuple[str, ...]:
        return tuple(names[name] for name in old)

    return Graph(
        of(graph.inputs),
        of(graph.outputs),
        tuple(replace(node, inputs=of(node.inputs), outputs=of(node.outputs)) for node in graph.nodes),
        {names[name]: t for name, t in graph.types.items()},
        {names[name]: array for name, array in graph.constants.items()},
        {names[name]: state for name, state in graph.states.items()},
        {names[name]: bounds for name, bounds in graph.limits.items()},
        graph.trained,
    )
