"""The cost model of ROC: features by hand and by a plain loop, fits against other solvers."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import DataError, ParameterError
from burnish.gnn.data.cost import FEATURES, SUMMED, FeatureSums, LayerCostModel, fit, nonnegative_least_squares
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.generators import block_model


def plain(csr: CSR, width: int, rows: int) -> np.ndarray:
    """Features that are sums, of every vertex by their definitions, (V, features)."""
    out, read, last = np.zeros((csr.rows, len(SUMMED))), [], {}
    for v in range(csr.rows):
        near = csr.sources[csr.offsets[v] : csr.offsets[v + 1]].tolist()
        runs = [len(list(run)) for _, run in itertools.groupby(enumerate(near), key=lambda pair: pair[1] - pair[0])]
        cold = 0
        for u in near:
            cold += u not in last or len(read) - last[u] > rows
            last[u] = len(read)
            read.append(u)
        accesses, activations = (sum(-(-run * size // 32) for run in runs) for size in (1, width))
        out[v] = 1, len(near), len(runs), accesses, activations, cold
    return out


def test_the_example_of_section_4_4_1() -> None:
    # v₁ has the neighbours v₃, v₄, v₆, v₈: three runs.
    csr = CSR.from_edges([3, 4, 6, 8], [1, 1, 1, 1], 9)
    x = FeatureSums.of(csr, 48).between([1, 2])[0]
    assert dict(zip(FEATURES[:5], x[:5].tolist(), strict=True)) == {
        "vertices": 1, "neighbours": 4, "runs": 3, "accesses": 3, "activations": 3 + 2 + 2,
    }  # fmt: skip


@pytest.mark.parametrize(("width", "rows"), [(1, 3), (33, 0), (64, 40)])
def test_features_follow_their_definitions(width: int, rows: int) -> None:
    graph = block_model(700, 6000, 3, seed=1)
    sums = FeatureSums.of(graph.csr, width, cached=rows * 4 * width)
    np.testing.assert_array_equal(np.diff(sums.sums, axis=0), plain(graph.csr, width, rows))
    np.testing.assert_array_equal(sums.between([3, 90, 90])[0, :-1], plain(graph.csr, width, rows)[3:90].sum(axis=0))
    assert sums.between([90, 90]).tolist() == [[0.0] * len(FEATURES)]


def read_by(csr: CSR, begin: int, end: int) -> int:
    """Rows that a range reads, by its definition."""
    return len({*range(begin, end), *csr.sources[csr.offsets[begin] : csr.offsets[end]].tolist()})


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_that_ranges_read_are_counted_once(parts: int) -> None:
    """Exactly between blocks, also where the graph comes in parts; elsewhere nearly, and more for more vertices."""
    graph = block_model(1500, 9000, 5, seed=2, densities=[1, 2, 4, 8, 16], shuffle=False)
    ends = [1500 * part // parts for part in range(parts + 1)]
    sums = FeatureSums.of_parts((graph.csr.slice(*pair) for pair in itertools.pairwise(ends)), 1500, 8)
    assert sums.block == 6
    for begin, end in ((0, 1500), (0, 6), (600, 606), (120, 906), (1494, 1500), (0, 1494)):
        assert sums.rows(begin, end) == read_by(graph.csr, begin, end)
    for begin, end in ((3, 1497), (100, 400), (7, 700), (1001, 1499)):
        assert sums.rows(begin, end) == pytest.approx(read_by(graph.csr, begin, end), rel=0.03)
    found = [sums.rows(10, end) for end in range(10, 1500)]
    assert np.diff(found).min() >= -1e-9
    assert sums.between([0, 600, 906])[:, -1].tolist() == [sums.rows(0, 600), sums.rows(600, 906)]


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 30))
def test_least_squares_without_negative_weights_are_optimal(seed: int, n: int, points: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.random((points, n)), rng.standard_normal(points)
    w = nonnegative_least_squares(a, b)
    slope = a.T @ (b - a @ w)
    # The conditions of Karush, Kuhn and Tucker: no weight below 0, no way down along one at 0, flat along the others.
    assert (w >= 0).all()
    assert slope.max() <= 1e-6
    assert np.abs(slope[w > 1e-9]).max(initial=0) <= 1e-6


def test_least_squares_agree_with_scipy() -> None:
    from scipy import optimize

    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.standard_normal((20, 6)), rng.standard_normal(20)
        np.testing.assert_allclose(nonnegative_least_squares(a, b), optimize.nnls(a, b)[0], atol=1e-8)


def test_columns_that_say_the_same_are_no_fault() -> None:
    x = np.array([[1.0, 2, 4, 0], [2, 3, 6, 0], [4, 1, 2, 0]])
    w = fit(x, x @ [1, 2, 0, 0])
    np.testing.assert_allclose(x @ w, x @ [1, 2, 0, 0])
    assert (w >= 0).all()


def test_residuals_are_relative() -> None:
    # Two small ranges at 1 s a unit, a thousand times larger one at 3 s: absolute residuals would give 3.
    x = np.array([[1.0], [1], [1000]])
    assert 1 < fit(x, np.array([1.0, 1, 3000]))[0] < 1.5


def test_weights_of_a_linear_cost_are_found() -> None:
    graph = block_model(3000, 40_000, 6, seed=2, densities=[1, 2, 4, 8, 16, 32], shuffle=False)
    sums = FeatureSums.of(graph.csr, 64)
    true = np.array([3e-6, 2e-7, 0, 0, 1e-8, 0, 5e-7])
    model = LayerCostModel()
    for cuts in ([0, 700, 1500, 3000], [0, 100, 2000, 2000, 3000], [0, 300, 600, 900, 1200, 3000]):
        x = sums.between(cuts)
        model = model.learned(x, np.where(x[:, 0] > 0, x @ true, 7.0))
    held_out = sums.between([50, 500, 1100, 2700])
    np.testing.assert_allclose(model.predict(held_out), held_out @ true, rtol=1e-4)


def test_models_become_json_and_models_again() -> None:
    x = np.random.default_rng(1).random((9, len(FEATURES))) + 0.1
    model = LayerCostModel(("vertices", "neighbours")).learned(x, x[:, 0] + 2 * x[:, 1])
    again = LayerCostModel.from_json(json.loads(json.dumps(model.to_json())))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    np.testing.assert_array_equal(again.learned(x, x[:, 0]).weights, model.learned(x, x[:, 0]).weights)
    assert again.full_weights()[2:].tolist() == [0] * 5
    assert LayerCostModel.from_json(LayerCostModel().to_json()).weights is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "cannot be read: KeyError"),
        ({"names": ["degree"]}, "found features degree; allowed: vertices, "),
        ({"names": ["vertices"], "weights": [-1.0], "x": [], "seconds": []}, "other shapes or signs"),
        ({"names": ["vertices"], "weights": [1.0], "x": [[1.0]], "seconds": [1.0]}, "other shapes or signs"),
        ({"names": ["vertices"], "weights": ["a"], "x": [[1.0]], "seconds": [1.0]}, "cannot be read"),
    ],
)
def test_wrong_json_is_refused(wrong, message: str) -> None:
    with pytest.raises(DataError, match=message):
        LayerCostModel.from_json(wrong)


def test_wrong_measurements_are_refused() -> None:
    x = np.ones((2, len(FEATURES)))
    for seconds, message in (([1.0], r"\(1,\) times of 2"), ([1, 0], "found times 0.0"), ([1, np.nan], "found times")):
        with pytest.raises(DataError, match=message):
            LayerCostModel().learned(x, seconds)
    with pytest.raises(ParameterError, match="nothing was measured"):
        LayerCostModel().predict(x)
    with pytest.raises(ParameterError, match="width 0"):
        FeatureSums.of(CSR.from_edges([0], [1], 2), 0)
