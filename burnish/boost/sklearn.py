"""Estimators for scikit-learn: a classifier, a regressor and a ranker with the parameters of `Params`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.optional import require
from burnish.boost.estimator import Estimator
from burnish.boost.inputs.arguments import (
    check_label_objective,
    column_of,
    either,
    label_indicators,
    labels_of,
    of_fit,
    pairs_of,
    rows_of_sets,
    weights_of,
)
from burnish.boost.params import Params
from burnish.errors import ParameterError

_base: Any = require("sklearn.base", "boost")
_validation: Any = require("sklearn.utils.validation", "boost")
_multiclass: Any = require("sklearn.utils.multiclass", "boost")
_class_weight: Any = require("sklearn.utils.class_weight", "boost")


class GBTRegressor(_base.RegressorMixin, Estimator):
    """Tree boosting for regression: objectives "squared_error", "poisson", "quantile", "logistic" (labels 0 … 1)."""

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        eval_set: Sequence[tuple[Any, Any]] = (),
        base_margin: Any = None,
        sample_weight_eval_set: Sequence[Any] | None = None,
        base_margin_eval_set: Sequence[Any] | None = None,
        callbacks: Sequence[Any] = (),
        **others: Any,
    ) -> "GBTRegressor":
        """Trains on rows X (rows, features) with labels y (rows,), or (rows, outputs) with trees for each output.

        eval_set holds further pairs (X, y) to evaluate.
        sample_weight_eval_set, base_margin_eval_set: those of each pair, or None for a pair that has none.
        """
        base_margin, sample_weight_eval_set, base_margin_eval_set = of_fit(
            others, base_margin, sample_weight_eval_set, base_margin_eval_set
        )
        x, y = self._checked(X, reset=True), labels_of(self, y)
        weight = None if sample_weight is None else weights_of(sample_weight, x)
        training = self._dataset(x, label=y, weight=weight, base_margin=base_margin)
        rows = rows_of_sets(len(eval_set), sample_weight_eval_set, base_margin_eval_set)
        validation_data = {}
        for number, (a, b, *_) in enumerate(pairs_of(eval_set)):
            table = self._checked(a, reset=False)
            validation_data[f"valid_{number}"] = self._dataset(table, training, label=b, **rows[number])
        self._fit(self._settings(), training, validation_data, callbacks)
        return self

    def predict(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[np.float32]:  # noqa: N803
        """Values (rows,), float32; of several outputs (rows, outputs), float64 as scikit-learn wants them."""
        values = self._predict(X, "prediction", others, base_margin)
        return values if values.ndim == 1 else values.astype(np.float64)


class GBTClassifier(_base.ClassifierMixin, Estimator):
    """Tree boosting for classification: log-odds of two classes, or a margin for each of more. classes_ after `fit`.

    Labels (rows, labels) of 0 and 1 are multi-label: each is an output of its own, `classes_` their numbers.
    Data of one class raise ValueError; with one_class="constant" every row is of it, with a probability of 1.
    """

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        eval_set: Sequence[tuple[Any, Any]] = (),
        base_margin: Any = None,
        sample_weight_eval_set: Sequence[Any] | None = None,
        base_margin_eval_set: Sequence[Any] | None = None,
        callbacks: Sequence[Any] = (),
        **others: Any,
    ) -> "GBTClassifier":
        """Trains on rows X (rows, features) with classes y (rows,) of any type, or labels 0 and 1 (rows, labels).

        eval_set holds further pairs (X, y).
        sample_weight_eval_set, base_margin_eval_set: those of each pair, or None for a pair that has none.
        """
        base_margin, sample_weight_eval_set, base_margin_eval_set = of_fit(
            others, base_margin, sample_weight_eval_set, base_margin_eval_set
        )
        x, matrix = self._checked(X, reset=True), label_indicators(y)
        y = column_of(y) if matrix is None else matrix
        _validation.check_consistent_length(x, y)
        self.multilabel_ = matrix is not None
        label = self._classes_of(y) if matrix is None else matrix
        if matrix is not None:
            self.n_classes_ = matrix.shape[1]
            self.classes_ = np.arange(self.n_classes_)
        weight = None if sample_weight is None else weights_of(sample_weight, x)
        if self.class_weight is not None:
            own = _class_weight.compute_sample_weight(self.class_weight, y)
            weight = own if weight is None else weight * own
        training = self._dataset(x, label=label, weight=weight, base_margin=base_margin)
        rows = rows_of_sets(len(eval_set), sample_weight_eval_set, base_margin_eval_set)
        validation_data = {}
        for number, (a, b, *_) in enumerate(pairs_of(eval_set)):
            table = self._checked(a, reset=False)
            label = self._numbers(b)
            validation_data[f"valid_{number}"] = self._dataset(table, training, label=label, **rows[number])
        self._fit(self._class_settings(), training, validation_data, callbacks)
        return self

    def _classes_of(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """The numbers of the classes of training, which become `classes_`; of one alone 1, if that is allowed.

        Raises ValueError if it is not.
        """
        _multiclass.check_classification_targets(y)
        self.classes_, label = np.unique(y, return_inverse=True)
        self.n_classes_ = len(self.classes_)
        if self.n_classes_ < 2 and self.one_class != "constant":
            raise ValueError(
                f"{type(self).__name__} needs 2 classes and more; found 1 class: {self.classes_[0]}; allowed with "
                "one_class='constant'"
            )
        return np.asarray(label) + self._alone

    def _class_settings(self) -> Params:
        """The parameters of `train`. Raises ParameterError where the objective does not fit the number of classes."""
        if self.multilabel_:
            check_label_objective(self.objective)
            return self._settings(objective=self.objective or "logistic")
        objective = self.objective or ("logistic" if self.n_classes_ <= 2 else "softmax")
        alone = not callable(objective) and Params.objective_named(objective) != "softmax"
        if alone and self.n_classes_ > 2:
            raise ParameterError(
                f"objective: found {objective!r} with {self.n_classes_} classes; allowed: None or 'softmax', "
                "and with 2 classes 'logistic'"
            )
        params = self._settings(objective=objective, num_class=None if alone or self._one else self.n_classes_)
        if not callable(params.objective) and params.objective not in ("logistic", "softmax"):
            raise ParameterError(
                f"objective: found {params.objective!r}; allowed of classes: None, 'logistic', 'softmax' or a "
                "function; GBTRegressor takes the others"
            )
        if params.num_class != (1 if alone or self._one else self.n_classes_):
            raise ParameterError(f"num_class: found {params.num_class}; allowed: {self.n_classes_}, the classes of y")
        return params

    @property
    def _alone(self) -> int:
        """The number of the only class in training data of one, 1 as what is certain; of more classes 0."""
        return int(self.n_classes_ == 1)

    @property
    def _one(self) -> bool:
        """Whether a function of the user's has one margin for two classes."""
        return callable(self.objective) and self.n_classes_ == 2

    def _numbers(self, y: Any) -> Any:
        """The numbers of classes, or labels. Raises ParameterError for a class that training has not seen."""
        if self.multilabel_:
            return label_indicators(y, self.n_classes_)
        y = column_of(y)
        place = np.minimum(np.searchsorted(self.classes_, y), self.n_classes_ - 1)
        unseen = self.classes_[place] != y
        if unseen.any():
            found = y[np.argmax(unseen)].tolist()
            raise ParameterError(f"eval_set: found class {found!r}; allowed: {self.classes_.tolist()}")
        return place + self._alone

    def decision_function(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[np.float32]:  # noqa: N803
        """Margins: (rows,) of two classes, else (rows, classes) or (rows, labels)."""
        return self._predict(X, "margin", others, base_margin)

    def predict_proba(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[np.float32]:  # noqa: N803
        """Probabilities (rows, classes), or of label 1 (rows, labels).

        A function may have an attribute `prediction`: what gives probabilities at margins, (rows,) of class 1 for two
        classes, else (rows, classes). Raises ParameterError for a function without, of which none are known.
        """
        p = self._predict(X, "prediction", others, base_margin)
        if self.model_.objective == "custom":
            link = getattr(self.objective, "prediction", None)
            if link is None:
                raise ParameterError(
                    "predict_proba: the objective is a function, whose margins are no probabilities; allowed: "
                    "decision_function, predict, or a function with an attribute 'prediction': margins -> probabilities"
                )
            p = np.asarray(link(p), np.float32)
        if not self.multilabel_ and self._alone:
            return np.ones((len(p), 1), np.float32)
        return p if p.ndim == 2 else np.stack([1.0 - p, p], axis=1)

    def predict(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row, (rows,); by a function as objective, of positive or largest margin.

        Of several labels 0 or 1 for each, (rows, labels).
        """
        _validation.check_is_fitted(self, "model_")
        if self.multilabel_:
            border = 0.0 if self.model_.objective == "custom" else 0.5
            return (self._predict(X, "prediction", others, base_margin) > border).astype(np.int64)
        number = self._predict(X, "class", others, base_margin)
        return self.classes_[number - self._alone * number]


class GBTRanker(Estimator):
    """Tree boosting for ranking: objectives "rank_ndcg" (LambdaMART), "rank_map" and "rank_pairwise"."""

    _objective = "rank_ndcg"
    _multi_output = False

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        group: Any = None,
        qid: Any = None,
        query_weight: Any = None,
        eval_set: Sequence[tuple[Any, ...]] = (),
        eval_group: Sequence[Any] | None = None,
        eval_qid: Sequence[Any] | None = None,
        base_margin: Any = None,
        sample_weight_eval_set: Sequence[Any] | None = None,
        eval_sample_weight: Sequence[Any] | None = None,
        base_margin_eval_set: Sequence[Any] | None = None,
        callbacks: Sequence[Any] = (),
        **others: Any,
    ) -> "GBTRanker":
        """Trains on rows X with relevance grades y. Queries are given by the sizes `group` or a `qid` for each row.

        Without both, all rows are of one query. query_weight: (queries,), or (rows,) equal within a query. eval_set
        holds (X, y, group), or (X, y) with the sizes or ids of each set in eval_group or eval_qid.
        sample_weight_eval_set, or by its other name eval_sample_weight: weights of each set, of its queries or rows, or
        None for one that has none; base_margin_eval_set likewise. A keyword sample_weight is query_weight. Raises
        ParameterError for a set without queries beside training data that have them.
        """
        query_weight = either("query_weight", query_weight, "sample_weight", others.pop("sample_weight", None))
        base_margin, weights, base_margin_eval_set = of_fit(
            others | {"eval_sample_weight": eval_sample_weight}, base_margin, sample_weight_eval_set,
            base_margin_eval_set,
        )  # fmt: skip
        more = rows_of_sets(len(eval_set), weights, base_margin_eval_set)
        x, y = self._checked(X, reset=True), column_of(labels_of(self, y))
        whole = group is None and qid is None
        if whole:
            group = [len(y)]
        training = self._dataset(x, label=y, group=group, qid=qid, weight=query_weight, base_margin=base_margin)
        validation_data = {}
        for name, given in (("eval_group", eval_group), ("eval_qid", eval_qid)):
            if given is not None and len(given) != len(eval_set):
                raise ParameterError(f"{name}: found {len(given)} entries; allowed: {len(eval_set)}, one for each set")
        for number, (a, b, *rest) in enumerate(pairs_of(eval_set)):
            sizes = rest[0] if rest else None if eval_group is None else eval_group[number]
            ids = None if eval_qid is None else eval_qid[number]
            if sizes is None and ids is None:
                if not whole:
                    raise ParameterError(
                        f"eval_set: found entry {number} without queries; allowed: (X, y, group), or (X, y) with "
                        "eval_group or eval_qid"
                    )
                sizes = [len(b)]
            table = self._checked(a, reset=False)
            validation_data[f"valid_{number}"] = self._dataset(
                table, training, label=b, group=sizes, qid=ids, **more[number]
            )
        self._fit(self._settings(), training, validation_data, callbacks)
        return self

    def predict(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[np.float32]:  # noqa: N803
        """Scores (rows,): larger ones come first."""
        return self._predict(X, "prediction", others, base_margin)
