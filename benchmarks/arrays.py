"""Imperative arrays: time of an operation, of expressions against one compiled graph, of the engine, of training loops.

`python -m benchmarks.arrays [--json FILE] [--rounds N]`: on one core and one thread, in CPU time, all sides in turn in
one process; medians, and medians of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import burnish as bn
from benchmarks.provenance import stored
from burnish.array import lazy
from burnish.array.engine import Engine, Resource
from burnish.graph.graph import GraphBuilder
from burnish.machines.target import target

nd, sym = bn.nd, bn.sym
Side = Callable[[], Any]
RATE = 0.01
STEPS = 20


def interleaved(sides: Mapping[str, Side], count: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of CPU a call of each side, ``count`` calls at a time, in turn: in another order in each round, as
    the one before decides what is in the caches.
    """
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 2):
        for name, side in order.sample([*sides.items()], len(sides)):
            begin = time.process_time()
            for _ in range(count):
                side()
            if number >= 2:
                times[name].append((time.process_time() - begin) / count * 1e6)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


def ratio(times: Mapping[str, list[float]], one: str, other: str) -> float:
    """The median of the ratios of neighbours."""
    return round(statistics.median(a / b for a, b in zip(times[one], times[other], strict=True)), 3)


def operations(rounds: int) -> dict[str, Any]:
    """Microseconds an addition of 8 elements: run at once, and only recorded."""
    a, b = np.ones(8, "float32"), np.ones(8, "float32")
    s, t = torch.ones(8), torch.ones(8)
    x, y = nd.array(a), nd.array(b)
    many = 100

    def recorded() -> None:
        for _ in range(many):
            x + y
        lazy.recorded.clear()

    one = bn.compile(addition(8), threads=1, rewrite=False)
    sides: dict[str, Side] = {
        "numpy": lambda: a + b,
        "torch": lambda: s + t,
        "at once": lambda: (x + y).wait(),
        "at once, with a number": lambda: (x * 0.5).wait(),
        "compiled module": lambda: one(a, b),
        "nothing": lambda: None,
    }
    found = medians(interleaved(sides, 2000, rounds))
    found["recorded"] = round(medians(interleaved({"recorded": recorded}, 20, rounds))["recorded"] / many, 3)
    overhead = found.pop("nothing")  # of the loop and the call of a side
    return {name: round(value - (overhead if name != "recorded" else 0.0), 3) for name, value in found.items()}


def addition(size: int) -> bn.Graph:
    b = GraphBuilder()
    return b.build(b.add("add", b.input("x", (size,)), b.input("y", (size,))))


def smooth(a: Any, b: Any, c: Any, library: Any) -> Any:
    """Ten operations with three that take time."""
    return library.tanh(a * b + c) * library.exp(-(a * a)) - library.sqrt(b) * c


def plain(a: Any, b: Any, c: Any, library: Any) -> Any:
    """Ten additions, differences and products."""
    return ((a + b) * c - a) * (b + c) + (a - c) * b - c + a


EXPRESSIONS: Mapping[str, Callable[..., Any]] = {"plain": plain, "smooth": smooth}


def waited(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments).wait()


def constant_of(graph: bn.Graph, name: str, shape: tuple[int, ...]) -> np.ndarray:
    return graph.constants[name]


def graph_of(expression: Callable[..., Any], size: int) -> bn.Graph:
    a, b, c = (sym.variable(name) for name in "abc")
    return sym.graph(expression(a, b, c, sym), dict.fromkeys("abc", (size,)))


def expressions(rounds: int) -> list[dict[str, Any]]:
    """Expressions of ten operations, against one compiled graph of them."""
    rows = []
    for name, expression in EXPRESSIONS.items():
        for size in (10_000, 1_000_000):
            arrays = [np.random.default_rng(k).random(size).astype("float32") + 0.5 for k in range(3)]
            # All sides read the same memory: else it is in the caches for some of them only.
            ours, tensors = [nd.from_dlpack(a) for a in arrays], [torch.from_numpy(a) for a in arrays]
            graph = graph_of(expression, size)
            module = bn.compile(graph, threads=1, rewrite=False)
            given = dict(zip("abc", arrays, strict=True))
            ordered = [given[spec.name] for spec in module.inputs]
            sides: dict[str, Side] = {
                "nd": partial(waited, expression, *ours, nd),
                "one graph": partial(module, *ordered),
                "numpy": partial(expression, *arrays, np),
                "torch": partial(expression, *tensors, torch),
            }
            np.testing.assert_allclose(sides["nd"]().numpy(), sides["one graph"](), rtol=1e-4, atol=1e-5)
            times = interleaved(sides, 400 if size < 100_000 else 3, rounds if size < 100_000 else 4 * rounds)
            against = {other: ratio(times, "nd", other) for other in ("one graph", "numpy", "torch")}
            row = {"expression": name, "operations": len(graph.nodes) - 1, "elements": size}
            rows.append({**row, "microseconds": medians(times), "nd against": against})
    return rows


def engine(rounds: int) -> dict[str, float]:
    """Microseconds of CPU an operation that does nothing: pushed and run where it is pushed, and through the queue."""
    idle, busy = Engine(2), Engine(2)
    tags = [Resource(str(i)) for i in range(4)]
    pool = ThreadPoolExecutor(2)

    def nothing() -> None:
        pass

    def queued() -> None:
        for i in range(100):
            busy.push(nothing, [tags[i % 4]], [tags[(i + 1) % 4]])
        busy.wait_all()

    def submitted() -> None:
        for future in [pool.submit(nothing) for _ in range(100)]:
            future.result()

    inline = medians(interleaved({"i": lambda: idle.push(nothing, [tags[0]], [tags[1]], long=False)}, 1000, rounds))[
        "i"
    ]
    both = medians(interleaved({"queued": queued, "executor": submitted}, 5, rounds))
    for each in (idle, busy):
        each.close()
    return {
        "run where pushed": inline,
        "queued behind others": round(both["queued"] / 100, 3),
        "ThreadPoolExecutor": round(both["executor"] / 100, 3),
    }


def perceptron(sizes: list[int]) -> tuple[sym.Symbol, bn.Graph, int]:
    """A network and its loss as symbols, and the network as a graph with the same weights as constants."""
    rng = np.random.default_rng(0)
    x, b = sym.variable("x"), GraphBuilder()
    h, g = x, b.input("x", (64, sizes[0]))
    for at, (inner, outer) in enumerate(pairwise(sizes)):
        last = at == len(sizes) - 2
        h = sym.fully_connected(h, outer, f"fc{at}")
        weight = (rng.standard_normal((inner, outer)) / np.sqrt(inner)).astype("float32")
        bias = b.constant(np.zeros(outer, "float32"), f"fc{at}.bias")
        g = b.add("add", b.add("matmul", g, b.constant(weight, f"fc{at}.weight")), bias)
        if not last:
            h, g = sym.relu(h), b.add("relu", g)
    return sym.loss("softmax_cross_entropy", h), b.build(g), sizes[-1]


def keeping_gradients(net: sym.Executor) -> bn.Graph:
    """A step of gradient descent as one graph that also gives the gradients, as ``net.g`` does."""
    joint, b = net.joint, GraphBuilder()
    for name in joint.inputs:
        if name in net.w:
            b.state(name, net.w[name].numpy())
        else:
            b.input(name, joint.types[name].shape, joint.types[name].dtype)
    for name, value in joint.constants.items():
        b.constant(value, name)
    for node in joint.nodes:
        b.add_many(node.op, *node.inputs, names=node.outputs, node=node.name, **node.attrs)
    rate = b.constant(RATE)
    for name, gradient in zip(net.w, joint.outputs[1:], strict=True):
        b.update(name, b.add("sub", name, b.add("mul", rate, gradient)))
    return b.build(*joint.outputs)


def steps(step: Side) -> None:
    """Several steps, to their end."""
    for _ in range(STEPS):
        step()
    nd.wait_all()


def training(rounds: int) -> list[dict[str, Any]]:
    """``net.forward_backward(); net.w -= rate * net.g`` against the same step as one compiled graph."""
    rows = []
    for sizes in ([784, 256, 10], [784, 1024, 1024, 10]):
        loss, graph, classes = perceptron(sizes)
        inputs = np.random.default_rng(1).standard_normal((64, sizes[0])).astype("float32")
        labels = np.random.default_rng(2).integers(0, classes, 64)
        net = sym.bind(
            loss, {"x": nd.array(inputs), "label": nd.array(labels)},
            initial=partial(constant_of, graph), threads=1,
        )  # fmt: skip
        step = bn.compile(graph, train=bn.Train("softmax_cross_entropy", bn.SGD(RATE)), threads=1, rewrite=False)

        keeping = bn.compile(keeping_gradients(net), threads=1, rewrite=False)
        ordered = [{"x": inputs, "label": labels}[spec.name] for spec in keeping.inputs]

        def imperative(net: sym.Executor = net) -> Any:
            found = net.forward_backward()
            net.w -= RATE * net.g
            return found

        for _ in range(4):
            ours, theirs = imperative().item(), float(step(inputs, labels))
        assert abs(ours - theirs) < 1e-4 * abs(theirs), (ours, theirs)
        sides: dict[str, Side] = {
            "nd": partial(steps, imperative),
            "nd, loss and gradients kept": partial(steps, partial(waited, imperative)),
            "one graph": partial(steps, partial(step, inputs, labels)),
            "one graph, gradients kept": partial(steps, partial(keeping, *ordered)),
        }
        times = {
            name: [t / STEPS for t in found] for name, found in interleaved(sides, 1, rounds).items()
        }  # fmt: skip
        kept = ratio(times, "nd, loss and gradients kept", "one graph, gradients kept")
        against = {"one graph": ratio(times, "nd", "one graph"), "one graph, both keeping gradients": kept}
        rows.append({"layers": sizes, "microseconds": medians(times), "nd against": against})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="timings of each side (default 25)")
    parser.add_argument("--json", type=Path, help="a file for the results")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    report = {
        "machine": {"cpu": target("cpu").cpu, "cores used": 1, "python": platform.python_version()},
        "versions": {"burnish": bn.__version__, "numpy": np.__version__, "torch": torch.__version__},
        "microseconds an operation of 8 elements": operations(arguments.rounds),
        "expressions of ten operations": expressions(arguments.rounds),
        "microseconds an operation of the engine": engine(arguments.rounds),
        "training": training(arguments.rounds),
    }
    text = stored(report, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
