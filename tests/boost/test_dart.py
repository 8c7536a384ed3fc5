"""Dropped trees, parallel trees and interaction constraints."""

from typing import Any

import numpy as np
import pytest

from burnish.boost import Dataset, Model, predict, train
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 12, (1500, 6)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + RANDOM.normal(0, 3, 1500)).astype(np.float32)
DATA = Dataset.of(X, label=Y)


@pytest.mark.parametrize("more", [{}, {"normalize_type": "forest"}, {"sample_type": "weighted"}])
def test_dart_is_its_definition(more: dict[str, Any]) -> None:
    """Replays the rounds: every new tree fits the gradient without some of the others, whose weights then shrink."""
    params = {"booster": "dart", "one_drop": True, "max_depth": 3, "eta": 0.5} | more
    plain = train({"max_depth": 3, "eta": 0.5}, DATA, 1)
    both = train(params, DATA, 2)  # of one tree, it is the one that is dropped
    rate = 0.5
    old, new = (1 / (1 + rate), 1 / (1 + rate))
    first, second = both.trees
    np.testing.assert_allclose(first.value, plain.trees[0].value * np.float32(old), rtol=1e-6)
    np.testing.assert_allclose(second.value, plain.trees[0].value * np.float32(new), rtol=1e-6)


def test_dart_without_drops_is_gbtree_and_margins_are_predictions(tmp_path: Any) -> None:
    params = {"max_depth": 3, "eval_metric": "rmse"}
    same = train(params | {"booster": "dart"}, DATA, 6)
    assert (predict(same, X) == predict(train(params, DATA, 6), X)).all()
    copy, history = Dataset.of(X.copy(), label=Y), {}
    model = train(
        params | {"booster": "dart", "rate_drop": 0.4, "skip_drop": 0.2}, DATA, 12,
        validation_data={"t": DATA, "c": copy}, history=history,
    )  # fmt: skip
    assert history["t"] == history["c"]
    rest = predict(model, X).astype(np.float64) - Y
    assert history["t"]["rmse"][-1] == pytest.approx(float(np.sqrt(np.mean(rest**2))), rel=1e-6)
    model.save(tmp_path / "m.json")
    assert (predict(Model.load(tmp_path / "m.json"), X) == predict(model, X)).all()
    with pytest.raises(ParameterError, match="dart"):
        train({"booster": "dart", "early_stopping_rounds": 2}, DATA, 2, validation_data={"t": DATA})


def test_parallel_trees_share_the_step() -> None:
    alone = train({"max_depth": 3}, DATA, 3)
    four = train({"max_depth": 3, "num_parallel_tree": 4}, DATA, 3)
    assert four.rounds == 12
    np.testing.assert_allclose(predict(four, X), predict(alone, X), rtol=1e-4)
    forest = {"num_parallel_tree": 20, "subsample": 0.5, "eta": 1.0, "colsample_bynode": 0.7, "max_depth": 5}
    models = [train(forest, DATA, 1, workers=Workers(threads)) for threads in (1, 3)]
    assert (predict(models[0], X) == predict(models[1], X)).all()
    assert len({tree.value.tobytes() for tree in models[0].trees}) == 20
    mean = np.mean([predict(train({**forest, "num_parallel_tree": 1}, DATA, 1), X)], axis=0)
    assert np.mean((predict(models[0], X) - Y) ** 2) < np.mean((mean - Y) ** 2)
    longer = train(forest, DATA, 2)
    continued = train(forest, DATA, 1, continue_from=models[0])
    assert (predict(longer, X) == predict(continued, X)).all()
    stopped = train(forest, DATA, 9, validation_data={"t": DATA}, early_stopping_rounds=2)
    assert stopped.best_iteration is not None and (stopped.best_iteration + 1) % 20 == 0


@pytest.mark.parametrize("method", ["hist", "exact", "approx", "local", "lossguide", "sparse"])
def test_no_path_tests_features_of_different_sets(method: str) -> None:
    params: dict[str, Any] = {"interaction_constraints": [[0, 1], [2, 3, 4]], "max_depth": 5, "tree_method": method}
    data = DATA
    if method == "local":
        params |= {"tree_method": "approx", "proposal": "local"}
    if method == "lossguide":
        params |= {"tree_method": "hist", "grow_policy": "lossguide", "max_leaves": 30}
    if method == "sparse":
        import scipy.sparse

        params["tree_method"], data = "hist", Dataset.of(scipy.sparse.csr_matrix(X), label=Y)
    model = train(params, data, 6)
    pairs = set()

    def walk(tree: Any, node: int, path: frozenset[int]) -> None:
        if tree.left[node] >= 0:
            path = path | {int(tree.feature[node])}
            walk(tree, tree.left[node], path)
            walk(tree, tree.right[node], path)
        else:
            pairs.add(path)

    for tree in model.trees:
        walk(tree, 0, frozenset())
    assert all(len(path) <= 1 or path <= {0, 1} or path <= {2, 3, 4} for path in pairs)
    assert max(len(path) for path in pairs) >= 2


def test_interaction_constraints_by_name_and_as_xgboost() -> None:
    named = Dataset.of(X, label=Y, feature_names=list("abcdef"))
    sets = [["a", "b"], ["c", "d"]]
    model = train({"interaction_constraints": sets, "max_depth": 4}, named, 5)
    numbers = train({"interaction_constraints": "[[0, 1], [2, 3]]", "max_depth": 4}, DATA, 5)
    assert (predict(model, X) == predict(numbers, X)).all()
    with pytest.raises(ParameterError, match=r"interaction_constraints.*'z'"):
        train({"interaction_constraints": [["z"]]}, named, 1)
    with pytest.raises(ParameterError, match="feature 9"):
        train({"interaction_constraints": [[9]]}, DATA, 1)
    import xgboost

    theirs = xgboost.train(
        {"interaction_constraints": "[[0, 1], [2, 3]]", "max_depth": 4, "tree_method": "exact", "nthread": 1},
        xgboost.DMatrix(X, label=Y), 5,
    )  # fmt: skip
    np.testing.assert_allclose(predict(numbers, X), theirs.predict(xgboost.DMatrix(X)), rtol=1e-4)


def test_more_than_256_bins() -> None:
    x = RANDOM.normal(size=(3000, 2)).astype(np.float32)
    data = Dataset.of(x, label=np.sin(9 * x[:, 0]))
    fine = train({"max_bin": 4096, "max_depth": 4}, data, 4)
    exact = train({"tree_method": "exact", "max_depth": 4}, data, 4)
    np.testing.assert_allclose(predict(fine, x), predict(exact, x), atol=1e-5)
