"""A GPU's dialect from outside: bound loops, shared memory and kernel functions, written by the one emitter as PTX.

No GPU runs here: the text is what LLVM's NVPTX back end makes of it, and the CPU refuses the same program.
"""

from __future__ import annotations

import re

import pytest

from burnish.codegen.llvm import emit
from burnish.codegen.objects import optimize, parse, target_machine
from burnish.errors import ScheduleError
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import matches
from burnish.loops.expr import Buffer
from burnish.loops.program import For
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.machines.dialect import Dialect
from burnish.machines.emitter import CodeEmitter, LoopCode
from burnish.machines.machine import Core, Machine
from burnish.machines.scopes import GLOBAL, LOCAL, REGISTER, MemoryScope
from burnish.machines.target import Target, target
from burnish.ops import OPERATORS
from burnish.schedule.schedule import Schedule


def bound(register: str) -> LoopCode:
    """The loop's variable is a register of the thread: every thread runs one iteration."""

    def code(f: CodeEmitter, loop: For) -> None:
        name = f"llvm.nvvm.read.ptx.sreg.{register}"
        f.declare(name, "i32", [])
        own = f.hoist(0, f"call i32 @{name}()")
        f.variables[loop.var] = f.hoist(0, f"zext i32 {own} to i64")
        f.statement(loop.body)
        del f.variables[loop.var]

    return code


def shared(f: CodeEmitter, buffer: Buffer) -> str:
    """An array of the block's memory, one for each buffer of the module."""
    name = f"@{re.sub(r'[^A-Za-z0-9_]', '_', buffer.name)}"
    f.define(name, f"{name} = internal addrspace(3) global [{buffer.nbytes} x i8] poison, align 16")
    return name


LOOPS: dict[str, LoopCode | None] = {
    "serial": None,
    "unroll": None,
    "blockIdx.x": bound("ctaid.x"),
    "threadIdx.x": bound("tid.x"),
}
SHARED = MemoryScope("shared", capacity=48 << 10, address_space=3, place=shared)
GPU = Machine(
    name="gpu",
    kind="other",
    architectures=("nvptx64",),
    vectors=lambda features: (16, 255),
    core=Core(None, 1e9, 1e9, 1e9),
    dialect=Dialect(LOOPS, attributes="nounwind", kernel="ptx_kernel"),
    scopes=(GLOBAL, LOCAL, REGISTER, SHARED),
)
SM80 = Target("sm80", "nvptx64-nvidia-cuda", "sm_80", frozenset({"ptx80"}), 16, 255, 128 << 10, 4 << 20, 0, 1, GPU)


def tripled() -> Schedule:
    """Blocks of 64 threads: each copies one number to shared memory and stores thrice that."""
    x = placeholder((8, 64), name="x")
    s = Schedule(create_program("kernel", [x], [compute((8, 64), lambda i, j: x[i, j] * 3.0, "y")]))
    copy = s.cache_read("x", "shared", "y")
    i, j = s.loops("y")
    s.compute_at(copy, j)
    s.bind(i, "blockIdx.x")
    s.bind(j, "threadIdx.x")
    return s


def test_bound_loops_and_shared_memory_become_ptx() -> None:
    text = emit(tripled().program, SM80).text
    machine = target_machine(SM80)
    module = parse(text, machine)
    module.verify()
    optimize(module, machine)
    ptx = machine.emit_assembly(module)
    assert ".visible .entry kernel(" in ptx and ".target sm_80" in ptx
    assert "%ctaid.x" in ptx and "%tid.x" in ptx
    assert ".shared .align 16 .b8 x_shared[4]" in ptx
    assert not re.search(r"\bbra\b", ptx), "no loop is left"


def test_a_cpu_refuses_the_same_program() -> None:
    with pytest.raises(ScheduleError, match=r"is 'blockIdx\.x', which target 'x86-64-v4' \(x86\) does not lower"):
        emit(tripled().program, target("x86-64-v4"))


def test_the_gpu_refuses_what_it_has_no_code_for() -> None:
    s = tripled()
    s.serial(s.loops("y")[0])
    s.parallel(s.loops("y")[0])
    with pytest.raises(ScheduleError, match=r"loop 'y\.i' is 'parallel', which target 'sm80' \(gpu\) does not lower"):
        emit(s.program, SM80)


def test_a_machine_without_templates_is_not_given_those_of_cpus() -> None:
    (y,) = OPERATORS["relu"].define("y", [placeholder((8, 64), name="x")], {})
    task = KernelTask("kernel", tuple(y.inputs), (y,), "relu", {}, frozenset())
    assert matches(task, target("x86-64-v4"))
    with pytest.raises(ScheduleError, match="target 'sm80' is of kind 'other', for which there are no templates"):
        matches(task, SM80)
