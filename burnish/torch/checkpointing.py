"""Activation checkpointing of an nn.Module: which blocks to compute again in the backward pass, for a memory budget.

The dynamic program of :mod:`burnish.memory.chain` over the blocks in the order of their calls, whose memory is
measured: what each block's forward pass keeps for the backward one, by hooks on saved tensors.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from burnish.base.arguments import refusal
from burnish.base.optional import require
from burnish.base.sizes import parse_budget
from burnish.errors import ParameterError
from burnish.memory.chain import KEEP_ALL, ChainTable, Profile
from burnish.torch.live import live_bytes

SLOTS = 2000  # into which the memory without any plan is divided by the dynamic program
TRIES = 6  # plans that are measured, each for less by what the one before took too much
_LARGE = 0.25  # of what is kept: a block with more is divided into its children


@dataclass(frozen=True)
class CheckpointPlan:
    """Checkpointing plan: the ``blocks``, by name, to wrap in ``torch.utils.checkpoint``.

    Bytes of tensors that are live at most in a forward and a backward pass, gradients with them, parameters without:
    ``predicted`` and ``measured`` with the plan, ``baseline`` measured without. ``extra``: the share of the forward
    pass's cost that is computed again.
    """

    blocks: tuple[str, ...]
    memory_budget: int
    predicted: int
    measured: int
    baseline: int
    extra: float

    def apply(self, module: Any) -> None:
        """Wraps the blocks of the module, in place; ``remove`` undoes it. Raises ParameterError for unknown ones."""
        checkpoint = require("torch.utils.checkpoint", "torch").checkpoint
        for name, block in _named(module, self.blocks).items():
            if not hasattr(block.forward, "burnish_forward"):
                wrapped = functools.partial(checkpoint, block.forward, use_reentrant=False)
                wrapped.burnish_forward = name  # type: ignore[attr-defined]
                block.forward = wrapped

    def remove(self, module: Any) -> None:
        """Undoes :meth:`apply`."""
        for block in _named(module, self.blocks).values():
            if hasattr(block.forward, "burnish_forward"):
                del block.forward

    def __str__(self) -> str:
        peaks = f"{self.measured / 1e6:.1f} MB measured, {self.predicted / 1e6:.1f} predicted"
        return (
            f"{len(self.blocks)} blocks computed again (+{100 * self.extra:.0f} % of forward): {peaks}, "
            f"{self.baseline / 1e6:.1f} without, {self.memory_budget / 1e6:.1f} allowed: {', '.join(self.blocks)}"
        )


def checkpoint_plan(
    module: Any,
    inputs: Any,
    memory_budget: int | str,
    *,
    blocks: Sequence[str] | None = None,
    costs: Mapping[str, float] | None = None,
) -> CheckpointPlan:
    """Activation checkpointing: blocks of ``module`` to wrap, at least cost, so that forward and backward take
    at most ``memory_budget``: bytes, or as "2GB".

    ``inputs``: a tensor, a tuple of arguments, or a mapping by name. ``blocks``: names of submodules that may be
    wrapped, which do not contain each other; by default the children, and those of containers and of large children.
    ``costs``: of each block's forward pass, in any unit; by default measured seconds. The plan is measured before it is
    returned: the peak is at most the budget. Parameters, gradients and buffers stay as they are. Raises ParameterError
    for a budget that cannot be met, with the smallest that can.
    """
    require("torch", "torch")
    budget = parse_budget("memory_budget", memory_budget)
    with _undisturbed(module):
        return _planned(module, _call(module, inputs), budget, blocks, costs)


def _planned(
    module: Any,
    call: Callable[[], Any],
    budget: int,
    blocks: Sequence[str] | None,
    costs: Mapping[str, float] | None,
) -> CheckpointPlan:
    chain = _chain(module, call, blocks, costs)
    baseline = _measured_peak(module, call, ())
    kept = chain.peak(frozenset())
    overhead = max(baseline - kept, 0)  # what operators need beside what is kept
    if baseline <= budget:
        return CheckpointPlan((), budget, kept + overhead, baseline, baseline, 0.0)
    allowed, least = budget - overhead - sum(chain.rest.values()), baseline
    for attempt in range(TRIES if chain.blocks else 0):
        table, smallest = chain.table, chain.table.feasible[0]
        slots = max(min(int(allowed / table.unit), table.slots), smallest) if attempt < TRIES - 1 else smallest
        chosen = chain.planned(slots)
        measured = _measured_peak(module, call, chain.ordered(chosen))
        least = min(least, measured)
        if measured <= budget:
            predicted = chain.peak(chosen) + overhead
            return CheckpointPlan(chain.ordered(chosen), budget, predicted, measured, baseline, chain.extra(chosen))
        if slots == smallest:
            break
        allowed -= measured - budget
    raise ParameterError(f"memory_budget: found {budget} bytes; allowed: {least} or more; without any plan {baseline}")


@contextmanager
def _undisturbed(module: Any) -> Iterator[None]:
    """Leaves buffers, gradients and the state of random numbers as they were."""
    import torch

    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    gradients = [(p, p.grad) for p in module.parameters()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient


# --- the chain --------------------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """A block as it was measured: storages that it keeps and that it is given, by identity, with their bytes."""

    name: str
    saved: dict[int, int] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)
    gradients: int = 0  # bytes of its parameters' gradients
    cost: float = 0.0


@dataclass(frozen=True)
class _Chain:
    """Blocks in the order of their first calls; ``rest``: storages that are kept outside of them all."""

    blocks: Sequence[_Block]
    rest: Mapping[int, int]

    def peak(self, wrapped: frozenset[str]) -> int:
        """Bytes that are live at most in the backward pass, which goes through the blocks from the last one."""
        held, levels = dict(self.rest), []
        later = sum(b.gradients for b in self.blocks)
        for block in self.blocks:
            levels.append(sum({**held, **block.saved}.values()) + later)
            held |= block.given if block.name in wrapped else block.saved
            later -= block.gradients
        return max(levels, default=0)

    def ordered(self, wrapped: frozenset[str]) -> tuple[str, ...]:
        """The names in the order of the blocks."""
        return tuple(b.name for b in self.blocks if b.name in wrapped)

    def extra(self, wrapped: frozenset[str]) -> float:
        """The share of the cost of all blocks that is spent twice."""
        total = sum(b.cost for b in self.blocks)
        return sum(b.cost for b in self.blocks if b.name in wrapped) / total if total else 0.0

    @cached_property
    def table(self) -> ChainTable:
        """Plans for all budgets beyond the rest, in which each block runs again just before its backward pass.

        Of storages that several blocks hold, the last one counts that holds them wrapped or not. Gradients of
        parameters stay from the last block to the first.
        """
        counted, kept, crossing, returning, later = dict(self.rest), [], [], [], 0
        for block in reversed(self.blocks):
            later += block.gradients
            returning.append(_without(block.saved, self.rest) + later)
            kept.append(_without(block.saved, counted))
            crossing.append(_without(block.given, counted))
            counted |= {key: nbytes for key, nbytes in block.given.items() if key in block.saved}
        crossed, held, returned = (tuple(reversed(c)) for c in (crossing, kept, returning))
        costs, nothing = tuple(b.cost for b in self.blocks), (0,) * len(kept)
        profile = Profile(costs, nothing, crossed, held, nothing, nothing, returned)
        most = max(map(sum, zip(accumulate(held, initial=0), returned, strict=False)), default=0)
        slots = SLOTS + len(kept)  # all that is kept fits, though each block's part is rounded up
        return ChainTable(profile, math.ceil(most * slots / SLOTS), slots, longest=1)

    def planned(self, slots: int) -> frozenset[str]:
        """The blocks to wrap at least cost in ``slots`` of the table, no fewer than the first feasible."""
        table = self.table
        wrapped, last = set(), len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            if table.chosen(i, last, slots) == KEEP_ALL:
                slots -= int(table.kept[i])
            else:
                wrapped.add(block.name)
                slots -= int(table.crossing[i])
        return frozenset(wrapped)


def _without(storages: Mapping[int, int], others: Mapping[int, int]) -> int:
    """The bytes of storages that are not among others."""
    return sum(nbytes for key, nbytes in storages.items() if key not in others)


# --- measuring --------------------------------------------------------------------------------------------------------


def _call(module: Any, inputs: Any) -> Callable[[], Any]:
    """The module's call with these inputs."""
    if isinstance(inputs, Mapping):
        return lambda: module(**inputs)
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return lambda: module(*arguments)


def _named(module: Any, names: Sequence[str]) -> dict[str, Any]:
    known = dict(module.named_modules())
    for name in names:
        if name not in known or not name:
            raise refusal("blocks", name, ", ".join(n for n in known if n) or "none: the module has no submodules")
    for name in names:
        inside = [other for other in names if other.startswith(f"{name}.")]
        if inside:
            raise refusal("blocks", [name, *inside], "blocks that do not contain each other")
    return {name: known[name] for name in names}


def _chain(
    module: Any, call: Callable[[], Any], names: Sequence[str] | None, costs: Mapping[str, float] | None
) -> _Chain:
    """The module's blocks as they are measured; large ones are divided unless ``names`` says which there are."""
    if names is not None:
        return _observed(module, call, [*names], costs)
    chosen = _divided(module, "")
    while True:
        chain = _observed(module, call, chosen, costs)
        total = sum(sum(b.saved.values()) for b in chain.blocks)
        known = dict(module.named_modules())
        sizes = {b.name: sum(b.saved.values()) for b in chain.blocks}
        large = {name for name, size in sizes.items() if size > _LARGE * total and _has_blocks(known[name])}
        if not large:
            return chain
        chosen = [part for name in chosen for part in (_divided(known[name], name) if name in large else [name])]


def _divided(module: Any, prefix: str) -> list[str]:
    """The children, and those of containers among them that hold more than layers."""
    found: list[str] = []
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        is_container = type(child).__name__ in ("Sequential", "ModuleList", "ModuleDict")
        found += _divided(child, path) if is_container and _has_blocks(child) else [path]
    return found


def _has_blocks(module: Any) -> bool:
    """Whether a module's children have children: of layers alone, none is worth computing again by itself."""
    return any(True for child in module.children() for _ in child.children())


def _observed(module: Any, call: Callable[[], Any], names: Sequence[str], costs: Mapping[str, float] | None) -> _Chain:
    """One forward pass with hooks on blocks and saved tensors."""
    import torch

    blocks = {name: _Block(name) for name in names}
    order: list[str] = []
    inside: list[tuple[str, float]] = []
    rest: dict[int, int] = {}
    alive: list[Any] = []  # storages whose identity must not be used again
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}

    def keep(into: dict[int, int], tensor: Any) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and storage.nbytes():
            alive.append(storage)
            into[storage.data_ptr()] = storage.nbytes()

    def pack(tensor: Any) -> Any:
        keep(blocks[inside[0][0]].saved if inside else rest, tensor)
        return tensor

    def enter(name: str) -> Callable[..., None]:
        def hook(block: Any, args: Any, kwargs: Any) -> None:
            if not inside:
                order.append(name)
                for value in torch.utils._pytree.tree_leaves((args, kwargs)):
                    if isinstance(value, torch.Tensor):
                        keep(blocks[name].given, value)
            inside.append((name, time.process_time()))

        return hook

    def leave(block: Any, args: Any, result: Any) -> None:
        name, began = inside.pop()
        if not inside:
            blocks[name].cost += time.process_time() - began

    handles = []
    for name, block in _named(module, names).items():
        blocks[name].gradients = sum(p.numel() * p.element_size() for p in block.parameters() if p.requires_grad)
        handles.append(block.register_forward_pre_hook(enter(name), with_kwargs=True))
        handles.append(block.register_forward_hook(leave))
    try:
        call()  # once for what torch prepares at first calls; its costs are not those of later ones
        order.clear()
        for block in blocks.values():
            block.saved, block.given, block.cost = {}, {}, 0.0
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            call()
    finally:
        for handle in handles:
            handle.remove()
    for name, cost in (costs or {}).items():
        if name in blocks:
            blocks[name].cost = float(cost)
    return _Chain([blocks[name] for name in dict.fromkeys(order)], rest)


def _measured_peak(module: Any, call: Callable[[], Any], wrapped: Sequence[str]) -> int:
    """Bytes of tensors that are live at most while forward and backward pass run once."""
    import torch

    plan = CheckpointPlan(tuple(wrapped), 0, 0, 0, 0, 0.0)
    plan.apply(module)
    try:
        for parameter in module.parameters():
            parameter.grad = None
        with live_bytes() as peak:
            results = torch.utils._pytree.tree_leaves(call())
            leaves = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
            del results
            if not leaves:
                raise refusal("module", "a result without gradients", "one that parameters lead to")
            torch.autograd.backward(leaves, [torch.ones_like(t) for t in leaves])
            del leaves
        return peak[0]
    finally:
        plan.remove(module)
