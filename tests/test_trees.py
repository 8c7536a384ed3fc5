from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import burnish as bn
from burnish.boost.inference.emit import emit
from burnish.boost.model import Model
from burnish.codegen.objects import compile_ir
from burnish.errors import InputError, VerificationError
from burnish.runtime.executable import ANY, TensorSpec
from burnish.target import target
from tests.boost.trees import models_and_tables, naive_margin, random_model, random_table


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@settings(max_examples=30, deadline=None)
@given(models_and_tables(most_depth=10))
def test_compiled_margins_equal_the_naive_walk_bit_for_bit(cache: Path, case: tuple[Model, np.ndarray]) -> None:
    model, table = case
    module = bn.compile(model, threads=2, cache_dir=cache)
    expected = naive_margin(model, table).T
    assert np.array_equal(module(table), expected)
    for rows in (1, 3):
        assert np.array_equal(module(table[:rows]), expected[:rows])


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("depth", [6, 10])
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
        assert np.array_equal(module(table), expected)
        assert np.array_equal(again(x=table), expected)
    assert str(module.inputs[0]) == "x: float32[rows, 21]"
    assert len(module.profile(table)) == 1


def test_rows_into_arrays_of_the_caller(cache: Path) -> None:
    rng = np.random.default_rng(0)
    model = random_model(rng, 3, 4, 3)
    module = bn.compile(model, threads=1, cache_dir=cache)
    table, out = random_table(rng, 20, 4), np.zeros((20, 1), np.float32)
    module.run_into([table], [out])
    assert np.array_equal(out, model.predict_margin(table).T)
    with pytest.raises(InputError, match=r"output 'margin' is float32\[20, 1\], allowed: float32\[7, 1\]"):
        module.run_into([table[:7]], [out])


@pytest.mark.parametrize("found", [np.zeros((3, 5), np.float32), np.zeros((3, 4)), np.zeros(4, np.float32)])
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
        replace(executable, inputs=fixed, outputs=(TensorSpec("margin", (3, 1), "float32"),))


def test_inputs_must_have_the_same_number_of_rows(cache: Path) -> None:
    module = bn.compile(random_model(np.random.default_rng(0), 1, 4, 2), cache_dir=cache)
    inputs = (*module.inputs, TensorSpec("other", (ANY, 2), "float32"))
    pair = bn.Module(replace(module.executable, inputs=inputs), threads=1)
    assert pair(np.zeros((3, 4), np.float32), np.zeros((3, 2), np.float32)).shape == (3, 1)
    with pytest.raises(InputError, match=r"inputs differ in rows: 'x' has 3, 'other' has 2; allowed: the same number"):
        pair(np.zeros((3, 4), np.float32), np.zeros((2, 2), np.float32))
