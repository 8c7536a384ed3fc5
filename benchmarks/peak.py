"""What the machine can do at most: float32 multiply-adds per second and bytes read from memory per second.

`python -m benchmarks.peak [--threads N] [--json]`
"""

import argparse
import ctypes
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import llvmlite.binding as llvm
import numpy as np

from burnish.target import target

FMA_ITERATIONS = 200_000  # about 1 ms: much longer than the start of a thread, shorter than a time slice
MEMORY_BYTES = 2**30
READ_STREAMS = 8
REPEATS = 15


@dataclass(frozen=True)
class Rate:
    """Rates of `threads` threads running at once, in 10⁹ per second: median and best of REPEATS measurements."""

    threads: int
    median: float
    best: float


def fma_ir(lanes: int, accumulators: int) -> str:
    """`void fma(ptr data, i64 n)`: n times one multiply-add on every accumulator, all independent of each other."""
    vector = f"<{lanes} x float>"
    numbers = range(accumulators)
    phis = "\n".join(f"  %a{i} = phi {vector} [%x, %entry], [%b{i}, %loop]" for i in numbers)
    steps = "\n".join(
        f"  %b{i} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{i}, {vector} %x, {vector} %y)" for i in numbers
    )
    sums = "\n".join(f"  %s{i} = fadd {vector} {'zeroinitializer' if i == 0 else f'%s{i - 1}'}, %b{i}" for i in numbers)
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define void @fma(ptr %data, i64 %n) {{
entry:
  %x = load {vector}, ptr %data, align 4
  %next = getelementptr {vector}, ptr %data, i64 1
  %y = load {vector}, ptr %next, align 4
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
{phis}
{steps}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %exit, !llvm.loop !0
exit:
{sums}
  store {vector} %s{accumulators - 1}, ptr %data, align 4
  ret void
}}
!0 = distinct !{{!0, !1}}
!1 = !{{!"llvm.loop.unroll.disable"}}
"""


def read_ir(lanes: int) -> str:
    """`void read(ptr data, i64 n)`: adds up n groups of READ_STREAMS vectors; leaves the sum in the first vector."""
    vector = f"<{lanes} x float>"
    numbers = range(READ_STREAMS)
    phis = "\n".join(f"  %a{i} = phi {vector} [zeroinitializer, %entry], [%b{i}, %loop]" for i in numbers)
    steps = "\n".join(
        f"  %p{i} = getelementptr {vector}, ptr %data, i64 %k{i}\n"
        f"  %v{i} = load {vector}, ptr %p{i}, align 4\n  %b{i} = fadd {vector} %a{i}, %v{i}"
        for i in numbers
    )
    offsets = "\n".join(f"  %k{i} = add i64 %first, {i}" for i in numbers)
    sums = "\n".join(f"  %s{i} = fadd {vector} {'zeroinitializer' if i == 0 else f'%s{i - 1}'}, %b{i}" for i in numbers)
    return f"""
define void @read(ptr %data, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
{phis}
  %first = mul i64 %i, {READ_STREAMS}
{offsets}
{steps}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %exit
exit:
{sums}
  store {vector} %s{READ_STREAMS - 1}, ptr %data, align 4
  ret void
}}
"""


class Kernels:
    """The two loops as machine code for this machine; both have the signature (pointer, count)."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        host = target("cpu")
        self.lanes = host.lanes
        self.accumulators = host.vector_registers - 4
        machine = llvm.Target.from_triple(host.triple).create_target_machine(
            cpu=host.cpu, features=host.feature_string, opt=3
        )
        module = llvm.parse_assembly(fma_ir(self.lanes, self.accumulators) + read_ir(self.lanes))
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        self.fma = signature(self._engine.get_function_address("fma"))
        self.read = signature(self._engine.get_function_address("read"))


def run_together(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds from a common start until the last of the calls, one per thread, has returned."""
    barrier = threading.Barrier(len(calls))
    spans: list[tuple[float, float]] = []

    def work(call: Callable[[], object]) -> None:
        barrier.wait()
        start = time.perf_counter()
        call()
        spans.append((start, time.perf_counter()))

    workers = [threading.Thread(target=work, args=(call,)) for call in calls[1:]]
    for worker in workers:
        worker.start()
    work(calls[0])
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)


def measure_fma(threads: int) -> Rate:
    """float32 GFLOP/s of fused multiply-adds on registers; one multiply-add counts as two operations."""
    kernels = Kernels()
    operands = [np.full(2 * kernels.lanes, 0.5, np.float32) for _ in range(threads)]
    calls = [partial(kernels.fma, data.ctypes.data, FMA_ITERATIONS) for data in operands]
    flops = 2 * threads * FMA_ITERATIONS * kernels.accumulators * kernels.lanes
    rates = [flops / run_together(calls) / 1e9 for _ in range(REPEATS)]
    return Rate(threads, statistics.median(rates), max(rates))


def measure_read(threads: int) -> Rate:
    """GB/s read from memory, each thread from its own part of MEMORY_BYTES."""
    kernels = Kernels()
    group_floats = READ_STREAMS * kernels.lanes
    groups = MEMORY_BYTES // threads // (4 * group_floats)
    parts = [np.ones(groups * group_floats, np.float32) for _ in range(threads)]
    calls = [partial(kernels.read, part.ctypes.data, groups) for part in parts]
    rates = [sum(part.nbytes for part in parts) / run_together(calls) / 1e9 for _ in range(REPEATS)]
    return Rate(threads, statistics.median(rates), max(rates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    fma = [measure_fma(threads) for threads in arguments.threads]
    read = [measure_read(threads) for threads in arguments.threads]
    if arguments.json:
        report = {"fma_gflops": [asdict(rate) for rate in fma], "read_gbytes": [asdict(rate) for rate in read]}
        print(json.dumps({"cpu": target("cpu").cpu, **report}, indent=2))
        return
    for compute, memory in zip(fma, read, strict=True):
        print(
            f"{compute.threads} threads: {compute.median:.0f} GFLOP/s (best {compute.best:.0f}), "
            f"memory read {memory.median:.1f} GB/s (best {memory.best:.1f})"
        )


if __name__ == "__main__":
    main()
