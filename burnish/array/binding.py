"""Binding: symbols become a graph when the types of their variables are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.array.operators import CAST, COPY, common_dtype, conditions, for_dtype
from burnish.array.symbol import Extent, Symbol, reachable
from burnish.array.types import promoted
from burnish.errors import InputError, ModelError, UnsupportedOperator
from burnish.graph.graph import Graph, GraphBuilder, TensorType
from burnish.loops.numeric import numpy_dtype
from burnish.train.losses import LOSSES


@dataclass(frozen=True, eq=False)
class BoundSymbols:
    """The graph of symbols. Its outputs are the ``heads`` and then what states become, by ``updates`` in this order.

    Its inputs are the ``variables`` and the ``states``, whose initial values these are.
    """

    graph: Graph
    heads: tuple[str, ...]
    updates: tuple[str, ...]
    variables: tuple[str, ...]
    states: Mapping[str, np.ndarray]


def bind_types(heads: Sequence[Symbol], types: Mapping[str, TensorType], training: bool = False) -> BoundSymbols:
    """The graph, for the types of free variables; those whose shape follows need none.

    Raises InputError for a variable without a type, or of another one than it says, naming it; ModelError and
    UnsupportedOperator for operands that do not fit, naming the operator's result.
    """
    return _Binder(types, training).bind(heads)


class _Binder:
    """Replays symbols on a builder of graphs."""

    def __init__(self, types: Mapping[str, TensorType], training: bool) -> None:
        self.types, self.training = types, training
        self.builder = GraphBuilder()
        self.tensors: dict[int, str] = {}  # of symbols
        self.results: dict[object, tuple[str, ...]] = {}  # of operators
        self.variables: dict[str, Symbol] = {}
        self.states: dict[str, np.ndarray] = {}
        self.updates: dict[str, str] = {}

    def bind(self, heads: Sequence[Symbol]) -> BoundSymbols:
        order = reachable(heads, self.training)
        known = {s.name for s in order if s.kind == "variable"}
        unknown = sorted(set(self.types) - {s.name for s in reachable(heads) if s.kind == "variable"})
        if unknown:
            raise InputError(f"bind: found {unknown}; allowed: the free variables {', '.join(sorted(known)) or 'none'}")
        for symbol in order:
            self.tensors[id(symbol)] = self._tensor(symbol)
            for state, value in symbol.updates if self.training else ():
                self._update(state, value)
        b = self.builder
        names = tuple(b.add(COPY, self.tensors[id(h)], name=b.fresh(f"{h.name}.out")) for h in heads)
        after = tuple(b.add(COPY, value, name=b.fresh(f"{name}.new")) for name, value in self.updates.items())
        graph = b.build(*names, *after)
        return BoundSymbols(graph, names, tuple(self.updates), tuple(self.variables), self.states)

    def _tensor(self, symbol: Symbol) -> str:
        match symbol.kind:
            case "variable":
                return self._variable(symbol)
            case "state":
                return self._state(symbol)
            case "constant":
                return self._constant(symbol)
            case "mode":
                return self.tensors[id(symbol.inputs[0 if self.training else 1])]
            case "loss":
                output, label = (self.tensors[id(s)] for s in symbol.inputs)
                return LOSSES[symbol.operator].build(self.builder, [output], [label])
        if symbol.node not in self.results:
            self.results[symbol.node] = self._apply(symbol)
        found = self.results[symbol.node]
        if symbol.index >= len(found):
            raise InputError(f"symbol '{symbol.name}': found result {symbol.index}; allowed: 0 to {len(found) - 1}")
        return found[symbol.index]

    def _variable(self, symbol: Symbol) -> str:
        other = self.variables.get(symbol.name)
        type_ = self._type(symbol)
        if other is not None:
            if self.builder.types[symbol.name] != type_:
                found = self.builder.types[symbol.name]
                raise InputError(f"variable '{symbol.name}': found {type_} and {found}; allowed: one type for a name")
            return symbol.name
        self.variables[symbol.name] = symbol
        return self.builder.input(symbol.name, type_.shape, type_.dtype)

    def _type(self, symbol: Symbol) -> TensorType:
        given = self.types.get(symbol.name)
        if symbol.operator:  # labels
            output = self.builder.types[self.tensors[id(symbol.inputs[0])]]
            (own,) = LOSSES[symbol.operator].labels([output]).values()
        elif symbol.shape is not None:
            own = TensorType(self._shape(symbol), symbol.dtype or "float32")
        elif given is not None:
            return given
        else:
            raise InputError(f"variable '{symbol.name}': found no shape; allowed: one given where it is bound")
        if given is not None and given != own:
            raise InputError(f"variable '{symbol.name}': found {given}; allowed: {own}")
        return own

    def _shape(self, symbol: Symbol) -> tuple[int, ...]:
        shape = []
        for d in symbol.shape or ():
            if isinstance(d, Extent):
                like = self.builder.types[self.tensors[id(symbol.inputs[0])]].shape
                if not -len(like) <= d.axis < len(like):
                    raise InputError(
                        f"'{symbol.name}': found the extent of axis {d.axis}; allowed: one of {list(like)}"
                    )
                d = like[d.axis]
            shape.append(d)
        return tuple(shape)

    def _state(self, symbol: Symbol) -> str:
        if symbol.name not in self.states:
            assert symbol.value is not None
            self.states[symbol.name] = np.broadcast_to(symbol.value, self._shape(symbol)).copy()
            self.builder.input(symbol.name, self._shape(symbol), symbol.dtype or "float32")
        return symbol.name

    def _constant(self, symbol: Symbol) -> str:
        if symbol.dtype is None:
            return ""  # a number, which has the dtype of what it meets
        return self.builder.constant(np.asarray(symbol.value), self.builder.fresh(symbol.name))

    def _update(self, state: Symbol, value: Symbol) -> None:
        name, found = state.name, self.builder.types[self.tensors[id(value)]]
        if found != self.builder.types[name] or name in self.updates:
            own = self.builder.types[name]
            raise InputError(f"state '{name}': found a value {found}; allowed: {own}, and one update for each state")
        self.updates[name] = self.tensors[id(value)]

    def _apply(self, symbol: Symbol) -> tuple[str, ...]:
        """An operator's node, behind the conversions of its operands."""
        b = self.builder
        own = [
            b.types[self.tensors[id(s)]].dtype if self.tensors[id(s)] else np.asarray(s.value).item()
            for s in symbol.inputs
        ]
        first, dtype = conditions(symbol.operator), common_dtype(symbol.operator, own)
        operands = []
        for at, (source, found) in enumerate(zip(symbol.inputs, own, strict=True)):
            wanted = promoted([found]) if dtype is None or at < first else dtype
            tensor = self.tensors[id(source)]
            if not tensor:
                tensor = b.constant(np.asarray(source.value).astype(numpy_dtype(wanted)))
            elif found != wanted:
                tensor = b.add(CAST, tensor, to=wanted)
            operands.append(tensor)
        name = b.fresh(symbol.name.partition(".")[0] if symbol.index else symbol.name)
        try:
            return b.add_many(for_dtype(symbol.operator, dtype), *operands, names=[name], node=name, **symbol.attrs)
        except (ModelError, UnsupportedOperator) as error:
            raise type(error)(f"symbol '{name}': {error}") from error
