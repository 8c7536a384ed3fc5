"""Mean and variance of the forest against a walk through every tree; more variance away from the data."""

import numpy as np

from burnish.tune.models.acquisition import acquire
from burnish.tune.models.base import MeasuredTrials
from burnish.tune.models.forest import ForestModel
from tests.tune.models.synthetic import sample


def test_moments_are_those_of_the_mixture_of_leaves() -> None:
    data = sample(150, 1, failing=0.1)
    model = ForestModel(trees=7, seed=3)
    model.fit(data.features, data.cost, data.groups)
    label = MeasuredTrials.of(150, data.cost, data.groups).throughput.astype(np.float64)
    trees = model.dump()["state"]["model"]["model"]["trees"]
    random = np.random.default_rng(3)
    leaves = []
    for tree in trees:
        drawn = random.integers(0, 150, 150)
        random.random(len(tree["left"]))  # places of the thresholds
        at = np.array([leaf_of(tree, row) for row in data.features])
        moments = {leaf: (label[drawn][at[drawn] == leaf].mean(), label[drawn][at[drawn] == leaf].var()) for leaf in at}
        leaves.append([moments[leaf] for leaf in at])
    means, variances = np.moveaxis(np.array(leaves), 2, 0)
    mean, std = model.predict_distribution(data.features)
    assert np.allclose(mean, means.mean(axis=0), atol=1e-4)
    assert np.allclose(std**2, variances.mean(axis=0) + means.var(axis=0), atol=1e-4)
    assert np.array_equal(mean, model.predict(data.features))


def leaf_of(tree: dict[str, list[float]], row: np.ndarray) -> int:
    node = 0
    while tree["left"][node] >= 0:
        below = "left" if row[int(tree["feature"][node])] < np.float32(tree["threshold"][node]) else "right"
        node = int(tree[below][node])
    return node


def test_thresholds_are_anywhere_between_the_rows_they_part() -> None:
    x = np.repeat(np.float32([[0.2], [0.6]]), 20, axis=0)
    model = ForestModel(trees=200)
    model.fit(x, np.repeat([1.0, 2.0], 20), np.zeros(40, int))
    thresholds = [tree["threshold"][0] for tree in model.dump()["state"]["model"]["model"]["trees"]]
    assert 0.2 < min(thresholds) < 0.25 and 0.55 < max(thresholds) <= np.float32(0.6)
    between = model.predict(np.float32([[0.3], [0.4], [0.5]]))
    assert np.allclose(between, [0.875, 0.75, 0.625], atol=0.06)  # linear, as of infinitely many trees


def test_the_forest_is_less_certain_between_data_than_in_it() -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(0.0, 0.3, 200), random.uniform(0.7, 1.0, 200)]).astype(np.float32)[:, None]
    cost = 1.0 / (0.1 + (x[:, 0] > 0.5))  # what is between the two levels is unknown
    model = ForestModel(trees=100, least=5)
    model.fit(x, cost, np.zeros(400, int))
    inside, between = ([[0.1], [0.2], [0.85]], [[0.45], [0.5], [0.55]])
    known, unknown = (model.predict_distribution(np.float32(rows))[1] for rows in (inside, between))
    assert unknown.max() > 10 * known.max()


def test_expected_improvement_prefers_the_unknown_among_equals() -> None:
    random = np.random.default_rng(1)
    x = random.uniform(0, 1, (300, 1)).astype(np.float32)
    noise = np.where(x[:, 0] > 0.5, 0.5, 0.01)  # as fast in the mean, but not as surely
    cost = 1.0 / np.clip(0.6 + noise * random.standard_normal(300), 0.05, 1.2)
    model = ForestModel()
    model.fit(x, cost, np.zeros(300, int))
    worth = acquire(model, "ei", np.float32([[0.25], [0.75]]))
    assert worth[1] > 2 * worth[0]
