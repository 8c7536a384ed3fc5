"""The compiler on one page: import, optimize, fuse, choose layouts, build kernels, plan memory, link."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from burnish import dump
from burnish.cache import ObjectCache
from burnish.driver.rounds import (
    buffers_of,
    make_repeat,
    moving_operands,
    repeat_stage,
)
from burnish.driver.stages import (
    Built,
    Compilation,
    HostStage,
    RepeatStage,
    Stage,
    make_call,
    make_host,
    nbytes_of,
    place_of,
    stored,
)
from burnish.errors import ParameterError, ScheduleError, UnsupportedOperator
from burnish.frontend.onnx import Imported, import_onnx
from burnish.graph.compose import overwritable
from burnish.graph.domain import input_domains
from burnish.graph.fuse import Group, fall_apart, renamed_inputs, renamed_outputs
from burnish.graph.graph import Graph, Node
from burnish.graph.passes import optimize
from burnish.graph.rounds import has_rounds, round_graph, rounds_of
from burnish.loops.layout import Layout, layout
from burnish.loops.sizes import hinted, is_size
from burnish.measure.samples import plain_domains
from burnish.memory.lifetimes import Interval, lifetimes
from burnish.memory.lifetimes import Step as Access
from burnish.memory.pieces import Place
from burnish.memory.share import Plan, plan
from burnish.ops import is_opaque
from burnish.ops.packing import OPERATORS as _TRANSFORMS
from burnish.ops.transposed import transposed_weight
from burnish.pipeline import kernel as kernels
from burnish.pipeline.plan import DEFAULTS, Choices, KernelPlan, make_task, plan_kernels
from burnish.runtime.buffers import ALIGNMENT, allocate, round_up
from burnish.runtime.build import build as link_executable
from burnish.runtime.executable import Copy, Executable, Slot, Step
from burnish.runtime.host import fingerprint
from burnish.target import Target

_log = logging.getLogger("burnish")

Progress = Callable[[str, int, int], None]
WANTED = 8  # an extent that the warning about an assumed one shows how to ask for
WEIGHT_TRANSFORMS = frozenset(op.name for op in (*_TRANSFORMS, transposed_weight))


def import_graph(
    model: Any, shapes: Mapping[str, Sequence[int | str]] | None = None, fix: Mapping[str, Any] | None = None
) -> Graph:
    """A graph from whatever the user has: that of :func:`import_model`."""
    return import_model(model, shapes, fix).graph


def import_model(
    model: Any, shapes: Mapping[str, Sequence[int | str]] | None = None, fix: Mapping[str, Any] | None = None
) -> Imported:
    """A graph from whatever the user has, and the extents that were assumed, of which it warns with the remedy.

    Raises what ``import_onnx`` raises, and ParameterError for ``shapes`` and ``fix`` of a graph, which knows its own.
    """
    if isinstance(model, Graph):
        if shapes:
            raise ParameterError(f"shapes: found {dict(shapes)}; allowed: None for a Graph, whose shapes are known")
        if fix:
            raise ParameterError(f"fix: found {[*fix]}; allowed: None for a Graph, whose constants are its own")
        return Imported(model)
    found = import_onnx(model, shapes, fix)
    if found.assumed:
        warnings.warn(open_extents(found), stacklevel=3)
    return found


def open_extents(found: Imported) -> str:
    """What was assumed of a model's inputs, and how to say otherwise."""
    types = found.graph.types
    words = [f"'{n}' [{', '.join(map(str, (open_, *types[n].shape[1:])))}]" for n, open_ in found.assumed.items()]
    wanted = {name: (WANTED, *types[name].shape[1:]) for name in found.assumed}
    options = " ".join(f"--shape {name}={','.join(map(str, shape))}" for name, shape in wanted.items())
    return (
        f"model: the first extent of input {', '.join(words)} is open and taken as 1; for another one, such as "
        f"{WANTED}, pass shapes={wanted} (on the command line {options})"
    )


@dump.compilation()
def compile_kernels(
    graph: Graph,
    target: Target,
    exact: bool = False,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    choices: Choices = DEFAULTS,
    optimized: bool = False,
) -> Compilation:
    """Everything up to the machine code of every kernel. ``optimized``: the passes have been over the graph.

    Raises UnsupportedOperator for a graph with open dimensions of which a pass needs to know more than their bounds.
    """
    if graph.dims:
        try:
            return _lowered(graph, target, exact, cache_dir, progress, choices, optimized)
        except TypeError as error:
            named = ", ".join(f"'{d}'" for d in graph.dims)
            raise UnsupportedOperator(f"model: open dimensions {named}: {error}; allowed: numbers for them") from error
    return _lowered(graph, target, exact, cache_dir, progress, choices, optimized)


def _lowered(
    graph: Graph,
    target: Target,
    exact: bool,
    cache_dir: str | Path | None,
    progress: Progress | None,
    choices: Choices,
    optimized: bool,
) -> Compilation:
    """See :func:`compile_kernels`."""
    report = progress or (lambda stage, done, total: None)
    dump.form("graph", graph)
    if not optimized:
        report("optimize", 0, 1)
        graph = optimize(graph, exact)
    made = plan_kernels(graph, target, exact, choices.decide)
    return build_kernels(made, target, ObjectCache(cache_dir), choices, report)


def build_kernels(
    made: KernelPlan, target: Target, store: ObjectCache, choices: Choices, report: Progress = lambda *told: None
) -> Compilation:
    """The machine code of every kernel of a plan."""
    constants = dict(made.graph.constants)
    steps: list[Built] = []
    later = {group.outputs[0]: group for group in made.groups if is_transform(made.graph, group)}
    for done, group in enumerate(made.groups):
        report("kernels", done, len(made.groups))
        if group.outputs[0] not in later:
            steps += build_group(made, group, constants, target, store, choices)
    made, steps = pack_weights(
        made, steps, later, lambda made, group: build_group(made, group, constants, target, store, choices)
    )
    report("link", 0, 1)
    return Compilation(
        made.reference, made.graph, tuple(steps), made.layouts, constants, made.pieces, made.views, target
    )


def build_group(
    made: KernelPlan,
    group: Group,
    constants: dict[str, np.ndarray],
    target: Target,
    store: ObjectCache,
    choices: Choices,
) -> list[Built]:
    """The steps of a group: its kernel, or those of its nodes where no schedule can make one of them all.

    Adds constants that are derived from others. Raises UnsupportedOperator for a node that has no schedule by itself.
    """
    if not made.computes(group):
        return [group]
    if has_rounds(group.nodes[0]):
        body = optimize(round_graph(made.graph, group.nodes[0]), made.exact)
        inner = build_kernels(plan_kernels(body, target, made.exact, choices.decide), target, store, choices)
        constants.update(inner.constants)
        return [repeat_stage(group, inner, lambda task, recipe: kernels.build(task, target, store, recipe))]
    if is_opaque(group.nodes[0].op):
        return [HostStage(group)]
    task, values = make_task(made, group, constants)
    try:
        recipe = choices.recipe(task, target)
        return [Stage(group, task, kernels.build(task, target, store, recipe), values, recipe is not None)]
    except ScheduleError as error:
        names = ", ".join(f"{node.name or node.outputs[0]} ({node.op})" for node in group.nodes)
        if len(group.nodes) == 1:
            types = ", ".join(str(made.graph.types[name]) for name in group.nodes[0].inputs)
            raise UnsupportedOperator(f"node {names}: no schedule for operands {types}: {error}") from error
        _log.warning("nodes %s become kernels of their own, not one, which is slower: %s", names, error)
    parts = fall_apart(made.graph, group)
    return [step for part in parts for step in build_group(made, part, constants, target, store, choices)]


def is_transform(graph: Graph, group: Group) -> bool:
    """Whether a group makes the weight of an algorithm, which is written as the kernels that read it want it packed."""
    return group.nodes[-1].op in WEIGHT_TRANSFORMS and group.outputs[0] not in graph.outputs


def pack_weights(
    made: KernelPlan,
    steps: Sequence[Built],
    transforms: Mapping[str, Group],
    build: Callable[[KernelPlan, Group], list[Built]],
) -> tuple[KernelPlan, list[Built]]:
    """Adds the kernels that pack weights which are known at a call only, each in front of the first that reads it.

    ``transforms``: the groups that compute such weights, by value; they are built here, once for every layout.
    """
    found: dict[tuple[str, str], str] = {}
    types, layouts, result = dict(made.graph.types), dict(made.layouts), list[Built]()

    def value_in(name: str, tag: str) -> str:
        """The value that holds ``name`` in the layout ``tag``, after the steps that compute it."""
        if not tag and name not in transforms:
            return name
        if (name, tag) not in found:
            fresh = f"{name}@{tag}" if tag else name
            types[fresh] = types[name]
            if tag:
                layouts[fresh] = layout(tag)
            source = transforms.get(name) or Group((Node("identity", (name,), (name,)),), (name,), (name,))
            group = renamed_outputs(source, {name: fresh})
            nodes = [*made.graph.nodes, *group.nodes]
            wider = replace(made, graph=replace(made.graph, nodes=tuple(nodes), types=types), layouts=layouts)
            result.extend(build(wider, group))
            found[name, tag] = fresh
        return found[name, tag]

    for step in steps:
        packed = sorted(step.task.packed) if isinstance(step, Stage) else []
        group = step if isinstance(step, Group) else step.group
        own_weights = {step.values[p] for p in packed} if isinstance(step, Stage) else set()
        for name in group.inputs:
            if name in transforms and name not in own_weights:
                value_in(name, "")
        if not isinstance(step, Stage) or not packed:
            result.append(step)
            continue
        tags = {p: step.kernel.packing.get(p, "") for p in packed}
        own = {p: value_in(step.values[p], tag) for p, tag in tags.items()}
        names = {step.values[p]: fresh for p, fresh in own.items() if fresh != step.values[p]}
        result.append(replace(step, group=renamed_inputs(step.group, names), values={**step.values, **own}))
    nodes = [node for step in result for node in (step if isinstance(step, Group) else step.group).nodes]
    return replace(made, graph=replace(made.graph, nodes=tuple(nodes), types=types), layouts=layouts), result


def assemble(made: Compilation) -> Executable:
    """Plans memory, packs parameters and links the kernels."""
    graph, stages = made.graph, made.stages
    intervals, pairs, home = live_values(made)
    symbolic = any(is_size(i.nbytes) for i in intervals)
    memory = plan([replace(i, nbytes=hinted(i.nbytes)) for i in intervals], pairs)
    places = {
        i.name: Slot("arena", at) if symbolic else Slot("arena", 0, memory.offsets[i.name])
        for at, i in enumerate(intervals)
    }
    dump.form("memory", memory)
    after = {graph.outputs[state.output]: name for name, state in graph.states.items()}
    inputs = [name for name in graph.inputs if name not in graph.states]
    outputs = [name for name in graph.outputs if name not in after]
    state_slots = {name: Slot("state", i) for i, name in enumerate(graph.states)}
    copied = states_by_copy(made, home)
    slots = {**places, **state_slots}
    slots |= {name: Slot("input", i) for i, name in enumerate(inputs)}
    slots |= {name: Slot("output", i) for i, name in enumerate(outputs)}
    slots |= {value: state_slots[name] for value, name in after.items() if value not in copied}
    row_major = dict.fromkeys((n, "") for s in made.computed if isinstance(s, HostStage) for n in s.group.inputs)
    row_major.update(dict.fromkeys((name, "") for name in moving_operands(made.steps)))
    params, constants = pack_parameters(stages, made.constants, [key for key in row_major if key[0] in made.constants])
    dims = [d.name for d in graph.dims]

    def step_of(stage: Stage | HostStage | RepeatStage) -> Step:
        if isinstance(stage, Stage):
            return make_call(stage, home, constants, slots, dims)
        if isinstance(stage, HostStage):
            return make_host(graph, stage, home, constants, slots)
        inside = live_values(stage.inner)[2]
        rounds = rounds_of(graph, stage.node)
        return make_repeat(stage, inside, constants, slots, partial(place_of, constants, home, slots), dims, rounds)

    steps = [step_of(stage) for stage in made.computed]
    for value in copied:
        name, place, nbytes = after[value], home[value], graph.types[value].nbytes
        source = replace(slots[place.buffer], offset=slots[place.buffer].offset + place.offset, nbytes=nbytes)
        steps.append(Copy(source, replace(state_slots[name], nbytes=nbytes), f"state {name}"))
    domains = input_domains(made.reference) if graph.inputs == made.reference.inputs else {}
    return link_executable(
        inputs=[stored(graph, n, made.layouts) for n in inputs],
        outputs=[stored(graph, n, made.layouts) for n in outputs],
        steps=steps,
        objects={s.kernel.symbol: s.kernel.code for s in stages},
        params=params,
        arena_bytes=memory.arena_bytes,
        scratch_bytes=max((s.kernel.scratch_bytes for s in stages), default=0),
        target=fingerprint(made.target.triple, made.target.cpu, made.target.features),
        graph=str(graph),
        info={"arena": str(memory), "kernels": describe(stages, made.layouts), "domains": plain_domains(domains)},
        buffers=intervals if symbolic else (),
        in_place=pairs if symbolic else (),
        states={name: state.initial for name, state in graph.states.items()},
    )


def plan_memory(made: Compilation) -> tuple[Plan, dict[str, Place]]:
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
        sizes |= own
        group = step if isinstance(step, Group) else step.group
        reads = tuple(n for n in group.inputs if n not in graph.constants)
        offset = made.views[group.outputs[0]].offset if group.outputs[0] in made.views else 0
        accesses.append(Access(reads, (*group.outputs, *own), alias=isinstance(step, Group), offset=offset))
    intervals, home = lifetimes(accesses, sizes, graph.outputs, pieces)
    elsewhere = {*graph.outputs} - {*states_by_copy(made, home)}
    intervals = [i for i in intervals if i.name not in elsewhere]
    shared = {*pieces, *(place.buffer for place in pieces.values())}
    alone = {i.name for i in intervals} - shared
    return intervals, in_place_pairs(graph, made.steps, layouts, alone), home


def states_by_copy(made: Compilation, home: Mapping[str, Place]) -> list[str]:
    """The new values of states that cannot be written where the old ones are: something reads these later, or the step
    itself reads them at other places than it writes. They are computed in the arena, and copied at the end of a call.
    """
    graph = made.graph
    apart = {*made.pieces, *(place.buffer for place in made.pieces.values())}
    copied = []
    for name, state in graph.states.items():
        value = graph.outputs[state.output]
        apart_or_inside = value in apart or home[value] != Place(value)
        if graph.types[value].nbytes and (apart_or_inside or not _updates_in_place(made, home, name, value)):
            copied.append(value)
    return copied


def _updates_in_place(made: Compilation, home: Mapping[str, Place], old: str, new: str) -> bool:
    """Whether the step that computes a state's new value may write it over the old one."""
    groups = [step if isinstance(step, Group) else step.group for step in made.steps]
    at = next(i for i, group in enumerate(groups) if new in group.outputs)
    readers = [i for i, group in enumerate(groups) if any(home.get(n, Place(n)).buffer == old for n in group.inputs)]
    last = max(readers, default=-1)
    if last < at:
        return True
    group = groups[at]
    direct = [n for n in group.inputs if home.get(n, Place(n)).buffer == old]
    return last == at and isinstance(made.steps[at], Stage) and {*direct} <= {*overwritable(made.graph, group)} & {old}


def replaceable_inputs(made: Compilation) -> list[tuple[int, int]]:
    """Pairs of an input and an output of the model, by their numbers, that may be the same memory: the step that
    computes the output, whole and where it lies in the end, is the last to read the input, at the same places.
    """
    graph, home = made.graph, live_values(made)[2]
    computed = {name for step in made.computed for name in step.group.outputs}
    apart = {*made.pieces, *(place.buffer for place in made.pieces.values())}
    pairs = []
    for o, new in enumerate(graph.outputs):
        if new in computed and new not in apart and home[new] == Place(new) and graph.outputs.count(new) == 1:
            alike = [(i, old) for i, old in enumerate(graph.inputs) if graph.types[old] == graph.types[new]]
            pairs += [(i, o) for i, old in alike if _updates_in_place(made, home, old, new)]
    return pairs


def in_place_pairs(
    graph: Graph, steps: Sequence[Built], layouts: Mapping[str, Layout], buffers: Collection[str]
) -> list[tuple[str, str]]:
    """(input, output) of kernels whose result may take an input's memory: both whole ``buffers``, laid out alike."""
    pairs = []
    for group in (step.group for step in steps if isinstance(step, Stage)):
        out = group.outputs[0]
        alike = [n for n in group.inputs if n in buffers and graph.types[n] == graph.types[out]]
        alike = [n for n in alike if layouts.get(n) == layouts.get(out)]
        if out in buffers and alike:
            allowed = overwritable(graph, group)
            pairs += [(n, out) for n in alike if n in allowed]
    return pairs


def pack_parameters(
    stages: Sequence[Stage], constants: Mapping[str, np.ndarray], others: Sequence[tuple[str, str]] = ()
) -> tuple[np.ndarray, dict[tuple[str, str], Slot]]:
    """All constants in the layouts their kernels want, and the place of each (name, layout tag); ``others`` too."""
    keys = dict.fromkeys(
        (stage.values[name], stage.kernel.packing.get(name, ""))
        for stage in stages
        for name in sorted(stage.task.constants)
    )
    keys.update(dict.fromkeys(others))

    def pack(key: tuple[str, str]) -> np.ndarray:
        name, tag = key
        return np.ascontiguousarray(layout(tag).pack(constants[name]) if tag else constants[name])

    with ThreadPoolExecutor() as threads:  # NumPy lets go of the interpreter while it copies
        blocks = list(threads.map(pack, keys))
        ends = np.cumsum([round_up(block.nbytes, ALIGNMENT) for block in blocks], dtype=np.int64)
        offsets = [0, *ends[:-1].tolist()][: len(blocks)]
        params = allocate(int(ends[-1]) if blocks else 1)

        def place(item: tuple[int, np.ndarray]) -> None:
            offset, block = item
            params[offset : offset + block.nbytes] = block.reshape(-1).view(np.uint8)

        list(threads.map(place, zip(offsets, blocks, strict=True)))
    slots = [Slot("param", 0, offset, block.nbytes) for offset, block in zip(offsets, blocks, strict=True)]
    return params, dict(zip(keys, slots, strict=True))


def describe(stages: Sequence[Stage], layouts: Mapping[str, Layout]) -> list[dict[str, Any]]:
    """One row per kernel call, for people: what it computes, by which template, with which choices and layouts."""
    return [
        {
            "kernel": s.kernel.symbol,
            "group": str(s.group),
            "template": s.kernel.template,
            "choice": dict(s.kernel.choice),
            "recorded": s.recorded,
            "layouts": {n: str(layouts[n]) for n in (*s.group.inputs, *s.group.outputs) if n in layouts},
        }
        for s in stages
    ]
