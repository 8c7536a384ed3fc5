"""Translation context: the FX node, the graph under construction, and small compositions of operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from burnish.errors import UnsupportedOperator
from burnish.frontend.context import TranslationContext
from burnish.frontend.torch.dtypes import dtype_name, to_numpy
from burnish.frontend.torch.symbols import Symbols, is_open
from burnish.graph.graph import Attribute, GraphBuilder
from burnish.loops.expr import FLOATS
from burnish.loops.numeric import numpy_dtype

Value = Any  # a Ref, a number, None, a string, a torch.dtype, or a list of these
Translator = Callable[..., Any]


class Ref(str):
    """The name of a graph tensor: a string of its own class, for strings are arguments, too."""


@dataclass
class TorchContext(TranslationContext[Ref]):
    """Adds operators to the graph on behalf of the node being translated.

    A translator gets the arguments of the ATen schema by their names, but ``self`` as ``x``; those that it does not
    take must have their defaults. It returns the output, or the outputs, of which those that it cannot give are None.
    """

    symbols: Symbols = field(default_factory=Symbols)
    label: str = ""  # the node being translated, for messages
    stem: str = ""  # what names of tensors of that node begin with
    result: Any = None  # what torch says of its outputs: a fake tensor, or a tuple of them
    raw: Mapping[str, Any] = field(default_factory=dict)  # its arguments as torch has them: fake tensors for Refs
    training: bool = False  # what drops elements by chance in training does so
    _constants: dict[int, tuple[Any, Ref]] = field(default_factory=dict)

    def begin(self, label: str, stem: str, result: Any, raw: Mapping[str, Any]) -> None:
        """Turns to the next node."""
        self.label, self.stem, self.result, self.raw = label, stem, result, raw

    def inside(self, builder: GraphBuilder) -> TorchContext:
        """The same for a graph inside of this one: a body that repeats."""
        return replace(self, builder=builder, _constants={})

    # --- building ---

    def named(self, x: str) -> Ref:
        """The name as a tensor's."""
        return Ref(x)

    def add_many(self, op: str, *inputs: str, **attrs: Attribute) -> tuple[Ref, ...]:
        """All outputs of ``op``."""
        name = self.builder.fresh(f"{self.stem}.{op}")
        return tuple([Ref(n) for n in self.builder.add_many(op, *inputs, names=[name], node=self.stem, **attrs)])

    def constant(self, value: Any, dtype: str | None = None) -> Ref:
        """A constant tensor; Python numbers need ``dtype``."""
        array = np.asarray(value) if dtype is None else np.asarray(value).astype(numpy_dtype(dtype))
        return Ref(self.builder.constant(array, self.builder.fresh(f"{self.stem}.const")))

    def constant_of(self, tensor: Any, stem: str) -> Ref:
        """A constant with a tensor's value: the same for the same tensor."""
        found = self._constants.get(id(tensor))
        if found is None:
            array = np.ascontiguousarray(to_numpy(tensor, stem)).reshape(tuple(tensor.shape))
            found = tensor, Ref(self.builder.constant(array, self.builder.fresh(stem)))
            self._constants[id(tensor)] = found
        return found[1]

    def operand(self, value: Any, dtype: str) -> Ref:
        """A tensor, or a number as one of no dimensions, as ``dtype``."""
        if isinstance(value, Ref):
            return self.cast(value, dtype)
        if is_open(value):
            ones = self.add("expand", self.constant(1, "int64"), shape=(value,))
            return self.cast(self.add("reduce_sum", ones, axes=(0,), keepdims=False), dtype)
        return self.constant(value, dtype)

    def iota(self, extent: int, dtype: str = "int64") -> Ref:
        """0, 1, … below ``extent``, which may be open."""
        if is_open(extent):
            return self.add("iota", self.constant(0, dtype), extent=extent)
        return self.constant(np.arange(extent), dtype)

    # --- asking ---

    def axis(self, name: str, axis: int) -> int:
        """``axis`` of tensor ``name`` counted from the front."""
        return axis % max(self.rank(name), 1)

    def axes(self, name: str, axes: Any) -> tuple[int, ...]:
        """Axes counted from the front, in order; all of them for None and for none."""
        if axes is None or (isinstance(axes, Sequence) and not axes):
            return tuple(range(self.rank(name)))
        given = [axes] if isinstance(axes, int) else axes
        return tuple(sorted({self.axis(name, a) for a in given})) if self.rank(name) else ()

    def known(self, name: Any) -> np.ndarray | None:
        """The value of a constant; None for what is computed at run time."""
        return self.builder.constants.get(name)

    @property
    def out(self) -> Any:
        """Fake tensor of the first output, as torch traced it."""
        return self.result[0] if isinstance(self.result, (tuple, list)) else self.result

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape that torch says the first output has."""
        return self.symbols.shape(self.out, self.label)

    @property
    def out_dtype(self) -> str:
        """The dtype that torch says the first output has."""
        return dtype_name(self.out.dtype, self.label)

    def common_dtype(self, *arguments: str) -> str:
        """The dtype in which torch computes with these two arguments."""
        import torch

        a, b = (self.raw[name] for name in arguments)
        plain = [v for v in (a, b) if not isinstance(v, torch.Tensor)]
        if len(plain) == 2:
            return self.out_dtype
        return dtype_name(torch.result_type(*(1 if isinstance(v, torch.SymInt) else v for v in (a, b))), self.label)

    def refuse(self, argument: str, found: object, allowed: str) -> NoReturn:
        """Raises UnsupportedOperator for one argument of the node."""
        raise UnsupportedOperator(f"{argument}: found {found}; allowed: {allowed}")

    # --- small compositions ---

    def expand(self, x: str, shape: Sequence[int]) -> Ref:
        """``x`` broadcast to ``shape``, itself if that is its shape."""
        return Ref(x) if self.shape(x) == tuple(shape) else self.add("expand", x, shape=tuple(shape))

    def slice(self, x: str, axis: int, start: int, extent: int, step: int = 1) -> Ref:
        """``extent`` elements of ``x`` along ``axis`` from ``start`` on; ``x`` itself if these are all."""
        rank, shape = self.rank(x), self.shape(x)
        if step == 1 and extent == shape[axis]:
            return Ref(x)
        starts = tuple(start if d == axis else 0 for d in range(rank))
        extents = tuple(extent if d == axis else shape[d] for d in range(rank))
        steps = tuple(step if d == axis else 1 for d in range(rank))
        return self.add("slice", x, starts=starts, extents=extents, steps=steps)

    def concat(self, parts: Sequence[str], axis: int) -> Ref:
        """The parts one after the other along ``axis``."""
        return Ref(parts[0]) if len(parts) == 1 else self.add("concat", *parts, axis=axis)

    def dropout(self, x: str, rate: float) -> Ref:
        """``x`` with elements dropped; the step of training gives the seed its state."""
        return self.add("dropout", x, self.constant(0, "int64"), rate=rate) if rate else Ref(x)

    def real(self, x: str) -> Ref:
        """``x`` in the dtype of the result, which is a float where torch computes floats of integers."""
        return self.cast(x, self.out_dtype)

    def is_real(self, x: str) -> bool:
        """Whether ``x`` holds floats."""
        return self.dtype(x) in FLOATS

    def flat(self, x: str) -> Ref:
        """``x`` as a vector."""
        return self.reshape(x, (math.prod(self.shape(x)),))


def pair(values: Any, rank: int = 2) -> tuple[int, ...]:
    """``rank`` numbers from one for all of them, or from as many."""
    given = (values,) if isinstance(values, int) else tuple(values)
    return given * rank if len(given) == 1 else given
