"""Modules of one kernel written by hand: right, wrong, crashing, or never done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from burnish.codegen.objects import compile_ir
from burnish.machines.target import host
from burnish.measure.samples import plain_domains
from burnish.runtime.build import build
from burnish.runtime.executable import Executable, KernelCall, Slot, TensorSpec
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module

# y = f(x) on 4 floats.
KERNEL = """
define void @kernel(ptr %args, ptr %rt) {{
entry:
  %x = load ptr, ptr %args
  %y.at = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %y.at
  %v = load <4 x float>, ptr %x, align 4
  br label %body
body:
  {body}
}}
declare void @llvm.trap()
"""
FRACTION = """
  %big = fmul <4 x float> %v, splat (float {factor})
  %whole = fptosi <4 x float> %big to <4 x i32>
  %floor = sitofp <4 x i32> %whole to <4 x float>
  %r = fsub <4 x float> %big, %floor
  store <4 x float> %r, ptr %y, align 4
  ret void
"""
BODIES = {
    "chaos": FRACTION.format(factor="1.0e6"),
    "other chaos": FRACTION.format(factor="1000003.0"),
    "twice": "%r = fmul <4 x float> %v, splat (float 2.0)\n  store <4 x float> %r, ptr %y, align 4\n  ret void",
    "nearly twice": "%r = fmul <4 x float> %v, splat (float 0x40000000A0000000)\n"
    "  store <4 x float> %r, ptr %y, align 4\n  ret void",
    "thrice": "%r = fmul <4 x float> %v, splat (float 3.0)\n  store <4 x float> %r, ptr %y, align 4\n  ret void",
    "nan": "store <4 x float> splat (float 0x7FF8000000000000), ptr %y, align 4\n  ret void",
    "trap": "call void @llvm.trap()\n  unreachable",
    "hang": "br label %body",
    "stray": "store volatile <4 x float> %v, ptr inttoptr (i64 16 to ptr), align 4\n  ret void",
}


def executable(kind: str, **info: object) -> Executable:
    """A model of one kernel: y = 2x, or what its kind says."""
    return build(
        inputs=[TensorSpec("x", (4,), "float32")],
        outputs=[TensorSpec("y", (4,), "float32")],
        steps=[KernelCall("kernel", (Slot("input", 0, 0, 16), Slot("output", 0, 0, 16)), kind)],
        objects={"kernel": compile_ir(KERNEL.format(body=BODIES[kind]), host())},
        params=np.zeros(0, np.uint8),
        arena_bytes=0,
        scratch_bytes=0,
        target=fingerprint(llvm.get_process_triple(), "generic", ()),
        info={"domains": plain_domains({"x": (1.0, 2.0)}), **info},
    )


@pytest.fixture(scope="session")
def planted() -> Callable[[str], Module]:
    """A module by the kind of its kernel."""
    return lambda kind: Module(executable(kind), threads=1)


def children(pid: int) -> list[int]:
    """Processes that a process has started and not yet waited for."""
    return [int(word) for task in Path(f"/proc/{pid}/task").glob("*/children") for word in task.read_text().split()]


@pytest.fixture(scope="session")
def own_children() -> Callable[[int], list[int]]:
    """Process identifiers of the children of a process."""
    return children
