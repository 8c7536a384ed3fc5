"""Loads and stores: register slots, contiguous vectors, broadcasts, gathers, guarded: no byte outside is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from burnish.codegen.addressing import BufferPlace
from burnish.codegen.builder import IRValue, mangle, vector_type
from burnish.codegen.resolve import Address, Resolver
from burnish.codegen.shuffles import Shuffles, leading, whole
from burnish.errors import ScheduleError
from burnish.loops.expr import INDEX, ITEM_BYTES, Load
from burnish.machines.scopes import PIECE_BYTES

# Of one masked store where the target has no masks. LLVM would split a wider one, and if half of it is off for certain,
# it then takes the mask of that half, wherever else it is used, for one that is on: a load reads outside its buffer.
MASKED_BYTES = 32
# Numbers that may be the low part of wider ones. Of these, AVX-512 code of LLVM 22 stores the whole one where it knows
# that a single lane is on: a masked store of <16 x i8>, truncated from <16 x i32>, writes four bytes.
TRUNCATED = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "bfloat16")
ZEROS = 4096  # bytes of constant zeros: what a load outside its buffer reads instead


def _loaded(address: Address) -> bool:
    """Whether lanes are at positions that are themselves loaded, each its own."""
    return address.lane_step is None and bool(address.terms[0][0].buffers)


def _mask(guards: Sequence[IRValue]) -> IRValue | None:
    """The lane mask among guards."""
    return next((g for g in guards if g.lanes > 1), None)


def _check_piece(memory: BufferPlace, lanes: int) -> None:
    """ScheduleError for a vector in a swizzled buffer that may not be in one place."""
    if memory.swizzled and lanes * ITEM_BYTES[memory.buffer.dtype] > PIECE_BYTES:
        raise ScheduleError(
            f"buffer '{memory.buffer}': found a vector of {lanes} elements; allowed in a swizzled buffer: "
            f"{PIECE_BYTES} bytes"
        )


class AccessEmitter(Shuffles):
    """Adds memory accesses. ``guards``: conditions under which the current code runs (scalars and lane masks)."""

    def __init__(self, resolver: Resolver, declarations: dict[str, str]) -> None:
        super().__init__(resolver, declarations)
        self.guards: list[IRValue] = []

    # --- loads --------------------------------------------------------------------------------------------------------

    def read(self, access: Load) -> IRValue:
        """The value(s) at ``access``: a scalar if the address does not depend on the lane, else a vector."""
        return self.read_at(access, self.resolver.address(access))

    def read_at(self, access: Load, address: Address) -> IRValue:
        """As :meth:`read`, where the address of ``access`` is known."""
        memory = self.memory[access.buffer.name]
        if memory.slots is not None:
            number, lanes = self._slot(memory, address)
            return memory.values.read(number, access.dtype, lanes)
        guards = () if not self.guards or self.resolver.safe(access) else self.active()
        if any(atom.buffers for atom, _ in address.terms):  # these positions may be overwritten in the same basic block
            return self._read(memory, access, address, guards)
        lanes = 1 if address.lane_step == 0 else self.lanes  # loops of other lengths may be in the same basic block
        key = (access.buffer.name, address, lanes, tuple(g.text for g in guards))
        found = self.local.get(key)
        if found is None:
            found = self.local[key] = self._read(memory, access, address, guards)
            self.loaded.add(access.buffer.name)
        return found

    def _read(self, memory: BufferPlace, access: Load, address: Address, guards: tuple[IRValue, ...]) -> IRValue:
        dtype = memory.buffer.dtype
        if address.lane_step == 1:
            return self._read_vector(memory, address, guards)
        if address.lane_step == 0:
            element = self.element(memory, access, address, [self._any(g) for g in guards]) if self.lanes > 1 else None
            return element or self._read_scalar(memory, address, guards)
        column = self.transposed(memory, access, address, self.lanes, guards)
        if column is not None:
            return column
        if not _loaded(address):
            picked = self.picked(memory, [self._at_lane(address, lane) for lane in range(self.lanes)], guards)
            found = picked or self.strided(memory, address, guards)
            if found is not None:
                return found
        vector = IRValue("poison", dtype, self.lanes)
        for lane, pointer in enumerate(self._pointers(memory, address)):
            own = tuple(self.lane(g, lane) for g in guards)
            scalar = self._read_at(pointer, dtype, own)
            text = f"insertelement {vector.type} {vector.text}, {scalar.type} {scalar.text}, i64 {lane}"
            vector = self.result(text, dtype, self.lanes)
        return vector

    def _pointers(self, memory: BufferPlace, address: Address) -> list[str]:
        """Where each lane is. Positions that are loaded are so together: only in the lanes that are on."""
        if not _loaded(address):
            places = [self._at_lane(address, lane) for lane in range(self.lanes)]
            return [self.pointer(memory, place.terms, place.const) for place in places]
        base = self.pointer(memory, (), 0)
        size = self.const(ITEM_BYTES[memory.buffer.dtype], INDEX)
        offsets = self.splat(self.binary("*", self.value(address.terms[0][0]), size), self.lanes)
        each = [self.lane(offsets, lane).text for lane in range(self.lanes)]
        return [self.result(f"getelementptr i8, ptr {base}, i64 {offset}", INDEX).text for offset in each]

    def _read_vector(self, memory: BufferPlace, address: Address, guards: tuple[IRValue, ...]) -> IRValue:
        _check_piece(memory, self.lanes)
        dtype, lanes = memory.buffer.dtype, self.lanes
        stored = "uint8" if dtype == "bool" else dtype
        mask = _mask(guards)
        pointer = self.guarded(self.pointer(memory, address.terms, address.const), guards)
        if mask is None:
            v = self.contiguous(memory, address.terms, address.const, pointer, lanes)
        else:
            v = self.masked_load(stored, lanes, pointer, mask.text)
        return self.cast(v, "bool") if dtype == "bool" else v

    def _read_scalar(self, memory: BufferPlace, address: Address, guards: tuple[IRValue, ...]) -> IRValue:
        pointer = self.pointer(memory, address.terms, address.const)
        align = memory.alignment(address.terms, address.const) if memory.aligned and not guards else 0
        return self._read_at(pointer, memory.buffer.dtype, [self._any(g) for g in guards], align)

    def _read_at(self, pointer: str, dtype: str, guards: Sequence[IRValue], align: int = 0) -> IRValue:
        """The scalar at ``pointer`` if every guard holds, else zero. ``align``: the multiple of bytes where it is."""
        stored = "uint8" if dtype == "bool" else dtype
        known = f", align {align}" if align else ""
        v = self.result(f"load {vector_type(stored, 1)}, ptr {self.guarded(pointer, guards)}{known}", stored)
        return self.cast(v, "bool") if dtype == "bool" else v

    def active(self) -> tuple[IRValue, ...]:
        """The guards of the moment, of which at most one is a mask: of the lanes that are on by all masks together."""
        masks = [g for g in self.guards if g.lanes > 1]
        if len(masks) < 2:
            return tuple(self.guards)
        key = ("guards", *(mask.text for mask in masks))
        if key not in self.local:
            self.local[key] = reduce(lambda a, b: self.binary("and", a, b), masks)
        return (self.local[key], *(g for g in self.guards if g.lanes == 1))

    def mask(self) -> IRValue | None:
        """The lanes that are on; None: all."""
        return _mask(self.active())

    def _any(self, guard: IRValue) -> IRValue:
        if guard.lanes == 1:
            return guard
        return self.intrinsic(f"llvm.vector.reduce.or.{mangle('bool', guard.lanes)}", "bool", 1, (guard,))

    def _at_lane(self, address: Address, lane: int) -> Address:
        """The scalar address of one lane."""
        if address.lane_step is not None:
            return Address(address.terms, 0, address.const + lane * address.lane_step)
        assert self.resolver.vector is not None
        name, extent = self.resolver.vector
        self.resolver.vector = None
        self.resolver.fixed[name] = lane
        scalar = self.resolver.form(self.resolver.expr(address.terms[0][0]))
        del self.resolver.fixed[name]
        self.resolver.vector = (name, extent)
        return scalar

    # --- stores -------------------------------------------------------------------------------------------------------

    def write(self, access: Load, address: Address, v: IRValue, kept: bool = False) -> None:
        """Stores a value where the guards hold; a vector store of a scalar value broadcasts it.

        ``kept``: where no lane is on, ``v`` is what is there already; a register may be written again.
        """
        memory = self.memory[access.buffer.name]
        mask = self.mask()
        if memory.slots is not None:
            self._write_slot(memory, address, v, None if kept else mask)
            return
        self._overwritten(access.buffer.name)
        if access.dtype == "bool":
            v = self.cast(v, "uint8")
        if address.lane_step == 1:
            self._write_vector(memory, address, self.splat(v, self.lanes), mask)
        elif address.lane_step == 0:
            pointer = self.pointer(memory, address.terms, address.const)
            self._write_scalar(pointer, self._last(v, mask), None if mask is None else self._any(mask))
        else:
            for lane, pointer in enumerate(self._pointers(memory, address)):
                self._write_scalar(pointer, self.lane(v, lane), None if mask is None else self.lane(mask, lane))

    def combine_lanes(
        self, access: Load, address: Address, v: IRValue, combine: Callable[[IRValue, IRValue], IRValue]
    ) -> None:
        """Combines each lane of ``v`` in turn with the element at its own place, which it may share with others."""
        memory, mask = self.memory[access.buffer.name], self.mask()
        for lane, pointer in enumerate(self._pointers(memory, address)):
            on = None if mask is None else self.lane(mask, lane)
            old = self._read_at(pointer, access.dtype, () if on is None else (on,))
            new = combine(old, self.lane(v, lane))
            self._write_scalar(pointer, self.cast(new, "uint8") if new.dtype == "bool" else new, on)
        self._overwritten(access.buffer.name)

    def _overwritten(self, name: str) -> None:
        """Drops what was loaded from a buffer."""
        if name in self.loaded:
            self.loaded.discard(name)
            for key in [k for k in self.local if isinstance(k, tuple) and k[0] == name]:
                del self.local[key]

    def _last(self, v: IRValue, mask: IRValue | None) -> IRValue:
        """The value of the last lane that is on."""
        if v.lanes == 1 or mask is None:
            return self.lane(v, v.lanes - 1)
        last = self.lane(v, 0)
        for lane in range(1, v.lanes):
            last = self.select(self.lane(mask, lane), self.lane(v, lane), last)
        return last

    def _write_vector(self, memory: BufferPlace, address: Address, v: IRValue, mask: IRValue | None) -> None:
        _check_piece(memory, v.lanes)
        pointer = self.pointer(memory, address.terms, address.const)
        align = ITEM_BYTES[memory.buffer.dtype]
        if mask is None and self.masks and v.lanes & (v.lanes - 1):
            lanes = whole(v.lanes)
            mask = IRValue(leading(v.lanes, lanes), "bool", lanes)
            v = self.shuffle(v, IRValue("poison", v.dtype, v.lanes), range(lanes))
        if mask is None:
            whole_align = memory.alignment(address.terms, address.const)
            self.emit(f"store {v.type} {v.text}, ptr {pointer}, align {whole_align}")
            return
        most = v.lanes if self.masks else MASKED_BYTES // align
        for first in range(0, v.lanes, most):
            self._masked_store(self._part(v, first, most), pointer, self._part(mask, first, most), align)
            if first + most < v.lanes:
                pointer = self.result(f"getelementptr i8, ptr {pointer}, i64 {most * align}", INDEX).text

    def _masked_store(self, v: IRValue, pointer: str, mask: IRValue, align: int) -> None:
        if self.masks and v.dtype in TRUNCATED:
            mask = self._unknown(mask)
        name = f"llvm.masked.store.{mangle(v.dtype, v.lanes)}.p0"
        self.declare(name, "void", [v.type, "ptr", "i32", mask.type])
        self.emit(f"call void @{name}({v.type} {v.text}, ptr {pointer}, i32 {align}, {mask.type} {mask.text})")

    def _unknown(self, mask: IRValue) -> IRValue:
        """The same mask, of which LLVM cannot know which lanes are on."""
        bits = f"i{-(-mask.lanes // 8) * 8}"
        slot = self.hoist(0, f"alloca {bits}, align 8")
        packed = self.result(f"bitcast {mask.type} {mask.text} to i{mask.lanes}", INDEX).text
        if bits != f"i{mask.lanes}":
            packed = self.result(f"zext i{mask.lanes} {packed} to {bits}", INDEX).text
        self.emit(f"store volatile {bits} {packed}, ptr {slot}")
        packed = self.result(f"load volatile {bits}, ptr {slot}", INDEX).text
        if bits != f"i{mask.lanes}":
            packed = self.result(f"trunc {bits} {packed} to i{mask.lanes}", INDEX).text
        return self.result(f"bitcast i{mask.lanes} {packed} to {mask.type}", mask.dtype, mask.lanes)

    def _part(self, v: IRValue, first: int, most: int) -> IRValue:
        """Slice of a vector: up to `most` lanes from lane `first` on."""
        if most >= v.lanes:
            return v
        lanes = range(first, min(first + most, v.lanes))
        return self.shuffle(v, IRValue("poison", v.dtype, v.lanes), lanes)

    def _write_scalar(self, pointer: str, v: IRValue, on: IRValue | None) -> None:
        """Stores a scalar where ``on`` holds."""
        if on is not None:  # where it does not, to a stack slot of its own
            spare = self.hoist(0, f"alloca {v.type}, align 8")
            pointer = self.result(f"select i1 {on.text}, ptr {pointer}, ptr {spare}", "int64").text
        self.emit(f"store {v.type} {v.text}, ptr {pointer}")

    # --- register slots -----------------------------------------------------------------------------------------------

    def _slot(self, memory: BufferPlace, address: Address) -> tuple[int, int]:
        """Number and lanes of a register slot."""
        assert memory.slots is not None and not address.terms, address
        return address.const // memory.slots.lanes, memory.slots.lanes

    def _write_slot(self, memory: BufferPlace, address: Address, v: IRValue, mask: IRValue | None) -> None:
        number, lanes = self._slot(memory, address)
        v = self._last(v, mask) if lanes == 1 else self.splat(v, lanes)
        if mask is not None:
            on = mask if lanes > 1 else self._any(mask)
            v = self.select(on, v, memory.values.read(number, v.dtype, lanes))
        memory.values[number] = IRValue(v.text, v.dtype, lanes)
