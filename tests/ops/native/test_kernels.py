"""Native kernels of opaque operators beside their NumPy, over shapes, types, threads and open sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.ops import OPERATORS
from burnish.runtime.executable import Host

RANDOM = np.random.default_rng(3)
Feeds = Mapping[str, np.ndarray]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def compiled_beside_numpy(
    cache: Path, op: str, arrays: Sequence[np.ndarray], constants: Sequence[int] = (), threads: int = 2, **attrs: Any
) -> None:
    """The operator on ``arrays``, those at ``constants`` known at compile time: as NumPy has it, without Python."""
    graph, feeds = graph_of(op, arrays, constants, **attrs)
    module = bn.compile(graph, threads=threads, rewrite=False, cache_dir=cache)
    assert not any(isinstance(step, Host) for step in module.executable.steps), "runs in Python"
    extern = OPERATORS[op].extern
    assert extern is not None
    expected = extern(*arrays, **OPERATORS[op].complete(attrs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = module(*feeds.values())
    for own, other in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        assert own.dtype == other.dtype and np.array_equal(own, other, equal_nan=own.dtype.kind == "f")


def graph_of(op: str, arrays: Sequence[np.ndarray], constants: Sequence[int], **attrs: Any) -> tuple[Graph, Feeds]:
    b, feeds = GraphBuilder(), {}
    names = []
    for i, array in enumerate(arrays):
        if i in constants:
            names.append(b.constant(array))
        else:
            names.append(b.input(f"x{i}", array.shape, str(array.dtype)))
            feeds[f"x{i}"] = array
    return b.build(*b.add_many(op, *names, **attrs)), feeds


def drawn(dtype: str, *shape: int) -> np.ndarray:
    """Numbers with many ties, and NaN and infinities of floats."""
    array = RANDOM.integers(0, 6, shape).astype(dtype)
    if array.dtype.kind == "f":
        places = RANDOM.random(shape)
        array[places < 0.1], array[places > 0.95] = np.nan, np.inf
    return array


SHAPES = (((7,), 0), ((3, 40), 1), ((5, 9, 4), 1), ((1, 1), 0), ((2, 0, 3), 0), ((2, 0, 3), 1), ((300, 33), -1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sort(cache: Path, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    for descending in (False, True):
        compiled_beside_numpy(cache, "sort", [drawn(dtype, *shape)], axis=axis, descending=descending)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_top_k(cache: Path, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    x = drawn(dtype, *shape)
    for k in sorted({0, min(1, shape[axis]), shape[axis] // 2, shape[axis]}):
        for largest in (False, True):
            for in_order in (False, True):
                compiled_beside_numpy(cache, "top_k", [x], axis=axis, k=k, largest=largest, sorted=in_order)


def forest(trees: int, depth: int, targets: int, silence: float) -> list[np.ndarray]:
    """Roots, nodes, thresholds and weights of complete trees over 5 features, some leaves of which say nothing."""
    inner, total = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes = np.zeros((trees * total, 4), np.uint32)
    for t in range(trees):
        for n in range(total):
            at = t * total + n
            below = (t * total + 2 * n + 1, t * total + 2 * n + 2)
            split = (RANDOM.integers(5), *below, RANDOM.integers(2))
            nodes[at] = split if n < inner else (0, at, at, t * (total - inner) + n - inner)
    weights = RANDOM.standard_normal((trees * (total - inner), targets)).astype(np.float32)
    weights[RANDOM.random(weights.shape) < silence] = np.nan
    roots = np.array([(t * total, depth) for t in range(trees)], np.uint32).reshape(-1, 2)
    return [roots, nodes, RANDOM.integers(0, 6, len(nodes)).astype(np.float32), weights]


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("trees", "depth", "targets"), [(1, 0, 1), (3, 2, 2), (21, 4, 1)])
def test_trees(cache: Path, trees: int, depth: int, targets: int, dtype: str, aggregate: str) -> None:
    parts = forest(trees, depth, targets, 0.3)
    for rows in (1, 3, 17, 300):
        for silent in (0.0, -np.inf):
            compiled_beside_numpy(
                cache,
                "tree_ensemble",
                [drawn(dtype, rows, 5), *parts],
                (1, 2, 3, 4),
                aggregate=aggregate,
                silent=silent,
            )


def test_one_kernel_for_any_number_of_rows(cache: Path, tmp_path: Path) -> None:
    b = GraphBuilder()
    x = b.input("x", (dim("n", 0, 500), 5))
    parts = forest(9, 3, 1, 0.0)
    score = b.add("tree_ensemble", x, *(b.constant(p) for p in parts))
    values, order = b.add_many("sort", score, axis=0)
    module = bn.compile(b.build(values, order), threads=2, rewrite=False, cache_dir=cache)
    module.save(tmp_path / "m.bn")
    again = bn.load(tmp_path / "m.bn")
    for rows in (0, 1, 5, 128, 500):
        table = drawn("float32", rows, 5)
        extern = OPERATORS["tree_ensemble"].extern
        assert extern is not None
        scores = extern(table, *parts, aggregate="SUM", silent=0.0)
        for own in (module, again):
            found, positions = own(table)
            assert np.array_equal(positions, np.argsort(scores, 0, kind="stable"))
            assert np.array_equal(found, np.sort(scores, 0))


def test_the_check_runs_the_kernel_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.driver.check import check

    graph, feeds = graph_of("sort", [drawn("float32", 4, 9)], ())
    row = next(row for row in check(graph, feeds, cache_dir=cache) if row.template == "native")
    assert row.ok and row.kernel.startswith("sort_")
