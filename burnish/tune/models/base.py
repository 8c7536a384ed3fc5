"""Cost-model interface: fitted on measured candidates of one or more tasks, it scores others; higher is better."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError, ParameterError

Floats = NDArray[np.float32]
OBJECTIVES = ("rank", "regression")
FORMAT, VERSION = "burnish.tune.model", 1


class CostModel(Protocol):
    """A statistical cost model (thesis-chen §5.2.1).

    objective: "regression" if a score is a throughput relative to the best of its task, or "rank" if only the order of
    scores of one task means something (eq. 5.2).
    """

    objective: str

    def fit(self, features: Any, cost_seconds: Any, groups: Any) -> None:
        """Fits the model on all that was measured so far; what it was fitted on before is forgotten.

        features: float32 (n, d), or LoopNests of n candidates. cost_seconds: (n,), infinite where a candidate failed.
        groups: (n,) integers, the task of each; candidates of different tasks are never compared. Raises DataError.
        """

    def predict(self, features: Any) -> Floats:
        """A finite score of every candidate, (n,), higher is better. Raises DataError, also before the first fit."""

    def fresh(self, seed: int) -> "CostModel":
        """A model of the same settings but this seed, not fitted."""

    def dump(self) -> dict[str, Any]:
        """The model as JSON knows it: settings, and what was fitted. `registry.load_model` reads it."""

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Self:
        """The model that was dumped; its predictions are the same, bit for bit. Raises DataError."""


class UncertainModel(CostModel, Protocol):
    """Cost model with predictive uncertainty. Its scores are relative throughputs."""

    def predict_distribution(self, features: Any) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the score of every candidate, (n,) each. Raises DataError."""


@dataclass(frozen=True)
class LoopNests:
    """Loop nests of n candidates: for each level, from the outermost on, its context (AutoTVM table 2).

    levels: float32 (n, levels, d), finite where the mask says so. mask: (n, levels), which levels the nest has; every
    nest has one.
    """

    levels: Floats
    mask: NDArray[np.bool_]

    def __post_init__(self) -> None:
        levels, mask = np.require(self.levels, np.float32, ["C", "A"]), np.asarray(self.mask)
        if levels.ndim != 3 or mask.dtype != np.bool_ or mask.shape != levels.shape[:2]:
            raise DataError(
                f"loop nests: found levels {list(levels.shape)} and mask {mask.dtype}{list(mask.shape)}; "
                "allowed: [n, levels, d] and bool[n, levels]"
            )
        some = mask.any(axis=1)
        if not some.all():
            raise DataError(f"loop nests: candidate {int(np.argmin(some))} has no level; allowed: 1 and more")
        bad = ~np.isfinite(levels).all(axis=2) & mask
        if bad.any():
            candidate, level = np.argwhere(bad)[0].tolist()
            raise DataError(f"loop nests: level {level} of candidate {candidate} has a feature that is not finite")
        object.__setattr__(self, "levels", np.where(mask[:, :, None], levels, np.float32(0)))
        object.__setattr__(self, "mask", mask)

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, rows: Any) -> "LoopNests":
        return LoopNests(self.levels[rows], self.mask[rows])


@dataclass(frozen=True)
class NestsAndTable:
    """Loop nests of n candidates, which a transferred model reads, and the table [n, d] of a local one."""

    nests: LoopNests
    table: Floats

    def __post_init__(self) -> None:
        if np.ndim(self.table) != 2 or len(self.table) != len(self.nests):
            raise DataError(
                f"features: found {len(self.nests)} loop nests and a table {list(np.shape(self.table))}; "
                f"allowed: a table [{len(self.nests)}, d]"
            )

    def __len__(self) -> int:
        return len(self.nests)


@dataclass(frozen=True)
class MeasuredTrials:
    """Measurements as the models learn from them."""

    throughput: Floats  # (n,): the least cost of the task over the candidate's; 0 of those that failed
    group: NDArray[np.int64]  # (n,): number of the task, from 0 without gaps
    groups: int

    @classmethod
    def of(cls, count: int, cost_seconds: Any, groups: Any) -> "MeasuredTrials":
        """Costs and tasks of `count` candidates. Raises DataError."""
        cost, task = np.asarray(cost_seconds, np.float64), np.asarray(groups)
        if cost.shape != (count,) or task.shape != (count,):
            raise DataError(
                f"fit: found {count} candidates, costs {list(cost.shape)} and groups {list(task.shape)}; "
                f"allowed: one of each for every candidate"
            )
        if count == 0:
            raise DataError("fit: found no candidates; allowed: 1 and more")
        if task.dtype.kind not in "iu":
            raise DataError(f"fit: groups are {task.dtype}; allowed: integers")
        if not (cost > 0).all():
            row = int(np.argmin(cost > 0))
            raise DataError(f"fit: cost of candidate {row}: found {cost[row]}; allowed: seconds > 0, inf if it failed")
        names, group = np.unique(task, return_inverse=True)
        best = np.full(len(names), np.inf)
        np.minimum.at(best, group, cost)
        worked = np.isfinite(cost)
        throughput = np.zeros(count)
        throughput[worked] = best[group[worked]] / cost[worked]
        return cls(throughput.astype(np.float32), group.astype(np.int64), len(names))

    def by_group(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """An order of the rows in which those of a task stand together, and how many each task has."""
        return np.argsort(self.group, kind="stable"), np.bincount(self.group, minlength=self.groups)


def table(what: str, features: Any, width: int | None = None) -> Floats:
    """Features as float32 (n, d) in C order. Raises DataError for another width, and for what is not finite."""
    found = np.asarray(features)
    if found.ndim != 2 or found.dtype.kind not in "fiub" or (width is not None and found.shape[1] != width):
        shape = f"{found.dtype}{list(found.shape)}"
        raise DataError(f"{what}: found features {shape}; allowed: float32[n, {'d' if width is None else width}]")
    rows = np.require(found, np.float32, ["C", "A"])
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
        value = rows[row, column]
        raise DataError(f"{what}: feature {column} of candidate {row}: found {value}; allowed: finite numbers")
    return rows


def check_objective(objective: str) -> str:
    """The objective, if there is such a one. Raises ParameterError."""
    if objective not in OBJECTIVES:
        raise ParameterError(f"objective: found {objective!r}; allowed: {', '.join(map(repr, OBJECTIVES))}")
    return objective


def not_fitted() -> DataError:
    """The error of a model that is asked before it has seen data."""
    return DataError("predict: the model has not been fitted; allowed: after fit, or load")


def document(kind: str, settings: Mapping[str, Any], state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Serialized cost model, as `dump` returns it; ``state`` is None for a model that has not been fitted."""
    return {"format": FORMAT, "version": VERSION, "kind": kind, "settings": dict(settings), "state": state}


def opened(document: Mapping[str, Any], kind: str | None = None) -> tuple[str, dict[str, Any], Any]:
    """Kind, settings and state of a dumped model. Raises DataError if it is none, or not of that kind."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT or document.get("version") != VERSION:
        raise DataError(f"cost model: found no document of format {FORMAT!r}, version {VERSION}")
    found, settings = document.get("kind"), document.get("settings")
    if not isinstance(found, str) or not isinstance(settings, Mapping) or "state" not in document:
        raise DataError("cost model: 'kind', 'settings' or 'state' is missing, or of the wrong type")
    if kind is not None and found != kind:
        raise DataError(f"cost model: kind is {found!r}; allowed: {kind!r}")
    return found, dict(settings), document["state"]
