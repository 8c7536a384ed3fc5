"""Task and Template: what a schedule template is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from burnish.loops.contraction import is_sum_of_products
from burnish.loops.expr import Reduce
from burnish.loops.layout import Layout, row_major
from burnish.loops.loaded import is_loaded
from burnish.loops.program import LoopProgram
from burnish.loops.sizes import Dim
from burnish.loops.specialize import dims_of_tensors, tensors_at
from burnish.loops.tensor import Tensor, create_program, stages


@dataclass(frozen=True)
class KernelTask:
    """One fused kernel: its definition, the layouts its activations arrive and leave in, and which inputs are constant.

    ``layouts`` and ``constants`` are keyed by parameter name; what is not in ``layouts`` is row-major. A template may
    choose any layout for a constant, since it is packed before the first call, and for the weights in ``packed``, which
    are known at a call only: at every call a kernel of its own packs each of them, or the one that reads it. Those that
    several tasks alike read, steps of a recurrence, are ``shared``: they are packed for all of them. ``label`` is what
    people call it, and begins its kernel's name; no template asks for it. ``odd_round``: its kernel is called in turn
    with that of the same task without, which reads the same constants.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    label: str
    layouts: Mapping[str, Layout]
    constants: frozenset[str]
    packed: frozenset[str] = frozenset()
    odd_round: bool = False
    shared: frozenset[str] = frozenset()

    @property
    def packing(self) -> Mapping[str, str]:
        """When each parameter whose layout a template may choose is packed: at "compile" time or at each "call"."""
        return {**dict.fromkeys(self.constants, "compile"), **dict.fromkeys(self.packed, "call")}

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions in its shapes and definitions, in order of their names; none of a static task."""
        return dims_of_tensors((*self.inputs, *self.outputs))

    @cached_property
    def hinted(self) -> KernelTask:
        """The static task where every dimension has its hint: what templates, costs and tuners see."""
        return self.at({d.name: d.hint for d in self.dims}) if self.dims else self

    def at(self, sizes: Mapping[str, int]) -> KernelTask:
        """The static task for these values of dimensions."""
        made = tensors_at((*self.inputs, *self.outputs), sizes)
        inputs, outputs = (tuple(made[t.name] for t in tensors) for tensors in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs)

    def program(self) -> LoopProgram:
        """The naive loop program: always the same object."""
        return self._program

    @cached_property
    def _program(self) -> LoopProgram:
        return create_program(self.name, self.inputs, self.outputs)

    def stages(self) -> list[Tensor]:
        """Defined tensors, producers first."""
        return list(self._stages)

    @cached_property
    def _stages(self) -> tuple[Tensor, ...]:
        return tuple(t for t in stages(self.outputs) if t.body is not None)

    @cached_property
    def loaded(self) -> bool:
        """Whether something is reduced over a loaded extent."""
        bodies = [t.body for t in self._stages if isinstance(t.body, Reduce)]
        return any(is_loaded(axis.extent) for body in bodies for axis in body.axes)

    def anchor(self) -> Tensor | None:
        """The stage that is a sum of products of two tensors: the matrix-product-like heart of a complex operator."""
        return next((t for t in self.stages() if is_sum_of_products(t)), None)

    def layout(self, name: str) -> Layout:
        """The layout of a parameter."""
        tensor = next(t for t in (*self.inputs, *self.outputs) if t.name == name)
        return self.layouts.get(name) or row_major(len(tensor.shape))


Choice = Mapping[str, int | str]


@dataclass(frozen=True)
class ScheduleSpace:
    """A schedule space as data: knob name -> its choices, the analytic default first in ``default``."""

    knobs: Mapping[str, Sequence[int | str]]
    default: Choice

    @property
    def size(self) -> int:
        """Number of points."""
        total = 1
        for choices in self.knobs.values():
            total *= len(choices)
        return total
