"""Measured rates of this machine's cores: multiply-adds, reads from the caches and from memory, tiles of a matrix unit.

Measured once, rounded to steps of a quarter of an octave, so that noise seldom changes what is chosen by them, and kept
in the cache of compiled kernels.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable
from dataclasses import astuple
from functools import cache
from math import isfinite, log2

import llvmlite.binding as llvm
import numpy as np

from burnish.base.cache import ObjectCache, cache_key
from burnish.machines.machine import Rates
from burnish.machines.unit import MatrixUnit

EDITION = "1"  # of the measurement: raise it when its meaning changes
STEPS_PER_OCTAVE = 4  # of the rounding: 19 % from one to the next
REPEATS, SECONDS = 7, 0.01  # the best of so many runs of about so long
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
        found = _measure(triple, cpu, features, vector_bytes, l2_bytes, unit)
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
def _measure(triple: str, cpu: str, features: str, vector_bytes: int, l2_bytes: int, unit: MatrixUnit | None) -> Rates:
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
    flops = _rate(lambda n: multiply(data.ctypes.data, n), 2.0 * ACCUMULATORS * lanes)

    def bandwidth(nbytes: int) -> float:
        source = np.ones(nbytes // 4, np.float32)
        blocks = source.nbytes // (STREAMS * vector_bytes)
        return _rate(lambda n: read(source.ctypes.data, blocks, n, data.ctypes.data), blocks * STREAMS * vector_bytes)

    caches, memory = bandwidth(OUTER_CACHES * l2_bytes), bandwidth(MEMORY_BYTES)
    tiles = 0.0
    if unit and unit.probe:
        products = function(f"{unit.name}_probe", integer)
        tiles = _rate(products, unit.probe_operations)
    return Rates(*(rounded(each) for each in (flops, caches, memory, tiles)))


def rounded(rate: float) -> float:
    """The nearest power of two to a quarter of an octave; 0 stays."""
    return 2.0 ** (round(log2(rate) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE) if rate else 0.0


def _rate(run: Callable[[int], None], work: float) -> float:
    """Work a second of the fastest of several runs; ``run(n)`` does it n times."""
    count, took = 1, 0.0
    while took < SECONDS and count < 1 << 40:
        start = time.perf_counter()
        run(count)
        took = time.perf_counter() - start
        count = count * 2 if took < SECONDS else count
    best = took
    for _ in range(REPEATS):
        start = time.perf_counter()
        run(count)
        best = min(best, time.perf_counter() - start)
    return work * count / best


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
