"""Tuning with open dimensions: what won at the hint makes the kernel of every size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.driver.compilation import assemble, compile_kernels
from burnish.driver.tuned import _over_sizes
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.specialize import graph_at
from burnish.loops.sizes import dim
from burnish.machines.target import target
from burnish.pipeline.kernel import KernelConfig, task_key
from burnish.pipeline.plan import DEFAULTS
from burnish.runtime.module import Module
from burnish.tune.choices import choices_of


def network(n: int) -> Graph:
    b, rng = GraphBuilder(), np.random.default_rng(0)
    w = b.constant(rng.normal(size=(48, 64)).astype("f4") / 7, "w")
    return b.build(b.add("relu", b.add("matmul", b.input("x", (n, 48)), w)))


def test_a_recipe_of_the_hint_makes_the_kernel_of_every_size() -> None:
    opened, machine = network(dim("n", 1, 40, hint=16)), target("cpu")
    (static,) = compile_kernels(graph_at(opened, {"n": 16}), machine).stages
    default = compile_kernels(opened, machine).stages[0].kernel
    other = next(v for v in (1, 2, 3) if v != default.choice["vectors"])
    recipe = KernelConfig(default.template, {**default.choice, "vectors": other})
    made = compile_kernels(opened, machine, choices=choices_of({task_key(static.task, machine): recipe}, {}))
    assert [s.kernel.choice["vectors"] for s in made.stages] == [other]
    plain, chosen = (Module(assemble(c), 1) for c in (compile_kernels(opened, machine, choices=DEFAULTS), made))
    assert _over_sizes(plain, chosen, opened, False).outcome == "ok"
    for n in (1, 16, 40):
        x = np.random.default_rng(n).normal(size=(n, 48)).astype("f4")
        np.testing.assert_allclose(chosen(x), bn.compile(network(n), threads=1)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_with_open_dimensions_is_tuned(tmp_path: Path) -> None:
    opened = network(dim("n", 1, 40, hint=16))
    made = bn.compile(opened, tune=bn.Tune(trials=2), threads=1, records=tmp_path / "r.jsonl")
    assert str(made.inputs[0]) == "x: float32[n, 48]" and made(np.ones((7, 48), "f4")).shape == (7, 64)
