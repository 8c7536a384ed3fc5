from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.data import Dataset
from burnish.boost.losses.reduction import Reduction
from burnish.boost.objective import least_quantile, objective_of, transform
from burnish.boost.params import Params
from burnish.boost.tree import TreeBuilder
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

ROWS = 700
Array = np.ndarray


def poisson_loss(m: Array, y: Array) -> Array:
    return np.exp(m[0]) - y * m[0]


def softmax_loss(m: Array, y: Array) -> Array:
    return np.log(np.exp(m - m.max(axis=0)).sum(axis=0)) + m.max(axis=0) - m[y.astype(int), np.arange(len(y))]


# For each objective: parameters, labels from uniform numbers, loss (margin (outputs, rows), label) -> (rows,)
LOSSES: dict[str, tuple[dict[str, Any], Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "squared_error": ({}, lambda u: 6 * u - 3, lambda m, y: (m[0] - y) ** 2 / 2),
    "logistic": ({}, lambda u: (u > 0.5).astype(float), lambda m, y: np.logaddexp(0, m[0]) - y * m[0]),
    "poisson": ({}, lambda u: np.floor(5 * u), poisson_loss),
    "softmax": ({"num_class": 4}, lambda u: np.floor(4 * u), softmax_loss),
}


def data(label: Array, weight: Array | None = None) -> Dataset:
    label = np.asarray(label, np.float32)
    return Dataset.of(np.zeros((len(label), 1), np.float32), label=label, weight=weight)


def statistics(
    params: dict[str, Any], dataset: Dataset, margin: Array, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    objective = objective_of(Params.of(params))
    objective.prepare(dataset, Reduction())
    margin = np.ascontiguousarray(margin, np.float32)
    gradient, hessian = np.empty_like(margin), np.empty_like(margin)
    objective.gradient(margin, gradient, hessian, 0, Workers(threads))
    return gradient, hessian


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_the_derivatives_of_the_loss(name: str) -> None:
    more, labels, loss = LOSSES[name]
    random = np.random.default_rng(3)
    label = labels(random.random(ROWS))
    outputs = more.get("num_class", 1)
    margin = random.normal(size=(outputs, ROWS)).astype(np.float32).astype(np.float64) * 2
    gradient, hessian = statistics({"objective": name, "max_delta_step": 0.0} | more, data(label), margin)
    step = 1e-4
    for output in range(outputs):
        shift = np.zeros_like(margin)
        shift[output] = step
        up, here, down = loss(margin + shift, label), loss(margin, label), loss(margin - shift, label)
        np.testing.assert_allclose(gradient[output], (up - down) / (2 * step), rtol=1e-5, atol=2e-6)
        factor = 2 if name == "softmax" else 1  # the bound that XGBoost uses
        np.testing.assert_allclose(hessian[output], factor * (up - 2 * here + down) / step**2, rtol=1e-4, atol=2e-6)


def test_gradients_of_certain_rows_stay_finite_with_a_positive_hessian() -> None:
    margin = np.array([[-1e4, -100.0, 100.0, 1e4]])
    for name in ("logistic", "poisson"):
        gradient, hessian = statistics({"objective": name}, data([0, 1, 0, 1]), margin)
        assert np.isfinite(gradient).all() and np.isfinite(hessian).all() and (hessian > 0).all()
    gradient, hessian = statistics(
        {"objective": "softmax", "num_class": 2}, data([0, 1, 0, 1]), np.vstack([margin, -margin])
    )
    assert np.isfinite(gradient).all() and (hessian > 0).all()


def test_poisson_takes_the_hessian_one_step_ahead() -> None:
    _, hessian = statistics({"objective": "poisson"}, data([1.0]), np.array([[0.3]]))
    np.testing.assert_allclose(hessian[0, 0], np.exp(1.0), rtol=1e-5)


def test_quantile_gradients() -> None:
    params = {"objective": "quantile", "quantile_alpha": 0.25}
    gradient, hessian = statistics(params, data([0, 0, 0]), [[-1.0, 0.0, 1.0]])
    np.testing.assert_allclose(gradient[0], [-0.25, 0.75, 0.75], rtol=1e-6)
    assert (hessian == 1.0).all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("threads", [2, 3])
def test_gradients_are_the_same_bits_for_any_number_of_threads(name: str, threads: int) -> None:
    more, labels, _ = LOSSES[name]
    random, rows = np.random.default_rng(0), 70_001
    dataset = data(labels(random.random(rows)), random.random(rows))
    margin = random.normal(size=(more.get("num_class", 1), rows)) * 3
    alone = statistics({"objective": name} | more, dataset, margin)
    several = statistics({"objective": name} | more, dataset, margin, threads)
    assert all((a == b).all() for a, b in zip(alone, several, strict=True))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(LOSSES)), st.integers(1, 16), st.floats(0, 0.999), st.floats(-9, 9, width=32))
def test_a_row_of_weight_w_counts_exactly_as_w_rows(name: str, weight: int, u: float, margin: float) -> None:
    more, labels, _ = LOSSES[name]
    label = labels(np.array([u]))
    margins = np.linspace(margin, 1.0, more.get("num_class", 1)).reshape(-1, 1)
    once = statistics({"objective": name} | more, data(label), margins)
    heavy = statistics({"objective": name} | more, data(label, np.array([weight])), margins)
    for one, many in zip(once, heavy, strict=True):
        assert (one.astype(np.float64) * weight == many).all()


def test_scale_pos_weight_multiplies_positive_rows() -> None:
    dataset = data([0, 1], np.array([2.0, 3.0]))
    plain, _ = statistics({"objective": "logistic"}, dataset, [[0.5, 0.5]])
    scaled, _ = statistics({"objective": "logistic", "scale_pos_weight": 4}, dataset, [[0.5, 0.5]])
    assert (scaled == plain * np.array([1, 4], np.float32)).all()


@pytest.mark.parametrize("name", [*LOSSES, "quantile"])
def test_the_first_guess_is_the_best_constant(name: str) -> None:
    pinball = {"quantile_alpha": 0.3}, lambda u: 6 * u - 3, lambda m, y: np.maximum(0.3 * (y - m[0]), 0.7 * (m[0] - y))
    more, labels, loss = LOSSES.get(name, pinball)
    random = np.random.default_rng(1)
    label, weight = labels(random.random(ROWS)).astype(np.float32), random.random(ROWS).astype(np.float32)
    objective = objective_of(Params.of({"objective": name} | more))
    objective.prepare(data(label, weight), Reduction())
    guess = objective.base_score().astype(np.float64)

    def total(shift: Array) -> float:
        return float((weight * loss(np.repeat((guess + shift)[:, None], ROWS, axis=1), label)).sum())

    best = total(np.zeros(objective.outputs))
    for output in range(objective.outputs):
        for step in (-0.02, 0.02):
            shift = np.zeros(objective.outputs)
            shift[output] = step
            assert total(shift) > best


def test_base_score_is_a_prediction() -> None:
    cases = ("logistic", 0.75, np.log(3)), ("poisson", 2.0, np.log(2)), ("squared_error", 4, 4)
    for name, prediction, margin in cases:
        objective = objective_of(Params.of({"objective": name, "base_score": prediction}))
        objective.prepare(data([0, 1]), Reduction())
        np.testing.assert_allclose(objective.base_score(), margin, rtol=1e-6)
        np.testing.assert_allclose(objective.prediction(objective.base_score()[None]), prediction, rtol=1e-6)
    for name, wrong in (("logistic", 1.0), ("poisson", 0.0)):
        objective = objective_of(Params.of({"objective": name, "base_score": wrong}))
        objective.prepare(data([0, 1]), Reduction())
        with pytest.raises(ParameterError, match="'base_score': found"):
            objective.base_score()


@pytest.mark.parametrize("name", ["logistic", "poisson", "softmax", "squared_error", "quantile"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_constant_label_gives_a_finite_guess_near_it(name: str, value: float) -> None:
    objective = objective_of(Params.of({"objective": name, "num_class": 2 if name == "softmax" else 1}))
    objective.prepare(data([value] * 5), Reduction())
    margin = objective.base_score()[:, None]
    assert np.isfinite(margin).all()
    assert abs(float(objective.prediction(margin)[-1, 0]) - value) < 1e-5


@pytest.mark.parametrize(
    ("params", "label", "message"),
    [
        ({"objective": "logistic"}, [0, 1, 2], "label of row 2: found 2.0; allowed: 0 or 1"),
        ({"objective": "logistic"}, [0, -1], "label of row 1: found -1.0"),
        ({"objective": "softmax", "num_class": 3}, [0, 3], "label of row 1: found 3.0; allowed: whole"),
        ({"objective": "softmax", "num_class": 3}, [0.5], "label of row 0: found 0.5"),
        ({"objective": "poisson"}, [0, -1], "label of row 1: found -1.0; allowed: counts"),
    ],
)
def test_labels_out_of_range(params: dict[str, Any], label: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        objective_of(Params.of(params)).prepare(data(np.array(label)), Reduction())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_labels_and_weights_must_be_finite_whoever_made_the_data_set(value: float) -> None:
    table, bad = np.zeros((2, 1), np.float32), np.array([1.0, value], np.float32)
    with pytest.raises(DataError, match="label of row 1"):
        objective_of(Params()).prepare(Dataset(table, 2, 1, label=bad), Reduction())
    if not value > 0:
        with pytest.raises(DataError, match="weight of row 1"):
            objective_of(Params()).prepare(Dataset(table, 2, 1, label=np.ones(2, np.float32), weight=bad), Reduction())


def test_missing_or_short_labels() -> None:
    table = np.zeros((2, 1), np.float32)
    with pytest.raises(DataError, match="no labels"):
        objective_of(Params()).prepare(Dataset(table, 2, 1), Reduction())
    with pytest.raises(DataError, match=r"label: found shape \(3,\)"):
        objective_of(Params()).prepare(Dataset(table, 2, 1, label=np.ones(3, np.float32)), Reduction())


def test_labels_that_are_read_only() -> None:
    label = np.ones(4, np.float32)
    label.setflags(write=False)
    gradient, _ = statistics({}, Dataset(np.zeros((4, 1), np.float32), 4, 1, label=label), np.zeros((1, 4)))
    assert (gradient == -1.0).all()


def test_predictions_by_name() -> None:
    margin = np.array([[-1.0, 0.0, 2.0]], np.float32)
    np.testing.assert_allclose(transform("logistic", margin), 1 / (1 + np.exp(-margin)), rtol=1e-6)
    np.testing.assert_allclose(transform("poisson", margin), np.exp(margin), rtol=1e-6)
    assert transform("rank_ndcg", margin) is margin and transform("anything", margin) is margin
    several = transform("softmax", np.vstack([margin, -margin, margin]), Workers(2))
    np.testing.assert_allclose(several.sum(axis=0), 1.0, rtol=1e-6)
    np.testing.assert_allclose(several[0] / several[1], np.exp(2 * margin[0]), rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-9, 9, width=32), st.integers(1, 4)), min_size=1, max_size=30), st.floats(0.01, 0.99)
)
def test_least_quantile_minimises_the_pinball_loss(rows: list[tuple[float, int]], alpha: float) -> None:
    values, weight = np.array([r[0] for r in rows], np.float32), np.array([r[1] for r in rows], np.float32)

    def loss(at: float, of: Array) -> float:
        return float(np.maximum(alpha * (of.astype(float) - at), (1 - alpha) * (at - of.astype(float))).sum())

    repeated = np.repeat(values, weight.astype(int))
    for found, of in ((least_quantile(values, alpha, weight), repeated), (least_quantile(values, alpha), values)):
        assert loss(found, of) <= min(loss(float(v), of) for v in values) + 1e-9


def test_quantile_leaves_become_quantiles_of_their_residuals() -> None:
    random = np.random.default_rng(2)
    label, margin = random.normal(size=300).astype(np.float32), random.normal(size=300).astype(np.float32)
    builder = TreeBuilder()
    builder.split(builder.add(0.0, 300.0), 0, 0.0, True, 1.0, (9.0, 1.0), (9.0, 1.0))
    tree, leaf = builder.tree(), random.integers(1, 3, 300).astype(np.int32)
    hessian = (random.random(300) < 0.7).astype(np.float32)
    params = {"objective": "quantile", "quantile_alpha": 0.8, "eta": 0.5}
    for limit in (0.0, 0.1):
        objective = objective_of(Params.of(params | {"max_delta_step": limit}))
        objective.prepare(data(label), Reduction())
        refitted = objective.refit(tree, leaf, margin, hessian)
        for node in (1, 2):
            rows = (leaf == node) & (hessian > 0)
            step = least_quantile((label - margin)[rows], 0.8)
            expected = 0.5 * (np.clip(step, -limit, limit) if limit else step)
            np.testing.assert_allclose(refitted.value[node], expected, rtol=1e-6)
        assert refitted.value[0] == tree.value[0] and (tree.value[1:] == 9.0).all()


def test_an_objective_of_ones_own_and_its_mistakes() -> None:
    def squared(margin: Array, dataset: Dataset) -> tuple[Array, Array]:
        assert dataset.label is not None
        return margin - dataset.label, np.ones_like(margin)

    margin = np.array([[1.0, 2.0, 5.0]])
    dataset = data([0, 1, 2], np.array([1.0, 2.0, 3.0]))
    for own, built_in in zip(
        statistics({"objective": squared}, dataset, margin), statistics({}, dataset, margin), strict=True
    ):
        np.testing.assert_allclose(own, built_in)
    for wrong, message in (
        (lambda m, d: m, "returned ndarray"),
        (lambda m, d: (m[:2], m), r"gradient has shape \(2,\); allowed: \(3,\)"),
        (lambda m, d: (m, m * np.nan), "Hessian of row 0 is nan"),
    ):
        with pytest.raises(DataError, match=message):
            statistics({"objective": wrong}, dataset, margin)
    margin = np.arange(6).reshape(2, 3)
    several, _ = statistics({"objective": lambda m, d: (m, m), "num_class": 2}, data([0, 1, 1]), margin)
    assert (several == margin).all()
