"""The number that stands for a missing value: a model keeps it, so that tables are predicted as they were learnt."""

import math
import warnings

import numpy as np
import pytest

import burnish
from burnish import boost
from burnish.boost.model import Model, dumps, loads

MARK = -999.0


def marked(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in which a number marks what is missing, the same with NaN, and labels that follow from it."""
    random = np.random.default_rng(seed)
    x = random.random((400, 3)).astype(np.float32)
    x[random.random(x.shape) < 0.3] = MARK
    label = ((x[:, 0] == MARK) ^ (x[:, 1] > 0.5)).astype(np.float32)
    return x, np.where(x == MARK, np.nan, x), label


def trained(missing: float = MARK) -> Model:
    x, _, label = marked()
    return boost.train({"objective": "logistic", "max_depth": 3}, boost.Dataset.of(x, label, missing=missing), 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_what_was_missing_in_training_is_missing_in_predictions(dtype: type) -> None:
    model, (x, nan, _) = trained(), marked(1)
    if dtype == np.int64:
        x, nan = np.where(x == MARK, MARK, 1), np.where(x == MARK, np.nan, np.float32(1))
    expected = boost.predict(model, nan.astype(np.float32))
    assert np.array_equal(boost.predict(model, x.astype(dtype)), expected)
    assert np.array_equal(boost.predict(model, boost.Dataset.of(x, missing=MARK)), expected)
    assert not np.array_equal(boost.predict(trained(math.nan), x.astype(dtype)), expected)


@pytest.mark.parametrize("missing", [MARK, math.inf, math.nan, 0.1])
def test_files_keep_what_is_missing(missing: float) -> None:
    x, _, label = marked()
    x[x == MARK] = missing
    model = boost.train({}, boost.Dataset.of(x, label, missing=missing), 1)
    assert np.array_equal(loads(dumps(model)).missing, missing, equal_nan=True)
    assert ("missing" in dumps(model)) == (not math.isnan(missing))


def test_data_that_hold_the_mark_as_a_number_are_told() -> None:
    model, (x, nan, _) = trained(), marked(1)
    with pytest.warns(UserWarning, match=r"hold -999 as a number.*missing=-999"):
        boost.predict(model, boost.Dataset.of(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        boost.predict(model, boost.Dataset.of(nan))
        boost.predict(model, boost.Dataset.of(x, missing=MARK))


def test_a_compiled_model_says_that_it_takes_nan() -> None:
    with pytest.warns(UserWarning, match="compile: .* -999 where values were missing"):
        burnish.compile(trained())
