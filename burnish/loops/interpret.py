"""A loop program executed statement by statement on small arrays: the meaning every schedule and pass must keep."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from math import copysign, inf, nan
from typing import Any

import numpy as np

from burnish.errors import InputError, VerificationError
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import (
    FLOATS,
    INDEX,
    INTS,
    ITEM_BYTES,
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
    Var,
)
from burnish.loops.loaded import is_loaded
from burnish.loops.numeric import FUNCTIONS, numpy_dtype
from burnish.loops.program import BARRIER, HINTS, Alloc, For, If, Intrinsic, LoopProgram, Seq, Stmt, Store

__all__ = ["IntrinsicFunction", "evaluate", "run_program"]

Env = dict[str, int]
# Called with (array, index) of each operand, the first of which is written, and the attributes.
IntrinsicFunction = Callable[[Sequence[tuple[np.ndarray, tuple[int, ...]]], Mapping[str, int | str]], None]


def run_program(
    program: LoopProgram,
    arrays: Mapping[str, np.ndarray],
    intrinsics: Mapping[str, IntrinsicFunction] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The arrays that ``program`` writes, by parameter name, when its other parameters hold ``arrays``.

    Uninitialised memory holds NaN (integers: bytes of 0x55), so reading it shows. Iterations of parallel loops run in
    an order shuffled by ``seed``. Raises InputError for a missing or ill-shaped array; VerificationError for an index
    out of bounds and for two iterations of a parallel loop that touch one element, one of them writing. Values are
    rounded to the buffer's dtype when stored; floating-point arithmetic between loads and stores is float64.
    """
    machine = _Machine(intrinsics or {}, random.Random(seed))
    outputs = program.body.writes
    for buffer in program.params:
        if buffer.name in arrays:
            machine.arrays[buffer.name] = _copied(program, buffer, np.asarray(arrays[buffer.name]))
        elif buffer.name in outputs:
            machine.arrays[buffer.name] = _garbage(buffer)
        else:
            given = ", ".join(arrays) or "none"
            raise InputError(f"program '{program.name}': no array for parameter '{buffer.name}'; given: {given}")
    with np.errstate(all="ignore"):
        machine.statement(program.body)({})
    return {b.name: machine.arrays[b.name].reshape(b.shape) for b in program.params if b.name in outputs}


def _copied(program: LoopProgram, buffer: Buffer, array: np.ndarray) -> np.ndarray:
    if array.shape != buffer.shape or array.dtype != numpy_dtype(buffer.dtype):
        raise InputError(
            f"program '{program.name}': parameter '{buffer.name}' is {array.dtype}{list(array.shape)}, "
            f"expected {buffer.dtype}{list(buffer.shape)}"
        )
    return array.flatten()


def _garbage(buffer: Buffer) -> np.ndarray:
    if buffer.dtype in FLOATS:
        return np.full(buffer.size, nan, numpy_dtype(buffer.dtype))
    return np.frombuffer(b"\x55" * buffer.nbytes, numpy_dtype(buffer.dtype)).copy()


# --- scalars ----------------------------------------------------------------------------------------------------------


def _nearest(value: float, low: int, high: int) -> int:
    """A float truncated to the nearest integer between bounds; NaN is 0."""
    return 0 if value != value else int(min(max(value, low), high))


def _wrapped(value: Any, dtype: str) -> Any:
    """A Python number as a value of ``dtype``: integers modulo their width, truncated from floats."""
    if dtype == "bool":
        return bool(value)
    if dtype in FLOATS:
        return float(value) if dtype == "float64" else float(numpy_dtype(dtype).type(value))
    if value != value or value in (inf, -inf):
        return 0  # undefined in C
    bits = ITEM_BYTES[dtype] * 8
    value = int(value) & ((1 << bits) - 1)
    return value - (1 << bits) if dtype.startswith("int") and value >> (bits - 1) else value


def _divide(a: float, b: float) -> float:
    if b == 0:
        return nan if a == 0 or a != a else copysign(inf, a) * copysign(1.0, b)
    return a / b


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide,
    "//": lambda a, b: a // b if b else 0, "%": lambda a, b: a % b if b else 0,
    "min": lambda a, b: a if a < b or a != a else b, "max": lambda a, b: a if a > b or a != a else b,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_REDUCERS = {"sum": "+", "prod": "*", "max": "max", "min": "min"}


def _in_order(parts: Sequence[Callable[[Env], None]]) -> Callable[[Env], None]:
    def execute(env: Env) -> None:
        for part in parts:
            part(env)

    return execute


# --- the machine ------------------------------------------------------------------------------------------------------


class _Machine:
    """Memory, and the translation of expressions and statements to Python closures over it."""

    def __init__(self, intrinsics: Mapping[str, IntrinsicFunction], shuffle: random.Random) -> None:
        self.arrays: dict[str, np.ndarray] = {}  # flat
        self.intrinsics = intrinsics
        self.shuffle = shuffle
        self.iteration = -1  # of the outermost parallel loop being executed; -1 outside
        self.writer: dict[str, np.ndarray] = {}  # buffers alive outside that loop: iteration that wrote an element
        self.reader: dict[str, np.ndarray] = {}  # likewise the one that read it, -2 for several

    def value(self, e: Expr) -> Callable[[Env], Any]:
        """A function from loop variables to the value of ``e``."""
        match e:
            case Const(constant, _):
                return lambda env: constant
            case Var(name):
                return lambda env: env[name]
            case Select(cond, a, b):
                test, yes, no = self.value(cond), self.value(a), self.value(b)
                return lambda env: yes(env) if test(env) else no(env)
            case Not(a):
                inner = self.value(a)
                return lambda env: not inner(env)
            case Cast(dtype, a):
                inner = self.value(a)
                if a.dtype in FLOATS and dtype in INTS and ITEM_BYTES[dtype] < 8:
                    limits = np.iinfo(dtype)
                    return lambda env: _nearest(inner(env), int(limits.min), int(limits.max))
                return lambda env: _wrapped(inner(env), dtype)
            case Call(fn, args):
                function, values = FUNCTIONS[fn], [self.value(a) for a in args]
                number = np.float64 if args[0].dtype in FLOATS else np.dtype(args[0].dtype).type
                return lambda env: function(*[number(v(env)) for v in values]).item()
            case Binary():
                return self._binary(e)
            case Load(buffer, indices):
                offset = self.offset(buffer, indices)
                return lambda env: self.read(buffer.name, offset(env))
        raise VerificationError(f"a loop program cannot hold {e}")

    def _binary(self, e: Binary) -> Callable[[Env], Any]:
        a, b = self.value(e.a), self.value(e.b)
        if e.op == "and":
            return lambda env: a(env) and b(env)
        if e.op == "or":
            return lambda env: a(env) or b(env)
        apply, dtype = _OPERATORS[e.op], e.dtype
        if dtype in INTS and (dtype != INDEX or e.buffers):
            return lambda env: _wrapped(apply(a(env), b(env)), dtype)
        return lambda env: apply(a(env), b(env))

    def offset(self, buffer: Buffer, indices: Sequence[Expr]) -> Callable[[Env], int]:
        """A function from loop variables to the position in the flat array, checked against the buffer's shape."""
        dims = [(self.value(i), extent) for i, extent in zip(indices, buffer.shape, strict=True)]

        def compute(env: Env) -> int:
            position = 0
            for d, (index, extent) in enumerate(dims):
                i = index(env)
                if not 0 <= i < extent:
                    access = f"{Load(buffer, tuple(indices))}: index {i} in dimension {d}"
                    raise VerificationError(f"{access} is outside 0 to {extent - 1} at {env}")
                position = position * extent + i
            return position

        return compute

    def read(self, name: str, position: int) -> Any:
        if self.iteration >= 0 and name in self.writer:
            if self.writer[name][position] not in (-1, self.iteration):
                self._race(name, position)
            several = self.reader[name][position] not in (-1, self.iteration)
            self.reader[name][position] = -2 if several else self.iteration
        return self.arrays[name][position].item()

    def write(self, name: str, position: int, value: Any) -> None:
        if self.iteration >= 0 and name in self.writer:
            free = (-1, self.iteration)
            if self.writer[name][position] not in free or self.reader[name][position] not in free:
                self._race(name, position)
            self.writer[name][position] = self.iteration
        self.arrays[name][position] = value

    def _race(self, name: str, position: int) -> None:
        element = f"element {position} of '{name}'"
        raise VerificationError(f"parallel loop: two iterations touch {element}, one of them writing")

    def statement(self, s: Stmt) -> Callable[[Env], None]:
        """A function that executes ``s`` for given loop variables."""
        match s:
            case Seq(stmts):
                return _in_order([self.statement(inner) for inner in stmts])
            case For():
                return self._loop(s)
            case Store():
                return self._store(s)
            case If(cond, body):
                test, inner = self.value(cond), self.statement(body)
                return lambda env: inner(env) if test(env) else None
            case Alloc(buffer, body):
                return self._alloc(buffer, self.statement(body))
            case Intrinsic(name):
                return self._intrinsic(s) if name not in (*HINTS, BARRIER) else lambda env: None
        raise AssertionError(s)

    def _loop(self, s: For) -> Callable[[Env], None]:
        body, var, positions = self.statement(s.body), s.var, self._positions(s)
        concurrent = s.kind == "parallel" or s.kind.startswith("blockIdx")

        def execute(env: Env) -> None:
            order = list(positions(env))
            outermost = concurrent and self.iteration < 0
            if concurrent:
                self.shuffle.shuffle(order)
            if outermost:
                self.writer = {name: np.full(a.size, -1) for name, a in self.arrays.items()}
                self.reader = {name: np.full(a.size, -1) for name, a in self.arrays.items()}
            for i in order:
                if outermost:
                    self.iteration = i
                env[var] = i
                body(env)
            if outermost:
                self.iteration = -1
            env.pop(var, None)

        return execute

    def _positions(self, s: For) -> Callable[[Env], range]:
        """Range of a loop's variable by the environment. Raises VerificationError for loaded ends out of range."""
        extent = s.extent
        if not is_loaded(extent):
            return lambda env: range(extent)
        begin, end, most = self.value(extent.begin), self.value(extent.end), extent.most

        def between(env: Env) -> range:
            first, last = begin(env), end(env)
            if not 0 <= first <= last <= most:
                raise VerificationError(f"loop '{s.var}' runs from {first} to {last}, outside 0 to {most}, at {env}")
            return range(first, last)

        return between

    def _store(self, s: Store) -> Callable[[Env], None]:
        name, dtype = s.buffer.name, s.buffer.dtype
        value, offset = self.value(s.value), self.offset(s.buffer, s.indices)
        if s.reduce is None:
            return lambda env: self.write(name, offset(env), _wrapped(value(env), dtype))
        apply = _OPERATORS[_REDUCERS[s.reduce]]

        def accumulate(env: Env) -> None:
            position, operand = offset(env), value(env)
            self.write(name, position, _wrapped(apply(self.read(name, position), operand), dtype))

        return accumulate

    def _alloc(self, buffer: Buffer, body: Callable[[Env], None]) -> Callable[[Env], None]:
        def execute(env: Env) -> None:
            self.arrays[buffer.name] = _garbage(buffer)
            body(env)
            del self.arrays[buffer.name]

        return execute

    def _intrinsic(self, s: Intrinsic) -> Callable[[Env], None]:
        if s.name not in self.intrinsics:
            known = ", ".join(self.intrinsics) or "none"
            raise VerificationError(f"intrinsic '{s.name}' has no interpretation; given: {known}")
        function, attrs = self.intrinsics[s.name], dict(s.attrs)
        operands = [(o.buffer, [self.value(i) for i in o.indices]) for o in s.operands]

        def execute(env: Env) -> None:
            views = [(self.arrays[b.name].reshape(b.shape), tuple(i(env) for i in index)) for b, index in operands]
            function(views, attrs)

        return execute
