"""Recurrent layers of many steps, and of a length left open: rounds of one step, right at every length."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import burnish as bn
from burnish.driver.check import check
from burnish.driver.compilation import import_graph
from burnish.errors import ModelError, VerificationError
from burnish.frontend.onnx.rounds import UNROLLED
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.loops.sizes import dim
from burnish.machines.target import host
from burnish.ops import infer
from burnish.runtime.executable import Executable, Host, KernelCall, Repeat, Slot
from burnish.tune.tasks import tuning_tasks
from tests.marks import slow
from tools.fuzz.pages import FencedModule

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FEATURES, HIDDEN = 5, 20
LONG = UNROLLED + 6


def layer(
    op: str, steps: int | str, batch: int | str, *, direction: str = "forward", extra: tuple[str, ...] = (),
    hidden: int = HIDDEN, computed: bool = False, **attrs: Any,
) -> onnx.ModelProto:  # fmt: skip
    """A layer of X [steps, batch, 5]; ``extra`` inputs in their order from the fourth on; ``computed``: of weights."""
    random, count = np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    shapes = {"W": (count, GATES[op] * hidden, FEATURES), "R": (count, GATES[op] * hidden, hidden)}
    shapes |= {"B": (count, 2 * GATES[op] * hidden)}
    arrays = {n: (random.standard_normal(s) / np.sqrt(4 * hidden)).astype(np.float32) for n, s in shapes.items()}
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [steps, batch, FEATURES])]
    if attrs.get("layout"):
        inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [batch, steps, FEATURES])]
    if "lens" in extra:
        inputs.append(helper.make_tensor_value_info("lens", TensorProto.INT32, [batch]))
    for name in ("h", "c"):
        if name in extra:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [count, batch, hidden]))
    if "P" in extra:
        arrays["P"] = random.standard_normal((count, 3 * hidden)).astype(np.float32)
    if computed:
        inputs.append(helper.make_tensor_value_info("R", TensorProto.FLOAT, shapes["R"]))
        del arrays["R"]
    outputs = ["Y", "Y_h", *(["Y_c"] if op == "LSTM" else [])]
    node = helper.make_node(op, ["X", "W", "R", "B", *extra], outputs, hidden_size=hidden, direction=direction, **attrs)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "g", inputs, values, [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def feeds_of(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Inputs of a model for these values of its names; lengths of sequences from 1 to all steps."""
    random, found = np.random.default_rng(sum(sizes.values())), {}
    for value in model.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        found[value.name] = (random.standard_normal(shape) / 2).astype(np.float32)
        if value.name == "lens":
            found["lens"] = random.integers(1, found["X"].shape[0] + 1, shape).astype(np.int32)
    return found


def one_direction(op: str, x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, length: int) -> Any:
    """NumPy loop over the first ``length`` rows of x [T, 5] with the usual activations: hidden states, last h and c."""

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    hidden, (bias, rbias) = r.shape[1], np.split(b.astype(np.float64), 2)
    h, c, shown = np.zeros(hidden), np.zeros(hidden), np.zeros((len(x), hidden))
    for t in range(length):
        gates = w @ x[t] + bias
        if op == "LSTM":
            i, o, f, g = np.split(gates + r @ h + rbias, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        elif op == "GRU":
            z, q, n = np.split(gates, 3)
            rz, rq, rn = np.split(r @ h + rbias, 3)
            update = sigmoid(z + rz)
            h = (1 - update) * np.tanh(n + sigmoid(q + rq) * rn) + update * h
        else:
            h = np.tanh(gates + r @ h + rbias)
        shown[t] = h
    return shown, h, c


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What a loop in NumPy gives for a layer with the usual activations, of any direction and lengths."""
    op = model.graph.node[0].op_type
    w, r, b = (numpy_helper.to_array(a) for a in model.graph.initializer)
    x, lengths = feeds["X"], feeds.get("lens", np.full(feeds["X"].shape[1], len(feeds["X"])))
    direction = next(a.s.decode() for a in model.graph.node[0].attribute if a.name == "direction")
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    y = np.zeros((len(x), len(ways), x.shape[1], r.shape[2]))
    finals = np.zeros((2, len(ways), x.shape[1], r.shape[2]))
    for d, backwards in enumerate(ways):
        for row, length in enumerate(lengths):
            own = x[:length, row][::-1] if backwards else x[:length, row]
            shown, *states = one_direction(op, own, w[d], r[d], b[d], int(length))
            y[:length, d, row] = shown[::-1] if backwards else shown
            finals[:, d, row] = states
    return [y, *finals[: 2 if op == "LSTM" else 1]]


def check_close(found: Any, wanted: list[np.ndarray]) -> None:
    for y, z in zip(found, wanted, strict=True):
        assert y.shape == z.shape
        np.testing.assert_allclose(y, z, rtol=0, atol=2e-5)


def repeats(executable: Executable) -> list[Repeat]:
    assert not any(isinstance(step, Host) for step in executable.steps)
    return [step for step in executable.steps if isinstance(step, Repeat)]


@pytest.mark.parametrize("lens", [(), ("lens",)], ids=["whole", "lens"])
@pytest.mark.parametrize("direction", slow(["forward", "reverse", "bidirectional"], "reverse"))
@pytest.mark.parametrize("op", GATES)
def test_one_module_is_right_for_every_length_and_batch(
    op: str, direction: str, lens: tuple[str, ...], tmp_path: Path
) -> None:
    attrs = {"linear_before_reset": 1} if op == "GRU" else {}
    model = layer(op, "steps", "batch", direction=direction, extra=lens, **attrs)
    module = bn.compile(model, shapes={"steps": (1, 512), "batch": (1, 8)}, threads=2, cache_dir=tmp_path)
    assert len(repeats(module.executable)) == (2 if direction == "bidirectional" else 1)
    module.save(tmp_path / "m.bn")
    for each in (module, bn.load(tmp_path / "m.bn")):
        for steps, batch in [(1, 1), (2, 3), (7, 8), (100, 3), (511, 1), (512, 2)]:
            feeds = feeds_of(model, {"steps": steps, "batch": batch})
            check_close(each(**feeds), expected(model, feeds))


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("op", GATES)
def test_no_byte_outside_of_buffers_is_touched_at_any_length(op: str, edge: str, tmp_path: Path) -> None:
    attrs = {"linear_before_reset": 1} if op == "GRU" else {}
    model = layer(op, "steps", 3, direction="bidirectional", extra=("lens",), **attrs)
    fenced = FencedModule(bn.compile(model, shapes={"steps": (1, 512)}, threads=2, cache_dir=tmp_path), edge)
    for steps in (1, 2, 3, 8, 65, 512):
        feeds = feeds_of(model, {"steps": steps})
        check_close(fenced.run([*feeds.values()], edge), expected(model, feeds))


@pytest.mark.parametrize("edge", ["start", "end"])
def test_no_byte_outside_of_buffers_is_touched_where_the_length_is_known(edge: str, tmp_path: Path) -> None:
    model = layer("LSTM", LONG, 3, direction="reverse")
    module = bn.compile(model, threads=2, cache_dir=tmp_path)
    assert len(repeats(module.executable)) == 1
    feeds = feeds_of(model, {})
    check_close(FencedModule(module, edge).run([*feeds.values()], edge), expected(model, feeds))


OTHERS: dict[str, dict[str, Any]] = {
    "initial states": {"op": "LSTM", "extra": ("", "h", "c")},
    "peepholes": {"op": "LSTM", "extra": ("", "h", "c", "P")},
    "computed weight": {"op": "LSTM", "computed": True},
    "coupled gates": {"op": "LSTM", "input_forget": 1, "direction": "bidirectional"},
    "gru": {"op": "GRU", "linear_before_reset": 0, "extra": ("", "h")},
    "activations": {"op": "GRU", "activations": ["HardSigmoid", "Softsign"], "clip": 0.5},
    "relu": {"op": "RNN", "activations": ["Relu"], "extra": ("lens", "h"), "direction": "reverse"},
    "scaled": {"op": "RNN", "activations": ["LeakyRelu"], "activation_alpha": [0.2]},
    "batch first": {"op": "LSTM", "layout": 1, "extra": ("lens",)},
}


@pytest.mark.parametrize("case", slow(OTHERS, "coupled gates", "peepholes", "activations"))
def test_rounds_give_what_the_same_steps_give_as_nodes_of_their_own(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = layer(steps=LONG, batch=2, **OTHERS[case])
    feeds = feeds_of(model, {})
    if "lens" in feeds:
        feeds["lens"] = np.array([LONG, 3], np.int32)
    found = bn.compile(model, cache_dir=tmp_path, rewrite=False)
    assert repeats(found.executable)
    monkeypatch.setattr("burnish.frontend.onnx.rounds.UNROLLED", LONG)
    unrolled = bn.compile(model, cache_dir=tmp_path, rewrite=False)
    assert not repeats(unrolled.executable)
    check_close(found(**feeds), list(unrolled(**feeds)))


def test_onnx_reference_agrees(tmp_path: Path) -> None:
    model = layer("LSTM", LONG, 2)
    feeds = feeds_of(model, {})
    check_close(bn.compile(model, cache_dir=tmp_path)(**feeds), ReferenceEvaluator(model).run(None, feeds))


def test_weights_beyond_the_caches_are_read_backwards_every_other_round(tmp_path: Path) -> None:
    model = layer("LSTM", LONG, 1, hidden=1024)
    module = bn.compile(model, target=replace(host(), l2_bytes=1 << 20, cores=2), threads=2, cache_dir=tmp_path)
    (step,) = repeats(module.executable)
    assert [call.kernel for call in step.odd] != [call.kernel for call in step.calls]
    feeds = feeds_of(model, {})
    check_close(module(**feeds), expected(model, feeds))


def test_compile_time_does_not_depend_on_the_length(tmp_path: Path) -> None:
    bn.compile(layer("LSTM", LONG, 1), cache_dir=tmp_path / "first")
    began = time.process_time()
    module = bn.compile(layer("LSTM", 5000, 1), cache_dir=tmp_path / "second")
    assert time.process_time() - began < 2.0
    assert len(module.executable.steps) < 10


def test_every_kernel_of_a_long_layer_can_be_checked() -> None:
    model = layer("LSTM", LONG, 2, extra=("lens",))
    rows = check(model, feeds_of(model, {}))
    assert all(row.error <= row.allowed for row in rows)
    assert any("lstm_cell" in row.kernel for row in rows)


def test_the_tuner_finds_the_kernel_of_a_step_as_often_as_it_is_called() -> None:
    graph = optimize(import_graph(layer("LSTM", LONG, 2)), False)
    assert LONG in [task.calls for task in tuning_tasks(graph, host(), False) if task.name.startswith("lstm_cell")]


# --- scans of other bodies --------------------------------------------------------------------------------------------


def running(steps: int, reverse: bool = False) -> Graph:
    """Running sum and product of x [T, 4]; the sums of every round, the last product, and what each round adds."""
    b = GraphBuilder()
    x, factor = b.input("x", (steps, 4)), b.input("factor", (4,))
    zero, one = b.constant(np.zeros(4, np.float32)), b.constant(np.ones(4, np.float32))
    body = (
        (
            ("mul", ("2", "3"), ("part",), ()),
            ("add", ("0", "part"), ("sum",), ()),
            ("mul", ("1", "part"), ("all",), ()),
        ),
        ("sum", "all", "part"),
    )
    found = b.add_many("scan", zero, one, x, factor, body=body, states=2, sequences=1, every=(0, 2), reverse=reverse)
    return b.build(*found)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_scan_is_a_loop(steps: int, reverse: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(steps)
    x, factor = random.random((steps, 4), np.float32) + 0.5, random.random(4, np.float32) + 0.5
    part = x * factor
    walked = part[::-1] if reverse else part
    sums = np.cumsum(walked, axis=0)
    wanted = [sums[::-1] if reverse else sums, np.prod(walked, axis=0), part]
    feeds = {"x": x, "factor": factor}
    check_close(evaluate(running(steps, reverse), feeds).values(), wanted)
    check_close(bn.compile(running(steps, reverse), cache_dir=tmp_path)(x, factor), wanted)
    opened = bn.compile(running(dim("steps", 1, 9), reverse), cache_dir=tmp_path)
    check_close(opened(x, factor), wanted)


def test_what_is_the_same_in_every_round_is_computed_in_the_first_alone(tmp_path: Path) -> None:
    b = GraphBuilder()
    x, w, start = b.input("x", (6, 4)), b.input("w", (3, 4)), b.constant(np.zeros(4, np.float32))
    nodes = (
        ("softmax", ("2",), ("soft",), (("axis", 1),)),
        ("reduce_sum", ("soft",), ("m",), (("axes", (0,)), ("keepdims", False))),
        ("mul", ("1", "m"), ("part",), ()),
        ("add", ("0", "part"), ("s",), ()),
    )
    found = b.add_many("scan", start, x, w, body=(nodes, ("s",)), states=1, sequences=1, every=(0,))
    module = bn.compile(b.build(*found), cache_dir=tmp_path)
    (step,) = repeats(module.executable)
    assert step.once and step.calls
    random = np.random.default_rng(1)
    value, weight = random.random((6, 4), np.float32), random.random((3, 4), np.float32)
    soft = np.exp(weight) / np.exp(weight).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(module(value, weight), np.cumsum(value * soft.sum(axis=0), axis=0), rtol=1e-5)


def test_names_in_a_body_are_its_own(tmp_path: Path) -> None:
    """What passes call a value, or a constant, in a round, others call alike outside of it."""
    random = np.random.default_rng(0)
    weights = [random.integers(-100, 100, (8, 8)).astype(np.int8) for _ in range(2)]
    b = GraphBuilder()
    x, start = b.input("x", (5, 1, 8), "uint8"), b.constant(np.zeros((1, 8), np.int32))
    fixed, other = (b.constant(weight) for weight in weights)
    nodes = (("matmul", ("1", "2"), ("p",), ()), ("add", ("0", "p"), ("s",), ()))
    (sums,) = b.add_many("scan", start, x, fixed, body=(nodes, ("s",)), states=1, sequences=1, every=(0,))
    outside = b.add("matmul", b.add("reshape", x, shape=(5, 8)), other)
    module = bn.compile(b.build(sums, outside), cache_dir=tmp_path)
    value = random.integers(0, 255, (5, 1, 8)).astype(np.uint8)
    wide = value.astype(np.int32)
    check_close(module(value), [np.cumsum(wide @ weights[0], axis=0), wide.reshape(5, 8) @ weights[1].astype(np.int32)])


@pytest.mark.parametrize("steps", slow([UNROLLED, UNROLLED + 1], UNROLLED))
def test_a_quantized_layer_of_many_steps(steps: int, tmp_path: Path) -> None:
    """The same rows give the same first steps, however many follow."""
    random = np.random.default_rng(0)
    arrays = {n: random.integers(-100, 100, s).astype(np.int8) for n, s in (("W", (1, 8, 64)), ("R", (1, 16, 64)))}
    arrays |= {"a": np.full(1, 0.01, np.float32), "b": np.zeros(1, np.int8)}

    def compiled(count: int) -> bn.Module:
        names = ["X", "W", "R", *[""] * 5, "a", "b", "a", "b"]
        node = helper.make_node("DynamicQuantizeLSTM", names, ["Y"], domain="com.microsoft", hidden_size=16)
        given = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [count, 1, 8])]
        constants = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
        graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name="Y")], constants)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return bn.compile(helper.make_model(graph, opset_imports=imports, ir_version=9), cache_dir=tmp_path)

    rows = np.tile(random.standard_normal((2, 1, 8)).astype(np.float32), (steps, 1, 1))[:steps]  # one scale for all
    few = compiled(4)(rows[:4])
    np.testing.assert_allclose(compiled(steps)(rows)[:4], few, rtol=1e-5, atol=1e-6)


def test_a_body_with_an_opaque_operator_runs_in_python(tmp_path: Path) -> None:
    b = GraphBuilder()
    x, start = b.input("x", (6, 3)), b.constant(np.zeros(3, np.float32))
    body = ((("add", ("0", "1"), ("s",), ()), ("cumprod", ("s",), ("p",), (("axis", 0),))), ("p",))
    graph = b.build(*b.add_many("scan", start, x, body=body, states=1, sequences=1, every=(0,)))
    module = bn.compile(graph, cache_dir=tmp_path)
    assert any(isinstance(step, Host) for step in module.executable.steps)
    value = np.random.default_rng(0).random((6, 3), np.float32)
    state, wanted = np.zeros(3), []
    for row in value:
        state = np.cumprod(state + row)
        wanted.append(state)
    np.testing.assert_allclose(module(value), np.array(wanted), rtol=1e-5)


ADD = (("add", ("0", "1"), ("s",), ()),)
BAD_SCANS = {
    "1 states, or more": {"body": (ADD, ())},
    r"found \['t'\]; allowed: results of its nodes: \['s'\]": {"body": (ADD, ("t",))},
    r"inputs \['9'\] of 'add'": {"body": ((("add", ("0", "9"), ("s",), ()),), ("s",))},
    "operator 'wrong'": {"body": ((("wrong", ("0",), ("s",), ()),), ("s",))},
    "a value of type Body": {"body": 3},
    r"found \[1\]": {"every": (1,)},
    r"result 0: found float32\[4\]; allowed: float32\[3\], as state 0": {
        "body": ((("pad", ("0",), ("s",), (("pads", (0, 1)),)),), ("s",))
    },
    "'sequences': found 0": {"sequences": 0},
}


@pytest.mark.parametrize("words", BAD_SCANS)
def test_bad_scans_are_refused(words: str) -> None:
    attrs: dict[str, Any] = {"body": (ADD, ("s",)), "states": 1, "sequences": 1, "every": (0,)}
    with pytest.raises(ModelError, match=words):
        infer("scan", [((3,), "float32"), ((5, 3), "float32")], {**attrs, **BAD_SCANS[words]})


def test_sequences_of_different_lengths_are_refused() -> None:
    attrs = {"body": (ADD, ("s",)), "states": 1, "sequences": 2, "every": (0,)}
    with pytest.raises(ModelError, match=r"scan 'y': inputs, sequences: found lengths \['4', '5'\]|\['5', '4'\]"):
        infer("scan", [((3,), "float32"), ((5, 3), "float32"), ((4, 3), "float32")], attrs)


# --- executables ------------------------------------------------------------------------------------------------------


def _changed(executable: Executable, **changes: Any) -> Executable:
    steps = tuple(replace(s, **changes) if isinstance(s, Repeat) else s for s in executable.steps)
    return replace(executable, steps=steps)


def test_repeats_that_leave_their_memory_are_refused(tmp_path: Path) -> None:
    executable = bn.compile(running(5), cache_dir=tmp_path).executable
    (step,) = repeats(executable)
    strided = [replace(p, stride=1 << 20) if p.stride else p for p in step.pointers]
    wrong = KernelCall(step.calls[0].kernel, (Slot("repeat", 99), *step.calls[0].args[1:]), "n")
    for changes, words in [
        ({"count": 1 << 40}, "a pointer goes over"),
        ({"count": 0}, "allowed: 1 or more"),
        ({"count": dim("other", 1, 5)}, "sizes of the inputs' dimensions"),
        ({"pointers": tuple(strided)}, "a pointer goes over"),
        ({"calls": ()}, "allowed: calls"),
        ({"calls": (wrong,)}, "allowed: one of its pointers"),
    ]:
        with pytest.raises(VerificationError, match=words):
            _changed(executable, **changes)
