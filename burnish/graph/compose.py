"""A fused group as tensor expressions: the definitions of its nodes, one reading the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from burnish import ops
from burnish.graph.fuse import Group
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Attribute, Graph, Node, TensorType
from burnish.loops.expr import Const, Value, wrap
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.classify import elementwise_inputs


@dataclass(frozen=True, eq=False)
class _Literal(Tensor):
    """A tensor of one element whose value is known: reading it gives the number instead of a load."""

    value: float | int | bool = 0

    def __getitem__(self, indices: Value | tuple[Value, ...]) -> Const:  # type: ignore[override]
        constant = wrap(self.value, self.dtype)
        assert isinstance(constant, Const)
        return constant


def tensors(graph: Graph, group: Group) -> tuple[list[Tensor], list[Tensor]]:
    """Placeholders for ``group.inputs`` and the tensors of ``group.outputs``, in these orders.

    A stage is named after the tensor it computes, with what is no letter, digit or underscore replaced; inner stages of
    a node append ``.what``. Constants of one element are literals in the expressions. Of equal groups with the same
    names the tensors are the same objects.
    """
    form, definitions = _form(graph, group), tuple(ops.OPERATORS[node.op].function for node in group.nodes)
    exact = repr((form.literals, [attrs for _, attrs, _, _ in form.nodes]))
    inputs, outputs = _tensors(form, tuple(_numbers(group)), definitions, exact)
    return list(inputs), list(outputs)


@lru_cache(maxsize=256)
def _tensors(
    form: _Form, called: tuple[str, ...], definitions: tuple[Callable[..., object], ...], exact: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The tensors of a group whose names are ``called``; remembered, since layers repeat, and a plan asks for a group
    more than once. ``definitions`` of its operators and ``exact``, its numbers as text (0.0 equals -0.0, and 1 True),
    tell groups apart of which the forms are equal.
    """
    graph, group = _group_of(form, called)
    names = _Names()
    values: dict[str, Tensor] = {}
    inputs = []
    for name in group.inputs:
        t = graph.types[name]
        values[name] = placeholder(t.shape, t.dtype, names.of(name))
        inputs.append(values[name])
    for node in group.nodes:
        for name in node.inputs:
            if name not in values:
                literal = placeholder(graph.types[name].shape, graph.types[name].dtype, names.of(name))
                values[name] = _Literal(literal.buffer, value=graph.constants[name].reshape(-1)[0].item())
        operands = [values[name] for name in node.inputs]
        defined = ops.OPERATORS[node.op].define(names.of(node.outputs[0]), operands, node.attrs)
        values.update(zip(node.outputs, defined, strict=True))
    return tuple(inputs), tuple(values[name] for name in group.outputs)


def overwritable(graph: Graph, group: Group, result: str = "") -> tuple[str, ...]:
    """Inputs whose memory a group's ``result`` may take, if nothing else needs them and both have the same layout.

    That is: of the result's type, and read at the result's own index only, so a kernel that stores an element after
    its last read of it may store in place. Of a group with several results, which are computed in their order, part by
    part, by none that comes later; empty where one operator has them all, or where rows have them, whose threads do not
    wait for each other between them. By default the first result.
    """
    if len(group.outputs) > 1 and group.anchor is not None and facts_of(graph, group.anchor).kind == "reduction":
        return ()
    place = group.outputs.index(result) if result else 0
    return tuple(group.inputs[i] for i in _overwritable(_form(graph, group), place))


class _Form(NamedTuple):
    """Canonical form of a group up to names of tensors, which are numbered, inputs first."""

    nodes: tuple[tuple[str, tuple[tuple[str, Attribute], ...], tuple[int, ...], tuple[int, ...]], ...]
    types: tuple[TensorType, ...]
    inputs: int
    outputs: tuple[int, ...]
    literals: tuple[tuple[int, float | int | bool], ...]


def _form(graph: Graph, group: Group) -> _Form:
    number = _numbers(group)
    made = {*group.inputs, *(name for node in group.nodes for name in node.outputs)}
    literals = [(i, graph.constants[name].reshape(-1)[0].item()) for name, i in number.items() if name not in made]
    nodes = []
    for node in group.nodes:
        attrs = tuple(sorted(node.attrs.items()))
        nodes.append((node.op, attrs, tuple(number[n] for n in node.inputs), tuple(number[n] for n in node.outputs)))
    types, outputs = tuple(graph.types[name] for name in number), tuple(number[name] for name in group.outputs)
    return _Form(tuple(nodes), types, len(group.inputs), outputs, tuple(literals))


def _numbers(group: Group) -> dict[str, int]:
    """The tensors of a group by name, numbered: its inputs, then as its nodes meet them."""
    met = (name for node in group.nodes for name in (*node.inputs, *node.outputs))
    return {name: i for i, name in enumerate(dict.fromkeys((*group.inputs, *met)))}


def _group_of(form: _Form, names: Sequence[str]) -> tuple[Graph, Group]:
    """A group of this form, as a graph of its own, whose tensors have these names, by number."""

    def named(numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[i] for i in numbers)

    nodes = tuple(Node(op, named(reads), named(writes), dict(attrs)) for op, attrs, reads, writes in form.nodes)
    own, results = named(range(form.inputs)), named(form.outputs)
    constants = {names[i]: np.array([value]) for i, value in form.literals}
    graph = Graph(own, results, nodes, dict(zip(names, form.types, strict=True)), constants)
    return graph, Group(nodes, own, results)


@lru_cache(maxsize=1 << 14)
def _overwritable(form: _Form, place: int) -> tuple[int, ...]:
    """The inputs that :func:`overwritable` finds, for the output at ``place``; remembered, since layers repeat."""
    graph, group = _group_of(form, tuple(map(str, range(len(form.types)))))
    inputs, outputs = tensors(graph, group)
    if len(outputs) != 1 and any(len(node.outputs) != 1 for node in group.nodes):
        return ()
    elementwise, kind = elementwise_inputs(outputs), form.types[form.outputs[place]]
    later = {name for t in outputs[place + 1 :] for name in _reads(t, outputs)}
    return tuple(
        i for i, t in enumerate(inputs) if t.name in elementwise and form.types[i] == kind and t.name not in later
    )


def _reads(output: Tensor, outputs: Sequence[Tensor]) -> set[str]:
    """The placeholders that are read to compute an output from others."""
    found, waiting = set[str](), list(output.inputs)
    while waiting:
        t = waiting.pop()
        if t.body is None:
            found.add(t.name)
        elif t not in outputs:
            waiting += t.inputs
    return found


class _Names:
    """Stage names for tensor names: without dots, which separate inner stages, and distinct."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, tensor: str) -> str:
        """A new stage name for a tensor."""
        stem = re.sub(r"\W", "_", tensor, flags=re.ASCII) or "_"
        name, serial = stem, 1
        while name in self._taken:
            name, serial = f"{stem}_{serial}", serial + 1
        self._taken.add(name)
        return name
