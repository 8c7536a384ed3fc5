"""Tests of decision trees of every kind as tests of "at most": the same ways down."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.frontend.onnx.forests import MODES, OnnxTrees, in_order

RANDOM = np.random.default_rng(11)
VALUES = np.array([-np.inf, -1, -0.0, 0, 1, 2, 3, np.inf, np.nan], np.float32)


def random_forest(trees: int, depth: int, dtype: type) -> OnnxTrees:
    """Complete trees over three features, of all kinds of tests, with bounds that are also values, infinite or NaN."""
    inner, total = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes, members = np.zeros((trees * total, 5), np.int64), []
    for at in range(trees * total):
        tree, n = divmod(at, total)
        if n < inner:
            mode = int(RANDOM.integers(1, len(MODES)))
            below = (tree * total + 2 * n + 1, tree * total + 2 * n + 2)
            nodes[at] = (mode, RANDOM.integers(3), *below, RANDOM.integers(2))
            if MODES[mode] == "BRANCH_MEMBER":
                members += [(at, v) for v in RANDOM.choice(VALUES[:-1], RANDOM.integers(4), replace=False)]
    thresholds = RANDOM.choice(VALUES, len(nodes)).astype(dtype)
    weights = np.where(nodes[:, :1] == 0, np.arange(len(nodes), dtype=np.float32)[:, None], np.nan)
    roots = np.arange(trees) * total
    return OnnxTrees(roots, nodes, thresholds, weights, np.array(members, np.float32).reshape(-1, 2))


def leaf(forest: OnnxTrees, root: int, row: np.ndarray) -> int:
    """The leaf that a row comes to, as the standard has it."""
    at = root
    while forest.nodes[at, 0]:
        mode, feature, true, false, tracks = forest.nodes[at].tolist()
        value, bound = row[feature], forest.thresholds[at]
        goes = {
            "BRANCH_LEQ": value <= bound, "BRANCH_LT": value < bound, "BRANCH_GTE": value >= bound,
            "BRANCH_GT": value > bound, "BRANCH_EQ": value == bound, "BRANCH_NEQ": value != bound,
            "BRANCH_MEMBER": value in forest.members[forest.members[:, 0] == at, 1],
        }[MODES[mode]]  # fmt: skip
        goes = bool(tracks) if np.isnan(value) else goes
        at = true if goes else false
    return at


@pytest.mark.parametrize("table", ["float32", "float64"])
@pytest.mark.parametrize("bounds", [np.float32, np.float64])
def test_every_kind_of_test_leads_to_the_same_leaf(bounds: type, table: str) -> None:
    for _ in range(20):
        forest = random_forest(3, 3, bounds)
        roots, nodes, thresholds, weights = in_order(forest, table)
        for _ in range(40):
            row = RANDOM.choice(VALUES, 3).astype(table)
            for root, original in zip(roots.tolist(), forest.roots.tolist(), strict=True):
                at, before = root, -1
                while at != before:
                    before = at
                    feature, first, second, missing = nodes[at].tolist()
                    goes = bool(missing) if np.isnan(row[feature]) else row[feature] <= thresholds[at]
                    at = first if goes else second
                assert nodes[at, 1] == at == nodes[at, 2], "a leaf is reached"
                assert weights[nodes[at, 3], 0] == leaf(forest, original, row)
