import numpy as np
import pytest

from burnish.boost.importance import KINDS, importance, importance_by_name
from burnish.boost.model import Model
from burnish.boost.tree import TreeBuilder
from burnish.errors import ParameterError


def small() -> Model:
    builder = TreeBuilder()
    left, _ = builder.split(builder.add(0, 10), 2, 0.5, True, 4.0, (0.1, 6), (0.2, 4))
    builder.split(left, 0, 1.5, False, 1.0, (0.3, 5), (0.4, 1))
    other = TreeBuilder()
    other.split(other.add(0, 8), 2, 0.25, True, 2.0, (0.1, 6), (0.2, 2))
    return Model((builder.tree(), other.tree()), 4, feature_names=("a", "b", "c", "d"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("weight", [1, 0, 2, 0]), ("total_gain", [1, 0, 6, 0]), ("gain", [1, 0, 3, 0]),
        ("total_cover", [6, 0, 18, 0]), ("cover", [6, 0, 9, 0]),
    ],
)  # fmt: skip
def test_importance(kind: str, expected: list[float]) -> None:
    assert importance(small(), kind).tolist() == expected
    assert importance_by_name(small(), kind) == {"c": expected[2], "a": expected[0]}


def test_unknown_kinds_and_models_without_trees() -> None:
    with pytest.raises(ParameterError, match="kind is 'guess', allowed: weight"):
        importance(small(), "guess")
    for kind in KINDS:
        assert importance(Model((), 3), kind).tolist() == [0, 0, 0]


def test_xgboost_agrees() -> None:
    import xgboost

    from burnish.boost.formats.xgboost_format import loads_xgboost

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    booster = xgboost.train({"max_depth": 4}, xgboost.DMatrix(x, x[:, 0] * x[:, 1]), 5)
    model = loads_xgboost(bytes(booster.save_raw("json")))
    for kind in KINDS:
        expected = booster.get_score(importance_type=kind)
        found = importance_by_name(model, kind)
        assert found.keys() == expected.keys()
        for name, score in found.items():
            assert score == pytest.approx(expected[name], rel=1e-4)
