"""Launches on an H100, of networks in halves and steps of training in mixed precision, and the share of their products
on tensor cores.
"""

from __future__ import annotations

import pytest

from burnish.codegen.ptxas import find_ptxas
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from burnish.graph.scale_gradients import sum_columns
from burnish.graph.wide_reads import widen_readers

INDUCTOR_STEPS = {("gpt", 1): 88, ("bert", 1): 65, ("gpt", 4): 255, ("bert", 4): 236, ("resnet18", 1): 197}
"""Kernels of the forward and backward pass by torch.compile, of torch 2.13 in bfloat16, without the optimizer, by
number of layers: `python -m tools.launches --layers N`. Ours are with the optimizer.
"""


@pytest.mark.parametrize(
    ("name", "launches", "megabytes"),
    [
        pytest.param("gpt", 67, 5100, marks=pytest.mark.slow),
        ("bert", 57, 2150),
        pytest.param("resnet18", 191, 5700, marks=pytest.mark.slow),
    ],
)
def test_launches_and_tensor_cores_of_a_step(name: str, launches: int, megabytes: float) -> None:
    from tools.launches import training_steps

    found = training_steps(name, 1, "bfloat16")
    assert found.launches <= launches <= INDUCTOR_STEPS[name, 1] and found.in_python == 0
    assert found.tensor >= 0.99 and found.megabytes <= megabytes


@pytest.mark.slow
@pytest.mark.parametrize(("name", "launches", "megabytes"), [("gpt", 65, 6600), ("bert", 56, 3300)])
def test_steps_of_float32_are_on_tensor_cores_by_tf32(name: str, launches: int, megabytes: float) -> None:
    from tools.launches import training_steps

    found = training_steps(name, 1, None, "cuda:sm_90a,tf32")
    assert found.launches <= launches and found.tensor >= 0.99 and found.megabytes <= megabytes


@pytest.mark.slow
@pytest.mark.parametrize(("name", "launches", "megabytes"), [("gpt", 67, 6750), ("bert", 56, 3420)])
def test_steps_of_strict_float32_keep_no_scores_in_memory(name: str, launches: int, megabytes: float) -> None:
    from tools.launches import training_steps

    found = training_steps(name, 1, None, "cuda:sm_90a")
    assert found.launches <= launches and found.tensor == 0.0 and found.megabytes <= megabytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_launches_of_whole_steps(name: str) -> None:
    from tools.launches import training_steps

    found = training_steps(name, 4, "bfloat16")
    assert found.launches <= INDUCTOR_STEPS[name, 4] and found.tensor >= 0.99 and found.in_python == 0


@pytest.mark.slow
@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("machine", ["cuda:sm_80", "cuda:sm_90a"])
@pytest.mark.parametrize("name", ["gpt", "bert", "resnet18"])
def test_steps_are_assembled_without_spills(name: str, machine: str) -> None:
    from tools.launches import training_steps

    found = training_steps(name, 1, "bfloat16", machine, assembled=True)
    assert found.registers > 0 and found.spilled == 0 and found.tensor >= 0.95
    assert found.launches <= INDUCTOR_STEPS[name, 1]


INDUCTOR = {"resnet18": 40, "resnet50": 105, "bert_base": 121, "gpt": 43}
"""Kernels of torch.compile in inference, of torch 2.13: `python -m tools.launches --inductor`, GPT in bfloat16."""


@pytest.mark.parametrize(
    ("name", "batch", "launches", "megabytes"),
    [
        pytest.param("resnet18", 1, 36, 38, marks=pytest.mark.slow),
        pytest.param("resnet18", 64, 26, 910, marks=pytest.mark.slow),
        pytest.param("resnet50", 1, 80, 110, marks=pytest.mark.slow),
        pytest.param("resnet50", 64, 60, 3800, marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", 1, 60, 36, marks=pytest.mark.slow),
        pytest.param("bert_base", 1, 98, 285, marks=pytest.mark.slow),
        pytest.param("bert_base", 64, 110, 4500, marks=pytest.mark.slow),
        pytest.param("gpt", 1, 36, 180, marks=pytest.mark.slow),
    ],
)
def test_networks_in_halves_have_fewer_launches_than_inductors(
    name: str, batch: int, launches: int, megabytes: float
) -> None:
    from tools.launches import network

    found = network(name, "bfloat16" if name == "gpt" else "float16", batch, "cuda:sm_90a", False)
    assert found.launches <= launches <= INDUCTOR.get(name, launches)
    assert found.tensor >= 0.95 and found.megabytes <= megabytes and found.in_python == 0


def test_readers_of_what_is_made_wider_have_conversions_of_their_own() -> None:
    b = GraphBuilder()
    wide = b.add("cast", b.add("relu", b.input("x", (1, 2, 2, 4), "float16")), to="float32")
    graph = b.build(b.add("mul", wide, b.add("exp", wide)), b.add("abs", wide))
    spread = widen_readers(graph)
    assert [n.op for n in spread.nodes].count("cast") == 3
    assert all(
        len(readers) <= 1 for n in spread.nodes if n.op == "cast" for readers in [spread.consumers()[n.outputs[0]]]
    )


def test_columns_are_summed_for_the_gradient_of_a_scale() -> None:
    import numpy as np

    import burnish as bn

    b = GraphBuilder()
    x, scale = b.input("x", (5, 3, 8)), b.input("scale", (8,))
    y = b.add("mul", b.add("layer_norm", x, scale, epsilon=1e-3), x)
    graph = bn.gradients(b.build(y), y, ["scale"])
    summed = sum_columns(graph)
    assert "reduce_sum" in {n.op for n in summed.nodes} and "adjoint" not in {
        n.op for n in summed.nodes if n.outputs[0].startswith("scale")
    }
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(graph.types[n].shape, "f4") for n in graph.inputs}
    name = graph.outputs[-1]
    np.testing.assert_allclose(evaluate(summed, feeds)[name], evaluate(graph, feeds)[name], rtol=1e-5, atol=1e-5)
