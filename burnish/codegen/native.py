"""Kernels written as loops in Python: numba's front end compiles them to LLVM IR, a wrapper calls them as a kernel.

The wrapper is ``void name(ptr args, ptr rt)`` like every kernel: args are the operands, then the values of dimensions.
It describes each operand as the array that the function sees, and hands ranges of independent parts to the thread pool.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any

from burnish.base.baselines import BASELINES, archive_path
from burnish.base.cache import Archive, ObjectCache, cache_key
from burnish.codegen.builder import IRBuilder
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.sizes import Quotient, greatest, is_size, polynomial
from burnish.ops.operator import Entropy, NativeCall, TensorType

ALIGNMENT = 64  # bytes, of scratch arrays
GRAIN = 1 << 13  # elements of work below which waking the threads costs more than it saves
IR_MARK = b"; native IR\n"  # what a kept function begins with
ENTROPY_FIELD, NEXT_ENTROPY = 6, 0x632BE59BD9B4E019  # of ``struct Runtime``; what a call adds to it: any odd number
_NATIVE = "native"  # the function's name in the module


def emit_native(name: str, call: NativeCall, dims: Sequence[str], store: ObjectCache | None) -> tuple[str, int]:
    """The LLVM IR of the kernel ``name``, and the scratch bytes of each thread. ``dims``: dimensions that it is given.

    The function's own IR is kept in ``store``: with it numba is not needed.
    """
    kinds, numbers = _kinds(call)
    key = cache_key("native IR", version_of(call))
    found = (store.get(key) if store else None) or _ahead(key)
    text = found.decode() if found is not None else _compiled(call.function, kinds, numbers)
    if store and found is None:
        store.put(key, IR_MARK + text.encode())
    wrapper = _Wrapper(name, call, dims)
    return f"{text}\n{wrapper.text()}\n", wrapper.scratch_bytes


def version_of(call: NativeCall) -> str:
    """Names what decides the IR of a call's function: its source, what it encloses, and the types that it is given."""
    return cache_key(_source(call.function), repr(_kinds(call)), repr(_enclosed(call.function)))


def _kinds(call: NativeCall) -> tuple[list[tuple[str, int]], list[str]]:
    """Dtype and rank of each array, and the types of the numbers."""
    arrays = [(dtype, len(shape)) for shape, dtype in (*call.views, *call.scratch)]
    arrays += [(str(table.dtype), table.ndim) for table in call.tables]
    return arrays, ["float64" if isinstance(n, float) else "int64" for n in call.numbers]


@cache
def _source(function: Callable[..., None]) -> bytes:
    """Cache key of a function's LLVM IR: its file, its place in it, and the versions of what compiles it, which is not
    imported.
    """
    code = function.__code__
    head = f"{version('numba')} {version('llvmlite')} {function.__qualname__} {code.co_firstlineno}\n"
    return head.encode() + Path(inspect.getfile(function)).read_bytes()


def _ahead(key: str) -> bytes | None:
    """The IR of a function that the installation brings along, for any CPU."""
    return next((found for archive in _archives() if (found := archive.get(key)) is not None), None)


@cache
def _archives() -> list[Archive]:
    if os.environ.get("BURNISH_AHEAD") == "0":
        return []
    paths = [archive_path(level) for levels in BASELINES.values() for level in levels]
    return [Archive(path) for path in paths if path.exists()]


def _enclosed(function: Callable[..., Any]) -> tuple[Any, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__ or ())


def _compiled(function: Callable[..., None], arrays: Sequence[tuple[str, int]], numbers: Sequence[str]) -> str:
    """The IR of ``function(*arrays, *numbers, begin, end)`` as ``i32 @native``, for any target."""
    from numba import types
    from numba.core.compiler import Flags, compile_extra
    from numba.core.registry import cpu_target

    flags = Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.nrt, flags.error_model = False, "numpy"
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    kinds = [types.Array(getattr(types, {"bool": "boolean"}.get(d, d)), rank, "C") for d, rank in arrays]
    kinds += [getattr(types, kind) for kind in (*numbers, "int64", "int64")]
    made = compile_extra(
        cpu_target.typing_context, cpu_target.target_context, _self_contained(function), tuple(kinds), types.void,
        flags, {},
    )  # fmt: skip
    symbol = made.fndesc.llvm_func_name
    lines = [
        line.replace("#", "#1") if not line.startswith((";", "source_filename")) else ""
        for line in made.library.get_llvm_str().splitlines()
        if not line.startswith(("target ", "; ModuleID", "@_ZN08NumbaEnv"))
    ]
    text = "\n".join(lines).replace(f"@{symbol}", f"@{_NATIVE}")
    return _with_own_fills(re.sub(r"^define (linkonce_odr )?", "define internal ", text, flags=re.MULTILINE))


def _with_own_fills(text: str) -> str:
    """The IR with fills and copies of memory as loops of its own: kernels are linked with no C library.

    Copies do not overlap: outputs lie apart from inputs.
    """
    for name, body in _FILLS.items():
        text, count = re.subn(rf"@llvm\.{name}\.[\w.]+\(", f"@native.{name}(", text)
        if count:
            text = re.sub(rf"^declare .*@native\.{name}\(.*\n", "", text, flags=re.MULTILINE) + "\n" + body
    return text


def _fill(name: str, second: str, vector: str, element: str) -> str:
    """``name(to, second, bytes, volatile)``: vectors of 64 bytes, then bytes; ``vector``, ``element``: their values."""
    return f"""define internal void @native.{name}(ptr %to, {second}, i64 %bytes, i1 %volatile) "no-builtins" {{
entry:
  %whole = and i64 %bytes, -64
  br label %vectors
vectors:
  %i = phi i64 [ 0, %entry ], [ %next, %vector ]
  %more = icmp ult i64 %i, %whole
  br i1 %more, label %vector, label %rest
vector:
  {vector}
  %place = getelementptr i8, ptr %to, i64 %i
  store <64 x i8> %wide, ptr %place, align 1
  %next = add i64 %i, 64
  br label %vectors
rest:
  %j = phi i64 [ %whole, %vectors ], [ %after, %byte ]
  %left = icmp ult i64 %j, %bytes
  br i1 %left, label %byte, label %done
byte:
  {element}
  %spot = getelementptr i8, ptr %to, i64 %j
  store i8 %one, ptr %spot
  %after = add i64 %j, 1
  br label %rest
done:
  ret void
}}
"""


_COPY = (
    "%source = getelementptr i8, ptr %from, i64 %i\n  %wide = load <64 x i8>, ptr %source, align 1",
    "%origin = getelementptr i8, ptr %from, i64 %j\n  %one = load i8, ptr %origin",
)
_FILLS = {
    "memset": _fill(
        "memset", "i8 %value",
        "%lane = insertelement <64 x i8> poison, i8 %value, i64 0\n"
        "  %wide = shufflevector <64 x i8> %lane, <64 x i8> poison, <64 x i32> zeroinitializer",
        "%one = add i8 %value, 0",
    ),
    "memcpy": _fill("memcpy", "ptr %from", *_COPY),
    "memmove": _fill("memmove", "ptr %from", *_COPY),
}  # fmt: skip


def _self_contained(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the plain functions that it calls as ones that numba compiles."""
    import numba

    code = function.__code__
    own = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    called = {
        name: numba.njit(_self_contained(f), _nrt=False, inline="always")
        for name, f in own.items()
        if inspect.isfunction(f)
    }
    if not called:
        return function
    made = FunctionType(code, {**function.__globals__, **called}, function.__name__, None, function.__closure__)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


class _Wrapper:
    """The kernel around a function: see the module's docstring."""

    def __init__(self, name: str, call: NativeCall, dims: Sequence[str]) -> None:
        self._name, self._call, self._dims = name, call, list(dims)
        self.scratch_bytes = sum(map(_padded_bytes, call.scratch))
        self._args = "%args"  # where the function that is written finds the operands

    def text(self) -> str:
        """IR of the kernel and of what the pool calls."""
        return "\n".join([*map(self._table, range(len(self._call.tables))), self._part(), "", self._kernel()])

    def _table(self, number: int) -> str:
        """A constant array of bytes."""
        data = self._call.tables[number].tobytes() or b"\0"
        text = "".join(f"\\{byte:02X}" for byte in data)
        kind = f"[{len(data)} x i8]"
        return f'@{self._name}.table{number} = private unnamed_addr constant {kind} c"{text}", align {ALIGNMENT}'

    def _kernel(self) -> str:
        b, self._args = IRBuilder(), "%args"
        extent = self._size(b, self._call.extent)
        serial = not is_size(self._call.extent) and (self._call.extent < 2 or self._call.work < GRAIN)
        thread = "i64 0"
        context = b.result("alloca [3 x ptr], align 8", "int64").text
        for place, value in enumerate(("%args", "%rt")):
            b.emit(f"store ptr {value}, ptr {self._at(b, 'ptr', context, place)}")
        if serial:
            b.emit(f"call void @{self._name}.part(ptr {context}, i64 0, i64 {extent}, {thread})")
        else:
            parallel, pool = (b.result(f"load ptr, ptr {self._at(b, 'ptr', '%rt', i)}", "int64").text for i in range(2))
            b.emit(f"call void {parallel}(ptr {pool}, ptr @{self._name}.part, ptr {context}, i64 {extent})")
        return self._function(f"void @{self._name}(ptr %args, ptr %rt)", b)

    def _part(self) -> str:
        b = IRBuilder()
        args, rt = (b.result(f"load ptr, ptr {self._at(b, 'ptr', '%ctx', i)}", "int64").text for i in range(2))
        self._args, operands = args, list[str]()
        for place, view in enumerate(self._call.views):
            pointer = b.result(f"load ptr, ptr {self._at(b, 'ptr', args, place)}", "int64").text
            operands += self._array(b, pointer, view)
        if self._call.scratch:
            base = b.result(f"load ptr, ptr {self._at(b, 'ptr', rt, 2)}", "int64").text
            stride = b.result(f"load i64, ptr {self._at(b, 'i64', rt, 3)}", "int64").text
            skipped = b.result(f"mul i64 {stride}, %thread", "int64").text
            base = b.result(f"getelementptr i8, ptr {base}, i64 {skipped}", "int64").text
            offset = 0
            for view in self._call.scratch:
                pointer = b.result(f"getelementptr i8, ptr {base}, i64 {offset}", "int64").text
                operands += self._array(b, pointer, view)
                offset += _padded_bytes(view)
        for at, table in enumerate(self._call.tables):
            operands += self._array(b, f"@{self._name}.table{at}", (table.shape, str(table.dtype)))
        for number in self._call.numbers:
            if isinstance(number, Entropy):
                operands.append(f"i64 {self._drawn(b, rt)}")
                continue
            is_float = isinstance(number, float)
            operands.append(f"double {b.const(number, 'float64').text}" if is_float else f"i64 {self._size(b, number)}")
        result, error = (b.result("alloca ptr, align 8", "int64").text for _ in range(2))
        given = ", ".join([f"ptr {result}", f"ptr {error}", *operands, "i64 %begin", "i64 %end"])
        b.result(f"call i32 @{_NATIVE}({given})", "int32")
        return self._function(f"internal void @{self._name}.part(ptr %ctx, i64 %begin, i64 %end, i64 %thread)", b)

    def _drawn(self, b: IRBuilder, rt: str) -> str:
        """64 bits of entropy, which the next call finds changed."""
        place = self._at(b, "i64", rt, ENTROPY_FIELD)
        value = b.result(f"load i64, ptr {place}", "int64").text
        b.emit(f"store i64 {b.result(f'add i64 {value}, {NEXT_ENTROPY}', 'int64').text}, ptr {place}")
        return value

    def _array(self, b: IRBuilder, pointer: str, view: TensorType) -> list[str]:
        """An array as numba takes it: no owner, its elements, bytes of each, address, shape and strides."""
        shape, dtype = view
        extents = [self._size(b, extent) for extent in shape]
        strides, step = [], str(ITEM_BYTES[dtype])
        for extent in reversed(extents):
            strides.append(step)
            step = _times(b, step, extent)
        count = "1"
        for extent in extents:
            count = _times(b, count, extent)
        sizes = [f"i64 {n}" for n in (*extents, *reversed(strides))]
        return ["ptr null", "ptr null", f"i64 {count}", f"i64 {ITEM_BYTES[dtype]}", f"ptr {pointer}", *sizes]

    def _size(self, b: IRBuilder, extent: Any) -> str:
        """The number, or what computes a size from the dimensions."""
        if not is_size(extent):
            return str(int(extent))
        total = "0"
        for monomial, factor in polynomial(extent).items():
            product = str(factor)
            for atom in monomial:
                product = _times(b, product, self._atom(b, atom))
            total = b.result(f"add i64 {total}, {product}", "int64").text
        return total

    def _atom(self, b: IRBuilder, atom: Any) -> str:
        if isinstance(atom, Quotient):
            return b.result(f"sdiv i64 {self._size(b, atom.size)}, {self._size(b, atom.divisor)}", "int64").text
        place = len(self._call.views) + self._dims.index(atom.name)
        return b.result(f"load i64, ptr {self._at(b, 'i64', self._args, place)}", "int64").text

    @staticmethod
    def _at(b: IRBuilder, kind: str, base: str, index: int) -> str:
        return b.result(f"getelementptr {kind}, ptr {base}, i64 {index}", "int64").text

    @staticmethod
    def _function(signature: str, b: IRBuilder) -> str:
        return "\n".join([f"define {signature} nounwind {{", "entry:", *b.lines, "  ret void", "}"])


def _times(b: IRBuilder, x: str, y: str) -> str:
    if x.lstrip("-").isdigit() and y.lstrip("-").isdigit():
        return str(int(x) * int(y))
    return b.result(f"mul i64 {x}, {y}", "int64").text


def _padded_bytes(view: TensorType) -> int:
    shape, dtype = view
    count = ITEM_BYTES[dtype]
    for extent in shape:
        count *= greatest(extent)
    return -(-count // ALIGNMENT) * ALIGNMENT
