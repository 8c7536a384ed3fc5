"""Small networks of the kinds that plans are made for, and a run of programs without compiling them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from burnish.graph.decompose import decompose
from burnish.graph.evaluate import evaluate, evaluate_node
from burnish.graph.graph import Graph, GraphBuilder
from burnish.parallel.model.placement import TensorSplit
from burnish.parallel.model.values import GraphValues
from burnish.parallel.programs.program import DeviceProgram
from burnish.train.optimizers import SGD
from burnish.train.step import Train, training_graph

TRAIN = Train(loss="softmax_cross_entropy", optimizer=SGD(0.1, momentum=0.9))
CLASSES = 4


def weight(b: GraphBuilder, name: str, *shape: int) -> str:
    """Random weights whose products keep the size of their operands."""
    fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[-2]
    drawn = np.random.default_rng(sum(map(ord, name))).normal(size=shape)
    return b.constant((drawn / np.sqrt(fan)).astype(np.float32), name)


def mlp() -> Graph:
    """Two dense layers."""
    b = GraphBuilder()
    x = b.input("x", (8, 6))
    bias = b.constant(np.full(12, 0.1, np.float32), "b1")
    h = b.add("relu", b.add("add", b.add("matmul", x, weight(b, "w1", 6, 12), name="h0"), bias, name="h1"), name="h")
    return b.build(b.add("matmul", h, weight(b, "w2", 12, CLASSES), name="y"))


def cnn() -> Graph:
    """Convolutions whose parts of an image need a halo, pooling, a dense layer."""
    b = GraphBuilder()
    x = b.input("x", (4, 3, 8, 8))
    bias = b.constant(np.full(8, 0.1, np.float32), "b1")
    h = b.add("relu", b.add("conv2d", x, weight(b, "w1", 8, 3, 3, 3), bias, pads=(1, 1, 1, 1), name="c1"), name="r1")
    h = b.add("conv2d", h, weight(b, "w2", 8, 8, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1), name="c2")
    h = b.add("max_pool2d", b.add("relu", h, name="r2"), kernel=(2, 2), strides=(2, 2), name="p")
    h = b.add("reshape", h, shape=(4, 32), name="f")
    return b.build(b.add("matmul", h, weight(b, "w3", 32, CLASSES), name="y"))


def attention() -> Graph:
    """One block of attention of two heads with a residual."""
    b = GraphBuilder()
    rows, time, width, heads = 4, 6, 8, 2
    x = b.input("x", (rows, time, width))

    def head(name: str) -> str:
        made = b.add("matmul", x, weight(b, f"w{name}", width, width), name=name)
        parted = b.add("reshape", made, shape=(rows, time, heads, width // heads))
        return b.add("transpose", parted, perm=(0, 2, 1, 3))

    q, k, v = map(head, "qkv")
    scores = b.add("mul", b.add("matmul", q, k, transpose_b=True, name="s"), b.constant(0.5))
    mixed = b.add("matmul", b.add("softmax", scores, axis=-1, name="p"), v, name="o")
    joined = b.add("reshape", b.add("transpose", mixed, perm=(0, 2, 1, 3)), shape=(rows, time, width))
    block = b.add("add", x, b.add("matmul", joined, weight(b, "wo", width, width), name="oo"), name="res")
    mean = b.add("reduce_mean", block, axes=(1,), keepdims=False, name="mean")
    return b.build(b.add("matmul", mean, weight(b, "wy", width, CLASSES), name="y"))


def lstm() -> Graph:
    """Three steps of an LSTM with shared weights."""
    b = GraphBuilder()
    rows, width, hidden, steps = 4, 5, 6, 3
    x = b.input("x", (rows, steps, width))
    w, r = weight(b, "w", width, 4 * hidden), weight(b, "r", 4, hidden, hidden)
    h = c = b.constant(np.zeros((rows, hidden), np.float32), "zero")
    for t in range(steps):
        cut = b.add("slice", x, starts=(0, t, 0), extents=(rows, 1, width))
        gates = b.add("matmul", b.add("reshape", cut, shape=(rows, width)), w, name=f"g{t}")
        h, c = b.add_many("lstm_cell", gates, h, c, r, names=[f"h{t}", f"c{t}"])
    return b.build(b.add("matmul", h, weight(b, "wy", hidden, CLASSES), name="y"))


NETWORKS: Mapping[str, Callable[[], Graph]] = {"mlp": mlp, "cnn": cnn, "attention": attention, "lstm": lstm}


def step_of(model: Graph, train: Train = TRAIN) -> Graph:
    """The training step, as programs take it apart."""
    return decompose(training_graph(model, train))


def batch_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """A random batch."""
    drawn = np.random.default_rng(seed)
    types = {name: graph.types[name] for name in graph.inputs if name not in graph.states}
    return {
        name: drawn.normal(size=t.shape).astype(t.dtype)
        if t.dtype == "float32"
        else drawn.integers(0, CLASSES, t.shape)
        for name, t in types.items()
    }


def trained_alone(graph: Graph, batch: Mapping[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """The states after so many steps in one process, by the definitions."""
    states = {name: state.initial for name, state in graph.states.items()}
    for _ in range(steps):
        found = evaluate(graph, {**batch, **states})
        states = {name: found[graph.outputs[state.output]] for name, state in graph.states.items()}
    return states


def trained_apart(
    programs: Sequence[DeviceProgram], batch: Mapping[str, np.ndarray], steps: int
) -> list[dict[str, np.ndarray]]:
    """By device, the parts of states after so many steps, by the definitions, messages handed over in this process."""
    states = [{name: s.initial for name, s in p.graph.states.items()} for p in programs]
    for _ in range(steps):
        values = [_given(p, batch, own) for p, own in zip(programs, states, strict=True)]
        _run(programs, values)
        states = [
            {name: v[p.graph.outputs[s.output]] for name, s in p.graph.states.items()}
            for p, v in zip(programs, values, strict=True)
        ]
    return states


def _given(p: DeviceProgram, batch: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    cut = {name: batch[name][tuple(slice(*span) for span in box)] for name, box in p.inputs.items()}
    return {**p.graph.constants, **own, **{name: np.ascontiguousarray(value) for name, value in cut.items()}}


def _run(programs: Sequence[DeviceProgram], values: Sequence[dict[str, np.ndarray]]) -> None:
    mail: dict[int, np.ndarray] = {}
    at = [0] * len(programs)
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            receipts = {m.tensor: m.tag for m in program.receipts}
            while at[rank] < len(program.graph.nodes):
                node = program.graph.nodes[at[rank]]
                missing = [receipts[n] for n in node.inputs if n in receipts]
                if any(tag not in mail for tag in missing):
                    break
                values[rank].update({n: mail[receipts[n]] for n in node.inputs if n in receipts})
                results = evaluate_node(node, [values[rank][n] for n in node.inputs])
                values[rank].update(zip(node.outputs, results, strict=True))
                mail.update({m.tag: values[rank][m.tensor] for m in program.sends if m.tensor in node.outputs})
                at[rank] += 1
                moved = True
    for rank, program in enumerate(programs):
        assert at[rank] == len(program.graph.nodes)
        values[rank].update({m.tensor: mail[m.tag] for m in program.receipts})


def random_splits(graph: Graph, names: Sequence[str], ranks: int, seed: int) -> dict[str, TensorSplit]:
    """Random splits of about half of some tensors: degrees, terms of sums, devices, several tasks a device."""
    drawn, values = random.Random(seed), GraphValues(graph)
    return {n: _random_split(values, n, ranks, drawn) for n in names if n in values.made and drawn.random() < 0.5}


def _random_split(values: GraphValues, name: str, ranks: int, drawn: random.Random) -> TensorSplit:
    shape, value = values.graph.types[name].shape, values.made[name]
    extents = [*shape, *values.summed(value)] if values.has_definition(value.node) else []
    degrees, tasks = [1] * max(len(extents), len(shape)), 1
    for _ in range(drawn.randrange(4) if extents else 0):
        axis, degree = drawn.randrange(len(extents)), drawn.choice([2, 2, 3, 4])
        if degrees[axis] == 1 and degree <= extents[axis] and tasks * degree <= 2 * ranks:
            degrees[axis], tasks = degree, tasks * degree
    devices = tuple(drawn.randrange(ranks) for _ in range(tasks))
    return TensorSplit(tuple(degrees[: len(shape)]), devices, tuple(degrees[len(shape) :]))


def worst_error(
    programs: Sequence[DeviceProgram], found: Sequence[Mapping[str, np.ndarray]], wanted: Mapping[str, np.ndarray]
) -> float:
    """The largest difference of a state from the one that is wanted, relative to its largest element."""
    worst, met = 0.0, set()
    for program, states in zip(programs, found, strict=True):
        for name, box in program.states.items():
            met.add(name)
            own = wanted[name][tuple(slice(*span) for span in box)]
            scale = max(float(np.abs(wanted[name]).max()), 1e-30)
            worst = max(worst, float(np.abs(own.astype(np.float64) - states[name]).max()) / scale)
    assert met == {*wanted}, "a state is nowhere"
    return worst
