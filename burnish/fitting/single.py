"""Training on one device: a model and data to a compiled step, and the loop that runs it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from burnish.base.arguments import check_count, check_flag, refusal
from burnish.driver.api import compile
from burnish.driver.checks import check_common, check_model
from burnish.driver.importing import import_model
from burnish.errors import BurnishError
from burnish.fitting.companions import companions_of, of_open_batch, with_rows
from burnish.fitting.data import DEFAULT_BATCH, Source, default_batch, read_npz, source
from burnish.fitting.loop import Trainer, TrainingLimits
from burnish.fitting.report import TrainingProgress
from burnish.fitting.result import Fitted, TrainedGraph
from burnish.frontend.onnx import Imported
from burnish.frontend.torch.export import first_rows, import_torch, is_network, open_rows
from burnish.frontend.torch.signature import CallSignature
from burnish.frontend.torch.training import asks_for_mode
from burnish.graph.graph import Graph
from burnish.graph.specialize import graph_at
from burnish.loops.sizes import MOST, dim, dims_of, greatest, hinted, is_dim, is_size, least
from burnish.runtime.module import Module
from burnish.train.evaluation import Metric, evaluation_graph, metrics_named, trained
from burnish.train.step import Train, noted_indices, noted_labels, parameters_of, trained_constants

ROWS = "batch"  # the name of an open first extent
Shapes = Mapping[str, Sequence[int | str]] | None


@dataclass(frozen=True, eq=False)
class LoopOptions:
    """Options of the training loop, for every kind of training; the names are those of :func:`burnish.fit`."""

    limits: TrainingLimits
    validation_data: Any = None
    metrics: Sequence[str] | Mapping[str, Metric] = ()
    shuffle: bool = True
    seed: int = 0
    checkpoint: str | Path | None = None
    progress: Callable[[TrainingProgress], object] | None = None

    def __post_init__(self) -> None:
        """Raises ParameterError."""
        check_count("seed", self.seed, 0)
        check_flag("shuffle", self.shuffle)
        metrics_named(self.metrics if isinstance(self.metrics, Mapping) else tuple(self.metrics))

    @property
    def chosen_metrics(self) -> dict[str, Metric]:
        """The metrics by name."""
        return metrics_named(self.metrics if isinstance(self.metrics, Mapping) else tuple(self.metrics))


@dataclass(frozen=True, eq=False)
class TrainableModel:
    """A model imported for training: its ``graph``, that of inference, and how it is trained.

    ``of_rows``, ``infers_of_rows``: the two graphs for another number of rows. ``opened``: that of inference for any.
    """

    graph: Graph
    infers: Graph
    train: Train
    of_rows: Callable[[int], Graph]
    infers_of_rows: Callable[[int], Graph]
    opened: Callable[[], Graph]
    signature: CallSignature | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def trained(self, states: Mapping[str, Any]) -> TrainedGraph:
        """The model with the values that training gave its states."""
        return TrainedGraph(trained(self.infers, states), self.signature, self.origins, self.opened)


@dataclass(frozen=True, eq=False)
class PreparedTraining:
    """A model that is compiled for training: the loop over its data, and what its results are made of."""

    trainer: Trainer
    step: Module
    model: TrainableModel

    def run(self) -> Fitted:
        """Trains. Raises what :meth:`Trainer.run` does."""
        report, step = self.trainer.run(), self.step
        states = {name: step.state[name] for name in step.state if name in self.model.infers.constants}
        return Fitted(report, self.model.trained(states), step.state, (report.memory,), step)


def prepare(
    model: Any,
    data: Any,
    train: Train,
    loop: LoopOptions,
    *,
    example_inputs: Any = None,
    batch: int | None = None,
    shapes: Shapes = None,
    fix: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> PreparedTraining:
    """Compiles what :func:`burnish.fit` runs on one device; the arguments are those."""
    if isinstance(data, (str, Path)):
        data = read_npz(Path(data))  # once, for the batch and for the loop
    rows = partial(default_batch, data)
    own = trainable(model, train, example_inputs=example_inputs, batch=batch, shapes=shapes, fix=fix, default=rows)
    graph, train, infers = own.graph, own.train, own.infers
    guarded = replace(train, skip_nonfinite=True)
    target = arguments.get("target", "cpu")
    step = of_open_batch(lambda opened: compile(opened, train=guarded, **arguments), graph, own.of_rows, target)
    batches = source(data, step.inputs, shuffle=loop.shuffle, seed=loop.seed)
    checked: Source | None = None
    evaluation = None
    if loop.validation_data is not None:
        changed = {state.name for state in step.states}
        evaluation = of_open_batch(
            lambda opened: compile(evaluation_graph(opened, train, changed), **{**arguments, "rewrite": False}),
            infers, own.infers_of_rows, target,
        )  # fmt: skip
        evaluation.note(labels=noted_labels(infers, train), indices=noted_indices(infers))
        checked = source(loop.validation_data, evaluation.inputs, shuffle=False)
    trainer = Trainer(
        step, batches, loop.limits, evaluation=evaluation, validation_data=checked, metrics=loop.chosen_metrics,
        checkpoint=loop.checkpoint, progress=loop.progress,
        facts={"train": str(train), "parameters": sorted(trained_constants(graph, train))},
        companions=companions_of(step, graph, guarded, own.of_rows, own.infers_of_rows, **arguments),
    )  # fmt: skip
    return PreparedTraining(trainer, step, own)


def trainable(
    model: Any,
    train: Train,
    *,
    example_inputs: Any = None,
    batch: int | None = None,
    shapes: Shapes = None,
    fix: Mapping[str, Any] | None = None,
    default: Callable[[], int] = lambda: DEFAULT_BATCH,
) -> TrainableModel:
    """Imports a model for training; the arguments are those of :func:`burnish.fit`. ``default``: rows of a batch where
    the model leaves them open and ``batch`` does not say them.
    """
    if is_network(model):
        if shapes is not None or fix is not None:
            raise refusal("shapes and fix", "some", "None for networks of PyTorch")
        if batch is not None:
            raise refusal("batch", batch, "None for networks of PyTorch, whose example inputs have it")
        return _trainable_network(model, train, example_inputs, default)
    if example_inputs is not None:
        raise refusal("example_inputs", "some", "None for models that are no network of PyTorch")
    check_model(model)
    check_common(threads=None, exact=False, shapes=shapes, cache_dir=None)
    found = import_batch(model, batch, shapes, fix, default)
    graph, at_rows = at_batch(found.graph, batch, default)
    train = replace(train, parameters=parameters_of(graph, train, found.weights))

    def of_rows(rows: int) -> Graph:
        return import_batch(model, rows, shapes, fix).graph if found.assumed else at_rows(rows)

    def imported_open() -> Graph:
        return import_model(model, _open_shapes(import_assumed(model, shapes, fix), shapes), fix, training=True).graph

    return TrainableModel(graph, graph, train, of_rows, of_rows, partial(_opened, found.graph, imported_open))


def _trainable_network(model: Any, train: Train, example_inputs: Any, default: Callable[[], int]) -> TrainableModel:
    found = import_torch(model, example_inputs, training=True)
    graph, at_rows = at_batch(found.graph, None, default)
    infers = replace(found, graph=graph)
    moded = asks_for_mode(model)
    if moded:
        infers = import_torch(model, example_inputs, training=True, inference=True)

    def of_rows(rows: int, inference: bool = False) -> Graph:
        if example_inputs is None:
            return at_rows(rows)
        size = graph.types[graph.inputs[0]].shape[0]
        bounds = _range(rows)
        if is_size(rows):
            opened = open_rows(model, example_inputs, size, "rows", bounds)
            return import_torch(model, example_inputs, opened, training=True, inference=inference).graph
        return import_torch(model, first_rows(example_inputs, size, rows), training=True, inference=inference).graph

    def exported_open() -> Graph:
        return import_torch(model, example_inputs, {ROWS: (1, MOST)}, training=True, inference=moded).graph

    opened = infers.graph if moded else found.graph
    return TrainableModel(
        graph, infers.graph, replace(train, parameters=train.parameters or found.parameters), of_rows,
        partial(of_rows, inference=moded), partial(_opened, opened, exported_open), infers.signature, infers.origins,
    )  # fmt: skip


def _opened(graph: Graph, imported: Callable[[], Graph]) -> Graph:
    """``graph`` for any number of rows: derived where it computes each row by itself, else imported anew.

    Raises BurnishError where there is none.
    """
    if graph.dims:
        return graph
    try:
        made = with_rows(graph, dim(ROWS, hint=_first_extent(graph) or 1))
        if made.dims:
            return made
    except BurnishError:
        pass
    return imported()


def _range(rows: int) -> tuple[int, int, int, int]:
    """Bounds, multiple and hint of a number of rows, as ``shapes`` takes them."""
    return least(rows), greatest(rows), 1, hinted(rows)


def import_assumed(model: Any, shapes: Shapes = None, fix: Mapping[str, Any] | None = None) -> Imported:
    """The model to train, with 1 for the first extents that it leaves open, without a warning that says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_model(model, shapes, fix, training=True)


def _open_shapes(found: Imported, shapes: Shapes) -> dict[str, Any]:
    """Shapes by which the first extents that a model leaves open stay open."""
    types = found.graph.types
    return {**(shapes or {}), **{name: (ROWS, *types[name].shape[1:]) for name in found.assumed}, ROWS: (1, MOST)}


def import_batch(
    model: Any,
    batch: int | None,
    shapes: Shapes = None,
    fix: Mapping[str, Any] | None = None,
    default: Callable[[], int] = lambda: DEFAULT_BATCH,
) -> Imported:
    """The model to train with ``batch``, a number or a size, for the first extents that it leaves open, which are
    ``assumed``; by default with ``default``.

    Raises ParameterError.
    """
    if batch is not None:
        check_count("batch", hinted(batch), 1)
    found = import_assumed(model, shapes, fix)
    if found.assumed:
        types = found.graph.types
        extent: Any = default() if batch is None else batch
        bounds = _range(extent)
        if is_size(extent):
            extent = str(extent)
            shapes = {**(shapes or {}), extent: bounds}
        chosen = {name: (extent, *types[name].shape[1:]) for name in found.assumed}
        made = import_model(model, {**(shapes or {}), **chosen}, fix, training=True)
        return replace(made, assumed=found.assumed)
    first = _first_extent(found.graph)
    if batch is not None and not is_dim(first) and first != batch:
        raise refusal("batch", batch, f"{first}, which the model has")
    return found


def _first_extent(graph: Graph) -> int | None:
    """The first extent of the first input; None without."""
    shape = graph.types[graph.inputs[0]].shape if graph.inputs else ()
    return shape[0] if shape else None


def at_batch(opened: Graph, batch: int | None, default: Callable[[], int]) -> tuple[Graph, Callable[[int], Graph]]:
    """A graph for batches of ``batch`` rows, by default of ``default``, where its first extent is a dimension; and what
    makes it for other rows.
    """
    extent = _first_extent(opened)
    if not is_dim(extent):
        return opened, partial(with_rows, opened)
    (d,) = dims_of([extent or 0])
    rows = min(max(default(), d.low), d.high) if batch is None else batch
    graph = graph_at(opened, {d.name: rows})

    def at_rows(rows: int) -> Graph:
        return graph_at(opened, {d.name: rows}) if isinstance(rows, int) else with_rows(graph, rows)

    return graph, at_rows
