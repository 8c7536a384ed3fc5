import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import burnish.boost
from burnish.boost.sklearn import GBTClassifier, GBTRanker, GBTRegressor
from burnish.errors import ParameterError

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(300, 4)).astype(np.float32)
X[RANDOM.random(X.shape) < 0.1] = np.nan
SIGNAL = np.nan_to_num(X[:, 0]) - np.abs(np.nan_to_num(X[:, 1])) + 0.1 * RANDOM.normal(size=300)
CLASSES = np.array(["low", "middle", "high"])[np.digitize(SIGNAL, [-1, 0])]
SMALL: dict[str, Any] = {"n_estimators": 10, "max_depth": 3, "n_jobs": 1}


@parametrize_with_checks([kind(n_estimators=8, n_jobs=1) for kind in (GBTClassifier, GBTRegressor, GBTRanker)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_scikit_learn_is_imported_only_when_asked_for() -> None:
    code = (
        "import sys, burnish.boost as b; b.train; assert 'sklearn' not in sys.modules;"
        "b.GBTClassifier; assert 'sklearn' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(dir(burnish.boost)) >= {"GBTClassifier", "GBTRanker", "GBTRegressor", "train", "predict", "Dataset"}
    with pytest.raises(AttributeError, match="GBTClasifier"):
        burnish.boost.GBTClasifier  # noqa: B018


@pytest.mark.parametrize("classes", [CLASSES, np.digitize(SIGNAL, [-1, 0]) * 10 - 7, SIGNAL > 0])
def test_classes_of_any_type(classes: np.ndarray) -> None:
    model = GBTClassifier(**SMALL).fit(X, classes)
    assert model.predict(X).dtype == classes.dtype and model.score(X, classes) > 0.9
    p = model.predict_proba(X)
    assert p.shape == (300, len(model.classes_)) and np.allclose(p.sum(axis=1), 1, atol=1e-5)
    assert (model.classes_[p.argmax(axis=1)] == model.predict(X)).all()
    margin = model.decision_function(X)
    assert margin.shape == ((300, 3) if len(model.classes_) == 3 else (300,))


def test_evaluation_early_stopping_and_weights() -> None:
    model = GBTClassifier(n_estimators=200, early_stopping_rounds=3, learning_rate=0.5, n_jobs=1)
    model.fit(X[:200], CLASSES[:200], RANDOM.random(200) + 0.5, eval_set=[(X[200:], CLASSES[200:])])
    values = model.evals_result_["valid_0"]["mlogloss"]
    assert model.best_iteration_ == int(np.argmin(values)) and model.n_iter_ == len(values) < 200
    assert model.best_score_ == min(values)
    with pytest.raises(ParameterError, match="eval_set: found class 'other'"):
        model.fit(X, CLASSES, eval_set=[(X[:1], ["other"])])


def test_importances_clones_pipelines_and_grid_searches() -> None:
    model = GBTRegressor(**SMALL, learning_rate=0.5)
    assert clone(model).get_params() == model.get_params()
    model.fit(X, SIGNAL)
    importance = model.feature_importances_
    assert importance.shape == (4,) and importance.sum() == pytest.approx(1, abs=1e-6) and importance[:2].min() > 0.1
    assert model.apply(X).shape == (300, 10)
    search = GridSearchCV(model, {"max_depth": [1, 4], "reg_lambda": [0.1, 1.0]}, cv=3).fit(X, SIGNAL)
    assert search.best_params_["max_depth"] == 4 and search.best_score_ > 0.7
    pipeline = make_pipeline(StandardScaler(), GBTClassifier(**SMALL))
    assert cross_val_score(pipeline, X, CLASSES, cv=3).mean() > 0.75


def test_parameters_reach_training() -> None:
    linear = GBTRegressor(**SMALL, monotone_constraints=(1, 0, 0, 0)).fit(X, -SIGNAL)
    grid = np.zeros((30, 4), np.float32)
    grid[:, 0] = np.linspace(-2, 2, 30)
    assert (np.diff(linear.predict(grid)) >= 0).all()
    high = GBTRegressor(**SMALL, objective="quantile", quantile_alpha=0.9).fit(X, SIGNAL)
    assert 0.8 < (high.predict(X) >= SIGNAL).mean() < 1.0
    assert GBTRegressor(n_estimators=3, extra={"max_cat_to_onehot": 2}).fit(X, SIGNAL).n_iter_ == 3
    with pytest.raises(ParameterError, match="'learning_rate': found -1"):
        GBTRegressor(learning_rate=-1).fit(X, SIGNAL)
    drawn = [GBTRegressor(**SMALL, subsample=0.5, random_state=seed).fit(X, SIGNAL).predict(X) for seed in (1, 1, 2)]
    assert (drawn[0] == drawn[1]).all() and (drawn[0] != drawn[2]).any()


def test_frames_with_categories_and_sparse_tables() -> None:
    import pandas as pandas
    import scipy.sparse as sparse
    kind = RANDOM.choice(["a", "b", "c"], 300)
    frame = pandas.DataFrame({"kind": pandas.Categorical(kind), "x": X[:, 0]})
    target = (kind == "b") * 2.0 + np.nan_to_num(X[:, 0])
    model = GBTRegressor(n_estimators=30, n_jobs=1).fit(frame, target)
    assert model.score(frame, target) > 0.95 and model.feature_names_in_.tolist() == ["kind", "x"]
    shuffled = frame.assign(kind=pandas.Categorical(kind, categories=["c", "b", "a"]))
    assert (model.predict(shuffled) == model.predict(frame)).all()
    table = sparse.random(200, 6, 0.4, "csr", np.float32, np.random.default_rng(1))
    y = np.asarray(table.sum(axis=1)).ravel()
    model = GBTRegressor(n_estimators=60, n_jobs=1).fit(table, y)
    assert model.score(table, y) > 0.8 and (model.predict(table.tocsc()) == model.predict(table)).all()


def test_ranker_orders_queries() -> None:
    grades, sizes = np.digitize(SIGNAL, [-1, 0, 1]), [20] * 15
    model = GBTRanker(**SMALL, eval_metric="ndcg@5").fit(X, grades, group=sizes, eval_set=[(X, grades, sizes)])
    values = model.evals_result_["valid_0"]["ndcg@5"]
    assert values[-1] > max(values[0], 0.85)
    same = GBTRanker(**SMALL).fit(X, grades, qid=np.repeat(np.arange(15), 20))
    assert (same.predict(X) == model.predict(X)).all()
    heavy = GBTRanker(**SMALL).fit(X, grades, group=sizes, query_weight=np.linspace(0.1, 2, 15))
    assert (heavy.predict(X) != same.predict(X)).any()


def test_every_public_name_exists() -> None:
    assert all(getattr(burnish.boost, name) is not None for name in burnish.boost.__all__)
