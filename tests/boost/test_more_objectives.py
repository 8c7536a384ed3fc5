"""Objectives of losses.regression and losses.survival: numeric differentiation, threads, and XGBoost's own models."""

import json
from typing import Any

import numpy as np
import pytest

from burnish.boost import Dataset, predict, train
from burnish.boost.losses.reduction import Reduction
from burnish.boost.losses.survival import failure_losses
from burnish.boost.objective import objective_of
from burnish.boost.params import Params
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

ROWS = 400
Array = np.ndarray


def plain_cox(m: Array, y: Array) -> float:
    """Breslow's negative log partial likelihood, by its definition."""
    return sum(np.log(np.exp(m[np.abs(y) >= y[i]]).sum()) - m[i] for i in range(len(y)) if y[i] > 0)


def tweedie(m: Array, y: Array) -> Array:
    return -y * np.exp(-0.3 * m) / -0.3 + np.exp(0.7 * m) / 0.7


LOSSES: dict[str, tuple[dict[str, Any], Any]] = {
    "reg:gamma": ({}, lambda m, y: m + y * np.exp(-m)),
    "reg:tweedie": ({"tweedie_variance_power": 1.3}, tweedie),
    "reg:pseudohubererror": ({"huber_slope": 0.7}, lambda m, y: 0.49 * (np.sqrt(1 + ((m - y) / 0.7) ** 2) - 1)),
    "huber": (
        {"huber_slope": 0.7},
        lambda m, y: np.where(abs(m - y) < 0.7, (m - y) ** 2 / 2, 0.7 * (abs(m - y) - 0.35)),
    ),
    "reg:absoluteerror": ({}, lambda m, y: np.abs(m - y)),
}


def statistics(params: dict[str, Any], dataset: Dataset, margin: Array, threads: int = 1) -> tuple[Array, Array]:
    objective = objective_of(Params.of(params))
    objective.prepare(dataset, Reduction())
    margin = np.ascontiguousarray(margin, np.float32).reshape(1, -1)
    gradient, hessian = np.empty_like(margin), np.empty_like(margin)
    objective.gradient(margin, gradient, hessian, 0, Workers(threads))
    return gradient[0], hessian[0]


def rows(rows: int = ROWS, **given: Any) -> Dataset:
    return Dataset.of(np.zeros((rows, 1), np.float32), **given)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_the_derivatives_of_the_loss(name: str) -> None:
    more, loss = LOSSES[name]
    random = np.random.default_rng(3)
    label = (random.gamma(2, 1, ROWS) + 0.01).astype(np.float32)
    margin = random.normal(size=ROWS).astype(np.float32).astype(np.float64)
    gradient, hessian = statistics({"objective": name} | more, rows(label=label), margin)
    step, y = 1e-5, label.astype(np.float64)
    smooth = np.abs(np.abs(margin - y) - 0.7) > 1e-3
    up, here, down = loss(margin + step, y), loss(margin, y), loss(margin - step, y)
    np.testing.assert_allclose(gradient[smooth], ((up - down) / (2 * step))[smooth], rtol=1e-5, atol=1e-5)
    if name in ("huber", "reg:absoluteerror"):  # 1 as in LightGBM and XGBoost
        assert (hessian == 1).all()
    else:
        step = 1e-3
        bend = (loss(margin + step, y) - 2 * here + loss(margin - step, y)) / step**2
        np.testing.assert_allclose(hessian, bend, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ties", [False, True])
def test_cox_gradients_are_those_of_the_partial_likelihood(ties: bool) -> None:
    random = np.random.default_rng(1)
    count = 30
    time = random.integers(1, 8, count) if ties else random.permutation(count) + 1.0
    label = np.where(random.random(count) < 0.3, -time, time).astype(np.float32)
    margin = random.normal(size=count).astype(np.float32).astype(np.float64)
    gradient, hessian = statistics({"objective": "survival:cox"}, rows(count, label=label), margin)
    for row in range(count):
        shift = np.zeros(count)
        shift[row] = 1e-4
        up, here, down = plain_cox(margin + shift, label), plain_cox(margin, label), plain_cox(margin - shift, label)
        assert gradient[row] == pytest.approx((up - down) / 2e-4, rel=1e-4, abs=1e-5)
        assert hessian[row] == pytest.approx((up - 2 * here + down) / 1e-8, rel=1e-3, abs=1e-5)


def bounds(random: Any, count: int) -> tuple[Array, Array]:
    low = random.gamma(2, 1, count).astype(np.float32) + np.float32(0.1)
    high, kind = low.copy(), random.integers(0, 4, count)
    high[kind == 1] = np.inf
    low[kind == 2] = 0
    high[kind == 3] *= np.float32(1.5)
    return low, high


@pytest.mark.parametrize("distribution", ["normal", "logistic", "extreme"])
def test_accelerated_failure_gradients_are_the_derivatives_of_the_loss(distribution: str) -> None:
    random = np.random.default_rng(2)
    low, high = bounds(random, ROWS)
    both = np.stack([low, high], axis=1)
    margin = random.normal(0, 0.7, ROWS).astype(np.float32)
    params = {"objective": "aft", "aft_loss_distribution": distribution, "aft_loss_distribution_scale": 0.8}
    gradient, hessian = statistics(params, rows(label_lower_bound=low, label_upper_bound=high), margin)
    step = np.float32(2**-7)
    exact = margin.astype(np.float64)
    up, here, down = (failure_losses(margin + s, both, distribution, 0.8) for s in (step, np.float32(0), -step))
    wide = ((margin + step).astype(np.float64) - exact + exact - (margin - step).astype(np.float64)) / 2
    inside = np.maximum(up, down) < 27  # beyond, the loss is that of a likelihood of 1e-12
    slope, bend = (up - down) / (2 * wide), (up - 2 * here + down) / wide**2
    np.testing.assert_allclose(gradient[inside], np.clip(slope, -15, 15)[inside], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(hessian[inside], np.clip(bend, 1e-16, 15)[inside], rtol=2e-2, atol=1e-2)
    far = statistics(params, rows(label_lower_bound=low, label_upper_bound=high), np.linspace(-80, 80, ROWS))
    assert all(np.isfinite(values).all() for values in far) and (far[1] > 0).all()


def grid() -> tuple[Array, Array, Array]:
    random = np.random.default_rng(5)
    x = random.integers(0, 8, (2000, 4)).astype(np.float32)
    y = (np.exp(0.2 * x[:, 0] - 0.1 * x[:, 1]) * random.gamma(2, 0.5, 2000)).astype(np.float32) + np.float32(0.01)
    return x, y, (random.random(2000) + 0.1).astype(np.float32)


AS_XGBOOST: list[tuple[str, dict[str, Any]]] = [
    ("reg:gamma", {}),
    ("reg:tweedie", {"tweedie_variance_power": 1.3}),
    ("reg:pseudohubererror", {"huber_slope": 0.7}),
    ("survival:cox", {}),
    *[
        ("survival:aft", {"aft_loss_distribution": kind, "aft_loss_distribution_scale": 0.8})
        for kind in ("normal", "logistic", "extreme")
    ],
]


@pytest.mark.parametrize(("name", "more"), AS_XGBOOST)
@pytest.mark.parametrize("weighted", [False, True])
def test_models_are_those_of_xgboost(name: str, more: dict[str, Any], weighted: bool) -> None:
    import xgboost

    x, y, weight = grid()
    matrix, given = xgboost.DMatrix(x, weight=weight if weighted else None), {"label": y}
    if name == "survival:aft":
        low, high = bounds(np.random.default_rng(4), len(x))
        matrix.set_float_info("label_lower_bound", low)
        matrix.set_float_info("label_upper_bound", high)
        given = {"label_lower_bound": low, "label_upper_bound": high}
    else:
        if name == "survival:cox":
            given["label"] = np.where(y > 1, y, -y)
        matrix.set_label(given["label"])
    params = {"objective": name, "max_depth": 3, "eta": 0.3, "nthread": 1} | more
    theirs = xgboost.train(params, matrix, 8)
    ours = train(params, Dataset.of(x, weight=weight if weighted else None, **given), 8)
    want = theirs.predict(matrix, output_margin=True)
    np.testing.assert_allclose(predict(ours, x, output="margin"), want, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(predict(ours, x), theirs.predict(matrix), rtol=3e-3, atol=3e-3)
    saved = json.loads(theirs.save_config())["learner"]["learner_model_param"]["base_score"]
    base = np.log(json.loads(saved)[0]) if name != "reg:pseudohubererror" else json.loads(saved)[0]
    assert float(ours.base_score[0]) == pytest.approx(base, abs=1e-5)


def test_leaves_of_absolute_error_are_medians_of_residuals() -> None:
    x, y, _ = grid()
    model = train({"objective": "mae", "max_depth": 2, "eta": 1.0, "max_bin": 16}, Dataset.of(x, label=y), 1)
    leaf = predict(model, x, output="leaf")[:, 0]
    for node in np.unique(leaf):
        rows = leaf == node
        ordered = np.sort(y[rows])
        assert predict(model, x)[rows][0] == pytest.approx(float(ordered[(len(ordered) + 1) // 2 - 1]), rel=1e-5)


def test_several_quantiles_are_the_models_of_each() -> None:
    x, y, _ = grid()
    data, params = Dataset.of(x, label=y), {"objective": "quantile", "max_depth": 3}
    several = train(params | {"quantile_alpha": [0.1, 0.5, 0.9]}, data, 5, validation_data={"t": data})
    for output, alpha in enumerate((0.1, 0.5, 0.9)):
        alone = train(params | {"quantile_alpha": alpha}, data, 5)
        assert (predict(several, x)[:, output] == predict(alone, x)).all()


@pytest.mark.parametrize("name", ["mae", "reg:gamma", "reg:tweedie", "huber", "survival:cox", "survival:aft"])
def test_the_same_bits_for_any_number_of_threads(name: str) -> None:
    random = np.random.default_rng(0)
    label = random.gamma(2, 1, 40_001).astype(np.float32) + np.float32(0.01)
    margin = random.normal(size=40_001)
    alone = statistics({"objective": name}, rows(40_001, label=label), margin)
    several = statistics({"objective": name}, rows(40_001, label=label), margin, 3)
    assert all((a == b).all() for a, b in zip(alone, several, strict=True))


def test_refusals() -> None:
    for name, label in (("reg:gamma", [0.0]), ("reg:tweedie", [-1.0])):
        with pytest.raises(DataError, match="label of row 0"):
            train({"objective": name}, rows(1, label=label), 1)
    with pytest.raises(DataError, match="bounds"):
        train({"objective": "survival:aft"}, rows(1, label_lower_bound=[2.0], label_upper_bound=[1.0]), 1)
    with pytest.raises(DataError, match="label_upper_bound"):
        rows(1, label_lower_bound=[2.0])
    with pytest.raises(ParameterError, match="tweedie_variance_power"):
        Params.of({"tweedie_variance_power": 2.0})
    assert Params.of({"objective": "huber", "alpha": 0.9}).huber_slope == 0.9  # as LightGBM calls it
    with pytest.raises(ParameterError, match="dart"):
        Params.of({"rate_drop": 0.1})
