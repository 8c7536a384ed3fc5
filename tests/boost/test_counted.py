"""A least number of rows in leaves: equal to min_child_weight where Hessians are 1, and counted where they are not."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse

from burnish.boost import Dataset, predict, train
from burnish.boost.threads import Workers
from burnish.errors import ParameterError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2000, 5)).astype(np.float32)
X[RANDOM.random(X.shape) < 0.2] = np.nan
Y = np.nan_to_num(X[:, 0] * X[:, 1]) + RANDOM.normal(0, 0.3, 2000)
SPARSE = scipy.sparse.csr_matrix(np.nan_to_num(X))


@pytest.mark.parametrize("table", [X, np.nan_to_num(X), SPARSE], ids=["missing", "dense", "sparse"])
@pytest.mark.parametrize(
    "more", [{}, {"grow_policy": "lossguide", "max_leaves": 20}, {"monotone_constraints": "1,0,0,0,0"}]
)
def test_rows_are_hessians_of_squared_error(table: Any, more: dict[str, Any]) -> None:
    data = Dataset.of(table, label=Y)
    params = {"max_depth": 6, "base_score": 0.0} | more
    rows = train(params | {"min_child_samples": 37, "min_child_weight": 0}, data, 4)
    weight = train(params | {"min_child_weight": 37}, data, 4)
    assert (predict(rows, data) == predict(weight, data)).all() and rows.trees[0].leaves > 5


@pytest.mark.parametrize("objective", ["binary", "gamma"])
@pytest.mark.parametrize("table", [X, SPARSE], ids=["missing", "sparse"])
def test_every_leaf_has_its_rows(objective: str, table: Any) -> None:
    label = (Y > 0).astype(np.float32) if objective == "binary" else np.exp(Y)
    data = Dataset.of(table, label=label, weight=RANDOM.random(2000))
    params = {"objective": objective, "min_data_in_leaf": 50, "min_child_weight": 0, "max_depth": 8}
    model = train(params, data, 5)
    leaf = predict(model, data, output="leaf")
    sizes = [np.unique(column, return_counts=True)[1].min() for column in leaf.T]
    assert min(sizes) >= 50 and min(sizes) < 100
    assert (predict(train(params, data, 5, workers=Workers(3)), data) == predict(model, data)).all()


def test_sampled_rows_alone_count_and_others_are_refused() -> None:
    data = Dataset.of(X, label=Y)
    params = {"max_depth": 6, "subsample": 0.5, "base_score": 0.0}
    rows = train(params | {"min_data_in_leaf": 40, "min_child_weight": 0}, data, 3)
    assert (predict(rows, X) == predict(train(params | {"min_child_weight": 40}, data, 3), X)).all()
    for method in ("exact", "approx"):
        with pytest.raises(ParameterError, match="min_child_weight"):
            train({"min_data_in_leaf": 5, "tree_method": method}, data, 1)
