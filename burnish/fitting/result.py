"""Result of training, of every kind: the report, the trained model, and what it predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from burnish.base.arguments import check_count, refusal
from burnish.base.files import write_atomic
from burnish.driver.api import compile
from burnish.driver.torch_module import TorchModule
from burnish.errors import BurnishError, CheckpointError, DataError
from burnish.fitting.checkpoint import Checkpoint
from burnish.fitting.data import bound
from burnish.fitting.picture import page
from burnish.fitting.report import TrainingReport
from burnish.frontend.torch.dtypes import to_torch
from burnish.frontend.torch.signature import CallSignature
from burnish.graph.graph import Graph
from burnish.loops.sizes import hinted
from burnish.parallel.programs.parallel_plan import Plan
from burnish.runtime.module import Module
from burnish.runtime.steps import TensorSpec
from burnish.train.evaluation import trained

Curve = tuple[np.ndarray, np.ndarray]


class TrainedModel(Protocol):
    """Trained model of one kind of training. What a kind cannot do, it refuses by name."""

    @property
    def model(self) -> Any:
        """The trained model: a :class:`burnish.Graph`, or a :class:`burnish.gnn.Network`."""

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Its weights by name."""

    def compile(self, arguments: Mapping[str, Any]) -> Any:
        """The model as a module of inference."""

    def predict(self, data: Any, batch: int | None, arguments: Mapping[str, Any]) -> Any:
        """Its results."""

    def with_states(self, states: Mapping[str, np.ndarray]) -> TrainedModel:
        """The same with other weights."""

    def copy_to(self, network: Any) -> None:
        """Copies the weights into a network of PyTorch."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model, the result of :func:`burnish.fit`: the ``report``, and the model with its weights.

    ``states``: parameters, what the optimizer remembers and what else a step keeps, by name. ``memory``: bytes by use,
    of each device. ``plan``: the plan that it was trained by, None on one device and for data parallelism; ``notes``:
    what was decided on the way, a line each. ``cuts``: where the vertices of a graph's workers begin and end at last,
    after ``moves`` moves, and ``partitioner``, what they have learned of the costs of ranges, which cuts other graphs
    too (`burnish.gnn.logits_by_workers`); none for other models. ``step``: the compiled step, where one device of this
    process trained; None elsewhere.
    """

    report: TrainingReport
    trained: TrainedModel
    states: Mapping[str, np.ndarray]
    memory: tuple[Mapping[str, int], ...]
    step: Any = None
    plan: Plan | None = None
    notes: tuple[str, ...] = ()
    cuts: tuple[int, ...] = ()
    moves: int = 0
    partitioner: Any = None
    parts: tuple[str, ...] = ()  # of HTML, for the picture

    def __repr__(self) -> str:
        return f"Fitted({self.report!r}, weights {', '.join(self.weights)})"

    @property
    def model(self) -> Any:
        """The trained model: a :class:`burnish.Graph`, or a :class:`burnish.gnn.Network`, then that of the evaluation
        with the least loss if there was one.
        """
        return self.trained.model

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """The trained weights by name, and other constants of the model."""
        return self.trained.weights

    def compile(self, **arguments: Any) -> Module:
        """The trained model in its form of inference, which takes any number of rows where the model computes each row
        by itself, or was imported with an open first extent; else batches of the size that it was trained in.
        A graph network's takes graphs of any size, as ``burnish.gnn.graph_inputs(module, graph)`` gives them by name.
        ``arguments`` are those of :func:`burnish.compile`.
        """
        found: Module = self.trained.compile(arguments)
        return found

    def predict(self, data: Any, batch: int | None = None, **arguments: Any) -> Any:
        """The model's outputs for ``data``: an array [N, ...], a tuple of them for several outputs.

        ``data``: an array or a tensor with any number of rows, or several by position or by the names of the inputs,
        computed ``batch`` rows at a time, by default as many as in training; for a graph network a graph, of which all
        vertices are computed. ``arguments`` are those of :func:`burnish.compile`, or of ``burnish.gnn.logits_of``.
        Raises DataError.
        """
        return self.trained.predict(data, batch, arguments)

    def restore(self, checkpoint: str | Path) -> Fitted:
        """The model with the weights of a checkpoint, such as ``best.safetensors``. Raises CheckpointError, OSError."""
        path = Path(checkpoint)
        states = Checkpoint.read(path).named_as(self.weights).states
        for name, value in self.weights.items():
            if name in states and (states[name].shape, states[name].dtype) != (value.shape, value.dtype):
                raise CheckpointError(f"{path}: state '{name}': found one of another model")
        return replace(self, trained=self.trained.with_states(states), states=states)

    def copy_to(self, network: Any) -> None:
        """Copies the trained weights into the network of PyTorch that was trained, in place. Raises ParameterError."""
        self.trained.copy_to(network)

    def curves(self) -> dict[str, Curve]:
        """Losses by call: "loss" of each, and "validation", if there was data for it; x [N] and y [N] of each."""
        losses, found = self.report.losses, self.report.evaluations
        made = {"loss": (np.arange(1, len(losses) + 1), losses)}
        if found:
            made["validation"] = np.array([e.call for e in found]), np.array([e.loss for e in found])
        return made

    def picture(self, path: str | Path | None = None) -> str:
        """The curves and the memory of a step as one page of HTML, written to ``path`` if given. Raises OSError."""
        text = page(self.report, self.parts)
        if path is not None:
            write_atomic(Path(path), [text.encode()])
        return text


@dataclass(frozen=True, eq=False)
class TrainedGraph:
    """The trained ``model`` of rows, for the size of batch that it was trained in, ``batch``.

    ``signature``: how a network of PyTorch is called; ``origins``: its names of constants. ``opened``: makes the graph
    for any number of rows, whose constants have the same names; it raises BurnishError where there is none.
    """

    model: Graph
    signature: CallSignature | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    opened: Callable[[], Graph] | None = None
    _modules: dict[str, Module] = field(default_factory=dict, init=False)  # that predict, by arguments

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """The constants by name."""
        return self.model.constants

    @property
    def batch(self) -> int:
        """Rows of a batch in training, 1 for a model without."""
        shape = self.model.types[self.model.inputs[0]].shape
        return hinted(shape[0]) if shape else 1

    @cached_property
    def open(self) -> Graph:
        """The model for any number of rows, where there is such a form; else as it is."""
        if self.opened is None:
            return self.model
        try:
            return trained(self.opened(), self.model.constants)
        except BurnishError:
            return self.model

    def compile(self, arguments: Mapping[str, Any]) -> Module:
        """As :meth:`Fitted.compile`."""
        made = compile(self.open, **arguments)
        return made if self.signature is None else TorchModule.called_as(made, self.signature)

    def predict(self, data: Any, batch: int | None, arguments: Mapping[str, Any]) -> Any:
        """As :meth:`Fitted.predict`."""
        size = self.batch if batch is None else batch
        check_count("batch", size, 1)
        graph, arrays = self.open, self._arrays(data)
        rows = len(arrays[0])
        if not graph.dims:
            size = self.batch
            if rows % size:
                found = f"data: found {rows} rows for a model without a form for any number of rows"
                raise DataError(f"{found}; allowed: a multiple of {size}")
        key = repr(sorted(arguments.items(), key=str))
        if key not in self._modules:
            self._modules[key] = compile(graph, **arguments)
        module = self._modules[key]
        parts: list[Sequence[np.ndarray]] = []
        for first in range(0, rows, size):
            found = module(*(array[first : first + size] for array in arrays))
            results = found if isinstance(found, tuple) else (found,)
            if any(result.ndim == 0 or len(result) != min(size, rows - first) for result in results):
                shapes = ", ".join(str(list(result.shape)) for result in results)
                raise DataError(f"data: found outputs {shapes} of {size} rows; allowed: a row of each output for each")
            parts.append(results)
        whole = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
        return whole[0] if len(whole) == 1 else whole

    def _arrays(self, data: Any) -> list[np.ndarray]:
        """The arrays of the inputs in order, all with as many rows. Raises DataError."""
        given = [*data.values()] if isinstance(data, Mapping) else data if isinstance(data, (tuple, list)) else [data]
        rows = np.shape(given[0])[0] if given and np.ndim(given[0]) else 0
        if not rows:
            raise DataError("data: found no rows; allowed: arrays with 1 or more")
        types = {name: self.model.types[name] for name in self.model.inputs if name not in self.model.states}
        return bound(data, [TensorSpec(name, (rows, *t.shape[1:]), t.dtype) for name, t in types.items()])

    def with_states(self, states: Mapping[str, np.ndarray]) -> TrainedGraph:
        """The same with other weights."""
        return replace(self, model=trained(self.model, states))

    def copy_to(self, network: Any) -> None:
        """As :meth:`Fitted.copy_to`."""
        if not self.origins:
            raise refusal("copy_to", type(network).__name__, "for a network of PyTorch that was trained")
        own = network.state_dict(keep_vars=True)
        for name, target in self.origins.items():
            if target in own:
                own[target].data.copy_(to_torch(np.ascontiguousarray(self.model.constants[name])))
