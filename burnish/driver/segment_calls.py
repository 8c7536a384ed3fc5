"""Running of segments and of what runs between them in Python: bound once, so that a call adds microseconds to them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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

KEPT = 32  # compiled variants of a segment
FEW_VARIANTS = 8  # of which nothing notes which is used
FEW_ELEMENTS = 1 << 14  # of all values of a graph: one that is met once is interpreted sooner than compiled

Env = dict[str, Any]
Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
_CALLED = object()  # in the place of a constant: a value of the call


@dataclass(eq=False)
class _Variants:
    """What was compiled of a segment, by types and wanted values; ``met``: combinations that were met once."""

    runs: OrderedDict[Any, Run] = field(default_factory=OrderedDict)
    met: set[Any] = field(default_factory=set)


@dataclass(eq=False)
class _Bound:
    """A program as it is cut now: of each level its segment, if it computes anything, and the nodes behind it."""

    version: int
    levels: list[tuple[_Segment | None, list[_Node]]]
    outputs: list[tuple[str, Any]]


@dataclass(eq=False)
class _Segment:
    """A segment, its variants, and which of what it reads it wants the values of."""

    program: SegmentedGraph
    segment: OnnxSegment
    variants: _Variants
    wanted: tuple[int, ...]
    label: str
    what: str


@dataclass(eq=False)
class _Node:
    """A node, with what is the same at every call; ``inputs``: names, and the values of those that are constants."""

    inputs: list[tuple[str, Any]]
    outputs: tuple[str, ...]
    call: Callable[[EagerNode], Sequence[Any]]
    label: str
    attrs: Mapping[str, Any]
    opset: int
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

    def run(self, program: SegmentedGraph, values: Mapping[str, Any], around: Mapping[str, Any]) -> list[Any]:
        """The outputs of a program on its inputs; ``around`` holds what a subgraph sees."""
        env: Env = {name: around[name] for name in program.outside if name in around} if around else {}
        env.update(values)
        bound, level = self._bind(program), 0
        while level < len(bound.levels):
            segment, nodes = bound.levels[level]
            if segment is not None and not self._run_segment(segment, env):
                bound = self._bind(program)  # it is cut anew: the program knows now what it wants to know
                continue
            for node in nodes:
                self._run_node(node, env)
            level += 1
        return [env[name] if fixed is _CALLED else fixed for name, fixed in bound.outputs]

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
            found = _Bound(program.version, levels, [(name, _fixed(program, name)) for name in program.outputs])
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
        return _Segment(program, segment, variants, wanted, label, f"segment of {len(segment.nodes)} nodes")

    def _run_node(self, node: _Node, env: Env) -> None:
        """Runs a node on its values, and puts its results into ``env``."""
        start = time.perf_counter() if self._rows is not None else 0.0

        def run(name: str, feeds: Sequence[Any]) -> list[Any]:
            child = node.children[name]
            given = {value.name: feed for value, feed in zip(child.inputs, feeds, strict=False)}
            return self.run(child, given, env)

        inputs = [env[name] if fixed is _CALLED else fixed for name, fixed in node.inputs]
        results = node.call(EagerNode(node.label, inputs, node.attrs, len(node.outputs), node.opset, run))
        if self._rows is not None and not node.children:
            self._rows.append((node.name, node.what, time.perf_counter() - start))
        for name, result in zip(node.outputs, results, strict=False):
            if name:
                env[name] = result

    def _run_segment(self, bound: _Segment, env: Env) -> bool:
        """Runs a segment, after it is compiled if this is new; False where it turns out to be two."""
        segment, runs = bound.segment, bound.variants.runs
        arrays = [env[name] for name in segment.reads]
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
                run = self._compiled(bound, arrays, key)
            except RuntimeValue:
                return False
        elif len(runs) > FEW_VARIANTS:
            runs.move_to_end(key)
        if self._rows is None:
            env.update(zip(segment.writes, run(arrays), strict=True))
            return True
        start = time.perf_counter()
        results = run(arrays)
        self._rows.append((bound.label, bound.what, time.perf_counter() - start))
        env.update(zip(segment.writes, results, strict=True))
        return True

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
                run = _Compiled(module, None if places == tuple(range(len(arrays))) else places)
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
    """A compiled segment, and which of what it reads are its inputs; None: all, in order."""

    module: Module
    places: tuple[int, ...] | None

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
    name, inputs = label_of(node, at), [(n, _fixed(program, n) if n else None) for n in node.input]
    children = {attribute: child for (place, attribute), child in program.children.items() if place == at}
    label = f"node '{name}' ({node.op_type})"
    attrs, what = dict(attributes(node)), f"{node.op_type} (host)"
    return _Node(inputs, tuple(node.output), program.runs[at], label, attrs, program.opset, children, name, what)


def _fixed(program: SegmentedGraph, name: str) -> Any:
    """The value of a constant; the mark of others."""
    own = name in program.producer or any(value.name == name for value in program.inputs)
    return _CALLED if (own and name not in program.constants) or name not in program.known else program.array(name)
