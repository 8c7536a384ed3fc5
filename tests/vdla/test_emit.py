"""The code generator: what programs become, in how many instructions, and what there is none for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from burnish.base.dump import through
from burnish.errors import ScheduleError
from burnish.kernels.task import KernelTask
from burnish.kernels.vdla import CONVOLUTION
from burnish.loops.expr import Buffer, Load, Value, Var, cast, math, maximum, select, wrap
from burnish.loops.interpret import run_program
from burnish.loops.layout import layout
from burnish.loops.program import Alloc, For, If, LoopProgram, Stmt, Store, seq
from burnish.loops.tensor import compute, create_program, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.loops.verify import verify
from burnish.lower.pipeline import own_passes
from burnish.machines.decoupled import POP, PUSH
from burnish.machines.intrinsics import TensorRule, declare, reference
from burnish.machines.target import target
from burnish.machines.vdla.code import VdlaKernel
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.emit import emit
from burnish.machines.vdla.isa import Instruction
from burnish.machines.vdla.machine import VDLA
from burnish.pipeline.plan import make_task, plan_kernels
from burnish.schedule.schedule import Schedule, replay
from tests.marks import slow
from tests.vdla.layers import convolution, integers

CONFIG = Config()
X, Y = Buffer("x", (4, 16), "int8"), Buffer("y", (4, 16), "int8")
ACC = Buffer("acc", (4, 16), "int32", "acc")
I, J = Var("i"), Var("j")  # noqa: E741


def made(*body: Stmt, params: tuple[Buffer, ...] = (X, Y)) -> VdlaKernel:
    stmt = seq(*body)
    for name in ("inp", "acc"):
        own = {"inp": Buffer("inp", (4, 16), "int8", "inp"), "acc": ACC}[name]
        stmt = Alloc(own, stmt) if name in str(stmt) else stmt
    return emit(through(LoopProgram("p", params, stmt), own_passes(VDLA)), CONFIG)


def rows(statement: Stmt, lanes: int = 16) -> Stmt:
    return For("i", 4, "serial", For("j", lanes, "serial", statement))


def at(buffer: Buffer, *index: Value) -> Load:
    return Load(buffer, tuple(wrap(i) for i in index or (I, J)))


FILL = rows(Store(ACC, (I, J), cast("int32", at(X))))
KEEP = rows(Store(Y, (I, J), cast("int8", at(ACC))))


def kinds(kernel: VdlaKernel) -> Counter[str]:
    return Counter(each.kind for each in kernel.instructions)


def test_a_copy_is_one_instruction_each_way() -> None:
    kernel = made(FILL, KEEP)
    assert kinds(kernel) == {"load": 1, "store": 1, "sync": 2}
    assert kernel.instructions[1].values["columns"] == 4


def test_a_chain_of_operations_is_computed_in_place() -> None:
    value = maximum(math("shr", cast("int32", at(ACC)) * 1 - 5, wrap(3, "int32")), wrap(0, "int32"))
    kernel = made(FILL, rows(Store(Y, (I, J), cast("int8", value))))
    found = [each.values for each in kernel.instructions if each.kind == "alu"]
    assert [(v["op"], v["value"]) for v in found] == [(2, -5), (3, 3), (1, 0)]
    assert len(kernel.uops) == 1  # the same micro-operation for all three


def test_micro_operations_are_loaded_once() -> None:
    twice = [rows(Store(ACC, (I, J), at(ACC) + n)) for n in (1, 2)]
    kernel = made(FILL, For("n", 5, "serial", seq(*twice)), KEEP)
    assert kinds(kernel)["alu"] == 10 and len(kernel.uops) == 1
    assert sum(each.kind == "load" for each in kernel.instructions) == 2


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ([rows(Store(ACC, (I, J), at(ACC) * 3))], r"the ALU has no operation '\*' of int32"),
        ([FILL, rows(Store(Y, (I, J), cast("int8", at(ACC) * at(ACC))))], r"no operation '\*' of int32"),
        ([rows(Store(ACC, (J, I), at(ACC, J, I) + 1), 4)], "is not computed by vectors of 16 accumulators"),
        ([rows(Store(ACC, (I, J), wrap(7, "int32") - at(ACC)))], "the ALU has no operation '-'"),
        ([rows(Store(ACC, (I, J), select(I < 2, cast("int32", at(X)), wrap(1, "int32"))))], "other values than zeros"),
        ([rows(Store(ACC, (I, J), cast("int32", at(X, I * I % 4, J))))], "is not a sum of steps of loops"),
        ([For("n", 5, "serial", rows(Store(ACC, (I, J), maximum(at(ACC) + 1, wrap(0, "int32")))))], "loop 'n' repeats"),
        ([rows(Store(Y, (I, J), at(X)))], "is in scope|copied from or to|scope 'global'"),
        ([rows(Store(Y, (I, J), at(X) + 1))], "no accumulators hold what"),
        ([FILL, If(at(X, 0, 0) > 3, rows(Store(ACC, (I, J), at(ACC) + 1)))], "is not known before a kernel runs"),
    ],
)
def test_what_there_is_no_instruction_for_is_refused(statements: list[Stmt], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        made(*statements)


def test_buffers_that_do_not_fit_are_refused_by_name() -> None:
    large = Buffer("large", (1 << 16,), "int32", "acc")
    fill = For("i", 1 << 16, "serial", Store(large, (I,), wrap(0, "int32")))
    with pytest.raises(ScheduleError, match="buffer 'large': scope 'acc' holds 2048 entries, 4096 would be in it"):
        emit(LoopProgram("p", (X,), Alloc(large, fill)), CONFIG)
    with pytest.raises(ScheduleError, match="found 24 elements of int32"):
        emit(LoopProgram("p", (X,), Alloc(large.with_(shape=(24,)), FILL)), CONFIG)
    with pytest.raises(ScheduleError, match="loop 'i' is 'vectorize'; allowed: serial"):
        emit(LoopProgram("p", (X, Y), For("i", 2, "vectorize", seq(FILL, KEEP))), CONFIG)


def task() -> tuple[KernelTask, dict[str, str]]:
    graph = convolution((1, 16, 2, 2), (32, 16, 3, 3), pads=(1, 1, 1, 1))
    plan = plan_kernels(graph, target("vdla"), True)
    group = next(g for g in plan.groups if g.anchor)
    return make_task(plan, group, dict(plan.graph.constants))


@pytest.mark.parametrize("threads", slow([1, 2], 2))
def test_schedules_mean_what_definitions_mean_after_every_pass(threads: int) -> None:
    """Scheduled, divided into units, given tokens and interleaved: interpreted each time; and the trace replays."""
    own, _ = task()
    machine = target("vdla")
    choice = {"channels": 1, "rows": 1, "columns": 2, "depth": 1, "threads": threads, "axis": "channels"}
    s = CONVOLUTION.on(own, machine).apply(choice)
    verify(s.program, scopes=[*VDLA.named_scopes])
    assert replay(own.program(), s.trace, VDLA.intrinsics, VDLA.scopes) == s.program
    logical = {t.name: integers(*t.shape, seed=n, dtype=t.dtype) for n, t in enumerate(own.inputs)}
    expected = run_program(own.program(), logical)[own.outputs[0].name]
    physical = {p.name: p.shape for p in s.program.params}
    feeds = {}
    for name, value in logical.items():
        tag = {p: args[1] for call, args in s.trace if call == "transform_layout" for p in args[:1]}.get(name)
        feeds[name] = layout(tag).pack(value) if tag else value
        assert feeds[name].shape == physical[name]
    skip = {PUSH: lambda operands, attrs: None, POP: lambda operands, attrs: None}
    meanings = {t.name: reference(t) for t in VDLA.intrinsics} | skip
    program = s.program
    for apply in (lambda p: p, *own_passes(VDLA)):
        program = apply(program)
        (found,) = run_program(program, feeds, meanings).values()
        np.testing.assert_array_equal(layout("ABCD16b").unpack(found, expected.shape), expected)


def dot_rule() -> TensorRule:
    """A sum of four products for each of two accumulators: set to zero, added to, or both."""
    out, x, w = Buffer("out", (2,), "int32"), Buffer("x", (4,), "int32"), Buffer("w", (2, 4), "int32")
    i, k = Var("i"), Var("k")
    zero = Store(out, (i,), wrap(0, "int32"))
    add = Store(out, (i,), Load(x, (k,)) * Load(w, (i, k)), "sum")
    reset, update = declare("zero", (out,), [("i", 2)], zero), declare("dot", (out, x, w), [("i", 2), ("k", 4)], add)
    both = LoopProgram("whole", (out, x, w), seq(reset.program.body, update.program.body))
    return TensorRule(update, reset, replace(update, name="whole", program=both))


def products(depth: int) -> Schedule:
    x, w = placeholder((depth,), "int32", name="x"), placeholder((2, depth), "int32", name="w")
    k = reduce_axis(depth, "k")
    y = compute((2,), lambda i: sum_over(x[k.var] * w[i, k.var], k), "y")
    return Schedule(create_program("p", [x, w], [y]))


def test_a_rule_computes_updates_and_resets() -> None:
    """A whole reduction is one instruction; of a part of one the sums are reset first, then updated."""
    rule, whole, parts = dot_rule(), products(4), products(8)
    whole.tensorize(whole.loops("y")[0], rule)
    assert str(whole.program.body) == "whole(y[0], x[0], w[0, 0])"
    assert rule.members[0].name == "whole"
    outer, inner = parts.split(parts.loops("y")[1], 4)
    parts.reorder(outer, parts.loops("y")[0], inner)
    parts.transform_layout("w", "AB4b")
    wide = TensorRule(replace(rule.update, free=frozenset({"w"})), rule.reset)
    parts.tensorize(parts.init_loops("y")[0], wide)
    parts.tensorize(parts.loops("y")[1] if len(parts.loops("y")) > 2 else inner_nest(parts), wide)
    assert [call for call, _ in parts.trace].count("tensorize") == 2
    x, w = np.arange(8, dtype=np.int32), np.arange(16, dtype=np.int32).reshape(2, 8)
    for s, depth in ((whole, 4), (parts, 8)):
        given = {"x": x[:depth], "w": np.ascontiguousarray(w[:, :depth])}
        expected = given["w"] @ given["x"]
        if depth == 8:
            given["w"] = layout("AB4b").pack(given["w"])
        found = run_program(s.program, given, {t.name: reference(t) for t in (*rule.members, *wide.members)})["y"]
        np.testing.assert_array_equal(found, expected)


def inner_nest(s: Schedule) -> str:
    return s.loops("y")[-2]


def test_a_rule_that_fits_nothing_says_all_reasons() -> None:
    s = products(6)
    with pytest.raises(ScheduleError, match=r"is not 'whole'.*is not 'dot'.*is not 'zero'"):
        s.tensorize(s.loops("y")[0], dot_rule())


def test_instructions_print_what_is_set() -> None:
    assert str(Instruction("gemm", {"reset": 1, "outer": 0})) == "gemm reset=1"
