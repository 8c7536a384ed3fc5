"""Loads and stores: register slots, contiguous vectors, broadcasts, gathers, guarded: no byte outside is read."""

from __future__ import annotations

from burnish.codegen.addressing import Memory
from burnish.codegen.builder import Value, mangle, vector_type
from burnish.codegen.registers import slot_value
from burnish.codegen.resolve import Address, Resolver
from burnish.codegen.shuffles import Shuffles, leading, whole
from burnish.loops.expr import INDEX, ITEM_BYTES, Load

# Of one masked store where the target has no masks. LLVM would split a wider one, and if half of it is off for certain,
# it then takes the mask of that half, wherever else it is used, for one that is on: a load reads outside its buffer.
MASKED_BYTES = 32
# Numbers that may be the low part of wider ones. Of these, AVX-512 code of LLVM 22 stores the whole one where it knows
# that a single lane is on: a masked store of <16 x i8>, truncated from <16 x i32>, writes four bytes.
TRUNCATED = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "bfloat16")
ZEROS = 4096  # bytes of constant zeros: what a load outside its buffer reads instead


class Access(Shuffles):
    """Adds memory accesses. ``guards``: conditions under which the current code runs (scalars and lane masks)."""

    def __init__(self, resolver: Resolver, declarations: dict[str, str]) -> None:
        super().__init__(resolver, declarations)
        self.guards: list[Value] = []

    @property
    def lanes(self) -> int:
        return self.resolver.vector[1] if self.resolver.vector else 1

    # --- loads --------------------------------------------------------------------------------------------------------

    def read(self, access: Load) -> Value:
        """The value(s) at ``access``: a scalar if the address does not depend on the lane, else a vector."""
        return self.read_at(access, self.resolver.address(access))

    def read_at(self, access: Load, address: Address) -> Value:
        """As :meth:`read`, where the address of ``access`` is known."""
        memory = self.memory[access.buffer.name]
        if memory.slots is not None:
            number, lanes = self._slot(memory, address)
            return slot_value(memory.values, number, access.dtype, lanes)
        guards = () if not self.guards or self.resolver.safe(access) else tuple(self.guards)
        key = (access.buffer.name, address, tuple(g.text for g in guards))
        found = self.local.get(key)
        if found is None:
            found = self.local[key] = self._read(memory, access, address, guards)
            self.loaded.add(access.buffer.name)
        return found

    def _read(self, memory: Memory, access: Load, address: Address, guards: tuple[Value, ...]) -> Value:
        dtype = memory.buffer.dtype
        if address.lane_step == 1:
            return self._read_vector(memory, address, guards)
        if address.lane_step == 0:
            return self._read_scalar(memory, address, guards)
        column = self.transposed(memory, access, address, self.lanes, guards)
        if column is not None:
            return column
        places = [self._at_lane(address, lane) for lane in range(self.lanes)]
        picked = self.picked(memory, places, guards)
        if picked is not None:
            return picked
        vector = Value("poison", dtype, self.lanes)
        for lane, place in enumerate(places):
            own = tuple(self.lane(g, lane) for g in guards)
            scalar = self._read_scalar(memory, place, own)
            text = f"insertelement {vector.type} {vector.text}, {scalar.type} {scalar.text}, i64 {lane}"
            vector = self.result(text, dtype, self.lanes)
        return vector

    def _read_vector(self, memory: Memory, address: Address, guards: tuple[Value, ...]) -> Value:
        dtype, lanes = memory.buffer.dtype, self.lanes
        stored = "uint8" if dtype == "bool" else dtype
        mask = self._mask(guards)
        pointer = self.guarded(self.pointer(memory, address.terms, address.const), guards)
        if mask is None:
            v = self.contiguous(memory, address.terms, address.const, pointer, lanes)
        else:
            v = self.masked_load(stored, lanes, pointer, mask.text)
        return self.cast(v, "bool") if dtype == "bool" else v

    def _read_scalar(self, memory: Memory, address: Address, guards: tuple[Value, ...]) -> Value:
        dtype = memory.buffer.dtype
        stored = "uint8" if dtype == "bool" else dtype
        scalars = tuple(self._any(g) for g in guards)
        pointer = self.guarded(self.pointer(memory, address.terms, address.const), scalars)
        v = self.result(f"load {vector_type(stored, 1)}, ptr {pointer}", stored)
        return self.cast(v, "bool") if dtype == "bool" else v

    def _mask(self, guards: tuple[Value, ...]) -> Value | None:
        """The conjunction of the lane masks among ``guards``."""
        mask: Value | None = None
        for guard in guards:
            if guard.lanes > 1:
                mask = guard if mask is None else self.binary("and", mask, guard)
        return mask

    def _any(self, guard: Value) -> Value:
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

    def write(self, access: Load, address: Address, v: Value) -> None:
        """Stores a value where the guards hold; a vector store of a scalar value broadcasts it."""
        memory = self.memory[access.buffer.name]
        if memory.slots is not None:
            self._write_slot(memory, address, v)
            return
        if access.buffer.name in self.loaded:
            self.loaded.discard(access.buffer.name)
            for key in [k for k in self.local if isinstance(k, tuple) and k[0] == access.buffer.name]:
                del self.local[key]
        if access.dtype == "bool":
            v = self.cast(v, "uint8")
        mask = self._mask(tuple(self.guards))
        if address.lane_step == 1:
            self._write_vector(memory, address, self.splat(v, self.lanes), mask)
        elif address.lane_step == 0:
            pointer = self.pointer(memory, address.terms, address.const)
            last = self.lane(v, self.lanes - 1)
            self.emit(f"store {last.type} {last.text}, ptr {pointer}")
        else:
            for lane in range(self.lanes):
                self._write_lane(memory, address, self.lane(v, lane), lane, mask)

    def _write_vector(self, memory: Memory, address: Address, v: Value, mask: Value | None) -> None:
        pointer = self.pointer(memory, address.terms, address.const)
        align = ITEM_BYTES[memory.buffer.dtype]
        if mask is None and self.masks and v.lanes & (v.lanes - 1):
            lanes = whole(v.lanes)
            mask = Value(leading(v.lanes, lanes), "bool", lanes)
            v = self.shuffle(v, Value("poison", v.dtype, v.lanes), range(lanes))
        if mask is None:
            self.emit(f"store {v.type} {v.text}, ptr {pointer}, align {align}")
            return
        most = v.lanes if self.masks else MASKED_BYTES // align
        for first in range(0, v.lanes, most):
            self._masked_store(self._part(v, first, most), pointer, self._part(mask, first, most), align)
            if first + most < v.lanes:
                pointer = self.result(f"getelementptr i8, ptr {pointer}, i64 {most * align}", INDEX).text

    def _masked_store(self, v: Value, pointer: str, mask: Value, align: int) -> None:
        if self.masks and v.dtype in TRUNCATED:
            mask = self._unknown(mask)
        name = f"llvm.masked.store.{mangle(v.dtype, v.lanes)}.p0"
        self.declare(name, "void", [v.type, "ptr", "i32", mask.type])
        self.emit(f"call void @{name}({v.type} {v.text}, ptr {pointer}, i32 {align}, {mask.type} {mask.text})")

    def _unknown(self, mask: Value) -> Value:
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

    def _part(self, v: Value, first: int, most: int) -> Value:
        """At most so many lanes of a vector, from the first on."""
        if most >= v.lanes:
            return v
        lanes = range(first, min(first + most, v.lanes))
        return self.shuffle(v, Value("poison", v.dtype, v.lanes), lanes)

    def _write_lane(self, memory: Memory, address: Address, v: Value, lane: int, mask: Value | None) -> None:
        scalar = self._at_lane(address, lane)
        pointer = self.pointer(memory, scalar.terms, scalar.const)
        if mask is not None:  # a lane that is off writes to its own stack slot
            spare = self.hoist(0, f"alloca {v.type}, align 8")
            on = self.lane(mask, lane)
            pointer = self.result(f"select i1 {on.text}, ptr {pointer}, ptr {spare}", "int64").text
        self.emit(f"store {v.type} {v.text}, ptr {pointer}")

    # --- register slots -----------------------------------------------------------------------------------------------

    def _slot(self, memory: Memory, address: Address) -> tuple[int, int]:
        """Number and lanes of a register slot."""
        assert memory.slots is not None and not address.terms, address
        return address.const // memory.slots.lanes, memory.slots.lanes

    def _write_slot(self, memory: Memory, address: Address, v: Value) -> None:
        number, lanes = self._slot(memory, address)
        if lanes == 1 and v.lanes > 1:
            v = self.lane(v, v.lanes - 1)
        v = self.splat(v, lanes)
        mask = self._mask(tuple(self.guards))
        if mask is not None and lanes > 1:
            v = self.select(mask, v, slot_value(memory.values, number, v.dtype, lanes))
        memory.values[number] = Value(v.text, v.dtype, lanes)
