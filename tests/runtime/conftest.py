"""Kernels written by hand as LLVM IR, compiled to the objects that the compiler would hand to the runtime."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest

from burnish.runtime.build import build
from burnish.runtime.executable import Executable, KernelCall, Slot, TensorSpec
from burnish.runtime.host import fingerprint

TRIPLE = llvm.get_process_triple()

# out = a + b on {n} floats, in a parallel region over single elements.
ADD = """
%Args = type {{ ptr, ptr, ptr }}
define internal void @body(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {{
entry:
  %a = load ptr, ptr %ctx
  %b.at = getelementptr %Args, ptr %ctx, i64 0, i32 1
  %b = load ptr, ptr %b.at
  %out.at = getelementptr %Args, ptr %ctx, i64 0, i32 2
  %out = load ptr, ptr %out.at
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %j, %loop ]
  %x.at = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %x.at
  %y.at = getelementptr float, ptr %b, i64 %i
  %y = load float, ptr %y.at
  %sum = fadd float %x, %y
  %sum.at = getelementptr float, ptr %out, i64 %i
  store float %sum, ptr %sum.at
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
define void @{name}(ptr %args, ptr %rt) {{
  %parallel = load ptr, ptr %rt
  %pool.at = getelementptr ptr, ptr %rt, i64 1
  %pool = load ptr, ptr %pool.at
  call void %parallel(ptr %pool, ptr @body, ptr %args, i64 {n})
  ret void
}}
"""


def compile_ir(text: str, triple: str = TRIPLE) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    module.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic", codemodel="small")
    return machine.emit_object(module)


@pytest.fixture(scope="session")
def compile_object() -> Callable[..., bytes]:
    """IR text (and a triple) -> relocatable object."""
    return compile_ir


def add_executable(n: int = 1000, features: tuple[str, ...] = (), shape: tuple[int, ...] | None = None) -> Executable:
    """y = (x + weights) + (x + weights) by two calls through the arena; weights are 0, 1, 2, …"""
    weights = np.arange(n, dtype=np.float32)
    kernel = compile_ir(ADD.format(name="add", n=n))
    places = {"input": 0, "param": 64, "arena": 128, "output": 0}
    x, w, t, y = (Slot(space, 0, offset, 4 * n) for space, offset in places.items())  # type: ignore[arg-type]
    params = np.concatenate([np.zeros(64, np.uint8), weights.view(np.uint8)])
    spec = (n,) if shape is None else shape
    return build(
        inputs=[TensorSpec("x", spec, "float32")],
        outputs=[TensorSpec("y", spec, "float32")],
        steps=[KernelCall("add", (x, w, t), "first"), KernelCall("add", (t, t, y), "second")],
        objects={"add": kernel},
        params=params,
        arena_bytes=128 + 4 * n,
        scratch_bytes=100,
        target=fingerprint(TRIPLE, "generic", features),
        graph="y = 2 * (x + weights)",
        info={"options": {"exact": True}},
    )


@pytest.fixture(scope="session")
def make_executable() -> Callable[..., Executable]:
    return add_executable
