"""If, Loop and Scan of which values decide what runs, as one executable: every outcome beside onnxruntime's."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import burnish as bn
from burnish.cli.compiling import signature_text
from burnish.driver.segmented import SegmentedModule
from burnish.errors import VerificationError
from burnish.runtime.executable import Branch, Host, While
from tools.fuzz.pages import FencedModule

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, value = helper.make_node, helper.make_tensor_value_info
rng = np.random.default_rng(0)
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
CONSTANTS = {"w": W, "zero": np.float32(0), "one": np.float32(1), "two": np.array(2), "limit": np.float32(100)}
POSITIVE = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"])]
Feeds = Mapping[str, Any]


def graph(nodes: Sequence[Any], outputs: Mapping[str, int], inputs: Mapping[str, Any] | None = None) -> Any:
    """A subgraph: element types of its outputs, and types of its inputs."""
    given = [value(name, *t) for name, t in (inputs or {}).items()]
    return helper.make_graph(list(nodes), "body", given, [value(name, t, None) for name, t in outputs.items()])


def model(nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Mapping[str, int], **constants: Any) -> Any:
    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in {**CONSTANTS, **constants}.items()]
    given = [value(name, *t) for name, t in inputs.items()]
    made = helper.make_graph(list(nodes), "g", given, [value(n, t, None) for n, t in outputs.items()], held)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def branch(then: Any, other: Any, outputs: Sequence[str] = ("y",), condition: str = "c") -> Any:
    return node("If", [condition], list(outputs), then_branch=then, else_branch=other)


def compiled(proto: onnx.ModelProto, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bn.compile(proto, threads=1, rewrite=False, **options)


def check(proto: onnx.ModelProto, module: Any, *feeds: Feeds) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for feed in feeds:
        found = module(**feed)
        for a, b in zip(found if isinstance(found, tuple) else (found,), session.run(None, dict(feed)), strict=True):
            assert a.shape == np.shape(b) and a.dtype == np.asarray(b).dtype
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def signs(*shape: int) -> list[Feeds]:
    return [{"x": (sign * np.abs(rng.standard_normal(shape))).astype(np.float32)} for sign in (1, -1, 1)]


def branching() -> Any:
    """relu(x @ w) and a constant, or x itself and a maximum, by the sign of the sum of x; then its negation."""
    then = [node("MatMul", ["x", "w"], ["5"]), node("Relu", ["5"], ["t"]), node("Identity", ["one"], ["k"])]
    other = [node("Identity", ["x"], ["e"]), node("ReduceMax", ["x"], ["k2"], keepdims=0)]
    taken = branch(graph(then, {"t": F32, "k": F32}), graph(other, {"e": F32, "k2": F32}), ("y", "m"))
    return model([*POSITIVE, taken, node("Neg", ["y"], ["z"])], {"x": (F32, [3, 4])}, {"z": F32, "m": F32})


def nested() -> Any:
    """If in If, with an LSTM of many steps in one, by values that the branches compute."""
    inner = [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Greater", ["m", "one"], ["c2"])]
    lstm = graph([node("LSTM", ["x", "W", "R"], ["", "", "l"], hidden_size=4)], {"l": F32})
    gru = graph([node("GRU", ["x", "W3", "R3"], ["", "q"], hidden_size=4)], {"q": F32})
    then = graph([*inner, branch(lstm, gru, ("t",), "c2")], {"t": F32})
    other = graph([node("ReduceMax", ["x", "axes"], ["e"], keepdims=1)], {"e": F32})
    weights = {name: rng.standard_normal((1, n * 4, 4)).astype(np.float32) for name, n in
               (("W", 4), ("R", 4), ("W3", 3), ("R3", 3))}  # fmt: skip
    inputs = {"x": (F32, [70, 2, 4])}
    return model([*POSITIVE, branch(then, other)], inputs, {"y": F32}, **weights, axes=np.array([0]))


def looping() -> Any:
    """Two states that swap, one that counts, an If in every round, values that all rounds read alike; ends early."""
    double, less = (
        graph([node("Add", ["v", "v"], ["t"])], {"t": F32}),
        graph([node("Sub", ["v", "u"], ["e"])], {"e": F32}),
    )
    body = [
        node("Mod", ["i", "two"], ["r"]), node("Cast", ["r"], ["odd"], to=BOOL), branch(less, double, ("v2",), "odd"),
        node("Exp", ["b"], ["same"]), node("Mul", ["v2", "same"], ["v3"]), node("Add", ["u", "b"], ["u2"]),
        node("ReduceMax", ["v3"], ["top"], keepdims=0), node("Less", ["top", "limit"], ["go"]),
        node("Add", ["n", "i"], ["n2"]),
    ]  # fmt: skip
    states = {"v": (F32, [4]), "u": (F32, [4]), "n": (I64, [])}
    rounds = graph(body, {"go": BOOL, "u2": F32, "v3": F32, "n2": I64}, {"i": (I64, []), "k": (BOOL, []), **states})
    nodes = [node("Loop", ["most", "first", "x", "x", "two"], ["p", "q", "o"], body=rounds)]
    inputs = {"x": (F32, [4]), "b": (F32, [4]), "most": (I64, []), "first": (BOOL, [])}
    return model(nodes, inputs, {"p": F32, "q": F32, "o": I64})


def looped(most: int, first: bool = True, x: float = 1.0) -> Feeds:
    return {"x": np.full(4, x, np.float32), "b": np.full(4, 0.1, np.float32), "most": np.array(most),
            "first": np.array(first)}  # fmt: skip


LOOPED = [looped(n, first) for n in (0, 1, 2, 5, 30, -1) for first in (True, False)] + [looped(9, True, 90.0)]


def within() -> Any:
    """A loop in a loop whose steps the outer one counts, in a branch."""
    state = {"p": (F32, [4])}
    deep = graph([node("Add", ["p", "v"], ["p2"]), node("Identity", ["k2"], ["g2"])], {"g2": BOOL, "p2": F32},
                 {"j": (I64, []), "k2": (BOOL, []), **state})  # fmt: skip
    body = [node("Loop", ["i", "", "v"], ["v2"], body=deep), node("Identity", ["k"], ["go"])]
    outer = graph(body, {"go": BOOL, "v2": F32}, {"i": (I64, []), "k": (BOOL, []), "v": (F32, [4])})
    then = graph([node("Loop", ["most", "", "x"], ["t"], body=outer)], {"t": F32})
    other = graph([node("Neg", ["x"], ["e"])], {"e": F32})
    return model([*POSITIVE, branch(then, other)], {"x": (F32, [4]), "most": (I64, [])}, {"y": F32})


def scanning(
    steps: int | str, axes: Sequence[int] = (0, 0), back: Sequence[int] = (0, 0), ends: Sequence[int] = (0, 0)
) -> Any:
    """A state, two sequences along some axes, and two results of every step, from the first or the last step on."""
    body = [node("Add", ["h", "e"], ["h2"]), node("Tanh", ["h2"], ["o"]), node("Mul", ["o", "f"], ["o2"])]
    rounds = graph(body, {"h2": F32, "o2": F32, "o": F32}, {"h": (F32, [3]), "e": (F32, [3]), "f": (F32, [3])})
    scan = node("Scan", ["h0", "a", "b"], ["h", "p", "q"], body=rounds, num_scan_inputs=2, scan_input_axes=[*axes],
                scan_input_directions=[*back], scan_output_directions=[*ends], scan_output_axes=[*axes])  # fmt: skip
    shapes = [[3, steps] if axis else [steps, 3] for axis in axes]
    return model(
        [scan], {"h0": (F32, [3]), "a": (F32, shapes[0]), "b": (F32, shapes[1])}, {"h": F32, "p": F32, "q": F32}
    )


def scanned(steps: int, axes: Sequence[int] = (0, 0)) -> Feeds:
    a, b = (rng.standard_normal((3, steps) if axis else (steps, 3)).astype(np.float32) for axis in axes)
    return {"h0": rng.standard_normal(3).astype(np.float32), "a": a, "b": b}


def counted(most: int | None, state: int = 4) -> Any:
    """x doubled, as often as is known (``most``) or as a call says, with all states on the way where that is known."""
    body = [node("Add", ["v", "v"], ["v2"]), node("Add", ["v2", "one"], ["kept"]), node("Identity", ["k"], ["go"])]
    results = {"go": BOOL, "v2": F32} | ({"kept": F32} if most is not None else {})
    rounds = graph(body, results, {"i": (I64, []), "k": (BOOL, []), "v": (F32, [state])})
    outputs = ["y", "all"] if most is not None else ["y"]
    inputs = {"x": (F32, [state])} | ({"most": (I64, [])} if most is None else {})
    known = {} if most is None else {"most": np.array(most)}
    return model([node("Loop", ["most", "", "x"], outputs, body=rounds)], inputs, dict.fromkeys(outputs, F32), **known)


@pytest.mark.parametrize(
    ("proto", "feeds"),
    [
        (branching(), signs(3, 4)),
        (nested(), [*signs(70, 2, 4), {"x": np.full((70, 2, 4), 0.5, np.float32)}]),
        (looping(), LOOPED),
        (within(), [{"x": np.full(4, x, np.float32), "most": np.array(n)} for x in (1, -1) for n in (0, 1, 4)]),
        (scanning(90), [scanned(90)]),
        (scanning(90, (1, 0), (1, 0), (0, 1)), [scanned(90, (1, 0))]),
        (scanning(3, (0, 1), (0, 1), (1, 0)), [scanned(3, (0, 1))]),
        (counted(None), [{"x": np.ones(4, np.float32), "most": np.array(n)} for n in (0, 1, 3)]),
        (counted(None, 0), [{"x": np.ones(0, np.float32), "most": np.array(3)}]),
        (counted(0), [{"x": np.ones(4, np.float32)}]),
        (counted(100), [{"x": np.full(4, 1e-30, np.float32)}]),
    ],
)
def test_every_outcome_is_that_of_onnxruntime(proto: onnx.ModelProto, feeds: Sequence[Feeds]) -> None:
    module = compiled(proto)
    assert type(module) is bn.Module
    check(proto, module, *feeds)


def test_a_scan_of_nothing_gives_empty_results() -> None:
    feed = scanned(0)
    h, p, q = compiled(scanning(0))(**feed)
    assert np.array_equal(h, feed["h0"]) and p.shape == q.shape == (0, 3)


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize(
    ("proto", "feeds"), [(branching(), signs(3, 4)), (looping(), LOOPED), (scanning(90), [scanned(90)])]
)
def test_no_byte_outside_of_buffers_is_touched(proto: onnx.ModelProto, feeds: Sequence[Feeds], edge: str) -> None:
    module = compiled(proto)
    fenced = FencedModule(module, edge)
    for feed in feeds:
        found, wanted = fenced.run(list(feed.values()), edge), module(**feed)
        for a, b in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("proto", "feeds"), [(nested(), signs(70, 2, 4)), (looping(), LOOPED), (scanning(90), [scanned(90)])]
)
def test_a_file_holds_all_of_it(proto: onnx.ModelProto, feeds: Sequence[Feeds], tmp_path: Path) -> None:
    compiled(proto).save(tmp_path / "m.bn")
    module = bn.load(tmp_path / "m.bn", threads=2)
    check(proto, module, *feeds)
    out = [np.full(spec.shape, 9, spec.dtype) for spec in module.outputs]
    module.run_into(list(feeds[0].values()), out)
    found = module(**feeds[0])
    for a, b in zip(out, found if isinstance(found, tuple) else (found,), strict=True):
        assert np.array_equal(a, b)
    assert all(f"input   {spec}" in signature_text(module) for spec in module.inputs)  # of no dimensions, too
    rows = module.profile(**feeds[0], repeat=2)
    assert any(row.kernel.startswith(("branch (", "loop (")) for row in rows)


def test_sequences_of_known_lengths_are_no_steps() -> None:
    """A list that a loop fills, split, inserted into, erased from, mapped and joined again: one module of kernels."""
    kept = value("q", F32, None)
    kept.type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, None)))
    grown = onnx.ValueInfoProto(name="q2", type=kept.type)
    body = [
        node("Gather", ["x", "i"], ["row"], axis=0), node("Exp", ["row"], ["e"]),
        node("SequenceInsert", ["q", "e"], ["q2"]), node("Identity", ["k"], ["go"]),
    ]  # fmt: skip
    fill = helper.make_graph(
        body, "fill", [value("i", I64, []), value("k", BOOL, []), kept], [value("go", BOOL, []), grown]
    )
    split = helper.make_graph([node("Neg", ["r"], ["n"])], "neg", [value("r", F32, None)], [value("n", F32, None)])
    nodes = [
        node("SequenceEmpty", [], ["none"]), node("Shape", ["x"], ["d"]), node("Gather", ["d", "at0"], ["rows"]),
        node("Loop", ["rows", "", "none"], ["list"], body=fill), node("Identity", ["list"], ["same"]),
        node("ConcatFromSequence", ["same"], ["stacked"], axis=-1, new_axis=1),
        node("SplitToSequence", ["x", "parts"], ["three"], axis=1), node("SequenceAt", ["three", "last"], ["third"]),
        node("SplitToSequence", ["x"], ["ones"], axis=0, keepdims=0),
        node("SequenceMap", ["ones"], ["neg"], body=split),
        node("SequenceErase", ["neg", "at0"], ["fewer"]), node("SequenceInsert", ["fewer", "first", "at0"], ["more"]),
        node("SequenceConstruct", ["first"], ["single"]), node("ConcatFromSequence", ["single"], ["alone"], axis=0),
        node("ConcatFromSequence", ["more"], ["joined"], axis=0), node("SequenceLength", ["more"], ["count"]),
    ]  # fmt: skip
    outputs = {"stacked": F32, "third": F32, "joined": F32, "alone": F32, "count": I64}
    constants = {
        "at0": np.array(0),
        "last": np.array(-1),
        "parts": np.array([1, 2, 2]),
        "first": np.ones(5, np.float32),
    }
    proto = model(nodes, {"x": (F32, [3, 5])}, outputs, **constants)
    module = compiled(proto)
    assert type(module) is bn.Module
    check(proto, module, {"x": rng.standard_normal((3, 5)).astype(np.float32)})


def test_what_does_not_fit_together_is_refused() -> None:
    executable = compiled(looping()).executable
    loop = next(step for step in executable.steps if isinstance(step, While))
    branch = next(step for step in loop.body if isinstance(step, Branch))
    wide, far = replace(loop.condition, nbytes=8), replace(loop.limit, index=9)
    host = Host("topk", (), (), 1, {}, "h")
    wrong = [replace(loop, condition=wide), replace(loop, limit=far), replace(loop, round=loop.condition),
             replace(loop, body=(host,)), replace(loop, body=(replace(branch, then=(host,)),))]  # fmt: skip
    for step in wrong:
        with pytest.raises(VerificationError):
            replace(executable, steps=tuple(step if own is loop else own for own in executable.steps))


def test_open_sizes_within_control_flow() -> None:
    """A scan and a branch whose tensors have a dimension that is open, in one module."""
    proto = scanning("steps", (0, 0), (1, 0))
    module = compiled(proto, shapes={"steps": (1, 200)})
    assert type(module) is bn.Module
    check(proto, module, *(scanned(n) for n in (1, 5, 64, 200)))
    body = [node("Gather", ["x", "i"], ["r"], axis=0), node("Add", ["a", "r"], ["a2"]), node("Identity", ["k"], ["go"])]
    rounds = graph(body, {"go": BOOL, "a2": F32, "r": F32}, {"i": (I64, []), "k": (BOOL, []), "a": (F32, [4])})
    nodes = [node("Shape", ["x"], ["d"]), node("Gather", ["d", "at0"], ["n"]),
             node("Loop", ["n", "", "start"], ["sum", "rows"], body=rounds)]  # fmt: skip
    constants = {"at0": np.array(0), "start": np.zeros(4, np.float32)}
    proto = model(nodes, {"x": (F32, ["rows", 4])}, {"sum": F32, "rows": F32}, **constants)
    module = compiled(proto, shapes={"rows": (1, 40)})
    assert type(module) is bn.Module
    check(proto, module, *(feed for n in (1, 7, 40) for feed in signs(n, 4)))
    proto = branching()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    module = compiled(proto, shapes={"rows": (1, 40)})
    check(proto, module, *(feed for n in (1, 7, 40) for feed in signs(n, 4)))


def test_what_values_decide_the_types_of_stays_in_python_and_is_named() -> None:
    shapes = branch(
        graph([node("ReduceSum", ["x"], ["t"], keepdims=0)], {"t": F32}), graph([node("Neg", ["x"], ["e"])], {"e": F32})
    )
    proto = model([*POSITIVE, shapes], {"x": (F32, [3, 4])}, {"y": F32})
    module = compiled(proto)
    check(proto, module, *signs(3, 4))
    assert isinstance(module, SegmentedModule)
    assert "found results float32[] of one branch, float32[3, 4] of the other" in repr(module)
    body = [node("Concat", ["v", "x"], ["v2"], axis=0), node("Identity", ["k"], ["go"])]
    grows = graph(body, {"go": BOOL, "v2": F32}, {"i": (I64, []), "k": (BOOL, []), "v": (F32, ["m"])})
    proto = model([node("Loop", ["n", "", "x"], ["y"], body=grows)], {"x": (F32, [4]), "n": (I64, [])}, {"y": F32})
    module = compiled(proto)
    check(proto, module, *({"x": np.ones(4, np.float32), "n": np.array(n)} for n in (0, 2, 12, 3)))
    assert isinstance(module, SegmentedModule)


def test_constants_of_a_subgraph_are_each_their_own() -> None:
    held = {f"k{i}": np.full(1 + i % 3, i, np.float32) for i in range(60)}
    sums = [node("ReduceSum", [name], [f"s{name}"], keepdims=0) for name in held]
    body = graph([*sums, node("Sum", [f"s{name}" for name in held], ["total"])], {"total": F32})
    body.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    nodes = [*POSITIVE, branch(body, graph([node("Identity", ["s"], ["same"])], {"same": F32}))]
    proto = model(nodes, {"x": (F32, [4])}, {"y": F32})
    found = compiled(proto, fix={"x": np.ones(4, np.float32)})()
    np.testing.assert_array_equal(found, sum(a.sum() for a in held.values()))
    check(proto, compiled(proto), {"x": np.ones(4, np.float32)}, {"x": -np.ones(4, np.float32)})
