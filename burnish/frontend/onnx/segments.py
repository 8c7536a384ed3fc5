"""Segments of an ONNX graph that is no static graph: parts that are one each, and nodes that run between them.

A node runs by itself (it is *eager*) if it is control flow that is no node with bodies (``flow.py``), or if it works on
sequences or texts: ``eager.py``, ``texts.py``. All others of one *level* are a segment: what they read is known once
the eager nodes of the levels before have run. A segment becomes a graph for each combination of what it reads: types,
and values where a translator wants to know them. A value that it wants to know and the segment computes itself is
*cut*: the node that wants it moves to the next level, with all that follow. So does a node that cannot do with an
extent that the segment counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from burnish.errors import ModelError
from burnish.frontend.onnx import counted
from burnish.frontend.onnx.context import OnnxContext, RuntimeValue
from burnish.frontend.onnx.domains import DEFAULT, key_of
from burnish.frontend.onnx.dtypes import to_array
from burnish.frontend.onnx.eager import EAGER, SEQUENCES, Eager
from burnish.frontend.onnx.external import ExternalData
from burnish.frontend.onnx.load import load_model, opset_of, versions_of
from burnish.frontend.onnx.local_functions import without_functions
from burnish.frontend.onnx.model import (
    TRANSLATORS,
    Imported,
    fixed_inputs,
    import_loaded,
    named,
    refuse_unsupported,
)
from burnish.frontend.onnx.nodes import dims_known, subgraphs, translate_nodes
from burnish.frontend.onnx.text_operators import ON_TEXTS, texts_made
from burnish.frontend.onnx.texts import separate_labels, stored_texts
from burnish.frontend.onnx.validity import check_graph
from burnish.graph.graph import Graph, GraphBuilder, TensorType
from burnish.graph.rewrite import drop_dead


@dataclass(frozen=True, eq=False)
class OnnxSegment:
    """Nodes of one level, by position; those that make constants are in every segment that needs them. ``reads`` come
    from elsewhere, ``writes`` are read elsewhere.
    """

    nodes: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(eq=False)
class SegmentedGraph:
    """A graph, or a subgraph, as levels of one segment and eager nodes; it changes as cuts are found.

    ``wanted``: values that translators want to know. ``children``: the subgraphs of eager nodes, by node and attribute.
    ``runs``: what computes the eager nodes. ``texts``: names of tensors of strings. ``flow``: control flow that is part
    of segments until one of them shows that it cannot be: then it is eager.
    """

    graph: onnx.GraphProto
    opset: int
    versions: Mapping[str, int]
    data: ExternalData
    outer: SegmentedGraph | None = None
    cuts: set[tuple[str, int]] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    children: dict[tuple[int, str], SegmentedGraph] = field(default_factory=dict)
    runs: dict[int, Eager] = field(default_factory=dict)
    flow: set[int] = field(default_factory=set)
    segments: dict[int, OnnxSegment] = field(default_factory=dict)
    depth: int = 0
    version: int = 0  # how often what it is cut into or wants has changed

    def __post_init__(self) -> None:
        self.nodes = list(self.graph.node)
        self.constants = self._own_constants()
        self.inputs = [value for value in self.graph.input if value.name not in self.constants]
        self.outputs = [value.name for value in self.graph.output]
        self.producer = {name: at for at, node in enumerate(self.nodes) for name in node.output if name}
        self.reads = [_reads(node) for node in self.nodes]
        self.eager = self._eager_nodes()
        for at in self.eager:
            self._add_children(at)
        self.fixed = self._constant_nodes()
        self.level: list[int] = []
        self.cut()

    def _add_children(self, at: int) -> None:
        for name, graph in subgraphs(self.nodes[at]).items():
            self.children[at, name] = SegmentedGraph(graph, self.opset, self.versions, self.data, self)

    def apart(self, flow: Collection[int]) -> bool:
        """Makes nodes of control flow among these run by themselves; whether there are such."""
        found = self.flow & {*flow}
        for at in found:
            self.runs[at] = EAGER[key_of(self.nodes[at].domain, self.nodes[at].op_type)]
            self._add_children(at)
        if found:
            self.flow -= found
            self.eager = sorted({*self.eager, *found})
            self.fixed = self._constant_nodes()
            self.cut()
        return bool(found)

    def _own_constants(self) -> dict[str, Any]:
        """Initializers and constant nodes, as tensors of the file."""
        found: dict[str, Any] = {t.name: t for t in self.graph.initializer}
        for node in self.nodes:
            value = [a.t for a in node.attribute if a.name == "value"] if node.op_type == "Constant" else []
            if value and value[0].data_type != onnx.TensorProto.STRING:
                found[node.output[0]] = value[0]
        return found

    @cached_property
    def known(self) -> set[str]:
        """Constants that this program sees."""
        return self.constants.keys() | (self.outer.known if self.outer else set())

    @cached_property
    def outside(self) -> set[str]:
        """Captured names: read by this program from outside it, constants excepted."""
        own = {name for node in self.nodes for name in node.output} | {value.name for value in self.graph.input}
        return set[str]().union(self.outputs, *self.reads) - own - self.known

    def array(self, name: str) -> np.ndarray:
        """The value of a constant, also of those around this program."""
        if name not in self.constants:
            assert self.outer is not None
            return self.outer.array(name)
        stored = self.constants[name]
        if not isinstance(stored, np.ndarray):
            where, texts = f"initializer '{name}'", stored.data_type == onnx.TensorProto.STRING
            stored = stored_texts(stored, where) if texts else to_array(stored, where, self.data)
            self.constants[name] = stored
        return stored

    def _eager_nodes(self) -> list[int]:
        """Positions of the nodes that run by themselves."""
        listed = {v.name for v in self.graph.input if v.type.WhichOneof("value") in ("sequence_type", "optional_type")}
        self.texts: set[str] = set(self.outer.texts if self.outer else ())
        self.texts |= {v.name for v in self.graph.input if _of_texts(v)}
        self.texts |= {t.name for t in self.graph.initializer if t.data_type == onnx.TensorProto.STRING}
        found = []
        for at, node in enumerate(self.nodes):
            key = key_of(node.domain, node.op_type)
            on_texts, texts = texts_made(node, self.texts)
            self.texts.update(texts)
            sequences = key in SEQUENCES or (key == "Identity" and node.input[0] in listed)
            bodies = subgraphs(node).values()
            made = set[str]().union(*(_results(node, g, kind) for g in bodies for kind in (_is_list, _of_texts)))
            if bodies and not sequences and not made and not self.reads[at] & (listed | self.texts):
                self.flow.add(at)
            elif sequences or (key in EAGER and key != "Identity"):
                self.runs[at] = EAGER[key]
            elif on_texts:
                self.runs[at] = ON_TEXTS[key]
            if at in self.runs:
                found.append(at)
            if sequences:
                listed.update(node.output)
            for graph in subgraphs(node).values():
                listed.update(_results(node, graph, _is_list))
                self.texts.update(_results(node, graph, _of_texts))
        return found

    def _constant_nodes(self) -> set[int]:
        """Positions of the nodes that read constants alone."""
        found, names, eager = set[int](), set(self.known), set(self.eager)
        for at, node in enumerate(self.nodes):
            if at not in eager and self.reads[at] <= names and (self.reads[at] or node.op_type == "Constant"):
                found.add(at)
                names.update(node.output)
        return found

    def want(self, name: str, node: int) -> None:
        """Makes the segment of this node know a value: after another segment, if it is computed by one."""
        self.wanted.add(name)
        self.version += 1
        maker = self.producer.get(name)
        if maker is not None and maker not in self.fixed and self.level[maker] == self.level[node]:
            self.cuts.add((name, node))
            self.cut()

    def separate(self, segment: OnnxSegment) -> bool:
        """Makes what reads results whose extent depends on values a segment of its own, for which it is a number.

        False where nothing in the segment does.
        """
        makers = [at for at in segment.nodes if self.nodes[at].op_type in counted.TRANSLATORS and at not in self.fixed]
        made = {name for at in makers for name in self.nodes[at].output if name}
        new = {(n, at) for at in segment.nodes for n in self.reads[at] & made} - self.cuts
        self.cuts |= new
        if new:
            self.cut()
        return bool(new)

    def cut(self) -> None:
        """Finds levels and segments anew."""
        self.version += 1
        eager = set(self.eager)
        level = self.level = [0] * len(self.nodes)
        for at, _ in enumerate(self.nodes):
            if at in self.fixed:
                continue
            for name in self.reads[at]:
                maker = self.producer.get(name)
                if maker is not None and maker not in self.fixed:
                    later = (maker in eager and at not in eager) or (name, at) in self.cuts
                    level[at] = max(level[at], level[maker] + later)
        self.depth = max(level, default=0) + 1
        self.segments = {number: self._segment(number, eager) for number in range(self.depth)}

    def _segment(self, number: int, eager: Collection[int]) -> OnnxSegment:
        own = {at for at, n in enumerate(self.level) if n == number and at not in eager and at not in self.fixed}
        outside = set(self.outputs)
        for at in range(len(self.nodes)):
            if at not in own and at not in self.fixed:
                outside |= self.reads[at]
        made = {name for at in own for name in self.nodes[at].output if name}
        writes = made & outside
        if number == 0:  # constants that somebody wants as values
            read = {n for at in eager for n in self.reads[at]} | set(self.outputs)
            writes |= {n for at in self.fixed for n in self.nodes[at].output if n in read}
        queue, nodes = list(own) + [self.producer[n] for n in writes if self.producer[n] in self.fixed], set(own)
        while queue:  # what makes the constants that are needed here
            at = queue.pop()
            nodes.add(at)
            makers = {self.producer[name] for name in self.reads[at] if name in self.producer}
            queue += [m for m in makers if m in self.fixed and m not in nodes]
        inside = {name for at in nodes for name in self.nodes[at].output}
        reads = {name for at in nodes for name in self.reads[at]} - inside - self.known
        return OnnxSegment(tuple(sorted(nodes)), tuple(sorted(reads)), tuple(sorted(writes)))

    def eager_at(self, number: int) -> list[int]:
        """The eager nodes of a level, in order."""
        return [at for at in self.eager if self.level[at] == number]

    def model(self) -> onnx.ModelProto:
        """The program as a model by itself, with the data that lies in other files."""
        made = onnx.ModelProto(ir_version=onnx.IR_VERSION)
        made.graph.CopyFrom(self.graph)
        versions = {"": self.opset, **{d: v for d, v in self.versions.items() if d not in DEFAULT}}
        made.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in versions.items())
        for tensor in made.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(onnx.numpy_helper.from_array(self.array(tensor.name), tensor.name))
        return made

    def graph_of(
        self, segment: OnnxSegment, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]
    ) -> Graph:
        """A segment as a graph, where what it reads has these types, or these values.

        Raises RuntimeValue for a value that it wants to know besides, after :meth:`want` has been told.
        """
        context = OnnxContext(
            GraphBuilder(), data=self.data, translators=TRANSLATORS, opset=self.opset, versions=self.versions
        )
        names: dict[str, str] = {}
        for name, t in types.items():
            names[name] = context.builder.input(name, t.shape, t.dtype)
        needed = {name for at in segment.nodes for name in self.reads[at]}
        for name in needed & self.known - types.keys():
            names[name] = context.builder.constant(self.array(name), name)
        for name, value in values.items():
            names[name] = context.builder.constant(value, name)
        used = needed.union(segment.writes)
        for at in segment.nodes:
            try:
                translate_nodes(context, names, [self.nodes[at]], used)
            except RuntimeValue as error:
                late = [
                    name
                    for name in self.reads[at] & names.keys()
                    if dims_known(context, [names[name]]) & context.counted
                ]
                if late:
                    self.cuts.update((name, at) for name in late)
                    self.cut()
                elif not self.apart([at]):
                    self._ask(context, names, at, error)
                raise
            except ModelError as error:
                if not self.apart([at]):
                    raise
                raise RuntimeValue(str(error), "") from error
        outputs = [named(context.builder, names[name], name) for name in segment.writes]
        graph = drop_dead(context.builder.build(*outputs))
        read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
        return replace(graph, inputs=tuple(name for name in graph.inputs if name in read))

    def _ask(self, context: OnnxContext, names: Mapping[str, str], at: int, error: RuntimeValue) -> None:
        """Tells :meth:`want` of the value that a translator misses: the node's own input, or all that it might be."""
        open_ = [name for name in self.reads[at] if name in names and names[name] not in context.builder.constants]
        exact = [name for name in open_ if names[name] == error.tensor]
        whole = [name for name in open_ if not context.dtype(names[name]).startswith(("float", "bfloat"))]
        new = [name for name in exact or whole or open_ if name not in self.wanted or not self._apart(name, at)]
        if not new:
            raise ModelError(str(error)) from error
        for name in new:
            self.want(name, at)

    def _apart(self, name: str, at: int) -> bool:
        """Whether a value is there before the segment of this node begins."""
        maker = self.producer.get(name)
        return maker is None or maker in self.fixed or self.level[maker] < self.level[at] or maker in self.eager


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, also from within its subgraphs."""
    return {name for name in node.input if name}.union(*map(_read_around, subgraphs(node).values()))


def _read_around(graph: onnx.GraphProto) -> set[str]:
    """Names that a subgraph reads of what is around it."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    return set[str]().union((v.name for v in graph.output), *map(_reads, graph.node)) - own


def _results(node: onnx.NodeProto, graph: onnx.GraphProto, kind: Callable[[onnx.ValueInfoProto], bool]) -> set[str]:
    """Outputs of a node that are of some kind, by the last outputs of its subgraph."""
    outputs = list(graph.output)[len(graph.output) - len(node.output) :]
    return {name for name, value in zip(node.output, outputs, strict=False) if kind(value)}


def _is_list(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") in ("sequence_type", "optional_type")


def _of_texts(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type == onnx.TensorProto.STRING


def read_program(
    model: Any, fix: Mapping[str, Any] | None = None
) -> tuple[SegmentedGraph, Callable[[Mapping[str, Any], Mapping[str, Any], bool], Imported]]:
    """A model as segments and what runs between them, and what imports it as a whole, for shapes and values of inputs,
    with control flow as nodes or without.

    Raises ModelError and UnsupportedOperator as import does.
    """
    loaded, data = load_model(model)
    loaded = without_functions(loaded)
    proto = fixed_inputs(loaded, fix or {})
    refuse_unsupported(proto.graph)
    opset = opset_of(proto)
    check_graph(proto.graph, opset, versions_of(proto))
    proto = separate_labels(proto)
    program = SegmentedGraph(proto.graph, opset, versions_of(proto), data)

    def whole(shapes: Mapping[str, Any], values: Mapping[str, Any], flow: bool) -> Imported:
        return import_loaded(loaded, data, shapes, {**(fix or {}), **values}, flow=flow)

    return program, whole


def inputs_behind(program: SegmentedGraph, name: str) -> set[str] | None:
    """The inputs of a program by whose values a tensor of it is known; None for one that it does not have.

    Extents are known without values.
    """
    inputs = {value.name for value in program.inputs}
    makers: dict[str, onnx.NodeProto] = {}
    known = set(program.known)
    queue = [program.graph]
    while queue:
        graph = queue.pop()
        known.update(t.name for t in graph.initializer)
        for node in graph.node:
            makers.update(dict.fromkeys(node.output, node))
            queue += subgraphs(node).values()
    found, seen, names = set[str](), set[str](), [name]
    while names:
        at = names.pop()
        if at in seen or at in known:
            continue
        seen.add(at)
        if at in inputs:
            found.add(at)
        elif at not in makers:
            return None
        elif makers[at].op_type not in ("Shape", "Size"):
            names += _reads(makers[at])
    return found
