"""Programs: recorded expressions as graphs, compiled, and run on the memory of arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.array.engine import Resource
from burnish.array.prepared import PreparedModule
from burnish.array.types import ArrayType, array_type
from burnish.driver.assembly import assemble, replaceable_inputs
from burnish.driver.compilation import compile_kernels
from burnish.graph.graph import Graph, GraphBuilder, infer_types
from burnish.machines.target import target
from burnish.runtime.module import Module

LONG = 200e-6  # seconds from which on a program is worth another thread, which takes some 50 µs to wake up
TIMED = 4  # calls whose time is taken: the first one pays for page faults


class OperatorCall:
    """Typed operator call: an operator at the types of its operands: one object for each, with the types of its
    results.
    """

    __slots__ = ("alone", "attrs", "many", "operator", "quick", "result", "results", "types")

    def __init__(self, operator: str, types: tuple[ArrayType, ...], attrs: Mapping[str, Any]) -> None:
        """Raises ModelError and UnsupportedOperator where the operator does not take such operands."""
        self.operator, self.types, self.attrs = operator, types, attrs
        found = infer_types(operator, [t.tensor for t in types], attrs)
        self.results = tuple(array_type(tuple(t.shape), t.dtype) for t in found)
        self.result, self.many = self.results[0], len(found) > 1
        self.alone: ArrayProgram | None = None
        self.quick: Callable[[Sequence[int]], None] | None = None  # that program, if a call of it takes microseconds

    def program(self) -> ArrayProgram:
        """The operator as a program of its own."""
        if self.alone is None:
            operands = tuple(~number for number in range(len(self.types)))
            self.alone = ArrayProgram(graph_of([(self, operands)], range(len(self.results))), call=self)
        return self.alone


class GraphCall(OperatorCall):
    """A whole graph as one call, whose results are the graph's outputs; it fuses with what is recorded around it."""

    __slots__ = ("graph", "threads")

    def __init__(self, graph: Graph, threads: int | None) -> None:
        self.graph, self.threads = graph, threads
        self.operator, self.attrs, self.many, self.alone, self.quick = "a graph", {}, True, None, None
        self.types, self.results = (
            tuple(array_type(tuple(graph.types[n].shape), graph.types[n].dtype) for n in names)
            for names in (graph.inputs, graph.outputs)
        )
        self.result = self.results[0]

    def program(self) -> ArrayProgram:
        """The graph as a program of its own."""
        if self.alone is None:
            self.alone = ArrayProgram(self.graph, self.threads)
        return self.alone


def graph_of(calls: Sequence[tuple[OperatorCall, tuple[int, ...]]], outputs: Sequence[int]) -> Graph:
    """The graph of recorded calls. Operands are numbers of results, counted over all calls, or ``~number`` of leaves;
    leaf ``n`` is the input ``x<n>``, if anything needs it.
    """
    builder = GraphBuilder()
    leaves: dict[int, ArrayType] = {}
    for call, operands in calls:
        leaves |= {~o: t for o, t in zip(operands, call.types, strict=True) if o < 0}
    for number in sorted(leaves):
        builder.input(f"x{number}", leaves[number].shape, leaves[number].dtype)
    names: list[str] = []
    for call, operands in calls:
        inputs = [names[o] if o >= 0 else f"x{~o}" for o in operands]
        if isinstance(call, GraphCall):
            names += _inlined(builder, call.graph, inputs)
            continue
        names += builder.add_many(call.operator, *inputs, **call.attrs)
    return builder.build(*(names[o] for o in outputs))


def _inlined(builder: GraphBuilder, graph: Graph, operands: Sequence[str]) -> list[str]:
    """Adds the nodes of a graph; the names of its outputs."""
    own = dict(zip(graph.inputs, operands, strict=True))
    own |= {name: builder.constant(value) for name, value in graph.constants.items()}
    for node in graph.nodes:
        inputs = [own[n] for n in node.inputs]
        made = builder.add_many(node.op, *inputs, names=None, node=node.name, **node.attrs)
        own.update(zip(node.outputs, made, strict=True))
    return [own[name] for name in graph.outputs]


class ArrayProgram:
    """Compiled graph as a function of the memory of arrays.

    ``replaceable``: of each output, the inputs whose memory it may take. ``tag``: what a call works in, which two calls
    cannot at the same time.
    """

    def __init__(self, graph: Graph, threads: int | None = None, call: OperatorCall | None = None) -> None:
        """Compiles. ``call``: whose program it is. Raises what compilation raises."""
        made = compile_kernels(graph, target("cpu", threads=threads))
        module = Module(assemble(made), threads)
        self.graph, self.module = graph, module
        self.outputs = tuple(array_type(tuple(t.shape), t.dtype) for t in module.outputs)
        self.replaceable: dict[int, tuple[int, ...]] = {}
        for i, o in replaceable_inputs(made):
            self.replaceable[o] = (*self.replaceable.get(o, ()), i)
        self._prepared = PreparedModule(module)
        self.run: Callable[[Sequence[int]], None] = self._run_timed
        self.long = False  # a call takes so long that another thread could help
        self.tag = Resource("temporary space of a program")
        self._times: list[float] = []
        self._call = call

    def _run_timed(self, addresses: Sequence[int]) -> None:
        """Runs on the addresses of inputs and outputs; ``run`` is this until the time of a call is known."""
        begin = time.perf_counter()
        self._prepared(addresses)
        self._times.append(time.perf_counter() - begin)
        if len(self._times) == TIMED:
            self.long = min(self._times) > LONG
            self.run = self._prepared if self.long else self._prepared.short
            if self._call is not None and self.run is not self._prepared:
                self._call.quick = self.run

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(node.op for node in self.graph.nodes))
