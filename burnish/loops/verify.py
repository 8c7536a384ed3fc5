"""The verifier of loop programs: names, scopes, dtypes, and every index inside its buffer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from burnish.errors import ScheduleError
from burnish.loops.expr import (
    ARITHMETIC,
    COMPARISONS,
    DTYPES,
    INDEX,
    LOGICAL,
    REDUCTIONS,
    SCOPES,
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Reduce,
    Select,
    Var,
    arity,
)
from burnish.loops.loaded import is_loaded
from burnish.loops.program import KINDS, Alloc, For, If, Intrinsic, LoopProgram, Seq, Stmt, Store
from burnish.loops.regions import accesses, within
from burnish.loops.sizes import least
from burnish.loops.traverse import children, loads


def verify(program: LoopProgram, scopes: Collection[str] = SCOPES) -> None:
    """Raises ScheduleError, naming stage and loops, at the first violation of the grammar of loop programs.

    An index must be provably inside its buffer under the conditions around it; one that is itself loaded from a buffer
    (a gather) is exempt, and so are the ends of a loop that are loaded: both are checked where they are given.
    ``scopes``: the names of those that a buffer may be in.
    """
    known: dict[str, Buffer] = {}
    for buffer in program.params:
        _Checker(program.name, (), known, scopes).declare(buffer)
        known[buffer.name] = buffer
    _Checker(program.name, (), known, scopes).stmt(program.body)
    for access in accesses(program.body, {}):
        for d, (index, size) in enumerate(zip(access.indices, access.buffer.shape, strict=True)):
            if not loads(index) and not within(index, size, access.ranges, access.given):
                raise ScheduleError(
                    f"program '{program.name}', loops {', '.join(access.ranges) or 'none'}: index {d} of buffer "
                    f"'{access.buffer.name}', '{index}', may leave its {size} elements"
                )


class _Checker:
    """Checks names, ranks and dtypes below the loops ``path``, where the buffers ``known`` exist."""

    def __init__(
        self,
        program: str,
        path: tuple[str, ...],
        known: Mapping[str, Buffer],
        scopes: Collection[str],
        stage: str = "",
    ) -> None:
        self.program, self.path, self.known, self.scopes, self.stage = program, path, known, scopes, stage

    def fail(self, message: str) -> ScheduleError:
        stage = f", stage '{self.stage}'" if self.stage else ""
        loops = f", loops {', '.join(self.path)}" if self.path else ""
        return ScheduleError(f"program '{self.program}'{stage}{loops}: {message}")

    def declare(self, buffer: Buffer) -> None:
        if buffer.name in self.known:
            raise self.fail(f"buffer '{buffer.name}' is declared twice")
        if buffer.dtype not in DTYPES or buffer.scope not in self.scopes or any(least(d) < 0 for d in buffer.shape):
            raise self.fail(f"buffer '{buffer}' has an unknown dtype or scope or a negative extent")

    def stmt(self, s: Stmt) -> None:
        match s:
            case Seq(stmts):
                for inner in stmts:
                    self.stmt(inner)
            case For(var, extent, kind, body):
                if var in self.path:
                    raise self.fail(f"loop '{var}' shadows the loop of the same name around it")
                if kind not in KINDS:
                    raise self.fail(f"loop '{var}' has unknown kind {kind!r}; allowed: {', '.join(KINDS)}")
                if least(extent) < 0:
                    raise self.fail(f"loop '{var}' has negative extent {extent}")
                if is_loaded(extent):
                    self.typed(extent.begin, INDEX, "begin of a loop")
                    self.typed(extent.end, INDEX, "end of a loop")
                _Checker(self.program, (*self.path, var), self.known, self.scopes).stmt(body)
            case If(cond, body):
                self.typed(cond, "bool", "condition")
                self.stmt(body)
            case Alloc(buffer, body):
                self.declare(buffer)
                _Checker(self.program, self.path, {**self.known, buffer.name: buffer}, self.scopes).stmt(body)
            case Store(buffer, indices, value, reduce):
                inside = _Checker(self.program, self.path, self.known, self.scopes, buffer.name)
                inside.access(buffer, indices)
                inside.typed(value, buffer.dtype, "value")
                if reduce is not None and reduce not in REDUCTIONS:
                    raise inside.fail(f"unknown reduction {reduce!r}; allowed: {', '.join(REDUCTIONS)}")
            case Intrinsic(name, operands, _):
                inside = _Checker(self.program, self.path, self.known, self.scopes, name)
                for operand in operands:
                    inside.access(operand.buffer, operand.indices)

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        declared = self.known.get(buffer.name)
        if declared is None:
            raise self.fail(f"buffer '{buffer.name}' is neither a parameter nor allocated around its use")
        if declared != buffer:
            raise self.fail(f"buffer '{buffer}' is declared as '{declared}'")
        if len(indices) != len(buffer.shape):
            raise self.fail(f"buffer '{buffer}' is accessed with {len(indices)} indices")
        for index in indices:
            self.typed(index, INDEX, "index")

    def typed(self, e: Expr, dtype: str, role: str) -> None:
        self.expr(e)
        if e.dtype != dtype:
            raise self.fail(f"{role} '{e}' has dtype {e.dtype}, needed is {dtype}")

    def expr(self, e: Expr) -> None:
        for child in children(e):
            self.expr(child)
        match e:
            case Var(name) if name not in self.path:
                raise self.fail(f"variable '{name}' is not a loop around its use")
            case Const(_, dtype) | Cast(dtype, _) if dtype not in DTYPES:
                raise self.fail(f"'{e}' has unknown dtype {dtype!r}")
            case Binary(op, a, b):
                if op not in (*ARITHMETIC, *COMPARISONS, *LOGICAL):
                    raise self.fail(f"unknown operator {op!r} in '{e}'")
                if a.dtype != b.dtype or (op in LOGICAL and a.dtype != "bool"):
                    raise self.fail(f"operands of '{e}' have dtypes {a.dtype} and {b.dtype}")
            case Not(a) if a.dtype != "bool":
                raise self.fail(f"operand of '{e}' has dtype {a.dtype}, needed is bool")
            case Select(cond, a, b) if cond.dtype != "bool" or a.dtype != b.dtype:
                raise self.fail(f"'{e}' has a condition of {cond.dtype} and branches of {a.dtype} and {b.dtype}")
            case Call(fn, args) if arity(fn) != len(args):
                raise self.fail(f"unknown function {fn!r} of {len(args)} arguments in '{e}'")
            case Load(buffer, indices):
                self.access(buffer, indices)
            case Reduce():
                raise self.fail(f"a reduction '{e}' may only occur in definitions")
