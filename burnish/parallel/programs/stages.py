"""Pipeline stages: the graph of one stage for one micro-batch, forward and backward, and the update of all parameters.

Stage graphs know nothing of the others: what they read of these are inputs, what these read outputs. A parameter that
several devices read (replicas of a stage, or stages that share it) has a gradient on each of them, of all its
micro-batches; the update's graph adds these up, once a step, and is taken apart like any other (``program.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.errors import PlanError
from burnish.graph.gradient import backpropagate
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.loops.expr import FLOATS
from burnish.parallel.model.placement import TensorSplit
from burnish.parallel.programs.micro import micro_graph
from burnish.parallel.programs.plans import Stages
from burnish.train.losses import Loss, add_loss
from burnish.train.step import Train, forward_pass, lasting, update_plan
from burnish.train.updates import apply_gradients

LOSS = "pipeline.loss"  # what a stage calls its share of the loss


@dataclass(frozen=True)
class StageEdge:
    """A tensor that one stage makes and another reads; ``gradient``: whether the way back is taken, too."""

    tensor: str
    source: int
    target: int
    gradient: bool

    @property
    def back(self) -> str:
        """Name of the gradient."""
        return f"{self.tensor}.grad@{self.target}"


@dataclass(frozen=True, eq=False)
class StageGraph:
    """Graphs of one pipeline stage for a micro-batch. ``first`` begins sums over micro-batches, ``following`` goes on
    with them: ``sums`` are the names of what is added up, an output of both and an input ``NAME.sum`` of the latter.

    ``forward``: tensors for later stages; ``seeds``: inputs, the gradients that come back; ``backward``: by input of
    the stage, the output that is its gradient. ``inputs``: the model's inputs and labels that it reads.
    """

    first: Graph
    following: Graph
    parameters: tuple[str, ...]
    sums: tuple[str, ...]
    forward: tuple[StageEdge, ...]
    received: tuple[StageEdge, ...]
    inputs: tuple[str, ...]


class StageGraphs:
    """The graphs of a training step of ``graph`` by ``train`` in ``plan``'s stages.

    Raises PlanError for what a pipeline cannot do: a batch that does not divide, operators that mix its samples, states
    such as running statistics or the seed of dropout, losses that are no mean over samples, mixed precision.
    """

    def __init__(self, graph: Graph, train: Train, plan: Stages) -> None:
        check_pipeline(graph, train)
        self.plan, self.train = plan, train
        self.parts = plan.micro_batches * plan.replicas
        b, self.parameters = forward_pass(micro_graph(graph, self.parts), train)
        self.outputs = b.source.outputs
        self.model = b.build(*self.outputs)
        missing = [n.outputs[0] for n in self.model.nodes if n.outputs[0] not in plan.stage]
        if missing:
            raise PlanError(f"pipeline of another model: tensor '{missing[0]}' has no stage; allowed: one for each")
        self.fixed = _fixed(self.model)
        self.last = len(plan.devices) - 1
        self.edges = self._edges()
        self.stages = tuple(self._stage(number) for number in range(len(plan.devices)))

    def holders(self, parameter: str) -> tuple[int, ...]:
        """The devices that have a parameter, those of the first stage first."""
        found = [s for s, made in enumerate(self.stages) if parameter in made.parameters]
        return tuple(device for s in found for device in self.plan.devices[s])

    # --- stages -------------------------------------------------------------------------------------------------------

    def _edges(self) -> tuple[StageEdge, ...]:
        """Tensors between stages, in the order of the model; the loss is a reader of the model's outputs."""
        stage, found = self.plan.stage, dict[tuple[str, int], StageEdge]()
        reached = {*self.parameters}
        for node in self.model.nodes:
            if any(name in reached for name in node.inputs):
                reached.update(name for name in node.outputs if self.model.types[name].dtype in FLOATS)
        reads = [(name, stage[node.outputs[0]]) for node in self.model.nodes for name in node.inputs]
        for name, target in [*reads, *((name, self.last) for name in self.outputs)]:
            if name in stage and stage[name] != target and name not in self.fixed:
                found.setdefault((name, target), StageEdge(name, stage[name], target, name in reached))
        return tuple(found.values())

    def _stage(self, number: int) -> StageGraph:
        nodes = self._nodes(number)
        read = {name for node in nodes for name in node.inputs}
        if number == 0:  # what nothing reads is there, too
            read |= {*self.parameters} - {name for node in self.model.nodes for name in node.inputs}
        parameters = tuple(name for name in self.parameters if name in read)
        sums = (*parameters, LOSS) if number == self.last else parameters
        first, inputs = self._built(number, nodes, parameters, False)
        following, _ = self._built(number, nodes, parameters, True)
        forward = tuple(edge for edge in self.edges if edge.source == number)
        received = tuple(edge for edge in self.edges if edge.target == number)
        return StageGraph(first, following, parameters, sums, forward, received, inputs)

    def _nodes(self, number: int) -> list[Node]:
        """The nodes of a stage; what is computed from constants alone is so in every stage that reads it."""
        needed = {*self.outputs} if number == self.last else set[str]()
        found = []
        for node in reversed(self.model.nodes):
            own = needed & {*node.outputs} if self.fixed & {*node.outputs} else ()
            if own or (not self.fixed & {*node.outputs} and self.plan.stage[node.outputs[0]] == number):
                found.append(node)
                needed.update(node.inputs)
        return found[::-1]

    def _built(
        self, number: int, nodes: Sequence[Node], parameters: Sequence[str], adds: bool
    ) -> tuple[Graph, tuple[str, ...]]:
        """The graph of a stage, and which of the model's inputs and labels it reads."""
        b, types = GraphBuilder(), self.model.types
        made = {name for node in nodes for name in node.outputs}
        received = [edge for edge in self.edges if edge.target == number]
        kept = [*self.outputs] if number == self.last else []
        given = []
        for name in dict.fromkeys([*(n for node in nodes for n in node.inputs), *kept, *parameters]):
            if name in self.model.constants:
                b.constant(self.model.constants[name], name)
            elif name not in made:
                b.input(name, types[name].shape, types[name].dtype)
                given += [name] if name in self.model.inputs and name not in self.model.states else []
        for node in nodes:
            b.add_many(node.op, *node.inputs, names=node.outputs, node=node.name, **node.attrs)
        seeds: dict[str, str] = {}
        for edge in self.edges:
            if edge.source == number and edge.gradient:
                t = types[edge.tensor]
                seed = b.input(edge.back, t.shape, t.dtype)
                seeds[edge.tensor] = b.add("add", seeds[edge.tensor], seed) if edge.tensor in seeds else seed
        totals: list[str] = []
        if number == self.last:
            before = {*b.types}
            loss = add_loss(b, self.train.loss, self.outputs)
            made_now = b.build(loss).inputs
            given += [name for name in made_now if name not in before]
            dtype = b.types[loss].dtype
            share = 1.0 / self.parts
            seeds[loss] = b.constant(share / self.train.accumulation_steps, dtype=dtype)
            totals.append(b.add("mul", loss, b.constant(share, dtype=dtype)))
        back = [edge for edge in received if edge.gradient]
        wanted = [*parameters, *dict.fromkeys(edge.tensor for edge in back)]
        found = dict(zip(wanted, backpropagate(b, seeds, wanted), strict=True))
        sums = [*zip(parameters, (found[name] for name in parameters), strict=True), *((LOSS, t) for t in totals)]
        outputs = [edge.tensor for edge in self.edges if edge.source == number]
        outputs += [b.add("identity", found[edge.tensor], name=edge.back) for edge in back]
        for name, value in sums:
            if adds:
                t = b.types[value]
                b.add("add", b.input(f"{name}.sum", t.shape, t.dtype), value, name=total_of(name))
            else:
                b.add("identity", value, name=total_of(name))
            outputs.append(total_of(name))
        return b.build(*dict.fromkeys(outputs)), tuple(given)

    # --- the update ---------------------------------------------------------------------------------------------------

    def update(self) -> tuple[Graph, dict[str, TensorSplit], dict[str, TensorSplit]]:
        """The update from sums of gradients on all devices: its graph, splits of values, and splits of inputs.

        The gradients of a parameter are an input ``NAME.grads``, which has a dimension of its holders before the others
        where there are several; so is ``pipeline.loss.grads``, of the devices of the last stage.
        """
        b, splits, given = GraphBuilder(), dict[str, TensorSplit](), dict[str, TensorSplit]()
        loss = self._total(b, LOSS, self.plan.devices[self.last], splits, given)
        for name in self.parameters:
            b.state(name, self.model.states[name].initial)
        found = [self._total(b, name, self.holders(name), splits, given) for name in self.parameters]
        value = apply_gradients(b, loss, self.parameters, found, update_plan(self.train))
        return b.build(b.add("identity", value, name=b.fresh("loss"))), splits, given

    def _total(
        self,
        b: GraphBuilder,
        name: str,
        holders: Sequence[int],
        splits: dict[str, TensorSplit],
        given: dict[str, TensorSplit],
    ) -> str:
        """Total of a sum over all its holders."""
        graph = next(made.first for made in self.stages if name in made.sums)
        t = graph.types[total_of(name)]
        if len(holders) > 1:
            terms = b.input(grads_of(name), (len(holders), *t.shape), t.dtype)
            total = b.add("reduce_sum", terms, axes=(0,), keepdims=False)
            splits[total] = TensorSplit((1,) * len(t.shape), tuple(holders), (len(holders),))
            return total
        one = b.input(grads_of(name), t.shape, t.dtype)
        if t.shape:
            given[one] = TensorSplit((1,) * len(t.shape), tuple(holders))
            return one
        placed = b.add("identity", one)
        splits[placed] = TensorSplit((), tuple(holders))
        return placed


def _fixed(graph: Graph) -> frozenset[str]:
    """The tensors that are computed from constants alone."""
    found = {*graph.constants}
    for node in graph.nodes:
        if found.issuperset(node.inputs):
            found.update(node.outputs)
    return frozenset(found - {*graph.constants})


def total_of(name: str) -> str:
    """The output of a stage that is a sum."""
    return f"{name}.total"


def grads_of(name: str) -> str:
    """The input of the update that is a sum."""
    return f"{name}.grads"


def check_pipeline(graph: Graph, train: Train) -> None:
    """Raises PlanError for a model that keeps states, and ways to train that make no mean of micro-batches' means."""
    node = lasting(graph, train)
    if node is not None:
        raise PlanError(
            f"node '{node.name}' ({node.op}) keeps a state that every micro-batch would change; allowed in a pipeline: "
            "none, as batch normalization with Train(batch_statistics=False)"
        )
    if train.precision is not None:
        raise PlanError(f"precision {train.precision!r}; allowed in a pipeline: None")
    if isinstance(train.loss, Graph):
        raise PlanError("a loss that is a graph; allowed in a pipeline: one by name, or a Loss")
    for loss in _losses(train.loss):
        if getattr(loss, "ignore", None) is not None:
            raise PlanError(
                f"loss {loss}: labels that are left out make no mean of micro-batches' means; allowed: ignore=None"
            )


def _losses(loss: object) -> list[str | Loss | object]:
    """A loss and those that it is the sum of."""
    return [loss, *(part for each in getattr(loss, "losses", ()) for part in _losses(each))]


def one_forward_one_backward(stages: int, stage: int, count: int) -> list[tuple[bool, int]]:
    """1F1B schedule of a stage, in order: (whether a pass is forward, number of the micro-batch).

    Source: 1F1B, PipeDream-Flush (Narayanan et al. 2021): after ``stages - stage - 1`` forward passes one forward and
    one backward in turn, so at most ``stages - stage`` micro-batches are alive.
    """
    ahead = min(count, stages - stage - 1)
    order = [(True, k) for k in range(ahead)]
    for k in range(count - ahead):
        order += [(True, ahead + k), (False, k)]
    return order + [(False, k) for k in range(count - ahead, count)]
