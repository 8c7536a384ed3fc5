"""Groups of rows so small that the survey of all statistics does not see them: told apart all the same."""

from typing import Any

import numpy as np
import pytest

from burnish.boost.data import Dataset
from burnish.boost.exact import ExactGrower
from burnish.boost.fixed import Quantizer
from burnish.boost.grower import HistGrower
from burnish.boost.growth.coarse import too_coarse
from burnish.boost.growth.scan_state import RowRecords
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.runtime.threads import Workers
from tests.boost.growing import equal

ROWS = 40_000  # more than the exact method takes wide records for


def group(rows: int, light: bool) -> tuple[Dataset, Any, Any, Any]:
    """A table in which feature 2 tells some rows of small gradients, and perhaps Hessians, from others that are alike.

    Feature 1 tells two halves of these. Returns it with gradients, Hessians and the rows.
    """
    random = np.random.default_rng(0)
    table = random.integers(0, 4, (ROWS, 3)).astype(np.float32)
    small = np.arange(rows) * (ROWS // rows)
    table[:, 2] = 0
    table[small, 2] = 1
    table[small, 1] = np.arange(rows) % 2
    gradient, hessian = np.full(ROWS, 2e4, np.float32), np.ones(ROWS, np.float32)
    gradient[small] = np.where(table[small, 1] > 0, -3e-3, 1e-3)
    hessian[small] = 1e-4 if light else 1
    return Dataset(table, ROWS, 3), gradient, hessian, small


@pytest.mark.parametrize("rows", [2, 4, 20])
@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("grower", [HistGrower, ExactGrower])
def test_a_small_group_is_told_apart(grower: Any, light: bool, rows: int) -> None:
    dataset, gradient, hessian, small = group(rows, light)
    params = Params(max_depth=3, reg_lambda=0.0, min_child_weight=1e-5, learning_rate=1.0)
    trees = []
    for threads in (1, 2):
        tree, leaf = grower(dataset, params, Workers(threads)).grow(gradient, hessian, EVERY_COLUMN)
        assert np.allclose(tree.value[leaf[small]], -gradient[small] / hessian[small], rtol=1e-3)
        trees.append(tree)
    assert equal(*trees)


def test_light_rows_that_could_fill_a_leaf_ask_for_finer_statistics() -> None:
    gradient, hessian = np.full(ROWS, 0.5, np.float32), np.ones(ROWS, np.float32)
    hessian[:2] = 1e-6
    for least, fine in ((1.0, True), (0.0, False)):
        assert Quantizer(ROWS, Workers(2), min_child_weight=least)(gradient, hessian).packed == fine
        hessian[:2] = 1e-9  # of 23 bits, too
        records = RowRecords(ROWS, Workers(2), least)
        records.load(gradient, hessian)
        assert records.narrow == fine
    assert not Quantizer(ROWS, Workers(2))(gradient, hessian, pairs=True).packed


def test_what_is_coarse_are_most_gradients_of_a_node_that_could_be_split() -> None:
    dataset, gradient, hessian, small = group(20, False)
    params = Params(max_depth=3, reg_lambda=0.0, learning_rate=1.0)
    tree, leaf = HistGrower(dataset, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)

    def found(unit: float, max_depth: int = 3, min_child_weight: float = 1.0) -> bool:
        limits = Params(max_depth=max_depth, min_child_weight=min_child_weight)
        answers = {too_coarse(tree, leaf, gradient, unit, limits, Workers(threads)) for threads in (1, 3)}
        assert len(answers) == 1
        return answers.pop()

    assert found(1e-3) and not found(1e-7)
    assert found(1e3)  # of the root, too
    alone = np.unique(leaf[small])
    gradient[~np.isin(leaf, alone)] = 2e4
    tree.left[:] = np.where(np.isin(tree.left, alone), -1, tree.left)  # the group's node is a leaf
    node = int(np.flatnonzero((tree.left < 0) & (tree.feature >= 0))[0])
    leaf[small] = node
    assert found(1e-3) and not found(1e-3, min_child_weight=11.0)
    gradient[small] = 0
    assert not found(1e-3)
