"""Training by one function: networks and graph networks, on one device, by a plan on several, by workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from burnish.base.arguments import check_count, check_flag, refusal, typed
from burnish.comm.local import TIMEOUT
from burnish.errors import ParameterError, PlanError
from burnish.fitting.data import default_batch
from burnish.fitting.graphs import EPOCHS, SAVE_EVERY, fit_graph
from burnish.fitting.loop import TrainingLimits
from burnish.fitting.planned import data_parallel_splits, read_plan
from burnish.fitting.planned import plan as find_plan
from burnish.fitting.progress import shown
from burnish.fitting.ranks import faster_plan, train_ranks
from burnish.fitting.report import TrainingProgress
from burnish.fitting.result import Fitted
from burnish.fitting.single import LoopOptions, TrainableModel, prepare, trainable
from burnish.gnn.model.models import Network
from burnish.gnn.run.train import GraphOptions
from burnish.parallel.model.strategy import devices_of
from burnish.parallel.programs.calibration import LaunchConfig
from burnish.parallel.programs.parallel_plan import Plan
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.train.evaluation import Metric
from burnish.train.step import Train

Found = TypeVar("Found")
AUTO = "auto"
IMPORTED = ("example_inputs", "batch", "shapes", "fix")  # arguments by which a model is imported
LAUNCHED = ("target", "exact", "cache_dir")  # those by which programs of devices are compiled


@typed
def fit(
    model: Any,
    data: Any,
    train: Train | None = None,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    validation_data: Any = None,
    metrics: Sequence[str] | Mapping[str, Metric] = (),
    shuffle: bool = True,
    seed: int = 0,
    evaluate_every: int | None = None,
    patience: int | None = None,
    min_gain: float = 0.0,
    checkpoint: str | Path | None = None,
    save_every: int | None = None,
    keep: int = 2,
    resume: bool = False,
    progress: bool | Callable[[TrainingProgress], object] = False,
    plan: Plan | TensorSplits | Stages | str | Path | None = None,
    compare: bool = False,
    workers: int = 1,
    worker_kind: str = "process",
    timeout: float = TIMEOUT,
    threads: int | None = None,
    graph_options: GraphOptions | None = None,
    on_step: Callable[[Any], object] | None = None,
    **arguments: Any,
) -> Fitted:
    """Trains ``model`` on ``data`` and returns it with a report.

    ``model`` and ``arguments``: as for :func:`burnish.compile` (``example_inputs`` of a network of PyTorch, ``target``,
    ``exact``, ``cache_dir``, ...); the first extent is the batch. ``batch``: that extent where a model leaves it open,
    by default 32 rows, all if there are fewer, a multiple of the devices, or as many as an iterable's first batch has.
    ``data``: arrays of rows, by the names of the model's inputs and "label", or a tuple of them (NumPy's, or tensors),
    labels last; the path of an .npz file of such; a DataLoader or another iterable of batches.
    Rows are shuffled by ``seed`` and epoch; what is left at the end of an epoch is a smaller batch.
    ``validation_data``: data to evaluate with, after each epoch or ``evaluate_every`` calls; ``metrics`` are names of
    ``burnish.train.evaluation.METRICS``, or functions of output and labels by name. ``patience``: the number of
    evaluations without a loss that is smaller by ``min_gain`` after which training ends.

    A graph network (``burnish.gnn.network``) is trained on a ``burnish.gnn.Graph``, or the path of one, with features,
    labels and a mask of vertices to train on; it is evaluated by its mask of vertices for validation. An epoch is a
    step on the whole graph, 200 unless said; without ``train``, by Adam at 0.01 and the cross-entropy of the labels.
    ``Train(memory_budget=)`` is the most memory that this process may take, all counted, or that of each worker: what
    it does not hold is read in blocks and moves to a file. ``graph_options``: samples, blocks and partitions.

    ``workers``: how many devices train, of ``worker_kind`` "process" or "thread" here, "torch" (gloo), or "ray" (actors
    of a cluster), with ``threads`` each; one that is silent for ``timeout`` seconds ends all with WorkerError.
    ``plan``: what :func:`burnish.plan` returns, of the same batch or of an open one, or the file that its ``save``
    writes, on as many devices as it has; "auto" searches for one with costs measured here; None: data parallelism.
    ``compare``: some steps by a given plan and by data parallelism are timed first, and the faster one trains. A
    graph's workers have a range of its vertices each.

    ``checkpoint``: a folder in which states, data position and random states are kept, after each epoch or
    ``save_every`` calls (of a graph 10), and after Ctrl-C; the last ``keep`` stay, and the best one. ``resume=True``
    goes on from the newest, to the same losses bit for bit. ``progress``: True draws a bar on a terminal; a function is
    called with a :class:`TrainingProgress` after each call, and ends training by returning true; with workers they must
    be threads. ``on_step`` is given the compiled step before it runs.

    A loss or gradients that are not finite raise DivergenceError, which names the step; parameters stay as they were.
    Raises ParameterError, DataError, ModelError, UnsupportedOperator, PlanError, CheckpointError and OSError before
    work is lost.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> rows = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], "f4")
    >>> done = bn.fit(graph, (rows, 2 * rows.sum(axis=1)), bn.Train("mse", bn.SGD(0.2)), epochs=100)
    >>> done.report.epochs, bool(done.report.losses[-1] < 1e-4)
    (100, True)
    """
    on_graph = isinstance(model, Network)
    if not callable(progress):
        check_flag("progress", progress)
    if not isinstance(train, Train) and not (train is None and on_graph):
        raise refusal("train", train, 'burnish.Train(loss="mse", optimizer=burnish.SGD(0.1))')
    check_count("workers", workers, 1)
    if on_graph:
        epochs = EPOCHS if epochs is None and steps is None else epochs
        save_every = SAVE_EVERY if save_every is None else save_every
    limits = TrainingLimits(steps, epochs, evaluate_every, patience, min_gain, save_every, keep, resume)
    devices = _devices(plan) if workers == 1 else workers
    alone = devices == 1 and plan is None
    if callable(progress) and not alone and worker_kind != "thread":
        raise refusal("progress", progress, 'a function on one device, or with worker_kind="thread"')
    with shown(progress is True and (alone or worker_kind == "thread")) as bar:
        loop = LoopOptions(
            limits, validation_data, metrics, shuffle, seed, checkpoint, progress if callable(progress) else bar
        )
        if on_graph:
            _refuse("graph networks", plan=plan, compare=compare or None)
            launch = _launched(arguments, ("cache_dir",), worker_kind=worker_kind, timeout=timeout)
            options = GraphOptions() if graph_options is None else graph_options
            return fit_graph(model, data, train, loop, options, launch, workers, threads, on_step)
        assert train is not None
        _refuse("models of rows", graph_options=graph_options)
        if alone:
            prepared = prepare(model, data, train, loop, threads=threads, **arguments)
            if on_step is not None:
                on_step(prepared.step)
            return prepared.run()
        _refuse("several devices", on_step=on_step)
        imported = {n: arguments.pop(n) for n in IMPORTED if n in arguments}
        own = trainable(model, train, **imported, default=partial(_default_batch, plan, data, devices))
        launch = _launched(
            arguments, LAUNCHED, train=own.train, worker_kind=worker_kind, timeout=timeout, threads=threads or 1
        )
        return _by_plan(own, data, loop, plan, devices, launch, compare)


def _devices(plan: Any) -> int:
    """Devices that a plan, or the file of one, is for; 1 where it does not say. Raises PlanError and OSError."""
    if isinstance(plan, Plan):
        return plan.machine.size
    return 1 if plan == AUTO or not isinstance(plan, (str, Path)) else _read(Path(plan), devices_of)


def _default_batch(plan: Any, data: Any, devices: int) -> int:
    """Rows of a batch where the model leaves them open: those of a plan of one size, or a multiple of the devices."""
    if isinstance(plan, Plan) and plan.opened is None:
        shape = plan.graph.types[plan.graph.inputs[0]].shape
        return shape[0] if shape else 1
    return default_batch(data, devices)


def _read(path: Path, parse: Callable[[str], Found]) -> Found:
    """Parsed text of a plan's file. Raises PlanError, naming the file, and OSError."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (PlanError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: {error}") from None


def _by_plan(
    model: TrainableModel, data: Any, loop: LoopOptions, plan: Any, devices: int, launch: LaunchConfig, compare: bool
) -> Fitted:
    """Trains by a plan, one that is searched for, or data parallelism, whichever is asked for, or faster."""
    if devices == 1:
        raise refusal("workers", devices, "with a plan, as many as it has devices")
    graph, parameters = model.graph, model.train.parameters
    plain: TensorSplits | Stages = data_parallel_splits(graph, devices, parameters)
    chosen, known, notes = plain, None, list[str]()
    if isinstance(plan, str) and plan == AUTO:
        known = find_plan(graph, devices=f"host:{devices}", parameters=parameters, measure=launch)
        chosen = known.placement
    elif plan is not None:
        known = plan if isinstance(plan, Plan) else None
        chosen = _placement(plan, graph, devices, parameters)
        if compare and chosen != plain:
            plans = {"plan": chosen, "data parallelism": plain}
            used, times = faster_plan(graph, data, plans, devices, launch)
            measured = ", ".join(f"{name} {1e3 * seconds:.2f} ms a step" for name, seconds in times.items())
            notes.append(f"{measured}: trained by {used}")
            chosen, known = plans[used], known if used == "plan" else None
    return replace(train_ranks(model, data, loop, chosen, devices, launch), plan=known, notes=tuple(notes))


def _placement(plan: Any, graph: Any, devices: int, parameters: Any) -> TensorSplits | Stages:
    """Placement for programs, of a plan as it is given. Raises PlanError for a plan of another model, OSError."""
    if isinstance(plan, (TensorSplits, Stages)):
        return plan
    if isinstance(plan, Plan):
        if plan.machine.size != devices:
            raise refusal("workers", devices, f"{plan.machine.size}, as many as the plan has devices")
        if plan.opened is not None:
            return plan.placement_at(graph)
        text = plan.text()
    elif isinstance(plan, (str, Path)):
        return _read(Path(plan), lambda text: read_plan(text, graph, devices, parameters))
    else:
        raise refusal("plan", plan, f'what burnish.plan returns, the path of a strategy, "{AUTO}", or None')
    return read_plan(text, graph, devices, parameters)


def _launched(arguments: Mapping[str, Any], allowed: Sequence[str], **more: Any) -> LaunchConfig:
    """Launcher of the devices. Raises ParameterError for an argument that only one device takes."""
    for name in arguments:
        if name not in allowed:
            raise ParameterError(f"{name}: found {arguments[name]!r}; allowed here: {', '.join(allowed)}")
    return LaunchConfig(**arguments, **more)


def _refuse(where: str, **given: Any) -> None:
    """Raises ParameterError for an argument that is given where it has no meaning."""
    for name, value in given.items():
        if value is not None:
            raise refusal(name, value, f"None for {where}")
