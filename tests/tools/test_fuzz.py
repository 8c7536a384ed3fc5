"""The generator of random models: what it makes is valid, what it is told is noticed, and failures become small."""

import faulthandler
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import burnish as bn
from burnish.frontend.onnx.model import TRANSLATORS
from burnish.ops import OPERATORS
from tests.tools import jobs
from tools.fuzz import run as running
from tools.fuzz.__main__ import main
from tools.fuzz.families import FAMILIES, THEME_WEIGHTS, THEMES
from tools.fuzz.generate import Sample, generate, is_valid
from tools.fuzz.oracles import MANY_SAMPLES, expect, judge
from tools.fuzz.pages import FencedModule, run_fenced
from tools.fuzz.run import Job, run
from tools.fuzz.shrink import shrink
from tools.fuzz.sketch import Rejected, Sketch
from tools.fuzz.standard import make_model, walk
from tools.fuzz.trial import Way, _excused, attempt, ways

SEEDS = range(24)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return [generate(seed) for seed in SEEDS]


def single(op: str, **feeds: np.ndarray) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one operator, with all its feeds."""
    node = helper.make_node(op, list(feeds), ["y"], name=op)
    return make_model([node], feeds, {}, {"y": next(iter(feeds.values()))}, 17), feeds


def test_models_are_valid_and_declare_what_they_give(samples: list[Sample]) -> None:
    for sample in samples:
        assert is_valid(sample.model)
        values = walk(sample.model, sample.feeds)
        for output in sample.model.graph.output:
            array, t = values[output.name], output.type.tensor_type
            assert array.shape == tuple(d.dim_value for d in t.shape.dim)
            assert helper.np_dtype_to_tensor_dtype(array.dtype) == t.elem_type


def test_a_seed_is_a_model(samples: list[Sample]) -> None:
    for sample in samples[:8]:
        again = generate(sample.seed)
        assert again.model.SerializeToString() == sample.model.SerializeToString()
        assert all(np.array_equal(again.feeds[n], a, equal_nan=a.dtype.kind == "f") for n, a in sample.feeds.items())
    assert len({sample.model.SerializeToString() for sample in samples}) == len(samples)


def test_models_hold_several_operators_values_read_twice_and_several_outputs(samples: list[Sample]) -> None:
    reads = [Counter(name for node in s.model.graph.node for name in node.input) for s in samples]
    outputs = [{v.name for v in s.model.graph.output} for s in samples]
    assert len({node.op_type for s in samples for node in s.model.graph.node}) > 40
    assert sum(max(counts.values(), default=0) > 1 for counts in reads) > 5
    assert sum(len(names) > 1 for names in outputs) > 5
    assert any(names & counts.keys() for names, counts in zip(outputs, reads, strict=True))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_draw_of_a_family_works_out(family: str) -> None:
    for name, draw in FAMILIES[family].items():
        for seed in range(300):
            s = Sketch(np.random.default_rng(seed), opset=(21, 23)[seed % 2])  # some operators are new in 23
            if s.attempt(draw) and s.nodes:
                assert {node.op_type for node in s.nodes} <= TRANSLATORS.keys()
                break
        else:
            pytest.fail(f"{family}.{name} never works out")


def test_themes_name_families() -> None:
    assert THEMES.keys() == THEME_WEIGHTS.keys()
    assert all(theme.keys() <= FAMILIES.keys() for theme in THEMES.values())


def test_a_draw_that_is_rejected_leaves_nothing() -> None:
    s = Sketch(np.random.default_rng(0), opset=17)

    def draw(s: Sketch) -> None:
        s.add("Relu", s.new(np.ones(3, np.float32), False))
        raise Rejected("after a node was added")

    assert not s.attempt(draw)
    assert not (s.nodes or s.values or s.feeds or s.constants)


def test_what_is_compiled_is_right_and_an_altered_answer_is_not(samples: list[Sample]) -> None:
    plain = [s for s in samples if s.theme == "transformer" and not s.special][:3]
    assert plain
    for sample in plain:
        expected = expect(sample.model, sample.feeds)
        found = [e.native.copy() for e in expected]
        assert judge(sample.model, sample.feeds, found, expected) == ("right", "")
        for i, array in enumerate(found):
            if array.dtype.kind == "f" and array.size and expected[i].stable.any():
                place = np.argwhere(expected[i].stable)[0]
                altered = array.copy()
                altered[tuple(place)] += 0.1 + 0.1 * np.abs(array).max()
                verdict = judge(sample.model, sample.feeds, [*found[:i], altered, *found[i + 1 :]], expected)
                assert verdict[0] == "wrong" and f"output {i}" in verdict[1]


def test_a_tolerance_grows_with_cancellation_and_only_there() -> None:
    x = np.array([1.0, 1000.0, 1000.0], np.float32)
    (e,) = expect(*single("Sub", a=x, b=np.array([0.5, 999.999, 1.0], np.float32)))
    assert e.stable.all()
    assert e.tolerance[1] / np.abs(e.wide[1]) > 0.1  # seven digits lost
    assert e.tolerance[2] / np.abs(e.wide[2]) < 1e-4


def test_nothing_is_expected_beside_a_step_but_exact_values_have_none() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Floor", ["e"], ["y"])]
    x = np.log(np.array([2.0, 2.5, 3.5, 4.5, 5.5], np.float32))
    model = make_model(nodes, {"x": x}, {}, {"y": x}, 17)
    (e,) = expect(model, {"x": x})
    assert e.tolerance[0] > 1 > e.tolerance[1] * 1e3
    (e,) = expect(*single("Floor", x=np.array([2.0, -3.0], np.float32)))
    assert e.tolerance.max() < 1e-4


def test_what_is_computed_of_constants_alone_is_rounded_with_many_samples() -> None:
    a, b = np.array([1000.0], np.float32), np.array([999.999], np.float32)
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Sub", ["a", "b"], ["d"])]
    nodes.append(helper.make_node("Mul", ["e", "d"], ["y"]))
    x = np.zeros(1, np.float32)
    model = make_model(nodes, {"x": x}, {"a": a, "b": b}, {"y": x}, 17)
    (few,) = expect(model, {"x": x})
    (many,) = expect(model, {"x": x}, samples=MANY_SAMPLES)
    assert few.tolerance[0] < 1e-4 * few.wide[0] < 0.1 * many.wide[0] < many.tolerance[0]


def test_each_element_may_be_as_either_of_the_interpreters_values() -> None:
    model, feeds = single("Abs", x=np.zeros(6, np.float32))
    (e,) = expect(model, feeds)
    e = replace(e, native=np.array([0, 0, 1, 1, 0, 1], np.float32), wide=np.array([0, 1, 0, 1, 0, 1.0]))
    e = replace(e, standard=e.native)
    assert judge(model, feeds, [np.array([0, 1, 1, 1, 0, 1], np.float32)], [e])[0] == "right"
    verdict = judge(model, feeds, [np.array([0, 1, 1, 0, 1, 1], np.float32)], [e])
    assert verdict == ("wrong", "output 0: 2 of 6 elements, first at [3]: 0.0, want 1.0")


def test_a_wrong_definition_is_told_from_wrong_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, feeds = single("Mul", a=np.ones(5, np.float32), b=np.full(5, 3, np.float32))
    assert attempt(model, feeds, Way(exact=True), tmp_path).outcome == "right"
    monkeypatch.setitem(OPERATORS, "mul", replace(OPERATORS["mul"], function=OPERATORS["add"].function))
    result = attempt(model, feeds, Way(exact=True), tmp_path)
    assert (result.outcome, result.kind) == ("definition", "definition")
    assert "want 3.0" in result.detail


def test_an_exception_is_an_outcome_with_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def define(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("planted")

    model, feeds = single("Mul", a=np.ones(5, np.float32), b=np.full(5, 3, np.float32))
    monkeypatch.setitem(OPERATORS, "mul", replace(OPERATORS["mul"], function=define))
    result = attempt(model, feeds, Way(), tmp_path)
    assert result.outcome == "error"
    assert "planted" in result.detail and "[" in result.detail


def test_refusals_are_counted_apart(tmp_path: Path) -> None:
    node = helper.make_node("HardSigmoid", ["x"], ["y"], domain="example.org")
    x = np.ones(3, np.float32)
    model = make_model([node], {"x": x}, {}, {"y": x}, 17)
    assert attempt(model, {"x": x}, Way(), tmp_path).outcome == "refused"


def test_shrinking_keeps_the_failure_and_drops_the_rest() -> None:
    sample = next(s for s in map(generate, range(200)) if "Softmax" in {n.op_type for n in s.model.graph.node[2:]})

    def fails(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
        return "Softmax" in {node.op_type for node in model.graph.node}

    model, feeds = shrink(sample.model, sample.feeds, fails)
    assert [node.op_type for node in model.graph.node] == ["Softmax"]
    assert sum(a.size for a in feeds.values()) <= 2
    assert is_valid(model)


def test_a_shrunk_model_needs_what_the_failure_needs() -> None:
    x = np.ones((4, 8), np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Neg", ["c"], ["y"]),
    ]  # fmt: skip
    model = make_model(nodes, {"x": x}, {}, {"y": x, "b": x}, 17)

    def fails(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
        kinds = [node.op_type for node in model.graph.node]
        return "Exp" in kinds and "Add" in kinds and all(a.shape[-1] > 3 for a in feeds.values())

    small, feeds = shrink(model, {"x": x}, fails)
    assert sorted(node.op_type for node in small.graph.node) == ["Add", "Exp"]
    assert len(small.graph.output) == 1
    assert {a.shape for a in feeds.values()} == {(1, 8)} or {a.shape for a in feeds.values()} == {(4, 4)}


# --- workers ----------------------------------------------------------------------------------------------------------


def test_a_dying_worker_is_a_crash_and_the_other_ways_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(running, "work", jobs.die)
    rows = list(run(iter([Job(7, (Way(exact=True), Way()))]), 1, tmp_path))
    assert [(row.way, row.result.outcome) for row in rows] == [(Way(), "crash"), (Way(exact=True), "right")]
    assert rows[0].result.detail == "was killed by SIGKILL in run"


def test_a_silent_worker_hangs(tmp_path: Path) -> None:
    (row,) = run(iter([Job(0, (Way(),))]), 1, tmp_path, limit=0.0)
    assert row.result.outcome == "hang"


def test_the_command_counts_outcomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample_way = len(ways(3, pages=False))
    code = main(["--count", "2", "--seed", "3", "--only", "movement", "--json", str(tmp_path / "rows.json")])
    assert f"{2 * sample_way} trials of 2 models" in capsys.readouterr().out
    assert code in (0, 1)
    assert "coverage" in (tmp_path / "rows.json").read_text()


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", ["start", "end"])
def test_a_fenced_module_gives_the_same(edge: str) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]
    x, w = np.random.default_rng(0).random((2, 5, 5)).astype(np.float32)
    model = make_model(nodes, {"x": x}, {"w": w}, {"y": x}, 17)
    module = bn.compile(model, threads=2, rewrite=False)
    (found,) = run_fenced(module, [x], edge)
    np.testing.assert_array_equal(found, module(x))


def test_a_fenced_module_that_writes_beyond_its_output_is_killed() -> None:
    module = bn.compile(single("Exp", x=np.ones(64, np.float32))[0], threads=1, rewrite=False)
    fenced = FencedModule(module, "end")
    spec = fenced.executable.outputs[0]
    calls = tuple(
        replace(call, args=tuple(replace(a, nbytes=32) if a.memory == "output" else a for a in call.args))
        for call in fenced.executable.calls
    )
    outputs = (replace(spec, shape=(8,)),)  # 224 bytes short
    fenced.executable = replace(fenced.executable, outputs=outputs, steps=calls)
    assert fenced._fixed is not None
    fenced._fixed = replace(fenced._fixed, outputs=[((8,), np.dtype(np.float32))])
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # the signal is what is expected
        try:
            fenced.run([np.ones(64, np.float32)], "end")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV


def test_nan_weights_beside_padding_are_told_apart(tmp_path: Path) -> None:
    """A kernel may leave out NaN times padding, which docs/limits.md states; NaN times numbers must come."""
    x, w = np.ones((1, 1, 1, 3), np.float32), np.full((1, 1, 3, 3), 0.5, np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    model = make_model([node], {"x": x, "w": w}, {}, {"y": x}, 17)
    w[0, 0, 2, 1] = np.nan  # meets padding alone
    assert attempt(model, {"x": x, "w": w}, Way(exact=True), tmp_path).outcome == "padding"
    w[0, 0, 2, 1], w[0, 0, 1, 0] = 0.5, np.nan  # the second meets padding at the left, and numbers elsewhere
    assert attempt(model, {"x": x, "w": w}, Way(exact=True), tmp_path).outcome in ("padding", "right")
    w[0, 0, 1, 0], w[0, 0, 1, 1] = 0.5, np.inf  # meets numbers alone: infinite, not NaN
    expected = expect(model, {"x": x, "w": w})
    finite = [np.ones((1, 1, 1, 3), np.float32)]
    assert _excused(model, {"x": x, "w": w}, Way(exact=True), finite, expected) is None


@pytest.mark.slow
def test_models_with_open_extents_are_right_at_the_size_of_a_trial(samples: list[Sample], tmp_path: Path) -> None:
    """Kernels are made to suit another size; what cannot stay open is compiled for the size."""
    outcomes = Counter(
        attempt(sample.model, sample.feeds, ways(sample.seed, False, opened=True)[0], tmp_path).outcome
        for sample in samples
    )
    assert outcomes.keys() <= {"right", "by size", "apart", "refused", "spread"}
    assert outcomes["right"] and outcomes["by size"]


def test_sizes_at_which_a_cast_is_not_defined_are_left_out(tmp_path: Path) -> None:
    """An unsigned integer of a negative sum, which there is at the least size alone."""
    sample = generate(20556)
    (way,) = ways(sample.seed, False, opened=True)
    assert attempt(sample.model, sample.feeds, way, tmp_path).outcome == "by size"


@pytest.mark.slow
@pytest.mark.parametrize("way", [[], ["--open"]])
def test_thousands_of_models(way: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "2500", "--seed", "20260", "--jobs", "2", *way]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_random_backward_passes_are_those_of_pytorch() -> None:
    lines: list[str] = []
    from tools.fuzz import backward

    assert backward.run(range(1, 9), lines.append) == 0
    assert lines[-1].startswith("8 networks") or "x " in lines[-1]
