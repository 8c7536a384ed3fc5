"""Nests of products and of element-wise operations as instructions: two hardware loops around micro-operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from burnish.errors import ScheduleError
from burnish.loops.expr import Binary, Call, Cast, Const, Expr, Load
from burnish.loops.program import For, If, Intrinsic, Stmt, Store
from burnish.machines.vdla.address import Env, LinearAddress, address_of
from burnish.machines.vdla.config import AluOp, Config
from burnish.machines.vdla.epilogue import nest_of
from burnish.machines.vdla.isa import formats
from burnish.machines.vdla.scopes import ACC, INP, WGT

OPERANDS = ("dst", "src", "wgt")


@dataclass(frozen=True)
class InstructionLoop:
    """A loop, and by how many entries each operand moves in an iteration."""

    var: str
    extent: int
    steps: tuple[int, int, int]


@dataclass(frozen=True)
class InstructionNest:
    """An instruction for all iterations of loops: its ``kind``, ``fields`` except addresses, and for each operand its
    buffer (None: it has no such operand) and address in entries. ``guards``: what must hold around it.
    """

    kind: str
    fields: Mapping[str, int]
    buffers: tuple[str | None, str | None, str | None]
    addresses: tuple[LinearAddress, LinearAddress, LinearAddress]
    loops: tuple[InstructionLoop, ...]
    guards: tuple[Expr, ...]

    def parts(self, config: Config, env: Env) -> Iterator[tuple[dict[str, int], list[tuple[int, int, int]]]]:
        """Fields of instructions, and the micro-operations of each, relative to the beginnings of the buffers."""
        hardware = self._hardware(config)
        rest = [loop for loop in self.loops if loop not in hardware]
        outside: list[InstructionLoop] = []
        while rest and _count(rest) > config.memories["uop"].entries:
            outside.append(rest.pop(0))
        fields = dict(self.fields)
        for name, loop in zip(("outer", "inner"), hardware, strict=True):
            fields[name] = loop.extent
            for operand, step in zip(OPERANDS, loop.steps, strict=True):
                if step:
                    fields[f"{operand}_{name}"] = step
        for around in product(*(range(loop.extent) for loop in outside)):
            here = {**env, **{loop.var: i for loop, i in zip(outside, around, strict=True)}}
            base = [address.at(here) for address in self.addresses]
            words = []
            for point in product(*(range(loop.extent) for loop in rest)):
                moved = [sum(i * loop.steps[o] for i, loop in zip(point, rest, strict=True)) for o in range(3)]
                words.append((base[0] + moved[0], base[1] + moved[1], base[2] + moved[2]))
            yield dict(fields), words

    def _hardware(self, config: Config) -> list[InstructionLoop]:
        """The two longest loops that the fields of an instruction can hold, in order."""
        limits = {f.name: f.range[1] for f in formats(config)[self.kind]}

        def fits(loop: InstructionLoop) -> bool:
            steps = zip(OPERANDS, loop.steps, strict=True)
            return loop.extent <= limits["inner"] and all(0 <= s <= limits.get(f"{o}_inner", 0) for o, s in steps)

        best = sorted((x for x in self.loops if fits(x)), key=lambda x: -x.extent)[:2]
        found = [loop for loop in self.loops if loop in best]
        return [*[InstructionLoop("", 1, (0, 0, 0))] * (2 - len(found)), *found]


def _count(loops: Sequence[InstructionLoop]) -> int:
    total = 1
    for loop in loops:
        total *= loop.extent
    return total


def nests_of(stmt: Stmt, config: Config, ranges: Mapping[str, int]) -> list[InstructionNest]:
    """The instructions that a nest of the compute unit is, one after the other. Raises ScheduleError for others."""
    around, inner = nest_of(stmt)
    loops = [x for x in around if isinstance(x, For)]
    guards = tuple(x.cond for x in around if isinstance(x, If))
    within = {**ranges, **{x.var: x.extent for x in loops}}
    if isinstance(inner, Intrinsic):
        return [_intrinsic(inner, loops, guards, config, within)]
    if not isinstance(inner, Store) or inner.reduce is not None:
        raise ScheduleError(f"there is no instruction for {inner}")
    place = Load(inner.buffer, inner.indices)
    lane = _lane(place, loops, config, within)
    if inner.value == Const(0, inner.value.dtype):
        fields: list[tuple[str, dict[str, int], Load | None]] = [("gemm", {"reset": 1}, None)]
    else:
        fields = [("alu", *each) for each in _chain(inner.value, place, config)]
    others = [x for x in loops if x.var != lane]
    moves = address_of(place, within)
    repeats = next((x.var for x in others if x.extent > 1 and not moves.step(x.var)), None)
    if repeats is not None and len(fields) > 1:
        raise ScheduleError(f"loop '{repeats}' repeats '{inner}', which is {len(fields)} instructions; allowed: one")
    made = []
    for kind, own, source in fields:
        if source is not None and _lane(source, loops, config, within) != lane:
            raise ScheduleError(f"'{inner}': '{source}' and '{place}' do not lie in lanes alike")
        operands = (place, source, None)
        made.append(_nest(kind, own, operands, others, guards, within, lambda x: config.block, (lane,)))
    return made


def _intrinsic(
    s: Intrinsic, loops: Sequence[For], guards: tuple[Expr, ...], config: Config, ranges: Mapping[str, int]
) -> InstructionNest:
    by_scope = {operand.buffer.scope: operand for operand in s.operands}
    operands = (by_scope.get(ACC), by_scope.get(INP), by_scope.get(WGT))
    if len(by_scope) != len(s.operands) or operands[0] is None or len(s.operands) not in (1, 3) or dict(s.attrs):
        words = ", ".join(f"'{o.buffer.name}' in '{o.buffer.scope}'" for o in s.operands)
        raise ScheduleError(f"intrinsic '{s.name}': operands are {words}; allowed: one in each of {ACC}, {INP}, {WGT}")
    reset = {"reset": 1} if len(s.operands) == 1 else {}

    def elements(operand: Load) -> int:
        return config.block**2 if operand.buffer.scope == WGT else config.block

    return _nest("gemm", reset, operands, loops, guards, ranges, elements)


def _nest(
    kind: str,
    fields: Mapping[str, int],
    operands: tuple[Load | None, Load | None, Load | None],
    loops: Sequence[For],
    guards: tuple[Expr, ...],
    ranges: Mapping[str, int],
    elements: Callable[[Load], int],
    lanes: tuple[str, ...] = (),
) -> InstructionNest:
    found = []
    for operand in operands:
        if operand is None:
            found.append(LinearAddress({}, 0))
        else:
            found.append(address_of(operand, ranges).scaled(elements(operand), f"operand '{operand}'", lanes))
    steps = [InstructionLoop(x.var, x.extent, tuple(a.step(x.var) for a in found)) for x in loops if x.extent > 1]  # type: ignore[arg-type]
    names = tuple(None if o is None else o.buffer.name for o in operands)
    return InstructionNest(kind, fields, names, tuple(found), tuple(_merged(steps)), guards)  # type: ignore[arg-type]


def _merged(loops: Sequence[InstructionLoop]) -> list[InstructionLoop]:
    result: list[InstructionLoop] = []
    for loop in loops:
        if result and result[-1].steps == tuple(step * loop.extent for step in loop.steps):
            result[-1] = InstructionLoop(loop.var, result[-1].extent * loop.extent, loop.steps)
        else:
            result.append(loop)
    return result


def _lane(place: Load, loops: Sequence[For], config: Config, ranges: Mapping[str, int]) -> str:
    """The loop over the lanes of accumulators."""
    address = address_of(place, ranges)
    lane = next((x.var for x in loops if x.extent == config.block and address.step(x.var) == 1), None)
    if lane is None or place.buffer.scope != ACC:
        raise ScheduleError(f"'{place}' is not computed by vectors of {config.block} accumulators")
    return lane


def _chain(value: Expr, place: Load, config: Config) -> list[tuple[dict[str, int], Load | None]]:
    """A value as operations one after the other on ``place``, which holds the first operand: fields and second operand.

    Raises ScheduleError for what the ALU has not.
    """
    if isinstance(value, Cast) and value.dtype == "int32":
        return _chain(value.value, place, config)
    if value == place:
        return []
    op, a, b = _operation(value)
    found = next((known for known in config.alu if known.op == op), None)
    commutes = op in ("+", "*", "min", "max")
    if op == "-" and found is None and isinstance(b, Const):
        found, b = next((known for known in config.alu if known.op == "+"), None), Const(-int(b.value), b.dtype)
    if found is None or value.dtype != "int32":
        known = ", ".join(each.op for each in config.alu)
        raise ScheduleError(
            f"the ALU has no operation '{op}' of {value.dtype}, as in '{value}'; it has {known} of int32"
        )
    if commutes and not _holds(a, place):
        a, b = b, a
    if not _holds(a, place):
        raise ScheduleError(f"'{value}' is not computed from '{place}' by operations one after the other")
    return [*_chain(a, place, config), _second(found, b)]


def _operation(value: Expr) -> tuple[str, Expr, Expr]:
    if isinstance(value, Binary):
        return value.op, value.a, value.b
    if isinstance(value, Call) and len(value.args) == 2:
        return value.fn, *value.args
    raise ScheduleError(f"the ALU has no operation for '{value}'")


def _holds(e: Expr, place: Load) -> bool:
    return e == place or any(_holds(child, place) for child in e.children)


def _second(op: AluOp, e: Expr) -> tuple[dict[str, int], Load | None]:
    """The fields of an operation by its second operand: a number, or accumulators."""
    if isinstance(e, Const):
        return {"op": op.code, "immediate": 1, "value": int(e.value)}, None
    source = e.value if isinstance(e, Cast) and e.dtype == "int32" else e
    if not isinstance(source, Load):
        raise ScheduleError(f"the ALU takes no '{e}' as its second operand; allowed: numbers and accumulators")
    return {"op": op.code}, source
