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
from burnish.errors import DataError, ParameterError

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(300, 4)).astype(np.float32)
X[RANDOM.random(X.shape) < 0.1] = np.nan
SIGNAL = np.nan_to_num(X[:, 0]) - np.abs(np.nan_to_num(X[:, 1])) + 0.1 * RANDOM.normal(size=300)
CLASSES = np.array(["low", "middle", "high"])[np.digitize(SIGNAL, [-1, 0])]
SMALL: dict[str, Any] = {"n_estimators": 10, "max_depth": 3, "n_jobs": 1}


@parametrize_with_checks([kind(n_estimators=8, n_jobs=1) for kind in (GBTClassifier, GBTRegressor, GBTRanker)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
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


def cross_entropy(margin: np.ndarray, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    p = 1 / (1 + np.exp(-margin))
    return p - dataset.label, p * (1 - p)


def test_classes_by_a_function_as_objective() -> None:
    y = SIGNAL > 0
    known = GBTClassifier(**SMALL, base_score=0.5).fit(X, y)
    own = GBTClassifier(**SMALL, objective=cross_entropy).fit(X, y)
    assert np.allclose(own.decision_function(X), known.decision_function(X), atol=1e-4)
    assert ((own.decision_function(X) > 0) != (own.decision_function(X) > 0.5)).any()
    assert np.array_equal(own.predict(X), own.decision_function(X) > 0)
    with pytest.raises(ParameterError, match=r"predict_proba: the objective is a function.*decision_function"):
        own.predict_proba(X)
    assert GridSearchCV(own, {"max_depth": [2]}, cv=2, scoring="roc_auc").fit(X, y).best_score_ > 0.8

    def with_link(margin: np.ndarray, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
        return cross_entropy(margin, dataset)

    with_link.prediction = lambda margin: 1 / (1 + np.exp(-margin))  # type: ignore[attr-defined]
    linked = GBTClassifier(**SMALL, objective=with_link).fit(X, y)
    assert np.allclose(linked.predict_proba(X), known.predict_proba(X), atol=1e-5)


def test_objectives_of_classes_by_name() -> None:
    two = GBTClassifier(**SMALL, objective="multi:softprob").fit(X, SIGNAL > 0)
    assert two.predict_proba(X).shape == (300, 2) and two.score(X, SIGNAL > 0) > 0.9
    assert two.decision_function(X).shape == (300, 2)
    with pytest.raises(ParameterError, match="objective: found 'binary:logistic' with 3 classes; allowed: None"):
        GBTClassifier(objective="binary:logistic").fit(X, CLASSES)
    for objective in ("reg:squarederror", "poisson", "rank:ndcg"):
        with pytest.raises(ParameterError, match="allowed of classes: None, 'logistic', 'softmax' or a function"):
            GBTClassifier(objective=objective).fit(X, SIGNAL > 0)
    with pytest.raises(ParameterError, match="num_class: found 7; allowed: 3, the classes of y"):
        GBTClassifier(extra={"num_class": 7}).fit(X, CLASSES)


def test_early_stopping_without_an_evaluation_set_and_after_another_fit() -> None:
    model = GBTRegressor(n_estimators=60, learning_rate=1.0, early_stopping_rounds=2, n_jobs=1)
    model.fit(X[:150], SIGNAL[:150], eval_set=[(X[150:], SIGNAL[150:])])
    assert model.best_iteration_ < model.n_iter_ - 1
    for evaluated in ((), []):
        with pytest.raises(ParameterError, match="early_stopping_rounds: found 2 without eval_set"):
            model.fit(X, SIGNAL, eval_set=evaluated)
    model.set_params(early_stopping_rounds=None, n_estimators=3).fit(X, SIGNAL)
    assert model.n_iter_ == 3 and not hasattr(model, "best_iteration_") and not hasattr(model, "best_score_")


def test_what_would_be_ignored_is_refused() -> None:
    with pytest.raises(ParameterError, match="'scale_pos_weight': found 2"):
        GBTClassifier(scale_pos_weight=2).fit(X, CLASSES)
    with pytest.raises(ParameterError, match="'quantile_alpha': found 0"):
        GBTRegressor(quantile_alpha=0.9).fit(X, SIGNAL)
    with pytest.raises(ParameterError, match="extra: found max_depth=4; allowed: 3"):
        GBTRegressor(max_depth=3, extra={"max_depth": 4}).fit(X, SIGNAL)
    for wrong in ((X, SIGNAL), [X], [(X,)]):
        with pytest.raises(ParameterError, match=r"eval_set: .*allowed: a list of pairs"):
            GBTRegressor(n_estimators=1).fit(X, SIGNAL, eval_set=wrong)


def test_evaluation_sets_of_rankers_have_queries() -> None:
    grades, sizes, ids = np.digitize(SIGNAL, [-1, 0, 1]), [20] * 15, np.repeat(np.arange(15), 20)
    ranker = GBTRanker(**SMALL, eval_metric="ndcg@5")
    expected = ranker.fit(X, grades, qid=ids, eval_set=[(X, grades, sizes)]).evals_result_["valid_0"]["ndcg@5"]
    for more in ({"eval_group": [sizes]}, {"eval_qid": [ids]}):
        found = ranker.fit(X, grades, qid=ids, eval_set=[(X, grades)], **more).evals_result_  # type: ignore[arg-type]
        assert found["valid_0"]["ndcg@5"] == expected
    with pytest.raises(ParameterError, match=r"eval_set: found entry 0 without queries; .*eval_qid"):
        ranker.fit(X, grades, qid=ids, eval_set=[(X, grades)])
    with pytest.raises(ParameterError, match="eval_qid: found 2 entries; allowed: 1"):
        ranker.fit(X, grades, qid=ids, eval_set=[(X, grades)], eval_qid=[ids, ids])


def test_weights_reach_training_through_pipelines() -> None:
    weight = RANDOM.random(300) + 0.1
    plain = np.nan_to_num(X)
    piped = make_pipeline(StandardScaler(), GBTRegressor(**SMALL))
    piped.fit(plain, SIGNAL, gbtregressor__sample_weight=weight)
    scaled = StandardScaler().fit_transform(plain)
    assert np.array_equal(piped.predict(plain), GBTRegressor(**SMALL).fit(scaled, SIGNAL, weight).predict(scaled))
    assert not np.array_equal(piped.predict(plain), GBTRegressor(**SMALL).fit(scaled, SIGNAL).predict(scaled))


def test_keywords_of_other_libraries() -> None:
    label = (SIGNAL > 0).astype(int)
    plain = GBTClassifier(**SMALL, reg_alpha=0.5, min_child_weight=2.0).fit(X, label)
    typed = GBTClassifier(**SMALL, alpha=0.5, min_child_weight=2.0, num_class=2, verbose=0).fit(X, label)
    assert np.array_equal(typed.predict_proba(X), plain.predict_proba(X))
    again = clone(typed)
    assert again.get_params() == typed.get_params() and again.extra == {"alpha": 0.5, "num_class": 2, "verbose": 0}
    assert GBTRegressor(num_iterations=7).get_params()["n_estimators"] == 7
    search = GridSearchCV(GBTRegressor(**SMALL), {"lambda_l2": [0.1, 1e6]}, cv=2).fit(X, SIGNAL)
    assert search.best_params_ == {"lambda_l2": 0.1}
    for given, message in (
        ({"max_dept": 3}, "did you mean 'max_depth'"),
        ({"n_iter_no_change": 3}, "early_stopping_rounds: found 3 without eval_set"),
        ({"num_class": 3}, "num_class"),
        ({"device": "cuda"}, "nearest there is: 'cpu'"),
        ({"extra": [1]}, "extra: found"),
    ):
        with pytest.raises(ParameterError, match=message):
            GBTClassifier(**given).fit(X, label)  # type: ignore[arg-type]


def test_functions_of_true_and_predicted_values() -> None:
    def weighed(y_true: Any, y_pred: Any, weight: Any) -> Any:
        return weight * (y_pred - y_true), weight

    def squares(labels: Any, preds: Any) -> Any:
        return preds - labels, np.ones_like(labels)

    weight = RANDOM.random(300) + 0.1
    found = GBTRegressor(**SMALL, objective=squares, base_score=0.0).fit(X, SIGNAL, sample_weight=weight).predict(X)
    expected = GBTRegressor(**SMALL, base_score=0.0).fit(X, SIGNAL, sample_weight=weight).predict(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    GBTRegressor(**SMALL, objective=weighed).fit(X, SIGNAL, sample_weight=weight)


def test_weights_and_margins_of_a_rankers_evaluation_sets() -> None:
    grades, sizes, weight = np.digitize(SIGNAL, [-1, 0, 1]), [20] * 15, np.linspace(0.1, 2.0, 15)
    margin, sets = RANDOM.normal(size=300), [(X, grades, [20] * 15)]
    ranker = GBTRanker(**SMALL, eval_metric="ndcg@5")
    common = {"group": sizes, "eval_set": sets}
    plain = ranker.fit(X, grades, **common).evals_result_["valid_0"]["ndcg@5"]  # type: ignore[arg-type]
    for name in ("sample_weight_eval_set", "eval_sample_weight"):
        ranker.fit(X, grades, **common, **{name: [weight]})  # type: ignore[arg-type]
        found = ranker.evals_result_["valid_0"]["ndcg@5"]
        assert found != plain
        position = ranker.predict(X)
        each = [ndcg5(grades[a : a + 20], position[a : a + 20]) for a in range(0, 300, 20)]
        assert found[-1] == pytest.approx(np.average(each, weights=weight), rel=1e-5)
    ranker.fit(X, grades, **common, base_margin_eval_set=[margin])  # type: ignore[arg-type]
    each = [ndcg5(grades[a : a + 20], (ranker.predict(X) + margin)[a : a + 20]) for a in range(0, 300, 20)]
    assert ranker.evals_result_["valid_0"]["ndcg@5"][-1] == pytest.approx(np.mean(each), rel=1e-5)
    with pytest.raises(ParameterError, match="sample_weight_eval_set, eval_sample_weight: found both"):
        ranker.fit(X, grades, **common, sample_weight_eval_set=[weight], eval_sample_weight=[weight])  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="found the keyword 'eval_names'"):
        ranker.fit(X, grades, **common, eval_names=["a"])  # type: ignore[arg-type]


def ndcg5(grades: Any, score: Any) -> float:
    """NDCG of the first 5 ranks with exponential gains."""
    gain, discount = 2.0**grades - 1.0, 1.0 / np.log2(np.arange(5) + 2.0)
    best = float((np.sort(gain)[::-1][:5] * discount).sum())
    return float((gain[np.argsort(-score, kind="stable")][:5] * discount).sum() / best)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_estimators_tell_of_whole_numbers_that_are_rounded(dtype: type) -> None:
    x = (1_700_000_000 + np.arange(60)).reshape(-1, 1).astype(dtype)
    with pytest.warns(UserWarning, match="whole numbers of feature 0"):
        fitted = GBTRegressor(n_estimators=1).fit(x, np.arange(60.0))
    with pytest.warns(UserWarning, match="whole numbers of feature 0"):
        fitted.predict(x)


def test_folds_without_a_category_that_the_frame_lists() -> None:
    import pandas
    from sklearn.model_selection import cross_val_score

    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b", "c"], 200)
    kind[[10, 90]] = "rare", "once"
    frame = pandas.DataFrame({"x": rng.normal(size=200), "k": pandas.Categorical(kind)})
    y = (frame.x > 0) ^ (kind == "a")
    scores = cross_val_score(GBTClassifier(n_estimators=10), frame, y, cv=4, error_score="raise")
    assert scores.min() > 0.8
    model = GBTClassifier(n_estimators=3).fit(frame[:80], y[:80])
    rare = frame[85:95]
    assert np.isfinite(model.predict_proba(rare)).all()
    with pytest.raises(DataError, match=r"'new'.*category_policy"):
        model.predict(frame[:1].assign(k="new"))


def test_predictions_take_a_base_margin() -> None:
    margin = np.linspace(-1, 1, len(X)).astype(np.float32)
    one = GBTRegressor(**SMALL).fit(X, SIGNAL, base_margin=margin)
    own = burnish.boost.Dataset.of(X, base_margin=margin)
    np.testing.assert_array_equal(one.predict(X, base_margin=margin), burnish.boost.predict(one.model_, own))
    two = GBTClassifier(**SMALL).fit(X, SIGNAL > 0, base_margin=margin)
    p = burnish.boost.predict(two.model_, own)
    np.testing.assert_array_equal(two.predict_proba(X, base_margin=margin)[:, 1], p)
    np.testing.assert_array_equal(two.predict(X, base_margin=margin), p > 0.5)
    found = two.decision_function(X, base_margin=margin)
    np.testing.assert_array_equal(found, burnish.boost.predict(two.model_, own, output="margin"))
    wide = np.zeros((len(X), 3), np.float32)
    three = GBTClassifier(**SMALL).fit(X, CLASSES, base_margin=wide)
    assert three.predict_proba(X, base_margin=wide).shape == (len(X), 3)
    with pytest.raises(DataError, match=r"base_margin: found shape \(5,\)"):
        one.predict(X, base_margin=margin[:5])
    with pytest.raises(DataError, match="base_margin has shape"):
        three.predict(X, base_margin=margin)


def test_one_class_on_request() -> None:
    with pytest.raises(ValueError, match="found 1 class: only; allowed with one_class='constant'"):
        GBTClassifier(**SMALL).fit(X, ["only"] * len(X))
    one = clone(GBTClassifier(**SMALL, one_class="constant")).fit(
        X, ["only"] * len(X), eval_set=[(X[:9], ["only"] * 9)], sample_weight=np.ones(len(X))
    )
    assert set(one.predict(X)) == {"only"} and one.classes_.tolist() == ["only"]
    assert one.predict_proba(X).tolist() == [[1.0]] * len(X) and np.isfinite(one.decision_function(X)).all()
    assert one.evals_result_["valid_0"]["logloss"][-1] < 1e-3
    base = GBTClassifier(**SMALL, one_class="constant").fit(X, CLASSES)
    np.testing.assert_array_equal(base.predict(X), GBTClassifier(**SMALL).fit(X, CLASSES).predict(X))
    with pytest.raises(ParameterError, match="one_class: found 'constant'"):
        GBTRegressor(one_class="constant").fit(X, SIGNAL)
