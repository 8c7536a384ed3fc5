"""The graph: nodes are operators, edges are named tensors.

Grammar (frozen dataclasses; ``str(graph)`` is the debug and golden-test format)::

    graph ::= Graph(inputs, outputs, nodes, types, constants, states)     nodes in topological order
    node  ::= Node(op, inputs, outputs, attrs, name)              op: a name in ops.OPERATORS
    type  ::= TensorType(shape, dtype)                            extents are integers or sizes

    state ::= State(output, initial)                              the input of its name is its value before a call

State is kept from call to call: an input that callers do not give, and an output that they do not get, whose value is
that of the input at the next call. To passes both are an input and an output like any other.

A tensor is known by its name; every name is defined once: by the graph's inputs, its constants or one node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from burnish import ops
from burnish.base.sizes import text_of
from burnish.errors import ModelError
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.sizes import Dim, dims_of, extent_of, is_size

Attribute = bool | int | float | str | tuple["Attribute", ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type of a tensor: extents, which are integers or sizes, and one of the dtypes of ``loops.expr.DTYPES``."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.size * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Node:
    """``outputs = op(inputs; attrs)``. ``name`` is the node's name in the imported model, for messages and profiles."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute] = field(default_factory=dict, hash=False)
    name: str = ""

    def __str__(self) -> str:
        words = [*self.inputs, *(f"{k}={v}" for k, v in sorted(self.attrs.items()))]
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(words)})"


@dataclass(frozen=True, eq=False)
class StateUpdate:
    """The value of a state after a call: the graph output of this number; and before the first call."""

    output: int
    initial: np.ndarray


@dataclass(frozen=True, eq=False)
class Graph:
    """Graph of operators: nodes in topological order, and the types of all tensors by name.

    ``inputs`` and ``outputs`` name tensors in the order of a call; ``constants`` holds arrays by name; ``states`` those
    inputs that last from call to call; ``limits`` bounds of integer inputs, lowest and one past the highest, that a
    call is to check; ``trained``: it is a step of training, or a part of one. :func:`burnish.graph.verify.verify` says
    what fits together.

    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (2, 3)})
    >>> isinstance(graph, bn.Graph), graph.inputs, str(graph.types["x"]), [node.op for node in graph.nodes]
    (True, ('x',), 'float32[2, 3]', ['relu', 'identity'])
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    states: Mapping[str, StateUpdate] = field(default_factory=dict)
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    trained: bool = False

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(f"{n}: {self.types[n]}" for n in names) for names in (self.inputs, self.outputs))
        held = text_of(sum(value.nbytes for value in self.constants.values()))
        return f"Graph({inputs} -> {outputs}; {len(self.nodes)} nodes, {held} of constants)"

    def __str__(self) -> str:
        head = ", ".join(f"{n}: {self.types[n]}" for n in self.inputs)
        lines = [f"graph({head}) -> ({', '.join(self.outputs)}):"]
        for name, array in self.constants.items():
            value = f" = {array.tolist()}" if 0 < array.size <= 4 else ""
            lines.append(f"  const {name}: {self.types[name]}{value}")
        for node in self.nodes:
            lines.append(f"  {node} : {', '.join(str(self.types[n]) for n in node.outputs)}")
        lines += [f"  state {name} = {self.outputs[state.output]}" for name, state in self.states.items()]
        return "\n".join(lines) + "\n"

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions in the shapes of inputs, and those that nodes count, in order of their names; none in a static
        graph.
        """
        found = dims_of(d for name in self.inputs for d in self.types[name].shape)
        return tuple(sorted({*found, *self.counts}, key=lambda d: d.name))

    @property
    def counts(self) -> dict[Dim, str]:
        """The dimensions whose values a call computes, each with the tensor that holds it."""
        nodes = [node for node in self.nodes if node.op in ops.COUNTING]
        return {d: node.outputs[-1] for node in nodes for d in dims_of((node.attrs["count"],))}  # type: ignore[arg-type]

    def dims_read(self, node: Node) -> frozenset[Dim]:
        """The dimensions in the types of a node's results, and in its attributes."""
        waiting: list[Any] = [*node.attrs.values()]
        sizes: list[Any] = [d for name in node.outputs for d in self.types[name].shape]
        while waiting:
            value = waiting.pop()
            if isinstance(value, tuple):
                waiting += value
            elif is_size(value):
                sizes.append(value)
        return dims_of(sizes)

    def producers(self) -> dict[str, Node]:
        """Tensor name -> the node that computes it."""
        return {name: node for node in self.nodes for name in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Tensor name -> the nodes that read it, in order, each once. Names that nothing reads map to ``[]``."""
        readers: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers[name].append(node)
        return readers

    def with_nodes(
        self,
        nodes: Sequence[Node],
        *,
        outputs: Sequence[str] | None = None,
        types: Mapping[str, TensorType] | None = None,
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> Graph:
        """A copy with other nodes (and, where given, outputs, types, constants) that keeps only the names still in use.

        Inputs stay, used or not: they are the model's signature.
        """
        outputs = self.outputs if outputs is None else tuple(outputs)
        types = self.types if types is None else types
        constants = self.constants if constants is None else constants
        read = {name for node in nodes for name in node.inputs} | set(outputs)
        kept = {name: array for name, array in constants.items() if name in read}
        named = {*self.inputs, *kept, *(name for node in nodes for name in node.outputs)}
        return replace(
            self,
            outputs=outputs,
            nodes=tuple(nodes),
            types={name: t for name, t in types.items() if name in named},
            constants=kept,
        )


def type_of(array: np.ndarray) -> TensorType:
    """The type of a NumPy array."""
    return TensorType(array.shape, str(array.dtype))


def infer_types(op: str, inputs: Sequence[TensorType], attrs: Mapping[str, Attribute]) -> list[TensorType]:
    """Types of an operator's outputs. Raises ModelError for an unknown operator or operands that do not fit."""
    if op not in ops.OPERATORS:
        raise ModelError(f"unknown operator '{op}'; known: {', '.join(sorted(ops.OPERATORS))}")
    try:
        return list(_inferred(op, tuple(inputs), tuple(sorted(attrs.items()))))
    except TypeError:  # an attribute that cannot be hashed: a list, which the operator accepts or refuses itself
        return [TensorType(tuple(s), d) for s, d in ops.infer(op, [(t.shape, t.dtype) for t in inputs], attrs)]


@lru_cache(maxsize=1 << 16)
def _inferred(
    op: str, inputs: tuple[TensorType, ...], attrs: tuple[tuple[str, Attribute], ...]
) -> tuple[TensorType, ...]:
    inferred = ops.infer(op, [(t.shape, t.dtype) for t in inputs], dict(attrs))
    return tuple(TensorType(tuple(s), d) for s, d in inferred)


_MOVES = ("cast", "expand", "identity", "reshape", "transpose")  # operators that keep every element of an index


class GraphBuilder:
    """Builds a graph one node at a time; types are inferred at once, so an error names the node that causes it."""

    def __init__(self) -> None:
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._initial: dict[str, np.ndarray] = {}  # of each state
        self._limits: dict[str, tuple[int, int]] = {}
        self._next: dict[str, str] = {}  # the tensor that each state becomes
        self._born: dict[str, int] = {}  # how many nodes there were when a tensor was defined
        self._serial = 0
        self.trained = False  # as Graph.trained
        self.segments: tuple[int, ...] = ()  # numbers of the nodes with which segments of a recurrence begin

    @classmethod
    def of(cls, graph: Graph) -> GraphBuilder:
        """A builder that goes on from a graph: with its inputs, constants, nodes and states."""
        builder = cls()
        for name in graph.inputs:
            builder._define(name, graph.types[name])
            builder._inputs.append(name)
        for name, value in graph.constants.items():
            builder.constant(value, name)
        for node in graph.nodes:
            for name in node.outputs:
                builder._define(name, graph.types[name])
            builder._nodes.append(node)
        for name, state in graph.states.items():
            builder._initial[name] = state.initial
            if graph.outputs[state.output] != name:
                builder._next[name] = graph.outputs[state.output]
        builder._limits.update(graph.limits)
        builder.trained = graph.trained
        return builder

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far, in topological order."""
        return tuple(self._nodes)

    def lasting(self) -> set[str]:
        """Constants, states, and what is computed from these alone: the same at every time of a recurrence."""
        found = {*self.constants, *self._initial}
        for node in self._nodes:
            if found.issuperset(node.inputs):
                found.update(node.outputs)
        return found

    def fresh(self, stem: str) -> str:
        """An unused tensor name that starts with ``stem``."""
        name = stem
        while self._taken(name):
            self._serial += 1
            name = f"{stem}.{self._serial}"
        return name

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        """Declares a graph input; an extent may be a size (``loops.sizes.dim``), known when the model is called."""
        self._define(name, TensorType(tuple(extent_of(d) for d in shape), dtype))
        self._inputs.append(name)
        return name

    def state(self, name: str, initial: np.ndarray) -> str:
        """Declares a state, which keeps its value from call to call; :meth:`update` says what it becomes."""
        self.input(name, initial.shape, str(initial.dtype))
        self._initial[name] = np.array(initial)
        return name

    def limit(self, index: str, low: int, high: int) -> None:
        """Makes calls refuse integers below ``low`` and from ``high`` on where ``index`` is an input, or one that was
        only moved and cast; of what a graph computes nothing is checked.
        """
        makers = {name: node for node in self._nodes for name in node.outputs}
        while index in makers and makers[index].op in _MOVES:
            index = makers[index].inputs[0]
        if index in self._inputs and index not in self._initial and "int" in self.types[index].dtype:
            least, most = self._limits.get(index, (low, high))
            self._limits[index] = max(least, low), min(most, high)

    def update(self, state: str, value: str) -> None:
        """Makes a state ``value`` at the end of a call. Raises ModelError for another type, and a second update."""
        if state not in self._initial or state in self._next:
            raise ModelError(f"state '{state}' is not declared, or updated twice; allowed: each state once")
        if value not in self.types or self.types[value] != self.types[state]:
            found = self.types.get(value, "nothing")
            raise ModelError(f"state '{state}': found '{value}', {found}; allowed: {self.types[state]}")
        self._next[state] = value

    @property
    def updates(self) -> dict[str, str]:
        """Next values of the states that are updated so far."""
        return dict(self._next)

    def revise(self, state: str, value: str) -> None:
        """Makes an updated state ``value`` instead, which may be computed from what it was to become."""
        del self._next[state]
        self.update(state, value)

    def constant(
        self, value: np.ndarray | np.generic | float | int, name: str | None = None, dtype: str | None = None
    ) -> str:
        """Adds a constant; a Python number needs ``dtype`` unless float32 (float) or int64 (int) is meant."""
        if isinstance(value, np.ndarray | np.generic):
            value = np.asarray(value) if dtype is None else np.asarray(value).astype(dtype)
        else:
            value = np.array(value, dtype or ("float32" if isinstance(value, float) else "int64"))
        name = self.fresh("const") if name is None else name
        self._define(name, type_of(value))
        self.constants[name] = value
        return name

    def count(self, x: str, dtype: str, axes: Sequence[int] | None = None) -> str:
        """The number of elements of ``x``, along ``axes`` or all, as a scalar: a constant unless a call decides it."""
        shape = self.types[x].shape
        own = range(len(shape)) if axes is None else axes
        found = self.constant(np.array(math.prod(shape[d] for d in own if not is_size(shape[d]))), dtype=dtype)
        # Of an input where one has the extent: what a kernel reads must be kept until then.
        given = {n: (name, e) for name in reversed(self._inputs) for e, n in enumerate(self.types[name].shape)}
        for d in own:
            if is_size(shape[d]):
                source, axis = given.get(shape[d], (x, d))
                extent = self.add("reshape", self.add("shape_of", source, dims=(axis,)), shape=())
                found = self.add("mul", found, self.add("cast", extent, to=dtype))
        return found

    def add(self, op: str, *inputs: str, name: str | None = None, node: str = "", **attrs: Attribute) -> str:
        """Adds a node with one output, called ``name`` (default: after the operator), and returns that name."""
        (output,) = self.add_many(op, *inputs, names=None if name is None else [name], node=node, **attrs)
        return output

    def add_many(
        self, op: str, *inputs: str, names: Sequence[str] | None = None, node: str = "", **attrs: Attribute
    ) -> tuple[str, ...]:
        """Adds a node with any number of outputs and returns their names. ``node`` is its name in messages."""
        unknown = [i for i in inputs if i not in self.types]
        if unknown:
            raise ModelError(f"node '{node or op}': inputs {unknown} are not defined before it")
        types = infer_types(op, [self.types[i] for i in inputs], attrs)
        outputs: list[str] = []
        for position, output_type in enumerate(types):
            given = names[position] if names is not None and position < len(names) else ""
            output = given or self.fresh(f"{outputs[0]}.{position}" if outputs else op)
            self._define(output, output_type)
            outputs.append(output)
        self._nodes.append(Node(op, inputs, tuple(outputs), dict(attrs), node or outputs[0]))
        return tuple(outputs)

    def extend(self, node: Node, attrs: Mapping[str, Attribute]) -> Node:
        """Gives a node attributes with which it has further results behind those that it has; returns it anew."""
        (position,) = (i for i, n in enumerate(self._nodes) if n.outputs == node.outputs)
        node = self._nodes[position]
        types = infer_types(node.op, [self.types[i] for i in node.inputs], attrs)
        outputs = list(node.outputs)
        for number, output_type in enumerate(types[len(outputs) :], len(outputs)):
            outputs.append(self.fresh(f"{outputs[0]}.{number}"))
            self._define(outputs[-1], output_type)
            self._born[outputs[-1]] = position
        self._nodes[position] = replace(node, outputs=tuple(outputs), attrs=dict(attrs))
        return self._nodes[position]

    def rename(self, old: str, new: str) -> str:
        """Gives a tensor another, unused name; returns it. Looks at the nodes since it was defined."""
        born = self._born.pop(old)
        self._define(new, self.types.pop(old))
        self._born[new] = born
        if old in self.constants:
            self.constants[new] = self.constants.pop(old)
        for position in range(born, len(self._nodes)):
            node = self._nodes[position]
            if old in node.inputs or old in node.outputs:
                inputs, outputs = (tuple(new if n == old else n for n in ns) for ns in (node.inputs, node.outputs))
                self._nodes[position] = replace(node, inputs=inputs, outputs=outputs)
        return new

    def build(self, *outputs: str) -> Graph:
        """The finished graph; constants and types that nothing uses are dropped."""
        missing = [name for name in outputs if name not in self.types]
        if missing:
            raise ModelError(f"graph outputs {missing} are not defined")
        # A state that nothing updates is an output all the same: its own value.
        after = [self._next.get(name, name) for name in self._initial]
        states = {name: StateUpdate(len(outputs) + i, value) for i, (name, value) in enumerate(self._initial.items())}
        outputs = (*outputs, *after)
        graph = Graph(
            tuple(self._inputs), outputs, tuple(self._nodes), self.types, self.constants, states, self._limits,
            self.trained,
        )  # fmt: skip
        return graph.with_nodes(graph.nodes)

    def _taken(self, name: str) -> bool:
        return name in self.types

    def _define(self, name: str, type: TensorType) -> None:
        if name in self.types:
            raise ModelError(f"tensor '{name}' is defined twice")
        self.types[name] = type
        self._born[name] = len(self._nodes)
