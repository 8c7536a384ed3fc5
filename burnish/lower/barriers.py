"""Barriers: threads of a block wait for each other where one needs what another has written, and nowhere else.

Between two accesses of one buffer of the block (or of global memory that a launch both writes and reads), one of them a
write, stands a barrier unless dependence analysis proves that no element is touched by two threads. It is put as far
out as the two are apart: between statements of a sequence, or at the end of the body of a loop, for the next iteration.

Source: thesis-chen section 4.3.2 (memory synchronization barriers).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from burnish.errors import ScheduleError
from burnish.loops.boxes import box_extents
from burnish.loops.expr import BLOCK_SCOPES, Binary, Const, Expr, Load, Var, wrap
from burnish.loops.linear import Linear, to_linear
from burnish.loops.program import (
    BARRIER,
    BLOCKS,
    COPY_TENSOR,
    INIT_ARRIVALS,
    NOTHING,
    START_PRODUCTS,
    TENSOR_COPIES,
    THREADS,
    WAIT_ARRIVALS,
    WAIT_COPIES,
    WAIT_PRODUCTS,
    Alloc,
    For,
    If,
    Intrinsic,
    Seq,
    Stmt,
    Store,
    allocations,
    rebuild_stmt,
    seq,
    walk_stmt,
)
from burnish.loops.regions import BufferAccess, accesses
from burnish.loops.simplify import bounds, simplify
from burnish.loops.traverse import substitute
from burnish.lower.threads import Launch
from burnish.machines.intrinsics import TensorIntrinsic, stride_name
from burnish.schedule.dependence import undetermined

WAIT = Intrinsic(BARRIER, ())
BOX = "box"  # among the ranges of what a copy of a box of a tensor writes
ARRIVING = "arriving"  # among the ranges of what a thread's copies have written
Ranges = dict[str, int]


@dataclass(frozen=True)
class Flow:
    """Accesses of a statement before its first barrier and after its last; the same if it has none."""

    head: tuple[BufferAccess, ...]
    tail: tuple[BufferAccess, ...]
    waits: bool = False

    def then(self, other: Flow) -> Flow:
        """Both, one after the other."""
        head = self.head if self.waits else (*self.head, *other.head)
        tail = other.tail if other.waits else (*self.tail, *other.tail)
        return Flow(head, tail, self.waits or other.waits)


def insert_barriers(launch: Launch, intrinsics: Mapping[str, TensorIntrinsic]) -> Launch:
    """The launch with all barriers that it needs. Raises ScheduleError where one would be needed under a condition that
    not all threads share, and where blocks depend on each other.
    """
    body = _Barriers(launch, intrinsics).of(launch.body, {}, None)
    return replace(launch, body=body)


def check_barriers(launch: Launch, intrinsics: Mapping[str, TensorIntrinsic]) -> None:
    """Raises ScheduleError if a barrier is missing, or is under a condition that threads do not share, and for copies
    that nothing waits for.
    """
    _check_uniform(launch.body, None, given(launch.body))
    every = [*walk_stmt(launch.body)]
    copies = next((s for s in every if isinstance(s, For) and s.kind == "async"), None)
    if copies is not None and not any(isinstance(s, Intrinsic) and s.name == WAIT_COPIES for s in every):
        raise ScheduleError(
            f"loop '{copies.var}' is an asynchronous copy that nothing waits for; allowed: in a pipeline"
        )
    barriers = _Barriers(launch, intrinsics)
    wanted = barriers.of(launch.body, {}, None)
    if count_barriers(wanted) != count_barriers(launch.body):
        raise ScheduleError("a barrier is missing: threads of a block depend on each other without waiting")


def count_barriers(s: Stmt) -> int:
    """Number of barriers in a statement."""
    return int(s == WAIT) + sum(count_barriers(part) for part in s.parts)


def without_barrier(s: Stmt, number: int) -> Stmt:
    """The statement without one of its barriers, counted in program order: what tests take away."""
    seen = -1

    def visit(inner: Stmt) -> Stmt:
        nonlocal seen
        if inner == WAIT:
            seen += 1
            return NOTHING if seen == number else inner
        return rebuild_stmt(inner, visit)

    return visit(s)


def given(body: Stmt) -> frozenset[str]:
    """The buffers that a launch only reads: all of its threads find the same there."""
    return frozenset(body.reads - body.writes - {a.buffer.name for a in allocations(body)})


def _check_uniform(s: Stmt, divergent: Expr | None, fixed: frozenset[str]) -> None:
    if s == WAIT and divergent is not None:
        raise ScheduleError(f"a barrier stands under '{divergent}', which not all threads of a block decide alike")
    if isinstance(s, If):
        divergent = divergent if divergent is not None else _divergent(s.cond, fixed)
    for part in s.parts:
        _check_uniform(part, divergent, fixed)


def _divergent(cond: Expr, fixed: frozenset[str]) -> Expr | None:
    """The condition, if threads of a block may decide it differently; ``fixed``: see :func:`given`."""
    return cond if cond.buffers - fixed or cond.variables & {*THREADS} else None


class _Barriers:
    """One launch's pass."""

    def __init__(self, launch: Launch, intrinsics: Mapping[str, TensorIntrinsic]) -> None:
        self.intrinsics = intrinsics
        self.threads = {b: n for b, n in launch.extents.items() if b in THREADS and n > 1}
        self.blocks = {b: n for b, n in launch.extents.items() if b in BLOCKS and n > 1}
        own = {a.buffer.name for a in allocations(launch.body)}
        shared = {a.buffer.name for a in allocations(launch.body) if a.buffer.scope in BLOCK_SCOPES}
        both = (launch.body.reads & launch.body.writes) - own
        self.names = shared | both
        self.global_names = both
        self.fixed = given(launch.body)

    def of(self, s: Stmt, ranges: Ranges, divergent: Expr | None) -> Stmt:
        """``s`` with the barriers that are needed in it."""
        if self.names.isdisjoint(s.reads | s.writes):
            return s
        match s:
            case Seq(stmts):
                return self._sequence(stmts, ranges, divergent)
            case For(var, extent, kind, body):
                inner = {**ranges, var: extent}
                new = self.of(body, inner, divergent)
                if extent > 1 and self._carries(new, var, inner):
                    self._refuse(divergent)
                    new = seq(new, WAIT)
                return For(var, extent, kind, new)
            case If(cond, body):
                return If(
                    cond, self.of(body, ranges, divergent if divergent is not None else _divergent(cond, self.fixed))
                )
        return rebuild_stmt(s, lambda inner: self.of(inner, ranges, divergent))

    def _sequence(self, stmts: Sequence[Stmt], ranges: Ranges, divergent: Expr | None) -> Stmt:
        """Statements with a barrier in front of each that touches what one before has left to other threads."""
        result: list[Stmt] = []
        before = Flow((), ())
        for s in stmts:
            new = self.of(s, ranges, divergent)
            flow = self.flow(new, ranges)
            if self.clash(before.tail, flow.head, ranges):
                self._refuse(divergent)
                result.append(WAIT)
                before = Flow((), (), True)
            result.append(new)
            before = before.then(flow)
        return seq(*result)

    def _refuse(self, divergent: Expr | None) -> None:
        if divergent is not None:
            raise ScheduleError(
                f"threads would have to wait for each other under '{divergent}', which not all threads of a block "
                f"decide "
                f"alike"
            )

    def _carries(self, body: Stmt, var: str, ranges: Ranges) -> bool:
        """Whether an iteration touches what the one before has left to other threads."""
        flow = self.flow(body, ranges)
        outer = {name: n for name, n in ranges.items() if name != var}
        return any(
            self.clash([_renamed(a, var, f"{var} before")], [b], outer)
            for a in _distinct(flow.tail)
            for b in _distinct(flow.head)
            if not self._own_place(a, b, var, outer)
        )

    def _own_place(self, a: BufferAccess, b: BufferAccess, var: str, outer: Ranges) -> bool:
        """Whether two accesses are the same, of a place that every iteration and thread has for itself."""
        if a.indices != b.indices or a.buffer.name != b.buffer.name or var not in a.ranges:
            return False
        loops = {var: a.ranges[var], **self.threads}
        return not undetermined([_ordered(a, outer, loops, "")], loops)

    def flow(self, s: Stmt, ranges: Ranges) -> Flow:
        """Accesses of ``s`` to the buffers that matter."""
        if s == WAIT:
            return Flow((), (), True)
        if isinstance(s, Intrinsic) and s.name in (WAIT_COPIES, START_PRODUCTS, WAIT_PRODUCTS):
            writes = s.name == WAIT_COPIES
            found = tuple(a for operand in s.operands for a in accesses(*_ended(operand, ranges, writes)))
            return Flow(found, found)
        if isinstance(s, Intrinsic) and s.name in (*TENSOR_COPIES, WAIT_ARRIVALS):
            found = tuple(a for part, inside in _of_boxes(s, ranges) for a in accesses(part, inside))
            return Flow(found, found)
        if self.names.isdisjoint(s.reads | s.writes):
            return Flow((), (), self._always_waits(s))
        match s:
            case Seq(stmts):
                whole = Flow((), ())
                for inner in stmts:
                    whole = whole.then(self.flow(inner, ranges))
                return whole
            case For(var, extent, _, body):
                return self.flow(body, {**ranges, var: extent})
            case Alloc(_, body):
                return self.flow(body, ranges)
            case If(cond, body):
                inner_flow = self.flow(body, ranges)
                mine = tuple(a for a in accesses(If(cond, NOTHING), ranges) if a.buffer.name in self.names)
                return Flow((*mine, *inner_flow.head), (*mine, *inner_flow.tail))  # all threads go in, or none
        found = self._leaf(s, ranges)
        return Flow(found, found)

    def _always_waits(self, s: Stmt) -> bool:
        return s == WAIT or (not isinstance(s, If) and any(self._always_waits(part) for part in s.parts))

    def _leaf(self, s: Stmt, ranges: Ranges) -> tuple[BufferAccess, ...]:
        if isinstance(s, Intrinsic):
            s, ranges = self._expanded(s, ranges)
        return tuple(a for a in accesses(s, ranges) if a.buffer.name in self.names)

    def _expanded(self, s: Intrinsic, ranges: Ranges) -> tuple[Stmt, Ranges]:
        """The elements that an intrinsic touches, as a statement in the loops of its tiles."""
        known = self.intrinsics.get(s.name)
        if known is None:
            return s, ranges
        attrs, stmts = dict(s.attrs), list[Stmt]()
        for number, (operand, tile) in enumerate(zip(s.operands, known.operands, strict=True)):
            names = [f"{s.name}.{tile.name}.{d}" for d in range(len(tile.shape))]
            ranges = {**ranges, **dict(zip(names, tile.shape, strict=True))}
            steps = [int(attrs.get(stride_name(tile, d), step)) for d, step in enumerate(row_major(tile.shape))]
            index = _moved(operand, dict(zip(names, steps, strict=True)))
            touched = Load(operand.buffer, index)
            stmts.append(Store(touched.buffer, index, touched) if number == 0 else _read(touched))
        return seq(*stmts), ranges

    # --- conflicts ----------------------------------------------------------------------------------------------------

    def clash(self, before: Sequence[BufferAccess], after: Sequence[BufferAccess], common: Ranges) -> bool:
        """Whether two threads may touch one element, one of them writing: first in ``before``, then in ``after``.

        ``common``: the loops around both, in the same iteration.
        """
        return any(
            a.buffer.name == b.buffer.name and _one_writes(a, b) and not self._apart(a, b, common)
            for a in _distinct(before)
            for b in _distinct(after)
        )

    def _apart(self, a: BufferAccess, b: BufferAccess, common: Ranges) -> bool:
        """Whether what different threads of a block touch by two accesses is certainly different."""
        if a.buffer.name in self.global_names and self._blocks_clash(a, b):
            raise ScheduleError(
                f"buffer '{a.buffer.name}' in global memory is written by one block and touched by another, which "
                f"cannot "
                f"wait for it; compute them in launches of their own"
            )
        if _other_copies(a, b, common):
            return True
        pair = [_ordered(x, common, self.threads, side) for x, side in ((a, ""), (b, " after"))]
        left = {*undetermined(pair, self.threads)} if self.threads else set()
        return not (left - _by_remainder(pair[0], pair[1], self.threads, common))

    def _blocks_clash(self, a: BufferAccess, b: BufferAccess) -> bool:
        pair = [_ordered(x, {}, {**self.blocks, **self.threads}, side) for x, side in ((a, ""), (b, " after"))]
        left = {*undetermined(pair, self.blocks)} if self.blocks else set()
        return bool(left - _by_remainder(pair[0], pair[1], {**self.threads, **self.blocks}, {}))


def _other_copies(a: BufferAccess, b: BufferAccess, common: Ranges) -> bool:
    """Whether two accesses in the same iteration are of different copies of a pipeline's buffer: their positions in one
    dimension differ by a number that its extent does not divide.
    """
    for i, j, extent in zip(a.indices, b.indices, a.buffer.shape, strict=True):
        x, y = _around(simplify(i, a.ranges), extent), _around(simplify(j, b.ranges), extent)
        if (x.variables | y.variables) <= {*common}:
            terms, apart = to_linear(simplify(wrap(x - y), common))
            if not terms and apart % extent:
                return True
    return False


def _around(index: Expr, extent: int) -> Expr:
    """The position of which an index is the remainder by the extent of its dimension, else itself."""
    if isinstance(index, Binary) and index.op == "%" and index.b == Const(extent, index.dtype):
        return index.a
    return index


def _one_writes(a: BufferAccess, b: BufferAccess) -> bool:
    """Whether one of two accesses writes. What arrives concerns who reads it later; what touches the place before must
    be over when the copy begins. For what a box's copy has written every thread waits itself.
    """
    if BOX in a.ranges:
        return False
    if ARRIVING in a.ranges or ARRIVING in b.ranges:
        return a.writes and not b.writes
    return a.writes or b.writes


def _of_boxes(s: Intrinsic, ranges: Ranges) -> Iterator[tuple[Stmt, Ranges]]:
    """Accesses of copies of boxes of tensors, and of what counts them: it is all written before the first of its
    threads waits; the one that expects bytes and begins the copies is the one that has written it.
    """
    if s.name == COPY_TENSOR:
        target, size = s.operands[0], prod(box_extents(s))
        names, index = dict[str, int](), list(target.indices)
        for d, step in reversed([*enumerate(row_major(target.buffer.shape))]):
            if step < size:
                name = BOX if d == len(index) - 1 else f"{BOX} {d}"
                names[name] = min(target.buffer.shape[d], -(-size // step))
                index[d] = index[d] + Var(name)
        yield Store(target.buffer, tuple(index), Const(0, target.dtype)), {**ranges, **names}
    elif s.name == INIT_ARRIVALS:
        (first,) = s.operands
        names = {f"{s.name} {d}": n for d, n in enumerate(first.buffer.shape)}
        yield Store(first.buffer, tuple(map(Var, names)), Const(0, first.dtype)), {**ranges, **names}
    elif s.name == WAIT_ARRIVALS:
        yield _read(s.operands[0]), ranges


def _ended(operand: Load, ranges: Ranges, writes: bool) -> tuple[Stmt, Ranges]:
    """Accesses completed by a wait: any element that a thread's copies may have written, or its products read, of one
    of the copies of a buffer.
    """
    word = ARRIVING if writes else "ended"
    names = [word, *(f"{word} {d}" for d in range(2, len(operand.indices)))]
    index = (operand.indices[0], *map(Var, names))
    touched = (
        Store(operand.buffer, index, Const(0, operand.buffer.dtype)) if writes else _read(Load(operand.buffer, index))
    )
    return touched, {**ranges, **dict(zip(names, operand.buffer.shape[1:], strict=True))}


def _distinct(found: Sequence[BufferAccess]) -> list[BufferAccess]:
    """Each access once."""
    return list({(a.writes, a.buffer, a.indices, *a.ranges.items()): a for a in found}.values())


def row_major(shape: Sequence[int]) -> list[int]:
    """The elements from one position in each dimension to the next."""
    return [prod(shape[d + 1 :]) for d in range(len(shape))]


def _moved(operand: Load, steps: Mapping[str, int]) -> tuple[Expr, ...]:
    """The indices of an operand's tile: each variable moves by its step in elements, in the dimension that it fits."""
    index = list(operand.indices)
    own = row_major(operand.buffer.shape)
    for name, step in steps.items():
        d = next(d for d, elements in enumerate(own) if step % elements == 0 and step >= elements)
        index[d] = index[d] + Var(name) * (step // own[d])
    return tuple(index)


def _read(access: Load) -> Stmt:
    """A statement that only reads: a condition on an element."""
    return If(access, NOTHING) if access.dtype == "bool" else If(access < access, NOTHING)


def _renamed(a: BufferAccess, old: str, new: str) -> BufferAccess:
    """An access with a loop called otherwise, which makes it another one."""
    if old == new or old not in a.ranges:
        return a
    values: dict[str, Expr] = {old: Var(new)}
    ranges = {(new if name == old else name): n for name, n in a.ranges.items()}
    return replace(a, indices=tuple(substitute(i, values) for i in a.indices), ranges=ranges, given=())


def _ordered(a: BufferAccess, common: Ranges, loops: Mapping[str, int], side: str) -> BufferAccess:
    """An access whose ranges begin with the loops that stay fixed, then those in question; others are its own."""
    own = {name: f"{name}{side}" for name in a.ranges if name not in common and name not in loops}
    values: dict[str, Expr] = {name: Var(new) for name, new in own.items() if new != name}
    known = {**a.ranges, **loops}
    ranges = {**common, **loops, **{new: a.ranges[name] for name, new in own.items()}}
    indices = tuple(substitute(simplify(i, known), values) for i in a.indices)
    return replace(a, indices=indices, ranges=ranges, given=())


def _by_remainder(a: BufferAccess, b: BufferAccess, threads: Mapping[str, int], common: Ranges) -> set[str]:
    """The threads that an element has to itself because of its place in rows of as many elements as there are threads.

    In one dimension both indices are a number in the mixed radix of the threads, plus multiples of what these span,
    plus less than a thread's own part: ``e * 1024 + thread * 4 + i``.
    """
    found: set[str] = set()
    for i, j in zip(a.indices, b.indices, strict=True):
        forms = [(to_linear(simplify(i, a.ranges)), a.ranges), (to_linear(simplify(j, b.ranges)), b.ranges)]
        steps = [{t: terms[Var(t)] for t in threads if Var(t) in terms} for (terms, _), _ in forms]
        own = steps[0]
        if not own or own != steps[1] or min(own.values()) < 1 or not _is_radix(own, threads):
            continue
        last = max(own, key=lambda t: own[t])
        span, unit = own[last] * threads[last], min(own.values())
        parts = [_part(form, ranges, span, unit, own, threads, common) for form, ranges in forms]
        if None not in parts and parts[0] == parts[1]:
            found |= {*own}
    return found


def _is_radix(steps: Mapping[str, int], threads: Mapping[str, int]) -> bool:
    """Whether each step is beyond all that the smaller ones reach."""
    reach = 0
    for t, step in sorted(steps.items(), key=lambda item: item[1]):
        if step <= reach:
            return False
        reach += step * (threads[t] - 1)
    return True


def _part(
    form: Linear,
    ranges: Mapping[str, int],
    span: int,
    unit: int,
    own: Collection[str],
    threads: Collection[str],
    common: Ranges,
) -> tuple[int, frozenset[tuple[Expr, int]]] | None:
    """In which thread's part a linear form lies without its threads, and its terms that stay fixed; None if unknown."""
    terms, const = form
    low = high = float(const % span)
    fixed = set()
    for atom, n in terms.items():
        if atom.variables & {*threads}:
            if not (isinstance(atom, Var) and atom.name in own):
                return None
        elif atom.variables <= {*common}:
            fixed.add((atom, n))
        elif n % span:
            p, q = bounds(atom, ranges)
            low, high = low + min(n * p, n * q), high + max(n * p, n * q)
    return (int(low) // unit, frozenset(fixed)) if low >= 0 and low // unit == high // unit else None
