"""Native kernels of opaque operators beside their NumPy, over shapes, types, threads and open sizes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim, greatest
from burnish.ops import OPERATORS
from burnish.ops.trees import packed_trees
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import Host
from burnish.runtime.fenced import Fenced
from tests.marks import slow, slow_except

RANDOM = np.random.default_rng(3)
Feeds = Mapping[str, np.ndarray]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def compiled_beside_numpy(
    cache: Path,
    op: str,
    arrays: Sequence[np.ndarray],
    constants: Sequence[int] = (),
    threads: int = 2,
    within: float = 0.0,
    **attrs: Any,
) -> None:
    """The operator on ``arrays``, those at ``constants`` known at compile time: as NumPy has it, without Python."""
    graph, feeds = graph_of(op, arrays, constants, **attrs)
    module = bn.compile(graph, threads=threads, rewrite=False, cache_dir=cache)
    assert not any(isinstance(step, Host) for step in module.executable.steps), "runs in Python"
    extern = OPERATORS[op].extern
    assert extern is not None
    with np.errstate(invalid="ignore"):
        expected = extern(*arrays, **OPERATORS[op].complete(attrs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for own, other in zip(between_pages(module, [*feeds.values()]), expected, strict=True):
        assert own.dtype == other.dtype
        np.testing.assert_allclose(own, other, rtol=within, atol=within)


def between_pages(module: bn.Module, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a call whose inputs and outputs end at forbidden pages; of extents that it counts the greatest."""
    shapes = [tuple(map(greatest, spec.shape)) for spec in module.outputs]
    kinds = [numpy_dtype(spec.dtype) for spec in module.outputs]
    read = [Fenced(a.nbytes) for a in feeds]
    given = [memory.array(a.shape, a.dtype) for memory, a in zip(read, feeds, strict=True)]
    for own, a in zip(given, feeds, strict=True):
        own[...] = a
    written = [Fenced(math.prod(s) * d.itemsize).fill() for s, d in zip(shapes, kinds, strict=True)]
    found = [m.array(s, d) for m, s, d in zip(written, shapes, kinds, strict=True)]
    module.run_into(given, found)
    assert all(memory.untouched_around() for memory in (*read, *written))
    for own, a in zip(given, feeds, strict=True):
        np.testing.assert_array_equal(own, a)
    return [own.copy() for own in found]


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


@pytest.mark.parametrize("dtype", slow(["float32", "float64", "uint8"], "float64"))
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sort(cache: Path, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    for descending in (False, True):
        compiled_beside_numpy(cache, "sort", [drawn(dtype, *shape)], axis=axis, descending=descending)


@pytest.mark.parametrize("dtype", slow(["float32", "int32"], "int32"))
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_top_k(cache: Path, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    x = drawn(dtype, *shape)
    extent = shape[axis]
    for k, largest, in_order in ((0, True, True), (1, False, True), (extent // 2, True, False), (extent, False, True)):
        compiled_beside_numpy(cache, "top_k", [x], axis=axis, k=min(k, extent), largest=largest, sorted=in_order)


def positions(*shape: int, extent: int, dtype: str = "int64") -> np.ndarray:
    """Places, some of them negative, some out of range, many twice."""
    return RANDOM.integers(-extent - 2, extent + 2, shape).astype(dtype)


REDUCTIONS = ("none", "add", "mul", "max", "min")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", slow(["float32", "int8", "float64"], "float64"))
@pytest.mark.parametrize(
    ("data", "indices", "axis"),
    [
        ((9,), (4,), 0),
        ((3, 7), (3, 20), 1),
        ((6, 4, 5), (3, 4, 5), 0),
        pytest.param((6, 4, 5), (2, 9, 3), 1, marks=pytest.mark.slow),
        ((2, 1, 3), (0, 1, 3), 0),
    ],
)
def test_scatter_elements(
    cache: Path, data: tuple[int, ...], indices: tuple[int, ...], axis: int, dtype: str, reduction: str
) -> None:
    given = [drawn(dtype, *data), positions(*indices, extent=data[axis]), drawn(dtype, *indices)]
    compiled_beside_numpy(cache, "scatter_elements", given, axis=axis, reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("data", "indices"), [((5,), (3, 1)), ((4, 3), (6, 2)), ((4, 3, 2), (2, 3, 1)), ((3,), (2, 0))]
)
def test_scatter_nd(cache: Path, data: tuple[int, ...], indices: tuple[int, ...], reduction: str) -> None:
    updates = (*indices[:-1], *data[indices[-1] :])
    for dtype in ("float32", "int32"):
        given = [drawn(dtype, *data), positions(*indices, extent=4, dtype="int32"), drawn(dtype, *updates)]
        compiled_beside_numpy(cache, "scatter_nd", given, reduction=reduction)


@pytest.mark.parametrize("dtype", ["bool", "float16", "int64"])
def test_elements_of_any_type_are_moved(cache: Path, dtype: str) -> None:
    data, updates = (RANDOM.integers(0, 2, (5, 4)).astype(dtype) for _ in range(2))
    compiled_beside_numpy(cache, "scatter_elements", [data, positions(5, 4, extent=4), updates], axis=1)


@pytest.mark.parametrize("circular", [False, True])
def test_scatter_rows(cache: Path, circular: bool) -> None:
    past, update = drawn("float32", 3, 2, 7, 4), drawn("float32", 3, 2, 3, 4)
    for start in ([0, 2, 6], [-1, 4, 9]):
        given = [past, update, np.array(start, np.int64)]
        compiled_beside_numpy(cache, "scatter_rows", given, axis=2, circular=circular)


def test_max_unpool(cache: Path) -> None:
    x = drawn("float32", 2, 3, 4, 5)
    compiled_beside_numpy(cache, "max_unpool", [x, RANDOM.integers(-9, 500, x.shape)], size=(8, 10))


@pytest.mark.parametrize(
    ("size", "block", "strides", "pads", "dilations"),
    [
        ((6, 7), (3, 2), (1, 2), (1, 0, 1, 1), (1, 1)),
        ((9,), (3,), (2,), (1, 1), (2,)),
        ((5, 5), (2, 2), (2, 2), (0,) * 4, (2, 1)),
    ],
)
def test_fold_windows(
    cache: Path, size: tuple[int, ...], block: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...],
    dilations: tuple[int, ...],
) -> None:  # fmt: skip
    rank, windows = len(size), 1
    for d in range(rank):
        windows *= (size[d] + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1
    x = RANDOM.standard_normal((2, 3 * int(np.prod(block)), windows), dtype=np.float32)
    attrs = {"size": size, "block": block, "strides": strides, "pads": pads, "dilations": dilations}
    compiled_beside_numpy(cache, "fold_windows", [x], **attrs)


def forest(trees: int, depth: int, targets: int, silence: float) -> list[np.ndarray]:
    """The constants of complete trees over 5 features, some leaves of which say nothing; each of one target at most
    where ``silence`` is 1.
    """
    inner, total = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes = np.zeros((trees * total, 4), np.uint32)
    for t in range(trees):
        for n in range(total):
            at = t * total + n
            below = (t * total + 2 * n + 1, t * total + 2 * n + 2)
            split = (RANDOM.integers(5), *below, RANDOM.integers(2))
            nodes[at] = split if n < inner else (0, at, at, t * (total - inner) + n - inner)
    weights = RANDOM.standard_normal((trees * (total - inner), targets)).astype(np.float32)
    own = RANDOM.integers(0, targets, (len(weights), 1))
    weights[np.arange(targets) != own if silence == 1 else RANDOM.random(weights.shape) < silence] = np.nan
    roots = np.arange(trees) * total
    return list(packed_trees(roots, nodes, RANDOM.integers(0, 6, len(nodes)).astype(np.float32), weights))


@pytest.mark.parametrize(
    ("aggregate", "dtype", "silent"),
    [
        ("SUM", "float32", 0.0),
        ("SUM", "float64", -np.inf),
        ("AVERAGE", "float32", 1.5),
        ("MIN", "float64", 0.0),
        ("MAX", "float32", 2.0),
    ],
)
@pytest.mark.parametrize(("trees", "depth", "targets"), [(1, 0, 1), (3, 2, 2), (21, 4, 1), (18, 3, 4)])
def test_trees(cache: Path, trees: int, depth: int, targets: int, aggregate: str, dtype: str, silent: float) -> None:
    """One kernel for any number of rows, whose few are walked in another way."""
    parts, b = forest(trees, depth, targets, 1.0 if targets == 4 else 0.3), GraphBuilder()
    constants = [b.constant(part) for part in parts]
    assert (len(parts[3]) > 0) == (targets == 4)
    attrs: dict[str, Any] = {"targets": targets, "aggregate": aggregate, "silent": silent}
    graph = b.build(b.add("tree_ensemble", b.input("x", (dim("n", 0, 500), 5), dtype), *constants, **attrs))
    module = bn.compile(graph, threads=2, rewrite=False, cache_dir=cache)
    extern = OPERATORS["tree_ensemble"].extern
    assert extern is not None and not module.slow
    for rows in (0, 1, 3, 17, 300):
        table = drawn(dtype, rows, 5)
        assert np.array_equal(module(table), extern(table, *parts, **attrs))


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
        scores = extern(table, *parts, targets=1, aggregate="SUM", silent=0.0)
        for own in (module, again):
            found, positions = own(table)
            assert np.array_equal(positions, np.argsort(scores, 0, kind="stable"))
            assert np.array_equal(found, np.sort(scores, 0))


def test_random_numbers_of_a_seed_are_numpy_s(cache: Path) -> None:
    for dtype, within in (("float32", 1e-7), ("float64", 1e-14)):
        compiled_beside_numpy(cache, "random_uniform", [], shape=(700,), dtype=dtype, seed=3.0, low=-1.0, high=2.0)
        compiled_beside_numpy(cache, "random_normal", [], shape=(9, 77), dtype=dtype, seed=-7.0, within=within)
    scores = RANDOM.standard_normal((3, 5), dtype=np.float32)
    compiled_beside_numpy(cache, "multinomial", [scores], count=90, seed=5.0)
    compiled_beside_numpy(cache, "multinomial", [scores[:0]], count=2, seed=5.0)


def test_random_numbers_without_a_seed_differ(cache: Path) -> None:
    b = GraphBuilder()
    drawn = [b.add("random_normal", shape=(5000,), dtype="float32", stream=stream) for stream in (0, 1)]
    module = bn.compile(b.build(*drawn), rewrite=False, cache_dir=cache)
    found = np.stack([*module(), *module(), *copy.copy(module)()])
    assert len(np.unique(found[:, :2])) == 12 and not module.slow
    assert np.abs(np.corrcoef(found) - np.eye(6)).max() < 0.1
    assert np.abs(found.mean(1)).max() < 0.1 and np.abs(found.std(1) - 1).max() < 0.1


@pytest.mark.parametrize("column_major", [False, True])
def test_max_pool_indices(cache: Path, column_major: bool) -> None:
    attrs = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 1, 1, 0), "dilations": (1, 2), "size": (4, 7)}
    compiled_beside_numpy(cache, "max_pool_indices", [drawn("float32", 2, 3, 9, 8)], column_major=column_major, **attrs)
    line = {"kernel": (3,), "strides": (2,), "pads": (1, 1), "dilations": (1,), "size": (5,)}
    compiled_beside_numpy(cache, "max_pool_indices", [drawn("int32", 2, 3, 9)], column_major=column_major, **line)
    cube = {"kernel": (2, 3, 3), "strides": (1, 2, 3), "pads": (1, 2, 2, 1, 0, 2), "dilations": (1, 2, 3)}
    x = drawn("float64", 1, 2, 4, 7, 9)
    compiled_beside_numpy(cache, "max_pool_indices", [x], column_major=column_major, **cube, size=(5, 3, 4))


@pytest.mark.parametrize("half_pixel", [False, True])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(cache: Path, mode: str, half_pixel: bool) -> None:
    """Regions within and across the edges, one that is turned around, one that is no number, one of no image."""
    rois = np.concatenate([RANDOM.random((20, 2)) * 20 - 3, RANDOM.random((20, 2)) * 30], 1).astype(np.float32)
    rois[:, 2:] += rois[:, :2] - 1
    rois[3], rois[4] = (5, 5, 2, 2), np.nan
    given = [RANDOM.standard_normal((2, 3, 17, 21), dtype=np.float32), rois, RANDOM.integers(-1, 3, 20)]
    attrs = {"size": (3, 4), "mode": mode, "spatial_scale": 0.8, "half_pixel": half_pixel}
    compiled_beside_numpy(cache, "roi_align", given, within=1e-6, **attrs)


def test_a_region_far_larger_than_the_image_reads_the_image(cache: Path) -> None:
    rois = np.array([[-1e9, -1e9, 1e9, 1e9], [0, 0, np.inf, 4]], np.float32)
    given = [np.ones((1, 1, 4, 4), np.float32), rois, np.zeros(2, np.int64)]
    graph, feeds = graph_of("roi_align", given, (), size=(1, 1), spatial_scale=1.0)
    assert np.abs(bn.compile(graph, rewrite=False, cache_dir=cache)(*feeds.values())).max() < 1e-9


@pytest.mark.parametrize("shape", [(3, 6, 5), (1, 1, 0)])
def test_running_products(cache: Path, shape: tuple[int, ...]) -> None:
    x = RANDOM.standard_normal(shape, dtype=np.float32)
    for exclusive, reverse in ((False, False), (True, False), (True, True)):
        compiled_beside_numpy(cache, "cumprod", [x], axis=1, exclusive=exclusive, reverse=reverse, within=1e-6)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("length", slow_except([1, 2, 12, 25, 77, 256], 1, 12, 77))
def test_fourier_transforms(cache: Path, length: int, inverse: bool) -> None:
    """Lines that are as long, cut and filled; real ones in pairs, an odd number of them; halves to and from."""
    for given, parts in ((length, 1), (length, 2), (length + 3, 2), (max(length - 1, 1), 1)):
        x = RANDOM.standard_normal((3, given, 5, parts))
        both = [False] if inverse or parts == 2 else [False, True]
        for onesided in both:
            compiled_beside_numpy(
                cache, "dft", [x], axis=1, length=length, inverse=inverse, onesided=onesided, within=1e-10
            )
    if inverse:
        half = RANDOM.standard_normal((3, length // 2 + 1, 2))
        compiled_beside_numpy(cache, "dft", [half], axis=1, length=length, inverse=True, onesided=True, within=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_positions_of_keys(cache: Path, dtype: str) -> None:
    keys = np.array([-3, 0, 2, 7, 40], dtype)
    x = RANDOM.integers(-4, 9, (7, 90)).astype(dtype)
    compiled_beside_numpy(cache, "find_keys", [x, keys])
    compiled_beside_numpy(cache, "find_keys", [x, keys[:0]])
    if dtype == "float32":
        x[0, :3] = np.nan
        compiled_beside_numpy(cache, "find_keys", [x, keys])
        compiled_beside_numpy(cache, "find_keys", [x, np.append(keys, np.nan).astype(dtype)])


def test_determinants(cache: Path) -> None:
    for matrices in (RANDOM.standard_normal((4, 7, 7)), np.zeros((2, 3, 3)), np.zeros((2, 0, 0))):
        compiled_beside_numpy(cache, "determinant", [matrices], within=1e-9)


def test_coupled_probabilities(cache: Path) -> None:
    compiled_beside_numpy(cache, "coupled_probabilities", [RANDOM.random((40, 5, 5), np.float32)], within=1e-6)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_count_ngrams(cache: Path, mode: str) -> None:
    pool = (2, 3, 5, 1, 1, 2, 3, 3, 4, 1, 2, 3)
    attrs = {"pool": pool, "starts": (0, 3, 9), "indexes": (0, 1, 2, 3, 4, 6, 5), "mode": mode}
    tokens = RANDOM.integers(0, 6, (9, 30))
    weights = tuple(map(float, range(1, 8)))
    compiled_beside_numpy(cache, "count_ngrams", [tokens], lengths=(1, 3), skips=2, weights=weights, **attrs)
    compiled_beside_numpy(cache, "count_ngrams", [tokens[0].astype(np.int32)], lengths=(2, 2), **attrs)


COUNTING = (
    ("nonzero", [drawn("float32", 5, 9)], {}), ("nonzero", [drawn("float64", 3, 0)], {}),
    ("compress", [drawn("float32", 4, 7), np.arange(5) % 2 == 0], {"axis": 1}),
    ("compress", [drawn("int16", 4, 7), np.ones(28, bool)], {}), ("unique", [drawn("float32", 31)], {}),
    ("unique", [drawn("int64", 4, 31)], {"axis": 1, "sorted": False}), ("unique", [drawn("int8", 9, 5)], {"axis": 0}),
    ("non_max_suppression", [
        RANDOM.random((2, 30, 4), np.float32), RANDOM.random((2, 3, 30), np.float32), np.array([9]),
        np.array([0.2], np.float32), np.array([0.3], np.float32),
    ], {"most": 9}),
)  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attrs"), COUNTING)
def test_results_of_an_extent_that_depends_on_values(
    cache: Path, op: str, arrays: list[np.ndarray], attrs: dict[str, Any]
) -> None:
    """They fill the beginnings of the greatest ones, and no byte around these."""
    bound = 2 * 3 * 9 if op == "non_max_suppression" else arrays[0].size
    bound = arrays[0].shape[attrs["axis"]] if "axis" in attrs else bound
    graph, feeds = graph_of(op, arrays, (), count=dim("found", 0, bound), **attrs)
    extern = OPERATORS[op].extern
    assert extern is not None
    expected = extern(*arrays, **OPERATORS[op].complete({**attrs, "count": bound}))
    found = between_pages(bn.compile(graph, threads=2, rewrite=False, cache_dir=cache), [*feeds.values()])
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own.reshape(-1)[: other.size].reshape(other.shape), other)


def test_the_check_runs_the_kernel_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.driver.check import check

    graph, feeds = graph_of("sort", [drawn("float32", 4, 9)], ())
    row = next(row for row in check(graph, feeds, cache_dir=cache) if row.template == "native")
    assert row.ok and row.kernel.startswith("sort_")
