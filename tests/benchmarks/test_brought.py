"""Benchmark of brought models: builds tiny ones, judges them, says what fails, is slow or is not installed."""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.brought import __main__ as program
from benchmarks.brought import build, report
from benchmarks.brought.judge import Verdict, difference, judge
from benchmarks.brought.recipe import Made, Recipe, Store, with_random_constants


def tiny(op: str = "MatMul", domain: str = "", rows: int | str = 3) -> Made:
    weight = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], domain=domain)],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Made(model, {"x": np.arange(12, dtype=np.float32).reshape(3, 4)})


def kept(store: Store, name: str, made: Made) -> Path:
    return store.put(Recipe(name, "exported", lambda store: made), made)


def test_models_are_built_once_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def broken(store: Store) -> Made:
        raise ValueError("no such layer")

    good, bad = Recipe("good", "exported", lambda store: tiny()), Recipe("bad", "exported", broken)
    absent = Recipe("absent", "converted", broken, ("no_such_package",))
    assert absent.missing == ["no_such_package"]
    for _ in range(2):
        assert list(build.build([good, bad, absent], store)) == [("bad", "ValueError: no such layer")]
    assert store.has(good) and not store.has(bad)
    assert onnx.load(store.path(good)).graph.node[0].op_type == "MatMul"


def test_a_model_is_judged_with_extents_fixed_and_open(tmp_path: Path) -> None:
    for name, rows in (("fixed", 3), ("open", "batch")):
        verdict = judge(kept(Store(tmp_path), name, tiny(rows=rows)), threads=1, seconds=0.02)
        assert verdict.status == "right", verdict.message
        assert verdict.ratio is not None and verdict.ours is not None and verdict.ours > 0
        assert verdict.first_cpu is not None and verdict.first_cpu < 60


@pytest.mark.slow
def test_a_process_of_its_own_tells_of_a_bad_model_and_of_a_crash(tmp_path: Path) -> None:
    options = argparse.Namespace(seconds=0.0, threads=1, cpu_time=True, phases=False, limit=100)
    path = kept(Store(tmp_path), "bad", tiny("NoSuch", "nowhere"))
    assert program.apart(path, "exported", options).status == "bad"
    path.with_suffix(".npz").write_bytes(b"")
    assert program.apart(path, "exported", options).status == "crash"


def test_differences_look_into_sequences_and_maps() -> None:
    a = np.ones(3, np.float32)
    assert difference([a, [{"u": 1.0}]], [a, [{"u": 1.0}]]) == 0
    assert difference([[{"u": 1.0}]], [[{"u": 1.5}]]) == pytest.approx(1 / 3)
    assert difference([a], [a.astype(np.float64)]) == np.inf
    assert difference([a], [a * np.nan]) == np.inf
    assert difference([np.array(["a", "b"], object)], [np.array(["a", "c"], object)]) == 0.5


def test_constant_weights_become_random() -> None:
    made = tiny()
    made.model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 2), np.float32), "w"))
    changed = numpy_helper.to_array(with_random_constants(made.model).graph.initializer[0])
    assert changed.std() > 0 and 0.7 <= changed.min() <= changed.max() <= 1.3


def test_the_report_names_slow_and_failing_models() -> None:
    fine = Verdict("fine", "packages", ours=1.0, theirs=2.0, ratio=0.5, least_ratio=0.5, first_cpu=1.0)
    slow = replace(fine, name="slow", ratio=8.0, least_ratio=7.0, cause="generic schedules: k", top=[("k", 9.0, "far")])
    wrong = Verdict("wrong", "converted", "wrong", "error 0.5, allowed 0.001", first_cpu=9.0, compile_cpu=8.0)
    text = report.text([fine, slow, wrong])
    assert "geometric_mean 2.0" in text and "above_3 1" in text and "first_most 9.0" in text
    assert "slow: 8.00" in text and "k: far" in text and "wrong: wrong, error 0.5" in text
    assert "causes: generic schedules 1" in text


def test_there_are_150_models_without_what_nobody_installs() -> None:
    recipes = build.recipes()
    assert len(recipes) >= 150
    assert {recipe.family for recipe in recipes.values()} == set(build.FAMILIES)
    assert set(build.SMALL) <= recipes.keys()
    assert all(recipe.source in recipes for recipe in recipes.values() if recipe.source)
