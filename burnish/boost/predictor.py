"""Predictions of a model, or of one tree: rows × trees, in blocks of rows on several threads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from burnish.boost.categories import encode_as
from burnish.boost.data import Dataset, Sparse
from burnish.boost.inference.forest import COMPLETE, DEEPEST_COMPLETE, WALK, CompiledForest
from burnish.boost.inference.lanes import LANES
from burnish.boost.inference.walk import (
    add_categorical,
    add_complete,
    add_negatives,
    add_walked,
    fill_dense,
    fill_sparse,
)
from burnish.boost.inputs.rows import margins
from burnish.boost.tree import Tree
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

_WORKERS = Workers()
_LEAST = 16 * LANES  # rows for which a further thread is worth waking
_CHUNK = 64  # blocks filled at once, at most,
_CHUNK_FLOATS = 100_000  # and as many as fit in about so much of a second-level cache


@runtime_checkable
class TreeEnsemble(Protocol):
    """Protocol of a model that can be predicted with; see `ensemble.Ensemble`."""

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The trees, in the order in which they are added."""

    @property
    def features(self) -> int:
        """Number of features."""

    @property
    def outputs(self) -> int:
        """Number of outputs: columns of margins."""

    @property
    def rounds(self) -> int:
        """Boosting rounds: trees of each output."""

    @property
    def base_score(self) -> NDArray[np.float32]:
        """Initial margin of every row, float32 (outputs,)."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features; none if they have none."""

    @property
    def categories(self) -> tuple[tuple[Any, ...] | None, ...]:
        """Categories of each feature in the order of their numbers; None for a numeric one."""

    @property
    def category_policy(self) -> str:
        """Policy for categories that training has not seen."""

    @property
    def missing(self) -> float:
        """The value that stands for a missing one; NaN by default."""

    @property
    def infinite(self) -> str:
        """Policy for infinite feature values: "error", "missing" or "largest"."""

    @property
    def forest(self) -> CompiledForest:
        """The trees as the arrays that kernels read."""


def predict_margin(
    model: TreeEnsemble,
    data: Dataset | Sparse | NDArray[np.float32],
    workers: Workers | None = None,
    rounds: tuple[int, int] | None = None,
    base_margin: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Margins (outputs, rows), eq. 2.1: base score plus the trees' values, added in their order as float32.

    `data`: rows of features as in training, (rows, features), NaN where missing. `rounds`: ``begin … end - 1``
    alone; all by default. `base_margin` (rows, outputs), or the data set's, takes the place of the base score. The
    result does not depend on the number of threads. Raises DataError for another number of features.
    """
    table, rows = as_table(data, model)
    if base_margin is None and isinstance(data, Dataset):
        base_margin = data.base_margin
    margin = np.empty((model.outputs, rows), np.float32)
    if base_margin is None:
        margin[:] = model.base_score[:, None]
    else:
        given = margins(base_margin, rows)
        if given.shape != (rows, model.outputs):
            raise DataError(f"base_margin has shape {list(given.shape)}, allowed: {[rows, model.outputs]}")
        margin[:] = given.T
    begin, end = round_range(model, rounds)
    add_forest(model.forest, table, margin, workers, begin * model.outputs, end * model.outputs)
    return margin


def predict_leaf(
    model: TreeEnsemble,
    data: Dataset | Sparse | NDArray[np.float32],
    workers: Workers | None = None,
    rounds: tuple[int, int] | None = None,
) -> NDArray[np.int32]:
    """The leaf (node number) that every row reaches in every tree, (rows, trees)."""
    table, rows = as_table(data, model)
    begin, end = round_range(model, rounds)
    trees = model.trees[begin * model.outputs : end * model.outputs]
    numbers = [np.arange(tree.size, dtype=np.float32) for tree in trees]
    leaf = np.zeros((len(trees), rows), np.float32)  # each tree is an output that gives the numbers of its leaves
    if trees:
        add_forest(CompiledForest(trees, len(trees), tuple(numbers)), table, leaf, workers)
    return np.ascontiguousarray(leaf.T.astype(np.int32))


def add_tree(
    tree: Tree,
    data: Dataset | Sparse | NDArray[np.float32],
    margin: NDArray[np.float32],
    workers: Workers | None = None,
) -> None:
    """Adds a tree's values to the margins (rows,) of one output, in place; `data` is trusted to fit the tree."""
    table = data.table if isinstance(data, Dataset) else data
    add_forest(CompiledForest((tree,)), table, margin[None], workers)


def add_forest(
    forest: CompiledForest,
    table: Sparse | NDArray[np.float32],
    margin: NDArray[np.float32],
    workers: Workers | None = None,
    first: int = 0,
    last: int | None = None,
) -> None:
    """Adds the trees ``first … last - 1`` of a forest to margins (outputs, rows), in place."""
    workers = workers or _WORKERS
    rows = margin.shape[1]
    last = len(forest.trees) if last is None else last
    if not rows or first == last:
        return
    fill = _filler(forest, table)
    columns = len(forest.columns)
    size = (2 * columns + 1) * LANES  # the last slot is for what no tree tests
    chunk = LANES * max(1, min(_CHUNK, 1 + _CHUNK_FLOATS // size))

    runs = forest.runs(first, last)

    def part(begin: int, end: int) -> None:
        count = -(-min(chunk, end - begin) // LANES)
        blocks, values, sums = _scratch(size * count, LANES << DEEPEST_COMPLETE, LANES * margin.shape[0])
        nodes = np.empty(LANES, np.uint32)
        for row in range(begin, end, chunk):
            stop = min(row + chunk, end)
            missing = fill(row, stop, blocks, size) and columns
            if missing:
                add_negatives(blocks, count, columns, size)
            trees = forest.with_missing if missing else forest.plain
            for form, *run in runs:
                given = blocks, size, trees, (row, stop, *run, forest.outputs)
                if form == COMPLETE:
                    add_complete(*given, values, sums, margin)
                elif form == WALK:
                    add_walked(*given, nodes, margin)
                else:
                    add_categorical(*given, margin)

    ranges = workers.ranges(-(-rows // LANES), _LEAST // LANES)
    workers.run(part, [(begin * LANES, min(end * LANES, rows)) for begin, end in ranges])


def _filler(forest: CompiledForest, table: Sparse | NDArray[np.float32]) -> Callable[..., bool]:
    """(first row, last row, blocks, floats of a block) -> whether values are missing; fills blocks from the table."""
    columns = forest.columns
    if isinstance(table, Sparse):
        most = max(int(columns.max(initial=0)), int(table.columns.max(initial=0)))
        place = np.full(most + 1, -1, np.int32)
        place[columns] = np.arange(len(columns))

        def sparse(begin: int, end: int, blocks: NDArray[np.float32], size: int) -> bool:
            fill_sparse(table.start, table.columns, table.values, begin, end, place, blocks, size)
            return True

        return sparse
    groups, places = forest.groups(table.shape[1])
    return lambda begin, end, blocks, size: bool(
        fill_dense(table, begin, end, columns, groups, places, blocks, size)
    )  # fmt: skip


def of_values(data: Any, model: TreeEnsemble) -> Any:
    """A table of the user's, whose categories are values, as `as_table` takes it. Raises DataError.

    In tables that are yet to be read, the number that was missing in training is missing, too. Warns of a Dataset that
    holds it as a number.
    """
    if not isinstance(model, TreeEnsemble):
        raise ParameterError(f"predict: model: found {type(model).__name__}; allowed: a Model, as `train` makes")
    marked = not math.isnan(model.missing)
    if isinstance(data, Dataset) and marked and data.missing != model.missing:
        _warn_marked(data, model.missing)
    if isinstance(data, (Dataset, Sparse)):
        return data
    marked = marked or model.infinite == "missing"
    if not model.categories and not marked and isinstance(data, np.ndarray) and data.dtype == np.float32:
        return data
    return dataset_for(model, data)


def as_table(data: Dataset | Sparse | Any, model: TreeEnsemble) -> tuple[Sparse | NDArray[np.float32], int]:
    """The table of features in `data`, float32 in C order or Sparse, and its number of rows. Raises DataError.

    Columns are found by name where both the data and the model have names. A Dataset with other categories than the
    model's is encoded anew, by the model's policy; a frame is encoded. An array, or Sparse, holds category numbers of
    the model.
    """
    features = model.features
    if not isinstance(data, (Dataset, Sparse, np.ndarray)):
        data = dataset_for(model, data)
    elif isinstance(data, Dataset):
        data = data.arranged(model.feature_names, "predict")
    table = data.table if isinstance(data, Dataset) else data
    if isinstance(table, Sparse):
        if len(table.columns) and not 0 <= table.columns.min() <= table.columns.max() < features:
            raise DataError(f"predict: the data have column {table.columns.max()}, the model has {features} features")
        rows = len(table.start) - 1
    elif table.ndim != 2 or table.dtype.kind not in "fiub":
        raise DataError(f"predict: the data are {table.dtype}{list(table.shape)}, allowed: float32[rows, {features}]")
    elif table.shape[1] != features:
        raise DataError(f"predict: the data have {table.shape[1]} features, the model has {features}")
    else:
        rows = len(table)
    if isinstance(data, Dataset):
        table = encode_as(data, model.categories, model.category_policy).table
    return (table if isinstance(table, Sparse) else np.require(table, np.float32, ["C", "A"])), rows


def dataset_for(model: TreeEnsemble, x: Any) -> Dataset:
    """The rows of any table as the model's features: columns by name, categories numbered as in training."""
    return Dataset.of(
        x,
        missing=model.missing,
        categories=model.categories,
        policy=model.category_policy,
        columns=model.feature_names,
        infinite=model.infinite,
    )


def _warn_marked(data: Dataset, missing: float) -> None:
    """Warns of data that hold, as a number, what was a missing value in training."""
    values = data.table.values if isinstance(data.table, Sparse) else data.table
    if np.float32(missing) in values:
        warnings.warn(
            f"predict: the data hold {missing:g} as a number, which stood for a missing value in training; "
            f"allowed: Dataset.of(x, missing={missing:g})",
            stacklevel=4,
        )


def round_range(model: TreeEnsemble, rounds: tuple[int, int] | None) -> tuple[int, int]:
    """`rounds`, or all. Raises ParameterError if the model does not have them."""
    begin, end = rounds or (0, model.rounds)
    if not 0 <= begin <= end <= model.rounds:
        raise ParameterError(f"rounds is {begin} … {end}, allowed: within 0 … {model.rounds}")
    return begin, end


def _scratch(*floats: int) -> list[NDArray[np.float32]]:
    """Aligned float32 arrays, at multiples of 64 bytes; their lengths `floats` are multiples of 16."""
    raw = np.empty(sum(floats) + 16, np.float32)
    ends = np.cumsum([0, *floats]) - raw.ctypes.data % 64 // 4 % 16 + 16 * bool(raw.ctypes.data % 64)
    return [raw[begin:end] for begin, end in pairwise(ends)]
