"""Data whose categories are numbered in another way than the model's: the values count, not the numbers."""

import numpy as np
import pytest

from burnish.boost import shap
from burnish.boost.booster import train
from burnish.boost.data import Dataset, Sparse
from burnish.boost.model import Model
from burnish.boost.prediction import predict
from burnish.errors import DataError

COLOURS = np.array(["red", "green", "blue", "green", "red", "blue"] * 20, object)
SIZES = np.tile(np.arange(5.0), 24)
LABEL = (COLOURS == "green") * 4.0 + (COLOURS == "blue") * 1.0 + SIZES / 10
TRAINING = np.stack([COLOURS, SIZES], axis=1)
# Of "green" and "red" alone, "green" is 0 and "red" 1; the model has "blue" 0, "green" 1, "red" 2.
SOME = np.array([["red", 1.0], ["green", 4.0], [None, 2.0], ["red", 0.0]], object)
UNSEEN = np.array([["red", 1.0], ["white", 4.0], ["green", 2.0]], object)


def model_of(policy: str = "error") -> Model:
    return train({"max_depth": 3}, Dataset.of(TRAINING, LABEL, categorical=[0], policy=policy), rounds=5)


def sparse_of(table: np.ndarray) -> Dataset:
    """The table by its own categories, with compressed rows."""
    dense = Dataset.of(table, categorical=[0])
    values = np.asarray(dense.table)
    present = ~np.isnan(values)
    start = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    entries = Sparse(start, np.nonzero(present)[1].astype(np.int32), values[present])
    return Dataset(entries, dense.rows, dense.features, categories=dense.categories)


def test_a_data_set_with_other_numbers_is_predicted_by_its_values() -> None:
    model = model_of()
    expected = predict(model, SOME)
    assert expected[1] > expected[0] + 3
    own = Dataset.of(SOME, categorical=[0])
    assert own.categories == (("green", "red"), None)
    for data in (own, sparse_of(SOME), Dataset.of(SOME, categories=model.categories)):
        np.testing.assert_array_equal(predict(model, data), expected)
        np.testing.assert_array_equal(model.predict_margin(data)[0], expected)
    assert np.asarray(own.table)[:2, 0].tolist() == [1, 0]  # the caller's data stay as they were
    np.testing.assert_array_equal(model.predict_leaf(own), predict(model, SOME, output="leaf"))
    sums = shap.contributions(model, own)[0].sum(axis=1)
    np.testing.assert_allclose(sums, expected, rtol=1e-5)


def test_frames_are_predicted_by_their_values() -> None:
    import pandas

    model = model_of()
    frame = pandas.DataFrame(
        {"colour": pandas.Categorical(SOME[:, 0], ["red", "green"]), "size": SOME[:, 1].astype(float)}
    )
    np.testing.assert_array_equal(predict(model, frame), predict(model, SOME))
    np.testing.assert_array_equal(model.predict_margin(frame)[0], predict(model, SOME))


@pytest.mark.parametrize("policy", ["missing", "other"])
def test_unseen_categories_follow_the_policy_of_the_model(policy: str) -> None:
    model = model_of(policy)
    own = Dataset.of(UNSEEN, categorical=[0])
    expected = predict(model, Dataset.of(UNSEEN, categories=model.categories, policy=policy))
    np.testing.assert_array_equal(predict(model, own), expected)
    assert expected[2] > expected[0] + 3


def test_unseen_categories_are_errors_by_default() -> None:
    model = model_of()
    own = Dataset.of(UNSEEN, categorical=[0])
    for use in (lambda: predict(model, own), lambda: model.predict_margin(own), lambda: shap.contributions(model, own)):
        with pytest.raises(DataError, match="row 1 is 'white', a category that training has not seen"):
            use()
    chosen = Dataset.of(UNSEEN, categories=model.categories, policy="other")  # the caller's policy stands
    assert predict(model, chosen).shape == (3,)


def test_evaluation_sets_are_evaluated_by_their_values() -> None:
    training = Dataset.of(TRAINING, LABEL, categorical=[0])
    some = COLOURS != "blue"
    own = Dataset.of(TRAINING[some], LABEL[some], categorical=[0])
    same = Dataset.of(TRAINING[some], LABEL[some], categories=training.categories)
    history: dict[str, dict[str, list[float]]] = {}
    model = train({}, training, rounds=4, validation_data={"own": own, "same": same}, history=history)
    assert history["own"] == history["same"]
    error = np.sqrt(np.mean((predict(model, own) - LABEL[some]) ** 2))
    assert history["own"]["rmse"][-1] == pytest.approx(error, rel=1e-5)
    unseen = Dataset.of(UNSEEN, np.zeros(3), categorical=[0])
    with pytest.raises(DataError, match=r"validation_data 'unseen': .* row 1 is 'white'"):
        train({}, training, rounds=1, validation_data={"unseen": unseen})


def test_a_model_is_not_continued_on_other_numbers() -> None:
    model = model_of()
    own = Dataset.of(SOME, np.zeros(4), categorical=[0])
    with pytest.raises(DataError, match=r"continue_from: .*categories=model\.categories"):
        train({}, own, rounds=1, continue_from=model)
    same = Dataset.of(SOME, np.zeros(4), categories=model.categories)
    assert train({}, same, rounds=1, continue_from=model).rounds == 6
