"""Peak rates of the machine: float32 multiply-adds per second, and bytes read from memory per second.

Beside the multiply-adds on registers stand those of a register tile that reads its operands from the first cache, as a
convolution must. Where a neighbour's work shares the core, the first keeps its rate and the second does not: two
hardware threads take turns in decoding, and loads take slots of it.

`python -m benchmarks.peak [--threads N] [--json]`
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Self

import llvmlite.binding as llvm
import numpy as np

from benchmarks.provenance import stored
from burnish.machines.measure import STREAMS, multiply_ir, read_ir
from burnish.machines.target import target

CALL_FLOPS = 1e9  # about 5 ms: much longer than a thread takes to wake
MEMORY_BYTES = 2**30
TILE_STEPS = 64  # of the reduction, whose operands then fill half of the first cache
TILE_UNROLL = 4
REPEATS = 15


@dataclass(frozen=True)
class Rate:
    """Rates of `threads` threads running at once, in 10⁹ per second: median and best of REPEATS measurements."""

    threads: int
    median: float
    best: float


def tile_ir(lanes: int, positions: int, vectors: int) -> str:
    """`void tile(ptr data, i64 n)`: n passes of TILE_STEPS steps over a register tile of positions x vectors.

    `data`: TILE_STEPS x vectors vectors of weights, then for each position TILE_STEPS inputs, which are broadcast. Two
    moving pointers that LLVM cannot see through keep all other addresses constant offsets.
    """
    vector = f"<{lanes} x float>"
    tile = [(p, v) for p in range(positions) for v in range(vectors)]
    lines = [f"  %a{p}.{v}.0 = phi {vector} [%k{p}.{v}, %pass], [%a{p}.{v}.{TILE_UNROLL}, %loop]" for p, v in tile]
    lines += [f'  %{name} = call ptr asm "", "=r,0"(ptr %{name}.phi)' for name in "wx"]
    for u in range(TILE_UNROLL):
        for v in range(vectors):
            lines.append(f"  %w{u}.{v}.at = getelementptr float, ptr %w, i64 {(u * vectors + v) * lanes}")
            lines.append(f"  %w{u}.{v} = load {vector}, ptr %w{u}.{v}.at, align 4")
        for p in range(positions):
            x = f"%x{u}.{p}"
            lines.append(f"  {x}.at = getelementptr float, ptr %x, i64 {p * TILE_STEPS + u}")
            lines.append(f"  {x}.one = load float, ptr {x}.at, align 4")
            lines.append(f"  {x}.first = insertelement {vector} poison, float {x}.one, i32 0")
            lines.append(f"  {x} = shufflevector {vector} {x}.first, {vector} poison, <{lanes} x i32> zeroinitializer")
            lines += [
                f"  %a{p}.{v}.{u + 1} = call {vector} @llvm.fma.v{lanes}f32"
                f"({vector} {x}, {vector} %w{u}.{v}, {vector} %a{p}.{v}.{u})"
                for v in range(vectors)
            ]
    body = "\n".join(lines)
    kept = "\n".join(
        f"  %k{p}.{v} = phi {vector} [zeroinitializer, %entry], [%a{p}.{v}.{TILE_UNROLL}, %next]" for p, v in tile
    )
    stores = "\n".join(f"  store volatile {vector} %a{p}.{v}.{TILE_UNROLL}, ptr %data, align 4" for p, v in tile)
    return f"""
define void @tile(ptr %data, i64 %n) {{
entry:
  %inputs = getelementptr float, ptr %data, i64 {TILE_STEPS * vectors * lanes}
  br label %pass
pass:
  %q = phi i64 [0, %entry], [%r, %next]
{kept}
  br label %loop
loop:
  %i = phi i64 [0, %pass], [%j, %loop]
  %w.phi = phi ptr [%data, %pass], [%w.next, %loop]
  %x.phi = phi ptr [%inputs, %pass], [%x.next, %loop]
{body}
  %w.next = getelementptr float, ptr %w, i64 {TILE_UNROLL * vectors * lanes}
  %x.next = getelementptr float, ptr %x, i64 {TILE_UNROLL}
  %j = add i64 %i, {TILE_UNROLL}
  %more = icmp slt i64 %j, {TILE_STEPS}
  br i1 %more, label %loop, label %next, !llvm.loop !0
next:
  %r = add i64 %q, 1
  %again = icmp slt i64 %r, %n
  br i1 %again, label %pass, label %exit, !llvm.loop !0
exit:
{stores}
  ret void
}}
!0 = distinct !{{!0, !1}}
!1 = !{{!"llvm.loop.unroll.disable"}}
"""


class Kernels:
    """The three loops as machine code for this machine; all have the signature (pointer, count)."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        host = target("cpu")
        self.lanes = host.lanes
        self.accumulators = host.vector_registers - 4
        machine = llvm.Target.from_triple(host.triple).create_target_machine(
            cpu=host.cpu, features=host.feature_string, opt=3
        )
        self.tile_shape = (14, 2) if host.vector_registers >= 32 else (6, 2)
        module = llvm.parse_assembly(
            multiply_ir(self.lanes, self.accumulators) + read_ir(self.lanes) + tile_ir(self.lanes, *self.tile_shape)
        )
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        self.fma = signature(self._engine.get_function_address("multiply"))
        self.tile = signature(self._engine.get_function_address("tile"))
        arguments = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        self._read = ctypes.CFUNCTYPE(None, *arguments)(self._engine.get_function_address("read"))

    def read(self, data: int, groups: int) -> None:
        """Adds up the groups of STREAMS vectors once; leaves the sum in the first vector."""
        self._read(data, groups, 1, data)


class Team:
    """The loops on several threads at once, each with operands of its own; `with Team(2) as team: team.fma(1e9)()`."""

    def __init__(self, threads: int) -> None:
        self.kernels = Kernels()
        self.threads = threads
        self._others = ThreadPoolExecutor(max(1, threads - 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._others.shutdown()

    def fma(self, flops: float) -> Callable[[], None]:
        """A call of `flops` operations at least, in multiply-adds on registers; one counts as two."""
        kernels = self.kernels
        size, step = 2 * kernels.lanes, 2 * kernels.accumulators * kernels.lanes
        return self._call(kernels.fma, np.full((self.threads, size), 0.5, np.float32), flops / step)

    def tile(self, flops: float) -> Callable[[], None]:
        """A call of `flops` operations at least, in a convolution's inner loop on operands in the first cache."""
        positions, vectors = self.kernels.tile_shape
        size, step = TILE_STEPS * (vectors * self.kernels.lanes + positions), 2 * TILE_STEPS * positions * vectors
        data = np.full((self.threads, size), 1e-3, np.float32)
        return self._call(self.kernels.tile, data, flops / step / self.kernels.lanes)

    def read(self, data: np.ndarray) -> Callable[[], None]:
        """A call that reads (threads, floats) once."""
        return self._call(self.kernels.read, data, self.threads * data.shape[1] / (STREAMS * self.kernels.lanes))

    def _call(self, loop: Callable[[int, int], None], data: np.ndarray, passes: float) -> Callable[[], None]:
        """`passes` of a loop in all, dealt to the threads; row i of `data` is thread i's."""
        share = round(passes / self.threads)

        def call() -> None:
            others = [self._others.submit(loop, part.ctypes.data, share) for part in data[1:]]
            loop(data[0].ctypes.data, share)
            for other in others:
                other.result()

        return call


def rate(call: Callable[[], None], amount: float, threads: int) -> Rate:
    """10⁹ a second of a call that does `amount`."""
    call()
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        rates.append(amount / (time.perf_counter() - start) / 1e9)
    return Rate(threads, statistics.median(rates), max(rates))


def measure_fma(threads: int) -> Rate:
    """float32 GFLOP/s of fused multiply-adds on registers; one multiply-add counts as two operations."""
    with Team(threads) as team:
        return rate(team.fma(threads * CALL_FLOPS), threads * CALL_FLOPS, threads)


def measure_tile(threads: int) -> Rate:
    """float32 GFLOP/s of a convolution's inner loop on operands in the first cache."""
    with Team(threads) as team:
        return rate(team.tile(threads * CALL_FLOPS), threads * CALL_FLOPS, threads)


def measure_read(threads: int) -> Rate:
    """GB/s read from memory, each thread from its own part of MEMORY_BYTES."""
    with Team(threads) as team:
        data = np.ones((threads, MEMORY_BYTES // threads // 4), np.float32)
        return rate(team.read(data), data.nbytes, threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    fma = [measure_fma(threads) for threads in arguments.threads]
    tile = [measure_tile(threads) for threads in arguments.threads]
    read = [measure_read(threads) for threads in arguments.threads]
    if arguments.json:
        rates = {"fma_gflops": fma, "tile_gflops": tile, "read_gbytes": read}
        report = {name: [asdict(rate) for rate in found] for name, found in rates.items()}
        print(stored({"cpu": target("cpu").cpu, **report}, indent=2))
        return
    for compute, cached, memory in zip(fma, tile, read, strict=True):
        print(
            f"{compute.threads} threads: {compute.median:.0f} GFLOP/s (best {compute.best:.0f}), "
            f"from the first cache {cached.median:.0f} (best {cached.best:.0f}), "
            f"memory read {memory.median:.1f} GB/s (best {memory.best:.1f})"
        )


if __name__ == "__main__":
    main()
