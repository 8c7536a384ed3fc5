"""Companion modules of a training step: for batches of fewer rows, and for the last update of accumulated gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from burnish.driver.api import compile
from burnish.errors import BurnishError, ModelError, ParameterError, TargetError, UnsupportedOperator
from burnish.fitting.loop import Companions
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim, dims_of
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.parallel.programs.micro import micro_graph
from burnish.runtime.devices import device_for
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module
from burnish.runtime.steps import TensorSpec
from burnish.train.evaluation import evaluation_graph
from burnish.train.step import Train, noted_labels, parameters_of, training_graph, update_plan
from burnish.train.updates import remaining_update


def companions_of(
    step: Module,
    graph: Graph,
    train: Train,
    of_rows: Callable[[int], Graph],
    evaluated: Callable[[int], Graph],
    **arguments: Any,
) -> Companions:
    """The companions of a ``step`` that trains ``graph`` by ``train``; ``arguments`` are those of its compilation.

    ``of_rows``: from a batch size to the model's training graph for it, whose constants have the same names;
    ``evaluated``: likewise to its inference graph. Both may raise BurnishError where there is none.
    """
    return _made(step.states, graph, train, of_rows, evaluated, **arguments)


def _made(
    specs: Sequence[TensorSpec],
    graph: Graph,
    train: Train,
    of_rows: Callable[[int], Graph],
    evaluated: Callable[[int], Graph],
    **arguments: Any,
) -> Companions:
    names = {s.name for s in specs}
    states = {(s.name, s.shape, s.dtype) for s in specs}

    @lru_cache(maxsize=8)
    def other(rows: int) -> Module | None:
        try:
            made: Module = compile(of_rows(rows), train=train, **arguments)
        except BurnishError:
            return None
        return made if {(s.name, s.shape, s.dtype) for s in made.states} == states else None

    @lru_cache(maxsize=8)
    def evaluation(rows: int) -> Module | None:
        try:
            model = evaluated(rows)
            made: Module = compile(evaluation_graph(model, train, names), **{**arguments, "rewrite": False})
        except BurnishError:
            return None
        made.note(labels=noted_labels(model, train))
        return made

    def last() -> Module | None:
        if train.accumulation_steps == 1:
            return None
        values = {name: graph.constants[name] for name in parameters_of(graph, train)}
        made: Module = compile(remaining_update(values, update_plan(train)), **{**arguments, "rewrite": False})
        return made

    return Companions(other, evaluation, last)


def step_companions(
    graph: Graph, train: Train, of_rows: Callable[[int], Graph], evaluated: Callable[[int], Graph], **arguments: Any
) -> Companions:
    """The companions of a step of the whole ``graph``, where it is not compiled as one: of training by a plan."""
    made = training_graph(graph, train)
    states = [TensorSpec(name, made.types[name].shape, made.types[name].dtype) for name in made.states]
    return _made(states, graph, train, of_rows, evaluated, **arguments)


def of_open_batch(
    make: Callable[[Graph], Module], graph: Graph, of_rows: Callable[[int], Graph], target: str | Target = "cpu"
) -> Module:
    """The module that ``make`` compiles of a model for any number of rows up to the batch of ``graph``.

    Where there is none it is that of ``graph`` itself, and notes as ``fixed_rows`` why. ``of_rows``: as of
    :func:`companions_of`, but also from a size.
    """
    shape = graph.types[graph.inputs[0]].shape if graph.inputs else ()
    reason = "the batch is of one row"
    if shape and shape[0] > 1:
        try:
            _check_takes_sizes(find_target(target))
            for low in (1, 2):  # of one row there may be no statistics
                try:
                    return make(_same_parameters(of_rows(dim("rows", low, shape[0], hint=shape[0])), graph))
                except ModelError as error:
                    reason = str(error)
        except ParameterError:
            raise
        except BurnishError as error:
            reason = str(error)
    made = make(graph)
    made.note(fixed_rows=reason)
    return made


def _check_takes_sizes(machine: Target) -> None:
    """Raises TargetError for a target whose modules take fixed sizes only."""
    if device_for(machine.machine, fingerprint(machine.triple, machine.cpu, machine.features)) is not None:
        raise TargetError(f"target '{machine.name}' takes fixed sizes")


def _same_parameters(opened: Graph, graph: Graph) -> Graph:
    """The graph with an open batch. Raises UnsupportedOperator where it differs in more than the batch."""
    kept = {name: value.shape for name, value in graph.constants.items() if value.ndim}
    found = {name: value.shape for name, value in opened.constants.items()}
    if opened.inputs != graph.inputs or any(found.get(n) != s for n, s in kept.items() if n in _read(opened)):
        raise UnsupportedOperator("with an open batch the model is another graph")
    return opened


def _read(graph: Graph) -> set[str]:
    return {name for node in graph.nodes for name in node.inputs}


def with_rows(graph: Graph, rows: int) -> Graph:
    """``graph`` for batches of ``rows`` rows, a number or a size, dimension 0 of its inputs; names are the same.

    Between the graph of one row and that of the whole batch, which :func:`burnish.parallel.programs.micro.micro_graph`
    proves to compute the same of each row, extents and attributes are linear in the rows. Raises PlanError where there
    is no graph of one row, and ModelError where attributes are not linear.
    """
    size = graph.types[graph.inputs[0]].shape[0]
    one, b = micro_graph(graph, size), GraphBuilder()

    def between(whole: Any, single: Any) -> Any:
        if isinstance(whole, tuple) and isinstance(single, tuple):
            return tuple(map(between, whole, single))
        if whole != single and whole != single * size:
            raise ModelError(f"{rows} rows: found {single} for one and {whole} for {size}; allowed: what is linear")
        return whole if whole == single else single * rows

    def shape_of(name: str) -> tuple[int, ...]:
        return between(graph.types[name].shape, one.types[name].shape)

    for name in graph.inputs:
        b.input(name, shape_of(name), graph.types[name].dtype)
    for name, value in graph.constants.items():
        b.constant(value, name)
    for node, single in zip(graph.nodes, one.nodes, strict=True):
        attrs = {key: between(value, single.attrs[key]) for key, value in node.attrs.items()}
        operands = [_cut(b, name, other, rows) for name, other in zip(node.inputs, single.inputs, strict=True)]
        for name in b.add_many(node.op, *operands, names=node.outputs, node=node.name, **attrs):
            if b.types[name].shape != shape_of(name):
                raise ModelError(f"{rows} rows: node '{node.name}': found {b.types[name]}; allowed: {shape_of(name)}")
    return b.build(*graph.outputs)


def _cut(b: GraphBuilder, name: str, single: str, rows: int) -> str:
    """A constant of which every row reads its own, for the first rows; another operand as it is."""
    if name == single or not dims_of((rows,)):
        return name if name == single else b.constant(b.constants[name][:rows], b.fresh(f"{name}.rows"))
    shape = b.types[name].shape
    return b.add("slice", name, starts=(0,) * len(shape), extents=(rows, *shape[1:]))
