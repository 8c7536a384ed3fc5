"""TreeGRU as the cost model (AutoTVM §3.1, §4, appendix A.3), in torch, batched over candidates."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from burnish.base.optional import require
from burnish.boost.formats.values import float32_array, floats
from burnish.errors import DataError, ParameterError
from burnish.tune.models.base import Floats, LoopNests, MeasuredTrials, check_objective, document, not_fitted, opened
from burnish.tune.models.networks import ENCODINGS, initial_parameters, rank_loss, regression_loss, scores_of

BATCH = 256  # candidates; the rank loss sums over all pairs of a batch
PREDICTED = 4096  # candidates at a time


class TreeGRUModel:
    """TreeGRU cost model: a recurrent network over loop nests, trained with Adam; hidden sizes of AutoTVM are 128.

    encoding "identifier" has an embedding for each loop of the nest, and learns one task well; "context" sees the
    features of loops alone, whose states it scatters into `slots` vectors, and transfers to other loop nests. Features
    x enter as sign(x) log(1 + |x|), since extents span orders of magnitude, no larger or smaller than any that it was
    fitted on (a search would follow it to where it has learned nothing), and then with mean 0 and deviation 1.
    device: where torch computes, by default a GPU if it sees one. Raises ParameterError, and MissingDependencyError
    without torch.
    """

    kind = "neural"

    def __init__(
        self,
        encoding: str = "context",
        objective: str = "rank",
        *,
        hidden: int = 128,
        slots: int = 8,
        steps: int = 400,
        learning_rate: float = 2e-3,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        if encoding not in ENCODINGS:
            raise ParameterError(f"encoding: found {encoding!r}; allowed: {', '.join(map(repr, ENCODINGS))}")
        for name, value in (("hidden", hidden), ("slots", slots), ("steps", steps)):
            if value < 1:
                raise ParameterError(f"{name}: found {value}; allowed: 1 and more")
        self.objective = check_objective(objective)
        self.settings: dict[str, Any] = {
            "encoding": encoding, "objective": objective, "hidden": hidden, "slots": slots, "steps": steps,
            "learning_rate": learning_rate, "seed": seed,
        }  # fmt: skip
        torch = require("torch", extra="torch")
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._parameters: dict[str, Any] | None = None
        self._range: Floats  # (2, d): the least and the most
        self._mean: Floats
        self._deviation: Floats
        self._levels: int

    def fit(self, features: Any, cost_seconds: Any, groups: Any) -> None:
        """See CostModel; features are LoopNests."""
        torch = require("torch", extra="torch")
        nests = _nests("fit", features)
        measured = MeasuredTrials.of(len(nests), cost_seconds, groups)
        random = np.random.default_rng(self.settings["seed"])
        context = _logarithms(nests)[nests.mask]
        self._range = np.stack([context.min(axis=0), context.max(axis=0)])
        self._mean = context.mean(axis=0)
        deviation = context.std(axis=0)
        self._deviation = np.where(deviation > 0, deviation, np.float32(1))
        self._levels = nests.levels.shape[1]
        encoding, width = self.settings["encoding"], nests.levels.shape[2]
        first = initial_parameters(encoding, width, self._levels, *self._sizes(), random)
        parameters = {name: self._tensor(value).requires_grad_() for name, value in first.items()}
        data = [self._tensor(values) for values in (*self._inputs(nests), measured.throughput, measured.group)]
        optimizer = torch.optim.Adam(parameters.values(), lr=self.settings["learning_rate"])
        steps: int = self.settings["steps"]
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        loss_of = rank_loss if self.objective == "rank" else regression_loss
        with _one_thread():
            for batch in _batches(measured, steps, self.objective == "rank", random):
                levels, mask, throughput, group = (values[self._tensor(batch)] for values in data)
                loss = loss_of(scores_of(parameters, levels, mask), throughput, group)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                falling.step()
        self._parameters = {name: value.detach() for name, value in parameters.items()}

    def predict(self, features: Any) -> Floats:
        """See CostModel; features are LoopNests."""
        if self._parameters is None:
            raise not_fitted()
        torch = require("torch", extra="torch")
        nests = _nests("predict", features)
        width = len(self._mean)
        if nests.levels.shape[2] != width:
            raise DataError(f"predict: found {nests.levels.shape[2]} features of a level; allowed: {width}")
        if self.settings["encoding"] == "identifier" and nests.levels.shape[1] > self._levels:
            raise DataError(f"predict: found {nests.levels.shape[1]} levels; allowed: {self._levels} and fewer")
        scores = np.empty(len(nests), np.float32)
        with _one_thread(), torch.inference_mode():
            for begin in range(0, len(nests), PREDICTED):
                part = slice(begin, begin + PREDICTED)
                levels, mask = (self._tensor(values) for values in self._inputs(nests[part]))
                scores[part] = scores_of(self._parameters, levels, mask).cpu().numpy()
        return scores

    def fresh(self, seed: int) -> "TreeGRUModel":
        """See CostModel."""
        return TreeGRUModel(**{**self.settings, "seed": seed}, device=self._device)

    def dump(self) -> dict[str, Any]:
        """See CostModel."""
        if self._parameters is None:
            return document(self.kind, self.settings, None)
        arrays = {name: value.cpu().numpy() for name, value in self._parameters.items()}
        state = {
            "levels": self._levels, "range": floats(self._range.reshape(-1)), "mean": floats(self._mean),
            "deviation": floats(self._deviation),
            "parameters": {name: floats(value.reshape(-1)) for name, value in arrays.items()},
        }  # fmt: skip
        return document(self.kind, self.settings, state)

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Self:
        """See CostModel."""
        _, settings, state = opened(document, cls.kind)
        model = cls(**settings)
        if state is None:
            return model
        missing = {"levels", "range", "mean", "deviation", "parameters"} - set(state)
        if missing:
            raise DataError(f"cost model: {', '.join(sorted(missing))}: missing")
        model._levels = int(state["levels"])
        ends = float32_array(state["range"], "cost model: range")
        model._mean = float32_array(state["mean"], "cost model: mean")
        model._deviation = float32_array(state["deviation"], "cost model: deviation")
        if not len(ends) == 2 * len(model._mean) == 2 * len(model._deviation):
            raise DataError("cost model: range, mean and deviation are not of equally many features")
        model._range = ends.reshape(2, -1)
        random = np.random.default_rng(0)
        shapes = initial_parameters(settings["encoding"], len(model._mean), model._levels, *model._sizes(), random)
        given = {name: float32_array(values, f"cost model: {name}") for name, values in state["parameters"].items()}
        if {name: len(values) for name, values in given.items()} != {n: v.size for n, v in shapes.items()}:
            raise DataError("cost model: the parameters do not fit the settings")
        model._parameters = {name: model._tensor(given[name].reshape(v.shape)) for name, v in shapes.items()}
        return model

    def _sizes(self) -> tuple[int, int]:
        return self.settings["hidden"], self.settings["slots"]

    def _tensor(self, values: NDArray[Any]) -> Any:
        return require("torch", extra="torch").from_numpy(np.ascontiguousarray(values)).to(self._device)

    def _inputs(self, nests: LoopNests) -> tuple[Floats, NDArray[np.bool_]]:
        """Normalised levels, 0 where there is none, and the mask."""
        levels = (np.clip(_logarithms(nests), *self._range) - self._mean) / self._deviation
        return np.where(nests.mask[:, :, None], levels, np.float32(0)), nests.mask


@contextmanager
def _one_thread() -> Iterator[None]:
    """The tensors are so small that torch's threads wait for one another longer than they compute."""
    torch = require("torch", extra="torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _nests(what: str, features: Any) -> LoopNests:
    if not isinstance(features, LoopNests):
        raise DataError(f"{what}: found features of type {type(features).__name__}; allowed: LoopNests")
    return features


def _logarithms(nests: LoopNests) -> Floats:
    logarithms: Floats = np.sign(nests.levels) * np.log1p(np.abs(nests.levels))
    return logarithms


def _batches(
    measured: MeasuredTrials, count: int, together: bool, random: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Mini-batches of rows, ``count`` in all; each pass over the data is shuffled, tasks kept ``together`` if asked
    for.
    """
    batches: list[NDArray[np.int64]] = []
    rows = len(measured.group)
    while len(batches) < count:
        order = random.permutation(rows)
        if together:
            order = order[np.argsort(random.permutation(measured.groups)[measured.group[order]], kind="stable")]
        parts = max(1, round(rows / BATCH))
        batches.extend(np.array_split(order, parts))
    return batches[:count]
