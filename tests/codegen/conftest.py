"""Element-wise code of a :class:`IRBuilder`: compiled here and applied to arrays, or to text for another."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from burnish.codegen.builder import IRBuilder, IRValue, vector_type
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.numeric import numpy_dtype

Build = Callable[..., IRValue]


def module_ir(build: Build, inputs: tuple[str, ...], output: str, lanes: int) -> str:
    """A function over (count of vectors, one pointer per input, output pointer); booleans are stored as bytes."""
    b = IRBuilder()
    b.block = "loop"
    stored = "uint8" if output == "bool" else output
    args = []
    for i, dtype in enumerate(inputs):
        b.emit(f"%at{i} = getelementptr {vector_type(dtype, lanes)}, ptr %in{i}, i64 %i")
        args.append(b.result(f"load {vector_type(dtype, lanes)}, ptr %at{i}, align {ITEM_BYTES[dtype]}", dtype, lanes))
    value = b.splat(b.cast(build(b, *args), stored), lanes)
    assert value.dtype == stored
    b.emit(f"%to = getelementptr {value.type}, ptr %out, i64 %i")
    b.emit(f"store {value.type} {value.text}, ptr %to, align {ITEM_BYTES[stored]}")
    pointers = "".join(f", ptr %in{i}" for i in range(len(inputs)))
    loop = "\n".join(b.lines)
    return (
        "\n".join(b.declarations.values())
        + f"""
define void @kernel(i64 %n{pointers}, ptr %out) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %{b.block} ]
{loop}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    )


def compile_map(
    build: Build, inputs: tuple[str, ...], output: str, lanes: int, fused: bool = True
) -> Callable[..., np.ndarray]:
    """The element-wise function of arrays; ``fused=False`` compiles as if there were no fused multiply-add."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(module_ir(build, inputs, output, lanes))
    module.verify()
    features = llvm.get_host_cpu_features()
    if not fused:  # x86 only
        features["fma"] = features["avx512f"] = False
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name() if fused else "", features=features.flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (len(inputs) + 1))(
        engine.get_function_address("kernel")
    )

    def call(*arrays: np.ndarray) -> np.ndarray:
        size = arrays[0].size
        count = -(-size // lanes)
        padded = [
            np.concatenate([a.ravel(), np.zeros(count * lanes - size, a.dtype)]).astype(numpy_dtype(d), copy=False)
            for a, d in zip(arrays, inputs, strict=True)
        ]
        out = np.empty(count * lanes, "bool" if output == "bool" else numpy_dtype(output))
        kernel(count, *(a.ctypes.data for a in padded), out.ctypes.data)
        return out[:size]

    call.engine = engine  # type: ignore[attr-defined]  # the code lives as long as the function
    return call


@pytest.fixture(scope="session")
def element_wise() -> Callable[..., Callable[..., np.ndarray]]:
    """``element_wise(build, inputs, output, lanes)``: see :func:`compile_map`."""
    return compile_map


def assemble(build: Build, inputs: tuple[str, ...], output: str, lanes: int, triple: str, cpu: str) -> str:
    """Assembly text for a machine, which need not be this one."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(module_ir(build, inputs, output, lanes))
    module.triple, module.data_layout = triple, str(machine.target_data)
    return machine.emit_assembly(module)


MACHINES = (
    ("x86_64-unknown-linux-gnu", "x86-64-v3"),
    ("x86_64-unknown-linux-gnu", "x86-64-v4"),
    ("aarch64-unknown-linux-gnu", "cortex-a53"),
    ("nvptx64-nvidia-cuda", "sm_80"),
)
CALL = re.compile(r"^\s+(?:callq?|bl|b|call\.uni)\s+([A-Za-z_]\S*)", re.MULTILINE)


@pytest.fixture(scope="session")
def assembly() -> Callable[..., str]:
    """``assembly(build, inputs, output, lanes, triple, cpu)``: see :func:`assemble`."""
    return assemble


@pytest.fixture(params=MACHINES, ids=lambda m: m[1])
def library_calls(request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """``library_calls(build, inputs, output, lanes)``: what the code calls and does not define, on each machine."""

    def outside(*args: Any) -> list[str]:
        text = assemble(*args, *request.param)
        return [name for name in CALL.findall(text) if f"\n{name}:" not in text]

    return outside
