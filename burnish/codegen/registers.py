"""Which register buffers become SSA values: those whose every access is a fixed slot once loops are unrolled.

What a slot holds is known at every place of the code: no stack slots that LLVM would have to promote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from burnish.codegen.builder import IRValue
from burnish.codegen.resolve import flatten
from burnish.loops.expr import Buffer, Expr, Var
from burnish.loops.linear import to_linear
from burnish.loops.program import Alloc, For, If, Intrinsic, Seq, Stmt, Store
from burnish.loops.simplify import simplify
from burnish.loops.traverse import loads


@dataclass(frozen=True, slots=True)
class RegisterSlots:
    """A register buffer split into vectors of ``lanes`` elements, each an SSA value."""

    lanes: int


class SlotValues(dict[int, IRValue]):
    """Values of register slots, by number, in straight-line code: those written there."""

    def read(self, number: int, dtype: str, lanes: int) -> IRValue:
        """Value of a slot; poison before the first write."""
        return self[number] if number in self else self.before(number, dtype, lanes)

    def before(self, number: int, dtype: str, lanes: int) -> IRValue:
        """Value of a slot that was not written here."""
        return IRValue("poison", dtype, lanes)


class LoopValues(SlotValues):
    """Values of register slots inside a loop that writes some of them.

    A value of ``outer``, from around the loop, gets a phi at the loop's head when first asked for: also
    what is undefined there, since an earlier iteration may have written it under a condition of its own.
    """

    def __init__(self, outer: SlotValues, fresh: Callable[[], str]) -> None:
        super().__init__()
        self.outer, self.fresh = outer, fresh
        self.incoming: dict[int, tuple[IRValue, IRValue]] = {}  # phi, value before the loop

    def before(self, number: int, dtype: str, lanes: int) -> IRValue:
        """Phi of a slot, first asked for in the loop: its value before the loop, or that of the iteration before."""
        start = self.outer.read(number, dtype, lanes)
        phi = self[number] = IRValue("%" + self.fresh(), dtype, lanes)
        self.incoming[number] = phi, start
        return phi

    def phis(self, entry: str, latch: str) -> list[str]:
        """The head of a loop entered from block ``entry``, whose last block is ``latch``."""
        return [
            f"  {phi.text} = phi {phi.type} [ {before.text}, %{entry} ], [ {self[number].text}, %{latch} ]"
            for number, (phi, before) in self.incoming.items()
        ]

    def leave(self) -> SlotValues:
        """The values around the loop, after it: its body has run at least once."""
        self.outer.update(self)
        return self.outer


class BranchValues(SlotValues):
    """Values of register slots under a condition: its own writes, before them the values of ``outer``."""

    def __init__(self, outer: SlotValues) -> None:
        super().__init__()
        self.outer = outer

    def before(self, number: int, dtype: str, lanes: int) -> IRValue:
        """Value of a slot before the condition."""
        return self.outer.read(number, dtype, lanes)

    def merge(self, before: str, taken: str, fresh: Callable[[], str]) -> list[str]:
        """The phis where the code, which ends in block ``taken``, joins what follows block ``before``."""
        phis = []
        for number, new in self.items():
            old = self.outer.read(number, new.dtype, new.lanes)
            self.outer[number] = merged = IRValue("%" + fresh(), new.dtype, new.lanes)
            phis.append(f"  {merged.text} = phi {new.type} [ {new.text}, %{taken} ], [ {old.text}, %{before} ]")
        return phis


def plan_slots(alloc: Alloc) -> RegisterSlots | None:
    """The slot width of a register buffer, or None if it must live in memory.

    Every access needs an address of unrolled variables only, plus at most the vector variable with step 1, and all
    accesses the same number of lanes, aligned to it.
    """
    found: set[int] = set()
    if not all(_check(alloc.body, alloc.buffer.name, {}, {}, found)):
        return None
    return RegisterSlots(found.pop()) if len(found) == 1 else None


def _check(s: Stmt, name: str, kinds: dict[str, str], ranges: dict[str, int], found: set[int]) -> list[bool]:
    match s:
        case Seq(stmts):
            return [ok for x in stmts for ok in _check(x, name, kinds, ranges, found)]
        case For(var, extent, kind, body):
            return _check(body, name, {**kinds, var: kind}, {**ranges, var: extent}, found)
        case Alloc(body=body):
            return _check(body, name, kinds, ranges, found)
        case If(cond, body):
            reads = [(x.buffer, x.indices) for x in loads(cond)]
            return [*_accesses(reads, name, kinds, ranges, found), *_check(body, name, kinds, ranges, found)]
        case Store(buffer, indices, value, _):
            reads = [(x.buffer, x.indices) for e in (*indices, value) for x in loads(e)]
            return _accesses([(buffer, indices), *reads], name, kinds, ranges, found)
        case Intrinsic(_, operands, _):
            return [False] if any(o.buffer.name == name for o in operands) else []
    raise AssertionError(s)


def _accesses(
    accesses: list[tuple[Buffer, tuple[Expr, ...]]],
    name: str,
    kinds: dict[str, str],
    ranges: dict[str, int],
    found: set[int],
) -> list[bool]:
    results = []
    for buffer, indices in accesses:
        if buffer.name != name:
            continue
        lanes = next((ranges[v] for v, k in kinds.items() if k == "vectorize"), 1)
        terms, const = to_linear(simplify(flatten(buffer, indices), ranges))
        width = 1
        ok = True
        for atom, c in terms.items():
            kind = kinds.get(atom.name) if isinstance(atom, Var) else None
            if kind == "vectorize" and c == 1:
                width = lanes
            elif kind != "unroll":
                ok = False
        aligned = all(
            c % width == 0 for a, c in terms.items() if not (isinstance(a, Var) and kinds.get(a.name) == "vectorize")
        )
        found.add(width)
        results.append(ok and aligned and const % width == 0)
    return results
