"""Fixtures: one fork server for all tests, small tasks, and kernels that were written to do harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from burnish.codegen.objects import compile_ir
from burnish.kernels.task import KernelTask
from burnish.loops.tensor import compute, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_of
from burnish.machines.target import Target, host
from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.link import link
from burnish.tune.evaluate import Build, Evaluator


@pytest.fixture(scope="session")
def evaluator() -> Iterator[Evaluator]:
    """Two workers build, kernels run on two threads."""
    with Evaluator(workers=2, threads=2, build_limit=20.0, run_limit=1.0) as one:
        yield one


@pytest.fixture
def doubling() -> KernelTask:
    """``y[i] = 2 x[i]`` for 1000 floats, not a multiple of a cache line."""
    x = placeholder((1000,), "float32", "x")
    return KernelTask("double", (x,), (compute((1000,), lambda i: x[i] * 2.0, "y"),), "mul", {}, frozenset())


@pytest.fixture
def product() -> KernelTask:
    """A matrix product with constant weights: its template has knobs, and packs the weights."""
    x, w = placeholder((48, 64), "float32", "x"), placeholder((64, 96), "float32", "w")

    def body(i: object, j: object) -> object:
        k = reduce_axis(64, "k")
        return sum_of(x[i, k.var] * w[k.var, j], k)  # type: ignore[index]

    y = compute((48, 96), lambda i, j: body(i, j), "y")  # type: ignore[return-value]
    return KernelTask("product", (x, w), (y,), "matmul", {}, frozenset({"w"}))


def handmade(body: str, scratch_bytes: int = 0, target: Target | None = None) -> Build:
    """A build whose code is LLVM IR: %x and %y are the addresses of its first two arguments."""
    text = f"""
define void @handmade(ptr %args, ptr %rt) {{
entry:
  %y.at = getelementptr ptr, ptr %args, i64 1
  %x = load ptr, ptr %args
  %y = load ptr, ptr %y.at
{body}
}}
"""
    code = compile_ir(text, target or host())
    return Build(CompiledKernel("handmade", code, scratch_bytes, {}, "generic", {}), link({"handmade": code}))


HANG = "br label %loop\nloop:\nbr label %loop"
CRASH = "store volatile i32 1, ptr inttoptr (i64 64 to ptr)\nret void"
NOTHING = "ret void"


def copies(factor: float, count: int = 1000) -> str:
    """IR of ``y[i] = factor * x[i]`` for the first ``count`` floats."""
    return f"""
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %n, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %to = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %from
  %w = fmul float %v, {factor:e}
  store float %w, ptr %to
  %n = add i64 %i, 1
  %more = icmp slt i64 %n, {count}
  br i1 %more, label %loop, label %exit
exit:
  ret void"""
