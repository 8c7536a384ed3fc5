import json
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish import boost
from burnish.boost.formats.files import loads_any
from burnish.boost.formats.xgboost_format import dumps_xgboost, dumps_xgboost_ubj, loads_xgboost
from burnish.boost.model import Model, dumps
from burnish.errors import DataError, ParameterError
from tests.boost.trees import random_model, random_table


@pytest.fixture
def model() -> Model:
    return random_model(np.random.default_rng(0), 4, 5, 4)


@pytest.mark.parametrize("categorical", [(), (2,)])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    ("name", "form", "begins"),
    [
        ("m.json", None, b'{"format"'), ("m.ubj", None, b"{L"), ("m.UBJ", None, b"{L"), ("m", "xgboost", b'{"learner"'),
        ("m.json", "xgboost-ubj", b"{L"), ("m.ubj", "burnish", b'{"format"'), ("m.ubj", "xgboost", b"{L"),
    ],
)  # fmt: skip
def test_formats_are_written_by_name_or_suffix_and_read_by_content(
    name: str, form: str | None, begins: bytes, outputs: int, categorical: tuple[int, ...], tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    model = random_model(rng, 3, 5, 4, outputs, categorical)
    model.save(tmp_path / name, format=form)
    assert (tmp_path / name).read_bytes().startswith(begins)
    x = random_table(rng, 200, 5, categorical)
    found = Model.load(tmp_path / name).predict_margin(x)
    np.testing.assert_allclose(found, model.predict_margin(x), rtol=1e-6, atol=1e-6)


def test_ubj_that_xgboost_reads_and_wrote(tmp_path: Path) -> None:
    import xgboost

    rng = np.random.default_rng(2)
    x = random_table(rng, 300, 5)
    x[~np.isfinite(x)] = np.nan
    booster = xgboost.train({"max_depth": 5, "nthread": 1}, xgboost.DMatrix(x, rng.normal(size=300)), 5)
    booster.save_model(tmp_path / "theirs.ubj")
    model = Model.load(tmp_path / "theirs.ubj")
    expected = booster.predict(xgboost.DMatrix(x))
    assert np.array_equal(model.predict_margin(x)[0], expected)
    model.save(tmp_path / "ours.ubj")
    assert np.array_equal(xgboost.Booster(model_file=tmp_path / "ours.ubj").predict(xgboost.DMatrix(x)), expected)


@pytest.mark.parametrize("more", [{}, {"normalize_type": "forest"}])
def test_dropped_trees_keep_their_weights(more: dict) -> None:
    import xgboost

    rng = np.random.default_rng(2)
    x, params = random_table(rng, 300, 5), {"booster": "dart", "rate_drop": 0.5, "nthread": 1}
    x[~np.isfinite(x)] = np.nan
    booster = xgboost.train(params | more, xgboost.DMatrix(x, rng.normal(size=300)), 8)
    found = loads_any(bytes(booster.save_raw("ubj"))).predict_margin(x)[0]
    np.testing.assert_allclose(found, booster.predict(xgboost.DMatrix(x), output_margin=True), rtol=1e-6, atol=1e-6)


def test_boosters_without_trees_are_refused_by_name() -> None:
    import xgboost

    booster = xgboost.train({"booster": "gblinear"}, xgboost.DMatrix(np.ones((9, 2)), np.arange(9)), 2)
    for form in ("json", "ubj"):
        with pytest.raises(DataError, match="gblinear"):
            loads_any(bytes(booster.save_raw(form)))


def test_unknown_formats(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="did you mean 'xgboost'"):
        model.save(tmp_path / "m", format="xgbost")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [b"", b"binf....", b"\x80\x04pickle", b"PK\x03\x04", b"hello", b"[1]", b"{", b"{}", b"tree", b"\xff" * 40],
)
def test_other_content_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="some file"):
        loads_any(content, "some file")


def test_deep_json_is_refused() -> None:
    for opening in (b'{"learner":', b"[", b'{"a":['):
        with pytest.raises(DataError):
            loads_any(b'{"a":' + opening * 200_000)


def test_truncated_files_are_refused(model: Model) -> None:
    for content in (dumps(model).encode(), dumps_xgboost(model).encode(), dumps_xgboost_ubj(model)):
        for end in np.linspace(0, len(content) - 2, 60).astype(int).tolist():
            with pytest.raises(DataError):
                loads_any(content[:end])


@pytest.mark.parametrize(
    ("name", "value"), [("num_feature", 2**31 - 1), ("num_class", 2**31 - 1), ("num_target", 10**9)]
)
def test_claims_of_very_many_are_refused_at_once(name: str, value: int, model: Model) -> None:
    document = json.loads(dumps_xgboost(model))
    document["learner"]["learner_model_param"][name] = str(value)
    with pytest.raises(DataError, match=str(value)):
        loads_any(json.dumps(document).encode())


def test_own_claims_of_very_many_are_refused(model: Model) -> None:
    with pytest.raises(DataError, match="features"):
        Model(model.trees, 2**31)
    with pytest.raises(DataError, match="outputs"):
        Model((), 1, outputs=2**31)


def test_what_the_readers_of_formats_give_is_a_model_to_everything() -> None:
    """Not only Model.load's results: what loads_xgboost gives is continued, predicted with and compiled."""
    random = np.random.default_rng(0)
    x = random.standard_normal((200, 3), dtype=np.float32)
    data = boost.Dataset.of(x, label=(x[:, 0] > 0).astype(np.float32))
    first = boost.train({"objective": "logistic"}, data, 3)
    read = loads_xgboost(dumps_xgboost(first))
    continued = boost.train({"objective": "logistic"}, data, 2, continue_from=read)
    assert len(continued.trees) == 5
    assert np.allclose(boost.predict(read, x), boost.predict(first, x), rtol=1e-6)
    assert np.allclose(np.ravel(bn.compile(read)(x)), boost.predict(first, x), rtol=1e-5)
