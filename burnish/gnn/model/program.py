"""The program of a training graph over blocks of vertices: compiled segments, and the steps of a memory plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from burnish import ops
from burnish.driver.api import compile
from burnish.errors import UnsupportedOperator, VerificationError
from burnish.gnn.data.share import Share
from burnish.gnn.model.locality import Axes, axes_of, definition_of
from burnish.gnn.model.models import VERTICES
from burnish.gnn.model.segments import BlockSegment, cut, segment_graph
from burnish.graph.aggregation import block_aggregations
from burnish.graph.decompose import decompose
from burnish.graph.evaluate import evaluate_node
from burnish.graph.graph import Graph, GraphBuilder, Node, TensorType
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.graph.specialize import attribute_at, graph_at
from burnish.loops.numeric import numpy_dtype
from burnish.loops.sizes import dims_of
from burnish.machines.target import target
from burnish.memory.lifetimes import LifetimeStep
from burnish.ops.csr import INDEX_DTYPES
from burnish.ops.reads import accesses
from burnish.runtime.module import Module


@dataclass(frozen=True, eq=False)
class SegmentStep:
    """One step of a segment: on a block, at its end (``finish``), or to get other workers' rows of a ``tensor``."""

    what: str  # "rows", "gather", "plain", "finish" or "exchange"
    segment: int
    block: int = 0
    tensor: str = ""


@dataclass(frozen=True, eq=False)
class SegmentProgram:
    """Segments with their modules, by block, and the steps over blocks of tensors that they are.

    Steps read and write ``tensor:block``, and of other workers' rows ``tensor:far:segment``.
    """

    graph: Graph
    axes: Axes
    segments: tuple[BlockSegment, ...]
    modules: tuple[tuple[Module, ...], ...]
    gatherings: Mapping[int, tuple[Gathering, ...]]
    gathers: Mapping[int, Gather]
    parts: tuple[SegmentStep, ...]
    steps: tuple[LifetimeStep, ...]

    @property
    def workspace(self) -> int:
        """Most bytes that a module takes besides its arguments."""
        memory = [m.memory for modules in self.modules for m in modules]
        return max((m["arena"] + m["scratch"] for m in memory), default=0)

    @property
    def partial_bytes(self) -> int:
        """Bytes of sums over single blocks, of which a segment's are there at once."""
        found = [
            sum(spec.nbytes for module in modules for spec in module.outputs[len(segment.writes) :])
            for segment, modules in zip(self.segments, self.modules, strict=True)
            if segment.sums
        ]
        return max(found, default=0)


@dataclass(frozen=True)
class Gather:
    """A node that reads all rows of some tensors: its operands as far as its definition reads them.

    ``offsets``, ``sources``, ``weights``: the operands that are its edges.
    """

    node: Node
    inputs: tuple[str, ...]
    offsets: str
    sources: str | None
    weights: str | None = None


@dataclass(frozen=True, eq=False)
class Gathering:
    """Gathering of one block: ``module`` reads, besides rows and offsets, the tensors of edges ``edges``, which are
    the sources themselves, or what ``prepare``, operators on structures, make of offsets and sources.
    """

    module: Module
    prepare: tuple[Node, ...]
    edges: tuple[str, ...]

    def prepared(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors of edges from offsets and sources by name."""
        found = dict(given)
        for node in self.prepare:
            operator = ops.operator_named(node.op)
            assert operator.extern is not None, "an operator on structures has an implementation"
            found[node.outputs[0]] = operator.extern(*(found[n] for n in node.inputs), **operator.complete(node.attrs))
        return {name: found[name] for name in self.edges}


def build(
    graph: Graph, share: Share, first: str, labels: Sequence[str], threads: int | None = None,
    cache_dir: str | Path | None = None,
) -> SegmentProgram:  # fmt: skip
    """Cuts and compiles a graph of :data:`VERTICES` vertices, for a share. ``first``: the input with a block's first
    number; ``labels``: the inputs that a call gives.
    """
    whole = _counted(decompose(graph), share.vertices)
    axes = axes_of(whole, VERTICES)
    segments = cut(whole, axes, first)
    gathers = {
        i: gather_of(whole, axes, whole.nodes[segment.nodes[0]])
        for i, segment in enumerate(segments) if segment.kind == "gather"
    }  # fmt: skip
    options: dict[str, Any] = {"threads": threads, "cache_dir": cache_dir, "rewrite": False}
    modules: list[tuple[Module, ...]] = []
    gatherings: dict[int, tuple[Gathering, ...]] = {}
    for i, segment in enumerate(segments):
        if segment.kind == "gather":
            gatherings[i] = _gathering(gathers[i], segment, whole, axes, share, options)
            modules.append(tuple(g.module for g in gatherings[i]))
        elif segment.kind == "plain":
            modules.append((compile(segment_graph(segment, whole), **options),))
        else:
            own = segment_graph(segment, whole)
            # One module with open rows saves no compilation (kernels of both sizes: 1.00 of the time for GCN, 0.87 for
            # GAT), and a step takes 1.16 times as long with GCN.
            made = {n: compile(graph_at(own, _rows(n)), **options) for n in share.sizes}
            modules.append(tuple(made[end - begin] for begin, end in share.blocks))
    parts, steps = _steps(segments, gathers, gatherings, axes, share, {*share.tensors, *labels})
    return SegmentProgram(whole, axes, segments, tuple(modules), gatherings, gathers, parts, steps)


def _rows(count: int) -> dict[str, int]:
    """The dimension of vertices at a number."""
    return {str(VERTICES): count}


def _counted(graph: Graph, vertices: int) -> Graph:
    """``graph`` with the numbers that depend on how many vertices there are, and on no element, as constants: a mean
    over blocks, or over workers' shares, is by all vertices.
    """

    sizes = _rows(vertices)

    def rule(new: Rewrite, node: Node) -> Sequence[str] | None:
        types = [graph.types[n] for n in node.inputs]
        results = [extent for n in node.outputs for extent in graph.types[n].shape]
        if ops.is_opaque(node.op) or not dims_of(d for t in types for d in t.shape) or dims_of(results):
            return None
        if any(accesses(t) for t in definition_of(node, graph)):
            return None
        known = [TensorType(attribute_at(t.shape, sizes), t.dtype) for t in types]
        own = replace(node, attrs={key: attribute_at(value, sizes) for key, value in node.attrs.items()})
        unread = [np.broadcast_to(np.zeros((), numpy_dtype(t.dtype)), t.shape) for t in known]
        return [new.constant(value, name) for name, value in zip(node.outputs, evaluate_node(own, unread), strict=True)]

    return rewrite(graph, rule)


def gather_of(graph: Graph, axes: Axes, node: Node) -> Gather:
    """The operands of a node that reads other rows, without those at its end that its definition does not read.

    Raises UnsupportedOperator for one that does not read them by a structure.
    """
    inputs = list(node.inputs)
    if not ops.is_opaque(node.op):
        read = {a.source.name for t in definition_of(node, graph) for a in accesses(t)}
        while inputs and f"x{len(inputs) - 1}" not in read:
            inputs.pop()
    offsets = [n for n in inputs if n in axes.offsets]
    edges = [n for n in inputs if n in axes.edges]
    sources = [n for n in edges if graph.types[n].dtype in INDEX_DTYPES]
    weights = [n for n in edges if n not in sources]
    many = max(len({*sources}), len({*weights})) > 1
    if len({*offsets}) != 1 or many or not {*offsets, *edges} <= {*graph.inputs}:
        raise UnsupportedOperator(
            f"node '{node.name}' ({node.op}) reads rows of other vertices; allowed in blocks of vertices: operators "
            f"that do so by one structure of in-edges, found {offsets + edges}"
        )
    return Gather(node, tuple(inputs), offsets[0], sources[0] if sources else None, weights[0] if weights else None)


def _gathering(
    gather: Gather,
    segment: BlockSegment,
    whole: Graph,
    axes: Axes,
    share: Share,
    options: Mapping[str, Any],
) -> tuple[Gathering, ...]:
    """The gatherings by block: one for each number of rows, with room for the most edges of a block.

    Where blocks of sources are faster, edges are re-ordered once, and not at the calls of a module.
    """
    edges = share.edges[gather.offsets]
    made: dict[int, Gathering] = {}
    for rows in share.sizes:
        graph = _gather_graph(gather, segment, whole, axes, rows, edges.columns, edges.room)
        graph = block_aggregations(graph, target("cpu"))
        prepare = tuple(n for n in graph.nodes if ops.operator_named(n.op).traits.structure)
        rest = [n for n in graph.nodes if n not in prepare]
        outer = {*graph.inputs, *(name for n in prepare for name in n.outputs)}
        read = tuple(n for n in dict.fromkeys(n for node in rest for n in node.inputs) if n in outer)
        module = compile(replace(graph, inputs=read).with_nodes(rest), **options)
        kept = {*segment.gathered, *segment.reads, *segment.given, gather.offsets}
        made[rows] = Gathering(module, prepare, tuple(n for n in read if n not in kept))
    return tuple(made[end - begin] for begin, end in share.blocks)


def _gather_graph(
    gather: Gather, segment: BlockSegment, graph: Graph, axes: Axes, rows: int, columns: int, edges: int
) -> Graph:
    """The node by itself, from ``columns`` rows to ``rows``."""
    b = GraphBuilder()
    for name in dict.fromkeys(gather.inputs):
        t = graph.types[name]
        if name in axes.offsets:
            shape: tuple[int, ...] = (rows + 1,)
        elif name in axes.edges:
            shape = (edges,)
        elif name in segment.gathered:
            shape = (columns, *t.shape[1:])
        else:
            shape = attribute_at(t.shape, _rows(rows))
        if name in graph.constants:
            b.constant(graph.constants[name], name)
        else:
            b.input(name, shape, t.dtype)
    node = gather.node
    attrs = {key: attribute_at(value, _rows(rows)) for key, value in node.attrs.items()}
    made = b.add_many(node.op, *gather.inputs, names=node.outputs, node=node.name, **attrs)
    return b.build(*made)


def _steps(
    segments: Sequence[BlockSegment],
    gathers: Mapping[int, Gather],
    gatherings: Mapping[int, Sequence[Gathering]],
    axes: Axes,
    share: Share,
    resident: Collection[str],
) -> tuple[tuple[SegmentStep, ...], tuple[LifetimeStep, ...]]:
    """The steps in order, with what each reads and writes; not what is ``resident`` anyway."""
    numbers = range(len(share.blocks))
    parts: list[SegmentStep] = []
    steps: list[LifetimeStep] = []

    def add(part: SegmentStep, reads: Sequence[str], writes: Sequence[str]) -> None:
        parts.append(part)
        steps.append(LifetimeStep(tuple(dict.fromkeys(reads)), tuple(writes)))

    for i, segment in enumerate(segments):
        for name in (*segment.reads, *segment.gathered, *segment.writes):
            if axes.rows[name]:
                raise VerificationError(f"gnn: '{name}' lasts, and its vertices are along axis {axes.rows[name]}")
        own = [name for name in segment.reads if name not in resident]
        if segment.kind == "plain":
            add(SegmentStep("plain", i), (), ())
            continue
        if segment.kind == "rows":
            for k in numbers:
                add(SegmentStep("rows", i, k), [f"{n}:{k}" for n in own], [f"{n}:{k}" for n in segment.writes])
            if segment.sums:
                add(SegmentStep("finish", i), (), ())
            continue
        gather = gathers[i]
        far = share.edges[gather.offsets].exchange is not None
        whole = [f"{n}:{k}" for n in segment.gathered if n not in resident for k in numbers]
        for name in [n for n in segment.gathered if n not in resident] if far else ():
            add(SegmentStep("exchange", i, 0, name), [f"{name}:{k}" for k in numbers], [f"{name}:far:{i}"])
            whole.append(f"{name}:far:{i}")
        for k in numbers:
            here = share.edges[gather.offsets].sources is not None
            edges = [] if here else [f"{name}:{k}" for name in gatherings[i][k].edges]
            add(SegmentStep("gather", i, k), [*whole, *(f"{n}:{k}" for n in own), *edges],
                [f"{n}:{k}" for n in segment.writes])  # fmt: skip
    return tuple(parts), tuple(steps)
