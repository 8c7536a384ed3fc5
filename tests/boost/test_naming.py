"""Columns by name: the same features in any order are the same data, and others are refused, wherever data meet."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.boost import Dataset, GBTRegressor, Model, predict, train
from burnish.boost.external import train_external
from burnish.boost.inputs.naming import order_of
from burnish.boost.model import dumps
from burnish.boost.outofcore.spool import rows_of
from burnish.boost.shap import contributions
from burnish.errors import DataError, InputError

NAMES = ["size", "kind", "age", "flag"]
KINDS = ("pandas", "arrow", "array", "sparse")
PERMUTED = ["flag", "age", "kind", "size"]


def frame(names: list[Any]) -> Any:
    """Numbers and text with gaps; columns by their names, others are copies of the first."""
    import pandas

    rng = np.random.default_rng(4)
    size, age = rng.normal(size=(2, 200)).astype(np.float32)
    size[rng.random(200) < 0.2] = np.nan
    kind = [None if rng.random() < 0.2 else text for text in rng.choice(["ant", "bee", "cat", "dog", "elk"], 200)]
    columns = {"size": size, "kind": pandas.Categorical(kind), "age": age, "flag": rng.integers(0, 2, 200)}
    return pandas.DataFrame({name: columns.get(name, size) for name in names})


def label() -> Any:
    own = frame(NAMES)
    return np.nan_to_num(own["size"].to_numpy()) + own["kind"].cat.codes.to_numpy() % 3 + 0.5 * own["flag"].to_numpy()


def dataset(kind: str, names: list[str]) -> Dataset:
    own = frame(names)
    categorical = [name for name in names if name == "kind"]
    if kind == "pandas":
        return Dataset.of(own, label())
    if kind == "arrow":
        import pyarrow

        return Dataset.of(pyarrow.Table.from_pandas(own, preserve_index=False), label())
    if kind == "array":
        columns = [own[name].astype(object).where(own[name].notna(), None) for name in names]
        return Dataset.of(np.array(columns, object).T, label(), feature_names=names, categorical=categorical)
    import scipy.sparse

    codes = own.assign(kind=own["kind"].cat.codes + 1) if categorical else own
    matrix = scipy.sparse.csr_matrix(codes.to_numpy(np.float64, na_value=0))
    return Dataset.of(matrix, label(), feature_names=names, categorical=categorical)


PARAMS = {"max_depth": 3, "learning_rate": 0.5}


@pytest.mark.parametrize("kind", KINDS)
def test_permuted_columns_are_found_by_name(kind: str) -> None:
    data, permuted = dataset(kind, NAMES), dataset(kind, PERMUTED)
    history: dict[str, dict[str, list[float]]] = {}
    model = train(PARAMS, data, 4, validation_data={"same": data, "permuted": permuted}, history=history)
    assert history["permuted"] == history["same"]
    for output in ("prediction", "leaf"):
        assert np.array_equal(predict(model, permuted, output=output), predict(model, data, output=output))
    assert np.array_equal(model.predict_margin(permuted), model.predict_margin(data))
    assert np.array_equal(contributions(model, permuted), contributions(model, data))


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_with_permuted_columns(kind: str) -> None:
    data, permuted = dataset(kind, NAMES), dataset(kind, PERMUTED)
    first = train(PARAMS, data, 3)
    found = train(PARAMS, permuted, 2, continue_from=first)
    assert found.feature_names == tuple(PERMUTED)
    assert np.array_equal(predict(found.slice(0, 3), data), predict(first, data))
    expected = train(PARAMS, data, 5)
    np.testing.assert_allclose(predict(found, data), predict(expected, data), rtol=1e-5)
    assert dumps(train(PARAMS, data, 5, resume_from=first)) == dumps(expected)


@pytest.mark.parametrize("form", ["pandas", "arrow"])
def test_frames_are_read_by_name(form: str) -> None:
    import pyarrow

    model = train(PARAMS, Dataset.of(frame(NAMES), label()), 4)
    given = frame(PERMUTED) if form == "pandas" else pyarrow.Table.from_pandas(frame(PERMUTED), preserve_index=False)
    expected = Dataset.of(frame(NAMES))
    assert np.array_equal(predict(model, given), predict(model, expected))
    assert np.array_equal(model.predict_margin(given), model.predict_margin(expected))
    assert np.array_equal(contributions(model, given), contributions(model, expected))


def test_chunks_of_a_source_are_matched_with_the_first(tmp_path: Any) -> None:
    def part(data: Dataset, first: int, last: int) -> Dataset:
        names, categories = data.feature_names, data.categories
        return replace(rows_of(data, first, last), feature_names=names, categories=categories)

    data, permuted = dataset("pandas", NAMES), dataset("pandas", PERMUTED)
    chunks = [part(data, 0, 80), part(permuted, 80, 200)]
    found = train_external(PARAMS, chunks, 3, folders=tmp_path / "store")
    assert dumps(found) == dumps(train(PARAMS, data, 3))
    with pytest.raises(DataError, match="chunk of the source: lacks the features 'size', has 'other' besides"):
        other = part(dataset("pandas", ["other", *NAMES[1:]]), 80, 200)
        train_external(PARAMS, [part(data, 0, 80), other], 3, folders=tmp_path / "other")


USES: dict[str, Callable[[Model, Dataset, Dataset], Any]] = {
    "predict": lambda model, data, other: predict(model, other),
    "margins": lambda model, data, other: model.predict_margin(other),
    "leaves": lambda model, data, other: model.predict_leaf(other),
    "contributions": lambda model, data, other: contributions(model, other),
    "evaluation": lambda model, data, other: train(PARAMS, data, 1, validation_data={"v": other}),
    "continued": lambda model, data, other: train(PARAMS, other, 1, continue_from=model),
    "resumed": lambda model, data, other: train(PARAMS, other, 9, resume_from=model),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("names", [["size", "kind", "age", "flags"], NAMES[1:], [*NAMES, "more"]], ids=str)
def test_other_features_are_refused(use: str, names: list[str], kind: str) -> None:
    data = dataset(kind, NAMES)
    model = train(PARAMS, data, 2)
    with pytest.raises(DataError, match=r"lacks the features|besides"):
        USES[use](model, data, dataset(kind, names))
    if kind == "pandas" and use in ("predict", "contributions"):
        with pytest.raises(DataError, match=r"lacks the features|besides"):
            USES[use](model, data, frame(names))


def test_numbers_for_names_of_an_estimators_frame() -> None:
    own = frame(NAMES).rename(columns=dict(zip(NAMES, range(4), strict=True)))
    permuted = own[[3, 2, 1, 0]]
    model = GBTRegressor(n_estimators=3, max_depth=3).fit(own, label(), eval_set=[(own, label()), (permuted, label())])
    assert model.evals_result_["valid_1"] == model.evals_result_["valid_0"]
    assert np.array_equal(model.predict(permuted), model.predict(own))
    with pytest.raises(ValueError, match="feature names"):
        GBTRegressor(n_estimators=1).fit(frame(NAMES), label()).predict(frame(PERMUTED))


def test_compiled_trees_take_no_frames(tmp_path: Any) -> None:
    own = frame(["size", "age"])
    module = bn.compile(train(PARAMS, Dataset.of(own, label()), 2), cache_dir=tmp_path)
    with pytest.raises(InputError, match="is a DataFrame"):
        module(own[["age", "size"]])


def test_without_names_columns_keep_their_places() -> None:
    x = frame(["size", "age"]).to_numpy()
    named, plain = Dataset.of(frame(["size", "age"]), label()), Dataset.of(x, label())
    models = train(PARAMS, named, 3), train(PARAMS, plain, 3)
    expected = predict(models[0], named)
    for model in models:
        for data in (named, plain, x, frame(["size", "age"])):
            assert np.array_equal(predict(model, data), expected)


def test_order_of() -> None:
    assert order_of(["a", "b"], ["a", "b"], "x") is None
    assert order_of([], ["a"], "x") is order_of(["a"], [], "x") is None
    found = order_of(["c", "a", "b"], ["a", "b", "c"], "x")
    assert found is not None and found.tolist() == [1, 2, 0]
    many = [f"n{number}" for number in range(9)]
    with pytest.raises(
        DataError, match="x: lacks the features 'n0', 'n1', 'n2', 'n3', 'n4' and 4 more, has 'z' besides"
    ):
        order_of(["z"], many, "x")
