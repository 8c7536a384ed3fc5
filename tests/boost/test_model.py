import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.model import Model, dumps, loads
from burnish.boost.tree import Tree
from burnish.errors import DataError
from tests.boost.trees import models_and_tables, random_model


@settings(max_examples=40, deadline=None)
@given(models_and_tables())
def test_text_gives_back_every_bit(case: tuple[Model, np.ndarray]) -> None:
    model, table = case
    again = loads(dumps(model))
    assert dumps(again) == dumps(model)
    for one, other in zip(model.trees, again.trees, strict=True):
        for name in Tree.__dataclass_fields__:
            a, b = getattr(one, name), getattr(other, name)
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    assert again.predict_margin(table).tobytes() == model.predict_margin(table).tobytes()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_floats_are_exact(values: list[float]) -> None:
    model = Model((), 0, len(values), np.array(values, np.float32))
    assert loads(dumps(model)).base_score.tobytes() == model.base_score.tobytes()


def test_everything_is_kept(tmp_path: Path) -> None:
    plain = random_model(np.random.default_rng(0), 3, 2, 3, 2)
    model = Model(
        plain.trees, 2, 2, plain.base_score, "softmax", {"num_class": 2}, ("größe", "b"), (None, ("x", 3, 1.5, True)),
        "other", 1, {"note": 'a "b"'},
    )  # fmt: skip
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    for name in ("features", "outputs", "objective", "objective_parameters", "feature_names", "categories",
                 "category_policy", "best_iteration", "attributes"):  # fmt: skip
        assert getattr(again, name) == getattr(model, name), name


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**20), st.integers(0, 255))
def test_a_file_with_a_byte_changed_or_missing_is_refused_or_the_same(seed: int, place: int, byte: int) -> None:
    text = dumps(random_model(np.random.default_rng(seed), 1, 2, 2)).encode()
    place %= len(text) - 1
    with pytest.raises(DataError):
        loads(text[:place])
    changed = text[:place] + bytes([byte]) + text[place + 1 :]
    try:
        assert dumps(loads(changed)).encode() == text
    except DataError as error:
        assert "model" in str(error)


def signed(document: dict) -> str:
    """The document with the checksum that it should have."""
    import hashlib

    text = json.dumps(document["model"], sort_keys=True, separators=(",", ":"))
    return json.dumps({**document, "sha256": hashlib.sha256(text.encode()).hexdigest()})


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("left", 0, 0, "node 0: left child is 0"),
        ("left", 0, 99, "left child is 99"),
        ("right", 1, 0, "node 1: right child is 0"),
        ("right", 0, 1, "number of parents"),
        ("left", 0, 2**31, "32-bit"),
        ("left", 0, 1.5, "integers"),
        ("feature", 0, 7, "feature is 7"),
        ("feature", 0, -2, "feature is -2"),
        ("threshold", 0, 1e39, "threshold is inf"),
        ("value", 1, "x", "numbers"),
        ("category_start", 1, 5, "category_start"),
        ("gain", None, [], "gain has shape"),
        ("left", None, [], "0 nodes"),
        ("left", None, 3, "wrong type"),
        ("category", None, [1], "category_start"),
    ],
)
def test_hostile_trees_are_refused(name: str, place: int | None, value: object, message: str) -> None:
    document = json.loads(dumps(random_model(np.random.default_rng(0), 1, 3, 3, sparseness=0.0)))
    tree = document["model"]["trees"][0]
    if place is None:
        tree[name] = value
    else:
        tree[name][place] = value
    with pytest.raises(DataError, match=message):
        loads(signed(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": 0}, "outputs is 0"),
        ({"outputs": 2}, "base_score"),
        ({"base_score": [0.0, 1.0], "outputs": 2}, "multiple of 2"),
        ({"features": -1}, "features is -1"),
        ({"feature_names": ["a"]}, "feature_names"),
        ({"categories": [None]}, "categories"),
        ({"category_policy": "guess"}, "category_policy"),
        ({"best_iteration": 9}, "best_iteration"),
        ({"trees": 5}, "wrong type"),
        ({"attributes": []}, "wrong type"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict, message: str) -> None:
    document = json.loads(dumps(random_model(np.random.default_rng(0), 1, 3, 2)))
    document["model"] |= change
    with pytest.raises(DataError, match=message):
        loads(signed(document))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "truncated"), ("[]", "JSON list"), ("{}", "format is None"), ("[" * 100_000, "JSON"),
        ('{"format": "burnish.boost", "version": 2}', "version is 2"),
        ('{"format": "burnish.boost", "version": 1}', "'model' is missing"),
        ('{"format": "burnish.boost", "version": 1, "model": {}}', "checksum"),
        ('{"format": "burnish.boost", "version": 1, "model": {"x": NaN}}', "no model has"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        loads(text, "here")


def test_slices_and_what_json_cannot_hold() -> None:
    model = random_model(np.random.default_rng(0), 4, 3, 3, 2)
    table = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
    assert np.array_equal(model.slice(1, 3).predict_margin(table), model.predict_margin(table, rounds=(1, 3)))
    with pytest.raises(DataError, match="rounds"):
        model.slice(2, 5)
    with pytest.raises(DataError, match="JSON cannot hold"):
        dumps(Model((), 1, attributes={"a": object()}))  # type: ignore[dict-item]


def test_the_representation_is_short() -> None:
    model = random_model(np.random.default_rng(0), 30, 4, 6, 2)
    assert repr(model) == "Model(squared_error, 30 rounds, 4 features, 2 outputs)"
    assert "best_iteration 3" in repr(replace(model, best_iteration=3))
