"""Running of segments and of what runs between them in Python: bound once, so that a call adds microseconds to them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np

from burnish.driver.nested import PythonStep
from burnish.errors import ArtifactError, InputError, TargetError, UnsupportedOperator, VerificationError
from burnish.frontend.onnx.context import RuntimeValue
from burnish.frontend.onnx.eager import EagerNode
from burnish.frontend.onnx.nodes import attributes
from burnish.frontend.onnx.segments import OnnxSegment, SegmentedGraph
from burnish.frontend.onnx.validity import label_of
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, type_of
from burnish.loops.sizes import greatest
from burnish.runtime.module import Module
from burnish.runtime.quick import QuickCall, QuickCalls

KEPT = 32  # compiled variants of a segment
FEW_VARIANTS = 8  # of which nothing notes which is used
FEW_ELEMENTS = 1 << 14  # of all values of a graph: one that is met once is interpreted sooner than compiled

Env = dict[str, Any]
Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
Reader = Callable[[Env], Sequence[Any]]
_CALLED = object()  # in the place of a constant: a value of the call


@dataclass(eq=False)
class _Variants:
    """Compiled variants of a segment, by types and wanted values; ``met``: combinations that were met once."""

    runs: OrderedDict[Any, Run] = field(default_factory=OrderedDict)
    met: set[Any] = field(default_factory=set)


@dataclass(eq=False)
class _Bound:
    """A program as it is cut now: of each level its segment, if it computes anything, and the nodes behind it."""

    version: int
    levels: list[tuple[_Segment | None, list[_Node]]]
    outputs: Reader


@dataclass(eq=False)
class _Segment:
    """A segment, its variants, and which of what it reads it wants the values of; ``last``: what ran last, where types
    alone decide that it runs again.
    """

    program: SegmentedGraph
    segment: OnnxSegment
    variants: _Variants
    wanted: tuple[int, ...]
    reads: Reader
    label: str
    what: str
    last: QuickCall | QuickCalls | None = None


@dataclass(eq=False)
class _Node:
    """A node, with what is the same at every call."""

    inputs: Reader
    outputs: tuple[str, ...]
    call: Callable[[EagerNode], Sequence[Any]]
    own: EagerNode
    children: dict[str, SegmentedGraph]
    name: str
    what: str


class SegmentCalls:
    """Runs programs. ``compiler`` makes a module of a graph; calls take turns."""

    def __init__(self, compiler: Callable[[Graph], Module]) -> None:
        self._compiler = compiler
        self._variants: dict[tuple[int, tuple[int, ...]], _Variants] = {}
        self._bound: dict[int, _Bound] = {}  # by the identity of programs, which the outermost one keeps alive
        self._rows: list[tuple[str, str, float]] | None = None
        self.compilations = 0

    def run(self, program: SegmentedGraph, values: Mapping[str, Any], around: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs of a program on its inputs; ``around`` holds what a subgraph sees."""
        env: Env = {name: around[name] for name in program.outside if name in around} if around else {}
        env |= values
        bound, level = self._bind(program), 0
        while level < len(bound.levels):
            segment, nodes = bound.levels[level]
            if segment is not None and not self._run_segment(segment, env):
                bound = self._bind(program)  # it is cut anew: the program knows now what it wants to know
                continue
            for node in nodes:
                self._run_node(node, env)
            level += 1
        return bound.outputs(env)

    def prepare(self, program: SegmentedGraph, given: Mapping[str, np.ndarray]) -> None:
        """Compiles the first segment, if it reads no more than what is given. Raises what compilation raises."""
        while set((segment := program.segments[0]).reads) <= given.keys() - program.wanted and segment.writes:
            bound = self._bind(program).levels[0][0]
            assert bound is not None
            try:
                self._compiled(bound, [given[name] for name in segment.reads])
                return
            except RuntimeValue:
                continue

    def modules(self) -> Iterator[Module]:
        """The compiled segments."""
        for variants in self._variants.values():
            for run in variants.runs.values():
                if isinstance(run, _Compiled):
                    yield run.module

    @contextmanager
    def timed(self) -> Iterator[list[tuple[str, str, float]]]:
        """Collects the time of every step."""
        self._rows = rows = list[tuple[str, str, float]]()
        try:
            yield rows
        finally:
            self._rows = None

    def _bind(self, program: SegmentedGraph) -> _Bound:
        found = self._bound.get(id(program))
        if found is None or found.version != program.version:
            levels = [
                (self._bind_segment(program, number), [_bind_node(program, at) for at in program.eager_at(number)])
                for number in range(program.depth)
            ]
            found = _Bound(program.version, levels, _reader(program, program.outputs))
            self._bound[id(program)] = found
        return found

    def _bind_segment(self, program: SegmentedGraph, number: int) -> _Segment | None:
        segment = program.segments[number]
        if not segment.writes:
            return None
        first = segment.nodes[0]
        variants = self._variants.setdefault((id(program), segment.nodes), _Variants())
        wanted = tuple(i for i, name in enumerate(segment.reads) if name in program.wanted)
        label = label_of(program.nodes[first], first)
        reads = _names_reader(segment.reads)
        return _Segment(program, segment, variants, wanted, reads, label, f"segment of {len(segment.nodes)} nodes")

    def _run_node(self, node: _Node, env: Env) -> None:
        """Runs a node on its values, and puts its results into ``env``."""
        start = time.perf_counter() if self._rows is not None else 0.0
        inputs = node.inputs(env)
        if node.children:

            def run(name: str, feeds: Sequence[Any]) -> list[Any]:
                child = node.children[name]
                given = {value.name: feed for value, feed in zip(child.inputs, feeds, strict=False)}
                return list(self.run(child, given, env))

            results = node.call(replace(node.own, inputs=inputs, run=run))
        else:
            node.own.inputs = inputs
            results = node.call(node.own)
            node.own.inputs = ()
        if self._rows is not None and not node.children:
            self._rows.append((node.name, node.what, time.perf_counter() - start))
        for name, result in zip(node.outputs, results, strict=False):
            if name:
                env[name] = result

    def _run_segment(self, bound: _Segment, env: Env) -> bool:
        """Runs a segment, after it is compiled if this is new; False where it turns out to be two."""
        start = time.perf_counter() if self._rows is not None else 0.0
        writes, arrays = bound.segment.writes, bound.reads(env)
        results = bound.last(arrays) if bound.last is not None else None
        if results is None:
            run = self._known(bound, arrays)
            if run is None:
                return False
            start = time.perf_counter() if self._rows is not None else 0.0
            results = run(arrays)
            bound.last = run.quick if isinstance(run, _Compiled) and not bound.wanted else None
        elif len(writes) == 1:
            results = (results,)
        if self._rows is not None:
            self._rows.append((bound.label, bound.what, time.perf_counter() - start))
        for name, result in zip(writes, results, strict=True):
            env[name] = result
        return True

    def _known(self, bound: _Segment, arrays: Sequence[np.ndarray]) -> Run | None:
        """Run of a segment on these arrays; None where it turns out to be two segments. Raises InputError."""
        segment, runs = bound.segment, bound.variants.runs
        try:
            key: tuple[Any, ...] = tuple([(a.shape, a.dtype.num) for a in arrays])
        except AttributeError:
            wrong = next((n, a) for n, a in zip(segment.reads, arrays, strict=True) if not isinstance(a, np.ndarray))
            raise InputError(f"value '{wrong[0]}': found {type(wrong[1]).__name__}; allowed: an array") from None
        if bound.wanted:
            key = (key, *[arrays[i].tobytes() for i in bound.wanted])
        run = runs.get(key)
        if run is None:
            try:
                return self._compiled(bound, arrays, key)
            except RuntimeValue:
                return None
        if len(runs) > FEW_VARIANTS:
            runs.move_to_end(key)
        return run

    def _compiled(self, bound: _Segment, arrays: Sequence[np.ndarray], key: Any = None) -> Run:
        """A segment for these types, and values that are wanted: compiled, or interpreted where it is small and may
        be met but once.
        """
        program, segment, variants = bound.program, bound.segment, bound.variants
        given = dict(zip(segment.reads, arrays, strict=True))
        if key is None:
            key = tuple([(a.shape, a.dtype.num) for a in arrays])
        values = {name: a for name, a in given.items() if name in program.wanted}
        types = {name: type_of(a) for name, a in given.items() if name not in values}
        graph = program.graph_of(segment, types, values)
        places = tuple(segment.reads.index(name) for name in graph.inputs)
        small = sum(greatest(t.size) for t in graph.types.values()) <= FEW_ELEMENTS
        if graph.nodes and small and variants.runs and key not in variants.met:
            variants.met.add(key)
            return _Interpreted(graph, places)
        run: Run = _Interpreted(graph, places)
        if graph.nodes:
            module = self._made(program, segment, graph)
            if module is not None:
                self.compilations += 1
                whole = places == tuple(range(len(arrays)))
                run = _Compiled(module, None if whole else places, QuickCall.of(module) if whole else None)
        variants.runs[key] = run
        while len(variants.runs) > KEPT:
            variants.runs.popitem(last=False)
        return run

    def _made(self, program: SegmentedGraph, segment: OnnxSegment, graph: Graph) -> Module | None:
        """A compiled segment; None where the target has no code for one that only counts. Raises RuntimeValue where it
        can do with its bodies apart, or with the extents that it counts once they are numbers, and what the compiler
        raises.
        """
        try:
            return self._compiler(graph)
        except PythonStep as error:
            if program.apart(segment.nodes):
                raise RuntimeValue(str(error), "") from error
            raise
        except (UnsupportedOperator, VerificationError, ArtifactError, TargetError) as error:
            if not graph.counts:
                raise
            if program.separate(segment):
                raise RuntimeValue(str(error), "") from error
            return None


@dataclass(frozen=True)
class _Compiled:
    """A compiled segment, and which of what it reads are its inputs; None: all, in order. ``quick``: what runs it on
    arrays that fit as they are, and gives None for others; None where not all that it reads are inputs.
    """

    module: Module
    places: tuple[int, ...] | None
    quick: QuickCall | QuickCalls | None

    def __call__(self, given: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        found = self.module(*(given if self.places is None else [given[p] for p in self.places]))
        return found if isinstance(found, tuple) else (found,)


@dataclass(frozen=True)
class _Interpreted:
    """A segment that is computed by the definitions of its operators."""

    graph: Graph
    places: tuple[int, ...]

    def __call__(self, given: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        found = evaluate(self.graph, {name: given[p] for name, p in zip(self.graph.inputs, self.places, strict=True)})
        return [found[name] for name in self.graph.outputs]


def _bind_node(program: SegmentedGraph, at: int) -> _Node:
    node = program.nodes[at]
    name, inputs = label_of(node, at), _reader(program, node.input)
    children = {attribute: child for (place, attribute), child in program.children.items() if place == at}
    label = f"node '{name}' ({node.op_type})"
    own = EagerNode(label, (), dict(attributes(node)), len(node.output), program.opset, _no_subgraph)
    return _Node(inputs, tuple(node.output), program.runs[at], own, children, name, f"{node.op_type} (host)")


def _no_subgraph(name: str, feeds: Sequence[Any]) -> list[Any]:
    raise LookupError(f"the node has no subgraph '{name}'")


def _reader(program: SegmentedGraph, names: Sequence[str]) -> Reader:
    """Reader of these values from a call's environment; constants are the same in each, None for an empty name."""
    fixed = [_fixed(program, name) if name else None for name in names]
    if all(value is _CALLED for value in fixed):
        return _names_reader(names)
    pairs = list(zip(names, fixed, strict=True))
    return lambda env: [env[name] if value is _CALLED else value for name, value in pairs]


def _names_reader(names: Sequence[str]) -> Reader:
    """Reader of values of a call, by name, none of which are constants."""
    if len(names) > 1:
        return itemgetter(*names)
    if not names:
        return lambda env: ()
    (name,) = names
    return lambda env: (env[name],)


def _fixed(program: SegmentedGraph, name: str) -> Any:
    """The value of a constant; the mark of others."""
    own = name in program.producer or any(value.name == name for value in program.inputs)
    return _CALLED if (own and name not in program.constants) or name not in program.known else program.array(name)
