"""Loop program to LLVM IR text: the one emitter; what differs between machines is their dialect.

Unrolled loops are unrolled here, the vectorized loop becomes the lanes of explicit vectors, register buffers become
SSA values, and a parallel loop becomes a function handed to the thread pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from burnish.codegen.access import ZEROS
from burnish.codegen.addressing import BufferPlace, LoopScope, argument_name
from burnish.codegen.builder import IRValue
from burnish.codegen.entries import RegionBody, region_entries, region_loops
from burnish.codegen.legal import refuse_unlowered
from burnish.codegen.registers import BranchValues, LoopValues, plan_slots
from burnish.codegen.resolve import Address, Resolver
from burnish.codegen.values import ValueEmitter
from burnish.errors import ScheduleError
from burnish.loops.expr import (
    ALIGNMENT,
    BYTE_DOT,
    FLOATS,
    INDEX,
    SWIZZLED,
    WORD_PRODUCTS,
    Binary,
    Buffer,
    Call,
    Const,
    Expr,
    Literal,
    Load,
)
from burnish.loops.loaded import LoadedExtent, is_loaded
from burnish.loops.program import Alloc, For, If, Intrinsic, LoopProgram, Seq, Stmt, Store, walk_stmt
from burnish.loops.sizes import SymbolicSize, is_size
from burnish.loops.specialize import dims_of_program
from burnish.machines.nvptx.tensor_copies import TensorView
from burnish.machines.scopes import MemoryScope as MemoryScope
from burnish.machines.target import Target
from burnish.machines.unit import MatrixUnit

STACK_LIMIT = 16 << 10  # bytes: larger thread-private buffers live in the scratch area
ROLLED = '!9000 = distinct !{!9000, !9001}\n!9001 = !{!"llvm.loop.unroll.disable"}'
HIGH_BITS = 0x80808080  # of the bytes of a word
FOUR = '!9002 = distinct !{!9002, !9003}\n!9003 = !{!"llvm.loop.unroll.count", i32 4}'
MOST_STATEMENTS = 1 << 16  # of one kernel, unrolled loops counted: minutes of LLVM's time


@dataclass(frozen=True)
class KernelCode:
    """LLVM IR text of one kernel, and the bytes of scratch it needs per thread.

    ``dims``: the dimensions whose values it takes, as ``i64`` behind the addresses of its buffers. ``regions``: the
    parallel loops that it consists of, if it is nothing else, each with an entry point (:mod:`codegen.entries`).
    """

    text: str
    scratch_bytes: int
    dims: tuple[str, ...] = ()
    regions: tuple[For, ...] = ()


@dataclass
class KernelModule:
    """LLVM module of one kernel: its functions, declarations, constants of matrix units, bytes of scratch."""

    name: str
    target: Target
    functions: list[str] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    units: dict[str, MatrixUnit] = field(default_factory=dict)
    scratch: int = 0
    statements: int = 0

    def text(self) -> str:
        """LLVM IR of the whole module: constants, declarations, definitions."""
        zeros = f"@zeros = private unnamed_addr constant [{ZEROS} x i8] zeroinitializer, align {ALIGNMENT}"
        constants = [unit.constants for unit in self.units.values()]
        parts = [zeros, *constants, *self.declarations.values(), *self.functions]
        return "\n".join([*parts, f"attributes #0 = {{ {self.target.machine.dialect.attributes} }}", ""])


def emit(program: LoopProgram, target: Target) -> KernelCode:
    """The kernel ``void name(ptr args, ptr rt)`` as a module of its own.

    Raises ScheduleError, by name, for loop kinds, scopes and intrinsics that ``target`` has no code for.
    """
    refuse_unlowered(program, target)
    module = KernelModule(program.name, target)
    function = FunctionEmitter(module, Resolver())
    for i, buffer in enumerate(program.params):
        slot = function.hoist(0, f"getelementptr ptr, ptr %args, i64 {i}")
        base = function.hoist(0, f"load ptr, ptr {slot}")
        function.memory[buffer.name] = BufferPlace(buffer, base, origin=("args", i))
    dims = [d.name for d in dims_of_program(program)]
    for i, name in enumerate(dims, len(program.params)):
        slot = function.hoist(0, f"getelementptr i64, ptr %args, i64 {i}")
        function.variables[argument_name(name)] = function.hoist(0, f"load i64, ptr {slot}")
    function.statement(program.body)
    convention = f"{target.machine.dialect.kernel} void".lstrip()
    signature = f"define {convention} @{program.name}(ptr noalias %args, ptr noalias %rt)"
    module.functions.append(function.finish(signature))
    shared = target.machine.dialect.grid is None and target.cores > 1
    loops = region_loops(program.body) if shared else []
    entries = region_entries(program.name, function.regions, "#0") if loops else []
    module.functions += entries
    return KernelCode(module.text(), module.scratch, tuple(dims), tuple(loops if entries else ()))


class FunctionEmitter(ValueEmitter):
    """Emits one function: the kernel itself, or the body of a parallel loop."""

    def __init__(self, module: KernelModule, resolver: Resolver, rt: str = "%rt", scratch_used: int = 0) -> None:
        super().__init__(resolver, module.declarations)
        self.module = module
        self.target, dialect = module.target, module.target.machine.dialect
        self.native_bfloat16 = self.target.has(dialect.rounds_bfloat16)
        self.saturating_casts = dialect.saturates
        self.byte_dots = dict(dialect.byte_dots) if self.target.has(dialect.dots_bytes) else {}
        self.low_byte_dots = {lanes: names for need, lanes, names in dialect.low_byte_dots if self.target.has(need)}
        self.masks = self.target.has(dialect.masks)
        self.element_bytes = dialect.element_bytes
        self.launders, self.narrow = dialect.grid is None, dialect.grid is not None
        self.rt = rt
        self.scratch_used = scratch_used
        self.inside_parallel = False
        self.tensor_views: list[TensorView] = []
        self.regions: list[RegionBody] = []  # the parallel loops so far
        self.units: dict[str, MatrixUnit] = {}  # those whose tiles the function holds
        self.entered: list[For] = []  # the loops that may have no iteration, of which it is known here that they have

    def finish(self, signature: str) -> str:
        """The whole function: entry head, then the body, between what a matrix unit needs around its use."""
        before, after = [], []
        for unit in self.units.values():
            for name, result, params in unit.declarations:
                self.declare(name, result, params)
            self.module.units[unit.name] = unit
            before += [f"  {line}" for line in unit.enter]
            after += [f"  {line}" for line in unit.leave]
        body = [*self.scopes[0].head, *before, *self.lines, *after, "  ret void", "}"]
        return "\n".join([f"{signature} #0 {{", "entry:", *body])

    def statement(self, s: Stmt) -> None:
        """Emits a statement and all statements in it."""
        match s:
            case Seq(stmts):
                for inner in stmts:
                    self.statement(inner)
            case For():
                self._for(s)
            case Store():
                self._store(s)
            case If(cond, body):
                self._if(cond, body)
            case Alloc():
                self._alloc(s)
            case Intrinsic():
                self._intrinsic(s)

    def _intrinsic(self, s: Intrinsic) -> None:
        machine = self.target.machine
        known = machine.named_intrinsics.get(s.name)
        code = machine.dialect.hints.get(s.name) or (known.code if known else None)
        assert code is not None, f"intrinsic '{s.name}' has no code, which is refused before"
        code(self, s)

    # --- loops --------------------------------------------------------------------------------------------------------

    def _for(self, loop: For) -> None:
        r = self.resolver
        if r.ranges.get(loop.var, loop.extent) != loop.extent:
            raise ScheduleError(f"loop '{loop.var}' occurs with extents {r.ranges[loop.var]} and {loop.extent}")
        r.ranges[loop.var] = loop.extent
        code = self.target.machine.dialect.loops[loop.kind]
        if code is not None:
            code(self, loop)
        elif is_size(loop.extent):
            self._symbolic(loop, loop.extent)
        elif is_loaded(loop.extent):
            self._between(loop, loop.extent)
        elif loop.kind == "unroll" or loop.extent == 1:
            for value in range(loop.extent):
                r.fixed[loop.var] = value
                self.statement(loop.body)
            r.fixed.pop(loop.var, None)
        elif loop.kind == "vectorize":
            if r.vector is not None:
                raise ScheduleError(f"loop '{loop.var}' is vectorized inside vectorized loop '{r.vector[0]}'")
            r.vector = (loop.var, loop.extent)
            self.statement(loop.body)
            r.vector = None
        elif loop.kind == "parallel" and not self.inside_parallel:
            self._parallel(loop, str(loop.extent))
        elif loop.extent > 0:
            self._serial(loop.var, "0", str(loop.extent), loop.body)

    def _symbolic(self, loop: For, extent: SymbolicSize) -> None:
        """A loop of a symbolic extent; one that may have no iteration is under a condition."""
        if loop.kind not in ("serial", "parallel"):
            raise ScheduleError(f"loop '{loop.var}' is {loop.kind}, found {extent} iterations; allowed: a number")
        if extent.low < 1 and loop not in self.entered:
            self.entered.append(loop)
            self._if(Binary(">=", extent, Const(1, INDEX)), loop)
            self.entered.pop()
        elif loop.kind == "parallel" and not self.inside_parallel:
            self._parallel(loop, self.index(extent))
        else:
            self._serial(loop.var, "0", self.index(extent), loop.body)

    def _between(self, loop: For, extent: LoadedExtent) -> None:
        """A loop from one position to another, which are read where it begins; there may be none between them."""
        if loop.kind != "serial":
            raise ScheduleError(f"loop '{loop.var}' is {loop.kind}, found {extent} iterations; allowed: a number")
        begin, end = (self.value(self.resolver.expr(e)) for e in (extent.begin, extent.end))
        some = self.compare("<", begin, end)
        self._branch(some, loop.body, lambda: self._serial(loop.var, begin.text, end.text, loop.body))

    def _serial(self, var: str, begin: str, end: str, body: Stmt) -> None:
        n = self.fresh()
        head, entry = f"loop{n}", self.block
        self.emit(f"br label %{head}")
        outer, self.lines = self.lines, []
        self.scopes.append(LoopScope({var}, counts=begin == "0"))
        self.variables[var] = f"%i{n}"
        self.forget()
        self.block = head
        carried = [LoopValues(memory.values, self.fresh) for memory in self._slots_written(body)]
        for memory, values in zip(self._slots_written(body), carried, strict=True):
            memory.values = values
        self.statement(body)
        for memory, values in zip(self._slots_written(body), carried, strict=True):
            memory.values = values.leave()
        scope, inner, self.lines = self.scopes.pop(), self.lines, outer
        del self.variables[var]
        self.lines += [
            f"{head}:",
            f"  %i{n} = phi i64 [ {begin}, %{entry} ], [ %n{n}, %{self.block} ]",
            *(f"  {p} = phi ptr [ {start}, %{entry} ], [ {p}n, %{self.block} ]" for p, start, _ in scope.moving),
            *(phi for values in carried for phi in values.phis(entry, self.block)),
            *scope.head,
            *inner,
            *(f"  {p}n = getelementptr i8, ptr {p}, i64 {step}" for p, _, step in scope.moving),
            f"  %n{n} = add nuw nsw i64 %i{n}, 1",
            f"  %c{n} = icmp slt i64 %n{n}, {end}",
            f"  br i1 %c{n}, label %{head}, label %exit{n}{self._rolled(body)}",
        ]
        self.label(f"exit{n}")

    def _rolled(self, body: Stmt) -> str:
        """Metadata of a loop that is not to be written out, since its body has intrinsics that fill registers; of one
        that copies elements beside these, four times: so many are on their way at a time.
        """
        grid = self.target.machine.dialect.grid
        if grid is None or not grid.rolled:
            return ""
        inside = [*walk_stmt(body)]
        if any(isinstance(s, Intrinsic) and s.name in grid.rolled for s in inside):
            self.define("!rolled", ROLLED)
            return ", !llvm.loop !9000"
        copies = any(isinstance(s, Store) and s.buffer.scope == SWIZZLED for s in inside)
        if not copies or any(isinstance(s, For) and s.kind == "async" for s in inside):
            return ""
        self.define("!four", FOUR)
        return ", !llvm.loop !9002"

    def _slots_written(self, body: Stmt) -> list[BufferPlace]:
        """Register slots, some of which ``body`` writes."""
        return [m for m in self.memory.values() if m.slots is not None and m.buffer.name in body.writes]

    def _parallel(self, loop: For, extent: str) -> None:
        """``body(ctx, begin, end, thread)``; ctx holds rt, and the buffers and variables of the code around."""
        buffers = [m for m in self.memory.values() if m.slots is None]
        variables = list(self.variables.items())
        captured = [("ptr", self.rt), *(("ptr", m.base) for m in buffers), *(("i64", text) for _, text in variables)]
        ctx = self.hoist(0, f"alloca [{len(captured)} x i64], align 8")
        body = FunctionEmitter(self.module, self.resolver, scratch_used=self.scratch_used)
        inner = []
        for i, (kind, text) in enumerate(captured):
            slot = self.result(f"getelementptr i64, ptr {ctx}, i64 {i}", INDEX).text
            self.emit(f"store {kind} {text}, ptr {slot}")
            slot = body.hoist(0, f"getelementptr i64, ptr %ctx, i64 {i}")
            inner.append(body.hoist(0, f"load {kind}, ptr {slot}"))
        body.rt = inner[0]
        body.inside_parallel = True
        body.memory = {m.buffer.name: BufferPlace(m.buffer, base) for m, base in zip(buffers, inner[1:], strict=False)}
        body.variables = {v: t for (v, _), t in zip(variables, inner[1 + len(buffers) :], strict=True)}
        body.emit("%some = icmp slt i64 %begin, %end")
        body.emit("br i1 %some, label %start, label %done")
        body.label("start")
        body._serial(loop.var, "%begin", "%end", loop.body)
        body.emit("br label %done")
        body.label("done")
        name = f"{self.module.name}.parallel{len(self.module.functions)}"
        signature = f"define internal void @{name}(ptr noalias %ctx, i64 %begin, i64 %end, i64 %thread)"
        self.module.functions.append(body.finish(signature))
        self.regions.append(RegionBody(name, (*(m.origin for m in buffers), *(None for _ in variables))))
        run = self.result(f"load ptr, ptr {self.rt}", INDEX).text
        slot = self.result(f"getelementptr ptr, ptr {self.rt}, i64 1", INDEX).text
        pool = self.result(f"load ptr, ptr {slot}", INDEX).text
        self.emit(f"call void {run}(ptr {pool}, ptr @{name}, ptr {ctx}, i64 {extent})")
        self.forget()

    def _if(self, cond: Expr, body: Stmt) -> None:
        test = self.value(self.resolver.expr(cond))
        if test.const is not None:
            if test.const:
                self.statement(body)
            return
        if test.lanes > 1:
            self.guards.append(test)
            self.statement(body)
            self.guards.pop()
            return
        if cond.buffers:
            test = self.frozen(test)  # no branch may depend on a register that nobody has written
        self._branch(test, body, lambda: self.statement(body))

    def _branch(self, test: IRValue, body: Stmt, emit_body: Callable[[], None]) -> None:
        """The code of ``body``, which ``emit_body`` emits, where ``test`` holds."""
        n, before = self.fresh(), self.block
        self.emit(f"br i1 {test.text}, label %then{n}, label %endif{n}")
        self.label(f"then{n}")
        changed = [BranchValues(memory.values) for memory in self._slots_written(body)]
        for memory, values in zip(self._slots_written(body), changed, strict=True):
            memory.values = values
        emit_body()
        taken = self.block
        self.emit(f"br label %endif{n}")
        self.label(f"endif{n}")
        for memory, values in zip(self._slots_written(body), changed, strict=True):
            memory.values = values.outer
            self.lines += values.merge(before, taken, self.fresh)

    # --- storage ------------------------------------------------------------------------------------------------------

    def _alloc(self, s: Alloc) -> None:
        buffer, used = s.buffer, self.scratch_used
        scope = self.target.machine.named_scopes[buffer.scope]
        slots = plan_slots(s) if scope.registers else None
        unit = self._unit(s) if scope.registers and slots is None else None
        if slots is not None:
            self.memory[buffer.name] = BufferPlace(buffer, slots=slots)
        elif unit is not None:
            self.units[unit.name] = unit
            self.memory[buffer.name] = BufferPlace(buffer)
        elif scope.place is not None:
            place = self._placed(scope, buffer)
            self.memory[buffer.name] = BufferPlace(buffer, place, aligned=scope.aligned, swizzled=scope.swizzled)
        elif buffer.nbytes <= STACK_LIMIT:
            base = self.hoist(0, f"alloca [{max(1, buffer.nbytes)} x i8], align {ALIGNMENT}")
            self.memory[buffer.name] = BufferPlace(buffer, base)
        else:
            origin = "scratch", self.scratch_used
            self.memory[buffer.name] = BufferPlace(buffer, self._scratch(buffer), origin=origin)
        self.statement(s.body)
        del self.memory[buffer.name]
        self.scratch_used = used

    def _unit(self, alloc: Alloc) -> MatrixUnit | None:
        """The matrix unit whose tiles a register buffer is: the one that an intrinsic about it belongs to."""
        used = {
            s.name
            for s in walk_stmt(alloc.body)
            if isinstance(s, Intrinsic) and any(o.buffer.name == alloc.buffer.name for o in s.operands)
        }
        return next((u for u in self.target.machine.units if any(t.name in used for t in u.intrinsics)), None)

    def _placed(self, scope: MemoryScope, buffer: Buffer) -> str:
        """The address of a buffer in memory of the machine's own, as a generic pointer."""
        assert scope.place is not None
        address = scope.place(self, buffer)
        if not scope.address_space:
            return address
        return self.hoist(0, f"addrspacecast ptr addrspace({scope.address_space}) {address} to ptr")

    def _scratch(self, buffer: Buffer) -> str:
        """A piece of this thread's scratch area, free again at the end of the Alloc."""
        offset = self.scratch_used
        self.scratch_used += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
        self.module.scratch = max(self.module.scratch, self.scratch_used)
        cache = self.scopes[0].cache
        if "scratch" not in cache:
            slot = self.hoist(0, f"getelementptr i64, ptr {self.rt}, i64 2")
            area = self.hoist(0, f"load ptr, ptr {slot}")
            if self.inside_parallel:
                slot = self.hoist(0, f"getelementptr i64, ptr {self.rt}, i64 3")
                step = self.hoist(0, f"load i64, ptr {slot}")
                shift = self.hoist(0, f"mul i64 {step}, %thread")
                area = self.hoist(0, f"getelementptr i8, ptr {area}, i64 {shift}")
            cache["scratch"] = area
        return self.hoist(0, f"getelementptr i8, ptr {cache['scratch']}, i64 {offset}")

    def _store(self, s: Store) -> None:
        self.module.statements += 1
        if self.module.statements > MOST_STATEMENTS:
            raise ScheduleError(f"kernel '{self.module.name}' unrolls more than {MOST_STATEMENTS} statements")
        target = Load(s.buffer, s.indices)
        address = self.resolver.address(target)
        if s.reduce is None:
            self.write(target, address, self.whole_value(s.value))
            return
        lanes = self.lanes
        if lanes > 1 and address.lane_step == 0:
            total = self.horizontal(s.reduce, self.splat(self.whole_value(s.value), lanes))
            self.write(target, address, self._combine(s.reduce, self.read_at(target, address), total), kept=True)
            return
        if address.lane_step is None:  # lanes may share an element
            self.combine_lanes(target, address, self.whole_value(s.value), partial(self._combine, s.reduce))
            return
        result: IRValue | None = None
        if s.reduce == "sum" and isinstance(s.value, Binary) and s.value.op == "*" and s.value.dtype in FLOATS:
            result = self._multiply_add(s.value, target, address)
        elif s.reduce == "sum" and isinstance(s.value, Call) and s.value.fn in WORD_PRODUCTS:
            result = self._add_word_product(s.value, target, address)
        else:
            value = self.whole_value(s.value)
            if s.reduce != "sum" or value.const != 0:
                result = self._combine(s.reduce, self.read_at(target, address), value)
        if result is not None:
            self.write(target, address, result)

    def _add_word_product(self, e: Call, target: Load, address: Address) -> IRValue:
        """``target`` plus the product of two words; a padded word is zero."""
        values, masks = [], []
        for word in e.args:
            found = self.padded(word)
            values.append(self.value(word) if found is None else found[0])
            masks += [found[1]] if found is not None else []
        old = self.splat(self.read_at(target, address), self.lanes)
        left, right = (self.splat(v, self.lanes) for v in values)
        if e.fn == BYTE_DOT:
            result = self.byte_dot(left, right, old, _has_low_bytes(e.args[0]))
        else:
            result = self.bit_counts(left, right, old)
        for mask in masks:
            result = self.select(mask, result, old)
        return result

    def _combine(self, kind: str, old: IRValue, new: IRValue) -> IRValue:
        return self.binary({"sum": "+", "prod": "*"}.get(kind, kind), old, new)

    def _is_no_term(self, factor: Expr) -> bool:
        """Whether a factor is the zero of a matrix that the definition is made of."""
        chosen = self.resolver.chosen(factor)
        return isinstance(chosen, Literal) and chosen.value == 0

    def _multiply_add(self, product: Binary, target: Load, address: Address) -> IRValue | None:
        """``target + a * b``; None when a factor makes it no term, a plain sum when one is one."""
        for factor, other in ((product.a, product.b), (product.b, product.a)):
            padded = self.padded(factor)
            if padded is not None:
                number, mask = padded
                old = self.splat(self.read_at(target, address), self.lanes)
                return self.select(mask, self.fma(number, self.value(other), old), old)
        if any(self._is_no_term(factor) for factor in (product.a, product.b)):
            return None
        a, b = self.value(product.a), self.value(product.b)
        for x, y in ((a, b), (b, a)):
            if x.const == 1:
                return self.binary("+", self.read_at(target, address), y)
            if x.const == -1:
                return self.binary("-", self.read_at(target, address), y)
        return self.fma(a, b, self.read_at(target, address))


def _has_low_bytes(word: Expr) -> bool:
    """Whether all four bytes of an int32 are known to be below 128."""
    known = word.args if isinstance(word, Call) and word.fn == "bitand" else (word,)
    return any(isinstance(e, Const) and not e.value & HIGH_BITS for e in known)  # type: ignore[operator]
