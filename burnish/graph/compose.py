"""A fused group as tensor expressions: the definitions of its nodes, one reading the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from burnish import ops
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph
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
    a node append ``.what``. Constants of one element are literals in the expressions.
    """
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
    return inputs, [values[name] for name in group.outputs]


def overwritable(graph: Graph, group: Group, result: str = "") -> tuple[str, ...]:
    """Inputs whose memory a group's ``result`` may take, if nothing else needs them and both have the same layout.

    That is: of the result's type, and read at the result's own index only, so a kernel that stores an element after
    its last read of it may store in place. Of a group with several results, which are computed in their order, part by
    part, by none that comes later; empty where one operator has them all. By default the first result.
    """
    inputs, outputs = tensors(graph, group)
    if len(outputs) != 1 and any(len(node.outputs) != 1 for node in group.nodes):
        return ()
    place = group.outputs.index(result) if result else 0
    own, kind = elementwise_inputs(outputs), graph.types[group.outputs[place]]
    later = {name for t in outputs[place + 1 :] for name in _reads(t, outputs)}
    pairs = zip(group.inputs, inputs, strict=True)
    return tuple(name for name, t in pairs if t.name in own and graph.types[name] == kind and t.name not in later)


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
