"""The gradient of a node that repeats a body: the backward graph of one round, from the last round to the first.

Backpropagation through time (Werbos 1990). What a round's backward graph reads of its forward one is kept for every
round, as further results of the node; what depends on operands that all rounds share is computed again. Adjoints of
states go from round to round, as do sums of what rounds add to the gradients of shared operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from burnish.graph.graph import Attribute, GraphBuilder, Node, TensorType
from burnish.graph.rounds import operands_of
from burnish.loops.expr import FLOATS
from burnish.ops.operator import Body

Backpropagate = Callable[[GraphBuilder, Mapping[str, str], Sequence[str]], list[str]]


def reverse_rounds(
    builder: GraphBuilder,
    node: Node,
    wanted: Sequence[bool],
    seeds: Sequence[str | None],
    backpropagate: Backpropagate,
) -> list[str | None]:
    """Adds the rounds in reverse, and gives the gradients of the node's operands; None for those not ``wanted``.

    ``seeds``: the adjoints of its results. Raises UnsupportedOperator for a body with an operator without a gradient.
    """
    work = _Reverse(builder, node, tuple(wanted), tuple(seeds))
    work.differentiate(backpropagate)
    return work.emit()


@dataclass
class _Reverse:
    """One node under differentiation. Names in ``inner`` are those of the body: operand ``i`` is ``"i"``."""

    builder: GraphBuilder
    node: Node
    wanted: tuple[bool, ...]
    seeds: tuple[str | None, ...]
    inner: GraphBuilder = field(default_factory=GraphBuilder)
    carried: dict[int, str] = field(default_factory=dict)  # number of a state -> its adjoint after the round
    given: dict[int, str] = field(default_factory=dict)  # number of a result -> its adjoint in every round
    totals: dict[int, str] = field(default_factory=dict)  # number of a shared operand -> the sum of rounds so far
    found: dict[int, str] = field(default_factory=dict)  # number of an operand -> its gradient in one round
    forward: int = 0  # how many of the nodes of ``inner`` are the body's

    def __post_init__(self) -> None:
        self.body = cast(Body, self.node.attrs["body"])
        self.own = operands_of(self.node)
        self.states = len(self.own.states)
        self.shared = self.states + len(self.own.sequences)  # where operands begin that all rounds read
        self.every = cast(tuple[int, ...], self.node.attrs["every"])
        for i, name in enumerate(self.node.inputs):
            t = self.builder.types[name]
            self.inner.input(f"{i}", t.shape[1:] if self.states <= i < self.shared else t.shape, t.dtype)
        for op, inputs, outputs, attrs in self.body[0]:
            self.inner.add_many(op, *inputs, names=outputs, node=self.node.name, **dict(attrs))
        self.forward = len(self.inner.nodes)

    # --- one round ----------------------------------------------------------------------------------------------------

    def active(self) -> list[int]:
        """The operands whose adjoints are needed: those wanted, and states that depend on them."""
        found = {i for i, want in enumerate(self.wanted) if want}
        while True:
            reached = {f"{i}" for i in found}
            for _, inputs, outputs, _ in self.body[0]:
                if reached & {*inputs}:
                    reached |= {name for name in outputs if self.inner.types[name].dtype in FLOATS}
            more = {i for i in range(self.states) if self.body[1][i] in reached} - found
            if not more:
                return sorted(found)
            found |= more

    def differentiate(self, backpropagate: Backpropagate) -> None:
        """Adds the backward graph of one round."""
        active, types = self.active(), self.inner.types
        begins: dict[str, str] = {}
        for i, result in enumerate(self.body[1]):
            t = types[result]
            if i < self.states and i in active:
                self.carried[i] = begins[result] = self.inner.input(self.inner.fresh(f"after.{i}"), t.shape, t.dtype)
            if self.seeds[i] is not None and i in self.every and t.dtype in FLOATS:
                self.given[i] = seed = self.inner.input(self.inner.fresh(f"seed.{i}"), t.shape, t.dtype)
                begins[result] = self.inner.add("add", begins[result], seed) if result in begins else seed
        gradients = backpropagate(self.inner, begins, [f"{i}" for i in active])
        for i, gradient in zip(active, gradients, strict=True):
            if i >= self.shared:
                t = types[f"{i}"]
                self.totals[i] = self.inner.input(self.inner.fresh(f"total.{i}"), t.shape, t.dtype)
                self.found[i] = self.inner.add("add", self.totals[i], gradient)
            else:
                self.found[i] = self.inner.add("identity", gradient)

    def again(self) -> list[Node]:
        """The nodes of the body that depend on shared operands alone and are read behind it."""
        same = {f"{i}" for i in range(self.shared, len(self.node.inputs))} | self.inner.constants.keys()
        nodes, read = self.inner.nodes, self._read(self.inner.nodes[self.forward :])
        fixed = []
        for n in nodes[: self.forward]:
            if {*n.inputs} <= same:
                fixed.append(n)
                same |= {*n.outputs}
        kept = []
        for n in reversed(fixed):
            if read & {*n.outputs}:
                kept.append(n)
                read |= {*n.inputs}
        return kept[::-1]

    @staticmethod
    def _read(nodes: Sequence[Node]) -> set[str]:
        return {name for n in nodes for name in n.inputs}

    # --- all rounds ---------------------------------------------------------------------------------------------------

    def emit(self) -> list[str | None]:
        """Adds the node of all rounds to the graph."""
        nodes = [*self.again(), *self.inner.nodes[self.forward :]]
        made = {name for n in nodes for name in n.outputs}
        read = dict.fromkeys(name for n in nodes for name in n.inputs if name not in made)
        kept = self.keep([name for name in read if self._changes(name)])
        begin = {self.carried[i]: self._last(i) for i in self.carried}
        begin |= {self.totals[i]: self._zeros(self.builder.types[self.node.inputs[i]]) for i in self.totals}
        sequences = {name: kept[name] for name in read if name in kept}
        sequences |= {f"{i}": self.node.inputs[i] for i in range(self.states, self.shared) if f"{i}" in read}
        sequences |= {name: cast(str, self.seeds[i]) for i, name in self.given.items()}
        sequences = sequences or {f"{self.states}": self.own.sequences[0]}  # it tells how many rounds there are
        fixed = {f"{i}": self.node.inputs[i] for i in range(self.shared, len(self.node.inputs)) if f"{i}" in read}
        fixed |= {name: self._constant(name) for name in read if name in self.inner.constants}
        operands = {**begin, **sequences, **fixed}
        names = {name: f"{k}" for k, name in enumerate(operands)}
        made_body = tuple(
            (n.op, tuple(names.get(x, x) for x in n.inputs), n.outputs, tuple(sorted(n.attrs.items()))) for n in nodes
        )
        states = [self.found[i] for i in (*self.carried, *self.totals)]
        rows = [i for i in self.found if self.states <= i < self.shared]
        results = (*states, *(self.found[i] for i in rows))
        attrs: dict[str, Any] = {
            "body": (made_body, results), "states": len(states), "sequences": len(sequences),
            "every": tuple(range(len(states), len(results))), "reverse": not self.node.attrs.get("reverse", False),
        }  # fmt: skip
        outputs = self.builder.add_many(self.node.op, *operands.values(), node=f"{self.node.name}.grad", **attrs)
        place = dict(zip((*self.carried, *self.totals, *rows), outputs, strict=True))
        return [place.get(i) if want else None for i, want in enumerate(self.wanted)]

    def _changes(self, name: str) -> bool:
        """Whether this is a value of the body that differs from round to round, and no sequence."""
        made = {output for n in self.inner.nodes[: self.forward] for output in n.outputs}
        return name in made or (name.isdecimal() and int(name) < self.states)

    def keep(self, values: Sequence[str]) -> dict[str, str]:
        """Each of these values of every round, [T, ...]: results of the node, which gets those that it has not."""
        kept = {self.body[1][i]: self.node.outputs[i] for i in self.every}
        copied = {n[2][0]: n[1][0] for n in self.body[0] if n[0] == "identity" and self._changes(n[1][0])}
        kept |= {copied[name]: place for name, place in kept.items() if name in copied}
        missing = [name for name in values if name not in kept]
        if not missing:
            return kept
        nodes, results = list(self.body[0]), list(self.body[1])
        for name in missing:
            shown = name
            if name in results or name.isdecimal():  # a result is named once, and made by a node
                shown = self.inner.fresh(f"{name}.kept")
                self.inner.types[shown] = self.inner.types[name]
                nodes.append(("identity", (name,), (shown,), ()))
            results.append(shown)
        count = len(self.body[1])
        attrs: dict[str, Attribute] = {
            **self.node.attrs,
            "body": (tuple(nodes), tuple(results)),
            "every": (*self.every, *range(count, len(results))),
        }
        extended = self.builder.extend(self.node, attrs)
        return kept | dict(zip(missing, extended.outputs[count:], strict=True))

    def _last(self, state: int) -> str:
        """The adjoint that a state has behind the last round."""
        seed = self.seeds[state]
        if seed is not None and state not in self.every:
            return seed
        return self._zeros(self.builder.types[self.own.states[state]])

    def _zeros(self, t: TensorType) -> str:
        return self.builder.add("expand", self.builder.constant(0.0, dtype=t.dtype), shape=t.shape)

    def _constant(self, name: str) -> str:
        return self.builder.constant(self.inner.constants[name])
