"""TreeGRU against a walk loop by loop in NumPy; losses against their definitions; what padding and depth do."""

import numpy as np
import pytest
import torch

from burnish.errors import DataError, ParameterError
from burnish.tune.models.base import LoopNests
from burnish.tune.models.networks import initial_parameters, rank_loss, regression_loss, scores_of
from burnish.tune.models.neural import TreeGRUModel
from tests.tune.models.synthetic import sample

HIDDEN, SLOTS, WIDTH, LEVELS = 5, 3, 4, 6


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def parameters(encoding: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    first = initial_parameters(encoding, WIDTH, LEVELS, HIDDEN, SLOTS, random)
    return {name: random.normal(0, 0.7, value.shape).astype(np.float32) for name, value in first.items()}


def naive_score(p: dict[str, np.ndarray], levels: np.ndarray, mask: np.ndarray) -> float:
    """One nest, from the innermost loop outwards."""

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    state = np.zeros(HIDDEN)
    slots = np.zeros((SLOTS, HIDDEN))
    for level in reversed(np.flatnonzero(mask)):
        embedded = p["embed.weight"] @ levels[level] + p["embed.bias"]
        if "identifier" in p:
            embedded = embedded + p["identifier"][level]
        embedded = np.maximum(embedded, 0)
        new = np.split(p["gru.input_weight"] @ embedded + p["gru.input_bias"], 3)
        old = np.split(p["gru.hidden_weight"] @ state + p["gru.hidden_bias"], 3)
        reset, update = sigmoid(new[0] + old[0]), sigmoid(new[1] + old[1])
        state = (1 - update) * np.tanh(new[2] + reset * old[2]) + update * state
        if "slots" in p:
            weight = np.exp(p["slots"] @ state)
            slots += (weight / weight.sum())[:, None] * state
    summary = slots.reshape(-1) if "slots" in p else state
    return float(p["output.weight"][0] @ summary + p["output.bias"][0])


@pytest.mark.parametrize("encoding", ["context", "identifier"])
def test_a_batch_is_the_walk_through_every_nest(encoding: str) -> None:
    random = np.random.default_rng(0)
    levels = random.standard_normal((9, LEVELS, WIDTH)).astype(np.float32)
    mask = random.random((9, LEVELS)) < 0.6
    mask[:, 0] = True
    p = parameters(encoding)
    tensors = {name: torch.from_numpy(value) for name, value in p.items()}
    scores = scores_of(tensors, torch.from_numpy(levels), torch.from_numpy(mask)).numpy()
    assert np.allclose(scores, [naive_score(p, *nest) for nest in zip(levels, mask, strict=True)], atol=1e-5)


def test_losses_are_their_definitions() -> None:
    random = np.random.default_rng(2)
    scores, throughput, group = random.standard_normal(12), random.integers(0, 4, 12) / 3, random.integers(0, 3, 12)
    pairs = [
        np.log1p(np.exp(-(scores[i] - scores[j])))
        for i in range(12)
        for j in range(12)
        if group[i] == group[j] and throughput[i] > throughput[j]
    ]
    tensors = [torch.from_numpy(values) for values in (scores, throughput, group)]
    assert np.isclose(float(rank_loss(*tensors)), np.mean(pairs))
    assert np.isclose(float(regression_loss(*tensors)), np.mean((scores - throughput) ** 2))
    alone = [tensors[0], tensors[1], torch.arange(12)]
    assert float(rank_loss(*alone)) == 0.0


def test_levels_of_padding_change_nothing() -> None:
    data = sample(60, 1)
    model = TreeGRUModel(hidden=8, slots=2, steps=20, device="cpu")
    model.fit(data.nests, data.cost, data.groups)
    padded = LoopNests(
        np.concatenate([data.nests.levels, np.full((60, 3, data.nests.levels.shape[2]), 7, np.float32)], axis=1),
        np.concatenate([data.nests.mask, np.zeros((60, 3), bool)], axis=1),
    )
    assert np.allclose(model.predict(padded), model.predict(data.nests), atol=1e-6)


def test_refusals() -> None:
    data = sample(20, 2)
    model = TreeGRUModel("identifier", hidden=4, slots=2, steps=3, device="cpu")
    with pytest.raises(DataError, match="features of type ndarray; allowed: LoopNests"):
        model.fit(data.features, data.cost, data.groups)
    model.fit(data.nests, data.cost, data.groups)
    levels, mask = data.nests.levels, data.nests.mask
    with pytest.raises(DataError, match="found 4 features of a level; allowed: 5"):
        model.predict(LoopNests(levels[:, :, :4], mask))
    with pytest.raises(DataError, match="found 12 levels; allowed: 6 and fewer"):
        model.predict(LoopNests(np.tile(levels, (1, 2, 1)), np.tile(mask, (1, 2))))
    with pytest.raises(ParameterError, match="encoding: found 'flat'; allowed: 'identifier', 'context'"):
        TreeGRUModel("flat")
    with pytest.raises(ParameterError, match="steps: found 0"):
        TreeGRUModel(steps=0)
    dumped = model.dump()
    del dumped["state"]["range"]
    with pytest.raises(DataError, match="cost model: range: missing"):
        TreeGRUModel.load(dumped)
    dumped = model.dump()
    dumped["state"]["range"].pop()
    with pytest.raises(DataError, match="range, mean and deviation are not of equally many features"):
        TreeGRUModel.load(dumped)
    dumped = model.dump()
    dumped["state"]["parameters"]["output.bias"] = [1.0, 2.0]
    with pytest.raises(DataError, match="the parameters do not fit the settings"):
        TreeGRUModel.load(dumped)


def test_does_not_follow_features_beyond_what_it_has_seen() -> None:
    """A candidate with a larger feature than any that was measured scores as if it had the largest."""
    data = sample(60, 9)
    model = TreeGRUModel("identifier", "regression", hidden=8, steps=5, device="cpu")
    model.fit(data.nests, data.cost, data.groups)
    levels, mask = data.nests.levels, data.nests.mask
    most = levels[mask].max(axis=0)
    last, beyond = levels.copy(), levels.copy()
    last[..., 0], beyond[..., 0] = most[0], 1000 * most[0]
    scores = model.predict(LoopNests(last, mask))
    assert np.array_equal(model.predict(LoopNests(beyond, mask)), scores)
    assert not np.array_equal(model.predict(data.nests), scores)
