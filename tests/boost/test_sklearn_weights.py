import numpy as np
import pytest

from burnish.boost import GBTClassifier, GBTRegressor
from burnish.errors import ParameterError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4)).astype(np.float32)
Y = (X[:, 0] + RNG.normal(size=300) > 0.8).astype(int)
W = RNG.uniform(0.1, 3, 300)


@pytest.mark.parametrize("weight", ["balanced", {0: 1.0, 1: 5.0}])
def test_class_weights_are_weights_of_rows(weight: object) -> None:
    each = np.where(Y == 1, 5.0, 1.0) if isinstance(weight, dict) else 300 / (2 * np.bincount(Y))[Y]
    found = GBTClassifier(n_estimators=5, class_weight=weight).fit(X, Y, sample_weight=W)
    expected = GBTClassifier(n_estimators=5).fit(X, Y, sample_weight=W * each)
    assert np.array_equal(found.predict_proba(X), expected.predict_proba(X))
    assert not np.array_equal(found.predict_proba(X), GBTClassifier(n_estimators=5).fit(X, Y, W).predict_proba(X))


def test_class_weights_without_classes_are_refused() -> None:
    with pytest.raises(ParameterError, match="class_weight"):
        GBTRegressor(class_weight="balanced").fit(X, Y)


@pytest.mark.parametrize("kind", [GBTClassifier, GBTRegressor])
def test_evaluation_sets_have_weights_and_margins(kind: type) -> None:
    margin = RNG.normal(size=300)
    more = {"sample_weight": W, "base_margin": margin}
    own = {"sample_weight_eval_set": [W], "base_margin_eval_set": [margin]}
    watched = kind(n_estimators=4).fit(X, Y, eval_set=[(X, Y)], **more, **own)
    plain = kind(n_estimators=4).fit(X, Y, eval_set=[(X, Y)], **more)
    (name,) = watched.evals_result_["valid_0"]
    assert watched.evals_result_["valid_0"][name] != plain.evals_result_["valid_0"][name]
    p = 1 / (1 + np.exp(-margin)) if kind is GBTClassifier else margin
    q = np.where(Y == 1, p, 1 - p)
    loss = -np.log(q) if kind is GBTClassifier else (p - Y) ** 2
    start = kind(n_estimators=1, learning_rate=1e-7).fit(X, Y, eval_set=[(X, Y)], **more, **own)
    expected = np.average(loss, weights=W) ** (1.0 if kind is GBTClassifier else 0.5)
    assert start.evals_result_["valid_0"][name][0] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ParameterError, match="sample_weight_eval_set: found 2"):
        kind(n_estimators=1).fit(X, Y, eval_set=[(X, Y)], sample_weight_eval_set=[W, W])


def test_keywords_of_fit_and_predict_of_other_libraries() -> None:
    margin = np.linspace(-1, 1, len(X))
    own = {"base_margin": margin, "base_margin_eval_set": [margin], "sample_weight_eval_set": [W]}
    theirs = {"init_score": margin, "eval_init_score": [margin], "eval_sample_weight": [W], "verbose": False}
    first, second = GBTRegressor(n_estimators=3), GBTRegressor(n_estimators=3)
    first.fit(X, Y, eval_set=[(X, Y)], **own)  # type: ignore[arg-type]
    second.fit(X, Y, eval_set=[(X, Y)], **theirs)
    assert first.evals_result_ == second.evals_result_
    for keyword, hint in (
        ({"early_stopping_rounds": 3}, "nearest there is: the estimator's parameter early_stopping_rounds"),
        ({"eval_names": ["a"]}, "nearest there is: valid_0"),
        ({"nonsense": 1}, "found the keyword 'nonsense'"),
        ({"init_score": margin, "base_margin": margin}, "found both"),
    ):
        with pytest.raises(ParameterError, match=hint):
            first.fit(X, Y, **keyword)  # type: ignore[arg-type]
    assert np.array_equal(first.predict(X, output_margin=False), first.predict(X))
    with pytest.raises(ParameterError, match=r"'iteration_range'.*nearest there is: burnish\.boost\.predict"):
        first.predict(X, iteration_range=(0, 1))
