"""Nothing is dropped in silence: loop kinds, scopes, intrinsics without code on a target are refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burnish.codegen.llvm import emit
from burnish.errors import ScheduleError
from burnish.loops.expr import Buffer, Load, Var
from burnish.loops.program import KINDS, Alloc, For, Intrinsic, LoopProgram, Stmt, seq, store
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.machines.known import INTRINSICS, MACHINES
from burnish.machines.scopes import MemoryScope
from burnish.machines.target import Target, target
from burnish.pipeline.kernel import compile_program
from burnish.schedule.schedule import Schedule

NAMES = ("x86-64-v4", "x86-64-v3", "aarch64-cortex-a53", "aarch64-neoverse-n1", "riscv64")
CPUS = pytest.mark.parametrize("cpu", [target(name) for name in NAMES], ids=NAMES)
X, Y = Buffer("x", (16, 16)), Buffer("y", (16, 16))
I, J = Var("i"), Var("j")  # noqa: E741


def doubled() -> Schedule:
    x = placeholder((16, 16), name="x")
    return Schedule(create_program("kernel", [x], [compute((16, 16), lambda i, j: x[i, j] * 2.0, "y")]))


@CPUS
@pytest.mark.parametrize("thread", ["blockIdx.x", "threadIdx.x", "threadIdx.y"])
def test_a_loop_bound_to_a_thread_is_refused(cpu: Target, thread: str) -> None:
    s = doubled()
    s.bind("y.i", thread)
    message = rf"loop 'y.i' is '{thread}', which target '{cpu.name}' \({cpu.machine.name}\) does not lower; it lowers "
    with pytest.raises(ScheduleError, match=message + "serial, unroll, vectorize, parallel$"):
        emit(s.program, cpu)


@CPUS
def test_a_virtual_thread_is_refused(cpu: Target) -> None:
    s = doubled()
    s.vthread("y.j")
    with pytest.raises(ScheduleError, match=r"loop 'y\.j' is 'vthread', which target"):
        emit(s.program, cpu)


@CPUS
def test_shared_memory_is_refused(cpu: Target) -> None:
    s = doubled()
    s.cache_read("x", "shared", "y")
    with pytest.raises(ScheduleError, match=r"buffer 'x\.shared' is in scope 'shared', which target .* global, local"):
        emit(s.program, cpu)


@CPUS
def test_an_unknown_intrinsic_is_refused_with_those_that_are_known(cpu: Target) -> None:
    program = LoopProgram(
        "kernel", (X, Y), For("i", 16, "serial", Intrinsic("gemm", (Load(Y, (I, I)), Load(X, (I, I)))))
    )
    with pytest.raises(ScheduleError, match=r"intrinsic 'gemm' has no code; known: transpose16_f32"):
        emit(program, cpu)


def test_every_loop_kind_of_the_grammar_is_lowered_or_refused_by_name() -> None:
    """So that a kind that is added later cannot be forgotten."""
    for machine in MACHINES:
        for kind in KINDS:
            nest = For("i", 16, "serial", For("j", 16, kind, store(Y, (I, J), Load(X, (I, J)))))
            cpu = target(machine.models[0].name)
            if kind in machine.dialect.loops:
                text = emit(LoopProgram("kernel", (X, Y), nest), cpu).text
                assert " ".join(["define", *machine.dialect.kernel.split(), "void @kernel"]) in text
            else:
                with pytest.raises(ScheduleError, match=f"loop 'j' is '{kind}'"):
                    emit(LoopProgram("kernel", (X, Y), nest), cpu)


@pytest.mark.parametrize("name", [name for name, known in INTRINSICS.items() if known.needs])
def test_an_instruction_that_the_target_has_not_is_refused(name: str) -> None:
    """On a machine of its kind without it by its feature, on another kind of machine as unknown."""
    known = INTRINSICS[name]
    (feature,) = known.needs
    buffers = tuple(replace_name(buffer, f"p{i}") for i, buffer in enumerate(known.operands))
    call = Intrinsic(name, tuple(Load(b, tuple(Var("z") * 0 for _ in b.shape)) for b in buffers))
    program = LoopProgram("kernel", buffers, For("z", 1, "serial", call))
    machines = [target(n) for n in ("x86-64-v3", "aarch64-cortex-a53", "cuda:sm_75")]
    near = next(t for t in machines if name in t.machine.named_intrinsics)
    near = target(f"{near.name},-{feature}") if near.has(feature) else near
    far = next(t for t in machines if name not in t.machine.named_intrinsics)
    with pytest.raises(ScheduleError, match=f"intrinsic '{name}' needs {feature}, which target '{near.name}'"):
        emit(program, near)
    with pytest.raises(ScheduleError, match=f"intrinsic '{name}' has no code; known: .+ on target '{far.name}'"):
        emit(program, far)


def replace_name(buffer: Buffer, name: str) -> Buffer:
    return buffer.with_(name=name)


def test_more_than_a_scope_holds_is_refused() -> None:
    """Buffers that are alive at the same time share its capacity; those that follow one another do not."""
    pad = MemoryScope("pad", capacity=1536)
    cpu = target("x86-64-v3").using(scopes=[pad])
    a, b = (Buffer(name, (256,), "float32", "pad") for name in "ab")
    fill: list[Stmt] = [For("k", 256, "serial", store(x, (Var("k"),), 1.0)) for x in (a, b)]
    after = seq(Alloc(a, fill[0]), Alloc(b, fill[1]), For("i", 1, "serial", store(Y, (I, I), 0.0)))
    assert "define void @kernel" in emit(LoopProgram("kernel", (X, Y), after), cpu).text
    within = Alloc(a, seq(fill[0], Alloc(b, fill[1])))
    with pytest.raises(ScheduleError, match=r"buffer 'b': scope 'pad' of .* holds 1536 bytes, 2048 would be in it"):
        emit(LoopProgram("kernel", (X, Y), within), cpu)


@pytest.mark.parametrize("extent", [1, 16])
def test_a_compilation_refuses_before_it_simplifies(extent: int) -> None:
    """Also a loop of one iteration, of which nothing would be left to refuse."""
    nest = For("i", 16, "serial", For("j", extent, "vthread", store(Y, (I, J), Load(X, (I, J)))))
    with pytest.raises(ScheduleError, match="loop 'j' is 'vthread', which target 'cpu'"):
        compile_program(LoopProgram("kernel", (X, Y), nest), target("cpu"), {}, "mine", {})


def test_a_parameter_in_a_scope_that_is_not_lowered_is_refused() -> None:
    program = LoopProgram("kernel", (X.with_(scope="shared"), Y), For("i", 1, "serial", store(Y, (I, I), 0.0)))
    with pytest.raises(ScheduleError, match="parameter 'x' is in scope 'shared'"):
        emit(program, replace(target("x86-64-v4"), name="mine"))
