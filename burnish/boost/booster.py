"""The training loop: rounds, evaluation, early stopping, callbacks, continued training."""

import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from burnish.boost.callbacks import MOMENTS, callbacks_of
from burnish.boost.categories import encode_as
from burnish.boost.data import Dataset, Sparse, check_dataset
from burnish.boost.ensemble import Ensemble
from burnish.boost.losses.outputs import objective_for
from burnish.boost.losses.reduction import Reduction
from burnish.boost.metric import Metric, distinct, metric_of, warn_nan
from burnish.boost.model import Model
from burnish.boost.params import Params
from burnish.boost.predictor import add_tree
from burnish.boost.training import Grower, Training, check_continues, training_of
from burnish.boost.tree import Tree
from burnish.boost.update import update_of
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

ONE_THREAD_CELLS = 1 << 20  # 4,000 × 160: 204 ms of training with one thread, 245 with two

Scores = dict[str, dict[str, float]]  # for each evaluation set, for each metric
History = MutableMapping[str, dict[str, list[float]]]  # the same with a value for each round
Valid = Mapping[str, Dataset] | Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class RoundProgress:
    """Progress of training, given to callbacks after each round, or once when Ctrl-C was pressed (`interrupted`)."""

    round: int  # rounds of the model so far, with those it was continued from
    rounds: int  # rounds after which training ends
    scores: Scores  # of the last round; empty without evaluation sets
    history: Mapping[str, Mapping[str, Sequence[float]]]
    seconds: float  # since training began, set-up included
    interrupted: bool
    model: Callable[[], Model]  # makes the model of the rounds so far

    @property
    def seconds_left(self) -> float:
        """An estimate from the mean of the rounds so far."""
        return self.seconds / max(self.round, 1) * max(self.rounds - self.round, 0)


Callback = Callable[[RoundProgress], bool | None] | Any


def train(
    params: Mapping[str, Any] | Params | None,
    dataset: Dataset,
    rounds: int | None = None,
    *,
    validation_data: Valid = (),
    early_stopping_rounds: int | None = None,
    callbacks: Sequence[Callback] = (),
    continue_from: Ensemble | None = None,
    resume_from: Ensemble | None = None,
    history: History | None = None,
    threads: int | None = None,
    workers: Workers | None = None,
    comm: Any = None,
    grower: Grower | None = None,
) -> Model:
    """Trains a model by Newton boosting (§2.1.2): each round fits trees to the gradient and Hessian of the loss.

    params: names of XGBoost, LightGBM and scikit-learn, see `Params`. validation_data: named data sets to evaluate
    after each round; with `early_stopping_rounds`, training ends when the last metric of the last of them has not
    improved for n rounds (one that is NaN does not, with a warning), and the model's `best_iteration` is the best
    round, up to which `predict` uses it. history receives the metrics' values. continue_from: a model whose rounds come
    first; the result is that of one longer training, bit for bit; or with `process_type` "update", whose first `rounds`
    rounds (by default all) keep their splits and get the leaves that follow from this data. resume_from: a model of the
    first rounds of this same training, whose trees are not grown again; metrics, early stopping and the result are
    those of a training that was never interrupted. comm: workers that each hold a part of the rows. grower: takes the
    place of the one `tree_method` names.

    A callback is a function, called after each round (before it if the function has a true attribute
    `before_iteration`), or an object with some of the methods before_training, before_iteration, after_iteration and
    after_training; all take a Progress. One of an iteration ends training by returning true. On Ctrl-C
    (KeyboardInterrupt) the round under way is given up, and those after a round are called once more with
    `interrupted`: if one returns true, `train` returns the model of the rounds so far; else the KeyboardInterrupt goes
    on (see `checkpoint.keep_on_interrupt`).

    Raises ParameterError and DataError.
    """
    check_dataset("train", dataset)
    for what, model in (("continue_from", continue_from), ("resume_from", resume_from)):
        if model is not None and not isinstance(model, Ensemble):
            raise ParameterError(f"{what}: found {type(model).__name__}; allowed: a Model, as Model.load(path) makes")
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise ParameterError(f"callbacks: found {callbacks!r}; allowed: a list of functions, or objects with methods")
    settled = Params.of(params, dataset.feature_names)
    settled = replace(settled, rounds=settled.rounds if rounds is None else rounds)
    if early_stopping_rounds is not None:
        settled = replace(settled, early_stopping_rounds=early_stopping_rounds)
    settled = Params.of(settled)
    workers = workers or workers_of(threads or settled.threads, dataset)
    if settled.process_type == "update" and continue_from is not None and grower is None and resume_from is None:
        settled, grower = update_of(settled, dataset, workers, continue_from, rounds)
        continue_from = continue_from.slice(0, 0)
    training = training_of(settled)(settled, dataset, workers, comm, grower, continue_from)
    named = named_datasets(validation_data)
    evaluation = EvaluationSets(training, named, {} if history is None else history)
    loop = _Loop(training, evaluation, callbacks)
    if resume_from is not None:
        loop.replay(resume_from)
    return loop.run()


class EvaluationSets:
    """Margins and metrics of the evaluation sets, and the best round by the last metric of the last of them."""

    def __init__(self, training: Training, validation_data: Mapping[str, Dataset], history: History) -> None:
        self._training = training
        params = training.params
        names = params.eval_metric or (training.objective.metric,)
        self._metrics = distinct([metric_of(name) for name in names])
        if params.early_stopping_rounds and not validation_data:
            raise ParameterError(
                "parameter 'early_stopping_rounds': found without a data set in 'validation_data'; allowed: one"
            )
        self.validation_data = {name: _like(name, dataset, training) for name, dataset in validation_data.items()}
        self._margins = {
            name: training.margin if dataset is training.dataset else training.margins(dataset)
            for name, dataset in self.validation_data.items()
        }
        self.history = history
        self.scores: Scores = {}
        self.best_round: int | None = None
        self.best_score = float("nan")
        self._nan = False  # whether a warning was given

    @property
    def last(self) -> Metric:
        """The metric by which training stops early."""
        return self._metrics[-1]

    def add(self, trees: Sequence[Tree]) -> None:
        """Adds the trees of a round to the margins, and computes the metrics."""
        training = self._training
        for name, dataset in self.validation_data.items():
            margin = self._margins[name]
            if dataset is not training.dataset:
                if training.rescales:
                    margin[:] = training.margins(dataset)
                for number, tree in enumerate(() if training.rescales else trees):
                    add_tree(tree, dataset, margin[number % training.outputs], training.workers)
            prediction = training.objective.prediction(margin, training.workers)
            values = {m.name: m(prediction, dataset, training.reduction, training.params) for m in self._metrics}
            self.scores[name] = values
            for metric, value in values.items():
                self.history.setdefault(name, {}).setdefault(metric, []).append(value)
        if self.validation_data and training.params.early_stopping_rounds:
            last = self._metrics[-1]
            name = list(self.validation_data)[-1]
            value = self.scores[name][last.name]
            if np.isnan(value) and not self._nan:
                warn_nan(last.name, f"validation_data {name!r}", training.rounds)
                self._nan = True
            if self.best_round is None or last.improves(value, self.best_score):
                self.best_round, self.best_score = training.rounds - 1, value

    @property
    def stalled(self) -> bool:
        """Whether the best round is so long ago that training is to end."""
        patience = self._training.params.early_stopping_rounds
        if not patience or self.best_round is None:
            return False
        return self._training.rounds - 1 - self.best_round >= patience


class _Loop:
    """Rounds until one of the reasons to end."""

    def __init__(self, training: Training, evaluation: EvaluationSets, callbacks: Sequence[Callback]) -> None:
        self._training, self._evaluation = training, evaluation
        self._callbacks = {moment: callbacks_of(moment, callbacks) for moment in MOMENTS}
        self._last = training.rounds + training.params.rounds
        self._began = time.perf_counter()

    def replay(self, model: Ensemble) -> None:
        """Does the rounds of an earlier part of this training again, from its trees."""
        training, outputs = self._training, self._training.outputs
        model = model.arranged(training.dataset.feature_names, "resume_from")
        check_continues(model, training.objective.name, outputs, training.dataset)
        if model.base_score.tobytes() != training.base_score.tobytes():
            raise ParameterError(
                f"resume_from: the model's base_score: found {model.base_score}; allowed: {training.base_score}"
            )
        each = outputs * training.params.num_parallel_tree
        begin = training.rounds * each
        while training.rounds < min(len(model.trees) // each, self._last) and not self._evaluation.stalled:
            trees = model.trees[begin : begin + each]
            training.replay(trees)
            self._evaluation.add(trees)
            begin += each

    def run(self) -> Model:
        training, evaluation = self._training, self._evaluation
        try:
            self._tell("before_training")
            while training.rounds < self._last and not evaluation.stalled:
                if self._told_to_stop("before_iteration"):
                    break
                evaluation.add(training.boost())
                if self._told_to_stop("after_iteration"):
                    break
        except KeyboardInterrupt:
            if not self._tell("after_iteration", True):
                raise
        self._tell("after_training")
        return self._model()

    def _tell(self, moment: str, interrupted: bool = False) -> bool:
        """Calls all callbacks of a moment; whether one of them returns true."""
        if not self._callbacks[moment]:
            return False
        progress = self._progress(interrupted)
        answers = [callback(progress) for callback in self._callbacks[moment]]
        return any(answers)

    def _told_to_stop(self, moment: str) -> bool:
        """Whether a callback of any worker says stop; all are called."""
        if not self._callbacks[moment]:
            return False
        answers = [self._tell(moment)]
        return self._training.reduction.count(int(any(answers))) > 0

    def _progress(self, interrupted: bool) -> RoundProgress:
        return RoundProgress(
            round=self._training.rounds,
            rounds=self._last,
            scores=self._evaluation.scores,
            history=self._evaluation.history,
            seconds=time.perf_counter() - self._began,
            interrupted=interrupted,
            model=self._model,
        )

    def _model(self) -> Model:
        best, rounds = self._evaluation.best_round, self._training.rounds
        if best is None or best >= rounds:
            return self._training.model()
        return self._training.model(best, {"best_score": repr(self._evaluation.best_score)})


def workers_of(threads: int, dataset: Dataset) -> Workers:
    """As many threads as asked for, but one on so little data that waking another costs more than it saves."""
    table = dataset.table
    cells = len(table.values) if isinstance(table, Sparse) else dataset.rows * dataset.features
    return Workers(threads or None) if cells >= ONE_THREAD_CELLS else Workers(1)


def named_datasets(validation_data: Valid) -> dict[str, Dataset]:
    """Evaluation sets by name, from a mapping, or from pairs in either order."""
    pairs: Any = validation_data.items() if isinstance(validation_data, Mapping) else validation_data
    named: dict[str, Dataset] = {}
    for pair in pairs if isinstance(pairs, Iterable) else [pairs]:
        first, second = pair if isinstance(pair, Sequence) and len(pair) == 2 else (pair, None)
        name, dataset = (first, second) if isinstance(first, str) else (second, first)
        if not isinstance(name, str) or not isinstance(dataset, Dataset):
            raise ParameterError(
                "validation_data: found an entry that is no pair of a name and a Dataset; allowed: such pairs"
            )
        if name in named:
            raise ParameterError(f"validation_data: found the name {name!r} twice; allowed: different names")
        named[name] = dataset
    return named


def _like(name: str, dataset: Dataset, fitted: Training) -> Dataset:
    """An evaluation set with the columns, found by name, and the category numbers of the training data.

    Raises DataError for other features, and for rows (labels, weights, queries) that training would refuse.
    """
    training = fitted.dataset
    if dataset is training:
        return dataset
    dataset = dataset.arranged(training.feature_names, f"validation_data {name!r}")
    if dataset.features != training.features:
        raise DataError(f"validation_data {name!r}: found {dataset.features} features; allowed: {training.features}")
    if dataset.weight is not None and fitted.reduction.maximum(float(dataset.weight.max(initial=0.0))) == 0.0:
        raise DataError(
            f"validation_data {name!r}: weight: found 0 for all rows; allowed: one that is positive, at least"
        )
    try:
        if dataset.label is not None:  # a metric that wants labels says so itself
            objective_for(fitted.params, dataset, training.targets).prepare(dataset, Reduction())
        return encode_as(dataset, training.categories, training.policy)
    except DataError as error:
        raise DataError(f"validation_data {name!r}: {error}") from None
