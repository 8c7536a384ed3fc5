"""Factors that are zero by a condition: as masks of multiply-adds, which take no time in the innermost loop."""

from __future__ import annotations

from burnish.codegen.access import AccessEmitter
from burnish.codegen.builder import IRValue, vector_type
from burnish.codegen.resolve import Padded
from burnish.loops.expr import INDEX, ITEM_BYTES, Expr


class Padding(AccessEmitter):
    """Adds numbers that are padded with zeros."""

    def padded(self, e: Expr) -> tuple[IRValue, IRValue] | None:
        """A number in memory or zero, as a number that can always be read, and the mask (all lanes) of where it counts.

        Where it does not, it is another of the same tile, so many bytes further; how many is known before the innermost
        loop. None if ``e`` is nothing of the kind, its condition changes in that loop, or the target has no masks; or
        if only some lanes are computed: it may be none, and then nothing may be read.
        """
        vector, found = self.resolver.vector, self.resolver.padded(e) if self.masks and not self.guards else None
        if found is None or vector is None or self.memory[found.access.buffer.name].slots is not None:
            return None
        depth, address = self.depth_of(found.cond), self.resolver.address(found.access)
        if depth == len(self.scopes) - 1 or vector[0] in found.cond.variables or address.lane_step != 0:
            return None
        name, dtype = found.access.buffer.name, found.access.dtype
        key = (name, address, found)
        if key not in self.local:
            place = self._shifted(self.pointer(self.memory[name], address.terms, 0), found, depth)
            pointer = self.result(f"getelementptr i8, ptr {place}, i64 {address.const * ITEM_BYTES[dtype]}", INDEX).text
            self.local[key] = self.result(f"load {vector_type(dtype, 1)}, ptr {pointer}", dtype)
            self.loaded.add(name)
        return self.local[key], self._all_lanes(found.cond, vector[1], depth)

    def _shifted(self, pointer: str, padded: Padded, depth: int) -> str:
        """``pointer``, moved to where there always is a number if the condition fails."""
        outer, inner = self.scopes[depth].cache, self.scopes[-1].cache
        bytes_ = padded.shift * ITEM_BYTES[padded.access.dtype]
        by = ("shift", padded.cond, bytes_)
        if by not in outer:
            outer[by] = self.hoist(depth, f"select i1 {self.condition(padded.cond)}, i64 0, i64 {bytes_}")
        key = (pointer, outer[by])
        if key not in inner:
            inner[key] = self.hoist(len(self.scopes) - 1, f"getelementptr i8, ptr {pointer}, i64 {outer[by]}")
        return inner[key]

    def _all_lanes(self, cond: Expr, lanes: int, depth: int) -> IRValue:
        """The condition as a mask."""
        cache, key, mask = self.scopes[depth].cache, ("mask", cond, lanes), f"<{lanes} x i1>"
        if key not in cache:
            one = self.hoist(depth, f"insertelement {mask} poison, i1 {self.condition(cond)}, i64 0")
            text = f"shufflevector {mask} {one}, {mask} poison, <{lanes} x i32> zeroinitializer"
            cache[key] = self.hoist(depth, text)
        return IRValue(cache[key], "bool", lanes)
