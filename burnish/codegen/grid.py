"""Kernels for a grid of threads: launches to LLVM IR and PTX; where ptxas is there, machine code and its report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import llvmlite.binding as llvm

from burnish.codegen.addressing import BufferPlace
from burnish.codegen.gridcode import GridCode, LaunchCode, Resources
from burnish.codegen.legal import refuse_unlowered
from burnish.codegen.llvm import FunctionEmitter, KernelModule
from burnish.codegen.objects import parse, target_machine
from burnish.codegen.ptxas import assemble_without_spills
from burnish.codegen.resolve import Resolver
from burnish.codegen.sharing import shared_places, with_dynamic
from burnish.errors import ScheduleError, TargetError
from burnish.loops.expr import Buffer
from burnish.loops.program import For, LoopProgram, Stmt
from burnish.loops.sizes import is_size
from burnish.lower.barriers import check_barriers, insert_barriers
from burnish.lower.pipeline import lower_thread
from burnish.lower.threads import Grids, Launch, launches
from burnish.machines.dialect import LaunchGrid
from burnish.machines.nvptx.tensor_copies import MAP_ALIGNMENT, MAP_BYTES, TensorMap, TensorView
from burnish.machines.target import Target

ALIGNMENT = 256  # of buffers in the workspace
GLOBAL_SPACE = 1  # LLVM's number of the address space
_MAP = re.compile(r"ptr (%map\d+)(?=[,)] ?.*nvvm\.maxntid)")  # among the parameters of a kernel
_BY_VALUE = rf'ptr byval([{MAP_BYTES} x i8]) align {MAP_ALIGNMENT} "nvvm.grid_constant" \1'


def compile_grid(program: LoopProgram, target: Target, assembled: bool = True) -> GridCode:
    """The code of a scheduled program for a device with a grid of threads.

    ``assembled``: also as machine code, where ptxas is installed. Raises ScheduleError, by name, for what the target
    does not lower, TargetError where LLVM or ptxas refuse the code.
    """
    found = lowered(program, target)
    offsets, size = _places(found.workspace)
    text, names, maps = emit_grid(program, target, found, offsets)
    shared = [shared_places(launch, target) for launch in found.launches]
    moved = {name: place for places, nbytes in shared if nbytes for name, place in places.items()}
    ptx = to_ptx(with_dynamic(text, moved), target)
    cubin, report = b"", dict[str, Resources]()
    if assembled:
        ptx, cubin, report = assemble_without_spills(ptx, target.cpu)
    codes = tuple(
        LaunchCode(name, launch.grid, launch.block, report.get(name), nbytes, own)
        for name, launch, (_, nbytes), own in zip(names, found.launches, shared, maps, strict=True)
    )
    written = tuple(i for i, p in enumerate(program.params) if p.name in program.body.writes)
    return GridCode(codes, tuple(p.nbytes for p in program.params), written, size, target.cpu, ptx, text, cubin)


def lowered(program: LoopProgram, target: Target) -> Grids:
    """The launches of a program as code generation takes them, with their barriers."""
    machine, known = target.machine, target.machine.named_intrinsics
    found = launches(program, machine)
    ready = []
    for launch in found.launches:
        waiting = insert_barriers(launch, known)
        done = lower_thread(program, waiting)
        check_barriers(done, known)
        ready.append(done)
    return Grids(found.workspace, tuple(ready))


def _places(workspace: tuple[Buffer, ...]) -> tuple[Mapping[str, int], int]:
    """Where each buffer of the workspace begins, and the bytes of all."""
    offsets, size = {}, 0
    for buffer in workspace:
        offsets[buffer.name] = size
        size += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, size


def bound(launch: Launch) -> Stmt:
    """A launch as a statement: its indices as loops that are bound to them."""
    body = launch.body
    for binding, extent in reversed(launch.extents.items()):
        if extent > 1:
            body = For(binding, extent, binding, body)
    return body


def emit_grid(
    program: LoopProgram, target: Target, found: Grids, offsets: Mapping[str, int]
) -> tuple[str, tuple[str, ...], tuple[tuple[TensorMap, ...], ...]]:
    """LLVM IR of all launches of a program, which calls the functions of the prelude; their names and tensor maps."""
    for buffer in (*program.params, *found.workspace):
        if any(is_size(extent) for extent in buffer.shape):
            raise ScheduleError(f"buffer '{buffer}': found an open dimension; allowed on '{target.name}': numbers")
    module = KernelModule(program.name, target)
    grid = target.machine.dialect.grid
    assert grid is not None
    names, maps = [], []
    for number, launch in enumerate(found.launches):
        name = program.name if len(found.launches) == 1 else f"{program.name}_{number}"
        names.append(name)
        stmt = bound(launch)
        addresses = [*(f"p{i}" for i in range(len(program.params))), "workspace"]
        refuse_unlowered(LoopProgram(program.name, program.params, stmt), target)
        function = FunctionEmitter(module, Resolver())
        for i, buffer in enumerate(program.params):
            place = function.hoist(0, f"addrspacecast ptr addrspace({GLOBAL_SPACE}) %p{i} to ptr")
            function.memory[buffer.name] = BufferPlace(buffer, place, aligned=grid.aligned)
        workspace = function.hoist(0, f"addrspacecast ptr addrspace({GLOBAL_SPACE}) %workspace to ptr")
        for buffer in found.workspace:
            place = function.hoist(0, f"getelementptr i8, ptr {workspace}, i64 {offsets[buffer.name]}")
            function.memory[buffer.name] = BufferPlace(buffer, place, aligned=ALIGNMENT)
        function.statement(stmt)
        own = tuple(_map(view, program, offsets) for view in function.tensor_views)
        maps.append(own)
        given = [f"ptr %map{i}" for i in range(len(own))]
        parameters = ", ".join([*(f"ptr addrspace({GLOBAL_SPACE}) %{name}" for name in addresses), *given])
        block = ",".join(map(str, launch.block))
        convention = target.machine.dialect.kernel
        signature = f'define {convention} void @{name}({parameters}) "nvvm.maxntid"="{block}"'
        module.functions.append(function.finish(signature))
    return module.text(), tuple(names), tuple(maps)


def _map(view: TensorView, program: LoopProgram, offsets: Mapping[str, int]) -> TensorMap:
    """The tensor map of a buffer: of a parameter, or in the workspace, which is behind all of these."""
    known = [p.name for p in program.params]
    argument = known.index(view.buffer) if view.buffer in known else len(known)
    return TensorMap(argument, offsets.get(view.buffer, 0), view.dtype, view.shape, view.box)


def to_ptx(text: str, target: Target) -> str:
    """PTX of LLVM IR that calls the functions of the target's prelude."""
    grid = target.machine.dialect.grid
    assert grid is not None
    machine = target_machine(target)
    try:
        own = _MAP.sub(_BY_VALUE, _without_declarations(text))
        module = parse(f"{own}\n{_used(text, _prelude(grid, target))}", machine)
        module.verify()
    except RuntimeError as error:
        raise TargetError(f"target '{target.name}': LLVM does not accept the code of a kernel ({error})") from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


def _prelude(grid: LaunchGrid, target: Target) -> Mapping[str, str]:
    """The functions of the prelude for a target, as :func:`_functions`."""
    found = dict(_functions(grid.prelude))
    for feature, text in grid.older.items():
        if not target.has(feature):
            own = _functions(text)
            found |= {name: code for name, code in own.items() if name} | {"": found[""] + own[""]}
    return found


@cache
def _functions(prelude: str) -> Mapping[str, str]:
    """The parts of a prelude by the functions that they define; by no name what it declares."""
    parts = re.split(r"^(?=define )", prelude, flags=re.MULTILINE)
    found: dict[str, list[str]] = {"": []}
    for part in parts:
        defined = re.match(r"define [^@]*@([\w.]+)\(", part)
        end = part.index("\n}\n") + 3 if defined and "\n}\n" in part else len(part)
        if defined:
            found[defined[1]] = [part[:end]]
            part = part[end:]
        found[""].append(part)
    return {name: "\n".join(texts) for name, texts in found.items()}


def _used(text: str, functions: Mapping[str, str]) -> str:
    """A prelude without the functions that nobody calls."""
    wanted, parts = [text], []
    taken: set[str] = set()
    while wanted:
        called = {*re.findall(r"@(gpu\.[\w.]+)\(", wanted.pop())} & {*functions} - taken
        taken |= called
        wanted += [functions[name] for name in called]
    parts = [functions[""], *(functions[name] for name in functions if name in taken)]
    return "\n".join(parts)


def _without_declarations(text: str) -> str:
    """The text without declarations of functions that a prelude defines."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("declare") or "@gpu." not in line)
