"""Training steps of graph networks: on the whole graph at once, within a memory budget, or on sampled parts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from burnish.base.arguments import refusal, typed
from burnish.base.sizes import parse_budget
from burnish.driver.api import compile
from burnish.errors import ParameterError
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
from burnish.memory.swap import PLANNERS
from burnish.train.evaluation import evaluation_graph
from burnish.train.losses import CrossEntropy
from burnish.train.optimizers import Adam
from burnish.train.step import Train, training_graph
from burnish.train.updates import GRADIENTS

PLANNER = "best"
PARTITIONS = ("edges", "vertices", "learned")


@typed
@dataclass(frozen=True)
class GraphOptions:
    """Options of training on a graph, besides those that :func:`burnish.fit` has for all models.

    ``sampling``: steps on sampled parts of the graph in place of the whole. ``block``: vertices whose rows are read at
    a time, where a memory budget holds not all. ``planner``: of the moves between memory and a file that a budget
    makes: "best", "streaming", "lru" or "lru drop dead". ``folder``: where that file is. ``partition``: ranges of
    vertices of workers, of as many "edges" or "vertices"; "learned" begins with edges, and moves ranges in training
    where a model that learns from each worker's seconds says that it pays (thesis-jia §4.4).
    """

    sampling: Sampling | None = None
    block: int | None = None
    planner: str = PLANNER
    folder: str | Path | None = None
    partition: str = PARTITIONS[0]

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        if self.planner not in PLANNERS:
            raise refusal("planner", self.planner, ", ".join(PLANNERS))
        if self.partition not in PARTITIONS:
            raise refusal("partition", self.partition, ", ".join(PARTITIONS))


def score(network: Network, graph: Graph, mask: str = "test") -> float:
    """Accuracy under a mask of a graph, or micro F1 of several labels a vertex. Raises DataError."""
    check_labels(network, graph)
    labels = labels_of(graph, mask_of(graph, mask))
    (metric,) = scores(graph.multilabel).values()
    return metric(logits_of(network, graph), labels)


def recipe_of(train: Train | None, network: Network, multilabel: bool) -> Train:
    """Training recipe of a network: Adam at 0.01 unless it is said, cross-entropy of its labels, all of its weights."""
    made = Train(optimizer=Adam(0.01)) if train is None else train
    loss = (KnownLogistic() if multilabel else CrossEntropy(wide=True)) if made.loss == Train().loss else made.loss
    own = tuple(network.weights)
    return replace(made, loss=loss, parameters=own, skip_nonfinite=GRADIENTS, memory_budget=None)


@dataclass(frozen=True, eq=False)
class Made:
    """Step that a trainer runs, its data, and what it is evaluated with."""

    step: Any
    source: Whole | Sampled
    evaluation: Any = None
    validation_data: Whole | None = None
    multilabel: bool = False


def prepared(
    network: Network, graph: Graph | str | Path, train: Train | None, options: GraphOptions, stack: ExitStack, *,
    threads: int | None = None, cache_dir: str | Path | None = None,
) -> Made:  # fmt: skip
    """Step and evaluation of one worker, which ``stack`` closes: within the memory budget of ``train`` if it has one.

    Raises ParameterError, among others for a budget that is too small, with the least one; DataError and OSError.
    """
    if train is None or train.memory_budget is None:
        given = loaded(graph)
        assert isinstance(given, Graph)
        return _in_memory(network, given, train, options.sampling, threads, cache_dir)
    budget = budget_of(train)
    if options.sampling is not None:
        raise ParameterError("sampling, memory_budget: found both; allowed: one of them")
    return _within(network, graph, train, budget, options, threads, cache_dir, stack)


def budget_of(train: Train) -> int:
    """Bytes that the process may take that trains on a graph. Raises ParameterError for another kind of budget."""
    found = train.memory_budget
    if found is None or not isinstance(found, (str, int)):
        raise refusal("memory_budget", found, 'for graph networks bytes of a process, as in "700MB"')
    return parse_budget("memory_budget", found)


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
    source: Whole | Sampled
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
    network: Network, graph: Graph | str | Path, train: Train, budget: int, options: GraphOptions,
    threads: int | None, cache_dir: str | Path | None, stack: ExitStack,
) -> Made:  # fmt: skip
    """Step and evaluation within a budget: on the whole graph where it holds that, else over blocks of vertices."""

    def whole(given: Graph) -> tuple[Made, list[Any]]:
        made = _in_memory(network, given, train, None, threads, cache_dir)
        return made, [module for module in (made.step, made.evaluation) if module is not None]

    def blocks() -> Made:
        shared = shared_of(network, graph, options.block)
        return blocked(network, shared, train, stack, budget=budget, planner=options.planner, folder=options.folder,
                       threads=threads, cache_dir=cache_dir)  # fmt: skip

    graph = loaded(graph, whole=False)
    if options.block is not None or options.planner != PLANNER:  # what is said of blocks and their order is done
        return blocks()
    return within(network, graph, budget, True, whole, blocks)


def blocked(
    network: Network, shared: Shared, train: Train | None, stack: ExitStack, *, budget: int | None = None,
    planner: str = "best", folder: str | Path | None = None, threads: int | None = None,
    cache_dir: str | Path | None = None, comm: Any = None,
) -> Made:  # fmt: skip
    """Step and evaluation over a share of a graph, which ``stack`` closes."""
    recipe = recipe_of(train, network, shared.multilabel)

    share, model = shared.share, shared.model()
    options: dict[str, Any] = {"threads": threads, "cache_dir": cache_dir}
    with_validation = shared.has_validation
    programs = [build(training_graph(model, recipe), share, FIRST, (LABEL,), **options)]
    if with_validation:
        programs.append(build(evaluation_graph(model, recipe), share, FIRST, (LABEL,), **options))
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
