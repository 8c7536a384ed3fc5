"""Training in blocks of vertices within a budget: the losses of the whole step, and transfers by each planner."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import burnish.gnn.model.program as programs
from benchmarks.yardsticks.swap_exact import exact
from burnish.errors import ParameterError
from burnish.fitting.fit import fit
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.store import GraphFile, save
from burnish.gnn.model.locality import axes_of, role_of
from burnish.gnn.model.models import FEATURES, FIRST, VERTICES, network
from burnish.gnn.model.program import build
from burnish.gnn.model.segments import cut
from burnish.gnn.model.structures import adapted, structures_of
from burnish.gnn.run.blocked import BlockedStep
from burnish.gnn.run.feeds import inputs_of, labels_of
from burnish.gnn.run.inference import logits_of
from burnish.gnn.run.outofcore import shared_of
from burnish.gnn.run.train import GraphOptions, recipe_of
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph as Operators
from burnish.memory.swap import PLANNERS, replay
from burnish.runtime.steps import TensorSpec
from burnish.train.optimizers import Adam
from burnish.train.step import Train, training_graph
from tests.gnn.references import small, weighted
from tests.marks import slow

BLOCK, CLASSES = 32, 4


class Interpreted:
    """A module that is the reference interpreter: segments are tried without compiling them."""

    def __init__(self, graph: Operators, **options: object) -> None:
        self.graph = graph
        self.memory = {"arena": 0, "scratch": 0}
        self.inputs = tuple(TensorSpec(n, graph.types[n].shape, graph.types[n].dtype) for n in graph.inputs)
        self.outputs = tuple(TensorSpec(n, graph.types[n].shape, graph.types[n].dtype) for n in graph.outputs)

    def __call__(self, *arrays: np.ndarray) -> object:
        given = {spec.name: array for spec, array in zip(self.inputs, arrays, strict=True)}
        found = evaluate(self.graph, given)
        values = tuple(found[name] for name in self.graph.outputs)
        return values[0] if len(values) == 1 else values

    def run_into(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        found = self(*inputs)
        values = found if isinstance(found, tuple) else (found,)
        for target, value in zip(outputs, values, strict=True):
            np.copyto(target, value)


@dataclass(frozen=True)
class Case:
    """A network on a graph, with the losses of three steps by the interpreter."""

    kind: str
    graph: Graph

    def step(
        self, stack: ExitStack, source: Graph | Path, recipe: Train | None = None, **options: object
    ) -> BlockedStep:
        net = self.network
        shared = shared_of(net, source, BLOCK)
        recipe = recipe_of(None, net, False) if recipe is None else recipe
        program = build(training_graph(shared.model(), recipe), shared.share, FIRST, ("label",))
        return stack.enter_context(BlockedStep(program, shared.share, FEATURES, FIRST, **options))  # type: ignore[arg-type]

    @property
    def network(self):  # type: ignore[no-untyped-def]
        more = {"weighted": self.graph.weights is not None}
        return network(self.kind, self.graph.width, CLASSES, hidden=8, heads=2, dropout=0.4, seed=2, **more)

    @property
    def labels(self) -> np.ndarray:
        return labels_of(self.graph, self.graph.train)

    def losses(self, steps: int = 3, recipe: Train | None = None) -> list[float]:
        extents, arrays = inputs_of(self.network, self.graph)
        recipe = recipe_of(None, self.network, False) if recipe is None else recipe
        whole = training_graph(self.network.graph(extents), recipe)
        state = {name: s.initial for name, s in whole.states.items()}
        losses = []
        for _ in range(steps):
            found = evaluate(whole, {**arrays, "label": self.labels, **state})
            outputs = [found[name] for name in whole.outputs]
            losses.append(float(outputs[0]))
            state = {name: outputs[s.output] for name, s in whole.states.items()}
        return losses


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "compile", Interpreted)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", slow(["gcn", "sage", "gin", "gat", "deep_gcn"], "gin", "gat", "deep_gcn"))
def test_blocks_are_the_whole(kind: str, tmp_path: Path) -> None:
    """In memory, and from a file with the least memory, by which features and edges come in blocks."""
    case = Case(kind, small(80))
    wanted = case.losses()
    save(tmp_path / "g.bngraph", case.graph)
    with ExitStack() as stack:
        step = case.step(stack, case.graph)
        np.testing.assert_allclose([float(step(case.labels)) for _ in wanted], wanted, rtol=2e-5)
        assert step.moved.loaded == step.moved.stored == 0
        least = case.step(stack, tmp_path / "g.bngraph").problem.least_capacity
        tight = case.step(stack, tmp_path / "g.bngraph", capacity=least)
        np.testing.assert_allclose([float(tight(case.labels)) for _ in wanted], wanted, rtol=2e-5)
        assert tight.moved.peak <= least
        assert tight.moved.stored > 0
        assert (tight.moved.loaded, tight.moved.stored) == (tight.plan.loaded, tight.plan.stored)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("symmetric", slow([False, True], True))
@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_blocks_with_weights_of_edges_are_the_whole(kind: str, symmetric: bool, tmp_path: Path) -> None:
    case = Case(kind, weighted(small(80), symmetric))
    wanted = case.losses()
    save(tmp_path / "g.bngraph", case.graph)
    with ExitStack() as stack:
        step = case.step(stack, tmp_path / "g.bngraph")
        np.testing.assert_allclose([float(step(case.labels)) for _ in wanted], wanted, rtol=2e-5)


@pytest.mark.usefixtures("interpreted")
def test_planners_move_what_they_say(tmp_path: Path) -> None:
    """Ten capacities: the best plan moves less the more there is, never more than the others; all train alike."""
    case = Case("gin", small(80))
    save(tmp_path / "g.bngraph", case.graph)
    wanted = case.losses(1)
    with ExitStack() as stack:
        problem = case.step(stack, tmp_path / "g.bngraph").problem
        least, most = problem.least_capacity, sum(problem.nbytes.values())
        before = None
        for capacity in np.linspace(least, most, 10).astype(int).tolist():
            plans = {name: make(problem, capacity) for name, make in PLANNERS.items()}
            assert all(plan.peak <= capacity for plan in plans.values())
            assert min(plan.moved for plan in plans.values()) == plans["best"].moved
            assert before is None or plans["best"].moved <= before
            before = plans["best"].moved
        for name in PLANNERS:
            step = case.step(stack, tmp_path / "g.bngraph", capacity=int(1.2 * least), planner=name)
            np.testing.assert_allclose([float(step(case.labels))], wanted, rtol=2e-5)
            assert step.moved.loaded + step.moved.stored == step.plan.moved
        tight = {n: make(problem, int(1.2 * least)).moved for n, make in PLANNERS.items()}
        assert tight["streaming"] > 1.4 * tight["best"]


@pytest.mark.usefixtures("interpreted")
def test_a_step_that_runs_again_sums_once() -> None:
    """A plan with recomputation: partial sums are those of the last run of each block."""
    case = Case("gcn", small(80))
    with ExitStack() as stack:
        step = case.step(stack, case.graph)
        summing = {i for i, p in enumerate(step.program.parts) if step.program.segments[p.segment].sums}
        blocks = [a for a in step.plan.actions if a.kind == "run" and step.program.parts[a.step].what == "rows"]
        actions = [
            again for action in step.plan.actions
            for again in (action, *((action,) if action in blocks and action.step in summing else ()))
        ]  # fmt: skip
        step.plan = replay(step.problem, step.plan.capacity, actions)
        assert step.plan.runs > len(step.problem.steps)
        np.testing.assert_allclose([float(step(case.labels)) for _ in range(2)], case.losses(2), rtol=2e-5)


def test_algorithm_3_on_segments_is_the_fixed_order() -> None:
    """The dynamic program over one order, on the problem of a whole GCN layer by layer."""
    case = Case("gcn", small(80))
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(programs, "compile", Interpreted)
        net = case.network
        shared = shared_of(net, case.graph, 80)
        whole = training_graph(shared.model(), recipe_of(None, net, False))
        program = build(whole, shared.share, FIRST, ("label",))
        problem = stack.enter_context(BlockedStep(program, shared.share, FEATURES, FIRST)).problem
        for factor in (1.0, 1.2, 1.6):
            capacity = int(factor * problem.least_capacity)
            assert exact(problem, capacity, reorder=False).moved == PLANNERS["best"](problem, capacity).moved


@pytest.mark.usefixtures("interpreted")
def test_a_mean_over_blocks_is_by_all_vertices() -> None:
    """The number of elements that a loss divides by is no block's."""
    graph = small(80)
    graph = graph.with_(labels=np.eye(CLASSES, dtype=np.int64)[graph.labels])
    case = Case("gcn", graph)
    recipe = recipe_of(Train(loss="mse", optimizer=Adam(0.01)), case.network, True)
    (wanted,) = case.losses(1, recipe)
    with ExitStack() as stack:
        step = case.step(stack, graph, recipe)
        np.testing.assert_allclose(float(step(case.labels)), wanted, rtol=2e-5)


def test_roles_and_segments_of_a_layer() -> None:
    """Row-wise nodes, sums over rows and gatherings are told apart; sums over classes are row-wise."""
    net = network("gcn", 6, 3, hidden=4, dropout=0.5)
    recipe = recipe_of(None, net, False)
    shared = shared_of(net, small(64).with_(features=np.zeros((64, 6), np.float32)), 32, labelled=False)
    graph = training_graph(shared.model(), recipe)
    axes = axes_of(graph, VERTICES)
    roles = {node.name: role_of(node, graph, axes, FIRST) for node in graph.nodes}
    by_op: dict[str, set[str]] = {}
    for node in graph.nodes:
        by_op.setdefault(node.op, set()).add(roles[node.name].kind)
    assert by_op["aggregate"] == {"gather"}
    assert by_op["log_softmax"] == by_op["dropout"] == by_op["relu"] == {"rows"}
    assert by_op["matmul"] == {"rows", "sum"}
    assert by_op["sqrt"] == {"plain"}
    without_first = {role_of(n, graph, axes).kind for n in graph.nodes if n.op == "dropout"}
    assert without_first == {"gather"}, "positions count, and nothing says which number the first row has"
    segments = cut(graph, axes, FIRST)
    seen = [i for s in segments for i in s.nodes]
    assert {*seen} >= {i for i, n in enumerate(graph.nodes) if n.op in ("matmul", "aggregate")}
    products = [i for i in seen if graph.nodes[i].op == "matmul"]
    assert len(products) == len({*products}), "no product is computed twice"
    made: set[str] = set()
    for segment in segments:
        rows = {n for n in (*segment.reads, *segment.gathered) if n not in graph.inputs}
        assert rows <= made, "what a segment reads is there"
        made |= {*segment.writes}


def test_a_budget_that_is_too_small_is_refused_with_the_least(tmp_path: Path) -> None:
    graph = small(80)
    net = network("gcn", 12, 4, hidden=8, dropout=0.0)
    with pytest.raises(ParameterError, match=r"memory_budget: found 1000000 bytes \(1 MB\); allowed: \d+ bytes"):
        fit(net, graph, Train(memory_budget="1MB"), epochs=1, threads=1)
    with pytest.raises(ParameterError, match="memory_budget: found 'least'"):
        fit(net, graph, Train(memory_budget="least"), epochs=1)


def test_a_network_trains_within_a_budget(tmp_path: Path) -> None:
    """Compiled: the losses and the answers of the whole, from a file."""
    graph = small(80)
    save(tmp_path / "g.bngraph", graph)
    net = network("gcn", 12, 4, hidden=8, dropout=0.3)
    whole = fit(net, graph, epochs=4, threads=1)
    train = Train(optimizer=Adam(0.01), memory_budget="6GB")
    found = fit(net, tmp_path / "g.bngraph", train, epochs=4, threads=1, graph_options=GraphOptions(block=48))
    np.testing.assert_allclose(found.report.losses, whole.report.losses, rtol=1e-5)
    assert "fixed order" in found.notes[0]
    assert len(found.report.live) > 10
    logits = found.predict(tmp_path / "g.bngraph", memory_budget="6GB", block=48, threads=1)
    np.testing.assert_allclose(logits, logits_of(found.model, graph, threads=1), atol=1e-5)


def test_structures_of_parts_are_those_of_the_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    graph = Graph.of(rng.integers(0, 20, (2, 90)), vertices=20)
    save(tmp_path / "g.bngraph", graph)
    heavy = weighted(graph)
    save(tmp_path / "w.bngraph", heavy)
    for name, some in (("g", graph), ("w", heavy)):
        part = GraphFile.open(tmp_path / f"{name}.bngraph").part(7, 15)
        net = network("gat", 1, 2, weighted=some.weights is not None)
        looped = structures_of(net.structures, some.csr)["loops"]
        assert looped.edges == some.csr.with_self_loops().edges
        for structure, whole in (("bare", some.csr.without_self_loops()), ("loops", looped)):
            found, wanted = adapted(structure, part, 7), whole.slice(7, 15)
            assert np.array_equal(found.offsets, wanted.offsets)
            assert np.array_equal(found.sources, wanted.sources)
            assert (found.weights is None) == (name == "g")
            assert found.weights is None or np.array_equal(found.weights, wanted.weights)
