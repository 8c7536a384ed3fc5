"""`compile(fuse=False)`: a kernel for every node, with the same answers; what cannot be so is refused."""

from __future__ import annotations

import numpy as np
import pytest

import burnish as bn
from benchmarks.fusion import WORKLOADS, inputs, measure
from burnish.errors import ParameterError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.measure.accuracy import scaled_error

KERNELS = {"conv+bn+relu": (1, 4), "depthwise-conv+bn+relu": (1, 4), "rnn cell": (2, 5), "lstm cell": (4, 13)}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_figures_workloads_are_right_both_ways(name: str) -> None:
    graph = WORKLOADS[name][1]()
    feeds = inputs(graph)
    wanted = list(evaluate(graph, feeds).values())
    for fuse, kernels in zip((True, False), KERNELS[name], strict=True):
        module = bn.compile(graph, threads=1, rewrite=False, fuse=fuse)
        found = module(**feeds)
        assert len(module.executable.calls) == kernels
        assert scaled_error(list(found) if isinstance(found, tuple) else [found], wanted) <= 1e-5


def several() -> Graph:
    """Views, a join, a slice, a reduction and a product, some of which need no kernel."""
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (1, 8, 6, 6))
    y = b.add("conv2d", x, b.constant(random.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8), pads=(1,) * 4)
    z = b.add("concat", b.add("relu", y), b.add("sigmoid", x), axis=1)
    z = b.add("reshape", b.add("transpose", z, perm=(0, 2, 3, 1)), shape=(36, 16))
    s = b.add("softmax", b.add("matmul", z, b.constant(random.standard_normal((16, 12)).astype(np.float32))), axis=1)
    left, right = (b.add("slice", s, starts=(0, at), extents=(36, 6)) for at in (0, 6))
    return b.build(b.add("add", left, right))


@pytest.mark.parametrize("target", ["cpu", "x86-64-v3", "vdla"])
def test_every_node_that_computes_is_a_kernel(target: str) -> None:
    graph = several()
    x = np.random.default_rng(1).standard_normal((1, 8, 6, 6)).astype(np.float32)
    (wanted,) = evaluate(graph, {"x": x}).values()
    modules = [bn.compile(graph, target=target, threads=1, fuse=fuse) for fuse in (True, False)]
    assert len(modules[0].executable.calls) < len(modules[1].executable.calls)
    for row in modules[1].executable.info["kernels"]:
        assert len(row["group"].split("=")[1].split("(")[0].split()) == 1
    if target != "x86-64-v3":
        assert scaled_error([modules[1](x)], [wanted]) <= 1e-5


def test_what_cannot_be_unfused_is_refused() -> None:
    with pytest.raises(ParameterError, match="fuse: found 1; allowed: True or False"):
        bn.compile(several(), fuse=1)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="fuse: found False; allowed: True for tuning"):
        bn.compile(several(), fuse=False, tune=bn.Tune(trials=1))


def test_the_benchmark_measures_what_it_says() -> None:
    row = measure("rnn cell", "cpu", 1, seconds=0.1)
    assert (row.fused_kernels, row.unfused_kernels) == KERNELS["rnn cell"]
    assert row.error <= 1e-5 and row.saved_bytes > 0
    assert min(row.speedup, row.unfused_microseconds, row.fused_microseconds) > 0
