"""The training loop: gradients, one tree for each output, margins; evaluation, early stopping, continued training."""

import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.boost.callbacks import MOMENTS, callbacks_of
from burnish.boost.categories import encode_as
from burnish.boost.dart import Drops, check_dart, without
from burnish.boost.data import Dataset, Sparse, check_dataset
from burnish.boost.ensemble import Ensemble
from burnish.boost.inputs.tables import feature_label
from burnish.boost.leaves import LeafSums
from burnish.boost.losses import gradients
from burnish.boost.losses.outputs import objective_for
from burnish.boost.losses.reduction import Reduction
from burnish.boost.metric import Metric, distinct, metric_of, warn_nan
from burnish.boost.model import Model
from burnish.boost.objective import Floats, Objective, row_ranges
from burnish.boost.params import Params
from burnish.boost.predictor import add_tree
from burnish.boost.sampling import ColumnSampler, column_sampler, sample_rows
from burnish.boost.threads import Workers
from burnish.boost.tree import Tree
from burnish.boost.update import GrownTrees, update_of
from burnish.errors import DataError, ParameterError

ONE_THREAD_CELLS = 1 << 20  # 4,000 × 160: 204 ms of training with one thread, 245 with two

Scores = dict[str, dict[str, float]]  # for each evaluation set, for each metric
History = MutableMapping[str, dict[str, list[float]]]  # the same with a value for each round
Valid = Mapping[str, Dataset] | Sequence[tuple[Any, Any]]


class Grower(Protocol):
    """Grows trees on the rows it was made with."""

    def grow(self, gradient: Floats, hessian: Floats, columns: ColumnSampler) -> tuple[Tree, NDArray[np.int32]]:
        """One tree on gradient statistics (rows,), and the leaf (node number) of every training row."""


@dataclass(frozen=True)
class Progress:
    """What a callback is told after a round, or once when Ctrl-C was pressed (`interrupted`)."""

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


Callback = Callable[[Progress], bool | None] | Any


def train(
    params: Mapping[str, Any] | Params | None,
    dataset: Dataset,
    rounds: int | None = None,
    *,
    valid: Valid = (),
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

    params: names of XGBoost, LightGBM and scikit-learn, see `Params`. valid: named data sets to evaluate after each
    round; with `early_stopping_rounds`, training ends when the last metric of the last of them has not improved for so
    many rounds (one that is NaN does not, with a warning), and the model's `best_iteration` is the best round, up to
    which `predict` uses it. history receives the metrics' values. continue_from: a model whose rounds come first; the
    result is that of one longer training, bit for bit; or with `process_type` "update", whose first `rounds` rounds (by
    default all) keep their splits and get the leaves that follow from this data. resume_from: a model of the first
    rounds of this same training, whose trees are not grown again; metrics, early stopping and the result are those of a
    training that was never interrupted. comm: workers that each hold a part of the rows. grower: takes the place of the
    one `tree_method` names.

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
    named = named_datasets(valid)
    evaluation = Evaluation(training, named, {} if history is None else history)
    loop = _Loop(training, evaluation, callbacks)
    if resume_from is not None:
        loop.replay(resume_from)
    return loop.run()


def training_of(params: Params) -> "type[Training]":
    """The kind of training that `booster` names."""
    return DartTraining if params.booster == "dart" else Training


class Training:
    """Margins, gradients and trees of a training under way."""

    rescales = False  # whether a round changes earlier trees

    def __init__(
        self,
        params: Params,
        dataset: Dataset,
        workers: Workers,
        comm: Any = None,
        grower: Grower | None = None,
        continue_from: Ensemble | None = None,
    ) -> None:
        self.params, self.dataset, self.workers = params, dataset, workers
        if params.process_type == "update" and not isinstance(grower, GrownTrees):
            raise ParameterError(
                "parameter 'process_type': found 'update' without a model whose trees are known; allowed: with "
                "train(…, continue_from=model) alone"
            )
        self.reduction = Reduction(comm)
        _check_features(params, dataset)
        self.objective: Objective = objective_for(params, dataset)
        self.outputs = self.objective.outputs
        self._each = self.outputs * params.num_parallel_tree  # trees of a round
        self.objective.prepare(dataset, self.reduction)
        if dataset.weight is not None and self.reduction.maximum(float(dataset.weight.max(initial=0.0))) == 0.0:
            raise DataError("weight: found 0 for all rows; allowed: one that is positive, at least")
        self._first_row = self.reduction.before(dataset.rows)
        self.trees: list[Tree] = []
        if continue_from is None:
            self.base_score = self.objective.base_score()
        else:
            continue_from = continue_from.arranged(dataset.feature_names, "continue_from")
            _check_continues(continue_from, self.objective.name, self.outputs, dataset)
            if len(continue_from.trees) % self._each:
                raise ParameterError(
                    f"continue_from: the model has {continue_from.rounds} trees of each output; allowed: a multiple of "
                    f"num_parallel_tree, {params.num_parallel_tree}"
                )
            self.base_score = continue_from.base_score
            self.trees.extend(continue_from.trees)
        self.margin = self.margins(dataset)
        self._gradient, self._hessian = np.empty_like(self.margin), np.empty_like(self.margin)
        if params.rounds:
            params.of_round(self.rounds + params.rounds - 1)  # refused before the first round
        first = params.of_round(self.rounds)
        shared = replace(first, learning_rate=first.learning_rate / params.num_parallel_tree)
        self.grower = grower or grower_of(dataset, shared, workers, comm)
        self._leaves = LeafSums(shared, dataset.rows, dataset.features, workers, self.reduction.comm)

    @property
    def rounds(self) -> int:
        """Rounds of the model so far."""
        return len(self.trees) // self._each

    def margins(self, dataset: Dataset) -> Floats:
        """The margins of a data set's rows by the trees so far, (outputs, rows)."""
        return self.model().predict_margin(dataset, self.workers)

    def boost(self) -> list[Tree]:
        """One round: trees for each output, all on the gradients at the margins before. Adds them to the margins."""
        number, parallel = self.rounds, self.params.num_parallel_tree
        if self.params.scheduled:
            self._take(self.params.of_round(number))
        self.objective.gradient(self.margin, self._gradient, self._hessian, number, self.workers)
        start = self.margin if parallel == 1 else self.margin.copy()
        grown: list[Tree] = []
        for copy in range(parallel):
            statistics = self._gradient, self._hessian
            if parallel > 1:
                statistics = self._gradient.copy(), self._hessian.copy()
            sample_rows(self.params, number * parallel + copy, *statistics, self.workers, self._first_row)
            for output in range(self.outputs):
                columns = column_sampler(self.params, self.dataset.features, len(self.trees) + len(grown))
                gradient, hessian = statistics[0][output], statistics[1][output]
                tree, leaf = self.grower.grow(gradient, hessian, columns)
                tree = self._leaves.refined(tree, leaf, gradient, hessian)
                tree = self.objective.refit(tree, leaf, start[output], hessian, output)
                self._add(tree, leaf, self.margin[output])
                grown.append(tree)
        self.trees.extend(grown)
        return grown

    def _take(self, params: Params) -> None:
        """Takes the learning rate of a round."""
        self.objective.set_params(params)
        self._leaves.learning_rate = params.learning_rate / params.num_parallel_tree

    def replay(self, trees: Sequence[Tree]) -> None:
        """One round whose trees are known. Adds them to the margins."""
        for number, tree in enumerate(trees):
            add_tree(tree, self.dataset, self.margin[number % self.outputs], self.workers)
        self.trees.extend(trees)

    def _add(self, tree: Tree, leaf: NDArray[np.int32], margin: Floats) -> None:
        ranges = row_ranges(self.workers, len(margin))
        self.workers.run(gradients.add_leaves, [(margin, leaf, tree.value, begin, end) for begin, end in ranges])

    def model(self, best_iteration: int | None = None, attributes: Mapping[str, str] | None = None) -> Model:
        """The model of the rounds so far."""
        whole = self.rounds * self._each
        if best_iteration is not None:  # a model counts parallel trees as rounds
            best_iteration = (best_iteration + 1) * self.params.num_parallel_tree - 1
        return Model(
            trees=tuple(self.trees[:whole]),
            features=self.dataset.features,
            outputs=self.outputs,
            base_score=self.base_score,
            objective=self.objective.name,
            objective_parameters=_kept(self.params),
            feature_names=self.dataset.feature_names,
            categories=self.dataset.categories,
            category_policy=self.dataset.policy,
            best_iteration=best_iteration,
            attributes=attributes or {},
            missing=self.dataset.missing,
            infinite=self.dataset.infinite,
        )


class DartTraining(Training):
    """Each round is fitted to what a random part of the trees lacks; then new and dropped trees share the step.

    Weights are multiplied into the leaves, so that a model is one as any other. Margins are computed anew whenever
    trees were dropped: a model predicts what its training saw, bit for bit.
    """

    rescales = True

    def __init__(self, params: Params, dataset: Dataset, workers: Workers, *more: Any) -> None:
        check_dart(params)
        super().__init__(params, dataset, workers, *more)
        self._drops = Drops(params, self.trees)

    def boost(self) -> list[Tree]:
        """One round; see Training."""
        dropped = self._drops.chosen(self.rounds)
        if dropped:
            whole, self.trees = self.trees, without(self.trees, dropped)
            self.margin[:] = self.margins(self.dataset)
            self.trees = whole
        grown = super().boost()
        self._drops.add(grown)
        if dropped:
            for number, tree in self._drops.shared(dropped, len(grown)).items():
                self.trees[number] = tree
            self.margin[:] = self.margins(self.dataset)
        return grown

    def _take(self, params: Params) -> None:
        """See Training."""
        super()._take(params)
        self._drops.params = params

    def replay(self, trees: Any) -> None:
        """Not possible: weights are not kept."""
        raise ParameterError("resume_from: found with booster 'dart', whose trees change later; allowed: 'gbtree'")


class Evaluation:
    """Margins and metrics of the evaluation sets, and the best round by the last metric of the last of them."""

    def __init__(self, training: Training, valid: Mapping[str, Dataset], history: History) -> None:
        self._training = training
        params = training.params
        names = params.eval_metric or (training.objective.metric,)
        self._metrics = distinct([metric_of(name) for name in names])
        if params.early_stopping_rounds and not valid:
            raise ParameterError("parameter 'early_stopping_rounds': found without a data set in 'valid'; allowed: one")
        self.valid = {name: _like(name, dataset, training) for name, dataset in valid.items()}
        self._margins = {
            name: training.margin if dataset is training.dataset else training.margins(dataset)
            for name, dataset in self.valid.items()
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
        for name, dataset in self.valid.items():
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
        if self.valid and training.params.early_stopping_rounds:
            last = self._metrics[-1]
            name = list(self.valid)[-1]
            value = self.scores[name][last.name]
            if np.isnan(value) and not self._nan:
                warn_nan(last.name, f"valid {name!r}", training.rounds)
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

    def __init__(self, training: Training, evaluation: Evaluation, callbacks: Sequence[Callback]) -> None:
        self._training, self._evaluation = training, evaluation
        self._callbacks = {moment: callbacks_of(moment, callbacks) for moment in MOMENTS}
        self._last = training.rounds + training.params.rounds
        self._began = time.perf_counter()

    def replay(self, model: Ensemble) -> None:
        """Does the rounds of an earlier part of this training again, from its trees."""
        training, outputs = self._training, self._training.outputs
        model = model.arranged(training.dataset.feature_names, "resume_from")
        _check_continues(model, training.objective.name, outputs, training.dataset)
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

    def _progress(self, interrupted: bool) -> Progress:
        return Progress(
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


def grower_of(dataset: Dataset, params: Params, workers: Workers, comm: Any = None) -> Grower:
    """The grower that `tree_method` names. Raises ParameterError for "exact" with several workers."""
    if params.tree_method == "exact":
        if comm is not None and comm.size > 1:
            raise ParameterError("parameter 'tree_method': found 'exact' with comm; allowed: 'hist', 'approx'")
        from burnish.boost.exact import ExactGrower

        return ExactGrower(dataset, params, workers)
    if params.tree_method == "approx":
        from burnish.boost.approx import ApproxGrower

        return ApproxGrower(dataset, params, workers, comm)
    from burnish.boost.grower import HistGrower

    return HistGrower(dataset, params, workers, comm)


def workers_of(threads: int, dataset: Dataset) -> Workers:
    """As many threads as asked for, but one on so little data that waking another costs more than it saves."""
    table = dataset.table
    cells = len(table.values) if isinstance(table, Sparse) else dataset.rows * dataset.features
    return Workers(threads or None) if cells >= ONE_THREAD_CELLS else Workers(1)


def named_datasets(valid: Valid) -> dict[str, Dataset]:
    """Evaluation sets by name, from a mapping, or from pairs in either order."""
    pairs: Any = valid.items() if isinstance(valid, Mapping) else valid
    named: dict[str, Dataset] = {}
    for pair in pairs if isinstance(pairs, Iterable) else [pairs]:
        first, second = pair if isinstance(pair, Sequence) and len(pair) == 2 else (pair, None)
        name, dataset = (first, second) if isinstance(first, str) else (second, first)
        if not isinstance(name, str) or not isinstance(dataset, Dataset):
            raise ParameterError("valid: found an entry that is no pair of a name and a Dataset; allowed: such pairs")
        if name in named:
            raise ParameterError(f"valid: found the name {name!r} twice; allowed: different names")
        named[name] = dataset
    return named


def _check_features(params: Params, dataset: Dataset) -> None:
    if dataset.rows == 0:
        raise DataError("the training data has no rows; allowed: 1 and more")
    signs = len(params.monotone_constraints)
    if signs not in (0, dataset.features):
        raise ParameterError(f"parameter 'monotone_constraints': found {signs} signs; allowed: {dataset.features}")
    ordered = np.flatnonzero(np.array(params.monotone_constraints or (0,)) * dataset.categorical)
    if len(ordered):
        name = feature_label(int(ordered[0]), dataset.feature_names)
        raise ParameterError(
            f"parameter 'monotone_constraints': found {params.monotone_constraints[ordered[0]]} for {name}, which is "
            "categorical: its values have no order; allowed: 0, or the feature as numbers"
        )


def _like(name: str, dataset: Dataset, fitted: "Training") -> Dataset:
    """An evaluation set with the columns, found by name, and the category numbers of the training data.

    Raises DataError for other features, and for rows (labels, weights, queries) that training would refuse.
    """
    training = fitted.dataset
    if dataset is training:
        return dataset
    dataset = dataset.arranged(training.feature_names, f"valid {name!r}")
    if dataset.features != training.features:
        raise DataError(f"valid {name!r}: found {dataset.features} features; allowed: {training.features}")
    if dataset.weight is not None and fitted.reduction.maximum(float(dataset.weight.max(initial=0.0))) == 0.0:
        raise DataError(f"valid {name!r}: weight: found 0 for all rows; allowed: one that is positive, at least")
    try:
        if dataset.label is not None:  # a metric that wants labels says so itself
            objective_for(fitted.params, dataset, training.targets).prepare(dataset, Reduction())
        return encode_as(dataset, training.categories, training.policy)
    except DataError as error:
        raise DataError(f"valid {name!r}: {error}") from None


def _check_continues(model: Ensemble, objective: str, outputs: int, dataset: Dataset) -> None:
    wanted = {"objective": objective, "outputs": outputs, "features": dataset.features}
    for what, value in wanted.items():
        found = getattr(model, what)
        if found != value:
            raise ParameterError(f"continue_from: the model's {what}: found {found!r}; allowed: {value!r}")
    if tuple(model.categories) != tuple(dataset.categories):
        raise DataError("continue_from: the model has other categories; make the data with categories=model.categories")


def _kept(params: Params) -> dict[str, Any]:
    """The parameters of an objective that belong to the model."""
    names: dict[str, tuple[str, ...]] = {
        "softmax": ("num_class",), "quantile": ("quantile_alpha",), "logistic": ("scale_pos_weight",),
        "poisson": ("max_delta_step",), "huber": ("huber_slope",), "reg:pseudohubererror": ("huber_slope",),
        "reg:tweedie": ("tweedie_variance_power",),
        "survival:aft": ("aft_loss_distribution", "aft_loss_distribution_scale"),
    }  # fmt: skip
    ranking = ("lambdarank_pair_method", "lambdarank_num_pair_per_sample", "lambdarank_normalization", "ndcg_exp_gain")
    objective = str(params.objective)
    own = ranking if objective.startswith("rank_") else names.get(objective, ())
    return {name: getattr(params, name) for name in own}
