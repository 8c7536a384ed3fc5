import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from burnish.boost.booster import RoundProgress, train
from burnish.boost.data import Dataset
from burnish.boost.model import Model, dumps
from burnish.boost.params import Params
from burnish.boost.prediction import predict
from burnish.boost.sampling import ColumnSampler
from burnish.boost.training import Training
from burnish.boost.tree import Tree, TreeBuilder
from burnish.comm import thread_comms
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

RANDOM = np.random.default_rng(17)
ROWS = 600
X = np.round(RANDOM.normal(size=(ROWS, 5)), 1).astype(np.float32)
SIGNAL = X[:, 0] + np.abs(X[:, 1]) + 0.3 * RANDOM.normal(size=ROWS)
LABELS = {
    "squared_error": SIGNAL,
    "logistic": SIGNAL > 1,
    "poisson": RANDOM.poisson(np.exp(SIGNAL / 3)),
    "quantile": SIGNAL,
    "softmax": np.digitize(SIGNAL, [0, 1]),
    "rank_ndcg": np.digitize(SIGNAL, [0, 1, 2]),
    "rank_map": SIGNAL > 1,
    "rank_pairwise": np.digitize(SIGNAL, [0, 1, 2]),
}


def data(name: str = "squared_error", rows: slice = slice(0, ROWS), **more: Any) -> Dataset:
    label = LABELS[name][rows]
    group = [20] * (len(label) // 20) if name.startswith("rank") else None
    return Dataset.of(X[rows], label=label.astype(np.float32), group=group, **more)


def params(name: str = "squared_error", **more: Any) -> dict[str, Any]:
    return {"objective": name, "num_class": 3 if name == "softmax" else 1, "max_depth": 3, "threads": 1} | more


class NaiveGrower:
    """Algorithm 1 without any speed: every value of every feature tried at every node, in float64."""

    def __init__(self, dataset: Dataset, params: Params) -> None:
        self._x, self._params = np.asarray(dataset.table), params

    def grow(
        self, gradient: np.ndarray, hessian: np.ndarray, columns: ColumnSampler
    ) -> tuple[Tree, np.ndarray[Any, np.dtype[np.int32]]]:
        g, h = gradient.astype(np.float64), hessian.astype(np.float64)
        builder, leaf = TreeBuilder(), np.zeros(len(g), np.int32)
        level = [builder.add(*self._leaf(g, h))]
        for depth in range(self._params.max_depth):
            following = []
            for node in level:
                rows = np.flatnonzero(leaf == node)
                gain, feature, threshold = self._best(rows, g, h, columns.allowed(depth, node))
                if gain <= max(self._params.gamma, 0.0):
                    continue
                left, right = rows[self._x[rows, feature] < threshold], rows[self._x[rows, feature] >= threshold]
                halves = [self._leaf(g[half], h[half]) for half in (left, right)]
                children = builder.split(node, feature, threshold, True, gain, *halves)
                leaf[left], leaf[right] = children
                following.extend(children)
            level = following
        return builder.tree(), leaf

    def _score(self, g: float, h: float) -> float:
        return g * g / (h + self._params.reg_lambda)

    def _leaf(self, g: np.ndarray, h: np.ndarray) -> tuple[float, float]:
        return float(-g.sum() / (h.sum() + self._params.reg_lambda) * self._params.learning_rate), float(h.sum())

    def _best(
        self, rows: np.ndarray, g: np.ndarray, h: np.ndarray, allowed: np.ndarray | None
    ) -> tuple[float, int, float]:
        best = (0.0, -1, 0.0)
        total = self._score(g[rows].sum(), h[rows].sum())
        for feature in range(self._x.shape[1]):
            if allowed is not None and not allowed[feature]:
                continue
            for threshold in np.unique(self._x[rows, feature])[1:]:
                left = rows[self._x[rows, feature] < threshold]
                right = rows[self._x[rows, feature] >= threshold]
                if min(h[left].sum(), h[right].sum()) < self._params.min_child_weight:
                    continue
                gain = self._score(g[left].sum(), h[left].sum()) + self._score(g[right].sum(), h[right].sum()) - total
                if gain > best[0] * (1 + 1e-6):
                    best = (gain, feature, float(threshold))
        return best


@pytest.mark.parametrize("name", ["squared_error", "logistic", "softmax"])
@pytest.mark.parametrize("method", ["hist", "exact"])
def test_trees_are_those_of_the_naive_grower(name: str, method: str) -> None:
    dataset, given = data(name), params(name, tree_method=method)
    losses: list[list[float]] = []
    models = []
    for grower in (NaiveGrower(dataset, Params.of(given)), None):
        history: dict[str, dict[str, list[float]]] = {}
        models.append(train(given, dataset, 3, grower=grower, validation_data={"t": dataset}, history=history))
        losses.extend(history["t"].values())
    naive, ours = models
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)  # equally good splits may be chosen differently
    for a, b in zip(naive.trees[: naive.outputs], ours.trees, strict=False):
        assert (a.feature[0], a.leaves) == (b.feature[0], b.leaves)
        np.testing.assert_allclose(a.gain[0], b.gain[0], rtol=1e-3)
        np.testing.assert_allclose(a.cover[:3], b.cover[:3], rtol=1e-3)


@pytest.mark.parametrize("name", LABELS)
def test_the_loss_falls_and_margins_of_training_are_those_of_prediction(name: str) -> None:
    dataset, history = data(name), {}
    training = Training(Params.of(params(name)), dataset, Workers(2))
    for _ in range(3):
        training.boost()
    margin = training.model().predict_margin(dataset)
    assert margin.tobytes() == training.margin.tobytes()
    train(params(name), dataset, 8, validation_data={"training": dataset, "again": data(name)}, history=history)
    ((_, values),) = history["training"].items()
    assert len(values) == 8
    assert history["again"] == history["training"]  # one by the leaves of its rows, one by prediction
    assert values[-1] > values[0] if name.startswith("rank") else values[-1] < values[0]


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("method", ["hist", "exact"])
def test_continued_training_is_one_longer_run_bit_for_bit(name: str, method: str) -> None:
    given = params(
        name, tree_method=method, subsample=0.7, colsample_bytree=0.8, colsample_bynode=0.7,
        lambdarank_pair_method="mean",
    )  # fmt: skip
    dataset = data(name)
    whole = train(given, dataset, 6)
    part = train(given, dataset, 2)
    assert dumps(train(given, dataset, 4, continue_from=part)) == dumps(whole)
    assert dumps(whole.slice(0, 2)) == dumps(part)


@pytest.mark.parametrize("name", LABELS)
def test_threads_do_not_change_the_model(name: str) -> None:
    given = params(name, subsample=0.8, colsample_bylevel=0.6)
    one = dumps(train(given, data(name), 4, workers=Workers(1)))
    assert all(dumps(train(given, data(name), 4, workers=Workers(threads))) == one for threads in (2, 3))


@pytest.mark.parametrize("name", LABELS)
def test_workers_that_share_the_rows_make_the_model_of_one(name: str) -> None:
    given = params(name, subsample=0.8, colsample_bylevel=0.6, max_bin=256)
    one = train(given, data(name), 3, threads=1)

    def part(comm: Any) -> str:
        half = ROWS // 2 + 100
        rows = slice(0, half) if comm.rank == 0 else slice(half, ROWS)
        from burnish.boost.grower import HistGrower

        grower = HistGrower(data(name, rows), Params.of(given), Workers(1), comm, cuts=cuts)
        return dumps(train(given, data(name, rows), 3, comm=comm, threads=1, grower=grower))

    from burnish.boost.binning import Cuts

    cuts = Cuts.of(data(name), 256, Workers(1), None)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(part, thread_comms(2))) == [dumps(one)] * 2


def test_sampled_rows_alone_decide_a_tree() -> None:
    dataset = data()
    kept = np.zeros(0)

    class Watch(NaiveGrower):
        def grow(self, gradient: np.ndarray, hessian: np.ndarray, columns: ColumnSampler) -> Any:
            nonlocal kept
            kept = hessian > 0
            assert ((gradient == 0) == ~kept).mean() > 0.99
            return super().grow(gradient, hessian, columns)

    given = params(subsample=0.5)
    train(given, dataset, 1, grower=Watch(dataset, Params.of(given)))
    assert 0.4 < kept.mean() < 0.6


def test_columns_that_are_not_drawn_are_not_used() -> None:
    model = train(params(colsample_bytree=0.2), data(), 20)
    used = [set(tree.feature[tree.left >= 0].tolist()) for tree in model.trees]
    assert all(len(features) <= 1 for features in used) and len(set().union(*used)) > 1


def test_early_stopping_keeps_the_best_round() -> None:
    noise = np.random.default_rng(1).normal(size=ROWS).astype(np.float32)
    training = Dataset.of(X[:300], label=noise[:300])
    valid = Dataset.of(X[300:], label=noise[300:])
    history: dict[str, dict[str, list[float]]] = {}
    given = params(eta=0.5, max_depth=6)
    model = train(given, training, 100, validation_data={"v": valid}, early_stopping_rounds=5, history=history)
    values = history["v"]["rmse"]
    assert model.best_iteration == int(np.argmin(values)) and model.rounds == model.best_iteration + 6 < 100
    assert float(model.attributes["best_score"]) == min(values)
    best = predict(model.slice(0, model.best_iteration + 1), X)
    assert (predict(model, X) == best).all()
    assert (predict(model, X, rounds=(0, model.rounds)) != best).any()


def test_early_stopping_by_the_last_metric_of_the_last_set_and_its_direction() -> None:
    given = params("logistic", eval_metric=["logloss", "auc"], eta=0.5)
    history: dict[str, dict[str, list[float]]] = {}
    valid = [(data("logistic", slice(300, ROWS)), "v")]
    model = train(
        given, data("logistic", slice(0, 300)), 60, validation_data=valid, early_stopping_rounds=3, history=history
    )
    assert model.best_iteration == int(np.argmax(history["v"]["auc"]))


def test_a_metric_that_is_nan_is_no_improvement() -> None:
    values = iter([2.0, 1.0, float("nan"), 0.5, float("nan"), float("nan"), float("nan")])

    def given(prediction: np.ndarray, dataset: Dataset) -> float:
        return next(values, float("nan"))

    valid = {"v": data(rows=slice(0, 100))}
    with pytest.warns(RuntimeWarning, match="given of validation_data 'v' is NaN in round 3") as said:
        model = train(params(eval_metric=given), data(), 50, validation_data=valid, early_stopping_rounds=3)
    assert (model.rounds, model.best_iteration, len(said)) == (7, 3, 1)
    with pytest.warns(RuntimeWarning, match="NaN in round 1"):
        model = train(params(eval_metric=given), data(), 50, validation_data=valid, early_stopping_rounds=3)
    assert (model.rounds, model.best_iteration, model.attributes["best_score"]) == (4, 0, "nan")
    with pytest.raises(DataError, match="validation_data 'v': weight: found 0 for all rows"):
        train(params(), data(), 2, validation_data={"v": data(weight=np.zeros(ROWS))})


def test_zero_rounds_one_row_and_a_constant_label() -> None:
    empty = train(params(), data(), 0)
    assert empty.rounds == 0 and np.allclose(predict(empty, X), SIGNAL.mean(), atol=1e-5)
    for name, value in (("squared_error", 3.5), ("logistic", 1.0), ("poisson", 2.0), ("quantile", 3.5)):
        for rows, method in itertools.product((1, 7), ("hist", "exact")):
            dataset = Dataset.of(X[:rows], label=np.full(rows, value))
            model = train(params(name, tree_method=method), dataset, 3)
            np.testing.assert_allclose(predict(model, X[:rows]), value, rtol=1e-4)


def test_base_margin_takes_the_place_of_the_base_score() -> None:
    offset = np.linspace(-5, 5, ROWS).astype(np.float32)
    shifted = Dataset.of(X, label=SIGNAL.astype(np.float32) + offset, base_margin=offset)
    model = train(params(base_score=0.0), shifted, 5)
    plain = train(params(base_score=0.0), data(), 5)
    np.testing.assert_allclose(predict(model, shifted) - offset, predict(plain, X), atol=1e-4)


def test_callbacks_see_each_round_and_can_stop() -> None:
    seen: list[RoundProgress] = []

    def watch(progress: RoundProgress) -> bool:
        seen.append(progress)
        assert progress.model().rounds == progress.round
        return progress.round == 4

    model = train(params(), data(), 10, validation_data={"v": data()}, callbacks=[watch])
    assert model.rounds == 4 and [p.round for p in seen] == [1, 2, 3, 4]
    assert seen[-1].rounds == 10 and seen[-1].scores["v"]["rmse"] == seen[-1].history["v"]["rmse"][-1]
    assert seen[-1].seconds_left > 0 and not seen[-1].interrupted


def test_an_objective_and_a_metric_of_ones_own() -> None:
    def gradient(margin: np.ndarray, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
        return margin - SIGNAL.astype(np.float32), np.ones(ROWS, np.float32)

    def largest(prediction: np.ndarray, dataset: Dataset) -> float:
        return float(np.abs(prediction - SIGNAL).max())

    history: dict[str, dict[str, list[float]]] = {}
    model = train(
        params(gradient, eval_metric=[largest, "mae"]), data(), 20, validation_data={"t": data()}, history=history
    )
    assert model.objective == "custom" and set(history["t"]) == {"largest", "mae"}
    same = train(params(base_score=0.0), data(), 20)
    np.testing.assert_allclose(predict(model, X), predict(same, X), atol=1e-4)


def test_shapes_and_kinds_of_predictions() -> None:
    binary, several = train(params("logistic"), data("logistic"), 5), train(params("softmax"), data("softmax"), 5)
    p, q = predict(binary, X), predict(several, X)
    assert p.shape == (ROWS,) and q.shape == (ROWS, 3) and np.allclose(q.sum(axis=1), 1, atol=1e-5)
    assert (predict(binary, X, output="class") == (p > 0.5)).all()
    assert (predict(several, X, output="class") == q.argmax(axis=1)).all()
    margin = predict(binary, X, output="margin")
    np.testing.assert_allclose(p, 1 / (1 + np.exp(-margin)), rtol=1e-5)
    assert predict(several, X, output="leaf").shape == (ROWS, 15)
    assert (predict(binary, X.astype(np.float64), threads=2) == p).all()
    assert (predict(binary, data("logistic")) == p).all()
    with pytest.raises(ParameterError, match="output: found 'odds'"):
        predict(binary, X, output="odds")


def test_refusals() -> None:
    with pytest.raises(ParameterError, match="'early_stopping_rounds': found without"):
        train(params(), data(), 2, early_stopping_rounds=1)
    with pytest.raises(DataError, match="validation_data 'v': found 3 features; allowed: 5"):
        train(params(), data(), 2, validation_data={"v": Dataset.of(X[:, :3], label=SIGNAL)})
    with pytest.raises(DataError, match="validation_data 'v': lacks the features 'e', has 'f' besides"):
        train(
            params(), data(feature_names=list("abcde")), 2, validation_data={"v": data(feature_names=list("abcdf"))}
        )  # fmt: skip
    with pytest.raises(ParameterError, match="validation_data: found the name 'v' twice"):
        train(params(), data(), 2, validation_data=[("v", data()), (data(), "v")])
    with pytest.raises(ParameterError, match="validation_data: found an entry"):
        train(params(), data(), 2, validation_data=[(data(), data())])
    with pytest.raises(ParameterError, match="continue_from: the model's objective: found 'squared_error'"):
        train(params("logistic"), data("logistic"), 2, continue_from=train(params(), data(), 1))
    with pytest.raises(ParameterError, match="'monotone_constraints': found 2 signs; allowed: 5"):
        train(params(monotone_constraints=(1, 0)), data(), 2)
    with pytest.raises(DataError, match="no rows"):
        train(params(), Dataset(np.zeros((0, 2), np.float32), 0, 2, label=np.zeros(0, np.float32)), 2)
    with pytest.raises(ParameterError, match="'rounds': found -1"):
        train(params(), data(), -1)


def test_rounds_come_from_the_parameters_unless_given() -> None:
    assert train(params(n_estimators=3), data()).rounds == 3
    assert train(params(n_estimators=3), data(), 1).rounds == 1


def test_monotone_constraints_by_feature_name() -> None:
    named = data(feature_names=list("abcde"))
    model = train(params(monotone_constraints={"b": 1}), named, 10)
    grid = np.zeros((50, 5), np.float32)
    grid[:, 1] = np.linspace(-2, 2, 50)
    assert (np.diff(predict(model, grid)) >= 0).all()
    assert (np.diff(predict(train(params(), named, 10), grid)) < 0).any()


def test_the_model_knows_what_it_was_trained_for() -> None:
    model = train(params("quantile", quantile_alpha=0.9), data("quantile", feature_names=list("abcde")), 1)
    assert model.objective_parameters == {"quantile_alpha": 0.9} and model.feature_names == tuple("abcde")
    assert isinstance(model, Model) and model.outputs == 1 and model.best_iteration is None


BAD_LABELS = [
    ("softmax", -1), ("softmax", 1.5), ("softmax", 3), ("logistic", -1), ("logistic", 3), ("poisson", -1),
    ("rank_ndcg", -1), ("rank_ndcg", 40), ("rank_map", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bad"), BAD_LABELS)
def test_labels_of_evaluation_sets_are_checked_as_those_of_training(name: str, bad: float) -> None:
    good = data(name)
    label = good.label.copy()  # type: ignore[union-attr]
    label[7] = bad
    wrong = replace(good, label=label)
    for valid in ({"v": wrong}, [(good, "a"), (wrong, "v")]):
        with pytest.raises(DataError, match="validation_data 'v': label of row 7"):
            train(params(name), good, 1, validation_data=valid)
    with pytest.raises(DataError, match="label of row 7"):
        train(params(name), wrong, 1)


def test_evaluation_sets_of_rankings_have_queries() -> None:
    with pytest.raises(DataError, match=r"validation_data 'v': .*no queries"):
        train(
            params("rank_ndcg"),
            data("rank_ndcg"),
            1,
            validation_data={"v": replace(data("rank_ndcg"), group_start=None)},
        )


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda: train({}, X), r"train: dataset: found numpy.ndarray; allowed: a Dataset, as Dataset\.of"),  # type: ignore[arg-type]
        (lambda: train(data(), {}), "train: dataset: found dict"),  # type: ignore[arg-type]
        (lambda: train({}, None), "train: dataset: found NoneType"),  # type: ignore[arg-type]
        (lambda: train({}, data(), 1, continue_from="m.json"), "continue_from: found str; allowed: a Model"),  # type: ignore[arg-type]
        (lambda: train({}, data(), 1, validation_data=data()), "validation_data: found an entry that is no pair"),  # type: ignore[arg-type]
        (lambda: train({}, data(), 1, validation_data=[data()]), "validation_data: found an entry that is no pair"),  # type: ignore[list-item]
        (
            lambda: train({}, data(), 1, validation_data=[(X, SIGNAL)]),
            "validation_data: found an entry that is no pair",
        ),
        (lambda: train("eta=1", data(), 1), "params: found str; allowed: a mapping"),  # type: ignore[arg-type]
        (lambda: train({}, data(), 1, callbacks=print), "callbacks: found .*; allowed: a list of functions"),  # type: ignore[arg-type]
        (lambda: train({"eval_metric": 3}, data(), 1), "'eval_metric': found 3"),
        (lambda: predict(X, X), "predict: model: found ndarray; allowed: a Model"),  # type: ignore[arg-type]
        (lambda: train({"extra": {"max_depth": 1}}, data(), 1), "unknown parameter 'extra'"),
        (lambda: train({}, data(), 1, early_stopping_rounds=2), "'early_stopping_rounds': found without a data set"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(found: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        found()


@pytest.mark.parametrize("sign", [1, -1])
def test_monotone_constraints_on_a_categorical_feature_are_refused(sign: int) -> None:
    kinds = Dataset.of(X, label=SIGNAL, categorical=[2], feature_names=list("abcde"))
    with pytest.raises(ParameterError, match="feature 'c', which is categorical"):
        train(params(monotone_constraints=[0, 0, sign, 0, 0]), kinds, 1)
    with pytest.raises(ParameterError, match="feature 'c', which is categorical"):
        train(params(monotone_constraints={"c": sign}), kinds, 1)
    assert train(params(monotone_constraints=[sign, 0, 0, 0, 0]), kinds, 1).rounds == 1


def test_functions_of_one_name_are_metrics_of_their_own() -> None:
    history: dict[str, dict[str, list[float]]] = {}
    metrics = [lambda p, d: 1.0, lambda p, d: 2.0, "rmse", "rmse"]
    train(params(eval_metric=metrics), data(), 1, validation_data={"v": data()}, history=history)
    assert {name: values[0] for name, values in history["v"].items() if name != "rmse"} == {
        "<lambda>": 1.0, "<lambda>_2": 2.0
    }  # fmt: skip
    assert len(history["v"]["rmse"]) == 1


def test_classes_of_an_own_objective_are_by_the_sign_of_the_margin() -> None:
    def logistic(margin: np.ndarray, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
        p = 1 / (1 + np.exp(-margin))
        return p - dataset.label, p * (1 - p)

    model = train(params("logistic", objective=logistic), data("logistic"), 20)
    margin = predict(model, X, output="margin")
    assert ((margin > 0) != (margin > 0.5)).any()
    assert np.array_equal(predict(model, X, output="class"), margin > 0)


def test_weights_that_are_all_zero_are_refused() -> None:
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    with pytest.raises(DataError, match="weight: found 0 for all rows"):
        train({}, Dataset.of(table, label=np.arange(6), weight=np.zeros(6)), 2)


class Recorder:
    def __init__(self, stop: dict[str, int]) -> None:
        self.calls: list[tuple[str, int]] = []
        self.stop = stop

    def _note(self, moment: str, progress: RoundProgress) -> bool:
        self.calls.append((moment, progress.round))
        return self.stop.get(moment) == progress.round

    def before_training(self, progress: RoundProgress) -> None:
        self._note("before_training", progress)

    def before_iteration(self, progress: RoundProgress) -> bool:
        return self._note("before_iteration", progress)

    def after_iteration(self, progress: RoundProgress) -> bool:
        assert progress.model().rounds == progress.round
        return self._note("after_iteration", progress)

    def after_training(self, progress: RoundProgress) -> None:
        self._note("after_training", progress)


@pytest.mark.parametrize("more", [{}, {"booster": "dart", "rate_drop": 0.5}])
def test_callbacks_of_each_moment(more: dict[str, Any]) -> None:
    seen = Recorder({})
    assert train(params(**more), data(), 2, callbacks=[seen]).rounds == 2
    rounds = [("before_iteration", 0), ("after_iteration", 1), ("before_iteration", 1), ("after_iteration", 2)]
    assert seen.calls == [("before_training", 0), *rounds, ("after_training", 2)]
    for moment, number in (("before_iteration", 1), ("after_iteration", 1)):
        assert train(params(**more), data(), 5, callbacks=[Recorder({moment: number})]).rounds == 1

    def before(progress: RoundProgress) -> bool:
        return progress.round == 3

    before.before_iteration = True  # type: ignore[attr-defined]
    assert train(params(**more), data(), 5, callbacks=[before]).rounds == 3


def test_callbacks_of_other_kinds_are_refused() -> None:
    class Foreign:
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            return False

    for wrong, message in (
        (Foreign(), r"found after_iteration\(model: Any, epoch: int, .*allowed: one argument, a Progress"),
        (lambda: None, "allowed: one argument"),
        (3, "found 3; allowed: a function, or an object with methods of before_training"),
    ):
        with pytest.raises(ParameterError, match=message):
            train(params(), data(), 1, callbacks=[wrong])
