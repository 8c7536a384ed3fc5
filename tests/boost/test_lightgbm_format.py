from pathlib import Path

import lightgbm
import numpy as np
import pytest

from burnish.boost.formats.lightgbm_format import loads_lightgbm
from burnish.boost.model import Model
from burnish.boost.prediction import predict
from burnish.boost.shap import contributions
from burnish.errors import DataError

ROWS = 400
OBJECTIVES = (
    "regression", "regression_l1", "huber", "poisson", "quantile", "mape", "gamma", "tweedie", "binary", "multiclass",
    "multiclassova", "cross_entropy", "cross_entropy_lambda", "lambdarank", "rank_xendcg",
)  # fmt: skip


def table(categorical: bool) -> np.ndarray:
    """Numbers with zeros and missing values; the last column holds categories if asked for."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = 0.0
    x[rng.random(x.shape) < 0.15] = np.nan
    if categorical:
        x[:, 3] = np.where(rng.random(ROWS) < 0.1, np.nan, rng.integers(0, 40, ROWS))
    return x


def trained(objective: str, x: np.ndarray, categorical: bool = False, **more: object) -> "lightgbm.Booster":
    noise = np.random.default_rng(1).normal(size=ROWS) * 0.2
    score = np.nan_to_num(x[:, 0]) - np.nan_to_num(x[:, 1]) ** 2 + np.nan_to_num(x[:, 3]) % 3 + noise
    label = np.exp(score / 4) if objective in ("gamma", "tweedie", "mape") else score
    if objective in ("binary", "cross_entropy", "cross_entropy_lambda"):
        label = score > 0.5
    elif objective in ("multiclass", "multiclassova", "lambdarank", "rank_xendcg", "poisson"):
        label = np.digitize(score, [-0.5, 1.0])
    params = {"objective": objective, "verbose": -1, "num_leaves": 9, "min_data_in_leaf": 5, "num_threads": 1}
    params |= {"num_class": 3} if objective.startswith("multi") else {}
    params |= {"min_data_per_group": 5, "cat_smooth": 1} | more
    group = [20] * (ROWS // 20) if "rank" in objective else None
    columns = [3] if categorical else "auto"
    data = lightgbm.Dataset(x.astype(np.float64), label, group=group, categorical_feature=columns)
    return lightgbm.train(params, data, 5)


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objectives_predict_as_lightgbm(objective: str, categorical: bool, tmp_path: Path) -> None:
    x = table(categorical)
    booster = trained(objective, x, categorical)
    booster.save_model(tmp_path / "model.txt")
    model = Model.load(tmp_path / "model.txt")
    assert any(len(tree.category) for tree in model.trees) == categorical
    np.testing.assert_allclose(predict(model, x), booster.predict(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "more",
    [
        {"zero_as_missing": True}, {"use_missing": False}, {"boosting": "dart"}, {"sigmoid": 1.7},
        {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
        {"extra_trees": True, "num_leaves": 50, "min_data_in_leaf": 1},
    ],
)  # fmt: skip
@pytest.mark.parametrize("objective", ["binary", "multiclassova"])
def test_missing_values_and_boosting_modes(more: dict, objective: str) -> None:
    x = table(False)
    booster = trained(objective, x, **more)
    model = loads_lightgbm(booster.model_to_string())
    np.testing.assert_allclose(predict(model, x), booster.predict(x), rtol=1e-6, atol=1e-6)


def test_labels_trained_by_their_roots() -> None:
    x = table(False)
    booster = trained("regression", x, reg_sqrt=True)
    found = predict(loads_lightgbm(booster.model_to_string()), x)
    np.testing.assert_allclose(found, booster.predict(x), rtol=1e-6, atol=1e-6)


def test_frames_with_categories() -> None:
    import pandas

    x = table(True)
    frame = pandas.DataFrame(x.astype(np.float64), columns=list("abcd"))
    frame["d"] = pandas.Categorical([None if np.isnan(value) else f"k{value:.0f}" for value in x[:, 3]])
    data = lightgbm.Dataset(frame, np.nan_to_num(x[:, 3]) % 5)
    booster = lightgbm.train({"verbose": -1, "min_data_per_group": 5, "num_threads": 1}, data, 5)
    model = loads_lightgbm(booster.model_to_string())
    assert model.feature_names == ("a", "b", "c", "d")
    assert model.categories[3] is not None and "k7" in model.categories[3]
    np.testing.assert_allclose(predict(model, frame), booster.predict(frame), rtol=1e-6, atol=1e-6)
    other = frame.assign(d=pandas.Categorical(["never seen"] * ROWS))
    np.testing.assert_allclose(predict(model, other), booster.predict(other), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("categorical", [False, True])
def test_contributions_are_lightgbms(categorical: bool) -> None:
    x = table(categorical)
    booster = trained("binary", x, categorical)
    found = contributions(loads_lightgbm(booster.model_to_string()), x)[0]
    np.testing.assert_allclose(found, booster.predict(x, pred_contrib=True), atol=1e-5)


def test_linear_leaves_and_unknown_objectives_are_refused_by_name(tmp_path: Path) -> None:
    text = trained("regression", table(False)).model_to_string()
    with pytest.raises(DataError, match="linear_tree"):
        loads_lightgbm(text.replace("is_linear=0", "is_linear=1", 1))
    (tmp_path / "m.txt").write_text(text.replace("objective=regression", "objective=new_one", 1))
    with pytest.raises(DataError, match=r"m\.txt.*new_one"):
        Model.load(tmp_path / "m.txt")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_feature_idx=3", "max_feature_idx=2147483646", "2147483647 features"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=2147483647", "num_tree_per_iteration"),
        ("num_leaves=9", "num_leaves=2147483647", "num_leaves"),
        ("\nend of trees", "\nend of", "truncated"),
        ("left_child=", "left_child=0 ", "left_child has 9"),
        ("split_feature=", "split_feature=9", "feature"),
        ("threshold=", "threshold=nan", "wrong form|threshold"),
        ("leaf_value=", "leaf_value=1 ", "leaf_value"),
    ],
)
def test_damaged_files(old: str, new: str, message: str) -> None:
    text = trained("regression", table(False)).model_to_string()
    assert old in text, text
    with pytest.raises(DataError, match=message):
        loads_lightgbm(text.replace(old, new, 1))


def test_children_that_are_no_tree() -> None:
    text = trained("regression", table(False)).model_to_string()
    line = next(line for line in text.splitlines() if line.startswith("left_child="))
    words = line.removeprefix("left_child=").split()
    for place in range(len(words)):
        for child in ("0", "7", "-1", "99"):
            if words[place] != child:
                changed = "left_child=" + " ".join([*words[:place], child, *words[place + 1 :]])
                with pytest.raises(DataError, match="no tree"):
                    loads_lightgbm(text.replace(line, changed, 1))
