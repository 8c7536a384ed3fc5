"""Assembly of a compilation: plans memory, packs parameters, links kernels, and makes the module that runs them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from burnish.base import dump
from burnish.codegen.entries import entry_name
from burnish.driver.concurrent import weights
from burnish.driver.nested import buffers_of as nested_buffers
from burnish.driver.nested import make_nested, row_major_operands
from burnish.driver.rounds import buffers_of, make_repeat, moving_operands
from burnish.driver.stages import (
    Built,
    Compilation,
    HostStage,
    KernelStage,
    MessageStage,
    NestedStage,
    RepeatStage,
    make_call,
    make_host,
    make_message,
    nbytes_of,
    place_of,
    stored,
    with_waits,
)
from burnish.errors import InputError, ModelError, UnsupportedOperator
from burnish.graph.compose import overwritable
from burnish.graph.domain import input_domains
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph
from burnish.graph.rounds import rounds_of
from burnish.graph.structures import relied_on
from burnish.loops.layout import Layout, layout
from burnish.loops.size_text import extent_text
from burnish.loops.sizes import dims_of, greatest, hinted, is_size, least
from burnish.machines.machine import STRICT
from burnish.machines.target import Target
from burnish.measure.roofline import work_of
from burnish.measure.samples import plain_domains
from burnish.memory.lifetimes import Interval, joint_lifetime, lifetimes, live_bytes
from burnish.memory.lifetimes import LifetimeStep as Access
from burnish.memory.pieces import Place
from burnish.memory.share import ArenaPlan, plan
from burnish.pipeline.kernel import slowness
from burnish.runtime.buffers import ALIGNMENT, allocate, round_up
from burnish.runtime.build import build as link_executable
from burnish.runtime.devices import device_for, has_own_form
from burnish.runtime.executable import CallShare, ConcurrentCalls, CopyStep, Count, Executable, Slot, Step
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module
from burnish.runtime.steps import Native
from burnish.runtime.structures import NAME as STRUCTURES
from burnish.runtime.structures import Check

MOST_COUNTED = 1 << 30  # bytes of a value whose extent a call counts


def make_module(made: Compilation, threads: int | None = None) -> Module:
    """The module of a compilation, on the target's device where its machine has one. Errors as of ``Module``.

    One for a CPU that this machine is not can be saved; calling it raises ArtifactError.
    """
    executable = assemble(made)
    return Module(executable, threads, device=device_for(made.target.machine, executable.target))


def assemble(made: Compilation) -> Executable:
    """Plans memory, packs parameters and links the kernels."""
    graph, stages = made.graph, made.stages
    _require_room(graph)
    natives = [s.kernel for s in made.hosts if s.kernel is not None]
    kernels = [*(s.kernel for s in stages), *natives]
    intervals, pairs, home = live_values(made)
    symbolic = any(is_size(i.nbytes) for i in intervals)
    at_hint = [replace(i, nbytes=hinted(i.nbytes)) for i in intervals]
    memory = plan(at_hint, pairs)
    places = {
        i.name: Slot("arena", at) if symbolic else Slot("arena", 0, memory.offsets[i.name])
        for at, i in enumerate(intervals)
    }
    dump.form("memory", memory)
    after = {graph.outputs[state.output]: name for name, state in graph.states.items()}
    inputs = [name for name in graph.inputs if name not in graph.states]
    structures = structures_of(made, inputs)
    inputs += [name for stage in made.structures for name in stage.group.outputs]
    outputs = [name for name in graph.outputs if name not in after]
    state_slots = {name: Slot("state", i) for i, name in enumerate(graph.states)}
    copied = states_by_copy(made, home)
    slots = {**places, **state_slots}
    slots |= {name: Slot("input", i) for i, name in enumerate(inputs)}
    slots |= {name: Slot("output", i) for i, name in enumerate(outputs)}
    slots |= {value: state_slots[name] for value, name in after.items() if value not in copied}
    row_major = dict[tuple[str, str], None]()
    for part in made.within:
        read = [n for step in part.steps if isinstance(step, HostStage) for n in step.group.inputs]
        read += [n for s in part.steps if isinstance(s, NestedStage) for n in row_major_operands(s, made.constants)]
        row_major.update(dict.fromkeys((n, "") for n in (*read, *moving_operands(part.steps)) if n in made.constants))
    params, constants = pack_parameters(stages, made.constants, list(row_major))
    dims = [d.name for d in graph.dims]
    counted = {holder: d for d, holder in graph.counts.items()}

    def counts_of(stage: KernelStage | HostStage | RepeatStage | NestedStage | MessageStage) -> list[Step]:
        """Count steps, which make known the values of dimensions that a stage has counted."""
        found = [(d, name) for name, d in counted.items() if name in stage.group.outputs]
        return [Count(d, replace(place_of(constants, home, slots, n), nbytes=8), str(d)) for d, n in found]

    own = [(_step_of(made, stage, home, constants, slots, dims), stage) for stage in made.calls]
    steps = with_waits([each for step, stage in own for each in (step, *counts_of(stage))])
    concurrent = concurrent_calls(made, {id(stage): step for step, stage in own}, steps)
    for value in copied:
        name, place, nbytes = after[value], home[value], graph.types[value].nbytes
        source = replace(slots[place.buffer], offset=slots[place.buffer].offset + place.offset, nbytes=nbytes)
        steps.append(CopyStep(source, replace(state_slots[name], nbytes=nbytes), f"state {name}"))
    domains = input_domains(made.reference) if graph.inputs == made.reference.inputs else {}
    driver = fingerprint(made.target.driver.triple, made.target.driver.cpu, made.target.driver.features)
    return link_executable(
        inputs=[stored(graph, n, made.layouts) for n in inputs],
        outputs=[stored(graph, n, made.layouts) for n in outputs],
        steps=steps,
        objects={kernel.symbol: kernel.code for kernel in kernels},
        params=params,
        arena_bytes=memory.arena_bytes,
        scratch_bytes=max((*(kernel.scratch_bytes for kernel in kernels), *map(_scratch_of, _groups(made)), 0)),
        target=fingerprint(made.target.triple, made.target.cpu, made.target.features),
        graph=str(graph),
        info={
            "arena": str(memory),
            "kernels": describe(stages, made.layouts, made.target),
            "domains": plain_domains(domains),
            **({STRUCTURES: structures} if structures else {}),
            **({"driven_by": driver} if made.target.machine.offloads else {}),
            **({"precision": made.target.precision} if made.target.precision != STRICT else {}),
            "live": list(live_bytes(at_hint, memory.in_place)),
        },
        concurrent=concurrent,
        buffers=intervals if symbolic else (),
        in_place=pairs if symbolic else (),
        states={name: state.initial for name, state in graph.states.items()},
        driven_by=(driver if made.target.machine.offloads else "") if has_own_form(made.target.machine) else None,
    )


def concurrent_calls(
    made: Compilation, calls: Mapping[int, Step], steps: Sequence[Step]
) -> tuple[ConcurrentCalls, ...]:
    """Concurrent calls of a compilation; ``calls``: the step of each stage, by its identity, which is among ``steps``.

    Each kernel has scratch memory of its own: what it holds there may last from one region to the next.
    """
    numbers = {id(step): number for number, step in enumerate(steps)}
    found = []
    for group, stages in zip(made.concurrent, _groups(made), strict=True):
        own = [numbers[id(calls[id(stage)])] for stage in stages]
        ends = [0, *accumulate(round_up(stage.kernel.scratch_bytes, ALIGNMENT) for stage in stages)]
        regions = []
        for region in group.regions:
            names = [
                entry_name(stages[s.place].kernel.symbol, s.region) if s.extent else stages[s.place].kernel.symbol
                for s in region
            ]
            parts = weights([s.seconds for s in region])
            regions.append(
                tuple(
                    CallShare(own[s.place], name, s.extent, weight, ends[s.place])
                    for s, name, weight in zip(region, names, parts, strict=True)
                )
            )
        found.append(ConcurrentCalls(own[0], group.count, group.threads, tuple(regions)))
    return tuple(found)


def _groups(made: Compilation) -> list[list[KernelStage]]:
    """The kernels of each group of concurrent ones."""
    return [
        [step for step in made.steps[group.first : group.last + 1] if isinstance(step, KernelStage)]
        for group in made.concurrent
    ]


def _scratch_of(stages: Sequence[KernelStage]) -> int:
    """Bytes of scratch memory of concurrent kernels."""
    return sum(round_up(stage.kernel.scratch_bytes, ALIGNMENT) for stage in stages)


def _require_room(graph: Graph) -> None:
    """Refuses extents that a call counts where memory for the greatest of them is too much to have it at hand."""
    counted = graph.counts
    for name, t in graph.types.items() if counted else ():
        if counted.keys() & dims_of(t.shape) and greatest(t.nbytes) > MOST_COUNTED:
            allowed = f"{MOST_COUNTED} bytes, since a call computes the extent"
            raise UnsupportedOperator(f"value '{name}': found up to {greatest(t.nbytes)} bytes; allowed: {allowed}")


def _step_of(
    made: Compilation,
    stage: KernelStage | HostStage | RepeatStage | NestedStage | MessageStage,
    home: Mapping[str, Place],
    constants: Mapping[tuple[str, str], Slot],
    slots: Mapping[str, Slot],
    dims: Sequence[str],
) -> Step:
    """The step of a stage: where it finds everything. ``home``: the place of each value in a buffer; ``slots``: where
    buffers, inputs and outputs are.
    """
    place = partial(place_of, constants, home, slots)
    if isinstance(stage, KernelStage):
        return make_call(stage, home, constants, slots, dims)
    if isinstance(stage, MessageStage):
        return make_message(stage, place((*stage.group.inputs, *stage.group.outputs)[0]))
    if isinstance(stage, HostStage):
        return make_host(made.graph, stage, home, constants, slots, dims)
    if isinstance(stage, RepeatStage):
        inside = live_values(stage.inner)[2]
        rounds = rounds_of(made.graph, stage.node)
        return make_repeat(stage, inside, constants, slots, place, dims, rounds)

    def steps_of(body: Compilation, own: Mapping[str, Slot]) -> list[Native]:
        inside = live_values(body)[2]
        return [_step_of(body, each, inside, constants, own, dims) for each in body.calls]  # type: ignore[misc]

    return make_nested(stage, live_values, slots, place, steps_of)


def structures_of(made: Compilation, inputs: Sequence[str]) -> dict[str, Any]:
    """Input checks of a module's call and tensors derived from inputs, as ``runtime.structures`` reads them.

    Raises ModelError for constants that are not what kernels rely on.
    """
    numbers = {name: i for i, name in enumerate(inputs)}
    derived: list[list[Any]] = []
    for stage in made.structures:
        operands = [numbers[name] for name in stage.group.inputs]
        derived.append([stage.node.op, operands, dict(stage.node.attrs)])
        numbers[stage.group.outputs[0]] = len(numbers)
    relied = relied_on(made.reference)
    for name, kind, limit in relied:
        if name in made.constants:
            try:
                Check(kind, least(limit)).of(name, made.constants[name], {})
            except InputError as error:
                raise ModelError(f"constant {error}") from None
    checks = [[numbers[r.name], r.kind, extent_text(r.limit)] for r in relied if r.name in numbers]
    return {"derived": derived, "checks": checks} if derived or checks else {}


def plan_memory(made: Compilation) -> tuple[ArenaPlan, dict[str, Place]]:
    """The arena, at the hints of dimensions, and for every computed value its place in a buffer."""
    intervals, pairs, home = live_values(made)
    return plan([replace(i, nbytes=hinted(i.nbytes)) for i in intervals], pairs), home


def live_values(made: Compilation) -> tuple[list[Interval], list[tuple[str, str]], dict[str, Place]]:
    """The buffers of the arena, which pairs of them may share memory, and for every computed value its place in a
    buffer (a graph output's memory is the caller's, that of an updated state the module's).
    """
    graph, layouts, pieces = made.graph, made.layouts, made.pieces
    sizes = {name: nbytes_of(stored(graph, name, layouts)) for name in graph.types}
    accesses = []
    for step in made.steps:
        own = buffers_of(step, live_values(step.inner)[0]) if isinstance(step, RepeatStage) else {}
        own |= nested_buffers(step, live_values) if isinstance(step, NestedStage) else {}
        sizes |= own
        group = step if isinstance(step, Group) else step.group
        reads = tuple(n for n in group.inputs if n not in graph.constants)
        offset = made.views[group.outputs[0]].offset if group.outputs and group.outputs[0] in made.views else 0
        accesses.append(Access(reads, (*group.outputs, *own), alias=isinstance(step, Group), offset=offset))
    intervals, home = lifetimes(accesses, sizes, graph.outputs, pieces)
    intervals = [joint_lifetime(i, made.spans) for i in intervals]
    elsewhere = {*graph.outputs} - {*states_by_copy(made, home)}
    intervals = [i for i in intervals if i.name not in elsewhere]
    shared = {*pieces, *(place.buffer for place in pieces.values())}
    alone = {i.name for i in intervals} - shared
    return intervals, in_place_pairs(graph, made.steps, layouts, alone, home), home


def states_by_copy(made: Compilation, home: Mapping[str, Place]) -> list[str]:
    """The new values of states that cannot be written where the old ones are: something reads these later, or the step
    itself reads them at other places than it writes. They are computed in the arena, and copied at the end of a call.
    """
    graph = made.graph
    apart = {*made.pieces, *(place.buffer for place in made.pieces.values())}
    makers, readers = _uses(made, home)
    copied = []
    for name, state in graph.states.items():
        value = graph.outputs[state.output]
        apart_or_inside = value in apart or home[value] != Place(value)
        in_place = _updates_in_place(made, home, name, value, makers[value], readers.get(name, ()))
        if graph.types[value].nbytes and (apart_or_inside or not in_place):
            copied.append(value)
    return copied


def _updates_in_place(
    made: Compilation, home: Mapping[str, Place], old: str, new: str, at: int, readers: Sequence[int]
) -> bool:
    """Whether step ``at``, which makes a state's ``new`` value, may write it over the ``old`` one, of which it has to
    know the ``readers``.
    """
    last = max(readers, default=-1)
    if last < at:
        return True
    step = made.steps[at]
    group = step if isinstance(step, Group) else step.group
    direct = [n for n in group.inputs if home.get(n, Place(n)).buffer == old]
    return last == at and isinstance(step, KernelStage) and {*direct} <= {*overwritable(made.graph, group, new)} & {old}


def _uses(made: Compilation, home: Mapping[str, Place]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """By the numbers of steps: which computes a value, and which read a buffer."""
    makers: dict[str, int] = {}
    readers: dict[str, list[int]] = {}  # of each buffer
    for i, step in enumerate(made.steps):
        first, last = made.spans.get(i, (i, i))  # those side by side may come before each other
        group = step if isinstance(step, Group) else step.group
        makers.update(dict.fromkeys(group.outputs, first))
        for n in group.inputs:
            readers.setdefault(home.get(n, Place(n)).buffer, []).append(last)
    return makers, readers


def replaceable_inputs(made: Compilation) -> list[tuple[int, int]]:
    """Pairs of an input and an output of the model, by their numbers, that may be the same memory: the step that
    computes the output, whole and where it lies in the end, is the last to read the input, at the same places.
    """
    graph, home = made.graph, live_values(made)[2]
    makers, readers = _uses(made, home)
    computed = {name for step in made.computed for name in step.group.outputs}
    apart = {*made.pieces, *(place.buffer for place in made.pieces.values())}
    pairs = []
    for o, new in enumerate(graph.outputs):
        if new in computed and new not in apart and home[new] == Place(new) and graph.outputs.count(new) == 1:
            alike = [(i, old) for i, old in enumerate(graph.inputs) if graph.types[old] == graph.types[new]]
            pairs += [
                (i, o) for i, old in alike if _updates_in_place(made, home, old, new, makers[new], readers.get(old, ()))
            ]
    return pairs


def in_place_pairs(
    graph: Graph,
    steps: Sequence[Built],
    layouts: Mapping[str, Layout],
    buffers: Collection[str],
    home: Mapping[str, Place],
) -> list[tuple[str, str]]:
    """(input, output) of kernels whose result may take an input's memory: both whole ``buffers``, laid out alike, and
    no other input lies there.
    """
    pairs = []
    for group in (step.group for step in steps if isinstance(step, KernelStage)):
        out = group.outputs[0]
        alike = [n for n in group.inputs if n in buffers and graph.types[n] == graph.types[out]]
        alike = [n for n in alike if layouts.get(n) == layouts.get(out)]
        lie = [home.get(n, Place(n)).buffer for n in group.inputs]
        alike = [n for n in alike if lie.count(n) == 1]
        if out in buffers and alike:
            allowed = overwritable(graph, group)
            pairs += [(n, out) for n in alike if n in allowed]
    return pairs


def pack_parameters(
    stages: Sequence[KernelStage], constants: Mapping[str, np.ndarray], others: Sequence[tuple[str, str]] = ()
) -> tuple[np.ndarray, dict[tuple[str, str], Slot]]:
    """All constants in the layouts their kernels want, and the place of each (name, layout tag); ``others`` too."""
    keys = dict.fromkeys(
        (stage.values[name], stage.kernel.packing.get(name, ""))
        for stage in stages
        for name in sorted(stage.task.constants)
    )
    keys.update(dict.fromkeys(others))

    shapes = [layout(tag).physical_shape(constants[n].shape) if tag else constants[n].shape for n, tag in keys]
    sizes = [math.prod(shape) * constants[name].itemsize for shape, (name, _) in zip(shapes, keys, strict=True)]
    ends = np.cumsum([round_up(nbytes, ALIGNMENT) for nbytes in sizes], dtype=np.int64)
    offsets = [0, *ends[:-1].tolist()][: len(sizes)]
    params = allocate(int(ends[-1]) if sizes else 1)

    def place(key: tuple[str, str], shape: tuple[int, ...], offset: int, nbytes: int) -> None:
        name, tag = key
        end = offset + nbytes
        block = params[offset:end].view(constants[name].dtype).reshape(shape)
        if tag:
            layout(tag).pack(constants[name], block)
        else:
            block[...] = constants[name]
        params[end : round_up(end, ALIGNMENT)] = 0

    with ThreadPoolExecutor() as threads:  # NumPy lets go of the interpreter while it copies
        list(threads.map(place, keys, shapes, offsets, sizes))
    slots = [Slot("param", 0, offset, nbytes) for offset, nbytes in zip(offsets, sizes, strict=True)]
    return params, dict(zip(keys, slots, strict=True))


def describe(stages: Sequence[KernelStage], layouts: Mapping[str, Layout], target: Target) -> list[dict[str, Any]]:
    """One row per kernel call, for people: what it computes, by which template, with which choices and layouts, what it
    does and moves (see :func:`burnish.measure.roofline.work_of`), and why it is slow, if it is expected to be.
    """
    return [
        {
            "kernel": s.kernel.symbol,
            "group": str(s.group),
            "template": s.kernel.template,
            "choice": dict(s.kernel.choice),
            "recorded": s.recorded,
            **work_of(s.task),
            "layouts": {n: str(layouts[n]) for n in (*s.group.inputs, *s.group.outputs) if n in layouts},
            **slowness(s.task, s.kernel, target.driver),
        }
        for s in stages
    ]
