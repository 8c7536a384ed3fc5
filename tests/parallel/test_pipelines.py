"""Pipelines, executed: weights of one process, the memory and order of 1F1B, plan files, what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from burnish.comm import Comm, launch
from burnish.errors import PlanError
from burnish.fitting.fit import fit
from burnish.fitting.planned import read_plan
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.parallel.model.operations import OperationGraph, operations
from burnish.parallel.model.presets import machine
from burnish.parallel.model.strategy import Configuration, Strategy
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.micro import micro_graph
from burnish.parallel.programs.plans import Stages, TensorSplits, stages_of
from burnish.parallel.programs.ranks import kept_bytes, plan_memory, rank_programs
from burnish.parallel.programs.stages import one_forward_one_backward
from burnish.parallel.simulate.baselines import pipeline
from burnish.runtime.executable import Collective, Executable, KernelCall, Wait
from burnish.runtime.module import Module
from burnish.train.losses import CrossEntropy
from burnish.train.optimizers import SGD, Adam
from burnish.train.step import Train
from tests.parallel.networks import NETWORKS, TRAIN, batch_of, step_of, trained_alone, weight

NEAR = 1e-6


def parameters(graph: Graph) -> tuple[str, ...]:
    """The weights; not the initial state of the recurrent network, which has a row for each sample."""
    return tuple(name for name in graph.constants if name != "zero" and graph.types[name].size > 1)


def staged(graph: Graph, stages: int, count: int, devices: int) -> Stages:
    """A pipeline of stages of about equal arithmetic."""
    model = operations(micro_graph(graph, count), parameters(graph))
    return stages_of(model, pipeline(model, machine(f"host:{devices}"), stages, count).own)


def trained(made: list[Executable], batch: dict[str, np.ndarray], steps: int) -> list[dict[str, np.ndarray]]:
    """The states on each device after so many steps."""

    def run(comm: Comm) -> dict[str, np.ndarray]:
        step = RankStep(Module(made[comm.rank], 1, comm=comm), comm)
        for _ in range(steps):
            step(*[batch[spec.name] for spec in step.inputs])
        return {name: step.state[name] for name in step.state}

    return launch(run, [()] * len(made))


def check(graph: Graph, train: Train, plan: Stages | TensorSplits, devices: int) -> list[Executable]:
    """Whether three steps give the weights of one process; the programs."""
    made = rank_programs(graph, train, plan, devices, target("cpu")).executables()
    step = step_of(graph, train)
    batch = batch_of(step)
    wanted = trained_alone(step, batch, 3)
    for states in trained(made, batch, 3):
        assert states.keys() == wanted.keys()
        for state, value in wanted.items():
            error = np.abs(states[state].astype(np.float64) - value).max() / max(np.abs(value).max(), 1e-30)
            assert error <= NEAR, state
    return made


SHAPES = [(2, 4, 2), (2, 2, 4), (4, 4, 4)]  # stages, micro-batches, devices
TWO = SHAPES[:2]  # those of a network of two operations


@pytest.mark.parametrize(
    ("name", "stages", "count", "devices"),
    [
        pytest.param(
            name,
            *shape,
            marks=[pytest.mark.slow] if name != "mlp" and shape != SHAPES[2] else [],
        )
        for name in NETWORKS
        for shape in (TWO if name == "mlp" else SHAPES)
    ],
)
def test_pipelines_train_to_the_weights_of_one_process(name: str, stages: int, count: int, devices: int) -> None:
    graph = NETWORKS[name]()
    check(graph, replace(TRAIN, parameters=parameters(graph)), staged(graph, stages, count, devices), devices)


def skipping() -> Graph:
    """Four layers, the third and the last of which read what the first makes: over several stages."""
    b = GraphBuilder()
    first = h = b.add("relu", b.add("matmul", b.input("x", (8, 6)), weight(b, "w0", 6, 6), name="h0"), name="r0")
    for i in range(1, 4):
        h = b.add("relu", b.add("matmul", h, weight(b, f"w{i}", 6, 6), name=f"h{i}"), name=f"r{i}")
        h = b.add("add", h, first, name=f"a{i}") if i > 1 else h
    return b.build(b.add("matmul", h, weight(b, "wy", 6, 4), name="y"))


def test_tensors_go_over_several_stages_and_norms_over_all() -> None:
    graph = skipping()
    train = Train(optimizer=Adam(0.05), clip_norm=0.1, skip_nonfinite=True, parameters=parameters(graph))
    check(graph, train, staged(graph, 4, 4, 4), 4)


def test_what_follows_from_constants_is_computed_where_it_is_read() -> None:
    b = GraphBuilder()
    h = b.add("matmul", b.input("x", (8, 6)), weight(b, "w0", 6, 6), name="h")
    scale = b.add("exp", b.constant(np.full(6, 0.25, np.float32), "c"), name="scale")
    for i in (1, 2, 3):
        h = b.add("matmul", b.add("mul", h, scale, name=f"m{i}"), weight(b, f"w{i}", 6, 6), name=f"h{i}")
    graph = b.build(b.add("matmul", h, weight(b, "wy", 6, 4), name="y"))
    train = replace(TRAIN, parameters=("w0", "w1", "w2", "w3", "wy"))
    model = operations(micro_graph(graph, 2), train.parameters)
    plan = stages_of(model, pipeline(model, machine("host:2"), 2, 2).own)
    made = check(graph, train, plan, 2)
    sent = [step.node for e in made for step in e.steps if isinstance(step, Collective) and step.operation == "send"]
    assert not any(name.startswith("scale") for name in sent)
    with pytest.raises(PlanError, match="pipeline of another model: tensor 'h0' has no stage"):
        rank_programs(NETWORKS["mlp"](), TRAIN, plan, 2, target("cpu"))


def test_one_micro_batch_is_a_step_by_layers() -> None:
    graph = NETWORKS["mlp"]()
    check(graph, replace(TRAIN, parameters=parameters(graph)), staged(graph, 2, 1, 2), 2)


# --- order and memory -------------------------------------------------------------------------------------------------


def test_the_order_of_1f1b() -> None:
    assert one_forward_one_backward(3, 0, 4) == [
        (True, 0), (True, 1), (True, 2), (False, 0), (True, 3), (False, 1), (False, 2), (False, 3),
    ]  # fmt: skip
    assert one_forward_one_backward(3, 2, 2) == [(True, 0), (False, 0), (True, 1), (False, 1)]
    for stage in range(4):
        alive = most = 0
        for forward, _ in one_forward_one_backward(4, stage, 9):
            alive += 1 if forward else -1
            most = max(most, alive)
        assert most == 4 - stage and alive == 0


def deep(samples: int, width: int = 24, layers: int = 8) -> Graph:
    """Dense layers whose results are large beside their weights."""
    b = GraphBuilder()
    h = b.input("x", (samples, width))
    for i in range(layers):
        h = b.add("tanh", b.add("matmul", h, weight(b, f"w{i}", width, width), name=f"h{i}"), name=f"t{i}")
    return b.build(h)


SQUARED = Train(loss="mse", optimizer=SGD(0.1))


def test_more_micro_batches_of_one_size_need_no_more_memory() -> None:
    arenas = []
    for count in (4, 12):
        graph = deep(256 * count)
        found = plan_memory(graph, SQUARED, staged(graph, 4, count, 4), 4, target("cpu"))
        arenas.append([memory["arena"] for memory in found])
    assert arenas[1][0] <= 1.06 * arenas[0][0]
    _, second, third, last = arenas[1]  # what the first stage receives is the model's input, in no arena
    assert second > third > last, "an earlier stage has more in flight"


def test_memory_is_known_before_machine_code() -> None:
    graph = deep(64)
    plan = staged(graph, 2, 4, 2)
    predicted = plan_memory(graph, SQUARED, plan, 2, target("cpu"))
    made = rank_programs(graph, SQUARED, plan, 2, target("cpu")).executables()

    def memory_of(comm: Comm) -> dict[str, int]:
        return RankStep(Module(made[comm.rank], 1, comm=comm), comm).memory

    for memory, wanted in zip(launch(memory_of, [()] * 2), predicted, strict=True):
        assert abs(kept_bytes(memory) - kept_bytes(wanted)) <= 0.05 * kept_bytes(memory)


def test_kernels_are_compiled_once_and_sends_overlap_with_computation() -> None:
    graph = deep(64)
    made = rank_programs(graph, SQUARED, staged(graph, 2, 4, 2), 2, target("cpu")).executables()
    for executable in made:
        steps = executable.steps
        calls = [step.kernel for step in steps if isinstance(step, KernelCall)]
        assert len(calls) > 2 * len({*calls})
        sends = {n for n, s in enumerate(steps) if isinstance(s, Collective) and s.operation == "send"}
        waits = {s.step: n for n, s in enumerate(steps) if isinstance(s, Wait) and s.step in sends}
        assert waits.keys() == sends
        assert any(isinstance(step, KernelCall) for step in steps[min(sends) : waits[min(sends)]])


@pytest.mark.slow
def test_a_stage_recomputes_to_fit_its_memory() -> None:
    graph = deep(512)
    plan = staged(graph, 2, 4, 2)
    free = [kept_bytes(memory) for memory in plan_memory(graph, SQUARED, plan, 2, target("cpu"))]
    tight = replace(plan, memory=int(0.8 * max(free)))
    made = check(graph, SQUARED, tight, 2)
    assert any("recomputation" in executable.info for executable in made)

    def memory_of(comm: Comm) -> dict[str, int]:
        return RankStep(Module(made[comm.rank], 1, comm=comm), comm).memory

    assert all(kept_bytes(memory) <= tight.memory for memory in launch(memory_of, [()] * 2))
    with pytest.raises(PlanError, match=r"device 0: 1000 bytes, \d+ of them for what lasts; .* allowed: \d+ bytes"):
        rank_programs(graph, SQUARED, replace(plan, memory=1000), 2, target("cpu"))


# --- training and plan files ------------------------------------------------------------------------------------------


def test_training_by_a_plan_file(tmp_path: Path) -> None:
    graph = NETWORKS["mlp"]()
    model = operations(micro_graph(graph, 4))
    where = machine("host:2")
    strategy = pipeline(model, where, 2, 4).own
    path = tmp_path / "plan.txt"
    path.write_text(strategy.text(model, where), encoding="utf-8")
    assert path.read_text().startswith("strategy of 2 operations on 2 devices, 4 micro-batches\n")
    plan = read_plan(path.read_text(), graph, 2)
    assert plan == stages_of(model, strategy)
    drawn = np.random.default_rng(5)
    data = {"x": drawn.normal(size=(64, 6)).astype(np.float32), "label": drawn.integers(0, 4, 64)}
    alone = fit(graph, data, TRAIN, epochs=2)
    found = fit(
        graph, data, TRAIN, epochs=2, save_every=4, plan=path, workers=2, worker_kind="thread",
        checkpoint=tmp_path / "kept",
    )  # fmt: skip
    np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-5)
    for name in ("w1", "w2", "b1"):
        np.testing.assert_allclose(found.states[name], alone.step.state[name], rtol=1e-5, atol=1e-7)
    resumed = fit(  # by other splits: checkpoints hold the whole model
        graph, data, TRAIN, epochs=3, save_every=4, resume=True, plan=TensorSplits({}), workers=2,
        worker_kind="thread", checkpoint=tmp_path / "kept",
    )  # fmt: skip
    assert resumed.report.resumed == 16


def test_plan_files_are_refused_by_name() -> None:
    graph, where = NETWORKS["mlp"](), machine("host:2")
    model = operations(micro_graph(graph, 4))
    text = pipeline(model, where, 2, 4).own.text(model, where)
    with pytest.raises(PlanError, match="input 'x': 8 samples in 3 micro-batches"):
        read_plan(text.replace("4 micro", "3 micro"), graph, 2)
    with pytest.raises(PlanError, match=r"operation 'h' is .*\[2, 12\]; the model's is .*\[4, 12\]"):
        read_plan(text.replace("4 micro", "2 micro"), graph, 2)
    with pytest.raises(PlanError, match="0 micro-batches'; allowed: strategy of N operations on P devices"):
        read_plan(text.replace("4 micro", "0 micro"), graph, 2)
    with pytest.raises(PlanError, match=r"operation 'h' of a pipeline is split; allowed: by samples alone"):
        read_plan(text.replace("whole on 0", "columns:2 on 0 0").replace("columns", axis_of(model)), graph, 2)
    back = Strategy({op.name: Configuration((1,) * len(op.axes), (i % 2,)) for i, op in enumerate(chain().operations)})
    with pytest.raises(
        PlanError, match=r"operation '\w+' of a pipeline is on devices \[0\]; allowed: those of stage 1"
    ):
        stages_of(chain(), replace(back, micro_batches=2))


def chain() -> OperationGraph:
    """Layers of a micro-batch."""
    return operations(deep(8, layers=3))


def axis_of(model: OperationGraph) -> str:
    """The name of the first operation's axis of parameters."""
    return next(axis.name for axis in model.operations[0].axes if axis.role == "parameter")


def normalized() -> Graph:
    """A network with batch normalization."""
    b = GraphBuilder()
    h = b.add("matmul", b.input("x", (8, 6)), weight(b, "w0", 6, 6), name="h")
    ones, zeros = np.ones(6, np.float32), np.zeros(6, np.float32)
    given = [b.constant(value, name) for name, value in zip("abcd", (ones, zeros, zeros, ones), strict=True)]
    h = b.add("batch_norm", h, *given, name="n")
    return b.build(b.add("matmul", h, weight(b, "w1", 6, 4), name="y"))


def test_what_a_pipeline_cannot_do_is_refused_by_name() -> None:
    graph = normalized()
    plan = staged(graph, 2, 2, 2)
    with pytest.raises(PlanError, match=r"node 'n' \(batch_norm\) keeps a state .*Train\(batch_statistics=False\)"):
        rank_programs(graph, TRAIN, plan, 2, target("cpu"))
    check(graph, replace(TRAIN, batch_statistics=False), plan, 2)
    plain = NETWORKS["mlp"]()
    for train, words in (
        (replace(TRAIN, loss=CrossEntropy(ignore=3)), "ignore=None"),
        (replace(TRAIN, precision="bfloat16"), "precision 'bfloat16'; allowed in a pipeline: None"),
    ):
        with pytest.raises(PlanError, match=words):
            rank_programs(plain, train, staged(plain, 2, 2, 2), 2, target("cpu"))
    with pytest.raises(PlanError, match=r"stages on devices \[\[0\], \[1\]\]; allowed: each of 4 devices once"):
        rank_programs(plain, TRAIN, staged(plain, 2, 2, 2), 4, target("cpu"))
