"""Pretrained cost model: fitted to measurements of other kernels (transfer learning); one is shipped with Burnish.

Source: thesis-chen section 5.3. Records hold the features of what was measured, so that a model can be trained on them
without the operators, and on those of other machines too. The file of a trained model says how that was done.
What is fast depends most on how many sums the registers hold, and on how fast they are multiplied: searches that began
with a model of machines of another kind found little more than those that began with none. So each kind has its own.

It guides searches only. It does not choose for kernels that nobody tunes: there the templates' own choices are better
(``benchmarks.ablation default`` measures both in turns).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.files import write_atomic
from burnish.errors import DataError
from burnish.machines.target import Target
from burnish.search.space import Points
from burnish.tune.features import EDITION, INVARIANT, sequence
from burnish.tune.models.base import CostModel, LoopNests
from burnish.tune.models.neural import TreeGRUModel
from burnish.tune.models.registry import load_model
from burnish.tune.models.transfer import TransferModel
from burnish.tune.models.trees import TreeModel
from burnish.tune.records import Record
from burnish.tune.space import TuningSpace

FORMAT, VERSION = "burnish.tune.prior", 1
SHIPPED = {kind: Path(__file__).parent / f"prior_{kind}.json" for kind in ("16", "32", "32_narrow")}  # see kind_of
LEAST = 4  # candidates of a kernel that are worth comparing
ENOUGH = 64  # candidates, of all kernels together
FOLDS = 5
_STEPS = 200  # of the training of a TreeGRU
SHOWN = 8  # candidates of a held-out kernel that the model would have measured


@dataclass(frozen=True)
class TrainingSet:
    """Measurements of several kernels: features float32 [n, INVARIANT], seconds [n] (inf: failed), kernels [n] from 0.

    Times of one number only may be compared: of one kernel, machine and setting.
    """

    features: NDArray[np.float32]
    seconds: NDArray[np.float64]
    kernels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def groups(self) -> int:
        """The number of kernels."""
        return int(self.kernels.max(initial=-1)) + 1

    def of(self, rows: NDArray[Any]) -> TrainingSet:
        """Subset of the training set, by rows."""
        return TrainingSet(self.features[rows], self.seconds[rows], self.kernels[rows])


def training_records(records: Iterable[Record], besides: Collection[str] = ()) -> list[Record]:
    """Records to learn from, but for those of the kernels ``besides``: with features of this edition.

    Paired times of winners are left out: they belong to no row of trials. So are kernels with few trials, or of which
    nothing worked.
    """
    found: dict[tuple[object, ...], list[Record]] = {}
    for each in records:
        fits = each.edition == EDITION and len(each.features) == len(INVARIANT)
        if fits and not each.won and each.kernel not in besides:
            found.setdefault((each.target, each.threads, each.cold, each.kernel), []).append(each)
    groups = [own for own in found.values() if len(own) >= LEAST and any(r.outcome == "ok" for r in own)]
    return [each for own in groups for each in own]


def training_set(records: Sequence[Record]) -> TrainingSet:
    """Training set of the records that :func:`training_records` chooses."""
    numbers: dict[tuple[object, ...], int] = {}
    kernels = [numbers.setdefault((r.target, r.threads, r.cold, r.kernel), len(numbers)) for r in records]
    features = np.array([r.features for r in records], np.float32).reshape(len(records), len(INVARIANT))
    return TrainingSet(features, np.array([r.ranked for r in records], float), np.array(kernels, np.int64))


def fitted(known: TrainingSet, seed: int = 0) -> TreeModel:
    """The model that orders the candidates of all kernels in the lessons best."""
    model = TreeModel("rank", rounds=80, learning_rate=0.15, max_depth=5, seed=seed)
    model.fit(known.features, known.seconds, known.kernels)
    return model


def fit_transfer(prior: CostModel | None, records: Iterable[Record], seed: int = 0) -> CostModel | None:
    """Transfer learning: trees fitted to records, on top of the scores of ``prior`` if there is one; ``prior`` itself
    where records are too few.
    """
    known = training_set(training_records(records))
    if len(known) < ENOUGH:
        return prior
    local = TreeModel("rank", seed=seed)
    model = local if prior is None else TransferModel(prior, local)
    model.fit(known.features, known.seconds, known.kernels)
    return model


def fit_nests(known: Iterable[tuple[TuningSpace, Points, Sequence[float]]], seed: int = 0) -> CostModel | None:
    """Context-encoded TreeGRU (thesis-chen §5.3, figure 5.3 d) of the kernels tuned so far, as a global model.

    known: of each kernel its space, the points [n, width] that were tried, and their costs in seconds, (n,), infinite
    where they failed. None where they are too few. Raises MissingDependencyError without torch.
    """
    some = [each for each in known if len(each[2]) >= LEAST and min(each[2]) < inf]
    if sum(len(costs) for _, _, costs in some) < ENOUGH:
        return None
    nests = [sequence(space, points) for space, points, _ in some]
    model = TreeGRUModel("context", "rank", steps=_STEPS, seed=seed)
    model.fit(
        LoopNests(np.concatenate([levels for levels, _ in nests]), np.concatenate([mask for _, mask in nests])),
        np.concatenate([np.asarray(costs, np.float64) for _, _, costs in some]),
        np.repeat(np.arange(len(some)), [len(costs) for _, _, costs in some]),
    )
    return model


def train(records: Iterable[Record], seed: int = 0) -> dict[str, Any]:
    """The document of a model that was trained on records, with how it was. Equal records give equal documents.

    Raises DataError where there are fewer kernels to learn from than the held-out test needs.
    """
    good = training_records(records)
    known = training_set(good)
    if known.groups < FOLDS:
        raise DataError(
            f"training: found {len(known)} records of {known.groups} kernels with features of edition {EDITION}; "
            f"allowed: records of {FOLDS} kernels and more, each with {LEAST} candidates"
        )
    dates = sorted(r.date for r in good)
    trained = {
        "machines": sorted({r.target for r in good}), "threads": sorted({r.threads for r in good}),
        "weights": sorted({"from memory" if r.cold else "from caches" for r in good}),
        "records": len(good), "failed": sum(r.outcome != "ok" for r in good), "kernels": known.groups,
        "by_template": dict(sorted(Counter(r.template for r in good).items())),
        "measured": [dates[0], dates[-1]], "seed": seed, "held_out": held_out(known, seed),
    }  # fmt: skip
    return {
        "format": FORMAT, "version": VERSION, "edition": EDITION, "columns": len(INVARIANT), "trained": trained,
        "model": fitted(known, seed).dump(),
    }  # fmt: skip


def held_out(known: TrainingSet, seed: int = 0) -> dict[str, float]:
    """Cross-validation of ranking on kernels that the model has not seen: about a fifth at a time, the others known.

    An operator that was measured on several machines, or in several settings, is one here: it is never known in part.
    ``pairs_in_order``: the share of pairs whose faster one scores higher, of chance 0.5; the median of the kernels.
    ``reached_by_8``: the share of the best speed that the eight which score highest reach, and ``reached_by_first_8``
    the first eight that were measured, the default among them; means over the kernels.
    """
    alike = _alike(known)
    fold = (np.random.default_rng(seed).permutation(known.groups) % FOLDS)[alike]
    ordered, reached, first = [], [], []
    for number in range(FOLDS):
        apart = fold[known.kernels] == number
        model = fitted(known.of(~apart), seed)
        for kernel in np.flatnonzero(fold == number):
            own = known.of(known.kernels == kernel)
            scores = model.predict(own.features)
            ordered.append(pairs_in_order(scores, own.seconds))
            highest = np.argsort(-scores, kind="stable")[:SHOWN]
            reached.append(own.seconds.min() / own.seconds[highest].min())
            first.append(own.seconds.min() / own.seconds[:SHOWN].min())
    found = {
        "pairs_in_order": np.median(ordered), "reached_by_8": np.mean(reached), "reached_by_first_8": np.mean(first),
    }  # fmt: skip
    return {name: round(float(value), 3) for name, value in found.items()}


def _alike(known: TrainingSet) -> NDArray[np.int64]:
    """Equivalence of kernels: for each the first that has a candidate with equal features, as kernels of one operator
    have.
    """
    first = np.arange(known.groups)
    _, candidate = np.unique(known.features, axis=0, return_inverse=True)
    seen: dict[int, int] = {}
    for kernel, own in zip(known.kernels.tolist(), candidate.ravel().tolist(), strict=True):
        low, high = sorted((first[kernel], first[seen.setdefault(own, kernel)]))
        first[first == high] = low
    return first


def pairs_in_order(scores: NDArray[Any], seconds: NDArray[np.float64]) -> float:
    """The share of pairs with different times whose faster one has the higher score; equal scores count half."""
    faster = seconds[:, None] < seconds[None, :]
    gap = scores[:, None].astype(np.float64) - scores[None, :]
    return float(((gap > 0) + 0.5 * (gap == 0))[faster].mean()) if faster.any() else 0.5


def save(document: Mapping[str, Any], path: str | Path) -> None:
    """Writes a trained model, as text. Raises OSError."""
    write_atomic(Path(path), [json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"])


def kind_of(target: Target) -> str:
    """Machine class whose members share a model, by vector registers: "16", "32", and "32_narrow", which multiplies
    less than 64 bytes at once.
    """
    if target.vector_registers < 32:
        return "16"
    return "32" if target.multiply_bytes >= 64 else "32_narrow"


def shipped(target: Target) -> CostModel:
    """The model that comes with Burnish for machines such as this. Raises as :func:`load` does."""
    return load(SHIPPED[kind_of(target)])


def load(path: str | Path) -> CostModel:
    """The model of a file. Raises DataError, naming the file, if it is broken or of another edition; OSError."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"model '{path}': not JSON: {error}; train it again") from None
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise DataError(f"model '{path}': found no document of format {FORMAT!r}, version {VERSION}; train it again")
    found = document.get("edition"), document.get("columns")
    if found != (EDITION, len(INVARIANT)):
        raise DataError(
            f"model '{path}': reads edition {found[0]} of the features, {found[1]} columns; "
            f"allowed: edition {EDITION}, {len(INVARIANT)} columns; train it again"
        )
    try:
        model = load_model(document.get("model", {}))
        model.predict(np.zeros((1, len(INVARIANT)), np.float32))
    except DataError as error:
        raise DataError(f"model '{path}': {error}; train it again") from None
    return model
