"""Sharding propagation to values without an annotation, above all to the backward pass, which follows the forward one.

An adjoint belongs to a result that the strategy names: that of a node which reads the same operands, and has its shape.
What is computed from it element by element, or is its sum, is placed like that result; a product with it is split along
the same axes on the same devices, and leaves terms of a sum for what reads it: so the backward pass of an operation is
on the devices of its forward pass. Gradients of parameters of which each device has a part are split like these. Any
other value follows the operand that is split into most parts.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import prod

from burnish.parallel.model.placement import Placement, TensorSplit, added_up, size
from burnish.parallel.model.values import GraphValues, NodeOutput

MOVING = frozenset({"injective"})  # fusion classes of element-wise values


class Followers:
    """Sharding propagation from ``splits``, and ``placements`` so far; ``led``: inputs that values follow as well."""

    def __init__(
        self,
        values: GraphValues,
        splits: Collection[str],
        placements: dict[str, Placement],
        led: Mapping[str, Placement],
        own: Collection[str],
    ) -> None:
        self._values, self._named, self._own = values, frozenset(splits), frozenset(own)
        self._placements, self._led = ChainMap(placements, {**led}), led
        self._parameters = self._updated([*values.graph.states])
        self._parted = self._updated([name for name in values.graph.states if name in led])
        self._results = self._belonging()

    def split(self, value: NodeOutput) -> TensorSplit:
        """The split of a value."""
        state = self._led.get(self._parted.get(value.name, ""))
        if state is not None and state.split is not None:
            return state.split
        result = self._placements.get(self._results.get(value.name, ""))
        if result is not None and result.split is not None and self._values.kinds(value.node) <= MOVING:
            return replace(added_up(result.split), terms=())
        return self._following(value)

    def _updated(self, states: Collection[str]) -> dict[str, str]:
        """Updated state of each value that ends, element by element, in the update of one of these states, of its
        shape.
        """
        graph = self._values.graph
        found = {graph.outputs[graph.states[name].output]: name for name in states}
        for node in reversed(graph.nodes):
            state = found.get(node.outputs[0])
            if state is None or len(node.outputs) > 1 or not self._values.kinds(node) <= MOVING:
                continue
            for name in node.inputs:
                if name in self._values.made and graph.types[name].shape == graph.types[state].shape:
                    found.setdefault(name, state)
        return found

    def _belonging(self) -> dict[str, str]:
        """Result to which each adjoint belongs, as far as that is one alone."""
        near: dict[str, set[str]] = {}
        all_of: dict[str, set[str]] = {}
        for node in self._values.graph.nodes:
            if self._named.intersection(node.outputs):
                continue
            for name in dict.fromkeys(node.inputs):
                if name in self._values.made and name not in self._named and name not in self._own:
                    mine, theirs = self._candidates(node.outputs[0], name)
                    if mine:
                        near[name] = near.get(name, mine) & mine
                    if mine | theirs:
                        all_of[name] = all_of.get(name, mine | theirs) & (mine | theirs)
        chosen = {name: near.get(name) or found for name, found in all_of.items()}
        return {name: next(iter(found)) for name, found in chosen.items() if len(found) == 1}

    def _candidates(self, made: str, adjoint: str) -> tuple[set[str], set[str]]:
        """The results that an operand of the value ``made`` may belong to: of an element-wise value other operands, and
        results of nodes that read these, or the parameter whose gradient the value is.
        """
        values, types = self._values, self._values.graph.types
        node, shape = values.made[made].node, types[adjoint].shape
        others = [name for name in node.inputs if name != adjoint]
        mine = {name for name in others if name in self._named and types[name].shape == shape}
        if not values.kinds(node) <= MOVING:
            mine = set()
        read = [*others, *([self._parameters[made]] if made in self._parameters else [])]
        results = (out for name in read for reader in values.readers.get(name, []) for out in reader.outputs)
        return mine, {out for out in results if out in self._named and types[out].shape == shape}

    def _following(self, value: NodeOutput) -> TensorSplit:
        """The split that follows from that of an operand."""
        values = self._values
        leader = self._leader(value)
        rank = len(values.graph.types[value.name].shape)
        if leader is None:
            return TensorSplit((1,) * rank, (0,))
        position, source = leader
        split = source.split
        assert split is not None
        first = source.tasks[0].device
        if not values.has_definition(value.node):
            return TensorSplit((1,) * rank, (first,))
        extents = (*values.graph.types[value.name].shape, *values.summed(value))
        degrees = [1] * len(extents)
        along: dict[int, int] = {}  # axis -> dimension of the leader
        for d, axis in enumerate(values.axes_along(value, position)):
            if axis is not None and axis not in along and 1 < split.degrees[d] <= extents[axis]:
                degrees[axis] = split.degrees[d]
                along[axis] = d
        devices = []
        for number in range(prod(degrees)):
            at = _digits(number, degrees)
            place = [0] * len(split.degrees)
            for axis, d in along.items():
                place[d] = at[axis]
            devices.append(split.devices[_number(place, split.degrees) * source.terms])
        return TensorSplit(tuple(degrees[:rank]), tuple(devices), tuple(degrees[rank:]))

    def _leader(self, value: NodeOutput) -> tuple[int, Placement] | None:
        """The operand that a value follows: whole values before terms of sums, most parts, then most elements.

        What reads an adjoint follows that, where its result is, or parted inputs, and no other results.
        """
        found: dict[int, Placement] = {}
        adjoint = False
        for position, name in enumerate(value.node.inputs):
            placement = self._placements.get(self._results.get(name, name))
            if placement is not None and not placement.copies:
                found[position] = placement
                adjoint = adjoint or name in self._results
        if adjoint:
            named = {p for p in found if value.node.inputs[p] in self._named}
            found = {p: placement for p, placement in found.items() if p not in named}
        best: tuple[tuple[bool, int, int], int] | None = None
        for position, placement in found.items():
            elements = sum(size(task.box) for task in placement.tasks) // placement.terms
            score = (placement.terms == 1, len(placement.tasks) // placement.terms, elements)
            if best is None or score > best[0]:
                best = score, position
        return None if best is None else (best[1], found[best[1]])


def _digits(number: int, degrees: Iterable[int]) -> list[int]:
    found = []
    for degree in reversed([*degrees]):
        number, digit = divmod(number, degree)
        found.append(digit)
    return found[::-1]


def _number(digits: Iterable[int], degrees: Iterable[int]) -> int:
    number = 0
    for digit, degree in zip(digits, degrees, strict=True):
        number = number * degree + digit
    return number
