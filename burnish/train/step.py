"""The graph of one training step: forward, loss, backward and update, with the parameters as its states."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from burnish.base.arguments import check_count, check_flag, check_number, refusal, typed
from burnish.base.sizes import check_budget
from burnish.errors import ModelError
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.graph.recurrence import in_segments
from burnish.graph.rewrite import Rewrite
from burnish.loops.expr import FLOATS
from burnish.loops.sizes import is_size, least
from burnish.ops import OPERATORS
from burnish.train.losses import Loss, add_loss, check_loss, label_classes, resolved
from burnish.train.optimizers import SGD, Optimizer
from burnish.train.precision import MixedPrecision, in_half, mixed_precision
from burnish.train.schedules import RateSchedule, check_schedule
from burnish.train.updates import GRADIENTS, UpdatePlan, add_updates

SEED = "random.seed"


@typed
@dataclass(frozen=True)
class Train:
    """Training recipe: ``loss`` is one of ``losses.LOSSES`` by name, between the model's only output and the labels; or
    a ``losses.Loss``; or a graph of the model's outputs and then the labels, whose only output is the loss.

    ``parameters``: the constants that are trained; by default the parameters of a network of PyTorch that require a
    gradient, of an ONNX model its initializers, of a graph all constants, of floating-point numbers with more than one
    element, but for running statistics. ``batch_statistics``: batch normalization computes with those of the batch;
    without, as is usual where a trained network is only tuned, with the running ones, and leaves them.
    ``batch_norm_momentum``: the share of the way that it moves running statistics; None: its own ``momentum``.
    ``seed``: the first of the seeds of dropout, one a step.
    ``memory_budget``: the most memory that the values of a step may take, in bytes or as in "2GB": what does not fit is
    computed again in the backward pass, of a recurrence a segment of its steps at a time. It is the module's arena;
    parameters and other states come on top. In its place, a strategy ("drop-cheap", "sublinear", "least"), or how often
    each of some nodes, by name, is mirrored.

    ``schedule``: how the rate moves from step to step. ``clip_norm``: the most that the norm of all gradients may be;
    where it is more, they are scaled down. ``clip_value``: the most that an element of a gradient may be, before that.
    ``accumulation_steps``: calls whose mean gradient makes one step. ``precision``: "bfloat16" or "float16", in which
    products are computed; see :class:`MixedPrecision`. ``skip_nonfinite``: a call whose loss or gradients are not
    finite changes no state, and returns a loss that is not finite; "gradients" makes the same step for any number of
    rows of a batch, which may cost a pass.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> step = bn.compile(graph, train=bn.Train("mse", bn.SGD(0.1), clip_norm=1.0))
    >>> round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3), step.state["w"].round(3)
    (9.0, array([0.942, 0.942, 0.942], dtype=float32))
    """

    loss: str | Loss | Graph = "softmax_cross_entropy"
    optimizer: Optimizer = field(default_factory=SGD)
    parameters: tuple[str, ...] | None = None
    batch_norm_momentum: float | None = None
    batch_statistics: bool = True
    seed: int = 0
    memory_budget: str | int | Mapping[str, int] | None = None
    schedule: RateSchedule | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulation_steps: int = 1
    precision: str | MixedPrecision | None = None
    skip_nonfinite: bool | str = False

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_loss("Train: loss", self.loss)
        if not callable(getattr(self.optimizer, "update", None)):
            raise refusal("Train: optimizer", self.optimizer, "an optimizer, such as burnish.SGD(0.1)")
        if self.batch_norm_momentum is not None:
            check_number("Train: batch_norm_momentum", self.batch_norm_momentum, 0, 1)
        check_flag("Train: batch_statistics", self.batch_statistics)
        check_count("Train: seed", self.seed, 0)
        if self.memory_budget is not None:
            check_budget("Train: memory_budget", self.memory_budget)
        check_schedule("Train: schedule", self.schedule)
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_number(f"Train: {name}", getattr(self, name), 0, open_below=True)
        check_count("Train: accumulation_steps", self.accumulation_steps, 1)
        mixed_precision("Train: precision", self.precision)
        if self.skip_nonfinite != GRADIENTS:
            check_flag("Train: skip_nonfinite", self.skip_nonfinite)

    @property
    def recomputes(self) -> bool:
        """Whether the memory budget leaves it to a planner which operations are computed again, of all."""
        return self.memory_budget not in (None, "drop-cheap") and not isinstance(self.memory_budget, Mapping)


def training_graph(graph: Graph, train: Train, weights: Collection[str] | None = None, segments: bool = False) -> Graph:
    """The step: inputs and then labels to the loss, a scalar; parameters are states under the constants' names.

    Labels are called as the loss calls them: ``label``, where there is one. States are also what the optimizer
    remembers, under ``parameter.slot``, the learning rate, ``optimizer.learning_rate``, the number of steps,
    ``optimizer.step``, with dropout its seed, ``random.seed``, one more each step, and what
    :mod:`burnish.train.updates` names. ``weights``: the constants that are trained unless ``train`` names them; None:
    all. ``segments``: recurrences are divided along time, so that recomputation can keep what crosses between segments
    alone, as :func:`burnish.graph.recurrence.in_segments` does; gradients then differ by rounding. Raises ModelError
    for a model whose outputs the loss does not take, or without parameters; UnsupportedOperator for an operator
    without a gradient.
    """
    b, parameters = forward_pass(graph, train, weights)
    return _with_update(b, results_of(b.source), parameters, train, segments)


def forward_pass(graph: Graph, train: Train, weights: Collection[str] | None = None) -> tuple[Rewrite, tuple[str, ...]]:
    """The model as a step of training computes it, without loss and update, and the names of its parameters: states, as
    are running statistics and the seed of dropout. Arguments and errors are those of :func:`training_graph`.
    """
    resolved(train.loss).labels([graph.types[name] for name in results_of(graph)])
    precision = mixed_precision("Train: precision", train.precision)
    if graph.states and precision is not None:
        found = f"precision {precision.dtype} for a model with states {[*graph.states]}"
        raise ModelError(f"Train: found {found}; allowed: None, or a model without")
    graph = graph if precision is None else in_half(graph, precision.dtype)
    running = _running_statistics(graph)
    if train.batch_statistics:
        _check_statistics(graph, running)
    parameters = _parameters(graph, train, running, weights)
    moving = running if train.batch_statistics else set[str]()
    b = Rewrite(graph)  # which gives no name that a later node of the model has
    for name in graph.inputs:
        if name in graph.states:
            b.state(name, graph.states[name].initial)
        else:
            b.input(name, graph.types[name].shape, graph.types[name].dtype)
    for name, value in graph.constants.items():
        if name in parameters or name in moving:
            b.state(name, value)
        else:
            b.constant(value, name)
    dropped = 0
    for node in graph.nodes:
        if node.op == "batch_norm" and set(node.inputs[3:]) <= moving and not node.attrs.get("frozen"):
            _normalize(b, node, train.batch_norm_momentum)
        elif node.op == "dropout":
            _drop(b, node, dropped, train.seed)
            dropped += 1
        else:
            b.add_many(node.op, *node.inputs, names=node.outputs, node=node.name, **node.attrs)
    for name, state in graph.states.items():
        b.update(name, graph.outputs[state.output])
    return b, tuple(parameters)


def results_of(graph: Graph) -> tuple[str, ...]:
    """The outputs of a model that are no states."""
    kept = {state.output for state in graph.states.values()}
    return tuple(name for number, name in enumerate(graph.outputs) if number not in kept)


def noted_labels(graph: Graph, train: Train) -> list[list[int | None]]:
    """Labels of a step's module that are classes, see :class:`burnish.runtime.integers.known_integers`.

    Inputs are those of :func:`training_graph` of ``graph``, or of its evaluation.
    """
    found = label_classes(train.loss, [graph.types[name] for name in results_of(graph)])
    inputs = [name for name in graph.inputs if name not in graph.states]
    return [[len(inputs) + number, classes, ignore] for number, (classes, ignore) in sorted(found.items())]


def noted_indices(graph: Graph) -> list[list[int]]:
    """Inputs of a module of ``graph`` that are indices, with their limits, see :mod:`burnish.runtime.integers`."""
    return [[graph.inputs.index(name), low, high] for name, (low, high) in graph.limits.items()]


def parameters_of(graph: Graph, train: Train, weights: Collection[str] | None = None) -> tuple[str, ...]:
    """The names of the constants that are trained: ``train``'s, else of ``weights``, else of all. Raises ModelError."""
    return tuple(_parameters(graph, train, _running_statistics(graph), weights))


def trained_constants(graph: Graph, train: Train) -> set[str]:
    """The constants that training changes: parameters and running statistics. Raises ModelError."""
    running = _running_statistics(graph)
    moving = running if train.batch_statistics else set()
    return moving | {*_parameters(graph, train, running, None)} | graph.states.keys()


def lasting(graph: Graph, train: Train) -> Node | None:
    """The first node that keeps something from one call of a step to the next: running statistics, dropout's seed."""
    moving = (_running_statistics(graph) if train.batch_statistics else set[str]()) | graph.states.keys()
    return next((n for n in graph.nodes if n.op == "dropout" or moving & {*n.inputs}), None)


def update_plan(train: Train) -> UpdatePlan:
    """Plan of the updates from gradients."""
    return UpdatePlan(
        train.optimizer, train.schedule, train.clip_norm, train.clip_value, train.accumulation_steps,
        mixed_precision("Train: precision", train.precision), train.skip_nonfinite,
    )  # fmt: skip


def _with_update(
    b: GraphBuilder, outputs: Sequence[str], parameters: Collection[str], train: Train, segments: bool
) -> Graph:
    """Loss, gradients and updates behind the model."""
    loss = add_loss(b, train.loss, outputs)
    found = in_segments(b.build(loss)) if segments else None
    if found is not None:
        b = GraphBuilder.of(found.graph)
        b.segments = found.begins
    value = add_updates(b, loss, [*parameters], update_plan(train))
    return b.build(b.add("identity", value, name=b.fresh("loss")))


def _normalize(b: GraphBuilder, node: Node, momentum: float | None) -> None:
    """Batch normalization by the batch's own statistics, which move the running ones."""
    x, scale, bias, mean, variance = node.inputs
    attrs = {**OPERATORS[node.op].complete(node.attrs)}
    moves, _ = attrs.pop("momentum"), attrs.pop("frozen")
    momentum = moves if momentum is None else momentum
    own = b.add_many("batch_norm_training", x, scale, bias, names=node.outputs, node=node.name, **attrs)
    shape, dtype = b.types[x].shape, b.types[mean].dtype
    axes = tuple(d for d in range(len(shape)) if d != 1)
    count = prod(shape[d] for d in axes)
    if least(count) < 2:
        raise ModelError(
            f"batch norm '{node.name}': found shape {list(shape)}; allowed: two elements or more a channel"
        )
    share = b.constant(momentum, dtype=dtype)
    if is_size(count):
        number = b.count(x, dtype, axes)
        unbiased = b.add("div", b.add("mul", share, number), b.add("sub", number, b.constant(1.0, dtype=dtype)))
    else:
        unbiased = b.constant(momentum * count / (count - 1), dtype=dtype)
    for state, batch, factor in ((mean, own[1], share), (variance, own[2], unbiased)):
        now = b.updates.get(state, state)  # a module that is applied twice moves its statistics twice
        kept = b.add("mul", now, b.constant(1 - momentum, dtype=dtype))
        moved = b.add("add", kept, b.add("mul", batch, factor))
        (b.update if now == state else b.revise)(state, moved)


def _drop(b: GraphBuilder, node: Node, stream: int, seed: int) -> None:
    """Dropout by the seed of the step; each has a stream of its own."""
    if SEED not in b.types:
        state = b.state(SEED, np.array(seed, np.int64))
        b.update(state, b.add("add", state, b.constant(1)))
    attrs = {**node.attrs, "stream": stream}
    given = (node.inputs[0], SEED, *node.inputs[2:])
    b.add_many(node.op, *given, names=node.outputs, node=node.name, **attrs)


def _running_statistics(graph: Graph) -> set[str]:
    """The constants that are means and variances of batch normalizations, and nothing else."""
    found, others = set[str](), set[str]()
    for node in graph.nodes:
        own = node.inputs[3:] if node.op == "batch_norm" else ()
        found |= {*own} & graph.constants.keys()
        others |= {*(node.inputs[:3] if own else node.inputs)}
    return found - others


def _check_statistics(graph: Graph, running: Collection[str]) -> None:
    """Raises ModelError for running statistics that cannot move because they are read as something else too."""
    for node in graph.nodes:
        shared = [n for n in node.inputs[3:] if n in graph.constants and n not in running]
        if node.op == "batch_norm" and shared:
            raise ModelError(
                f"batch norm '{node.name}': found running statistics '{shared[0]}' that are read elsewhere too; "
                "allowed: constants of their own, or Train(batch_statistics=False)"
            )


def _parameters(
    graph: Graph, train: Train, running: Collection[str], weights: Collection[str] | None
) -> Mapping[str, None]:
    """The names of the constants to train, in order."""
    floats = {n: None for n, t in graph.types.items() if n in graph.constants and t.dtype in FLOATS}
    if train.parameters is None:
        known = floats if weights is None else weights
        chosen = {n: None for n in floats if graph.types[n].size > 1 and n not in running and n in known}
    else:
        wrong = [n for n in train.parameters if n not in floats or n in running]
        if wrong:
            allowed = ", ".join(n for n in floats if n not in running) or "none: the model has no such constants"
            raise ModelError(f"Train: parameters: found {wrong}; allowed: {allowed}")
        chosen = dict.fromkeys(train.parameters)
    if not chosen:
        raise ModelError("Train: found a model without parameters; allowed: one with constants of floats")
    return chosen
