from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import burnish as bn
from burnish.boost import Dataset, GBTClassifier, predict, train
from burnish.boost.inference.emit import emit
from burnish.boost.inference.forest import CompiledForest
from burnish.boost.links import LINKS
from burnish.boost.model import Model
from burnish.boost.params import OBJECTIVES
from burnish.codegen.objects import compile_ir
from burnish.errors import InputError, ParameterError, VerificationError
from burnish.machines.target import target
from burnish.runtime.executable import TensorSpec
from tests.boost.trees import models_and_tables, naive_margin, random_model, random_table
from tests.marks import slow


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@settings(max_examples=30, deadline=None)
@given(models_and_tables(most_depth=10))
def test_compiled_margins_equal_the_naive_walk_bit_for_bit(cache: Path, case: tuple[Model, np.ndarray]) -> None:
    model, table = case
    module = bn.compile(model, threads=2, cache_dir=cache)
    expected = naive_margin(model, table).T
    expected = expected[:, 0] if model.outputs == 1 else expected
    assert np.array_equal(module(table), expected)
    for rows in (1, 3):
        assert np.array_equal(module(table[:rows]), expected[:rows])


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("depth", slow([6, 10], 10))
def test_saved_modules_predict_batches_of_any_size(cache: Path, tmp_path: Path, outputs: int, depth: int) -> None:
    rng = np.random.default_rng(depth)
    model = random_model(rng, 70 // outputs, 21, depth, outputs)
    module = bn.compile(model, threads=2, cache_dir=cache)
    module.save(tmp_path / "trees.bn")
    again = bn.load(tmp_path / "trees.bn", threads=1)
    for rows in (0, 1, 2, 5, 16, 33, 9000):
        table = random_table(rng, rows, 21)
        expected = model.predict_margin(table).T
        assert expected.shape == (rows, outputs)
        expected = expected[:, 0] if outputs == 1 else expected
        assert np.array_equal(module(table), expected)
        assert np.array_equal(again(x=table), expected)
    assert str(module.inputs[0]) == "x: float32[rows, 21]"
    assert len(module.profile(table)) == 1


def test_compiled_trees_are_those_up_to_the_best_iteration(cache: Path) -> None:
    rng = np.random.default_rng(1)
    model = replace(random_model(rng, 9, 4, 3), best_iteration=3)
    table = random_table(rng, 50, 4)
    found = bn.compile(model, threads=1, cache_dir=cache)(table)
    assert np.array_equal(found.reshape(-1), model.predict_margin(table, rounds=(0, 4))[0])
    assert not np.array_equal(found.reshape(-1), model.predict_margin(table)[0])


def test_rows_into_arrays_of_the_caller(cache: Path) -> None:
    rng = np.random.default_rng(0)
    model = random_model(rng, 3, 4, 3)
    module = bn.compile(model, threads=1, cache_dir=cache)
    table, out = random_table(rng, 20, 4), np.zeros(20, np.float32)
    module.run_into([table], [out])
    assert np.array_equal(out, model.predict_margin(table)[0])
    with pytest.raises(InputError, match=r"output 'prediction' is float32\[20\], allowed: float32\[7\]"):
        module.run_into([table[:7]], [out])


@pytest.mark.parametrize("found", [np.zeros((3, 5), np.float32), np.full((3, 4), "a"), np.zeros(4, np.float32)])
def test_other_shapes_and_dtypes_are_refused(cache: Path, found: np.ndarray) -> None:
    module = bn.compile(random_model(np.random.default_rng(0), 1, 4, 2), cache_dir=cache)
    with pytest.raises(InputError, match=r"input 'x' is .*, allowed: float32\[rows, 4\]"):
        module(found)


def test_no_trees_give_the_base_score(cache: Path) -> None:
    module = bn.compile(Model((), 2, 2, np.array([1.5, -2.0], np.float32)), cache_dir=cache)
    assert module(np.zeros((3, 2), np.float32)).tolist() == [[1.5, -2.0]] * 3


@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3", "aarch64-cortex-a53", "aarch64-neoverse-n1", "riscv64"])
@pytest.mark.parametrize("depth", [3, 9])
def test_the_code_compiles_for_other_machines(name: str, depth: int) -> None:
    machine = target(name)
    code = emit(
        random_model(np.random.default_rng(0), 3, 20, depth, 2, categorical=()), "margins", min(16, machine.lanes)
    )
    assert f"<{machine.lanes} x float>" in code.trees or depth > 7
    for text in filter(None, (code.main, code.trees)):
        assert compile_ir(text, machine, 0 if text == code.trees else 3)[:4] == b"\x7fELF"


def test_any_number_of_rows_must_come_from_an_input(cache: Path) -> None:
    executable = bn.compile(random_model(np.random.default_rng(0), 1, 4, 2), cache_dir=cache).executable
    fixed = (TensorSpec("x", (3, 4), "float32"),)
    with pytest.raises(VerificationError, match="an output has any number of rows, but no input has"):
        replace(executable, inputs=fixed)
    with pytest.raises(VerificationError, match="which does not exist"):
        replace(executable, inputs=fixed, outputs=(TensorSpec("margin", (3,), "float32"),))


def test_inputs_must_have_the_same_number_of_rows(cache: Path) -> None:
    module = bn.compile(random_model(np.random.default_rng(0), 1, 4, 2), cache_dir=cache)
    inputs = (*module.inputs, TensorSpec("other", (module.inputs[0].shape[0], 2), "float32"))
    pair = bn.Module(replace(module.executable, inputs=inputs), threads=1)
    assert pair(np.zeros((3, 4), np.float32), np.zeros((3, 2), np.float32)).shape == (3,)
    with pytest.raises(InputError, match=r"inputs differ in rows: 'x' has 3, 'other' has 2; allowed: the same number"):
        pair(np.zeros((3, 4), np.float32), np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("objective", [*OBJECTIVES, *(name for name in LINKS if name not in OBJECTIVES)])
def test_what_predict_returns_is_compiled_for_every_objective(cache: Path, objective: str) -> None:
    rng = np.random.default_rng(3)
    outputs = 3 if objective in ("softmax", "lightgbm:multiclassova") else 1
    model = replace(random_model(rng, 8, 5, 4, outputs), objective=objective)
    table = random_table(rng, 5000, 5)
    expected = predict(model, table)
    margin = bn.compile(model, threads=2, cache_dir=cache, output="margin")
    assert np.array_equal(margin(table), predict(model, table, output="margin"))
    if LINKS.get(objective) == "softplus":
        with pytest.raises(ParameterError, match="output='margin'"):
            bn.compile(model, cache_dir=cache)
        return
    module = bn.compile(model, threads=2, cache_dir=cache)
    for rows in (0, 1, 5, 5000):
        found = module(table[:rows])
        assert found.shape == expected[:rows].shape
        np.testing.assert_allclose(found, expected[:rows], rtol=1e-6)
        if objective in ("logistic", "softmax", "poisson"):
            assert np.array_equal(found, expected[:rows])


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64, np.uint8, np.float16, np.bool_])
def test_other_numbers_are_taken_as_float32(cache: Path, tmp_path: Path, dtype: type) -> None:
    model = random_model(np.random.default_rng(0), 3, 4, 3)
    module = bn.compile(model, cache_dir=cache)
    module.save(tmp_path / "m.bn")
    x = np.random.default_rng(1).integers(0, 2, (9, 4)).astype(dtype)
    for each in (module, bn.load(tmp_path / "m.bn")):
        assert np.array_equal(each(x), predict(model, x.astype(np.float32)))


def test_only_known_outputs(cache: Path) -> None:
    with pytest.raises(ParameterError, match="'prediction', 'margin'"):
        bn.compile(random_model(np.random.default_rng(0), 1, 4, 2), cache_dir=cache, output="class")


def test_the_best_rounds_are_compiled(cache: Path) -> None:
    model = replace(random_model(np.random.default_rng(0), 6, 4, 3), best_iteration=2)
    table = random_table(np.random.default_rng(1), 50, 4)
    assert np.array_equal(bn.compile(model, cache_dir=cache)(table), predict(model, table))
    assert not np.array_equal(model.predict_margin(table)[0], predict(model, table))


def test_estimators_and_boosters_of_other_libraries(cache: Path) -> None:
    import lightgbm
    import xgboost

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    y, classes = x[:, 0] - x[:, 1], (x[:, 0] > x[:, 1]).astype(int) + (x[:, 2] > 0)
    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(x, y > 0), 3)
    light = lightgbm.LGBMRegressor(n_estimators=3, verbose=-1).fit(x, y)
    ours, theirs = (kind(n_estimators=3).fit(x, classes) for kind in (GBTClassifier, xgboost.XGBClassifier))
    for model, expected in (
        (ours, ours.predict_proba(x)), (theirs, theirs.predict_proba(x)),
        (booster, booster.predict(xgboost.DMatrix(x))), (light, light.predict(x)),
        (light.booster_, light.predict(x)),
    ):  # fmt: skip
        np.testing.assert_allclose(bn.compile(model, cache_dir=cache)(x), expected, rtol=1e-6, atol=1e-6)
    for unfitted in (GBTClassifier(), xgboost.XGBRegressor(), lightgbm.LGBMRegressor()):
        with pytest.raises(ParameterError, match="not fitted"):
            bn.compile(unfitted, cache_dir=cache)


def test_deep_trees_of_few_nodes_are_straight_code_and_those_of_many_walk(cache: Path) -> None:
    rng = np.random.default_rng(2)
    table = rng.normal(size=(3000, 3)).astype(np.float32)
    labels = np.exp(4 * table[:, 0]), rng.normal(size=3000)
    for label, params, straight in zip(labels, ({"num_leaves": 40}, {"max_depth": 11}), (True, False), strict=True):
        model = train({"reg_lambda": 0, "threads": 1, **params}, Dataset.of(table, label=label), 3)
        assert max(CompiledForest(model.trees).depth) > 7
        assert bool(emit(model, "margins", 8).trees) == straight
        for rows in (1, 7, 64, 65, 200):
            got = bn.compile(model, threads=1, cache_dir=cache)(table[:rows])
            assert np.array_equal(got, predict(model, table[:rows]))
