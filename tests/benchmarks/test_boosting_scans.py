"""The naive form of Fig. 2.5 does the same work as what it is measured against."""

import numpy as np

from benchmarks.boosting.scans import NaiveTrees
from burnish.boost.data import Dataset
from burnish.boost.exact import ExactGrower
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.runtime.threads import Workers


def test_naive_trees_are_exact_trees() -> None:
    random = np.random.default_rng(0)
    table = np.where(random.random((400, 7)) < 0.6, 0, random.integers(1, 5, (400, 7))).astype(np.float32)
    gradient, hessian = random.standard_normal(400, np.float32), random.random(400, np.float32)
    grower = ExactGrower(Dataset(table, *table.shape), Params(max_depth=5, learning_rate=1.0), Workers(1))
    tree, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    assert tree.size > 20
    np.testing.assert_allclose(NaiveTrees(table).grow(gradient, hessian, 5), tree.value[leaf], rtol=1e-3, atol=1e-4)
