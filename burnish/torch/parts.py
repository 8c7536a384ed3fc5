"""Compiled FX graphs: a functional ATen graph, or a part of one, as a function of tensors."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.driver.tensors import TensorModule
from burnish.errors import BurnishError, UnsupportedOperator
from burnish.frontend.torch.context import Ref, TorchContext
from burnish.frontend.torch.dtypes import dtype_name
from burnish.frontend.torch.layout import dense_order, inverse
from burnish.frontend.torch.program import Translation, operator_name, translate
from burnish.frontend.torch.symbols import Symbols
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import is_size
from burnish.runtime.gpu.arrays import DEVICE
from burnish.runtime.module import Module
from burnish.torch.report import GraphReport, PartReport

Function = Callable[[Sequence[Any]], tuple[Any, ...]]  # of the values of a graph's placeholders
Compile = Callable[[Graph, Any], Module]  # of a graph and the device of its tensors


@dataclass
class Setting:
    """Shared context of one graph's parts. ``known``: constants by the names of placeholders; ``device``: of the
    tensors that compiled parts take and give.
    """

    compile: Compile
    symbols: Symbols
    known: Mapping[str, Any]
    report: GraphReport
    device: Any
    sizes: dict[str, int] | None = None  # that the symbols have, where they are numbers


def compile_whole(graph: Any, setting: Setting) -> tuple[Function | None, dict[str, str]]:
    """The graph as one part; or None, and why which of its nodes stand against it."""
    work = _begun(graph, setting)
    translate(graph.nodes, work)
    if work.refused:
        return None, {node.name: reason for node, reason in work.refused.items()}
    try:
        return _finished(graph, work, setting), {}
    except UnsupportedOperator as error:
        blamed = _blamed(graph, str(error))
        if not blamed:
            raise
        return None, blamed


def _blamed(graph: Any, error: str) -> dict[str, str]:
    """The nodes that an error of the compiler names: nodes of graphs have the names of those they come from."""
    words = set(re.findall(r"\w+", error.partition(":")[0]))
    return {node.name: error for node in graph.nodes if node.op == "call_function" and node.name in words}


def compile_parts(module: Any, refused: Mapping[str, str], setting: Setting) -> Callable[..., Any]:
    """The graph in as few compiled parts as there can be around the nodes that torch runs."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    refused = {**_sources(module.graph, refused), **refused}

    class Supported(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            value = node.meta.get("val")
            sized = value is None or type(value).__name__ in ("SymInt", "SymBool", "SymFloat", "int")
            return node.op == "call_function" and node.name not in refused and not sized

    partitioner = CapabilityBasedPartitioner(module, Supported(), allows_single_node_partition=False)
    fused = partitioner.fuse_partitions(partitioner.propose_partitions())
    for node in list(fused.graph.nodes):
        if node.op == "call_module":
            _replace(fused, node, setting)
        elif node.op == "call_function" and not _is_free(node):
            setting.report.eager[operator_name(node.target), refused.get(node.name, "alone between others")] += 1
    fused.recompile()
    return fused.forward


def _sources(graph: Any, refused: Mapping[str, str]) -> dict[str, str]:
    """The operators of which a result is refused: torch runs them, too."""
    taken = [n for n in graph.nodes if n.target is operator.getitem and n.name in refused]
    return {node.args[0].name: refused[node.name] for node in taken}


def _is_free(node: Any) -> bool:
    """Whether a node computes on sizes alone, or takes one of several results."""
    return not hasattr(node.target, "_schema") or type(node.meta.get("val")).__name__ in ("SymInt", "int", "NoneType")


def _replace(fused: Any, node: Any, setting: Setting) -> None:
    """Puts a compiled function in place of a submodule; leaves one that cannot be compiled to torch, and says so."""
    import torch

    part = getattr(fused, node.target)
    known = {
        inner.name: setting.known[given.name]
        for inner, given in zip(_holders(part.graph), node.args, strict=True)
        if getattr(given, "name", None) in setting.known
    }
    own = Setting(setting.compile, setting.symbols, known, setting.report, setting.device, setting.sizes)
    try:
        function, refused = compile_whole(part.graph, own)
    except BurnishError as error:
        function, refused = None, {inner.name: str(error) for inner in part.graph.nodes}
    if function is None:
        for inner in part.graph.nodes:
            if inner.op == "call_function" and not _is_free(inner):
                reason = refused.get(inner.name, f"beside {'; '.join(refused.values())}"[:200])
                setting.report.eager[operator_name(inner.target), reason] += 1
        return
    call: Function = function
    (end,) = (inner for inner in part.graph.nodes if inner.op == "output")
    several = isinstance(end.args[0], (tuple, list))

    class Compiled(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            results = call(args)
            return results if several else results[0]

    setattr(fused, node.target, Compiled())


def _holders(graph: Any) -> list[Any]:
    return [node for node in graph.nodes if node.op == "placeholder"]


# --- inputs -----------------------------------------------------------------------------------------------------------


def _begun(graph: Any, setting: Setting) -> Translation:
    """A translation that knows the placeholders: constants, sizes, and inputs as their memory lies."""
    builder = GraphBuilder()
    builder.trained = setting.report.training
    work = Translation(TorchContext(builder, setting.symbols))
    for node in _holders(graph):
        value = node.meta["val"]
        if node.name in setting.known:
            work.values[node] = setting.known[node.name]
        elif hasattr(value, "detach"):
            try:
                work.values[node] = _input(work, node, setting)
            except BurnishError as error:  # complex numbers, another device: whatever reads it is refused, too
                work.refuse(node, str(error))
        else:
            work.values[node] = setting.symbols.extent(value, node.name)
    return work


def _input(work: Translation, node: Any, setting: Setting) -> Ref:
    value, where, symbols = node.meta["val"], f"input '{node.name}'", setting.symbols
    if not (is_on(setting.device, value) or (value.device.type == "cpu" and value.dim() == 0)):
        raise BurnishError(f"{where}: found device {value.device}; allowed: {setting.device}")
    shape, dtype = symbols.shape(value, where), dtype_name(value.dtype, where)
    order = _order(value, symbols, where)
    held = Ref(work.builder.input(node.name, [shape[d] for d in order], dtype))
    return Ref(work.builder.add("transpose", held, perm=inverse(order))) if order != tuple(range(len(order))) else held


def device_of(graph: Any) -> Any:
    """The device of a graph's tensors, inputs and results: the first GPU if one is there, else the CPU."""
    import torch

    (end,) = (node for node in graph.nodes if node.op == "output")
    values = [node.meta.get("val") for node in (*_holders(graph), *end.all_input_nodes)]
    there = any(hasattr(value, "detach") and value.device.type == "cuda" for value in values)
    return torch.device("cuda", DEVICE) if there else torch.device("cpu")


def is_on(device: Any, tensor: Any) -> bool:
    """Whether a tensor is on a device."""
    found = tensor.device
    return found.type == device.type and (found.index or 0) == (device.index or 0)


def _order(tensor: Any, symbols: Symbols, where: str) -> tuple[int, ...]:
    """The order of a tensor's dimensions in memory if it is dense, else their own."""
    found = dense_order(symbols.shape(tensor, where), _strides(tensor, symbols, where))
    return tuple(range(tensor.dim())) if found is None else found


def _strides(tensor: Any, symbols: Symbols, where: str) -> list[int]:
    return [symbols.extent(s, where) for s in tensor.stride()]


# --- outputs ----------------------------------------------------------------------------------------------------------

Taker = Callable[[Sequence[Any], Sequence[Any]], Any]  # of arguments and of the compiled module's outputs: one result


def _finished(graph: Any, work: Translation, setting: Setting) -> Function:
    """The compiled function of a graph that is translated."""
    (end,) = (node for node in graph.nodes if node.op == "output")
    listed = list(end.args[0]) if isinstance(end.args[0], (tuple, list)) else [end.args[0]]
    outputs: list[str] = []
    takers: dict[Any, Taker] = {}
    for node in dict.fromkeys(listed):
        takers[node] = _taker(node, _holders(graph), work, setting, outputs)
    places = {node: i for i, node in enumerate(takers)}
    plan = [places[node] for node in listed]
    if not outputs:
        return lambda args: _planned([taker(args, ()) for taker in takers.values()], plan)
    at = time.perf_counter()
    module = TensorModule.of(setting.compile(work.builder.build(*outputs), setting.device))
    operators = sum(n.op == "call_function" and not _is_free(n) for n in graph.nodes)
    kernels, spent = len(module.executable.calls), time.perf_counter() - at
    setting.report.parts.append(PartReport(operators, kernels, spent, setting.sizes))
    call = _call(module, _feeds(graph, module, setting.symbols))
    if all(isinstance(taker, _Output) for taker in takers.values()) and plan == list(range(len(outputs))):
        return lambda args: tuple(call(args))
    each = list(takers.values())

    def run(args: Sequence[Any]) -> tuple[Any, ...]:
        results = call(args)
        return _planned([taker(args, results) for taker in each], plan)

    return run


def _planned(unique: list[Any], plan: list[int]) -> tuple[Any, ...]:
    return tuple([unique[i] for i in plan])


@dataclass(frozen=True)
class _Output:
    """An output of the module as it is."""

    number: int

    def __call__(self, args: Sequence[Any], results: Sequence[Any]) -> Any:
        return results[self.number]


@dataclass(frozen=True)
class _Strided:
    """An output of the module with the strides that torch expects: permuted, repeated, or copied."""

    number: int
    back: tuple[int, ...]
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None

    def __call__(self, args: Sequence[Any], results: Sequence[Any]) -> Any:
        found = results[self.number].permute(self.back)
        if self.strides is not None:
            found = found.new_empty_strided(found.shape, self.strides).copy_(found)
        return found if self.shape is None else found.expand(self.shape)


def _taker(node: Any, holders: list[Any], work: Translation, setting: Setting, outputs: list[str]) -> Taker:
    """Accessor of one result; adds the graph's output that it needs."""
    if not hasattr(node, "meta"):
        return lambda args, results: node
    if node in holders:
        place = holders.index(node)
        return lambda args, results: args[place]
    value = work.values[node]
    if isinstance(value, Ref):
        return _tensor(node, value, work, setting, outputs)
    if hasattr(value, "detach"):  # a constant, which callers may change
        device = node.meta["val"].device
        return lambda args, results: value.to(device, copy=True)
    return _size_taker(value, holders) if is_size(value) else lambda args, results: value


def _tensor(node: Any, value: Ref, work: Translation, setting: Setting, outputs: list[str]) -> Taker:
    """An output of the graph in the order of dimensions that torch says."""
    said, where = node.meta["val"], f"output '{node.name}'"
    if not is_on(setting.device, said):
        raise UnsupportedOperator(f"{where}: found device {said.device}; allowed: {setting.device}, as of the inputs")
    shape, strides = setting.symbols.shape(said, where), _strides(said, setting.symbols, where)
    fixed = not any(is_size(v) for v in (*shape, *strides))
    repeated = [d for d, n in enumerate(shape) if fixed and n > 1 and strides[d] == 0]  # memory holds one of them
    if repeated:
        held = tuple(1 if d in repeated else n for d, n in enumerate(shape))
        value = Ref(work.builder.add("slice", value, starts=(0,) * len(shape), extents=held))
    order = dense_order(work.context.shape(value), strides)
    plain = order is None or order == tuple(range(len(shape)))
    if order is not None and not plain:
        value = Ref(work.builder.add("transpose", value, perm=order))
    number = len(outputs)
    name = work.builder.fresh(f"output.{number}")
    outputs.append(work.builder.add("identity", value, name=name, node=node.name))
    own = tuple(strides) if order is None and fixed and not repeated and 0 not in shape else None
    if plain and not repeated and own is None:
        return _Output(number)
    back = tuple(range(len(shape))) if order is None else inverse(order)
    return _Strided(number, back, tuple(shape) if repeated else None, own)


def _size_taker(value: Any, holders: list[Any]) -> Taker:
    """A size from the arguments that are sizes."""
    sizes = {i: h.meta["val"] for i, h in enumerate(holders) if type(h.meta["val"]).__name__ == "SymInt"}
    places = {said.node.expr.name: i for i, said in sizes.items() if said.node.expr.is_Symbol}
    return lambda args, results: value.value({name: args[i] for name, i in places.items()})


# --- calls ------------------------------------------------------------------------------------------------------------


def _feeds(graph: Any, module: Module, symbols: Symbols) -> list[tuple[int, tuple[int, ...] | None]]:
    """The argument that each input of the module is, and the order of its dimensions; None as they are."""
    places = {node.name: (i, node) for i, node in enumerate(_holders(graph))}
    feeds: list[tuple[int, tuple[int, ...] | None]] = []
    for spec in module.inputs:
        place, node = places[spec.name]
        order = _order(node.meta["val"], symbols, spec.name)
        feeds.append((place, None if order == tuple(range(len(order))) else order))
    return feeds


def _call(
    module: TensorModule, feeds: list[tuple[int, tuple[int, ...] | None]]
) -> Callable[[Sequence[Any]], list[Any]]:
    """The module as a function of a graph's arguments."""
    run = module.run
    if all(order is None for _, order in feeds):
        places = [place for place, _ in feeds]
        return lambda args: run([args[place] for place in places])

    def call(args: Sequence[Any]) -> list[Any]:
        return run([args[place] if order is None else args[place].permute(order) for place, order in feeds])

    return call
