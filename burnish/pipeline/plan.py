"""Kernel plan: an optimized graph as algorithms, groups, layouts, and what each group's kernel computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from burnish.base import dump
from burnish.graph.aggregation import block_aggregations
from burnish.graph.algorithms import Decide, choose_algorithms, fastest
from burnish.graph.bit_products import multiply_bits
from burnish.graph.byte_products import multiply_bytes
from burnish.graph.channels import pad_channels
from burnish.graph.compose import tensors
from burnish.graph.divide import divide_joins
from burnish.graph.fuse import Fusion, Group, fuse, renamed_everywhere
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Attribute, Graph, Node
from burnish.graph.join import find_pieces, find_views
from burnish.graph.layout import (
    blocked,
    choose_layouts,
    has_pixels,
    image_blocks,
    packs_channels,
    separate_inputs,
    separate_outputs,
    weights_of,
)
from burnish.graph.narrow_selections import narrow_selections
from burnish.graph.outline import isolate
from burnish.graph.recurrent_windows import pair_steps
from burnish.graph.regroup import detached, divided, fall_apart, fronts
from burnish.graph.rewrite import renamed_tensors
from burnish.graph.scale_gradients import sum_columns
from burnish.graph.sliced_sums import reduce_slices
from burnish.graph.wide_reads import widen_readers
from burnish.kernels.constants import split_constants
from burnish.kernels.task import KernelTask
from burnish.kernels.template import Template
from burnish.kernels.templates import first_match, is_general, templates
from burnish.loops.arrange import factor_orders, in_memory_order, with_digits, with_rows
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import DTYPES, ITEM_BYTES
from burnish.loops.layout import Layout
from burnish.loops.tensor import Tensor
from burnish.machines.target import Target
from burnish.memory.pieces import Place
from burnish.ops import OPERATORS
from burnish.pipeline.bundles import bundle_groups, is_plain_map
from burnish.pipeline.deferred_sums import defer_sums
from burnish.pipeline.joined import join_groups
from burnish.pipeline.kernel import KernelConfig
from burnish.pipeline.several_results import fuse_several


@dataclass(frozen=True)
class Choices:
    """Compilation choices: the algorithm of a node, and the recipe of a kernel (None: its default).

    ``seconds``: what a kernel is known to take (None: nothing is known). ``name`` tells different choices apart.
    ``fused``: whether several nodes may become one kernel.
    """

    decide: Decide
    recipe: Callable[[KernelTask, Target], KernelConfig | None]
    seconds: Callable[[KernelTask, Target], float | None] = lambda task, target: None
    name: str = ""
    fused: bool = True


SEVERAL = 2  # nodes: more of them are steps of a recurrence
DEFAULTS = Choices(fastest, lambda task, target: None)


@dataclass(frozen=True, eq=False)
class KernelPlan:
    """Kernel plan: a model as fused groups, one kernel each.

    ``reference`` is what must be computed: the optimized graph before algorithms are chosen; ``graph`` is what is
    computed. ``layouts`` holds the values that are not row-major, ``pieces`` where the inputs of joins without copies
    lie in their outputs, ``views`` where slices without copies lie in what they are cut from. ``repeated``: it is the
    body of rounds, in which what is packed stays as it is.
    ``exact``: algorithms that change rounding were not considered. ``channels_last``: dtypes of images that are
    stored so, whose layouts kernel tasks do not know: their tensors have the dimensions in the order of memory.
    """

    reference: Graph
    graph: Graph
    groups: tuple[Group, ...]
    layouts: Mapping[str, Layout]
    pieces: Mapping[str, Place]
    views: Mapping[str, Place]
    exact: bool = False
    repeated: bool = False
    channels_last: tuple[str, ...] = ()

    @cached_property
    def _containers(self) -> frozenset[str]:
        return frozenset(place.buffer for place in self.pieces.values())

    @cached_property
    def _readers(self) -> Counter[tuple[str, tuple[tuple[str, Attribute], ...], str]]:
        """Reader counts: nodes of an operator, with these attributes, that have a tensor as their second operand."""
        return Counter(
            (node.op, tuple(sorted(node.attrs.items())), node.inputs[1])
            for node in self.graph.nodes if len(node.inputs) > 1
        )  # fmt: skip

    def is_shared(self, node: Node | None, weight: str) -> bool:
        """Whether several nodes like this one have the same weight, or one in rounds."""
        return node is not None and (
            self.repeated or self._readers[node.op, tuple(sorted(node.attrs.items())), weight] > SEVERAL
        )

    def computes(self, group: Group) -> bool:
        """Whether a group needs code: its output is neither its input's memory nor a join of pieces in their place."""
        joined = group.outputs[0] in self._containers
        return not (joined or group.outputs[0] in self.views or is_alias(self.graph, group, self.layouts))


def plan_kernels(
    reference: Graph, target: Target, exact: bool, decide: Decide = fastest, fused: bool = True
) -> KernelPlan:
    """An optimized graph as groups of nodes with algorithms and layouts, before any kernel is made. Not ``fused``:
    every node is a group.
    """
    (lanes, dtypes), driver = image_blocks(target), target.driver
    own = offloaded(reference, target, fused)
    graph = multiply_bytes(multiply_bits(reference, driver), driver, lambda node: node.outputs in own)
    graph = pad_channels(choose_algorithms(graph, driver, exact, decide), driver)
    graph = divide_joins(pair_steps(separate_inputs(graph, lanes, dtypes)), lanes)
    graph = block_aggregations(graph, driver)
    if target.machine.dialect.grid is not None:
        graph = widen_readers(narrow_selections(reduce_slices(sum_columns(graph))))
    found = offload(graph, grouped(graph, lanes, fused), target)
    if fused and not exact:
        found = _joined(graph, found, target)
    graph, groups = separate_outputs(graph, found, lanes, dtypes)
    groups = with_views_apart(graph, groups, target)
    layouts = choose_layouts(graph, groups, lanes, dtypes)
    grid = target.machine.dialect.grid
    aligned = max(grid.aligned, 1) if grid else 1
    pieces = {name: Place(*place) for name, place in find_pieces(graph, groups, layouts, aligned).items()}
    views = {name: Place(*place) for name, place in find_views(graph, groups, layouts, pieces, aligned).items()}
    halves = target.channels_last
    if grid is not None and fused:
        planned = KernelPlan(reference, graph, tuple(groups), layouts, pieces, views, exact, channels_last=halves)
        plain = {*layouts, *pieces, *views}

        def is_map(group: Group) -> bool:
            as_usual = plain.isdisjoint((*group.inputs, *group.outputs))
            return as_usual and planned.computes(group) and is_plain_map(graph, group)

        def is_usual(group: Group) -> bool:
            return layouts.keys().isdisjoint(group.inputs) and plain.isdisjoint(group.outputs)

        if not exact:
            joining = [template for template in templates(target.driver) if template.joins]
            groups = fuse_several(graph, groups, _taking(joining, target), planned.computes, is_usual)
            graph, groups = defer_sums(graph, groups, _parts(planned, target), is_map, bool(halves))
        groups = bundle_groups(graph, groups, is_map)
    dump.form("arrange", "\n".join([str(graph), "groups", *map(str, groups), "layouts", *_lines(layouts)]))
    return KernelPlan(reference, graph, tuple(groups), layouts, pieces, views, exact, channels_last=halves)


def within(made: KernelPlan, prefix: str) -> KernelPlan:
    """The plan with names that all begin with ``prefix``: what passes invent is unique in its own graph alone."""
    names: dict[str, str] = {}
    taken = {name for graph in (made.reference, made.graph) for name in graph.types}
    for name in sorted(taken):
        names[name] = name
        while not names[name].startswith(prefix) or (names[name] != name and names[name] in taken):
            names[name] = prefix + names[name]
        taken.add(names[name])

    def placed(places: Mapping[str, Place]) -> dict[str, Place]:
        return {names[name]: Place(names[place.buffer], place.offset) for name, place in places.items()}

    return replace(
        made,
        reference=renamed_tensors(made.reference, names),
        graph=renamed_tensors(made.graph, names),
        groups=tuple(renamed_everywhere(group, names.__getitem__) for group in made.groups),
        layouts={names[name]: layout for name, layout in made.layouts.items()},
        pieces=placed(made.pieces),
        views=placed(made.views),
    )


def with_views_apart(graph: Graph, groups: Sequence[Group], target: Target) -> list[Group]:
    """Groups that only the general template takes because of the views around their anchor, as these views and the
    rest: a copy, and a kernel of the anchor's own template. As few views as possible are copied.
    """
    known: dict[tuple[Hashable, ...], bool] = {}  # whether a task is general, by all that a template sees of it

    def general_in(found: Sequence[Group]) -> Callable[[Group], bool]:
        layouts = choose_layouts(graph, found, *image_blocks(target))
        made = KernelPlan(graph, graph, tuple(found), layouts, {}, {}, channels_last=target.channels_last)

        def general(group: Group) -> bool:
            task = plan_task(made, group, graph.constants).task
            arranged, names = frozenset(task.layouts.items()), (task.constants, task.packed, task.shared)
            own: tuple[Hashable, ...] = (task.inputs, task.outputs, arranged, names)
            if own not in known:
                known[own] = is_general(task, target.driver)
            return known[own]

        return general

    general = general_in(groups)
    found = {group.outputs[0]: group for group in groups if _contracts_beside(graph, group) and general(group)}
    rows = [group for group in groups if target.machine.dialect.grid is None and _reads_rows_apart(graph, group)]
    if not found and not rows:
        return list(groups)
    fusion = Fusion(graph, lanes=1)

    def without(group: Group, chains: Sequence[tuple[Node, ...]]) -> list[Group]:
        parts = detached(graph, group, chains, fusion)
        return parts if all(len(part.outputs) == 1 for part in parts[:-1]) else [group]

    def replaced(ways: Mapping[str, Sequence[Group]]) -> list[Group]:
        return [part for group in groups for part in ways.get(group.outputs[0], (group,))]

    apart = {name: without(group, fronts(group)) for name, group in found.items()}
    general = general_in(replaced(apart))
    better = {name: parts for name, parts in apart.items() if len(parts) > 1 and not general(parts[-1])}
    for name in better:
        chains = fronts(found[name])
        fewer = (without(found[name], some) for n in range(1, len(chains)) for some in combinations(chains, n))
        better[name] = next((parts for parts in fewer if len(parts) > 1 and not general(parts[-1])), better[name])
    waiting = {name: _beginnings(graph, group, fusion) for name, group in found.items() if name not in better}
    while waiting:  # the next way of every group at once
        tried = {name: parts for name, ways in waiting.items() for parts in [next(ways, None)] if parts is not None}
        general = general_in(replaced({**better, **tried}))
        better |= {name: list(parts) for name, parts in tried.items() if not general(parts[0])}
        waiting = {name: waiting[name] for name in tried if name not in better}
    better |= {group.outputs[0]: without(group, fronts(group)) for group in rows}
    return replaced(better)


def _reads_rows_apart(graph: Graph, group: Group) -> bool:
    """Whether a group normalizes rows that nodes in front join, or read from places that are apart.

    Its template goes over a row several times, and cannot read vectors of it: a copy costs less.
    """
    anchor = group.anchor
    if anchor is None or facts_of(graph, anchor).kind != "reduction":
        return False
    whole = graph.types[anchor.inputs[0]].shape == graph.types[anchor.outputs[0]].shape
    return whole and any(_joins_or_scatters(graph, node) for chain in fronts(group) for node in chain)


def _joins_or_scatters(graph: Graph, node: Node) -> bool:
    """Whether a node, no map, takes neighbours in its last dimension from several tensors, or from places apart."""
    facts = facts_of(graph, node)
    if facts.elementwise or len(node.inputs) > 1:
        return not facts.elementwise and len(facts.once) == len(node.inputs)
    return facts.permutation is not None and facts.permutation[-1] != len(facts.permutation) - 1


def _contracts_beside(graph: Graph, group: Group) -> bool:
    """Whether a group holds a contraction and something that may keep a template from it."""
    return len(group.nodes) > 1 and group.anchor is not None and facts_of(graph, group.anchor).kind == "complex"


def _beginnings(graph: Graph, group: Group, fusion: Fusion) -> Iterator[tuple[Group, Group]]:
    """A group as its nodes up to one behind its anchor, and what follows it: the longest beginning first."""
    for count in range(len(group.nodes) - 1, group.nodes.index(group.anchor), -1) if group.anchor else ():
        parts = divided(graph, group, count, fusion)
        if parts is not None:
            yield parts


def grouped(graph: Graph, lanes: int, fused: bool) -> list[Group]:
    """The nodes of a graph in groups: fused ones, or each by itself."""
    return fuse(graph, lanes) if fused else fall_apart(graph)


def offloaded(reference: Graph, target: Target, fused: bool = True) -> frozenset[tuple[str, ...]]:
    """The results of nodes that are anchors of what an accelerator's own templates take."""
    if not target.machine.offloads:
        return frozenset()
    groups = offload(reference, grouped(reference, target.lanes, fused), target)
    return frozenset(g.anchor.outputs for g in groups if g.anchor is not None and takes(reference, g, target))


def _joined(graph: Graph, groups: list[Group], target: Target) -> list[Group]:
    """The groups, those that one template of the target schedules together as one."""
    found = [template for template in templates(target.driver) if template.joins]
    if not found:
        return groups
    return join_groups(graph, groups, _taking(found, target))


def _parts(made: KernelPlan, target: Target) -> Callable[[Graph, Group], int]:
    """The number of partial sums that the default kernel of a group adds in a launch of its own."""
    return lambda graph, group: (
        first_match(plan_task(replace(made, graph=graph), group, made.graph.constants).task.hinted, target).parts
    )


def _taking(among: Sequence[Template[Any]], target: Target) -> Callable[[Graph, Group], bool]:
    """Whether one of some templates takes a group."""
    return lambda graph, group: takes(graph, group, target.driver, (), among)


def takes(
    graph: Graph,
    group: Group,
    target: Target,
    dtypes: Collection[str] | None = None,
    among: Sequence[Template[Any]] | None = None,
) -> bool:
    """Whether one of the target's own templates, or one ``among`` others, matches a group whose images of ``dtypes``
    are in blocks; by default those that the machine has in blocks.
    """
    alone, own, names = isolate(graph, group)
    inputs, outputs = tensors(alone, own)
    known = frozenset(t.name for t in inputs if names[t.name] in graph.constants)
    lanes, own_dtypes = image_blocks(target)
    kinds = own_dtypes if dtypes is None else dtypes
    images = [t for t in (*inputs, *outputs) if len(t.shape) == 4 and t.name not in known]
    layouts = {t.name: blocked(lanes) for t in images if t.dtype in kinds}
    task = KernelTask("kernel", tuple(inputs), tuple(outputs), "", layouts, known)
    return any(template.match(task, target) is not None for template in among or templates(target))


def offload(graph: Graph, groups: Sequence[Group], target: Target) -> list[Group]:
    """Groups of which an accelerator's templates take a beginning alone, as that and the rest."""
    result = []
    for group in groups:
        result.append(group)
        anchor = group.anchor
        if not target.machine.offloads or anchor is None:
            continue
        alone = Group((anchor,), (*dict.fromkeys(anchor.inputs),), anchor.outputs, anchor)
        if not takes(graph, alone, target, DTYPES):
            continue
        for count in range(len(group.nodes), group.nodes.index(anchor), -1):
            parts = (group,) if count == len(group.nodes) else divided(graph, group, count)
            if parts is not None and takes(graph, parts[0], target):
                result[-1:] = parts
                break
    return result


def _lines(layouts: Mapping[str, Layout]) -> list[str]:
    return [f"{name}: {layout}" for name, layout in layouts.items()]


def is_alias(graph: Graph, group: Group, layouts: Mapping[str, Layout]) -> bool:
    """Whether a group's output can be its input's memory: same elements in the same order, neither the user's; or
    words of bytes that lie as the words do.
    """
    if len(group.nodes) == 1 and packs_channels(graph, group.nodes[0]) and group.outputs[0] in layouts:
        return group.inputs[0] in layouts
    if not group.alias or group.outputs[0] in graph.outputs or group.inputs[0] in graph.constants:
        return False
    source = layouts.get(group.inputs[0])
    if group.outputs[0] in layouts:
        return False
    shape = graph.types[group.inputs[0]].shape
    return source is None or (shape[2:] == (1, 1) and shape[1] % source.block(1) == 0)


class TaskPlan(NamedTuple):
    """Kernel task of a group before its constants are computed: the graph's value of each of its parameters; the values
    ``derived`` from constants alone, and the constants that these ``read``, by parameter; constants ``reordered``, by
    the new value: the old one, and the order of its dimensions in memory.
    """

    task: KernelTask
    values: dict[str, str]
    derived: dict[str, Tensor]
    read: dict[str, str]
    reordered: dict[str, tuple[str, Layout]]


def make_task(made: KernelPlan, group: Group, constants: dict[str, np.ndarray]) -> tuple[KernelTask, dict[str, str]]:
    """Kernel task of a group, and the value of each of its parameters.

    Values derived from constants alone are computed now and added to ``constants``.
    """
    planned = plan_task(made, group, constants)
    if planned.derived:
        feeds = {name: constants[value] for name, value in planned.read.items()}
        constants.update(zip(planned.derived, evaluate([*planned.derived.values()], feeds), strict=True))
    for fresh, (value, order) in planned.reordered.items():
        if fresh not in constants:
            constants[fresh] = order.pack(constants[value])
    return planned.task, planned.values


def plan_task(made: KernelPlan, group: Group, constants: Collection[str]) -> TaskPlan:
    """The task of a group, by the names of the ``constants`` alone: all that a template sees."""
    alone, own, names = isolate(made.graph, group, made.layouts)
    inputs, outputs = tensors(alone, own)
    fixed = {t.name for t in inputs if names[t.name] in constants}
    inputs, outputs, computed = split_constants(inputs, outputs, fixed)
    values = {t.name: names[t.name] for t in inputs if t.name in names}
    values.update(zip((t.name for t in outputs), group.outputs, strict=True))
    values.update((t.name, f"{group.outputs[0]}/{t.name}") for t in computed)
    derived = {values[t.name]: t for t in computed}
    own_layouts = {name: made.layouts[value] for name, value in values.items() if value in made.layouts}
    known = frozenset(t.name for t in inputs if values[t.name] in constants or values[t.name] in derived)
    inputs, outputs, own_layouts, orders = _in_memory_order(inputs, outputs, own_layouts, made, known)
    fresh = {name: f"{values[name]}@{order}" for name, order in orders.items()}
    reordered = {fresh[name]: (values[name], order) for name, order in orders.items()}
    values |= fresh
    label = own.anchor.op if own.anchor else ""
    packed = frozenset(t.name for t in inputs if t.name not in own_layouts and _is_packed(alone, own, t)) - known
    shared = frozenset(name for name in packed if own.anchor and made.is_shared(group.anchor, values[name]))
    task = KernelTask("kernel", tuple(inputs), tuple(outputs), label, own_layouts, known, packed, shared=shared)
    return TaskPlan(task, values, derived, {name: names[name] for name in fixed}, reordered)


def _in_memory_order(
    inputs: list[Tensor], outputs: list[Tensor], layouts: dict[str, Layout], made: KernelPlan, known: Collection[str]
) -> tuple[list[Tensor], list[Tensor], dict[str, Layout], Mapping[str, Layout]]:
    """A task's tensors with those that are stored in another order of dimensions in that order, the layouts of the
    rest, and the orders of constant factors of products, which are stored as their products read them.
    """
    if not made.channels_last:
        return inputs, outputs, layouts, {}
    images = any(own.permutation for own in layouts.values())
    inputs, outputs = in_memory_order(inputs, outputs, layouts)
    factors = [t for t in inputs if t.dtype in made.channels_last and t.name in known]
    orders = factor_orders(outputs, {t.name for t in factors if images or not _runs_well(t)})
    inputs, outputs = in_memory_order(inputs, outputs, orders, between=False)
    if images:
        inputs, outputs = with_rows(*with_digits(inputs, outputs))
    return inputs, outputs, {name: own for name, own in layouts.items() if not own.permutation}, orders


def _runs_well(factor: Tensor) -> bool:
    """Whether a matrix may be copied by columns, as halves in whole pieces of 16 bytes may."""
    return ITEM_BYTES[factor.dtype] == 2 and factor.shape[-1] % 8 == 0


def _is_packed(graph: Graph, group: Group, t: Tensor) -> bool:
    """Whether an input of a group that is no constant is packed at each call: a weight, or an operand by channels."""
    anchor = group.anchor
    if anchor is None:
        return False
    is_weight = bool(weights_of(graph, [group])) and t.name == anchor.inputs[1]
    return is_weight or _is_factor(graph, anchor, t) or (has_pixels(graph, anchor) and _by_channels(graph, group, t))


def _is_factor(graph: Graph, anchor: Node, t: Tensor) -> bool:
    """Whether ``t`` is a matrix that rows are multiplied with: the right factor of a product, a recurrent weight."""
    if OPERATORS[anchor.op].traits.recurrent:
        return len(t.shape) == 3
    facts = facts_of(graph, anchor)
    product = facts.kind == "complex" and not facts.pixels and len(anchor.inputs) == 2
    return product and t.name == anchor.inputs[1] != anchor.inputs[0] and len(t.shape) == 2


def _by_channels(graph: Graph, group: Group, t: Tensor) -> bool:
    """Whether ``t`` holds one element a channel of a group's images."""
    shape = graph.types[group.outputs[0]].shape
    return len(shape) == 4 and len(t.shape) >= 3 and t.shape[-3:] == (shape[1], 1, 1) and t.buffer.size == shape[1]
