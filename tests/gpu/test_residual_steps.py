"""Steps of training of residual networks: kernels of several results, sums that are put off, selections of halves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ModelError
from burnish.graph.evaluate import evaluate
from burnish.graph.fuse import Group, fuse
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.narrow_selections import narrow_selections
from burnish.graph.sliced_sums import reduce_slices
from burnish.kernels.templates import first_match
from burnish.lower.threads import launches
from burnish.machines.target import target
from burnish.pipeline import plan
from burnish.pipeline.several_results import fuse_several
from burnish.simulators.gpu.emulator import emulated

GPU = target("cuda:sm_80")


def residual(batch: int = 2, channels: int = 8) -> Graph:
    """A convolution, a pool, and a block with a shortcut of stride 2, all with normalizations; classes."""
    rng, b = np.random.default_rng(0), GraphBuilder()

    def normalized(x: str, wide: int, kernel: int, stride: int, name: str) -> str:
        inner = int(b.types[x].shape[1])
        weight = rng.standard_normal((wide, inner, kernel, kernel), "f4") / np.float32(kernel * inner**0.5)
        y = b.add("conv2d", x, b.constant(weight, f"{name}.weight"), strides=(stride,) * 2, pads=(kernel // 2,) * 4)
        ones, zeros = np.ones(wide, "f4"), np.zeros(wide, "f4")
        vectors = {"scale": ones, "bias": zeros, "mean": zeros, "variance": ones}
        return b.add("batch_norm", y, *(b.constant(v.copy(), f"{name}.{n}") for n, v in vectors.items()))

    x = b.add("relu", normalized(b.input("x", (batch, 3, 8, 8)), channels, 3, 1, "first"))
    x = b.add("max_pool2d", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    left, right = (normalized(x, 2 * channels, kernel, 2, f"kernel{kernel}") for kernel in (3, 1))
    y = b.add("reduce_mean", b.add("relu", b.add("add", left, right)), axes=(2, 3), keepdims=False)
    return b.build(b.add("matmul", y, b.constant(rng.standard_normal((2 * channels, 4), "f4"), "last.weight")))


def recipe(precision: str | None) -> bn.Train:
    return bn.Train("mse", bn.SGD(0.05, momentum=0.9), precision=precision)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "split"), [("bfloat16", True), ("bfloat16", False), (None, True), (None, False)])
def test_steps_are_right(precision: str | None, split: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients of weights as they are, and as two partial sums each, whatever is predicted of these."""
    if split:
        monkeypatch.setattr(plan, "_parts", lambda *_: lambda graph, group: 2 - (group.anchor.op == "partial_sums"))
    machines = (emulated(GPU), "cpu")
    there, here = (bn.compile(residual(), train=recipe(precision), target=t, cache_dir=tmp_path) for t in machines)
    groups = [str(row["group"]) for row in there.info["kernels"]]
    assert sum("[partial_sums]" in text for text in groups) == (4 if split else 0)
    assert sum("[reduce_sum]" in text for text in groups) <= 5, "what is put off is added up together"
    rng, allowed = np.random.default_rng(1), 1e-4 if precision is None else 4e-2
    x, label = rng.standard_normal((2, 3, 8, 8), "f4"), rng.standard_normal((2, 4), "f4")
    np.testing.assert_allclose(there(x, label), here(x, label), rtol=allowed)
    for name in here.state:
        wanted = np.asarray(here.state[name])
        most = max(float(np.abs(wanted).max()), 1.0)
        np.testing.assert_allclose(there.state[name], wanted, atol=allowed * most, err_msg=name)


def test_what_follows_from_sums_of_planes_is_one_launch_for_both_branches() -> None:
    """Statistics of channels, factors and shifts forward; gradients of both vectors, and what images need, back."""
    from burnish.driver.compilation import compile_kernels
    from burnish.train.step import training_graph
    from tools.launches import KernelWork, counted

    found: dict[str, KernelWork] = {}
    made = compile_kernels(training_graph(residual(), recipe("bfloat16")), GPU, make=counted(found))
    symbols = [stage.kernel.symbol for stage in made.stages]
    several = [s for s in symbols if s.startswith(("reduce_mean", "reduce_sum")) and found[s].template == "rows"]
    assert sum(s.startswith("reduce_mean") for s in several) == 2 and len(several) <= 5


# --- several results --------------------------------------------------------------------------------------------------


def fused(graph: Graph) -> list[Group]:
    groups = fuse(graph)
    return fuse_several(
        graph, groups, lambda of, group: plan.takes(of, group, GPU), lambda g: not g.alias, lambda g: True
    )


def test_reductions_and_maps_of_the_same_rows_are_one_group_whose_results_are_in_order() -> None:
    b = GraphBuilder()
    x, scale = b.input("x", (40, 6)), b.constant(np.linspace(0.5, 2.0, 6, dtype="f4"))
    mean = b.add("reduce_mean", x, axes=(0,), keepdims=False)
    centred = b.add("sub", x, mean)
    variance = b.add("reduce_mean", b.add("mul", centred, centred), axes=(0,), keepdims=False)
    factor = b.add("mul", scale, b.add("reciprocal", b.add("sqrt", variance)))
    graph = b.build(mean, factor, b.add("mul", mean, factor))
    (group,) = fused(graph)
    assert group.outputs == graph.outputs
    module = bn.compile(graph, target=emulated(GPU))
    (row,) = module.info["kernels"]
    assert row["template"] == "rows"
    feeds = {n: np.random.default_rng(3).standard_normal(graph.types[n].shape, "f4") for n in graph.inputs}
    for found, name in zip(module(*feeds.values()), graph.outputs, strict=True):
        np.testing.assert_allclose(found, evaluate(graph, feeds)[name], rtol=1e-5, atol=1e-6)


def test_a_result_is_not_fused_with_what_waits_for_another_input() -> None:
    b = GraphBuilder()
    x, message = b.input("x", (40, 6)), b.input("message", (6,))
    mean = b.add("reduce_mean", x, axes=(0,), keepdims=False)
    graph = b.build(mean, b.add("mul", mean, message))
    assert [group.outputs for group in fused(graph)] == [(name,) for name in graph.outputs]


def test_what_waits_for_a_product_in_between_is_not_fused() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (40, 6)), b.input("w", (6, 6))
    first = b.add("reduce_mean", x, axes=(0,), keepdims=True)
    second = b.add("reduce_sum", b.add("mul", x, b.add("matmul", first, w)), axes=(0,), keepdims=True)
    graph = b.build(b.add("add", first, second))
    groups = fused(graph)
    assert len(groups) == 3
    done = {*graph.inputs, *graph.constants}
    for group in groups:
        assert done.issuperset(group.inputs)
        done.update(group.outputs)


# --- partial sums -----------------------------------------------------------------------------------------------------


def test_partial_sums_of_an_operator_add_up_to_it() -> None:
    rng, b = np.random.default_rng(0), GraphBuilder()
    x, w = b.input("x", (4, 12)), b.input("w", (12, 5))
    parts = b.add("partial_sums", x, w, operator="matmul", attributes=(("transpose_b", False),), count=3, order=(1, 0))
    graph = b.build(parts)
    assert graph.types[parts].shape == (3, 5, 4)
    feeds = {n: rng.standard_normal(graph.types[n].shape, "f4") for n in graph.inputs}
    found = evaluate(graph, feeds)[parts]
    np.testing.assert_allclose(found.sum(0).T, feeds["x"] @ feeds["w"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1].T, feeds["x"][:, 4:8] @ feeds["w"][4:8], rtol=1e-5, atol=1e-5)
    wrong = {"count": 5, "order": (1, 1), "operator": "add"}
    for name, value in wrong.items():
        own = {"operator": "matmul", "attributes": (), "count": 3, "order": (0, 1), name: value}
        with pytest.raises(ModelError, match=f"partial_sums.*attribute '{name}': found "):
            b.add("partial_sums", x, x if name == "operator" else w, **own)


def test_parts_of_a_sum_divide_its_longest_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of two parts that would itself be split into three is one of eight: six are no parts of eight rows."""
    from burnish.driver.compilation import compile_kernels
    from burnish.train.step import training_graph
    from tools.launches import KernelWork, counted

    more = {0: 2, 2: 3}  # by the number of parts that there are
    parts = lambda graph, group: more.get(group.anchor.attrs.get("count", 0), 1)  # noqa: E731
    monkeypatch.setattr(plan, "_parts", lambda *_: parts)
    found: dict[str, KernelWork] = {}
    made = compile_kernels(training_graph(residual(), recipe("bfloat16")), GPU, make=counted(found))
    counts = [
        s.group.anchor.attrs["count"] for s in made.stages if s.group.anchor and s.group.anchor.op == "partial_sums"
    ]
    assert counts == [8]  # of the first layer; others have sums of no more than two rows


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_slices_of_a_reduction_are_reductions_of_slices_where_none_overlap() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 7, 3))
    total = b.add("reduce_sum", x, axes=(-2,), keepdims=False)
    parts = [b.add("slice", total, starts=(k, 0), extents=(1, 3)) for k in (0, 1)]
    graph = b.build(*parts)
    moved = reduce_slices(graph)
    assert [n.op for n in moved.nodes] == ["slice", "reduce_sum"] * 2
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 7, 3), "f4")}
    for name in graph.outputs:
        np.testing.assert_array_equal(evaluate(moved, feeds)[name], evaluate(graph, feeds)[name])
    overlapping = b.build(*parts, b.add("slice", total, starts=(0, 1), extents=(2, 2)))
    assert [n.op for n in reduce_slices(overlapping).nodes].count("reduce_sum") == 1


def test_the_greatest_of_halves_is_a_half_and_so_is_its_gradient() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 2, 6, 6), "bfloat16")
    y = b.add("max_pool2d", b.add("cast", x, to="float32"), kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    y = b.add("cast", y, to="bfloat16")
    graph = bn.gradients(b.build(y), y, ["x"])
    narrow = narrow_selections(graph)
    dtypes = {narrow.types[n].dtype for node in narrow.nodes if "max_pool2d" in str(node) for n in node.inputs}
    assert dtypes == {"bfloat16"}
    rng = np.random.default_rng(0)
    feeds = {n: rng.integers(-4, 4, graph.types[n].shape).astype("f4") for n in graph.inputs}
    feeds = {n: evaluate(_as_halves(v), {"x": v})["y"] for n, v in feeds.items()}
    for name in graph.outputs:
        found, wanted = evaluate(narrow, feeds)[name], evaluate(graph, feeds)[name]
        np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


def _as_halves(value: np.ndarray) -> Graph:
    b = GraphBuilder()
    return b.build(b.add("cast", b.input("x", value.shape), to="bfloat16", name="y"))


def test_the_gradient_of_a_pool_is_two_launches() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 16, 8, 8))
    y = b.add("max_pool2d", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    graph = bn.gradients(b.build(y), y, ["x"])
    made = plan.plan_kernels(graph, GPU, False)
    (group,) = [g for g in made.groups if g.anchor is not None and g.anchor.op == "adjoint"]
    match = first_match(plan.make_task(made, group, {})[0], GPU)
    assert len(launches(match.apply(match.space.default).program, GPU.machine).launches) == 2
