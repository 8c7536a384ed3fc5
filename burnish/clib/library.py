"""C library of a compiled model: machine code, parameters and call tables as objects, and the functions around them."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from burnish.clib.facts_ir import SizeFunctions, messages_ir, within_ir
from burnish.clib.host_ir import BEYOND, CONTEXTS, INVALID, MISSING, NO_CODE, NO_CPU, NO_MEMORY, OK, OTHER_THREADS
from burnish.clib.objects import DataSection, archive, elf_object
from burnish.clib.threads_ir import THREADS
from burnish.clib.values_ir import VALUES
from burnish.errors import ParameterError, TargetError
from burnish.loops.sizes import nondecreasing
from burnish.machines.machine import CpuCheck, System
from burnish.runtime.abi import SCRATCH_STRIDE
from burnish.runtime.buffers import ALIGNMENT, numpy_dtype, round_up
from burnish.runtime.entry import driver_ir, driver_object, system_of, with_fields
from burnish.runtime.executable import Count, Executable, TensorSpec
from burnish.runtime.host import ENTRY_ALIGNMENT, features_of, machine_of
from burnish.runtime.integers import known_integers
from burnish.runtime.pool import MOST_THREADS, SPIN
from burnish.runtime.relocate import PAGE
from burnish.runtime.sized import plan_at, upper_ends
from burnish.runtime.tables import NATIVE, StepTables

CODES: Mapping[int, tuple[str, str]] = {
    OK: ("OK", "no error"),
    INVALID: ("INVALID", "an argument is out of its range, or of another size than the model's"),
    NO_MEMORY: ("NO_MEMORY", "the system gives no memory"),
    NO_CPU: ("NO_CPU", "this CPU, or its system, lacks instructions that the model was compiled for"),
    MISSING: ("MISSING", "an input was not set, or its size has changed since"),
    BEYOND: ("BEYOND", "an index or a label in an input is out of range"),
    OTHER_THREADS: ("THREADS", "the library runs on another number of threads already; allowed: that number, 1, or 0"),
    NO_CODE: ("NO_CODE", "the system refuses executable memory"),
}
FUNCTIONS = (
    "create", "destroy", "run", "set_input", "set_output", "output", "get_output", "input_bytes", "output_bytes",
    "output_shape", "set_size", "state", "reset", "error",
)  # fmt: skip
MOST_CONTEXT = 1 << 42  # bytes of a context at the upper ends of its dimensions, which nothing touches until then
_DATA = ("code", "params", "states", "words", "relocations", "absolute")  # that functions read
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_IO = 128  # of a context: before it lie %Plan, its bytes and %Runtime
_BYTES, _RUNTIME = 48, 64


@dataclass(frozen=True, eq=False)
class CLibrary:
    """An executable as a C library, all of whose symbols begin with ``name``.

    Raises ParameterError for a name that C has not, or dimensions too wide to plan memory for, and TargetError for a
    model that native code alone cannot run: one of another device than a CPU, with operators in Python, collectives,
    or structures of graphs.
    """

    executable: Executable
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ParameterError(f"name: found {self.name!r}; allowed: a letter, then up to 62 letters, digits and _")
        own = self.executable
        if self.machine not in ENTRY_ALIGNMENT or own.driver.machine not in ENTRY_ALIGNMENT:
            raise TargetError(f"a C library: found the target {own.target!r}; allowed: CPUs under Linux")
        for step in own.steps:
            if not isinstance(step, (*NATIVE, Count)):
                raise TargetError(
                    f"a C library: node '{step.node}' is {step.label}, which only Python runs; allowed: native steps"
                )
        if own.info.get("structures"):
            raise TargetError("a C library: found a graph's structure among the inputs; allowed: tensors")
        if not all(nondecreasing(b.nbytes) for b in own.buffers):
            raise TargetError("a C library: found memory that shrinks where a dimension grows; allowed: fixed sizes")
        if self._layout["fixed"] > MOST_CONTEXT:
            ends = ", ".join(f"{d} up to {d.high}" for d in own.dims)
            raise ParameterError(f"a C library of {ends} takes {self._layout['fixed']} bytes; allowed: smaller bounds")

    @property
    def machine(self) -> str:
        """The machine that it is for, such as ``x86_64``."""
        return machine_of(self.executable.target.partition("/")[0])

    @property
    def triple(self) -> str:
        """LLVM's name of machine and system."""
        return self.executable.target.partition("/")[0]

    @cached_property
    def system(self) -> System:
        """Its system."""
        return system_of(self.triple)

    @cached_property
    def _check(self) -> CpuCheck:
        return self.system.check(features_of(self.executable.target))

    @cached_property
    def _tables(self) -> StepTables:
        return StepTables(self.executable)

    @cached_property
    def _ends(self) -> dict[str, int]:
        """Dimensions at their upper ends, where memory is planned."""
        return upper_ends(self.executable.dims)

    @cached_property
    def _arena(self) -> tuple[list[int], int]:
        """The place of each buffer of the arena, and its bytes."""
        own = self.executable
        if not own.buffers:
            return [], own.arena_bytes
        plan = plan_at(own, self._ends)
        return [plan.offsets[b.name] for b in own.buffers], plan.arena_bytes

    @cached_property
    def _layout(self) -> dict[str, int]:
        """Where the parts of a context begin, in bytes, and how long they are."""
        own, tables = self.executable, self._tables
        calls_at = 8 * len(tables.args)
        patches_at = calls_at + 16 * len(tables.calls)
        words = patches_at + 24 * len(tables.patches)
        words_at = round_up(_IO + 8 * (tables.zero + 1), ALIGNMENT)
        state_at = round_up(words_at + words, ALIGNMENT)
        own_at = round_up(state_at + own.state_offsets[-1], ALIGNMENT)
        arena_at = round_up(own_at + 16 * len(own.outputs), PAGE)
        return {
            "bytes_at": _BYTES, "runtime_at": _RUNTIME, "io_at": _IO, "words_at": words_at, "words_bytes": words,
            "calls_at": calls_at, "first_call_at": calls_at + 16 * tables.joined_at,
            "patches_at": patches_at, "state_at": state_at, "own_at": own_at,
            "arena_at": arena_at, "fixed": round_up(arena_at + self._arena[1], PAGE),
            "stride": round_up(own.scratch_bytes, SCRATCH_STRIDE),
        }  # fmt: skip

    @cached_property
    def _functions(self) -> list[str]:
        """Functions of the driver that calls are made of."""
        return sorted({name for name, _ in self._tables.calls if name not in self.executable.code.symbols})

    def _words(self) -> tuple[bytes, list[tuple[int, int]]]:
        """The call tables as words, and which of them are relative to which base: parameters 0, state 1, the words 2,
        the code 3, then functions of the driver.
        """
        own, tables, at = self.executable, self._tables, self._layout
        args = tables.args.copy()
        relative = []
        for word, base in tables.relocations:
            number = {"param": 0, "state": 1}.get(base, 2)
            if base == "args":
                args[word] *= 8
            elif base == "calls":
                args[word] = at["calls_at"] + 16 * int(args[word])
            relative.append((word, number))
        calls = np.zeros((len(tables.calls), 2), np.uint64)
        for i, (name, first) in enumerate(tables.calls):
            kernel = name in own.code.symbols
            calls[i] = own.code.symbols[name] if kernel else 0, 8 * first
            word = at["calls_at"] // 8 + 2 * i
            relative += [(word, 3 if kernel else 4 + self._functions.index(name)), (word + 1, 2)]
        patches = tables.patches.copy()
        if len(patches):
            patches[:, 0] *= 8
            begins, _ = self._arena
            for i, (buffer, offset) in enumerate(tables.places.tolist()):
                patches[i, 2] = offset + (begins[buffer] if buffer >= 0 else 0)
        relative += [(at["patches_at"] // 8 + 3 * i, 2) for i in range(len(patches))]
        return args.tobytes() + calls.tobytes() + patches.tobytes(), relative

    @cached_property
    def object_files(self) -> dict[str, bytes]:
        """The objects by name: the functions, and what they read."""
        own, p = self.executable, self.name
        words, relative = self._words()
        pairs = b"".join(struct.pack("<II", *pair) for pair in relative)
        absolute = b"".join(struct.pack("<QQ", *pair) for pair in own.code.absolute)
        code = own.code.data + bytes(round_up(max(len(own.code.data), 1), PAGE) - len(own.code.data))
        sections = [
            DataSection(f"{p}_code", code, PAGE, is_code=True),
            DataSection(f"{p}_params", np.ascontiguousarray(own.params).data, PAGE),
            DataSection(f"{p}_states", own.state.tobytes() + own.initial.tobytes()),
            DataSection(f"{p}_words", words),
            DataSection(f"{p}_relocations", pairs),
            DataSection(f"{p}_absolute", absolute),
        ]
        sections += [DataSection(f"{p}_{name}", data, 16, is_code=True) for name, data in self._check.code.items()]
        text, features = self._ir(len(relative), len(code))
        return {
            "functions.o": driver_object(self.triple, text, features),
            "data.o": elf_object(self.machine, sections, self.system.elf_flags),
        }

    def archive(self) -> bytes:
        """A static library, as ``ar`` writes them."""
        objects = self.object_files
        functions = [f"{self.name}_{name}" for name in FUNCTIONS]
        data = [f"{self.name}_{name}" for name in _DATA + tuple(self._check.code)]
        return archive([("functions.o", objects["functions.o"], functions), ("data.o", objects["data.o"], data)])

    def _ir(self, relocations: int, code_bytes: int) -> tuple[str, str]:
        """LLVM IR of the functions, and the features that they are compiled with."""
        own, tables, at = self.executable, self._tables, self._layout
        inputs, outputs, dims = own.inputs, own.outputs, own.dims
        first_output = 1 + len(inputs)
        first_value = first_output + len(outputs)
        driver, features = driver_ir(self.triple)
        text = re.sub(r"^define (?!internal )", "define internal ", driver, flags=re.MULTILINE)
        sizes = SizeFunctions(dims)
        facts = self._check.text
        facts += within_ir(known_integers(own.info, len(inputs)), inputs, at["io_at"])
        facts += messages_ir({code: words for code, (_, words) in CODES.items()} | {len(CODES): "unknown code"})
        facts += sizes.table("@input.bytes", [_bytes(spec) for spec in inputs])
        facts += sizes.table("@output.bytes", [_bytes(spec) for spec in outputs])
        extents = [extent for spec in outputs for extent in spec.shape]
        facts += sizes.table("@output.extents", extents)
        ranks = [len(spec.shape) for spec in outputs]
        facts += _numbers("@output.axes", "i32", [(sum(ranks[:i]), rank) for i, rank in enumerate(ranks)])
        for role, specs in (("input", inputs), ("output", outputs)):
            items = ", ".join(f"i64 {numpy_dtype(spec.dtype).itemsize}" for spec in specs)
            facts += f"@{role}.units = internal constant [{len(specs)} x i64] [{items}]\n"
        facts += _numbers("@bounds", "i64", [(d.low, d.high) if d not in own.counted else (1, 0) for d in dims])
        facts += _numbers(
            "@state.places", "i64", [*zip(own.state_offsets, (s.nbytes for s in own.states), strict=False)]
        )
        facts += self._resize_ir(sizes)
        values = {
            **at, "p": self.name, "most_threads": MOST_THREADS, "spin": SPIN,
            "asked": int(own.info.get("threads") or 0),
            "absolutes": len(own.code.absolute), "code_bytes": code_bytes, "bases": 4 + len(self._functions),
            "state_bytes": own.state_offsets[-1], "relocations": relocations, "calls": len(self._tables.joined),
            "patches": len(tables.patches), "inputs": len(inputs), "outputs": len(outputs), "dims": len(dims),
            "states": len(own.states), "first_output": first_output, "first_value": first_value,
            "values_at": at["io_at"] + 8 * first_value, "messages": len(CODES),
            "store_bases": self._store_bases(), "store_hints": self._store_hints(first_value),
            "store_most": self._store_most(first_value), "given": len(inputs) + len(outputs),
            "store_counts": self._store_counts(first_value),
        }  # fmt: skip
        host = THREADS + CONTEXTS + VALUES + sizes.text + facts
        for name, value in values.items():
            host = host.replace(f"{{{name}}}", str(value))
        return text + with_fields(host), features

    def _store_bases(self) -> str:
        bases = ["%state.base", "%words.base", "%code.base", *(f"ptrtoint (ptr @{f} to i64)" for f in self._functions)]
        lines = []
        for number, base in enumerate(bases, 1):
            lines += [
                f"  %base.{number} = getelementptr i64, ptr %bases, i64 {number}",
                f"  store i64 {base}, ptr %base.{number}",
            ]
        return "\n".join(lines)

    def _store_hints(self, first: int) -> str:
        lines = []
        for i, d in enumerate(self.executable.dims):
            value = d.high if d in self.executable.counted else d.hint
            lines += [f"  %h.{i} = getelementptr i64, ptr %io, i64 {first + i}", f"  store i64 {value}, ptr %h.{i}"]
        return "\n".join(lines)

    def _store_most(self, first: int) -> str:
        """Before a call, the dimensions that it will count have their greatest values."""
        lines = []
        for i, d in enumerate(self.executable.dims):
            if d in self._tables.counts:
                lines += [
                    f"  %m.{i} = getelementptr i64, ptr %io, i64 {first + i}",
                    f"  store i64 {d.high}, ptr %m.{i}",
                ]
        return "\n".join(lines)

    def _store_counts(self, first: int) -> str:
        """The values of dimensions that a call has counted."""
        lines = []
        for i, d in enumerate(self.executable.dims):
            if d in self._tables.counts:
                place = self._layout["words_at"] + 8 * self._tables.counts[d]
                lines += [
                    f"  %c.at.{i} = getelementptr i8, ptr %m, i64 {place}", f"  %c.{i} = load i64, ptr %c.at.{i}",
                    f"  %c.to.{i} = getelementptr i64, ptr %io, i64 {first + i}", f"  store i64 %c.{i}, ptr %c.to.{i}",
                ]  # fmt: skip
        return "\n".join(lines)

    def _resize_ir(self, sizes: SizeFunctions) -> str:
        """``@lib.resize(ptr m)``: enters what dimensions decide into the patches."""
        lines = []
        for i, (patch, extent) in enumerate(self._tables.extents):
            place = self._layout["words_at"] + self._layout["patches_at"] + 24 * patch + 16
            lines += [
                f"  %n.{i} = call i64 {sizes.of(extent)}(ptr %values)",
                f"  %p.{i} = getelementptr i8, ptr %m, i64 {place}", f"  store i64 %n.{i}, ptr %p.{i}",
            ]  # fmt: skip
        body = "\n".join(["  %values = getelementptr i8, ptr %m, i64 {values_at}", *lines, "  ret void"])
        return f"define internal void @lib.resize(ptr %m) nounwind {{\n{body}\n}}\n"


def _bytes(spec: TensorSpec) -> object:
    """Bytes of a tensor, as a number or a size."""
    found: object = numpy_dtype(spec.dtype).itemsize
    for extent in spec.shape:
        found = extent * found  # type: ignore[operator]
    return found


def _numbers(name: str, kind: str, pairs: list[tuple[int, int]]) -> str:
    """A table of pairs of numbers."""
    items = ", ".join(f"[2 x {kind}] [{kind} {a}, {kind} {b}]" for a, b in pairs)
    return f"{name} = internal constant [{len(pairs)} x [2 x {kind}]] [{items}]\n"
