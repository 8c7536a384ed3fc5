"""What the shipped substitutions make of models of any sizes: the same in float64, and in float32 within tolerance."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rewriting.costs import GPU_LIKE
from burnish.driver.rewritten import shipped_rules
from burnish.frontend.onnx import to_onnx
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.measure.accuracy import TOLERANCE, scaled_error
from burnish.measure.peers import prepare
from burnish.rewrite.language.bindings import Bindings
from burnish.rewrite.language.vocabulary import sides
from burnish.rewrite.proofs.verify import read_rules
from burnish.rewrite.search.backtracking import Rewritten, rewrite_graph
from burnish.search.budget import Budget
from tests.marks import slow

SIZES = st.integers(1, 9)


class Model(GraphBuilder):
    """A builder with the weights and layers of small models."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = np.random.default_rng(seed)

    def weight(self, *shape: int) -> str:
        return self.constant((self.random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32))

    def conv(self, x: str, outputs: int, kernel: tuple[int, int], stride: int = 1, groups: int = 1) -> str:
        """With bias, padded as if to keep the size; of even windows the second pad is the larger."""
        weight = self.weight(outputs, self.types[x].shape[1] // groups, *kernel)
        pads = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2, kernel[0] // 2, kernel[1] // 2)
        made = self.add("conv2d", x, weight, strides=(stride, stride), pads=pads, groups=groups)
        return self.add("add", made, self.weight(outputs, 1, 1))

    def relu(self, x: str) -> str:
        return self.add("relu", x)

    def pool(self, x: str, op: str, included: bool) -> str:
        window = {"kernel": (3, 3), "pads": (1, 1, 1, 1)}
        return self.add(op, x, **window, **({"count_include_pad": included} if op == "avg_pool2d" else {}))


@st.composite
def branches(draw: st.DrawFn) -> Graph:
    """Convolutions of one image with several windows, and a pool, side by side, as in Inception and SqueezeNet."""
    b = Model(draw(st.integers(0, 99)))
    stride = draw(st.integers(1, 2))
    x = b.input("x", (draw(st.integers(1, 2)), draw(SIZES), draw(st.integers(4, 9)), draw(st.integers(4, 9))))
    kernels = [draw(st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 2)])) for _ in range(3)]
    found = [b.relu(b.conv(x, draw(SIZES), kernel, stride)) for kernel in kernels]
    if stride == 1:
        pool = b.pool(x, draw(st.sampled_from(["avg_pool2d", "max_pool2d"])), draw(st.booleans()))
        found.append(b.relu(b.conv(pool, draw(SIZES), (1, 1))))
    return b.build(b.add("concat", *found, axis=1))


@st.composite
def residuals(draw: st.DrawFn) -> Graph:
    """A sum of convolutions, of pools and of the image, which may be scaled, as in RepVGG and NASNet."""
    b = Model(draw(st.integers(0, 99)))
    groups = draw(st.integers(1, 3))
    c = groups * draw(st.integers(1, 4))
    x, y = (b.input(name, (1, c, *draw(st.tuples(st.just(5), st.just(6))))) for name in "xy")
    found = b.add("add", b.conv(x, c, (3, 3), groups=groups), b.conv(x, c, (1, 1), groups=groups))
    found = b.add("add", found, b.add("mul", x, b.weight(c, 1, 1)))
    pooled = draw(st.booleans())
    sums = b.add("add", b.pool(x, "avg_pool2d", pooled), b.pool(y, "avg_pool2d", pooled))
    both = b.add("add", b.conv(x, 4, (1, 1)), b.conv(y, 4, (1, 1)))
    return b.build(b.relu(found), sums, both)


@st.composite
def attentions(draw: st.DrawFn) -> Graph:
    """Projections, heads and a scaled product, as in BERT."""
    b = Model(draw(st.integers(0, 99)))
    heads, width, length = draw(st.integers(1, 3)), draw(SIZES), draw(SIZES)
    x = b.input("x", (1, length, heads * width))

    def head(perm: tuple[int, ...]) -> str:
        y = b.add("add", b.add("matmul", x, b.weight(heads * width, heads * width)), b.weight(heads * width))
        return b.add("transpose", b.add("reshape", y, shape=(1, length, heads, width)), perm=perm)

    scores = b.add("matmul", head((0, 2, 1, 3)), head((0, 2, 3, 1)))
    scores = b.add("softmax", b.add("mul", scores, b.constant(np.float32(0.25))), axis=-1)
    return b.build(b.add("matmul", scores, head((0, 2, 1, 3))))


@st.composite
def cells(draw: st.DrawFn) -> Graph:
    """Gates of a recurrent cell over a few steps with the same weights, and a chain of products."""
    b = Model(draw(st.integers(0, 99)))
    width, gates, steps = draw(SIZES), draw(st.integers(2, 4)), draw(st.integers(1, 3))
    weights = [(b.weight(width, width), b.weight(width, width)) for _ in range(gates)]
    state = b.input("state", (1, width))
    for step in range(steps):
        x = b.input(f"x{step}", (1, width))
        sums = [b.add("add", b.add("matmul", x, u), b.add("matmul", state, v)) for u, v in weights]
        state = b.add("mul", b.add("tanh", sums[0]), b.add("sigmoid", sums[1]))
        for each in sums[2:]:
            state = b.add("add", state, b.add("relu", each))
    return b.build(b.add("matmul", b.add("matmul", state, b.weight(width, 5)), b.weight(5, 2)))


MODELS: list[Callable[[], st.SearchStrategy[Graph]]] = [branches, residuals, attentions, cells]


def test_every_rule_in_floating_point() -> None:
    """Both sides at larger sizes than any that rules are generated or tested at, in float64."""
    random = np.random.default_rng(5)
    for rule in read_rules("substitutions.txt"):
        left, right = sides(rule, Bindings(rule, random, largest=7).draw())
        feeds = {name: random.standard_normal(left.types[name].shape).astype(np.float32) for name in left.inputs}
        expected, found = (list(evaluate(graph, feeds, "float64").values()) for graph in (left, right))
        rounded = "box(" in str(rule)  # its weight is a constant in float32
        assert scaled_error(found, expected) <= (1e-7 if rounded else 1e-10), rule.name


def test_the_weight_of_a_mean_is_not_rounded_before_float64() -> None:
    b = GraphBuilder()
    graph = b.build(b.add("avg_pool2d", b.input("x", (1, 8, 7, 7)), kernel=(3, 3)))
    rules = [rule for rule in shipped_rules() if "box(" in str(rule)]
    found = rewrite_graph(graph, rules, lambda o: float(o.op == "avg_pool2d"), Budget(trials=9), fold=False).graph
    assert [n.op for n in found.nodes if n.op == "conv2d"]
    assert scaled_error(values(found, "float64"), values(graph, "float64")) <= 1e-10


def rewritten(graph: Graph, fold: bool) -> Rewritten:
    return rewrite_graph(graph, shipped_rules(), GPU_LIKE, Budget(trials=60), fold=fold)


def values(graph: Graph, dtype: str | None = None) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    feeds = {name: random.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
    return list(evaluate(graph, feeds, dtype).values())


@pytest.mark.parametrize("model", slow(MODELS, branches, attentions), ids=lambda m: m.__name__)
def test_any_sizes(model: Callable[[], st.SearchStrategy[Graph]]) -> None:
    """The sizes that rules were generated at are a handful; here they are any, odd windows and strides among them."""
    applied = set[str]()

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(model())
    def check(graph: Graph) -> None:
        graph = optimize(graph)
        expected = values(graph, "float64")
        found = rewritten(graph, fold=False)
        assert scaled_error(values(found.graph, "float64"), expected) <= 1e-10
        folded = rewritten(graph, fold=True).graph
        assert scaled_error(values(folded), expected) <= TOLERANCE
        applied.update(s.rule for s in found.applied)

    check()
    assert len(applied) > 2


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_other_runtimes_compute_the_same(model: Callable[[], st.SearchStrategy[Graph]]) -> None:
    """A rewritten graph as ONNX, by onnxruntime."""

    @settings(max_examples=4, deadline=None, derandomize=True, database=None)
    @given(model())
    def check(graph: Graph) -> None:
        graph = optimize(graph)
        found = rewritten(graph, fold=True).graph
        random = np.random.default_rng(1)
        feeds = {name: random.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
        results = prepare("onnxruntime", to_onnx(found).SerializeToString(), threads=1)(feeds)
        assert scaled_error(results, values(graph, "float64")) <= TOLERANCE

    check()
