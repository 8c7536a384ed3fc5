"""Barriers: each is needed, none is missing, none stands where threads part; what the runner finds if one is gone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from burnish.codegen.grid import _places, bound, compile_grid, emit_grid, lowered
from burnish.codegen.gridcode import GridCode, LaunchCode
from burnish.errors import ScheduleError, VerificationError
from burnish.loops.expr import Buffer, Const, Expr, Load, Var, equal
from burnish.loops.program import Alloc, For, If, LoopProgram, Store, seq
from burnish.loops.tensor import Tensor, compute, create_program, placeholder
from burnish.lower.barriers import WAIT, check_barriers, count_barriers, insert_barriers, without_barrier
from burnish.lower.threads import Grids, Launch, launches
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule
from burnish.simulators.gpu.emulator import GridEmulator
from tests.gpu.cases import SM80, Case

KNOWN = SM80.machine.named_intrinsics
PRODUCT = Case("matmul", [(16, 32), (32, 16)], {}, template="shared_product")
HALVES = Case("matmul", [(32, 64), (64, 32)], {}, ("float16", "float16"))
SOFTMAX = Case("softmax", [(1, 80)], {}, choice={"warps": 2})
NORMALIZED = Case("layer_norm", [(1, 96), (96,), (96,)], {}, choice={"warps": 4})
CASES = {"product": PRODUCT, "tensor cores": HALVES, "softmax": SOFTMAX, "layer_norm": NORMALIZED}


def coded(program: LoopProgram, grids: Grids, machine: Target = SM80) -> GridCode:
    """A kernel of launches as they are, for the runner alone."""
    offsets, size = _places(grids.workspace)
    text, names, maps = emit_grid(program, machine, grids, offsets)
    found = tuple(
        LaunchCode(n, one.grid, one.block, maps=own) for n, one, own in zip(names, grids.launches, maps, strict=True)
    )
    written = tuple(i for i, p in enumerate(program.params) if p.name in program.body.writes)
    return GridCode(found, tuple(p.nbytes for p in program.params), written, size, "sm_80", "", text)


def run(program: LoopProgram, grids: Grids) -> None:
    """Executes launches on zeros, which the checks do not depend on."""
    memory = [np.zeros(p.nbytes, np.uint8) for p in program.params]
    GridEmulator().run(coded(program, grids).packed(), memory)


@pytest.mark.parametrize("name", CASES)
def test_every_barrier_is_needed(name: str) -> None:
    """Without any one of them, two threads touch the same place, one writing."""
    program, _ = CASES[name].program()
    grids = lowered(program, SM80)
    (launch,) = grids.launches
    number = count_barriers(launch.body)
    assert number >= 1
    run(program, grids)
    for gone in range(number):
        less = replace(launch, body=without_barrier(launch.body, gone))
        with pytest.raises(VerificationError, match="touch one place without a barrier between"):
            run(program, replace(grids, launches=(less,)))
        with pytest.raises(ScheduleError, match="a barrier is missing"):
            check_barriers(less, KNOWN)


def test_a_warp_needs_no_barrier() -> None:
    for case in (SOFTMAX, NORMALIZED):
        program, _ = replace(case, choice={"warps": 1}).program()
        (launch,) = lowered(program, SM80).launches
        assert count_barriers(launch.body) == 0


def test_no_barrier_where_threads_read_what_they_wrote() -> None:
    x = placeholder((64,), name="x")
    p = compute((64,), lambda i: x[i] * 2.0, "p")
    s = Schedule(create_program("kernel", [x], [compute((64,), lambda i: p[i] + 1.0, "y")]))
    s.set_scope("p", "shared")
    s.bind("p.i", "threadIdx.x")
    s.bind("y.i", "threadIdx.x")
    (launch,) = lowered(s.program, SM80).launches
    assert count_barriers(launch.body) == 0


def test_a_barrier_where_threads_read_what_others_wrote() -> None:
    x = placeholder((64,), name="x")
    p = compute((64,), lambda i: x[i] * 2.0, "p")
    s = Schedule(create_program("kernel", [x], [compute((64,), lambda i: p[63 - i] + 1.0, "y")]))
    s.set_scope("p", "shared")
    s.bind("p.i", "threadIdx.x")
    s.bind("y.i", "threadIdx.x")
    (launch,) = lowered(s.program, SM80).launches
    assert count_barriers(launch.body) == 1


def test_blocks_whose_rows_interleave_touch_elements_of_their_own() -> None:
    """In every row of 64 a block has 16 places, which the number of the row does not change; rows of 56 overlap."""

    def launch(row: int) -> Launch:
        p, y = Buffer("p", (4 * 64,)), Buffer("y", (4 * 64,))
        place = Var("e") * row + Var("blockIdx.x") * 16 + Var("threadIdx.x")
        body = seq(Store(p, (place,), Const(1.0, "float32")), Store(y, (place,), Load(p, (place,))))
        return Launch((4, 1, 1), (16, 1, 1), For("e", 4, "serial", body))

    assert count_barriers(insert_barriers(launch(64), KNOWN).body) == 0
    with pytest.raises(ScheduleError, match="'p' in global memory is written by one block and touched by another"):
        insert_barriers(launch(56), KNOWN)


def divergent(planted: bool) -> Launch:
    """A copy through shared memory that only the first half of the threads makes."""
    p, x, y = Buffer("p", (64,), scope="shared"), Buffer("x", (64,)), Buffer("y", (64,))
    i = Var("threadIdx.x")
    copy = Store(p, (i,), Load(x, (i,)))
    read = Store(y, (i,), Load(p, (Const(63) - i,)))
    body = seq(copy, WAIT, read) if planted else seq(copy, read)
    return Launch((1, 1, 1), (64, 1, 1), Alloc(p, If(i < 32, body)))


def test_barriers_that_not_all_threads_reach_are_refused() -> None:
    with pytest.raises(ScheduleError, match="would have to wait for each other under"):
        insert_barriers(divergent(planted=False), KNOWN)
    with pytest.raises(ScheduleError, match=r"a barrier stands under .* which not all threads of a block decide alike"):
        check_barriers(divergent(planted=True), KNOWN)


def test_the_runner_finds_threads_that_never_come() -> None:
    launch = divergent(planted=True)
    program = LoopProgram("kernel", (Buffer("x", (64,)), Buffer("y", (64,))), bound(launch))
    with pytest.raises(VerificationError, match="32 of 64 threads ended, and never come to the barrier"):
        run(program, Grids((), (launch,)))


def test_the_runner_finds_a_place_outside_of_a_buffer() -> None:
    x, y = Buffer("x", (32,)), Buffer("y", (32,))
    i = Var("threadIdx.x")
    outside = LoopProgram("kernel", (Buffer("x", (33,)), y), Store(y, (i,), Load(Buffer("x", (33,)), (i + 1,))))
    code = coded(outside, Grids((), (Launch((1, 1, 1), (32, 1, 1), outside.body),)))
    short = replace(code, nbytes=(x.nbytes, y.nbytes))
    memory = [np.zeros(128, np.uint8), np.zeros(128, np.uint8)]
    with pytest.raises(
        VerificationError, match=r"thread 31 touches 0 bytes behind parameter 0, outside of all buffers"
    ):
        GridEmulator().run(short.packed(), memory)


def test_blocks_that_depend_on_each_other_are_found() -> None:
    y = Buffer("y", (8,))
    body = Store(y, (Const(0),), Const(1.0, "float32"))
    program = LoopProgram("kernel", (y,), If(equal(Var("threadIdx.x"), 0), body))
    with pytest.raises(VerificationError, match="two blocks touch one place of parameter 0"):
        run(program, Grids((), (Launch((4, 1, 1), (32, 1, 1), program.body),)))


def test_a_shared_buffer_that_would_differ_between_threads_is_refused() -> None:
    x, y, p = Buffer("x", (32,)), Buffer("y", (32,)), Buffer("p", (4,), scope="shared")
    t, k = Var("t"), Var("k")
    own = For("k", 4, "serial", Store(p, (k,), Load(x, (t,))))
    nest = For("t", 32, "threadIdx.x", Alloc(p, seq(own, Store(y, (t,), Load(p, (Const(0),))))))
    with pytest.raises(ScheduleError, match="'p' is shared by the block, but what it holds depends on loop 't'"):
        launches(LoopProgram("kernel", (x, y), nest), SM80.machine)


def doubled(x: Tensor, i: Var) -> Expr:
    """Twice an element."""
    return x[i] * 2.0


def test_too_many_threads_and_too_much_shared_memory_are_refused() -> None:
    x = placeholder((2048,), name="x")
    s = Schedule(create_program("kernel", [x], [compute((2048,), lambda i: x[i] * 3.0, "y")]))
    s.bind("y.i", "threadIdx.x")
    with pytest.raises(ScheduleError, match="a block of 2048 threads; allowed: at most 1024"):
        compile_grid(s.program, SM80)
    for count, message in ((1 << 16, "holds 232448 bytes, 262144"), (50000, "200704 bytes of .*; allowed: 166912")):
        big = placeholder((count,), name="x")
        y = compute((count,), partial(doubled, big), "y")
        s = Schedule(create_program("kernel", [big], [y]))
        s.cache_read("x", "shared", "y")
        with pytest.raises(ScheduleError, match=message):
            compile_grid(s.program, SM80)
