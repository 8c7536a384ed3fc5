"""Training from a model and data to trained weights: compiles step and evaluation, and runs the loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.arguments import check_count, check_flag, refusal
from burnish.driver.api import compile
from burnish.driver.checks import check_common, check_model
from burnish.driver.importing import import_model
from burnish.driver.torch_module import TorchModule
from burnish.errors import CheckpointError
from burnish.fitting.checkpoint import Checkpoint
from burnish.fitting.companions import companions_of, of_open_batch, with_rows
from burnish.fitting.data import Source, source
from burnish.fitting.loop import Trainer, TrainingLimits
from burnish.fitting.progress import shown
from burnish.fitting.report import TrainingProgress, TrainingReport
from burnish.frontend.onnx import Imported
from burnish.frontend.torch.dtypes import to_torch
from burnish.frontend.torch.export import CallSignature, first_rows, import_torch, is_network, open_rows
from burnish.frontend.torch.training import asks_for_mode
from burnish.graph.graph import Graph
from burnish.loops.sizes import dims_of, greatest, hinted, least
from burnish.runtime.module import Module
from burnish.train.evaluation import Metric, evaluation_graph, metrics_named, trained
from burnish.train.step import Train, noted_indices, noted_labels, parameters_of, trained_constants


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model: the ``report``, the training ``step`` with its states, the ``graph`` with trained weights."""

    report: TrainingReport
    step: Module
    graph: Graph
    signature: CallSignature | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def at(self, checkpoint: str | Path) -> Fitted:
        """The model with the weights of a checkpoint, such as ``best.safetensors``. Raises CheckpointError, OSError."""
        path = Path(checkpoint)
        states = Checkpoint.read(path).states
        for name, value in self.graph.constants.items():
            if name in states and (states[name].shape, states[name].dtype) != (value.shape, value.dtype):
                raise CheckpointError(f"{path}: state '{name}': found one of another model")
        return replace(self, graph=trained(self.graph, states))

    def compile(self, **arguments: Any) -> Module:
        """The trained model in its form of inference; ``arguments`` are those of :func:`burnish.compile`."""
        made = compile(self.graph, **arguments)
        return made if self.signature is None else TorchModule.called_as(made, self.signature)

    def copy_to(self, network: Any) -> None:
        """Copies the trained weights into the network of PyTorch that was trained, in place."""
        own = network.state_dict(keep_vars=True)
        for name, target in self.origins.items():
            if target in own:
                own[target].data.copy_(to_torch(np.ascontiguousarray(self.graph.constants[name])))


@dataclass(frozen=True, eq=False)
class PreparedTraining:
    """A model that is compiled for training: the loop over its data, and what its results are made of."""

    trainer: Trainer
    step: Module
    graph: Graph
    signature: CallSignature | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> Fitted:
        """Trains. Raises what :meth:`Trainer.run` does."""
        report, step = self.trainer.run(), self.step
        graph = trained(self.graph, {name: step.state[name] for name in step.state if name in self.graph.constants})
        return Fitted(report, step, graph, self.signature, self.origins)


def fit(
    model: Any,
    data: Any,
    train: Train,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    example_inputs: Any = None,
    valid: Any = None,
    metrics: Sequence[str] | Mapping[str, Metric] = (),
    shuffle: bool = True,
    seed: int = 0,
    batch: int | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    save_every: int | None = None,
    keep: int = 2,
    resume: bool = False,
    progress: bool | Callable[[TrainingProgress], object] = False,
    **arguments: Any,
) -> Fitted:
    """Trains ``model`` on ``data`` and returns it with a report.

    ``model`` and ``arguments``: as for :func:`burnish.compile`, with fixed shapes, whose first extent is the batch.
    ``data``: arrays of rows, by the names of the model's inputs and "label", or a tuple of them, labels last; the path
    of an .npz file of such; a DataLoader or another iterable of batches. Rows are shuffled by ``seed`` and epoch;
    what is left at the end of an epoch is a smaller batch. ``batch``: the first extent of inputs where the model
    leaves it open. ``valid``: data to evaluate with, after each epoch or ``evaluate_every`` calls; ``metrics`` are
    names of ``burnish.train.evaluation.METRICS``, or functions of output and labels by name. ``patience``: training
    ends after so many evaluations without a smaller loss.

    ``checkpoint``: a folder in which states, data position and random states are kept, after each epoch or
    ``save_every`` calls, and after Ctrl-C; the last ``keep`` stay, and the best one. ``resume=True`` goes on from the
    newest, to the same losses bit for bit. ``progress``: True draws a bar on a terminal; a function is called with a
    :class:`TrainingProgress` after each call, and ends training by returning true.

    A loss or gradients that are not finite raise DivergenceError, which names the step; parameters stay as they were.
    Raises ParameterError, DataError, ModelError, UnsupportedOperator, CheckpointError and OSError before work is lost.
    """
    if not callable(progress):
        check_flag("progress", progress)
    limits = TrainingLimits(steps, epochs, evaluate_every, patience, 0.0, save_every, keep, resume)
    with shown(progress is True) as bar:
        prepared = prepare(
            model, data, train, limits, example_inputs=example_inputs, valid=valid, metrics=metrics, shuffle=shuffle,
            seed=seed, batch=batch, checkpoint=checkpoint,
            progress=progress if callable(progress) else bar, **arguments,
        )  # fmt: skip
        return prepared.run()


def prepare(
    model: Any,
    data: Any,
    train: Train,
    limits: TrainingLimits,
    *,
    example_inputs: Any = None,
    valid: Any = None,
    metrics: Sequence[str] | Mapping[str, Metric] = (),
    shuffle: bool = True,
    seed: int = 0,
    batch: int | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[TrainingProgress], object] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> PreparedTraining:
    """Compiles what :func:`fit` runs; the arguments are those."""
    if not isinstance(train, Train):
        raise refusal("train", train, 'burnish.Train(loss="squared", optimizer=burnish.SGD(0.1))')
    check_count("seed", seed, 0)
    check_flag("shuffle", shuffle)
    chosen = metrics_named(metrics if isinstance(metrics, Mapping) else tuple(metrics))
    graph, train, signature, origins = _imported(model, example_inputs, train, batch, shapes, fix)
    with_rows_of = partial(_with_rows, model, example_inputs, batch, shapes, fix, graph)
    infers, inference_of = graph, with_rows_of
    if is_network(model) and asks_for_mode(model):
        found = import_torch(model, example_inputs, training=True, inference=True)
        infers, signature, origins = found.graph, found.signature, found.origins
        inference_of = partial(with_rows_of, inference=True)
    guarded = replace(train, guard=True)
    target = arguments.get("target", "cpu")
    step = of_open_batch(lambda opened: compile(opened, train=guarded, **arguments), graph, with_rows_of, target)
    batches = source(data, step.inputs, shuffle=shuffle, seed=seed)
    checked: Source | None = None
    evaluation = None
    if valid is not None:
        changed = {state.name for state in step.states}
        evaluation = of_open_batch(
            lambda opened: compile(evaluation_graph(opened, train, changed), **{**arguments, "rewrite": False}),
            infers, inference_of, target,
        )  # fmt: skip
        evaluation.note(labels=noted_labels(infers, train), indices=noted_indices(infers))
        checked = source(valid, evaluation.inputs, shuffle=False)
    trainer = Trainer(
        step, batches, limits, evaluation=evaluation, valid=checked, metrics=chosen, checkpoint=checkpoint,
        progress=progress, facts={"train": str(train), "parameters": sorted(trained_constants(graph, train))},
        companions=companions_of(step, graph, guarded, with_rows_of, inference_of, **arguments),
    )  # fmt: skip
    return PreparedTraining(trainer, step, infers, signature, origins)


def _imported(
    model: Any,
    example_inputs: Any,
    train: Train,
    batch: int | None,
    shapes: Mapping[str, Sequence[int | str]] | None,
    fix: Mapping[str, Any] | None,
) -> tuple[Graph, Train, CallSignature | None, Mapping[str, str]]:
    """The model's graph, how it is trained, and how a network is called."""
    if is_network(model):
        if shapes is not None or fix is not None:
            raise refusal("shapes and fix", "some", "None for networks of PyTorch")
        if batch is not None:
            raise refusal("batch", batch, "None for networks of PyTorch, whose example inputs have it")
        network = import_torch(model, example_inputs, training=True)
        train = replace(train, parameters=train.parameters or network.parameters)
        return network.graph, train, network.signature, network.origins
    if example_inputs is not None:
        raise refusal("example_inputs", "some", "None for models that are no network of PyTorch")
    check_model(model)
    check_common(threads=None, exact=False, shapes=shapes, cache_dir=None)
    if batch is None:
        found = import_model(model, shapes, fix, training=True)
    else:
        found = import_batch(model, batch, shapes, fix)
    train = replace(train, parameters=parameters_of(found.graph, train, found.weights))
    return found.graph, train, None, {}


def _with_rows(
    model: Any,
    example_inputs: Any,
    batch: int | None,
    shapes: Mapping[str, Sequence[int | str]] | None,
    fix: Mapping[str, Any] | None,
    graph: Graph,
    rows: int,
    inference: bool = False,
) -> Graph:
    """The model for batches of ``rows`` rows: imported anew where it can be, else derived from its ``graph``.

    ``rows`` may be a size: then the batch is open.
    Raises ModelError, UnsupportedOperator and PlanError where there is none.
    """
    if is_network(model) and example_inputs is not None:
        size = graph.types[graph.inputs[0]].shape[0]
        if dims_of((rows,)):
            opened = open_rows(model, example_inputs, size, "rows", (least(rows), greatest(rows), 1, hinted(rows)))
            return import_torch(model, example_inputs, opened, training=True, inference=inference).graph
        return import_torch(model, first_rows(example_inputs, size, rows), training=True, inference=inference).graph
    if batch is not None:
        return import_batch(model, rows, shapes, fix).graph
    return with_rows(graph, rows)


def import_batch(
    model: Any,
    batch: int,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix: Mapping[str, Any] | None = None,
) -> Imported:
    """The model to train with ``batch`` for the first extents that it leaves open. Raises ParameterError."""
    check_count("batch", hinted(batch), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = import_model(model, shapes, fix, training=True)
    if found.assumed:
        types = found.graph.types
        extent: int | str = batch
        if dims_of((batch,)):
            extent = str(batch)
            shapes = {**(shapes or {}), extent: (least(batch), greatest(batch), 1, hinted(batch))}
        chosen = {name: (extent, *types[name].shape[1:]) for name in found.assumed}
        return import_model(model, {**(shapes or {}), **chosen}, fix, training=True)
    first = found.graph.types[found.graph.inputs[0]].shape
    if not first or first[0] != batch:
        raise refusal("batch", batch, f"{first[0] if first else 'None'}, which the model has")
    return found
