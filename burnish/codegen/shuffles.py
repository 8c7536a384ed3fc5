"""Vectors whose lanes are apart in memory, from whole vectors and shuffles: transposed blocks, lanes of few vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from burnish.codegen.addressing import Addressing, BufferPlace
from burnish.codegen.builder import IRValue, mangle, vector_type
from burnish.codegen.resolve import Address
from burnish.loops.bounds import bounds, linear_bounds, plus
from burnish.loops.expr import ITEM_BYTES, Expr, Load
from burnish.loops.linear import to_linear
from burnish.loops.sizes import is_size

MOST_APART = 4  # elements from lane to lane: of more, most of what lies between would be read for nothing
UNIT_BYTES = 16  # vector units shuffle fastest within so many, or exchange them whole

Terms = tuple[tuple[Expr, int], ...]
Masks = tuple[tuple[int, ...], tuple[int, ...]]


class Shuffles(Addressing):
    """Adds strided and irregular vector loads."""

    @property
    def lanes(self) -> int:
        """Lanes of the vector that the current code computes; 1 outside of vectors."""
        return self.resolver.vector[1] if self.resolver.vector else 1

    def transposed(
        self, memory: BufferPlace, access: Load, address: Address, lanes: int, guards: tuple[IRValue, ...]
    ) -> IRValue | None:
        """A strided vector that is a column of a square block whose rows are contiguous; None where it is not.

        Rows are whole aligned vectors, or the columns are the iterations of an unrolled loop, each one element further:
        as many as the vector has lanes, or at least a quarter, where no more of a row is read. The block is loaded and
        transposed once. ``guards``: conditions (of all lanes, or of each) under which an element is inside; one element
        of an aligned vector stands for all.
        """
        if address.lane_step is None or lanes & (lanes - 1) or access.dtype == "bool":
            return None
        if address.lane_step % lanes == 0 and self._aligned(memory, address.terms, lanes):
            column = address.const % lanes
            return self._column(memory, address._replace(const=address.const - column), column, lanes, guards)
        if guards or any(atom.buffers for atom, _ in address.terms):
            return None
        fixed = self.resolver.fixed
        for name, column in list(fixed.items()):
            columns = self.resolver.ranges.get(name, 0)
            if not lanes <= 4 * columns <= 4 * lanes:
                continue
            fixed[name] = 0
            first, inside = self.resolver.address(access), self.resolver.safe(access, name)
            fixed[name] = columns - 1
            last, inside = self.resolver.address(access), inside and self.resolver.safe(access, name)
            fixed[name] = column
            if not inside:  # other iterations may be guarded where this one is not
                continue
            apart = (first.terms, first.lane_step) == (last.terms, last.lane_step) == (address.terms, address.lane_step)
            if apart and address.const - first.const == column and last.const - first.const == columns - 1:
                return self._column(memory, first, column, lanes, (), columns)
        return None

    def element(self, memory: BufferPlace, access: Load, address: Address, guards: Sequence[IRValue]) -> IRValue | None:
        """A scalar for all lanes as the element of a vector, where the target multiplies by one; None where neighbours
        may not be read: these fill an aligned vector, or are those of other iterations of an unrolled loop.
        """
        lanes = self.element_bytes // ITEM_BYTES[access.dtype]
        if lanes < 2 or access.dtype == "bool" or any(atom.buffers for atom, _ in address.terms):
            return None
        place: int | None = address.const % lanes
        if not self._aligned(memory, address.terms, lanes):
            place = None if guards else self._beside(access, address, lanes)
        if place is None:
            return None
        vector = self._vector(memory, address.terms, address.const - place, lanes, guards)
        scalar = self.result(f"extractelement {vector.type} {vector.text}, i64 {place}", vector.dtype)
        own, picks = f"{vector.type} {vector.text}", ", ".join([f"i32 {place}"] * self.lanes)
        shared = self.result(
            f"shufflevector {own}, {vector.type} poison, <{self.lanes} x i32> <{picks}>", vector.dtype, self.lanes
        )
        self.local["splat", scalar.text, self.lanes] = shared
        return scalar

    def _beside(self, access: Load, address: Address, lanes: int) -> int | None:
        """The place of an element in a vector from one element to another that iterations of an unrolled loop read in
        any case; None where there is no such vector.
        """
        for name, number in list(self.resolver.fixed.items()):
            first = last = number
            consts = {number: address.const}
            for step in (-1, 1):
                at = number + step
                while (
                    0 <= at < self.resolver.ranges.get(name, 0)
                    and (const := self._inside_at(access, address, name, at)) is not None
                ):
                    consts[at] = const
                    first, last, at = min(first, at), max(last, at), at + step
            apart = consts[last] - consts[first]
            if last == first or apart % (last - first) or not 0 < apart // (last - first) < lanes:
                continue
            begin = consts[first] + (address.const - consts[first]) // lanes * lanes
            if begin + lanes - 1 <= consts[last]:
                return address.const - begin
        return None

    def _inside_at(self, access: Load, address: Address, name: str, number: int) -> int | None:
        """Where an access is in another iteration of an unrolled loop; None if that may be outside of the buffer."""
        fixed = self.resolver.fixed
        own, fixed[name] = fixed[name], number
        there, safe = self.resolver.address(access), self.resolver.safe(access, name)
        fixed[name] = own
        alike = there.terms == address.terms and there.lane_step == 0
        return there.const if safe and alike else None

    def _column(
        self,
        memory: BufferPlace,
        first: Address,
        column: int,
        lanes: int,
        guards: tuple[IRValue, ...],
        columns: int | None = None,
    ) -> IRValue:
        """A column of the block of ``lanes`` rows at ``first``; of a row whose guards fail, zero.

        ``columns``: how many of a row are read, if not ``lanes``.
        """
        block = (memory.buffer.name, "block", first, lanes, columns, *(g.text for g in guards))
        if (*block, column) not in self.local:
            assert first.lane_step is not None
            starts = [first.const + lane * first.lane_step for lane in range(lanes)]
            rows = [
                self._vector(memory, first.terms, start, lanes, [self.lane(g, row) for g in guards], columns)
                for row, start in enumerate(starts)
            ]
            self.local.update({(*block, c): value for c, value in enumerate(self.transpose(rows))})
            self.loaded.add(memory.buffer.name)
        return self.local[*block, column]

    def transpose(self, rows: Sequence[IRValue]) -> list[IRValue]:
        """The columns of a square block, by shuffles that vector units have as instructions.

        Within units of 16 bytes elements are interleaved, then pairs of them, ...; whole units are then exchanged
        between vectors. There is no shorter network; fences keep LLVM from looking for one, which takes it longer than
        all the rest.
        """
        block, n = list(rows), len(rows)
        unit = min(n, UNIT_BYTES // ITEM_BYTES[rows[0].dtype])
        for step in (1 << i for i in range(n.bit_length() - 1)):
            if step > 1:
                block = [self.fence(row) for row in block]
            low, high = _interleaving(n, unit, step) if step < unit else _exchange(n, unit)
            for i in (i for i in range(n) if not i & step):
                a, b = block[i], block[i + step]
                block[i], block[i + step] = self.shuffle(a, b, low), self.shuffle(a, b, high)
        digits = unit.bit_length() - 1  # interleaving leaves a unit's columns in the order of their reversed digits
        return [block[c - c % unit + _reversed_digits(c % unit, digits)] for c in range(n)]

    def fence(self, v: IRValue) -> IRValue:
        """The same value, behind which optimizations do not look; of other formats than float32 and float64 ``v``."""
        if v.dtype not in ("float32", "float64"):
            return v
        return self.intrinsic(f"llvm.arithmetic.fence.{mangle(v.dtype, v.lanes)}", v.dtype, v.lanes, (v,))

    def picked(self, memory: BufferPlace, places: Sequence[Address], guards: Sequence[IRValue]) -> IRValue | None:
        """The elements at ``places``, one a lane, if these are in few vectors at constant distances; else None.

        Whole vectors are read at multiples of their length, so that each of them is inside the buffer if one of its
        elements is. ``guards``: conditions (of all lanes, or of each) under which an element is inside.
        """
        lanes, terms = len(places), places[0].terms
        if memory.buffer.dtype == "bool" or any(p.terms != terms for p in places):
            return None
        if not self._aligned(memory, terms, lanes):
            return None
        vectors = sorted({p.const // lanes for p in places})
        if len(vectors) > 3 * lanes // 4:
            return None
        result: IRValue | None = None
        for number in vectors:
            mine = [p.const // lanes == number for p in places]
            here = [self._any_of(g, mine) for g in guards]
            vector = self._vector(memory, terms, number * lanes, lanes, here)
            own = [lanes + p.const % lanes if m else lane for lane, (p, m) in enumerate(zip(places, mine, strict=True))]
            result = self.shuffle(result or vector, vector, own)
        return result

    def strided(self, memory: BufferPlace, address: Address, guards: Sequence[IRValue]) -> IRValue | None:
        """Elements a few apart from each other, out of the vectors that all of memory between them is; else None.

        What lies between two elements of a buffer is inside, but where lanes are masked: those that are not are read by
        masked loads, of targets that have them. Accesses that begin a few elements further share the vectors.
        """
        step, lanes, masks = address.lane_step, self.lanes, [g for g in guards if g.lanes > 1]
        if step is None or not 1 < step <= MOST_APART or memory.buffer.dtype == "bool":
            return None
        if any(atom.buffers for atom, _ in address.terms) or (masks and not self.masks):
            return None
        terms, first, end = address.terms, address.const, address.const + (lanes - 1) * step + 1
        for back in range(1, 1 if masks else step):
            key = self._vector_key(memory, terms, first - back, lanes, lanes, guards)
            if key in self.local and self._reaches(memory, terms, first - back + step * lanes):
                first -= back
                break
        result: IRValue | None = None
        for begin in range(first, end, lanes):
            start = begin
            if masks:
                vector = self._lanes_on(memory, terms, begin, step, begin - first, masks[0], guards)
            else:
                inside = begin + lanes <= end or self._reaches(memory, terms, begin + lanes)
                start = begin if inside else end - lanes
                vector = self._vector(memory, terms, start, lanes, guards)
            places = [address.const + lane * step for lane in range(lanes)]
            picks = [p - start + lanes if begin <= p < begin + lanes else lane for lane, p in enumerate(places)]
            result = self.shuffle(result or vector, vector, picks)
        return result

    def _lanes_on(
        self,
        memory: BufferPlace,
        terms: Terms,
        begin: int,
        step: int,
        passed: int,
        mask: IRValue,
        guards: Sequence[IRValue],
    ) -> IRValue:
        """The vector at ``begin``, ``passed`` elements behind the first lane's: what lanes read that are on."""
        elements = range(passed, passed + mask.lanes)
        picks = [e // step if e % step == 0 and e // step < mask.lanes else mask.lanes for e in elements]
        off = IRValue("zeroinitializer", "bool", mask.lanes)
        pointer = self.guarded(self.pointer(memory, terms, begin), guards)
        return self.masked_load(memory.buffer.dtype, mask.lanes, pointer, self.shuffle(mask, off, picks).text)

    def _aligned(self, memory: BufferPlace, terms: Terms, lanes: int) -> bool:
        """Whether ``terms`` are multiples of ``lanes``: an aligned vector with one element inside is all inside."""
        return prod(memory.buffer.shape) % lanes == 0 and all(c % lanes == 0 and not atom.buffers for atom, c in terms)

    def _any_of(self, guard: IRValue, mine: Sequence[bool]) -> IRValue:
        """Whether a condition holds for any of the chosen lanes."""
        if guard.lanes == 1:
            return guard
        chosen = f"<{', '.join(f'i1 {str(m).lower()}' for m in mine)}>"
        both = self.result(f"and {guard.type} {guard.text}, {chosen}", "bool", guard.lanes)
        word = self.result(f"bitcast {guard.type} {both.text} to i{guard.lanes}", "int64").text
        return self.result(f"icmp ne i{guard.lanes} {word}, 0", "bool")

    def _vector(
        self,
        memory: BufferPlace,
        terms: Terms,
        const: int,
        lanes: int,
        guards: Sequence[IRValue] = (),
        columns: int | None = None,
    ) -> IRValue:
        """A contiguous vector, loaded once a basic block; with ``columns``, only its first lanes, then zeros."""
        dtype = memory.buffer.dtype
        count = lanes if columns is None else columns
        key = self._vector_key(memory, terms, const, lanes, count, guards)
        if key not in self.local:
            pointer = self.guarded(self.pointer(memory, terms, const), guards)
            if count < lanes:
                self.local[key] = self.masked_load(dtype, lanes, pointer, leading(count, lanes))
            else:
                self.local[key] = self.contiguous(memory, terms, const, pointer, lanes)
            self.loaded.add(memory.buffer.name)
        return self.local[key]

    def _vector_key(
        self, memory: BufferPlace, terms: Terms, const: int, lanes: int, count: int, guards: Sequence[IRValue]
    ) -> tuple[object, ...]:
        """By which a vector of a basic block is found again."""
        return (memory.buffer.name, "vector", terms, const, lanes, count, tuple(g.text for g in guards))

    def contiguous(self, memory: BufferPlace, terms: Terms, const: int, pointer: str, lanes: int) -> IRValue:
        """The vector at ``pointer``, which is that to ``terms + const``.

        One of 7 lanes would be loaded in parts of 4, 2 and 1: where a whole one of 8 is inside the buffer, or the
        target has masks, that is loaded, and its last lane is not used.
        """
        dtype = "uint8" if memory.buffer.dtype == "bool" else memory.buffer.dtype
        wide = whole(lanes)
        if wide == lanes or not (self.masks or self._reaches(memory, terms, const + wide)):
            text = f"load {vector_type(dtype, lanes)}, ptr {pointer}, align {memory.alignment(terms, const)}"
            return self.result(text, dtype, lanes)
        if self._reaches(memory, terms, const + wide):
            text = f"load {vector_type(dtype, wide)}, ptr {pointer}, align {ITEM_BYTES[dtype]}"
            v = self.result(text, dtype, wide)
        else:
            v = self.masked_load(dtype, wide, pointer, leading(lanes, wide))
        return self.shuffle(v, v, range(lanes))

    def _reaches(self, memory: BufferPlace, terms: Terms, end: int) -> bool:
        """Whether the buffer has ``end`` elements from ``terms`` on, at all iterations of the running loops."""
        if any(atom.buffers for atom, _ in terms):
            return False
        elements = prod(memory.buffer.shape)
        if is_size(elements):
            return linear_bounds(plus((dict(terms), end), to_linear(-elements)), self.resolver.ranges)[1] <= 0
        most = sum(max(c * b for b in bounds(atom, self.resolver.ranges)) for atom, c in terms)
        return most + end <= elements

    def masked_load(self, dtype: str, lanes: int, pointer: str, mask: str) -> IRValue:
        """The lanes at ``pointer`` where the mask is set, zeros elsewhere."""
        vector, bits = vector_type(dtype, lanes), f"<{lanes} x i1>"
        name = f"llvm.masked.load.{mangle(dtype, lanes)}.p0"
        self.declare(name, vector, ["ptr", "i32", bits, vector])
        text = f"call {vector} @{name}(ptr {pointer}, i32 {ITEM_BYTES[dtype]}, {bits} {mask}, {vector} zeroinitializer)"
        return self.result(text, dtype, lanes)

    def lane(self, v: IRValue, lane: int) -> IRValue:
        """One lane of a vector; a scalar unchanged."""
        if v.lanes == 1:
            return v
        return self.result(f"extractelement {v.type} {v.text}, i64 {lane}", v.dtype)

    def shuffle(self, a: IRValue, b: IRValue, lanes: Sequence[int]) -> IRValue:
        """Lane i is element ``lanes[i]`` of ``a`` followed by ``b``."""
        text = f"shufflevector {a.type} {a.text}, {b.type} {b.text}, {_mask(tuple(lanes))}"
        return self.result(text, a.dtype, len(lanes))

    def guarded(self, pointer: str, guards: Sequence[IRValue]) -> str:
        """``pointer`` if every scalar guard holds, else the constant zeros."""
        for guard in guards:
            if guard.lanes == 1:
                pointer = self.result(f"select i1 {guard.text}, ptr {pointer}, ptr @zeros", "int64").text
        return pointer


def whole(lanes: int) -> int:
    """Lanes rounded up to a power of two."""
    return 1 << (lanes - 1).bit_length()


@cache
def leading(count: int, lanes: int) -> str:
    """LLVM spelling of a mask: the first ``count`` lanes."""
    return f"<{', '.join(f'i1 {str(lane < count).lower()}' for lane in range(lanes))}>"


@cache
def _mask(lanes: tuple[int, ...]) -> str:
    """LLVM spelling of the operand that says where a shuffle's lanes come from."""
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


@cache
def _interleaving(n: int, unit: int, step: int) -> Masks:
    """Pieces of ``step`` elements of two vectors in turn: of the low halves of all units, and of the high ones."""
    starts = [u + at for u in range(0, n, unit) for at in range(0, unit // 2, step)]
    low = [start + c + other for start in starts for other in (0, n) for c in range(step)]
    return tuple(low), tuple(c + unit // 2 for c in low)


@cache
def _exchange(n: int, unit: int) -> Masks:
    """The even units of one vector and then of another, and the odd ones."""
    even = [u + c for u in range(0, 2 * n, 2 * unit) for c in range(unit)]
    return tuple(even), tuple(c + unit for c in even)


def _reversed_digits(number: int, digits: int) -> int:
    """The binary number with its digits in reverse order."""
    return int(f"{number:0{digits}b}"[::-1], 2) if digits else 0
