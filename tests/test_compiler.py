"""Small graphs of every kind, compiled end to end, against the operators' definitions in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.driver.compilation import Compilation, assemble, compile_kernels
from burnish.errors import ScheduleError, TargetError, UnsupportedOperator
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.kernels.task import KernelTask
from burnish.loops.numeric import numpy_dtype
from burnish.machines.target import Target, host
from burnish.measure.accuracy import scaled_error
from burnish.pipeline import kernel as build
from tests.marks import slow

TOLERANCE, EXACT_TOLERANCE = 1e-4, 1e-5  # of the largest value of the output: what Burnish promises


@pytest.fixture(autouse=True)
def every_template_keeps_what_it_promises(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No kernel fell back to a slower template."""
    yield
    assert not caplog.records


class Builder(GraphBuilder):
    """A graph builder with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int, dtype: str = "float32") -> str:
        """A random constant of unit gain in its last dimensions."""
        fan_in = max(1, int(np.prod(shape[1:])))
        return self.constant((self.random.standard_normal(shape) / np.sqrt(fan_in)).astype(numpy_dtype(dtype)))

    def convolution(self, x: str, outputs: int, kernel: int, groups: int = 1, **attrs: object) -> str:
        """A square convolution with bias."""
        channels = self.types[x].shape[1] // groups
        weight = self.weight(outputs, channels, kernel, kernel)
        return self.add("conv2d", x, weight, self.weight(outputs), groups=groups, **attrs)  # type: ignore[arg-type]


SAME = (1, 1, 1, 1)


def residual_block(b: Builder) -> str:
    """Convolution, batch norm, relu, convolution, batch norm, sum with the input, relu."""
    x = b.add("relu", b.convolution(b.input("x", (1, 3, 12, 12)), 32, 3, pads=SAME))
    y = x
    for last in (False, True):
        y = b.convolution(y, 32, 3, pads=SAME)
        scale, shift, mean = (b.weight(32) for _ in range(3))
        variance = b.constant(b.random.uniform(0.5, 2.0, 32).astype(np.float32))
        y = b.add("batch_norm", y, scale, shift, mean, variance)
        y = b.add("relu", b.add("add", y, x) if last else y)
    return y


def convolution_chain(b: Builder) -> str:
    """Three 3×3 convolutions and pooling, large enough for Winograd."""
    x = b.input("x", (1, 64, 28, 28))
    for _ in range(3):
        x = b.add("relu", b.convolution(x, 64, 3, pads=SAME))
    return b.add("max_pool2d", x, kernel=(2, 2), strides=(2, 2))


def inverted_residual(b: Builder) -> str:
    """Pointwise, depthwise and pointwise convolution with clips, as in MobileNet-v2."""
    x = b.convolution(b.input("x", (1, 16, 14, 14)), 32, 1)
    y = b.add("clip", b.convolution(x, 96, 1), min=0.0, max=6.0)
    y = b.add("clip", b.convolution(y, 96, 3, groups=96, pads=SAME), min=0.0, max=6.0)
    return b.add("add", b.convolution(y, 32, 1), x)


def odd_channels(b: Builder) -> str:
    """Channel counts that fill no whole number of vectors, and a batch of two."""
    x = b.add("relu", b.convolution(b.input("x", (2, 17, 9, 11)), 30, 3, pads=SAME))
    x = b.add("relu", b.convolution(x, 24, 3, pads=SAME))
    return b.add("reduce_mean", b.convolution(x, 17, 1), axes=(2, 3))


def part_of_a_block(b: Builder) -> str:
    """Everything that reads 11 channels: convolutions of all kinds, pools, a sum and a join, as in NASNet's stem."""
    x = b.add("relu", b.convolution(b.input("x", (1, 32, 15, 15)), 11, 1))
    halved = {"kernel": (3, 3), "strides": (2, 2), "pads": SAME}
    deep = b.convolution(b.convolution(x, 11, 5, groups=11, strides=(2, 2), pads=(2, 2, 2, 2)), 11, 1)
    pools = [b.add("max_pool2d", x, **halved), b.add("avg_pool2d", x, **halved)]
    whole = b.add("relu", b.add("concat", deep, *pools, b.add("add", deep, pools[0]), axis=1))
    return b.convolution(whole, 22, 1)


def strided_and_grouped(b: Builder) -> str:
    """Strides, dilation, groups and one-sided padding."""
    x = b.add("relu", b.convolution(b.input("x", (2, 32, 15, 13)), 64, 3, strides=(2, 2), pads=SAME))
    x = b.add("relu", b.convolution(x, 64, 3, groups=4, pads=(0, 1, 2, 1)))
    x = b.convolution(x, 32, 3, dilations=(2, 2), pads=(2, 2, 2, 2))
    return b.add("avg_pool2d", x, kernel=(3, 3), strides=(2, 2), pads=SAME)


def deconvolution(b: Builder) -> str:
    """Two transposed convolutions, as in a generator."""
    x = b.input("x", (2, 24, 4, 4))
    x = b.add("relu", b.add("conv2d_transpose", x, b.weight(24, 32, 4, 4), strides=(2, 2), pads=SAME))
    return b.add("tanh", b.add("conv2d_transpose", x, b.weight(32, 3, 4, 4), strides=(2, 2), pads=SAME))


def concatenation(b: Builder) -> str:
    """Branches of different widths, joined and split again."""
    x = b.add("relu", b.convolution(b.input("x", (1, 16, 8, 8)), 32, 1))
    branches = [b.add("relu", b.convolution(x, n, k, pads=(k // 2,) * 4)) for n, k in ((16, 1), (24, 3), (32, 5))]
    branches.append(b.add("max_pool2d", x, kernel=(3, 3), strides=(1, 1), pads=SAME))
    joined = b.add("concat", *branches, axis=1)
    left = b.add("slice", joined, starts=(0, 8, 0, 0), extents=(1, 48, 8, 8))
    return b.add("add", left, b.add("slice", joined, starts=(0, 56, 0, 0), extents=(1, 48, 8, 8)))


def attention(b: Builder) -> str:
    """Layer norm, four heads of attention, and a gelu network, with residual sums."""
    x = b.input("x", (2, 20, 64))
    y = b.add("layer_norm", x, b.weight(64), b.weight(64))

    def heads(perm: tuple[int, ...]) -> str:
        projected = b.add("add", b.add("matmul", y, b.weight(64, 64)), b.weight(64))
        return b.add("transpose", b.add("reshape", projected, shape=(2, 20, 4, 16)), perm=perm)

    scores = b.add("matmul", heads((0, 2, 1, 3)), heads((0, 2, 3, 1)))
    weights = b.add("softmax", b.add("div", scores, b.constant(4.0)), axis=-1)
    mixed = b.add("transpose", b.add("matmul", weights, heads((0, 2, 1, 3))), perm=(0, 2, 1, 3))
    x = b.add("add", x, b.add("matmul", b.add("reshape", mixed, shape=(2, 20, 64)), b.weight(64, 64)))
    hidden = b.add("gelu", b.add("matmul", b.add("layer_norm", x, b.weight(64), b.weight(64)), b.weight(64, 128)))
    return b.add("add", x, b.add("matmul", hidden, b.weight(128, 64)))


def recurrent(b: Builder) -> tuple[str, ...]:
    """Embedding by gather, three steps of an LSTM, and a projection."""
    tokens = b.input("tokens", (3, 2), "int64")
    embedded = b.add("gather", b.weight(2, 24), tokens)
    h, c = b.input("h", (2, 17)), b.input("c", (2, 17))
    weights, inner, bias = b.weight(24, 68), b.weight(4, 17, 17), b.weight(68)
    for step in range(3):
        x = b.add("slice", embedded, starts=(step, 0, 0), extents=(1, 2, 24))
        gates = b.add("add", b.add("matmul", b.add("reshape", x, shape=(2, 24)), weights), bias)
        h, c = b.add_many("lstm_cell", gates, h, c, inner)
    return b.add("matmul", h, b.weight(17, 33)), c


def dense_layers(b: Builder) -> str:
    """A flattened image through dense layers: one row times large matrices."""
    x = b.add("reshape", b.convolution(b.input("x", (1, 4, 6, 6)), 16, 3), shape=(1, 256))
    x = b.add("relu", b.add("add", b.add("matmul", x, b.weight(256, 100)), b.weight(100)))
    return b.add("log_softmax", b.add("matmul", x, b.weight(100, 10)), axis=1)


def double_precision(b: Builder) -> str:
    x = b.add("matmul", b.input("x", (7, 33), "float64"), b.weight(33, 18, dtype="float64"))
    return b.add("softmax", b.add("tanh", x), axis=1)


def integers(b: Builder) -> tuple[str, ...]:
    x, y = b.input("x", (5, 19), "int32"), b.input("y", (5, 19), "int64")
    total = b.add("add", b.add("cast", x, to="int64"), b.add("mul", y, b.constant(np.int64(-3))))
    return (
        total,
        b.add("matmul", x, b.constant(np.arange(19 * 4, dtype=np.int32).reshape(19, 4))),
        b.add("argmax", y, axis=1),
    )


def booleans(b: Builder) -> tuple[str, ...]:
    x, y = b.input("x", (6, 21)), b.input("y", (6, 21))
    either = b.add("logical_or", b.add("less", x, y), b.add("greater", x, b.constant(0.5)))
    return b.add("logical_not", either), b.add("where", either, x, b.add("neg", y))


def half_precision(b: Builder) -> str:
    x = b.add("mul", b.input("x", (4, 50), "float16"), b.weight(4, 50, dtype="float16"))
    return b.add("relu", b.add("add", x, b.input("y", (4, 50), "float16")))


def several_outputs(b: Builder) -> tuple[str, ...]:
    """Every activation of dense, grouped and depthwise convolutions, each of which is read again."""
    x = b.input("x", (1, 32, 9, 9))
    found = []
    for groups in (1, 4, 32):
        c = b.convolution(x, 32, 3, groups, pads=SAME)
        x = b.add("relu", c)
        found += [c, x]
    pooled = b.add("max_pool2d", x, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 1, 1))
    up = b.add("resize", pooled, sizes=(1, 32, 10, 10))
    joined = b.add("concat", b.add("slice", up, starts=(0, 0, 0, 0), extents=(1, 32, 9, 9)), x, axis=1)
    return (*found, pooled, up, joined, b.convolution(joined, 24, 1))


def long_chains(b: Builder) -> tuple[str, ...]:
    """Values used twice, at one place and at two, so often that an expression of them all would have no end."""
    x = y = b.input("x", (5, 5))
    for _ in range(40):
        x = b.add("mul", x, b.add("sigmoid", x))
        y = b.add("tanh", b.add("add", y, b.add("transpose", y)))
    return x, y


GRAPHS: dict[str, Callable[[Builder], str | tuple[str, ...]]] = {
    define.__name__: define
    for define in (
        residual_block, convolution_chain, inverted_residual, odd_channels, part_of_a_block, strided_and_grouped,
        deconvolution, concatenation, attention, recurrent, dense_layers, double_precision, integers, booleans,
        half_precision, several_outputs, long_chains,
    )
}  # fmt: skip


@cache
def example(name: str) -> tuple[Graph, dict[str, np.ndarray], list[np.ndarray]]:
    """A graph, its inputs, and the right outputs."""
    b = Builder()
    outputs = GRAPHS[name](b)
    graph = b.build(*([outputs] if isinstance(outputs, str) else outputs))
    feeds = {}
    for n in graph.inputs:
        t = graph.types[n]
        values = b.random.standard_normal(t.shape) if "float" in t.dtype else b.random.integers(0, 2, t.shape)
        feeds[n] = values.astype(numpy_dtype(t.dtype))
    values = evaluate(graph, feeds, "float64")
    return graph, feeds, [values[n] for n in graph.outputs]


def run(module: bn.Module, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    found = module(**feeds)
    return list(found) if isinstance(found, tuple) else [found]


def allowed(graph: Graph, tolerance: float) -> float:
    """The tolerance, but for half precision, whose own rounding is coarser."""
    return 2e-3 if any(graph.types[n].dtype == "float16" for n in graph.outputs) else tolerance


@pytest.mark.parametrize("before", [0, 2])
def test_a_sum_of_padded_elements_at_positions_in_memory(before: int) -> None:
    b = GraphBuilder()
    picked = b.add("gather", b.input("x", (15,)), b.constant(np.array([-8, 14])), axis=0)
    padded = b.add("pad", picked, pads=(before, 4), value=0.0)
    graph = b.build(b.add("reduce_sum", padded, axes=(0,), keepdims=True))
    x = np.random.default_rng(0).standard_normal(15).astype("float32")
    np.testing.assert_allclose(bn.compile(graph, threads=1)(x), [x[7] + x[14]], rtol=1e-6)


@pytest.mark.parametrize("pixels", [(1, 1), (1, 3), (3, 1)])
def test_a_transposed_convolution_whose_weights_are_an_input(pixels: tuple[int, int]) -> None:
    b = GraphBuilder()
    x, w = b.input("x", (1, 3, *pixels)), b.input("w", (3, 4, 3, 2))
    graph = b.build(b.add("conv2d_transpose", x, w, strides=(1, 3)))
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal(graph.types[name].shape).astype("float32") for name in graph.inputs}
    (wanted,) = evaluate(graph, feeds).values()
    found = bn.compile(graph, threads=1)(**feeds)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("name", slow(GRAPHS, "attention", "recurrent", "long_chains", "convolution_chain"))
def test_answers_are_right_and_the_same_for_any_number_of_threads(name: str, exact: bool) -> None:
    graph, feeds, expected = example(name)
    found = run(bn.compile(graph, threads=1, exact=exact), feeds)
    assert scaled_error(found, expected) <= allowed(graph, EXACT_TOLERANCE if exact else TOLERANCE)
    assert [str(array.dtype) for array in found] == [graph.types[n].dtype for n in graph.outputs]
    for one, two in zip(found, run(bn.compile(graph, threads=2, exact=exact), feeds), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", GRAPHS)
def test_answers_are_right_on_other_vector_widths(name: str, target: str) -> None:
    if not host().has("avx512vl" if target == "x86-64-v4" else "avx2"):
        pytest.skip(f"this machine is no {target}")
    graph, feeds, expected = example(name)
    assert scaled_error(run(bn.compile(graph, target=target, threads=2), feeds), expected) <= allowed(graph, TOLERANCE)


def lowered(name: str, without: str = "", exact: bool = False) -> Compilation:
    """A graph's kernels for this machine, less the features that start with ``without``."""
    features = frozenset(f for f in host().features if not (without and f.startswith(without)))
    return compile_kernels(example(name)[0], replace(host(), features=features), exact)


def operators(made: Compilation) -> set[str]:
    return {node.op for node in made.graph.nodes}


def test_winograd_is_chosen_where_it_pays_but_not_when_exact() -> None:
    made = lowered("convolution_chain", without="amx-")
    assert "winograd_conv2d" in operators(made)
    _, feeds, expected = example("convolution_chain")
    assert scaled_error(run(bn.Module(assemble(made)), feeds), expected) <= TOLERANCE
    assert operators(lowered("convolution_chain", exact=True)) <= {"conv2d", "add", "relu", "max_pool2d", "identity"}


@pytest.mark.parametrize("lead", [(1,), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("rows", [1, 7, 17, 40, 100, 197, 304])
def test_products_may_have_any_number_of_rows(rows: int, lead: tuple[int, ...]) -> None:
    b = Builder()
    product = b.add("matmul", b.input("x", (*lead, rows, 40)), b.weight(40, 48))
    split = b.add("reshape", product, shape=(*lead, rows, 3, 16))
    rank = len(lead)
    graph = b.build(b.add("transpose", split, perm=(*range(rank), rank + 1, rank, rank + 2)))
    x = b.random.standard_normal((*lead, rows, 40)).astype(np.float32)
    expected = evaluate(graph, {"x": x}, "float64")[graph.outputs[0]]
    assert scaled_error([bn.compile(graph)(x)], [expected]) < TOLERANCE


@pytest.mark.parametrize("name", ["residual_block", "attention"])
def test_matrix_tiles_are_used_where_there_are_some_but_not_when_exact(name: str) -> None:
    if not host().has("amx-bf16"):
        pytest.skip("this machine has no matrix tiles")
    assert any(op.startswith("split_") for op in operators(lowered(name)))
    assert not any(op.startswith("split_") for op in operators(lowered(name, exact=True)))


def test_batch_norm_is_folded_and_epilogues_are_fused() -> None:
    made = lowered("residual_block", exact=True)
    assert "batch_norm" not in operators(made)
    fused = [{node.op for node in stage.group.nodes} for stage in made.stages]
    assert sum("conv2d" in ops for ops in fused) == 3
    assert all("conv2d" in ops or ops == {"identity"} for ops in fused)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_saved_model_gives_the_same_answer(name: str, tmp_path: Path) -> None:
    graph, feeds, _ = example(name)
    module = bn.compile(graph, threads=1)
    module.save(tmp_path / "model.bn")
    for before, after in zip(run(module, feeds), run(bn.load(tmp_path / "model.bn", threads=1), feeds), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", ["residual_block", "attention", "recurrent"])
def test_compiling_again_gives_the_same_code(name: str, tmp_path: Path) -> None:
    graph = example(name)[0]
    modules = [bn.compile(graph, cache_dir=tmp_path / folder, rewrite=False) for folder in ("a", "a", "b")]
    first, cached, fresh = (module.executable for module in modules)
    assert first.code.digest == cached.code.digest == fresh.code.digest
    assert first.calls == cached.calls == fresh.calls
    np.testing.assert_array_equal(first.params, cached.params)


def test_equal_layers_share_a_kernel() -> None:
    calls = bn.compile(example("convolution_chain")[0], exact=True).executable.calls
    kernels = [call.kernel for call in calls if call.kernel.startswith("conv2d")]
    assert len(kernels) > len(set(kernels))


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(TargetError, match="'abacus' is unknown; known: cpu, "):
        bn.compile(example("booleans")[0], target="abacus")


def test_progress_is_reported_in_order() -> None:
    seen: list[tuple[str, int, int]] = []
    bn.compile(example("booleans")[0], progress=lambda stage, done, total: seen.append((stage, done, total)))
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["optimize", "rewrite", "kernels", "link"]
    assert all(0 <= done < total for _, done, total in seen)


def test_a_slice_of_channels_in_front_of_a_winograd_convolution_compiles() -> None:
    b = GraphBuilder()
    random = np.random.default_rng(0)
    x = b.add("relu", b.input("x", (1, 112, 14, 14)))
    part = b.add("slice", x, starts=(0, 16, 0, 0), extents=(1, 96, 14, 14))
    weight = random.standard_normal((208, 96, 3, 3)).astype(np.float32) / 30
    y = b.add("conv2d", part, b.constant(weight), pads=(1, 1, 1, 1))
    graph = b.build(y, b.add("slice", x, starts=(0, 0, 0, 0), extents=(1, 16, 14, 14)))
    data = random.standard_normal((1, 112, 14, 14)).astype(np.float32)
    expected = evaluate(graph, {"x": data})[y]
    found = bn.compile(graph, rewrite=False)(data)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * abs(expected).max())


def refusing(monkeypatch: pytest.MonkeyPatch, refused: Callable[[set[str]], bool]) -> None:
    """Lets no schedule be found for kernels of which the results of nodes are ``refused``."""
    scheduled = build.compile_task

    def compile_task(task: KernelTask, target: Target) -> build.CompiledKernel:
        if refused({t.name.split(".")[0] for t in task.stages()}):
            raise ScheduleError("planted")
        return scheduled(task, target)

    monkeypatch.setattr(build, "compile_task", compile_task)


@pytest.mark.parametrize("name", ["residual_block", "several_outputs", "attention", "recurrent"])
def test_a_group_that_has_no_schedule_becomes_several_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    graph, feeds, expected = example(name)
    refusing(monkeypatch, lambda results: len(results) > 1)
    module = bn.compile(graph, rewrite=False, cache_dir=tmp_path)
    assert scaled_error(run(module, feeds), expected) <= TOLERANCE
    assert "become kernels of their own" in caplog.text
    caplog.clear()


def test_a_node_that_has_no_schedule_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    b = Builder()
    graph = b.build(b.add("softmax", b.input("x", (2, 3))))
    refusing(monkeypatch, lambda results: True)
    with pytest.raises(UnsupportedOperator, match=r"node softmax \(softmax\).*float32\[2, 3\].*planted"):
        bn.compile(graph, rewrite=False, cache_dir=tmp_path)
