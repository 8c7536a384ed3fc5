"""Instrumented build of a kernel for a grid: its LLVM IR for this CPU, where every access of memory is recorded.

The kernel's IR is the one that becomes PTX. Only what it calls differs: the prelude here gives indices from variables,
hands barriers and what a warp does together to the runner, and writes a record of each load and store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from burnish.errors import TargetError
from burnish.machines.nvptx.tensor_copies import RANKS

CALLS = BARRIER, COLLECTIVE, FULL, COPY, QUEUE, BOX, ARRIVALS = range(7)  # the runner's functions, in this order
MATRICES = ("gpu.matrices", "gpu.matrices.trans")
MULTIPLY = ("gpu.mma.f16", "gpu.mma.bf16", "gpu.mma.tf32", "gpu.mma.s8")
SHUFFLE = "gpu.shuffle"
OF_WARPS = (*MATRICES, *MULTIPLY, SHUFFLE)
COPIES = (4, 8, 16)
_GROUPED = re.compile(
    r"@(gpu\.wgmma\.(\w+)\.n(\d+)(?:\.columns)?(\.held)?(?:\.first)?|gpu\.products\.end\.[fr](\d+))\("
)
_QUEUED = re.compile(r"@(gpu\.(?:copies|products)\.(?!end)[\w.]+)\(")
INDICES = tuple(f"gpu.{what}.{axis}" for what in ("block", "thread") for axis in "xyz")
BOX_READ = "what a copy of a box reads"
EVENTS = ("init", "expect", "wait", "publish")  # of mbarriers
READ, WRITTEN = "what a tensor core reads", "what a tensor core has read"
RECORD = 3  # words of 8 bytes: address; site, bytes and whether it writes; thread and number of barriers before
STACK_REACH = 1 << 21  # bytes around a frame of the recording function that are some thread's own stack
_BITS = {"double": 64, "float": 32, "half": 16, "bfloat": 16, "ptr": 64}
_LOAD = re.compile(r"^(\s*)(%[\w.]+) = load (volatile )?([^,]+), ptr ([%@][\w.]+)(?:, align \d+)?$")
_STORE = re.compile(r"^(\s*)store (volatile )?(.+), ptr ([%@][\w.]+)(?:, align \d+)?$")
_ALIGN = re.compile(r", align (\d+)$")
_ROUNDED = re.compile(r"fptrunc (?:<(\d+) x float>|float) (\S+) to (?:<\d+ x bfloat>|bfloat)")
_TYPE = re.compile(r"^(<(\d+) x (\w+)>|\w+)")
_SHARED = re.compile(r"^@([\w.]+) = internal addrspace\(\d+\) global \[(\d+) x i8\] poison", re.MULTILINE)
_CONSTANT = re.compile(r"^@([\w.]+) = private unnamed_addr constant \[(\d+) x i(\d+)\]", re.MULTILINE)


@dataclass(frozen=True)
class Instrumented:
    """LLVM IR, the names and bytes of its shared buffers and constants, and what each site of an access is, as text.

    ``operations``: the functions that warps, or four of them, execute together. ``queued``: those that say when copies
    and products that go on meanwhile have to end.
    """

    text: str
    shared: Mapping[str, int]
    constants: Mapping[str, int]
    sites: tuple[str, ...]
    operations: tuple[str, ...]
    queued: tuple[str, ...]

    @property
    def aligned(self) -> tuple[int, ...]:
        """The multiple of bytes at which the access of each site must be."""
        return tuple(int(found[1]) if (found := _ALIGN.search(site)) else 1 for site in self.sites)


def instrumented(ir: str) -> Instrumented:
    """A kernel's IR with records of all accesses. Raises TargetError for instructions that cannot be recorded."""
    if "@llvm.masked." in ir or "@llvm.nvvm." in ir:
        raise TargetError("coroutine runner: found masked accesses or instructions of a GPU; allowed: whole accesses")
    sites: list[str] = []
    lines = []
    for line in ir.splitlines():
        if line.startswith("declare") and "@gpu." in line:
            continue
        lines.extend(_recorded(line, sites))
    text = "\n".join(lines).replace("ptx_kernel ", "")
    rounded = sorted({int(m[1] or 1) for m in _ROUNDED.finditer(text)})
    text = _ROUNDED.sub(_rounding_call, text)
    text = re.sub(r"ptr addrspace\(1\) (%\w+[,)])", r"ptr \1", text)
    shared = {name: int(size) for name, size in _SHARED.findall(text)}
    text = _SHARED.sub(lambda m: f"@{m[1]} = global [{m[2]} x i8] zeroinitializer", text)
    text = re.sub(r"addrspacecast ptr addrspace\(\d+\) (\S+) to ptr", r"getelementptr i8, ptr \1, i64 0", text)
    constants = {name: int(count) * int(bits) // 8 for name, count, bits in _CONSTANT.findall(text)}
    text = _CONSTANT.sub(lambda m: f"@{m[1]} = constant [{m[2]} x i{m[3]}]", text)
    grouped = {m[1]: m for m in _GROUPED.finditer(text)}
    queued = tuple(dict.fromkeys(m[1] for m in _QUEUED.finditer(text)))
    operations = (*OF_WARPS, *grouped)
    first = len(sites)
    sites += [
        "a matrix of a tensor core",
        "a copy that begins",
        "a copy that ends",
        "what a copy reads",
        READ,
        WRITTEN,
        BOX_READ,
    ]
    own = [_rounding(lanes) for lanes in rounded]
    own += [_together(len(OF_WARPS) + i, m) for i, m in enumerate(grouped.values())]
    own += [_queued(i, name) for i, name in enumerate(queued)]
    return Instrumented("\n".join([text, _prelude(first), *own]), shared, constants, tuple(sites), operations, queued)


def _typed(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def _rounding_call(m: re.Match[str]) -> str:
    lanes = int(m[1] or 1)
    return f"call {_typed('bfloat', lanes)} @gpu.round.{lanes}({_typed('float', lanes)} {m[2]})"


def _rounding(lanes: int) -> str:
    """float32 to bfloat16, to nearest even: not every CPU has an instruction for that."""
    a, i, h, b = (_typed(element, lanes) for element in ("float", "i32", "i16", "bfloat"))

    def number(value: int) -> str:
        return str(value) if lanes == 1 else f"splat (i32 {value})"

    return f"""
define internal {b} @gpu.round.{lanes}({a} %a) alwaysinline {{
  %bits = bitcast {a} %a to {i}
  %high = lshr {i} %bits, {number(16)}
  %odd = and {i} %high, {number(1)}
  %half = add {i} %odd, {number(0x7FFF)}
  %sum = add {i} %bits, %half
  %near = lshr {i} %sum, {number(16)}
  %nan = fcmp uno {a} %a, %a
  %quiet = or {i} %high, {number(0x40)}
  %chosen = select {_typed("i1", lanes)} %nan, {i} %quiet, {i} %near
  %narrow = trunc {i} %chosen to {h}
  %new = bitcast {h} %narrow to {b}
  ret {b} %new
}}"""


def _recorded(line: str, sites: list[str]) -> list[str]:
    """The line, with the pointer of its access handed to the recording function first."""
    found = _LOAD.match(line)
    if found:
        indent, name, volatile, kind, pointer = found.groups()
        what = _what(len(sites), kind, 0)
        sites.append(line.strip())
        return [
            f"{indent}{name}.at = call ptr @gpu.access(ptr {pointer}, i64 {what})",
            f"{indent}{name} = load {volatile or ''}{kind}, ptr {name}.at, align 1",
        ]
    found = _STORE.match(line)
    if found:
        indent, volatile, value, pointer = found.groups()
        kind = _TYPE.match(value)
        assert kind is not None, line
        name = f"%at.{len(sites)}"
        what = _what(len(sites), kind[0], 1)
        sites.append(line.strip())
        return [
            f"{indent}{name} = call ptr @gpu.access(ptr {pointer}, i64 {what})",
            f"{indent}store {volatile or ''}{value}, ptr {name}, align 1",
        ]
    return [line]


def _what(site: int, kind: str, writes: int) -> int:
    """Site, bytes and direction of an access as a word."""
    found = _TYPE.match(kind.strip())
    assert found is not None, kind
    count, element = int(found[2] or 1), found[3] or found[1]
    bits = _BITS.get(element) or int(element[1:])
    return site << 16 | prod((count, max(bits, 8) // 8)) << 1 | writes


def _prelude(sites: int) -> str:
    parts = [_GLOBALS, _ACCESS]
    for i, name in enumerate(INDICES):
        parts.append(
            f"define internal i32 @{name}() alwaysinline {{\n"
            f"  %i = load i32, ptr getelementptr (i32, ptr @gpu.index, i64 {i})\n  ret i32 %i\n}}"
        )
    parts += [_matrices(number, name, sites) for number, name in enumerate(MATRICES)]
    parts += [_multiply(number, name) for number, name in enumerate(MULTIPLY, len(MATRICES))]
    parts += [_shuffle(OF_WARPS.index(SHUFFLE)), _POWER]
    parts += [_copy(nbytes, sites + 1, sites + 3) for nbytes in COPIES]
    parts += [*map(_box_copy, RANKS), *(_on_mbarrier(i, name) for i, name in enumerate(EVENTS))]
    return "\n".join(parts)


_GLOBALS = f"""
@gpu.index = global [6 x i32] zeroinitializer
@gpu.who = global i64 0
@gpu.records = global ptr null
@gpu.count = global i64 0
@gpu.limit = global i64 0
@gpu.range = global [4 x i64] zeroinitializer
@gpu.calls = global [{len(CALLS)} x ptr] zeroinitializer
@gpu.spare = global [64 x i8] zeroinitializer, align 64
define internal void @gpu.barrier() noinline {{
  %f = load ptr, ptr getelementptr (ptr, ptr @gpu.calls, i64 {BARRIER})
  call void %f()
  ret void
}}
define internal void @gpu.together(i64 %operation, ptr %in, ptr %out) noinline {{
  %f = load ptr, ptr getelementptr (ptr, ptr @gpu.calls, i64 {COLLECTIVE})
  call void %f(i64 %operation, ptr %in, ptr %out)
  ret void
}}
define internal void @gpu.queue(i64 %what) noinline {{
  %f = load ptr, ptr getelementptr (ptr, ptr @gpu.calls, i64 {QUEUE})
  call void %f(i64 %what)
  ret void
}}"""

# A pointer into memory that is known, or else to spare bytes: the kernel goes on, and the record tells.
_ACCESS = f"""
define internal ptr @gpu.access(ptr %p, i64 %what) noinline {{
  %frame = alloca i8
  %a = ptrtoint ptr %p to i64
  %here = ptrtoint ptr %frame to i64
  %apart = sub i64 %a, %here
  %shifted = add i64 %apart, {STACK_REACH // 2}
  %own = icmp ult i64 %shifted, {STACK_REACH}
  br i1 %own, label %stack, label %record
stack:
  ret ptr %p
record:
  %n = load i64, ptr @gpu.count
  %records = load ptr, ptr @gpu.records
  %first = mul i64 %n, {RECORD}
  %slot0 = getelementptr i64, ptr %records, i64 %first
  %slot1 = getelementptr i64, ptr %slot0, i64 1
  %slot2 = getelementptr i64, ptr %slot0, i64 2
  %who = load i64, ptr @gpu.who
  store i64 %a, ptr %slot0
  store i64 %what, ptr %slot1
  store i64 %who, ptr %slot2
  %next = add i64 %n, 1
  store i64 %next, ptr @gpu.count
  %limit = load i64, ptr @gpu.limit
  %full = icmp uge i64 %next, %limit
  br i1 %full, label %drain, label %check
drain:
  %f = load ptr, ptr getelementptr (ptr, ptr @gpu.calls, i64 {FULL})
  call void %f()
  br label %check
check:
  %low = load i64, ptr @gpu.range
  %size = load i64, ptr getelementptr (i64, ptr @gpu.range, i64 1)
  %low2 = load i64, ptr getelementptr (i64, ptr @gpu.range, i64 2)
  %size2 = load i64, ptr getelementptr (i64, ptr @gpu.range, i64 3)
  %in = sub i64 %a, %low
  %in2 = sub i64 %a, %low2
  %ok = icmp ult i64 %in, %size
  %ok2 = icmp ult i64 %in2, %size2
  %known = or i1 %ok, %ok2
  %safe = select i1 %known, ptr %p, ptr @gpu.spare
  ret ptr %safe
}}"""


def _matrices(operation: int, name: str, site: int) -> str:
    kind = "{i32, i32, i32, i32}"
    return f"""
define internal {kind} @{name}(ptr %p) noinline {{
  %in = alloca i64
  %out = alloca {kind}
  %q = call ptr @gpu.access(ptr %p, i64 {site << 16 | 16 << 1})
  %a = ptrtoint ptr %q to i64
  store i64 %a, ptr %in
  call void @gpu.together(i64 {operation}, ptr %in, ptr %out)
  %words = load {kind}, ptr %out
  ret {kind} %words
}}"""


def _copy(nbytes: int, site: int, source: int) -> str:
    """Both places are recorded; the runner writes when the copy has to have ended."""
    return f"""
define internal void @gpu.copy.{nbytes}(ptr %to, ptr %from, i32 %count) noinline {{
  %some = icmp ne i32 %count, 0
  br i1 %some, label %read, label %write
read:
  %known = call ptr @gpu.access(ptr %from, i64 {source << 16 | nbytes << 1})
  br label %write
write:
  %begin = phi ptr [ %from, %0 ], [ %known, %read ]
  %end = call ptr @gpu.access(ptr %to, i64 {site << 16 | nbytes << 1 | 1})
  %f = load ptr, ptr getelementptr (ptr, ptr @gpu.calls, i64 {COPY})
  call void %f(ptr %end, ptr %begin, i32 %count, i32 {nbytes})
  ret void
}}"""


def _box_copy(rank: int) -> str:
    """The runner finds the map by its address; positions are in memory."""
    given = ", ".join(f"i32 %x{d}" for d in range(rank))
    stored = "\n".join(
        f"  %p{d} = getelementptr i32, ptr %at, i64 {d}\n  store i32 %x{d}, ptr %p{d}" for d in range(rank)
    )
    return f"""
define internal void @gpu.tensor.copy.{rank}(ptr %to, ptr %map, ptr %bar, {given}) noinline {{
  %at = alloca [{rank} x i32]
{stored}
  %f = load ptr, ptr getelementptr (ptr, ptr @gpu.calls, i64 {BOX})
  call void %f(ptr %to, ptr %map, ptr %bar, ptr %at)
  ret void
}}"""


def _on_mbarrier(number: int, name: str) -> str:
    """Operation of a thread on an mbarrier; ``publish``, without parameters: on all that it has initialized."""
    given, passed = ("", "ptr null, i32 0") if name == "publish" else ("ptr %bar, i32 %n", "ptr %bar, i32 %n")
    return f"""
define internal void @gpu.arrivals.{name}({given}) noinline {{
  %f = load ptr, ptr getelementptr (ptr, ptr @gpu.calls, i64 {ARRIVALS})
  call void %f(i32 {number}, {passed})
  ret void
}}"""


def _queued(number: int, name: str) -> str:
    return f"""
define internal void @{name}() noinline {{
  call void @gpu.queue(i64 {number})
  ret void
}}"""


def _together(operation: int, m: re.Match[str]) -> str:
    """A function of four warps: its operands, words or addresses, if it has any, and its sums, in memory."""
    operands = [("i32", f"w{i}") for i in range(4)] if m[4] else [("ptr", "a")]
    operands = [*operands, ("ptr", "b")] if m[2] else []
    count = int(m[3]) // 2 if m[2] else int(m[5])
    sum_ = "i32" if m[2] == "s8" or ".end.r" in m[1] else "float"
    kind = "{" + ", ".join([sum_] * count) + "}"
    lines, at = [], 0
    for element, name in operands:
        lines += [f"  %s{at} = getelementptr i8, ptr %in, i64 {at}", f"  store {element} %{name}, ptr %s{at}"]
        at += 8 if element == "ptr" else 4
    for i in range(count):
        lines += [f"  %s{at} = getelementptr i8, ptr %in, i64 {at}", f"  store {sum_} %c{i}, ptr %s{at}"]
        at += 4
    given = ", ".join([*(f"{element} %{name}" for element, name in operands), *(f"{sum_} %c{i}" for i in range(count))])
    return "\n".join(
        [
            f"define internal {kind} @{m[1]}({given}) noinline {{",
            f"  %in = alloca [{at} x i8], align 8",
            f"  %out = alloca {kind}",
            *lines,
            f"  call void @gpu.together(i64 {operation}, ptr %in, ptr %out)",
            f"  %new = load {kind}, ptr %out",
            f"  ret {kind} %new\n}}",
        ]
    )


def _multiply(operation: int, name: str) -> str:
    element = "i32" if name.endswith("s8") else "float"
    kind = "{" + ", ".join([element] * 4) + "}"
    words = ", ".join([*(f"i32 %w{i}" for i in range(6)), *(f"{element} %c{i}" for i in range(4))])
    lines = []
    for i in range(10):
        value = f"i32 %w{i}" if i < 6 else f"{element} %c{i - 6}"
        lines += [f"  %s{i} = getelementptr i32, ptr %in, i64 {i}", f"  store {value}, ptr %s{i}"]
    return "\n".join(
        [
            f"define internal {kind} @{name}({words}) noinline {{",
            "  %in = alloca [10 x i32]",
            f"  %out = alloca {kind}",
            *lines,
            f"  call void @gpu.together(i64 {operation}, ptr %in, ptr %out)",
            f"  %new = load {kind}, ptr %out",
            f"  ret {kind} %new\n}}",
        ]
    )


_POWER = """
declare float @llvm.exp2.f32(float)
define internal float @gpu.exp2(float %x) alwaysinline {
  %power = call float @llvm.exp2.f32(float %x)
  ret float %power
}"""


def _shuffle(operation: int) -> str:
    return f"""
define internal i32 @{SHUFFLE}(i32 %value, i32 %step) noinline {{
  %in = alloca [2 x i32]
  %out = alloca i32
  %second = getelementptr i32, ptr %in, i64 1
  store i32 %value, ptr %in
  store i32 %step, ptr %second
  call void @gpu.together(i64 {operation}, ptr %in, ptr %out)
  %other = load i32, ptr %out
  ret i32 %other
}}"""
