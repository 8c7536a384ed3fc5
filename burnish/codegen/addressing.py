"""Scopes and addresses: index arithmetic emitted at the outermost loop where its variables exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from math import gcd

from burnish.codegen.builder import IRBuilder, IRValue
from burnish.codegen.registers import RegisterSlots, SlotValues
from burnish.codegen.resolve import Resolver
from burnish.errors import ScheduleError
from burnish.loops.bounds import bounds
from burnish.loops.expr import COMPARISONS, INDEX, ITEM_BYTES, LOGICAL, Binary, Buffer, Cast, Const, Expr, Select, Var
from burnish.loops.sizes import Dim, Quotient, SymbolicSize, is_size, least
from burnish.loops.traverse import index_only
from burnish.machines.scopes import PIECE_BYTES, SWIZZLED_BYTES, swizzle


def argument_name(dim: str) -> str:
    """Name of a dimension's value among the variables of a function."""
    return f"size {dim}"


_NARROW = {"+": "add nuw nsw", "-": "sub nsw", "*": "mul nuw nsw", "//": "udiv", "%": "urem"}
_LAUNDER = "llvm.launder.invariant.group.p0"


@dataclass
class LoopScope:
    """One open loop: the instructions at the top of its body, and what they made available."""

    variables: set[str]
    counts: bool = False  # a loop from zero: its pointers may advance instead of being computed
    moving: list[tuple[str, str, int]] = field(default_factory=list)  # pointer, where it starts, bytes per iteration
    head: list[str] = field(default_factory=list)
    cache: dict[object, str] = field(default_factory=dict)


@dataclass
class BufferPlace:
    """Where a buffer lives: a base pointer, or register slots and what they hold (vector number -> SSA value).

    ``aligned``: the multiple of bytes at which the base is; 0: that of an element. ``swizzled``: see ``LoopScope``.
    ``origin``: where an entry point of a region finds it, as of ``entries.RegionBody``.
    """

    buffer: Buffer
    base: str = ""
    slots: RegisterSlots | None = None
    values: SlotValues = field(default_factory=SlotValues)
    aligned: int = 0
    swizzled: bool = False
    origin: tuple[str, int] | None = None

    def alignment(self, terms: Iterable[tuple[Expr, int]], const: int) -> int:
        """The multiple of bytes at which the element ``terms + const`` certainly is."""
        size = ITEM_BYTES[self.buffer.dtype]
        return gcd(self.aligned, const * size, *(c * size for _, c in terms)) if self.aligned else size


class Addressing(IRBuilder):
    """A function under construction: open scopes, variables, buffers.

    ``launders``: whether pointers that move with a loop are hidden from LLVM, which then does not know their memory.
    ``narrow``: whether index arithmetic is done in 32 bits where its numbers fit, on a machine of 32-bit registers.
    """

    launders = True
    narrow = False

    def __init__(self, resolver: Resolver, declarations: dict[str, str]) -> None:
        super().__init__()
        self.declarations = declarations
        self.resolver = resolver
        self.memory: dict[str, BufferPlace] = {}
        self.scopes = [LoopScope(set())]
        self.variables: dict[str, str] = {}
        self.local: dict[object, IRValue] = {}  # values available in the current basic block
        # Of the expression in work, what was made so far and may be asked for again, with the guards it was made under
        self.made: dict[Expr, list[tuple[frozenset[str], IRValue]]] | None = None
        self.loaded: set[str] = set()  # the buffers, and perhaps more, that there are such values of
        # What registers of an intrinsic's own hold in the basic block, the one used longest ago first
        self.held: dict[tuple[int, ...], dict[int, object]] = {}

    def label(self, name: str) -> None:
        """As :meth:`IRBuilder.label`; nothing is available in the new block."""
        super().label(name)
        self.forget()

    def forget(self) -> None:
        """Drops what is available in the current basic block: another begins."""
        self.local.clear()
        self.loaded.clear()
        self.held.clear()

    def hoist(self, depth: int, text: str) -> str:
        """Emits an instruction at the top of the body of loop ``depth`` (0: function entry); returns its name."""
        name = "%" + self.fresh("h")
        self.scopes[depth].head.append(f"  {name} = {text}")
        return name

    def depth_of(self, e: Expr) -> int:
        """The innermost loop whose variable ``e`` reads."""
        names, scopes = e.variables, self.scopes
        for depth in range(len(scopes) - 1, 0, -1):
            if not names.isdisjoint(scopes[depth].variables):
                return depth
        return 0

    def splat(self, v: IRValue, lanes: int) -> IRValue:
        """As :meth:`IRBuilder.splat`, once per value and basic block."""
        if v.lanes == lanes or v.const is not None:
            return super().splat(v, lanes)
        key = ("splat", v.text, lanes)
        if key not in self.local:
            self.local[key] = super().splat(v, lanes)
        return self.local[key]

    def once(self, key: tuple[object, ...], make: Callable[[], tuple[IRValue, ...]]) -> tuple[IRValue, ...]:
        """As :meth:`IRBuilder.once`, within a basic block; ``make`` may begin one."""
        if (*key, 0) not in self.local:
            self.local.update({(*key, i): value for i, value in enumerate(make())})
        return tuple(self.local[*key, i] for i in takewhile(lambda i: (*key, i) in self.local, count()))

    # --- index expressions --------------------------------------------------------------------------------------------

    def index(self, e: Expr) -> str:
        """A resolved int64 expression (no vector variable, no loads) as an operand computed as far out as possible."""
        if isinstance(e, Const):
            return str(int(e.value))
        if isinstance(e, Var):
            return self.variables[e.name]
        if is_size(e):
            return self._size(e)
        depth = self.depth_of(e)
        cache = self.scopes[depth].cache
        if e not in cache:
            cache[e] = self._index(e, depth)
        return cache[e]

    def _size(self, e: SymbolicSize) -> str:
        """A size, computed once, where the function begins."""
        cache = self.scopes[0].cache
        if e not in cache:
            total = str(e.constant)
            for monomial, factor in e.terms:
                product = str(factor)
                for atom in monomial:
                    product = self.hoist(0, f"mul nsw i64 {product}, {self._atom(atom)}")
                total = self.hoist(0, f"add nsw i64 {total}, {product}")
            cache[e] = total
        return cache[e]

    def _atom(self, atom: Dim | Quotient) -> str:
        """A dimension, which is an argument of the kernel, or a quotient."""
        if isinstance(atom, Dim):
            return self.variables[argument_name(atom.name)]
        key = SymbolicSize((((atom,), 1),))
        cache = self.scopes[0].cache
        if key not in cache:
            a, by = IRValue(self._size(atom.size), INDEX), atom.divisor
            divisor = IRValue(self._size(by), INDEX) if is_size(by) else self.const(by, INDEX)
            if atom.size.low >= 0 and least(by) > 0:
                cache[key] = self.hoist(0, f"udiv i64 {a.text}, {divisor.text}")
            else:
                cache[key] = self._hoisted(lambda: self.floor_divide("//", a, divisor), 0)
        return cache[key]

    def _index(self, e: Expr, depth: int) -> str:
        if isinstance(e, Select):
            return self.hoist(
                depth, f"select i1 {self._condition(e.cond, depth)}, i64 {self.index(e.a)}, i64 {self.index(e.b)}"
            )
        if isinstance(e, Cast):
            return self._hoisted(lambda: self.value(e), depth)
        if not isinstance(e, Binary):
            raise ScheduleError(f"index expression {e}: only arithmetic, select and casts are allowed in an index")
        a, b = self.index(e.a), self.index(e.b)
        if self.narrow and e.op in _NARROW and all(self._fits(part) for part in (e, e.a, e.b)):
            a, b = (x if isinstance(part, Const) else self.hoist(depth, f"trunc i64 {x} to i32")
                    for x, part in ((a, e.a), (b, e.b)))  # fmt: skip
            return self.hoist(depth, f"zext i32 {self.hoist(depth, f'{_NARROW[e.op]} i32 {a}, {b}')} to i64")
        match e.op:
            case "+" | "-" | "*":
                word = {"+": "add", "-": "sub", "*": "mul"}[e.op]
                return self.hoist(depth, f"{word} nsw i64 {a}, {b}")
            case "min" | "max":
                self.declare(f"llvm.s{e.op}.i64", "i64", ["i64", "i64"])
                return self.hoist(depth, f"call i64 @llvm.s{e.op}.i64(i64 {a}, i64 {b})")
            case "//" | "%":
                return self._floor(e, a, b, depth)
        raise ScheduleError(f"index expression {e}: operator '{e.op}' is not allowed in an index")

    def _fits(self, e: Expr) -> bool:
        """Whether an index is certainly no negative number, and one of 31 bits."""
        low, high = bounds(e, self.resolver.ranges)
        return low >= 0 and high < 1 << 31

    def _hoisted(self, make: Callable[[], IRValue], depth: int) -> str:
        """Hoists the value of ``make``, which loads nothing, to the top of the body of loop ``depth``; its name."""
        lines, local, made = self.lines, self.local, self.made
        self.lines, self.local, self.made = self.scopes[depth].head, {}, None
        text = make().text
        self.lines, self.local, self.made = lines, local, made
        return text

    def _floor(self, e: Binary, a: str, b: str, depth: int) -> str:
        """Floor division or remainder; unsigned when both are known not to be negative."""
        if bounds(e.b, self.resolver.ranges)[0] <= 0:
            return self._hoisted(lambda: self.floor_divide(e.op, IRValue(a, INDEX), IRValue(b, INDEX)), depth)
        low, high = bounds(e.a, self.resolver.ranges)
        if low >= 0:
            word = "udiv" if e.op == "//" else "urem"
            if self.launders or high >= 1 << 31 or bounds(e.b, self.resolver.ranges)[1] >= 1 << 31:
                return self.hoist(depth, f"{word} i64 {a}, {b}")
            narrow = [x if x.isdecimal() else self.hoist(depth, f"trunc i64 {x} to i32") for x in (a, b)]
            whole = self.hoist(depth, f"{word} i32 {', '.join(narrow)}")  # a GPU has no instruction for 64 bits
            return self.hoist(depth, f"zext i32 {whole} to i64")
        r = self.hoist(depth, f"srem i64 {a}, {b}")
        negative = self.hoist(depth, f"icmp slt i64 {r}, 0")
        if e.op == "//":
            q = self.hoist(depth, f"sdiv i64 {a}, {b}")
            less = self.hoist(depth, f"sext i1 {negative} to i64")
            return self.hoist(depth, f"add i64 {q}, {less}")
        fix = self.hoist(depth, f"select i1 {negative}, i64 {b}, i64 0")
        return self.hoist(depth, f"add i64 {r}, {fix}")

    def _condition(self, cond: Expr, depth: int) -> str:
        if isinstance(cond, Binary) and cond.op in LOGICAL:
            return self.hoist(depth, f"{cond.op} i1 {self._condition(cond.a, depth)}, {self._condition(cond.b, depth)}")
        if not (isinstance(cond, Binary) and cond.op in COMPARISONS):
            raise ScheduleError(f"index condition {cond}: only comparisons, 'and' and 'or' are allowed")
        word = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}[cond.op]
        return self.hoist(depth, f"icmp {word} i64 {self.index(cond.a)}, {self.index(cond.b)}")

    def condition(self, cond: Expr) -> str | None:
        """A resolved condition over indices alone, hoisted; None if it reads memory or the vector variable."""
        vector = self.resolver.vector
        if cond.buffers or (vector and vector[0] in cond.variables) or not index_only(cond):
            return None
        depth = self.depth_of(cond)
        cache = self.scopes[depth].cache
        if cond not in cache:
            cache[cond] = self._condition(cond, depth)
        return cache[cond]

    # --- pointers -----------------------------------------------------------------------------------------------------

    def pointer(self, memory: BufferPlace, terms: tuple[tuple[Expr, int], ...], const: int) -> str:
        """``base + terms + const`` (in elements); the variable part is built outermost loop first, and cached."""
        if memory.swizzled:
            return self._swizzled(memory, terms, const)
        size = ITEM_BYTES[memory.buffer.dtype]
        cache, key = self.scopes[-1].cache, (memory.base, terms)
        pointer = cache.get(key, "")
        if not pointer:
            pointer, uniform = self._variable_part(memory.base, terms, size)
            if uniform:
                cache[key] = pointer
        if const:
            pointer = self.result(f"getelementptr i8, ptr {pointer}, i64 {const * size}", INDEX).text
        return pointer

    def _swizzled(self, memory: BufferPlace, terms: tuple[tuple[Expr, int], ...], const: int) -> str:
        """As :meth:`pointer`, where pieces are exchanged within ``SWIZZLED_BYTES``: what is a multiple of that is added
        as it is, the rest is an offset of its own, computed as far out as possible.
        """
        size = ITEM_BYTES[memory.buffer.dtype]
        rest = tuple((atom, c) for atom, c in terms if c * size % SWIZZLED_BYTES)
        low = const * size % SWIZZLED_BYTES
        whole = tuple(term for term in terms if term not in rest)
        begin = self.pointer(replace(memory, swizzled=False), whole, const - low // size)
        if not rest:
            return begin if not low else self.result(f"getelementptr i8, ptr {begin}, i64 {swizzle(low)}", INDEX).text
        depth = max(self.depth_of(atom) for atom, _ in rest)
        cache, key = self.scopes[depth].cache, ("swizzled", size, rest, low)
        if key not in cache:
            offset = str(low)
            for atom, c in rest:
                if atom.buffers:
                    raise ScheduleError(f"buffer '{memory.buffer}': found a loaded index {atom} in a swizzled buffer")
                step = self.hoist(depth, f"mul nsw i64 {self.index(atom)}, {c * size}")
                offset = self.hoist(depth, f"add nsw i64 {offset}, {step}")
            shifted = self.hoist(depth, f"lshr i64 {offset}, 3")
            row = self.hoist(depth, f"and i64 {shifted}, {PIECE_BYTES * 7}")
            cache[key] = self.hoist(depth, f"xor i64 {offset}, {row}")
        return self.result(f"getelementptr i8, ptr {begin}, i64 {cache[key]}", INDEX).text

    def _variable_part(self, pointer: str, terms: tuple[tuple[Expr, int], ...], size: int) -> tuple[str, bool]:
        """``pointer`` plus the terms, and whether that is the same in all of the innermost loop's body."""
        by_depth: dict[int, list[tuple[Expr, int]]] = {}
        gathered: list[tuple[Expr, int]] = []
        for atom, c in terms:
            if atom.buffers:
                gathered.append((atom, c))
            else:
                by_depth.setdefault(self.depth_of(atom), []).append((atom, c))
        for depth in sorted(by_depth):
            group = tuple(by_depth[depth])
            if len(group) > 1:
                group = tuple(sorted(group, key=lambda t: str(t[0])))
            key = (pointer, group)
            cache = self.scopes[depth].cache
            if key not in cache:
                cache[key] = self._advance(pointer, group, depth, size)
            pointer = cache[key]
        for atom, c in gathered:
            offset_value = self.binary("*", self.value(atom), self.const(c * size, INDEX))
            pointer = self.result(f"getelementptr i8, ptr {pointer}, i64 {offset_value.text}", INDEX).text
        return pointer, not gathered

    def _advance(self, pointer: str, group: tuple[tuple[Expr, int], ...], depth: int, size: int) -> str:
        """``pointer`` plus the terms that vary with loop ``depth``: a pointer that moves with the loop where it can.

        ``launder`` hides where the pointer comes from. Otherwise LLVM's loop strength reduction gives each of a tile's
        dozen constant offsets a register of its own, and spills them. No instruction is left of it.
        """
        scope = self.scopes[depth]
        if len(group) == 1 and scope.counts and isinstance(group[0][0], Var) and group[0][0].name in scope.variables:
            moved = "%" + self.fresh("m")
            scope.moving.append((moved, pointer, group[0][1] * size))
            pointer = moved
        else:
            for atom, c in group:
                offset = self.hoist(depth, f"mul nsw i64 {self.index(atom)}, {c * size}")
                pointer = self.hoist(depth, f"getelementptr i8, ptr {pointer}, i64 {offset}")
        if not depth or not self.launders:
            return pointer
        self.declare(_LAUNDER, "ptr", ["ptr"])
        return self.hoist(depth, f"call ptr @{_LAUNDER}(ptr {pointer})")

    def value(self, e: Expr) -> IRValue:
        """The value of an expression; defined by the layer above."""
        raise NotImplementedError
