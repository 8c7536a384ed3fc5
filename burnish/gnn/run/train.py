"""Training of graph networks: on the whole graph as one compiled step, within a memory budget, or on sampled parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.arguments import check_count, check_flag, refusal
from burnish.driver.api import compile
from burnish.errors import ParameterError
from burnish.fitting.data import Source
from burnish.fitting.loop import States, Trainer, TrainingLimits
from burnish.fitting.progress import shown
from burnish.fitting.report import TrainingProgress, TrainingReport
from burnish.gnn.data.graph import Graph
from burnish.gnn.model.losses import KnownLogistic, scores
from burnish.gnn.model.models import FEATURES, FIRST, Network
from burnish.gnn.model.program import build
from burnish.gnn.run.blocked import BlockedStep
from burnish.gnn.run.feeds import LABEL, Whole, check_fits, check_labels, inputs_of, labels_of, mask_of
from burnish.gnn.run.inference import logits_of
from burnish.gnn.run.outofcore import Shared, shared_of
from burnish.gnn.run.sampling import Sampled, Sampling
from burnish.gnn.run.whole import loaded, within
from burnish.memory.sizes import parse_budget
from burnish.memory.swap import PLANNERS
from burnish.train.evaluation import evaluation_graph
from burnish.train.losses import CrossEntropy
from burnish.train.optimizers import Adam
from burnish.train.step import Train, training_graph
from burnish.train.updates import GRADIENTS

SAVE_EVERY = 10  # epochs between checkpoints
PLANNER = "best"


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network, and the ``report``. ``best``: of several evaluations, that with the least loss.

    ``live``: bytes of tensors in memory over a step; ``plan``: what a memory plan moves, in words; ``cuts``: where the
    vertices of workers begin and end, at last, after so many ``moves``.
    """

    network: Network
    report: TrainingReport
    best: Network | None = None
    plan: str = ""
    cuts: tuple[int, ...] = ()
    moves: int = 0

    @property
    def chosen(self) -> Network:
        """The best network that evaluations found, else the last."""
        return self.network if self.best is None else self.best

    def infer(self, graph: Graph, **options: Any) -> np.ndarray:
        """Logits of all vertices of a graph, [V, classes], by the chosen network; see ``infer``."""
        return logits_of(self.chosen, graph, **options)

    def score(self, graph: Graph, mask: str = "test") -> float:
        """Accuracy of the chosen network under a mask of the graph, or micro F1 of several labels a vertex."""
        return score(self.chosen, graph, mask)


def score(network: Network, graph: Graph, mask: str = "test") -> float:
    """Accuracy under a mask of a graph, or micro F1 of several labels a vertex. Raises DataError."""
    check_labels(network, graph)
    labels = labels_of(graph, mask_of(graph, mask))
    (metric,) = scores(graph.multilabel).values()
    return metric(logits_of(network, graph), labels)


def recipe_of(train: Train | None, network: Network, multilabel: bool) -> Train:
    """How a network is trained: Adam at 0.01 unless it is said, cross-entropy of its labels, all of its weights."""
    made = Train(optimizer=Adam(0.01)) if train is None else train
    loss = (KnownLogistic() if multilabel else CrossEntropy(wide=True)) if made.loss == Train().loss else made.loss
    return replace(made, loss=loss, parameters=tuple(network.weights), skip_nonfinite=GRADIENTS)


def fit(
    network: Network,
    graph: Graph | str | Path,
    train: Train | None = None,
    *,
    epochs: int = 200,
    sampling: Sampling | None = None,
    memory_budget: str | int | None = None,
    planner: str = PLANNER,
    block: int | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    save_every: int = SAVE_EVERY,
    keep: int = 2,
    resume: bool = False,
    progress: bool | Callable[[TrainingProgress], object] = False,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    folder: str | Path | None = None,
    watch: Callable[[Any], object] | None = None,
) -> Trained:
    """Trains ``network`` on a graph with features, labels and a mask of vertices to ``train`` on.

    Each epoch is one step on the whole graph, or, with ``sampling``, steps on sampled parts of it. Where the graph has
    a mask of vertices for validation, the network is evaluated every epoch, or ``evaluate_every`` steps, and after
    ``patience`` evaluations without a smaller loss training ends. ``train``: loss, optimizer and all that
    :class:`burnish.Train` has; by default Adam at 0.01 and the cross-entropy of the labels.

    ``memory_budget``: the most memory that this process may take, all counted, in bytes or as in "700MB". If it holds
    less than training without a budget takes, or with ``block`` or a ``planner``, features, and of a graph that is
    given as a .bngraph file its edges, are read in blocks of ``block`` vertices, and what the budget does not hold
    moves to a file in ``folder`` and back. ``planner``: the planner of moves between memory and a file: "best",
    "streaming", "lru" or "lru drop dead". Losses are those without a budget, but for rounding.

    ``watch`` is given the compiled step before it runs. ``checkpoint``, ``save_every`` epochs, ``keep``, ``resume`` and
    ``progress`` are those of :func:`burnish.fit`. Raises ParameterError, among others for a budget that is too small,
    with the least one; DataError, CheckpointError and OSError.
    """
    _check(epochs, sampling, memory_budget, planner, progress)
    limits = TrainingLimits(None, epochs, evaluate_every, patience, 0.0, save_every, keep, resume)
    with ExitStack() as stack:
        bar = stack.enter_context(shown(progress is True))
        best = Best(progress if callable(progress) else bar)
        if memory_budget is not None:
            budget = parse_budget("memory_budget", memory_budget)
            made = _within(network, graph, train, budget, planner, block, folder, threads, cache_dir, stack)
        else:
            given = loaded(graph)
            assert isinstance(given, Graph)
            made = _in_memory(network, given, train, sampling, threads, cache_dir)
        trainer = Trainer(
            made.step, made.source, limits, evaluation=made.evaluation, validation_data=made.validation_data,
            metrics=scores(made.multilabel), checkpoint=checkpoint, progress=best, facts={"network": str(network)},
        )  # fmt: skip
        best.states = trainer.step.state
        if watch is not None:
            watch(trainer.step)
        report = trainer.run()
        return finished(network, report, trainer.step, best.best)


@dataclass(frozen=True, eq=False)
class Made:
    """What a trainer runs: a step and its data, and what it is evaluated with."""

    step: Any
    source: Source
    evaluation: Any = None
    validation_data: Source | None = None
    multilabel: bool = False


class Best:
    """Keeps the weights of the evaluation with the least loss, and calls another function."""

    def __init__(self, then: Callable[[TrainingProgress], object] | None) -> None:
        self.states: States = {}
        self.best: dict[str, np.ndarray] = {}
        self._loss, self._then = np.inf, then

    def __call__(self, progress: TrainingProgress) -> object:
        """As ``fit`` calls its ``progress``."""
        if progress.evaluation is not None and progress.evaluation.loss < self._loss:
            self._loss = progress.evaluation.loss
            self.best = {name: self.states[name] for name in self.states}
        return None if self._then is None else self._then(progress)


def finished(network: Network, report: TrainingReport, step: Any, best: Mapping[str, np.ndarray]) -> Trained:
    """The result of training, from a step's states."""
    states = {name: step.state[name] for name in network.weights}
    chosen = replace(network, weights={n: best[n] for n in network.weights}) if best else None
    plan = step.info.get("plan", "")
    return Trained(replace(network, weights=states), report, chosen, plan)


def _in_memory(
    network: Network, graph: Graph, train: Train | None, sampling: Sampling | None, threads: int | None,
    cache_dir: str | Path | None,
) -> Made:  # fmt: skip
    """The whole step as one module, on the whole graph or on samples of it."""
    check_labels(network, graph)
    recipe = recipe_of(train, network, graph.multilabel)
    options: dict[str, Any] = {"threads": threads, "cache_dir": cache_dir, "rewrite": False}
    mask = mask_of(graph, "train")
    check_fits(network, graph)
    source: Source
    if sampling is None:
        extents, arrays = inputs_of(network, graph)
        model = network.graph(extents)
        source = Whole({**arrays, LABEL: labels_of(graph, mask)})
    else:
        source = Sampled(network, graph, sampling, mask)
        model = network.graph(source.extents)
    step = compile(model, train=recipe, **options)
    if graph.validation is None or not graph.validation.any():
        return Made(step, source, multilabel=graph.multilabel)
    if sampling is not None:
        extents, arrays = inputs_of(network, graph)
        model = network.graph(extents)
    evaluation = compile(evaluation_graph(model, recipe), **options)
    validation_data = Whole({**arrays, LABEL: labels_of(graph, graph.validation)})
    return Made(step, source, evaluation, validation_data, graph.multilabel)


def _within(
    network: Network, graph: Graph | str | Path, train: Train | None, budget: int, planner: str, block: int | None,
    folder: str | Path | None, threads: int | None, cache_dir: str | Path | None, stack: ExitStack,
) -> Made:  # fmt: skip
    """Step and evaluation within a budget: on the whole graph where it holds that, else over blocks of vertices."""

    def whole(given: Graph) -> tuple[Made, list[Any]]:
        made = _in_memory(network, given, train, None, threads, cache_dir)
        return made, [module for module in (made.step, made.evaluation) if module is not None]

    def blocks() -> Made:
        shared = shared_of(network, graph, block)
        return blocked(network, shared, train, stack, budget=budget, planner=planner, folder=folder, threads=threads,
                       cache_dir=cache_dir)  # fmt: skip

    graph = loaded(graph, whole=False)
    if block is not None or planner != PLANNER:  # what is said of blocks and their order is done
        return blocks()
    return within(network, graph, budget, True, whole, blocks)


def blocked(
    network: Network, shared: Shared, train: Train | None, stack: ExitStack, *, budget: int | None = None,
    planner: str = "best", folder: str | Path | None = None, threads: int | None = None,
    cache_dir: str | Path | None = None, comm: Any = None,
) -> Made:  # fmt: skip
    """Step and evaluation over a share of a graph, which ``stack`` closes."""
    recipe = recipe_of(train, network, shared.multilabel)

    def forward(vertices: int) -> Any:
        return network.graph(shared.extents(vertices), shared.cost, part=True)

    share = shared.share
    options: dict[str, Any] = {"threads": threads, "cache_dir": cache_dir}
    with_validation = shared.has_validation
    programs = [build(lambda v: training_graph(forward(v), recipe), share, FIRST, (LABEL,), **options)]
    if with_validation:
        programs.append(build(lambda v: evaluation_graph(forward(v), recipe), share, FIRST, (LABEL,), **options))
    steps = [
        stack.enter_context(BlockedStep(program, share, FEATURES, FIRST, budget, planner, comm, folder, later=True))
        for program in programs
    ]
    works = [step.program.workspace for step in steps]  # a step's modules keep what they have worked in
    for step, own in zip(steps, works, strict=True):
        step.settle(sum(works) - own)
    source = Whole({LABEL: shared.labels("train")})
    if not with_validation:
        return Made(steps[0], source, multilabel=shared.multilabel)
    return Made(steps[0], source, steps[1], Whole({LABEL: shared.labels("validation")}), shared.multilabel)


def _check(
    epochs: int, sampling: Sampling | None, memory_budget: str | int | None, planner: str, progress: Any
) -> None:
    check_count("epochs", epochs, 1)
    if not callable(progress):
        check_flag("progress", progress)
    if sampling is not None and memory_budget is not None:
        raise ParameterError("sampling, memory_budget: found both; allowed: one of them")
    if planner not in PLANNERS:
        raise refusal("planner", planner, ", ".join(PLANNERS))
