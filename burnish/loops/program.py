"""The loop program: statements over buffers, the one form that schedules transform and back ends compile.

Grammar (immutable dataclasses; ``str(program)`` is the debug and golden-test format)::

    program ::= Program(name, params, body)                params: Buffers in global scope, inputs then outputs
    stmt    ::= Seq(stmts)
              | For(var, extent, kind, body)               for var in range(extent), or between the ends of a Loaded
              | Store(buffer, indices, value, reduce)      buffer[indices] = value, or combined by `reduce`
              | If(cond, body)
              | Alloc(buffer, body)                        buffer lives during body, uninitialised
              | Intrinsic(name, operands, attrs)           a tensorized operation; operands are Loads used as addresses
    kind    ::= serial | unroll | vectorize | parallel | vthread | async | a binding such as "threadIdx.x"

A *stage* is the set of stores to one buffer; a reduction is a ``Store`` with ``reduce`` set, preceded by a plain one
that sets the identity. Loop names are unique along every path from the root (no shadowing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any, cast

from burnish.loops.expr import Buffer, Expr, Load, Value, wrap
from burnish.loops.hashcons import Rebuilt, immutable, union
from burnish.loops.loaded import LoadedExtent, is_loaded
from burnish.loops.traverse import substitute, transform

BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
BINDINGS = (*BLOCKS, *THREADS)
MOST_BLOCKS = {"blockIdx.x": (1 << 31) - 1, "blockIdx.y": 65535, "blockIdx.z": 65535}
BARRIER = "barrier"  # the intrinsic at which all threads of a block wait for each other; it has no operands
KINDS = ("serial", "unroll", "vectorize", "parallel", "vthread", "async", *BINDINGS)
COMMIT_COPIES, WAIT_COPIES = "commit_copies", "wait_copies"  # all copies since the last commit; all groups but `but`
START_PRODUCTS, COMMIT_PRODUCTS, WAIT_PRODUCTS = "start_products", "commit_products", "wait_products"
# Copies of boxes of tensors by a unit of their own, and objects in shared memory that count what has arrived.
COPY_TENSOR, INIT_ARRIVALS, EXPECT_COPIES = "copy_tensor", "init_arrivals", "expect_copies"
WAIT_ARRIVALS = "wait_arrivals"
TENSOR_COPIES = (COPY_TENSOR, INIT_ARRIVALS, EXPECT_COPIES)
ASYNCHRONY = (COMMIT_COPIES, WAIT_COPIES, WAIT_ARRIVALS, START_PRODUCTS, COMMIT_PRODUCTS, WAIT_PRODUCTS)
HINTS = ("prefetch", *ASYNCHRONY)  # intrinsics that change nothing: no memory is read or written


_NONE: frozenset[str] = frozenset()


class Stmt(Rebuilt):
    """Base of all statements.

    Every statement knows from its creation on its direct sub-statements, and the names of the loops in it, of the
    variables in its expressions, and of the buffers that it reads (a reduction's own accumulator not counted), writes
    and allocates. An intrinsic that is no hint writes its first operand. Hints are no accesses: of them a statement
    knows whether it has any.
    """

    __slots__ = ("allocates", "hinted", "loops", "parts", "reads", "variables", "writes")

    parts: tuple[Stmt, ...]
    loops: frozenset[str]
    variables: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]
    allocates: frozenset[str]
    hinted: bool

    def __str__(self) -> str:
        return "\n".join(_lines(self, 0))


@immutable()
class Seq(Stmt):
    """Statements one after the other."""

    stmts: tuple[Stmt, ...]

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        self.parts = parts = self.stmts
        self.loops = union([part.loops for part in parts])
        self.variables = union([part.variables for part in parts])
        self.reads = union([part.reads for part in parts])
        self.writes = union([part.writes for part in parts])
        self.allocates = union([part.allocates for part in parts])
        self.hinted = True in [part.hinted for part in parts]


@immutable()
class For(Stmt):
    """Loop of ``extent`` iterations: ``var`` counts from 0; ``kind``, one of KINDS, says how they run.

    A loaded extent's loop counts from where that begins, which depends on outer loops.
    """

    var: str
    extent: int
    kind: str
    body: Stmt

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        body = self.body
        self.parts = (body,)
        self.loops, self.variables = body.loops | {self.var}, body.variables
        self.reads, self.writes, self.allocates, self.hinted = body.reads, body.writes, body.allocates, body.hinted
        if is_loaded(self.extent):
            self.variables, self.reads = self.variables | self.extent.variables, self.reads | self.extent.buffers


@immutable()
class Store(Stmt):
    """Assignment of one element, or, with ``reduce``, its combination with ``value`` by that reduction."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    reduce: str | None = None

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        expressions = (*self.indices, self.value)
        self.parts, self.loops, self.allocates, self.hinted = (), _NONE, _NONE, False
        self.variables = union([e.variables for e in expressions])
        self.reads = union([e.buffers for e in expressions])
        self.writes = frozenset((self.buffer.name,))


@immutable()
class If(Stmt):
    """``body`` where ``cond`` (bool) holds."""

    cond: Expr
    body: Stmt

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        body = self.body
        self.parts = (body,)
        self.variables = union((self.cond.variables, body.variables))
        self.reads = union((self.cond.buffers, body.reads))
        self.loops, self.writes, self.allocates, self.hinted = body.loops, body.writes, body.allocates, body.hinted


@immutable()
class Alloc(Stmt):
    """Buffer that lives while ``body`` runs; uninitialized."""

    buffer: Buffer
    body: Stmt

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        body = self.body
        self.parts = (body,)
        self.loops, self.variables, self.reads, self.writes = body.loops, body.variables, body.reads, body.writes
        self.allocates, self.hinted = body.allocates | {self.buffer.name}, body.hinted


@immutable()
class Intrinsic(Stmt):
    """Tensorized operation by its name: ``operands`` are loads used as addresses, what it writes first."""

    name: str
    operands: tuple[Load, ...]
    attrs: tuple[tuple[str, int | str], ...] = ()

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        self.hinted = self.name in HINTS
        used = [] if self.hinted else [o.buffer.name for o in self.operands]
        self.parts, self.loops, self.allocates = (), _NONE, _NONE
        self.variables = union([o.variables for o in self.operands])
        self.reads, self.writes = frozenset(used), frozenset(used[:1])


@immutable()
class LoopProgram:
    """Loop program of one kernel: parameters, inputs before outputs, and the statements that compute these."""

    name: str
    params: tuple[Buffer, ...]
    body: Stmt

    def __str__(self) -> str:
        head = f"program {self.name}({', '.join(map(str, self.params))}):"
        return "\n".join([head, *_lines(self.body, 1)]) + "\n"


NOTHING = Seq(())

_SYMBOL = {None: "=", "sum": "+=", "prod": "*=", "max": "max=", "min": "min="}


def _lines(s: Stmt, depth: int) -> list[str]:
    pad = "  " * depth
    match s:
        case Seq(stmts):
            return [line for inner in stmts for line in _lines(inner, depth)]
        case For(var, extent, kind, body):
            word = "" if kind == "serial" else f" {kind}"
            return [f"{pad}for{word} {var} in {extent}:", *_lines(body, depth + 1)]
        case Store(buffer, indices, value, reduce):
            return [f"{pad}{buffer.name}[{', '.join(map(str, indices))}] {_SYMBOL[reduce]} {value}"]
        case If(cond, body):
            return [f"{pad}if {cond}:", *_lines(body, depth + 1)]
        case Alloc(buffer, body):
            return [f"{pad}alloc {buffer}", *_lines(body, depth)]
        case Intrinsic(name, operands, attrs):
            words = [*map(str, operands), *(f"{k}={v}" for k, v in attrs)]
            return [f"{pad}{name}({', '.join(words)})"]
    raise AssertionError(s)


# --- construction and traversal ---------------------------------------------------------------------------------------


def seq(*stmts: Stmt) -> Stmt:
    """Statements in order, nested sequences flattened; a single one bare."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def store(buffer: Buffer, indices: tuple[Value, ...], value: Value, reduce: str | None = None) -> Store:
    """A store whose indices and value may be Python numbers."""
    return Store(buffer, tuple(wrap(i) for i in indices), wrap(value, buffer.dtype), reduce)


def rebuild_stmt(s: Stmt, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """``s`` with ``fn`` applied to each direct sub-statement (dropping empty ``Seq``); itself if nothing changed."""
    if isinstance(s, Seq):
        new = [fn(inner) for inner in s.stmts]
        same = len(new) != 1 and all(map(is_, new, s.stmts)) and not any(isinstance(inner, Seq) for inner in new)
        return s if same else seq(*new)
    if not s.parts:
        return s
    (old,) = s.parts
    body = fn(old)
    return s if body is old else with_part(s, old, body)


def with_part(s: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """``s`` with the very object ``old`` of its parts replaced by ``new``."""
    if isinstance(s, For):
        return For(s.var, s.extent, s.kind, new)
    if isinstance(s, Seq):
        return seq(*[new if part is old else part for part in s.stmts])
    if isinstance(s, If):
        return If(s.cond, new)
    assert isinstance(s, Alloc)
    return Alloc(s.buffer, new)


def map_exprs(s: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """``s`` with ``fn`` applied to every outermost expression: indices, values, conditions, operands.

    What does not change stays the same object.
    """
    match s:
        case Store(buffer, indices, value, reduce):
            return _stored(s, buffer, tuple([fn(i) for i in indices]), fn(value), reduce)
        case If(cond, body):
            return _under(s, fn(cond), map_exprs(body, fn))
        case Intrinsic(name, operands, attrs):
            mapped = tuple([Load(o.buffer, tuple([fn(i) for i in o.indices])) for o in operands])
            return s if mapped == operands else Intrinsic(name, mapped, attrs)
        case For(_, LoadedExtent() as extent, _, body):
            return _ranging(s, extent.mapped(fn), map_exprs(body, fn))
    return rebuild_stmt(s, lambda inner: map_exprs(inner, fn))


Moved = Callable[[Buffer, tuple[Expr, ...]], tuple[Buffer, tuple[Expr, ...]]]
"""What becomes of a buffer and the indices at which it is accessed."""


def map_access(s: Stmt, of: str, fn: Moved) -> Stmt:
    """``s`` with every access (load, store, operand) of the buffer ``of`` rewritten by ``fn``, but no allocation.

    What does not change stays the same object.
    """

    def moved(e: Expr) -> Expr:
        return Load(*fn(e.buffer, e.indices)) if isinstance(e, Load) and e.buffer.name == of else e

    def on_expr(e: Expr) -> Expr:
        return transform(e, moved, lambda part: of in part.buffers)

    def on_stmt(inner: Stmt) -> Stmt:
        match inner:
            case Store(buffer, indices, value, reduce):
                if of not in inner.reads and of not in inner.writes:
                    return inner
                indices = tuple([on_expr(i) for i in indices])
                if buffer.name == of:
                    buffer, indices = fn(buffer, indices)
                return _stored(inner, buffer, indices, on_expr(value), reduce)
            case If(cond, body):
                return _under(inner, on_expr(cond), on_stmt(body))
            case Intrinsic(name, operands, attrs):
                mapped = tuple([cast(Load, on_expr(o)) for o in operands])
                return inner if mapped == operands else Intrinsic(name, mapped, attrs)
            case For(_, LoadedExtent() as extent, _, body):
                return _ranging(inner, extent.mapped(on_expr), on_stmt(body))
        return rebuild_stmt(inner, on_stmt)

    return on_stmt(s)


def _stored(old: Store, buffer: Buffer, indices: tuple[Expr, ...], value: Expr, reduce: str | None) -> Store:
    """A store; ``old`` where it is the same."""
    same = value is old.value and buffer is old.buffer and indices == old.indices
    return old if same else Store(buffer, indices, value, reduce)


def _under(old: If, cond: Expr, body: Stmt) -> If:
    """A condition around a statement; ``old`` where it is the same."""
    return old if cond is old.cond and body is old.body else If(cond, body)


def _ranging(old: For, extent: LoadedExtent, body: Stmt) -> For:
    """A loop over a loaded extent; ``old`` where it is the same."""
    found: Any = extent
    return old if found is old.extent and body is old.body else For(old.var, found, old.kind, body)


def substitute_stmt(s: Stmt, values: Mapping[str, Expr]) -> Stmt:
    """``s`` with free loop variables replaced by name."""
    if s.variables.isdisjoint(values):
        return s
    if isinstance(s, (Store, Intrinsic)):
        return map_exprs(s, lambda e: substitute(e, values))
    if isinstance(s, If):
        return _under(s, substitute(s.cond, values), substitute_stmt(s.body, values))
    if isinstance(s, For) and is_loaded(s.extent):
        return _ranging(s, s.extent.mapped(lambda e: substitute(e, values)), substitute_stmt(s.body, values))
    return rebuild_stmt(s, lambda inner: substitute_stmt(inner, values))


def allocations(s: Stmt) -> list[Alloc]:
    """The allocations in ``s``, in program order."""
    found: list[Alloc] = []
    stack = [s]
    while stack:
        top = stack.pop()
        if top.allocates:
            if isinstance(top, Alloc):
                found.append(top)
            stack.extend(reversed(top.parts))
    return found


def walk_stmt(s: Stmt) -> Iterator[Stmt]:
    """``s`` and all its sub-statements in program order."""
    stack = [s]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(top.parts))
