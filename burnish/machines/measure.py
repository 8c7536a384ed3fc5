"""Measured rates of this machine's cores: multiply-adds, reads from the caches and from memory, tiles of a matrix unit.

Each is the best of repetitions in CPU time that take turns over some tenths of a second, so that neither another
process nor a pause of the machine falls on one rate alone. They are rounded to steps of a quarter of an octave, so that
noise seldom changes what is chosen by them, and kept in the cache of compiled kernels where most repetitions agree:
rates of a machine that is busy are used, and measured again by the next process.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from math import isfinite, log2

import llvmlite.binding as llvm
import numpy as np

from burnish.base.cache import ObjectCache, cache_key
from burnish.machines.machine import Rates
from burnish.machines.unit import MatrixUnit

EDITION = "2"  # of the measurement: raise it when its meaning changes
STEPS_PER_OCTAVE = 4  # of the rounding: 19 % from one to the next
REPEATS, SECONDS = 12, 0.008  # the best of so many runs of about so long
AGREE = 0.8  # of the best rate, which the median of its repetitions reaches on a machine that nobody else uses
ACCUMULATORS, STREAMS = 12, 8  # independent multiply-adds, and vectors read at a time: more than hide the latency
OUTER_CACHES = 4  # times the second cache: bytes read to measure what lies behind it
MEMORY_BYTES = 256 << 20  # read to measure memory: more than a core keeps of a last-level cache that others use, too


def measured_rates(
    triple: str, cpu: str, features: str, vector_bytes: int, l2_bytes: int, unit: MatrixUnit | None
) -> Rates:
    """Rates of one core of this machine, from the cache of compiled kernels or measured now (about a second)."""
    store, key = ObjectCache(), rates_key(triple, cpu, features, vector_bytes, l2_bytes)
    found = _parsed(store.get(key))
    if found is None:
        found, steady = _measure(triple, cpu, features, vector_bytes, l2_bytes, unit)
        if steady:
            store.put(key, json.dumps(astuple(found)).encode())
    return found


def rates_key(triple: str, cpu: str, features: str, vector_bytes: int, l2_bytes: int) -> str:
    """The name under which a machine's rates are kept."""
    return cache_key("rates", EDITION, triple, cpu, features, str(vector_bytes), str(l2_bytes))


def _parsed(kept: bytes | None) -> Rates | None:
    """The rates in an entry of the cache; None where there is none, or another edition's."""
    try:
        values = [float(value) for value in json.loads(kept or b"null")]
    except (ValueError, TypeError):
        return None
    good = len(values) == 4 and all(map(isfinite, values)) and min(values[:3]) > 0 <= values[3]
    return Rates(*values) if good else None


@cache
def _measure(
    triple: str, cpu: str, features: str, vector_bytes: int, l2_bytes: int, unit: MatrixUnit | None
) -> tuple[Rates, bool]:
    """The rates, and whether repetitions agreed."""
    lanes = vector_bytes // 4
    text = multiply_ir(lanes, ACCUMULATORS) + read_ir(lanes) + (unit.probe if unit else "")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    chosen = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
    module = llvm.parse_assembly(text)
    engine = llvm.create_mcjit_compiler(module, chosen)
    engine.finalize_object()

    def function(name: str, *arguments: type) -> Callable[..., None]:
        return ctypes.CFUNCTYPE(None, *arguments)(engine.get_function_address(name))

    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    data = np.ones(4 * vector_bytes, np.float32)
    multiply, read = function("multiply", pointer, integer), function("read", pointer, integer, integer, pointer)

    def reading(nbytes: int) -> _Probe:
        source = np.ones(nbytes // 4, np.float32)
        blocks = source.nbytes // (STREAMS * vector_bytes)
        return _Probe(lambda n: read(source.ctypes.data, blocks, n, data.ctypes.data), blocks * STREAMS * vector_bytes)

    probes = [
        _Probe(lambda n: multiply(data.ctypes.data, n), 2.0 * ACCUMULATORS * lanes),
        reading(OUTER_CACHES * l2_bytes),
        reading(MEMORY_BYTES),
    ]
    if unit and unit.probe:
        probes.append(_Probe(function(f"{unit.name}_probe", integer), unit.probe_operations))
    rates, steady = _rates(probes)
    return Rates(*(rounded(each) for each in rates), *[0.0] * (4 - len(rates))), steady


def rounded(rate: float) -> float:
    """The nearest power of two to a quarter of an octave; 0 stays."""
    return 2.0 ** (round(log2(rate) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE) if rate else 0.0


@dataclass(frozen=True)
class _Probe:
    """``run(n)`` does ``work`` n times."""

    run: Callable[[int], object]
    work: float

    def seconds(self, count: int) -> float:
        """CPU time of ``count`` runs."""
        start = time.thread_time()
        self.run(count)
        return time.thread_time() - start


def _rates(probes: Sequence[_Probe]) -> tuple[list[float], bool]:
    """Work a second of each probe's fastest repetition, in turns, and whether the medians are close to these."""
    counts = []
    for probe in probes:
        count = 1
        while probe.seconds(count) < SECONDS and count < 1 << 40:
            count *= 2
        counts.append(count)
    turns = [[probe.seconds(n) for probe, n in zip(probes, counts, strict=True)] for _ in range(REPEATS)]
    times = list(zip(*turns, strict=True))
    steady = all(min(each) >= AGREE * statistics.median(each) for each in times)
    return [p.work * n / min(each) for p, n, each in zip(probes, counts, times, strict=True)], steady


def multiply_ir(lanes: int, accumulators: int) -> str:
    """``multiply(ptr data, i64 n)``: n times one multiply-add on every accumulator."""
    vector, numbers = f"<{lanes} x float>", range(accumulators)
    phis = "\n".join(f"  %a{i} = phi {vector} [ %x, %entry ], [ %b{i}, %loop ]" for i in numbers)
    steps = "\n".join(
        f"  %b{i} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{i}, {vector} %x, {vector} %y)" for i in numbers
    )
    sums = "\n".join(f"  %s{i} = fadd {vector} {'%x' if not i else f'%s{i - 1}'}, %b{i}" for i in numbers)
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define void @multiply(ptr %data, i64 %n) "prefer-vector-width"="512" {{
entry:
  %x = load {vector}, ptr %data, align 4
  %next = getelementptr {vector}, ptr %data, i64 1
  %y = load {vector}, ptr %next, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{phis}
{steps}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %exit
exit:
{sums}
  store {vector} %s{accumulators - 1}, ptr %data, align 4
  ret void
}}
"""


def read_ir(lanes: int) -> str:
    """``read(ptr source, i64 blocks, i64 n, ptr sum)``: n times the sum of ``blocks`` blocks of STREAMS vectors."""
    vector, numbers = f"<{lanes} x float>", range(STREAMS)
    block = STREAMS * lanes * 4
    phis = "\n".join(f"  %a{i} = phi {vector} [ zeroinitializer, %outer ], [ %b{i}, %inner ]" for i in numbers)
    steps = "\n".join(
        f"  %p{i} = getelementptr i8, ptr %at, i64 {i * lanes * 4}\n  %v{i} = load {vector}, ptr %p{i}, align 4\n"
        f"  %b{i} = fadd {vector} %a{i}, %v{i}"
        for i in numbers
    )
    sums = "\n".join(f"  %s{i} = fadd {vector} {'%b0' if not i else f'%s{i - 1}'}, %b{i}" for i in numbers)
    return f"""
define void @read(ptr %source, i64 %blocks, i64 %n, ptr %sum) "prefer-vector-width"="512" {{
entry:
  br label %outer
outer:
  %k = phi i64 [ 0, %entry ], [ %l, %done ]
  br label %inner
inner:
  %i = phi i64 [ 0, %outer ], [ %j, %inner ]
{phis}
  %offset = mul i64 %i, {block}
  %at = getelementptr i8, ptr %source, i64 %offset
{steps}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %blocks
  br i1 %more, label %inner, label %done
done:
{sums}
  store volatile {vector} %s{STREAMS - 1}, ptr %sum, align 4
  %l = add i64 %k, 1
  %again = icmp slt i64 %l, %n
  br i1 %again, label %outer, label %exit
exit:
  ret void
}}
"""
