"""A back end in one package: an accelerator that nobody has, simulated.

The machine has a scalar unit, 16 KB of on-chip memory, and one instruction that multiplies 4 x 4 tiles there. Nothing
of Burnish changes for it: a `Machine` says what it is, a `Template` how convolutions are scheduled for it, `compile`
turns loop programs into its instructions, and `Device` executes them. The rest is `burnish.compile(model, target=TOY)`.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from burnish.errors import ScheduleError
from burnish.kernels.cpu.common import apply_layouts, single_output
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Binary, Buffer, Const, Expr, Load, Select, Var
from burnish.loops.numeric import OPERATORS
from burnish.loops.program import Alloc, For, Intrinsic, LoopProgram, Seq, Stmt, Store
from burnish.loops.tensor import Tensor
from burnish.machines.dialect import Dialect
from burnish.machines.intrinsics import declare
from burnish.machines.machine import Core, Machine
from burnish.machines.scopes import GLOBAL, MemoryScope
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

SRAM = MemoryScope("sram", capacity=16 << 10)
C, A, B = (Buffer(name, (4, 4)) for name in "cab")
I, J, K = Var("i"), Var("j"), Var("k")  # noqa: E741
BODY = Store(C, (I, J), Load(A, (I, K)) * Load(B, (K, J)), "sum")
TILES = declare("mm4", (C, A, B), [("i", 4), ("j", 4), ("k", 4)], BODY, free="c a")


def convolution(task: KernelTask, target: Target) -> Tensor | None:
    """The sums of one dense convolution of whole tiles, with element-wise operators after it; None of other tasks."""
    conv = task.anchor()
    if conv is None or len(conv.shape) != 4 or len(task.outputs) != 1 or conv.shape != task.outputs[0].shape:
        return None
    data, weight = conv.inputs
    whole = not any(n % 4 for n in (conv.shape[1], conv.shape[3], data.shape[1]))
    return conv if whole and weight.name in task.constants and weight.shape[1] == data.shape[1] else None


def apply(task: KernelTask, target: Target, conv: Tensor, choice: Choice) -> Schedule:
    """Tiles of 4 pixels x 4 channels, summed in on-chip memory over windows of input rows that are copied there."""
    out, (data, weight) = single_output(task), conv.inputs
    s = Schedule(task.program(), scopes=[SRAM])
    s.inline_all(keep=(out, conv.name, data.name))
    sums = s.cache_write(out, SRAM) if conv.name == out else conv.name
    source = s.cache_read(data.name, SRAM, sums) if data in task.inputs else data.name
    apply_layouts(s, task, {weight.name: "ABCD4b4a"})
    n, c, h, w = s.loops(out)
    block, c = s.split(c, 4)
    over, w = s.split(w, 4)
    s.reorder(n, h, block, over, w, c)
    s.compute_at(sums, over)
    s.compute_at(source, h)
    for buffer in (source, sums):
        s.set_scope(buffer, SRAM)
        s.transform_layout(buffer, "ABCD4b")
    n, c, h, w, k, y, x = s.loops(sums)
    k_block, k = s.split(k, 4)
    s.reorder(n, h, k_block, y, x, w, c, k)
    s.tensorize(w, TILES)
    return s


def scalar(task: KernelTask, target: Target, form: bool, choice: Choice) -> Schedule:
    """Anything else as it is defined, on the scalar unit."""
    apply_layouts(s := Schedule(task.program()), task, {})
    return s


def expression(e: Expr) -> Any:
    match e:
        case Const(value=value):
            return value
        case Var(name):
            return name
        case Binary(op, a, b) if op in OPERATORS:
            return [op, expression(a), expression(b)]
        case Select(cond, a, b):
            return ["select", expression(cond), expression(a), expression(b)]
        case Load(buffer, indices):
            return ["load", buffer.name, address(buffer, indices)]
    raise ScheduleError(f"the scalar unit has no instruction for '{e}'")


def address(buffer: Buffer, indices: Sequence[Expr]) -> Any:
    place: Any = 0
    for extent, index in zip(buffer.shape, indices, strict=True):
        place = ["+", ["*", place, extent], expression(index)]
    return place


def instructions(s: Stmt, used: int = 0) -> list[Any]:
    """The instructions of a statement; ``used``: elements of on-chip memory that are taken around it."""
    match s:
        case Seq(stmts):
            return [line for inner in stmts for line in instructions(inner, used)]
        case For(var, extent, _, body):
            return [["loop", var, extent, instructions(body, used)]]
        case Alloc(buffer, body):
            mine = buffer.size if buffer.scope == SRAM.name else 0
            return [["alloc", buffer.name, used if mine else None, buffer.size], *instructions(body, used + mine)]
        case Store(buffer, indices, value, reduce):
            how = {"sum": "+", "prod": "*"}.get(reduce or "", reduce)
            return [["store", buffer.name, address(buffer, indices), how, expression(value)]]
        case Intrinsic(name, operands, attrs):
            places = [[o.buffer.name, address(o.buffer, o.indices)] for o in operands]
            return [[name, places, [dict(attrs).get(f"{t.name}_stride", 4) for t in TILES.operands]]]
    raise ScheduleError(f"there is no instruction for {s}")


def compile_program(program: LoopProgram, target: Target) -> tuple[bytes, int]:
    return json.dumps([[p.name for p in program.params], instructions(program.body)]).encode(), 0


class Device:
    """Executes code on memory, which it writes to. ``products`` counts the tiles that it has multiplied."""

    def __init__(self) -> None:
        self.sram = np.full(SRAM.capacity // 4, np.nan, np.float32)  # type: ignore[operator]
        self.products = 0

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        parameters, program = json.loads(code)
        self.memory = dict(zip(parameters, (m.view(np.float32) for m in memory), strict=True))
        self.variables: dict[str, int] = {}
        self.execute(program)

    def execute(self, code: list[Any]) -> None:
        for word, *rest in code:
            match word, rest:
                case "loop", [var, extent, body]:
                    for self.variables[var] in range(extent):
                        self.execute(body)
                case "alloc", [name, first, size]:
                    self.memory[name] = np.empty(size, np.float32) if first is None else self.sram[first:][:size]
                case "store", [name, place, how, value]:
                    at, new = self.value(place), self.value(value)
                    self.memory[name][at] = OPERATORS[how](self.memory[name][at], new) if how else new
                case "mm4", [places, strides]:
                    c, a, b = (self.tile(*p, stride) for p, stride in zip(places, strides, strict=True))
                    c += a @ b
                    self.products += 1

    def tile(self, name: str, place: Any, stride: int) -> np.ndarray:
        flat = self.memory[name][self.value(place) :][: 3 * stride + 4]
        return np.lib.stride_tricks.as_strided(flat, (4, 4), (4 * stride, 4))

    def value(self, e: Any) -> Any:
        match e:
            case str():
                return self.variables[e]
            case ["select", cond, a, b]:
                return self.value(a if self.value(cond) else b)
            case ["load", name, place]:
                return self.memory[name][self.value(place)]
            case [op, a, b]:
                return OPERATORS[op](self.value(a), self.value(b))
        return e


MACHINE = Machine(
    name="toy", kind="toy", architectures=("toy",), vectors=lambda features: (16, 1), core=Core(None, 1e9, 1e9, 1e9),
    dialect=Dialect({"serial": None}), scopes=(GLOBAL, SRAM), intrinsics=(TILES,), compile=compile_program,
    device=Device,
    templates=tuple(
        Template(name, form, lambda *any: ScheduleSpace({}, {}), how)
        for name, form, how in (("tiles", convolution, apply), ("scalar", lambda *any: True, scalar))
    ),
)  # fmt: skip
TOY = Target("toy", "toy-none", "toy", frozenset(), 16, 1, 16 << 10, 16 << 10, 0, 1, MACHINE)
