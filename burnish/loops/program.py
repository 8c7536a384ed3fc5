"""The loop program: statements over buffers, the one form that schedules transform and back ends compile.

Grammar (frozen dataclasses; ``str(program)`` is the debug and golden-test format)::

    program ::= Program(name, params, body)                params: Buffers in global scope, inputs then outputs
    stmt    ::= Seq(stmts)
              | For(var, extent, kind, body)               for var in range(extent)
              | Store(buffer, indices, value, reduce)      buffer[indices] = value, or combined by `reduce`
              | If(cond, body)
              | Alloc(buffer, body)                        buffer lives during body, uninitialised
              | Intrinsic(name, operands, attrs)           a tensorized operation; operands are Loads used as addresses
    kind    ::= serial | unroll | vectorize | parallel | vthread | a binding such as "threadIdx.x"

A *stage* is the set of stores to one buffer; a reduction is a ``Store`` with ``reduce`` set, preceded by a plain one
that sets the identity. Loop names are unique along every path from the root (no shadowing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from burnish.loops.expr import Buffer, Expr, Load, Value, rebuild, substitute, wrap
from burnish.loops.intern import Rebuilt, union

BINDINGS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
KINDS = ("serial", "unroll", "vectorize", "parallel", "vthread", *BINDINGS)
HINTS = ("prefetch",)  # intrinsics that change nothing: no memory is read or written


_NONE: frozenset[str] = frozenset()


class Stmt(Rebuilt):
    """Base of all statements.

    Every statement knows from its creation on its direct sub-statements, and the names of the loops in it and of the
    buffers that it reads (a reduction's own accumulator not counted), writes and allocates. An intrinsic that is no
    hint writes its first operand.
    """

    __slots__ = ("allocates", "loops", "parts", "reads", "writes")

    parts: tuple[Stmt, ...]
    loops: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]
    allocates: frozenset[str]

    def _is(
        self,
        *parts: Stmt,
        loops: frozenset[str] = _NONE,
        reads: frozenset[str] = _NONE,
        writes: frozenset[str] = _NONE,
        allocates: frozenset[str] = _NONE,
    ) -> None:
        """States the sub-statements, and the statement's own names beside theirs."""
        put = object.__setattr__
        put(self, "parts", parts)
        put(self, "loops", union([loops, *[part.loops for part in parts]]))
        put(self, "reads", union([reads, *[part.reads for part in parts]]))
        put(self, "writes", union([writes, *[part.writes for part in parts]]))
        put(self, "allocates", union([allocates, *[part.allocates for part in parts]]))

    def __str__(self) -> str:
        return "\n".join(_lines(self, 0))


@dataclass(frozen=True, slots=True)
class Seq(Stmt):
    stmts: tuple[Stmt, ...]

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        self._is(*self.stmts)


@dataclass(frozen=True, slots=True)
class For(Stmt):
    var: str
    extent: int
    kind: str
    body: Stmt

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        self._is(self.body, loops=frozenset((self.var,)))


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    reduce: str | None = None

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        read = union([e.buffers for e in (*self.indices, self.value)])
        self._is(reads=read, writes=frozenset((self.buffer.name,)))


@dataclass(frozen=True, slots=True)
class If(Stmt):
    cond: Expr
    body: Stmt

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        self._is(self.body, reads=self.cond.buffers)


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    buffer: Buffer
    body: Stmt

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        self._is(self.body, allocates=frozenset((self.buffer.name,)))


@dataclass(frozen=True, slots=True)
class Intrinsic(Stmt):
    name: str
    operands: tuple[Load, ...]
    attrs: tuple[tuple[str, int | str], ...] = ()

    __str__ = Stmt.__str__

    def __post_init__(self) -> None:
        used = [o.buffer.name for o in self.operands] if self.name not in HINTS else []
        self._is(reads=frozenset(used), writes=frozenset(used[:1]))


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    params: tuple[Buffer, ...]
    body: Stmt

    def __str__(self) -> str:
        head = f"program {self.name}({', '.join(map(str, self.params))}):"
        return "\n".join([head, *_lines(self.body, 1)]) + "\n"


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
    """``s`` with ``fn`` applied to each direct sub-statement (dropping empty ``Seq``)."""
    match s:
        case Seq(stmts):
            return seq(*(fn(inner) for inner in stmts))
        case For(var, extent, kind, body):
            return For(var, extent, kind, fn(body))
        case If(cond, body):
            return If(cond, fn(body))
        case Alloc(buffer, body):
            return Alloc(buffer, fn(body))
    return s


def map_exprs(s: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """``s`` with ``fn`` applied to every outermost expression: indices, values, conditions, operands."""
    match s:
        case Store(buffer, indices, value, reduce):
            return Store(buffer, tuple(fn(i) for i in indices), fn(value), reduce)
        case If(cond, body):
            return If(fn(cond), map_exprs(body, fn))
        case Intrinsic(name, operands, attrs):
            mapped = tuple(Load(o.buffer, tuple(fn(i) for i in o.indices)) for o in operands)
            return Intrinsic(name, mapped, attrs)
    return rebuild_stmt(s, lambda inner: map_exprs(inner, fn))


def map_access(s: Stmt, fn: Callable[[Buffer, tuple[Expr, ...]], tuple[Buffer, tuple[Expr, ...]]]) -> Stmt:
    """``s`` with every access (load, store, operand) of every buffer rewritten by ``fn``; allocations are untouched."""

    def on_expr(e: Expr) -> Expr:
        e = rebuild(e, on_expr)
        return Load(*fn(e.buffer, e.indices)) if isinstance(e, Load) else e

    def on_stmt(inner: Stmt) -> Stmt:
        match inner:
            case Store(buffer, indices, value, reduce):
                return Store(*fn(buffer, tuple(on_expr(i) for i in indices)), on_expr(value), reduce)
            case If(cond, body):
                return If(on_expr(cond), on_stmt(body))
            case Intrinsic(name, operands, attrs):
                mapped = tuple(Load(*fn(o.buffer, tuple(on_expr(i) for i in o.indices))) for o in operands)
                return Intrinsic(name, mapped, attrs)
        return rebuild_stmt(inner, on_stmt)

    return on_stmt(s)


def substitute_stmt(s: Stmt, values: Mapping[str, Expr]) -> Stmt:
    """``s`` with free loop variables replaced by name."""
    return map_exprs(s, lambda e: substitute(e, values))


def walk_stmt(s: Stmt) -> Iterator[Stmt]:
    """``s`` and all its sub-statements in program order."""
    stack = [s]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(top.parts))
