"""Code generator: a loop program with tokens, statement by statement, as instructions of the accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.errors import ScheduleError
from burnish.loops.expr import Expr
from burnish.loops.program import Alloc, For, If, LoopProgram, Seq, Stmt, Store, walk_stmt
from burnish.loops.traverse import loads
from burnish.machines.decoupled import PUSH, token_unit
from burnish.machines.vdla.address import value_of
from burnish.machines.vdla.code import VdlaKernel, placed
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.epilogue import nest_of
from burnish.machines.vdla.isa import UNITS, Instruction, micro_operation
from burnish.machines.vdla.nests import InstructionNest, nests_of
from burnish.machines.vdla.scopes import ACC, ON_CHIP
from burnish.machines.vdla.transfers import Transfer, transfer_of


def emit(program: LoopProgram, config: Config) -> VdlaKernel:
    """The kernel of a program. Every buffer has a place of its own. Raises ScheduleError, by name, for what does not
    fit, and for what there is no instruction for.
    """
    emitter = _Emitter(config, program)
    emitter.statement(program.body, {})
    return emitter.finish()


class _Emitter:
    def __init__(self, config: Config, program: LoopProgram) -> None:
        self.config = config
        self.memories = config.memories
        self.parameters = placed([p.nbytes for p in program.params])
        self.begins = {p.name: at for p, (at, _) in zip(program.params, self.parameters, strict=True)}
        self.uop_address = VdlaKernel(self.parameters, (), ()).uop_address
        self.ranges = {s.var: s.extent for s in walk_stmt(program.body) if isinstance(s, For)}
        self.instructions: list[tuple[str, dict[str, int]]] = []
        self.places: dict[str, int] = {}  # first entry of each buffer
        self.used = dict.fromkeys(ON_CHIP, 0)  # entries
        self.waiting: dict[str, dict[str, int]] = {unit: {} for unit in UNITS}  # tokens to take
        self.last: dict[str, dict[str, int] | None] = dict.fromkeys(UNITS)  # the fields of a unit's last instruction
        self.uops: list[int] = []  # in DRAM
        self.stored: dict[tuple[int, ...], int] = {}  # micro-operations in DRAM: first
        self.resident: dict[tuple[int, ...], int] = {}  # on chip
        self.uop_end = 0
        self.plans: dict[
            int, list[Transfer] | list[InstructionNest]
        ] = {}  # by identity of a statement, which the program holds

    def finish(self) -> VdlaKernel:
        for unit in UNITS:
            if self.waiting[unit]:
                self._sync(unit)
        made = tuple(Instruction(kind, values) for kind, values in self.instructions)
        return VdlaKernel(self.parameters, made, tuple(self.uops))

    # --- statements ---------------------------------------------------------------------------------------------------

    def statement(self, s: Stmt, env: dict[str, int]) -> None:
        unit = token_unit(s)
        if unit is not None:
            self._token(s, unit)
            return
        match s:
            case Seq(stmts):
                for inner in stmts:
                    self.statement(inner, env)
            case Alloc(buffer, body):
                self._allocate(buffer)
                self.statement(body, env)
            case For(var, extent, kind, body):
                if kind != "serial":
                    raise ScheduleError(f"loop '{var}' is '{kind}'; allowed: serial")
                if not self._is_nest(s):
                    for i in range(extent):
                        self.statement(body, {**env, var: i})
                else:
                    self._nest(s, env)
            case If(cond, body) if not self._is_nest(s):
                if self._holds(cond, env):
                    self.statement(body, env)
            case _:
                self._nest(s, env)

    def _is_nest(self, s: Stmt) -> bool:
        """Whether a statement is one copy or computation, all of whose conditions are known around its loops."""
        around, inner = nest_of(s)
        own = {x.var for x in around if isinstance(x, For)}
        known = all(own.isdisjoint(x.cond.variables) for x in around if isinstance(x, If))
        return known and not isinstance(inner, (Seq, Alloc))

    def _holds(self, cond: Expr, env: Mapping[str, int]) -> bool:
        return bool(value_of(cond, env))

    def _nest(self, s: Stmt, env: dict[str, int]) -> None:
        _, inner = nest_of(s)
        if isinstance(inner, Store) and (inner.buffer.scope != ACC or _from_dram(inner)):
            for transfer in self._plan(s, transfer_of):
                if all(self._holds(guard, env) for guard in transfer.guards):
                    self._transfer(transfer, env)
            return
        for nest in self._plan(s, nests_of):
            if all(self._holds(guard, env) for guard in nest.guards):
                self._compute(nest, env)

    def _plan(self, s: Stmt, make: Any) -> Any:
        if id(s) not in self.plans:
            found = make(s, self.config, self.ranges)
            self.plans[id(s)] = found if isinstance(found, list) else [found]
        return self.plans[id(s)]

    def _allocate(self, buffer: Any) -> None:
        scope = buffer.scope
        if scope not in ON_CHIP:
            raise ScheduleError(f"buffer '{buffer.name}' is in scope '{scope}'; allowed: {', '.join(ON_CHIP)}")
        elements = self.config.block ** (2 if scope == "wgt" else 1)
        wanted = "int8" if scope != ACC else "int32"
        if buffer.size % elements or (buffer.dtype != wanted and (scope, buffer.dtype) != (ACC, "int8")):
            raise ScheduleError(
                f"buffer '{buffer.name}': found {buffer.size} elements of {buffer.dtype}; allowed in scope '{scope}': "
                f"{wanted}, whole entries of {elements}"
            )
        self.places[buffer.name] = self.used[scope]
        self.used[scope] += buffer.size // elements
        if self.used[scope] > self.memories[scope].entries:
            raise ScheduleError(
                f"buffer '{buffer.name}': scope '{scope}' holds {self.memories[scope].entries} entries, "
                f"{self.used[scope]} would be in it"
            )

    # --- instructions -------------------------------------------------------------------------------------------------

    def _transfer(self, t: Transfer, env: dict[str, int]) -> None:
        memory = self.memories[t.memory]
        unit = "store" if t.kind == "store" else "load" if t.memory in ("inp", "wgt") else "compute"
        for block in t.blocks(env):
            block["sram"] += self.places[t.buffer]
            block["dram"] += self.begins[t.parameter]
            self._emit(unit, t.kind, {"memory": memory.code, **block})

    def _compute(self, nest: InstructionNest, env: dict[str, int]) -> None:
        begins = [0 if name is None else self.places[name] for name in nest.buffers]
        for fields, words in nest.parts(self.config, env):
            moved = ([a + b for a, b in zip(word, begins, strict=True)] for word in words)
            begin = self._resident(tuple(micro_operation(self.config, *word) for word in moved))
            self._emit("compute", nest.kind, {**fields, "uop_begin": begin, "uop_end": begin + len(words)})

    def _resident(self, words: tuple[int, ...]) -> int:
        """Where micro-operations are on chip, to where they are loaded if they are not there."""
        if words in self.resident:
            return self.resident[words]
        if self.uop_end + len(words) > self.memories["uop"].entries:
            self.resident, self.uop_end = {}, 0
        if words not in self.stored:
            self.stored[words] = len(self.uops)
            self.uops += words
        begin = self.resident[words] = self.uop_end
        self.uop_end += len(words)
        self._emit("compute", "load", {
            "memory": self.memories["uop"].code, "sram": begin, "rows": 1, "columns": len(words), "stride": len(words),
            "dram": self.uop_address + 4 * self.stored[words],
        })  # fmt: skip
        return begin

    def _emit(self, unit: str, kind: str, values: dict[str, int]) -> None:
        values.update(self.waiting[unit])
        self.waiting[unit] = {}
        self.last[unit] = values
        self.instructions.append((kind, values))

    def _sync(self, unit: str) -> None:
        self._emit(unit, "sync", {"unit": UNITS.index(unit)})

    def _token(self, s: Any, unit: str) -> None:
        """A token as a flag of the unit's next instruction, or of its last one."""
        attrs = dict(s.attrs)
        gives = s.name == PUSH
        other = UNITS.index(attrs["to" if gives else "from"])
        flag = f"{'push' if gives else 'pop'}_{'prev' if other < UNITS.index(unit) else 'next'}"
        if not gives:
            if flag in self.waiting[unit]:
                self._sync(unit)
            self.waiting[unit][flag] = 1
            return
        last = self.last[unit]
        if last is None or self.waiting[unit] or flag in last:
            self._sync(unit)
            last = self.last[unit]
        assert last is not None
        last[flag] = 1


def _from_dram(s: Store) -> bool:
    """Whether a store to accumulators copies from DRAM."""
    return any(x.buffer.scope not in ON_CHIP for x in loads(s.value))
