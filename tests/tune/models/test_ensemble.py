"""Bootstrap ensembles: moments of the members, scores as throughputs, less certain where there is less data."""

import numpy as np
import pytest

from burnish.tune.models.ensemble import BootstrapEnsemble
from burnish.tune.models.registry import load_model
from burnish.tune.models.trees import TreeModel
from tests.tune.models.synthetic import sample


def test_moments_are_those_of_the_members() -> None:
    data, unseen = sample(100, 1), sample(50, 2)
    model = BootstrapEnsemble(TreeModel("regression"), 4, seed=5)
    model.fit(data.features, data.cost, data.groups)
    members = [load_model(member).predict(unseen.features) for member in model.dump()["state"]["members"]]
    mean, std = model.predict_distribution(unseen.features)
    assert np.allclose(mean, np.mean(members, axis=0), atol=1e-6)
    assert np.allclose(std, np.std(members, axis=0, ddof=1), atol=1e-6)
    assert std.min() > 0


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_scores_are_relative_throughputs(objective: str) -> None:
    data, unseen = sample(400, 3), sample(200, 4)
    model = BootstrapEnsemble(TreeModel(objective))
    model.fit(data.features, data.cost, data.groups)
    wanted = data.cost.min() / unseen.cost
    mean, std = model.predict_distribution(unseen.features)
    assert np.abs(mean - wanted).mean() < 0.5 * np.abs(wanted - wanted.mean()).mean()
    assert 0 < std.mean() < 0.3


def test_more_data_makes_it_more_certain() -> None:
    unseen = sample(200, 5)
    deviations = []
    for count in (30, 1000):
        data = sample(count, 6)
        model = BootstrapEnsemble(TreeModel("regression"))
        model.fit(data.features, data.cost, data.groups)
        deviations.append(model.predict_distribution(unseen.features)[1].mean())
    assert deviations[1] < 0.7 * deviations[0]


def test_the_best_candidate_is_in_every_sample() -> None:
    """One good candidate among bad ones, which a sample would miss in a third of the cases."""
    cost = np.full(40, 100.0)
    cost[7] = 1.0
    features = np.zeros((40, 1), np.float32)
    features[7] = 1.0
    model = BootstrapEnsemble(TreeModel("regression", rounds=300, learning_rate=0.3), 8)
    model.fit(features, cost, np.zeros(40, int))
    for member in model.dump()["state"]["members"]:
        assert load_model(member).predict(np.float32([[0.0]]))[0] < 0.2
