"""Models that are no static graph: control flow, shapes that depend on values, sizes and values that calls give."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import burnish as bn
from burnish.driver.segment_calls import KEPT
from burnish.driver.segmented import SegmentedModule
from burnish.errors import ArtifactError, InputError, ModelError, ParameterError, UnsupportedOperator
from burnish.graph.graph import GraphBuilder

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
rng = np.random.default_rng(0)


def value(name, dtype=F32, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def const(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def model(nodes, inputs, outputs, constants=(), opset=18):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def compiled(proto, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bn.compile(proto, threads=1, **options)


def check(proto, module, *feeds):
    wanted = ReferenceEvaluator(proto).run(None, dict(zip([v.name for v in proto.graph.input], feeds, strict=True)))
    found = module(*feeds)
    for a, b in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def branching(condition=None, kept=4):
    """relu(x @ w), of it the first ``kept`` columns, or x + 1, by the sign of the sum of x (or by ``condition``); a
    captured value in both branches.
    """
    sliced = [helper.make_node("Relu", ["m"], ["r"]), helper.make_node("Slice", ["r", "from", "kept", "axis"], ["t"])]
    then = helper.make_graph(sliced, "then", [], [value("t", F32, None)])
    other = helper.make_graph([helper.make_node("Add", ["x", "one"], ["e"])], "else", [], [value("e", F32, None)])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", [condition or "c"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    w = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    constants = [const("w", w), const("one", np.float32(1)), const("zero", np.float32(0)), const("yes", np.array(True))]
    constants += [const("from", np.array([0])), const("kept", np.array([kept])), const("axis", np.array([1]))]
    return model(nodes, [value("x", F32, [3, 4])], [value("z", F32, None)], constants)


def test_a_branch_is_taken_by_what_a_call_computes() -> None:
    proto = branching(kept=3)
    module = compiled(proto)
    assert isinstance(module, SegmentedModule) and "float32[3, 3] of one branch" in repr(module)
    x = np.abs(rng.standard_normal((3, 4))).astype(np.float32)
    for feed in (x, -x, x, -x):
        check(proto, module, feed)
    assert module.compilations == 5  # before, each branch, after each


def test_branches_within_branches_have_constants_of_their_own() -> None:
    """Branches of two shapes run by themselves; the constant of an inner one is nothing that outer ones read."""

    def deepest(name: str, op: str) -> onnx.GraphProto:
        nodes = [helper.make_node(op, ["x", "k"], [name])]
        return helper.make_graph(nodes, name, [], [value(name, F32, None)], [const("k", np.full(4, 2.0, np.float32))])

    def choice(condition: str, result: str, then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.GraphProto:
        node = helper.make_node("If", [condition], [result], then_branch=then, else_branch=other)
        return helper.make_graph([node], result, [], [value(result, F32, None)])

    within = choice("second", "w", deepest("a", "Add"), deepest("m", "Mul"))
    then = choice("first", "t", within, deepest("s", "Sub"))
    twice = helper.make_node("Concat", ["x", "x"], ["e"], axis=0)
    other = helper.make_graph([twice], "else", [], [value("e", F32, None)])
    graph = choice("first", "y", then, other)
    tests = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), helper.make_node("Greater", ["sum", "z"], ["first"]),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0), helper.make_node("Less", ["most", "z"], ["second"]),
    ]  # fmt: skip
    zero = const("z", np.array(3.0, np.float32))
    proto = model([*tests, *graph.node], [value("x", F32, [3, 4])], [value("y", F32, None)], [zero])
    module = compiled(proto)
    assert isinstance(module, SegmentedModule)
    for x in (np.ones((3, 4)), np.eye(3, 4), 5 * np.eye(3, 4), -np.ones((3, 4))):
        check(proto, module, x.astype(np.float32))


def test_control_flow_behind_a_count_is_in_the_same_module() -> None:
    """How many elements are positive is known after NonZero alone; a branch that this decides follows."""
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "then", [], [value("t", F32, None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [value("e", F32, None)])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["at"]),
        helper.make_node("ReduceSum", ["at"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "few"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    proto = model(nodes, [value("x", F32, [3, 4])], [value("y", F32, None)], [const("few", np.array(20))])
    module = compiled(proto)
    assert isinstance(module, bn.Module)
    x = np.ones((3, 4), np.float32)
    for feed in (x, -x, x, np.eye(3, 4, dtype=np.float32)):
        check(proto, module, feed)


def test_a_condition_that_is_known_becomes_part_of_one_graph() -> None:
    proto = branching("yes")
    module = compiled(proto)
    assert isinstance(module, bn.Module)
    check(proto, module, rng.standard_normal((3, 4)).astype(np.float32))


def looping(steps_known):
    """x doubled until its sum passes a limit, at most n times; every state is kept."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["v2"]),
            helper.make_node("ReduceSum", ["v2"], ["s"], keepdims=0),
            helper.make_node("Less", ["s", "limit"], ["go"]) if not steps_known
            else helper.make_node("Identity", ["cond"], ["go"]),
            helper.make_node("Identity", ["v2"], ["kept"]),
        ],
        "body",
        [value("i", I64, []), value("cond", BOOL, []), value("v", F32, [4])],
        [value("go", BOOL, []), value("v2", F32, [4]), value("kept", F32, [4])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["n" if not steps_known else "three", ""], ["y", "all"], body=body)]
    nodes[0].input.append("x")
    inputs = [value("x", F32, [4])] + ([] if steps_known else [value("n", I64, [])])
    constants = [const("three", np.array(3)), const("limit", np.float32(100))]
    return model(nodes, inputs, [value("y", F32, [4]), value("all", F32, None)], constants)


def test_a_loop_of_known_length_is_unrolled_into_one_graph() -> None:
    proto = looping(True)
    module = compiled(proto)
    assert isinstance(module, bn.Module)
    y, kept = module(np.arange(4, dtype=np.float32))
    assert np.array_equal(y, np.arange(4) * 8) and np.array_equal(kept, np.outer([2, 4, 8], np.arange(4)))


def test_a_loop_ends_where_its_condition_says() -> None:
    proto = looping(False)
    module = compiled(proto)
    for x, most, steps in ((np.arange(4), 10, 5), (np.arange(4), 2, 2), (np.zeros(4), 5, 5)):
        y, kept = module(x.astype(np.float32), np.array(most))
        assert np.array_equal(y, x * 2**steps)
        assert np.array_equal(kept, np.outer(2 ** np.arange(1, steps + 1), x))
    y, kept = module(np.ones(4, np.float32), np.array(0))
    assert np.array_equal(y, np.ones(4)) and kept.shape == (0, 4)


def test_a_long_loop_runs_one_compiled_body() -> None:
    proto = looping(True)
    proto.graph.initializer[0].CopyFrom(const("three", np.array(3000)))
    module = compiled(proto)
    y, kept = module(np.full(4, 1e-30, np.float32) * 0)
    assert isinstance(module, bn.Module) and kept.shape == (3000, 4) and len(module.executable.calls) <= 4
    assert np.array_equal(y, np.zeros(4))


def test_shapes_that_depend_on_values() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["at"]),
        helper.make_node("Transpose", ["at"], ["rows"], perm=[1, 0]),
        helper.make_node("GatherND", ["r", "rows"], ["v"]),
        helper.make_node("Mul", ["v", "v"], ["y"]),
        helper.make_node("Shape", ["rows"], ["n"]),
    ]
    proto = model(nodes, [value("x", F32, [5, 6])], [value("y", F32, ["k"]), value("n", I64, [2])])
    module = compiled(proto)
    for _ in range(4):
        check(proto, module, rng.standard_normal((5, 6)).astype(np.float32))
    check(proto, module, -np.ones((5, 6), np.float32))


@pytest.mark.parametrize("kept", [3, 40])
def test_values_that_a_kernel_depends_on_are_known_at_a_call(kept) -> None:
    nodes = [
        helper.make_node("Mul", ["n", "two"], ["n2"]),
        helper.make_node("Concat", ["n2", "rest"], ["shape"], axis=0),
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Reshape", ["e", "shape"], ["r"]),
        helper.make_node("ReduceSum", ["r", "axes"], ["y"], keepdims=0),
    ]
    constants = [const("two", np.array([2])), const("rest", np.array([-1]))]
    inputs = [value("x", F32, [24]), value("n", I64, [1]), value("axes", I64, [1])]
    proto = model(nodes, inputs, [value("y", F32, None)], constants)
    module = compiled(proto)
    x = rng.standard_normal(24).astype(np.float32)
    for n in [1, 2, 3, 4, 6, 12] * (kept // 3):
        for axis in (0, 1):
            check(proto, module, x, np.array([n]), np.array([axis]))
    assert all(len(v.runs) <= KEPT for v in module._calls._variants.values())


def test_a_value_computed_within_a_segment_is_cut_out_of_it() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ReduceMax", ["r"], ["m"], keepdims=1),
        helper.make_node("Cast", ["m"], ["mi"], to=I64),
        helper.make_node("Expand", ["r", "mi"], ["e"]),
        helper.make_node("Add", ["e", "r"], ["y"]),
    ]
    proto = model(nodes, [value("x", F32, [1])], [value("y", F32, None)])
    module = compiled(proto)
    for n in (1, 3, 7, 3):
        check(proto, module, np.array([n], np.float32))


def test_sequences() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
        helper.make_node("SequenceInsert", ["parts", "extra", "at"], ["more"]),
        helper.make_node("SequenceErase", ["more", "last"], ["less"]),
        helper.make_node("SequenceLength", ["less"], ["n"]),
        helper.make_node("SequenceAt", ["less", "last"], ["p"]),
        helper.make_node("ConcatFromSequence", ["less"], ["whole"], axis=0),
        helper.make_node("Relu", ["whole"], ["y"]),
        helper.make_node("Neg", ["p"], ["q"]),
    ]
    constants = [const("sizes", np.array([2, 3, 1])), const("at", np.array(1)), const("last", np.array(-1)),
                 const("extra", np.ones((2, 4), np.float32))]  # fmt: skip
    outputs = [value("y", F32, None), value("q", F32, None), value("n", I64, [])]
    proto = model(nodes, [value("x", F32, [6, 4])], outputs, constants)
    check(proto, compiled(proto), rng.standard_normal((6, 4)).astype(np.float32))


def normalized(shape):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"], axis=-1),
    ]
    w = const("w", rng.standard_normal((5, 7)).astype(np.float32))
    return model(nodes, [value("x", F32, shape)], [value("y", F32, None)], [w])


def test_open_sizes_are_compiled_when_they_are_met() -> None:
    proto = normalized(["batch", "length", 5])
    with pytest.warns(UserWarning, match=r"open dimensions \['length'\].*first call of each size"):
        module = bn.compile(proto, threads=1)
    for batch, length in ((1, 1), (2, 3), (1, 1), (4, 8)):
        check(proto, module, rng.standard_normal((batch, length, 5)).astype(np.float32))
    with pytest.raises(InputError, match=r"'x' is float32\[2, 3, 6\], allowed: x: float32\[batch, length, 5\]"):
        module(np.zeros((2, 3, 6), np.float32))
    with pytest.raises(InputError, match=r"input x: .* is missing"):
        module()
    with pytest.raises(InputError, match="float64"):
        module(np.zeros((1, 1, 5)))
    with pytest.raises(InputError, match="unknown"):
        module(q=np.zeros((1, 1, 5), np.float32))


def test_a_cache_that_grows_is_compiled_a_few_times() -> None:
    """Attention to a past of any length, whose mask is longer by one, then to batches: both become open."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("Transpose", ["present"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("Add", ["s", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "present"], ["y"]),
    ]
    inputs = [value("x", F32, ["b", 1, 8]), value("past", F32, ["b", "n", 8]), value("mask", F32, ["b", 1, "total"])]
    proto = model(nodes, inputs, [value("y", F32, None), value("present", F32, None)])
    module = compiled(proto)
    for batch, length in [(1, n) for n in range(1, 14)] + [(2, 9), (3, 9), (3, 12), (1, 14), (5, 14)]:
        shapes = (batch, 1, 8), (batch, length, 8), (batch, 1, length + 1)
        check(proto, module, *(rng.standard_normal(shape).astype(np.float32) for shape in shapes))
    assert module.compilations <= 4


def test_sizes_of_one_name_are_equal() -> None:
    nodes = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("NonZero", ["b"], ["n"])]
    outputs = [value("r", F32, None), value("n", I64, None)]
    proto = model(nodes, [value("a", F32, ["k"]), value("b", F32, ["k"])], outputs)
    module = compiled(proto)
    with pytest.raises(InputError, match=r"dimension 'k': found 3 of input 'b', 2 of 'a'"):
        module(np.zeros(2, np.float32), np.zeros(3, np.float32))


def test_an_input_fixed_to_a_value_is_a_constant() -> None:
    proto = looping(False)
    module = compiled(proto, fix={"n": 2})
    assert [spec.name for spec in module.inputs] == ["x"]
    y, _ = module(np.ones(4, np.float32))
    assert np.array_equal(y, np.full(4, 4))
    for fix, error in (({"q": 1}, "no model input"), ({"n": 1.5}, "allowed: values that int64 holds")):
        with pytest.raises(ModelError, match=error):
            compiled(proto, fix=fix)
    with pytest.raises(ParameterError, match="fix"):
        b = GraphBuilder()
        compiled(b.build(b.add("relu", b.input("x", (3,)))), fix={"x": 1})


def test_what_is_refused_is_named(tmp_path) -> None:
    proto = branching()
    inner = proto.graph.node[3].attribute[0].g
    inner.node[0].op_type = "Zap"
    with pytest.raises(UnsupportedOperator, match="Zap"):
        bn.compile(proto)
    proto = branching()
    proto.graph.node[3].attribute[0].g.node[0].input[0] = "nowhere"
    with pytest.raises(ModelError, match=r"inputs \['nowhere'\] are defined by nothing"):
        bn.compile(proto)


def test_a_profile_names_segments_and_what_runs_between() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("SequenceConstruct", ["e", "e"], ["s"])]
    nodes.append(helper.make_node("ArgMin", ["x"], ["place"], keepdims=0))
    nodes.append(helper.make_node("SequenceAt", ["s", "place"], ["u"]))
    nodes.append(helper.make_node("Neg", ["u"], ["y"]))
    module = compiled(model(nodes, [value("x", F32, [4])], [value("y", F32, None)]))
    rows = module.profile(np.ones(4, np.float32), repeat=2)
    between = ["SequenceConstruct (host)", "SequenceAt (host)"]
    assert [row.kernel for row in rows] == ["segment of 2 nodes", *between, "segment of 1 nodes"]
    assert sum(row.share for row in rows) == pytest.approx(1)


@pytest.mark.parametrize("key", [None, b"0123456789abcdef"])
def test_a_model_of_segments_is_saved_and_loaded(tmp_path, key) -> None:
    proto = branching(kept=3)
    module = compiled(proto, shapes={"x": (3, 4)}, exact=True)
    module.save(tmp_path / "m.bn", key=key)
    again = bn.load(tmp_path / "m.bn", key=key)
    assert isinstance(again, SegmentedModule) and again.threads == 1
    for sign in (1, -1):
        check(proto, again, (sign * np.abs(rng.standard_normal((3, 4)))).astype(np.float32))
    with pytest.raises(ArtifactError):
        bn.load(tmp_path / "m.bn", key=b"another key, 16 bytes")
    data = bytearray((tmp_path / "m.bn").read_bytes())
    data[-5000] ^= 1
    (tmp_path / "broken.bn").write_bytes(data)
    with pytest.raises(ArtifactError):
        bn.load(tmp_path / "broken.bn", key=key)


def test_weights_in_other_files_are_saved_with_it(tmp_path) -> None:
    proto = branching(kept=3)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    compiled(tmp_path / "m.onnx").save(tmp_path / "m.bn")
    (tmp_path / "m.data").unlink()
    check(branching(kept=3), bn.load(tmp_path / "m.bn"), np.ones((3, 4), np.float32))
