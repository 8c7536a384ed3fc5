"""Every kernel of a compiled model, run by itself, against the reference: the work of ``burnish check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from burnish.driver.api import read_choices
from burnish.driver.checks import check_common
from burnish.driver.compilation import Progress, assemble, compile_kernels, import_graph
from burnish.driver.rewritten import rewrite_model, shipped_rules
from burnish.driver.stages import Compilation, HostStage, KernelStage, NestedStage, RepeatStage
from burnish.errors import ParameterError
from burnish.graph.align import align_parts
from burnish.graph.evaluate import evaluate, evaluate_node
from burnish.graph.graph import Graph
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.measure.accuracy import scaled_error, tolerance
from burnish.pipeline.plan import DEFAULTS
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.module import Module


@dataclass(frozen=True)
class KernelCheck:
    """A kernel, the nodes it computes, and its error: max |found − reference| / max |reference|."""

    kernel: str
    nodes: str
    template: str
    error: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether the error is within what is allowed; NaN is not."""
        return self.error <= self.allowed


def check(
    model: Any,
    feeds: Mapping[str, np.ndarray],
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    exact: bool = False,
    rewrite: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    records: str | Path | None = None,
    fuse: bool = True,
) -> list[KernelCheck]:
    """One row for every kernel call of the compiled model, in execution order; the arguments are those of ``compile``.
    A model that ``rewrite`` changes gets one more row: the whole of it beside the model as it is.

    The reference is the optimized graph before algorithms are chosen, evaluated by the operators' definitions in
    float64. Each kernel gets the reference's values as inputs, so that an error is found where it arises. Raises what
    ``compile`` raises, and InputError for ``feeds`` that do not fit.
    A state that is not among them has its initial value.
    """
    check_common(threads=threads, exact=exact, shapes=shapes, cache_dir=cache_dir, records=records, progress=progress)
    report = progress or (lambda stage, done, total: None)
    machine, graph = find_target(target, threads=threads), import_graph(model, shapes)
    if graph.dims:
        named = ", ".join(f"'{d}'" for d in graph.dims)
        raise ParameterError(f"check: found open dimensions {named}; allowed: numbers, one size at a time")
    feeds = {**{name: state.initial for name, state in graph.states.items()}, **feeds}
    choices = DEFAULTS if records is None else read_choices(graph, records, machine, threads)
    choices = replace(choices, fused=fuse)
    computed, whole = graph, None
    if rewrite and fuse and not graph.states:
        chosen = rewrite_model(
            graph, shipped_rules(), target=machine, threads=threads, exact=exact, cache_dir=cache_dir,
            progress=progress, choices=choices,
        )  # fmt: skip
        if chosen.graph is not graph:
            computed, whole = align_parts(chosen.graph, machine.lanes), chosen.module
    made = compile_kernels(computed, machine, exact, cache_dir, progress, choices)
    report("reference", 0, 1)
    values = reference_values(made, feeds)
    rows = []
    for done, stage in enumerate(made.computed):
        report("check", done, len(made.computed))
        found = run_alone(made, stage, values, threads)
        error = scaled_error(found, [values[name] for name in stage.group.outputs])
        nodes = " + ".join(node.name or node.op for node in stage.group.nodes)
        allowed = tolerance(own_dtypes(made, stage), exact)
        symbol, template = f"{stage.group.nodes[0].op} (host)", "extern"
        if isinstance(stage, HostStage) and stage.kernel is not None:
            symbol, template = stage.kernel.symbol, "native"
        elif isinstance(stage, KernelStage):
            symbol, template = stage.kernel.symbol, stage.kernel.template
        elif isinstance(stage, (RepeatStage, NestedStage)):
            found_kernels = [s.kernel for s in stage.all_stages]
            symbol = " + ".join(dict.fromkeys(k.symbol for k in found_kernels))
            template = " + ".join(dict.fromkeys(k.template for k in found_kernels))
        rows.append(KernelCheck(symbol, nodes, template, error, allowed))
    if whole is not None:
        rows.append(check_module(whole, graph, feeds, exact))
    return rows


def check_module(module: Module, graph: Graph, feeds: Mapping[str, np.ndarray], exact: bool = False) -> KernelCheck:
    """Check of a whole compiled model against ``graph``, the model as it was imported, evaluated in float64."""
    expected = evaluate(graph, feeds, "float64")
    found = module(*(feeds[name] for name in graph.inputs))
    found = [found] if len(graph.outputs) == 1 else list(found)
    error = scaled_error(found, [expected[name] for name in graph.outputs])
    allowed = tolerance({graph.types[name].dtype for name in (*graph.inputs, *graph.outputs)}, exact)
    return KernelCheck("all", "the whole model", "", error, allowed)


def reference_values(made: Compilation, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Values in float64 of all tensors that kernels exchange, by name.

    Tensors that the reference graph lacks are computed from its values by the nodes that only the compiled graph has.
    """
    known = made.reference.types.keys()
    added = [node for node in made.graph.nodes if not known >= {*node.outputs}]
    used = {name for stage in made.computed for name in (*stage.group.inputs, *stage.group.outputs)}
    used.update(name for node in added for name in node.inputs)
    constants = {name: array for name, array in made.graph.constants.items() if name in used}
    values = {**constants, **evaluate(made.reference, feeds, "float64", keep=(used & known) - constants.keys())}
    for node in added:
        inputs, types = [values[n] for n in node.inputs], [made.graph.types[n] for n in node.inputs]
        values.update(zip(node.outputs, evaluate_node(node, inputs, types, "float64"), strict=True))
    return values


def run_alone(
    made: Compilation,
    stage: KernelStage | HostStage | RepeatStage | NestedStage,
    values: Mapping[str, np.ndarray],
    threads: int | None = None,
) -> list[np.ndarray]:
    """Outputs of one kernel for ``values``, as logical arrays in the order of its group's outputs."""
    reads = tuple(name for name in stage.group.inputs if name not in made.graph.constants)
    graph = replace(made.graph, inputs=reads, states={}).with_nodes(stage.group.nodes, outputs=stage.group.outputs)
    module = Module(assemble(replace(made, graph=graph, steps=(stage,), pieces={}, concurrent=())), threads)
    found = module(*(pack(made, name, values[name]) for name in reads))
    return [
        unpack(made, n, a) for n, a in zip(graph.outputs, found if len(graph.outputs) > 1 else [found], strict=True)
    ]


def pack(made: Compilation, name: str, value: np.ndarray) -> np.ndarray:
    """A value in the dtype and layout in which kernels find it; lanes that only pad hold NaN, or the most."""
    array = value.astype(numpy_dtype(made.graph.types[name].dtype))
    if name not in made.layouts:
        return np.ascontiguousarray(array).reshape(array.shape)  # which it is not of a number
    layout = made.layouts[name]
    packed = layout.pack(array)
    worst = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.nan
    packed[layout.pack(np.ones(array.shape, bool)) == 0] = worst
    return packed


def unpack(made: Compilation, name: str, array: np.ndarray) -> np.ndarray:
    """The logical array of a value that a kernel wrote."""
    return made.layouts[name].unpack(array, made.graph.types[name].shape) if name in made.layouts else array


def own_dtypes(made: Compilation, stage: KernelStage | HostStage | RepeatStage | NestedStage) -> set[str]:
    """The types of the model's own values that a stage computes with."""
    names = {name for node in stage.group.nodes for name in (*node.inputs, *node.outputs)}
    names &= made.reference.types.keys() - made.graph.constants.keys()
    return {made.graph.types[name].dtype for name in names}
