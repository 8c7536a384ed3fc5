"""Random models under construction: every value is computed as its node is added, and later draws look at it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper

from burnish.runtime.buffers import numpy_dtype
from tools.fuzz.standard import NotComputable, compute_node, is_float, known_operator, make_model, schema_types

T = TypeVar("T")
EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 8, 9, 13, 15, 16, 16, 17, 31, 32, 33, 63, 64, 65, 100)
CHANNELS = (1, 2, 3, 4, 6, 7, 8, 8, 12, 13, 16, 16, 17, 24, 32, 33, 48, 64, 96)
MOST_ELEMENTS = 12_000  # of one value: the interpreters take milliseconds
# Values beyond which a node is not taken.
LARGEST = {"float16": 300.0, "bfloat16": 300.0, "float32": 1e4, "float64": 1e6}
FLOATS = ("float32", "float64", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTS)
DTYPES = (*NUMBERS, "bool")


class Rejected(Exception):  # noqa: N818 - reads as the refusal it is
    """A draw that does not work out: the sketch stays as it was."""


@dataclass(eq=False)
class Sketch:
    """``values`` of everything so far under ``feeds``; ``fuel`` bounds the elements of one value."""

    random: np.random.Generator
    opset: int
    dtype: str = "float32"  # preferred for new floats
    integer: str = "int64"  # and for new integers
    fuel: int = MOST_ELEMENTS
    special: bool = False  # NaN and infinities among the inputs
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    # --- draws ---

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.random.random() < probability)

    def choose(self, options: Sequence[T]) -> T:
        """One of the options, all alike; Rejected if there are none."""
        if not options:
            raise Rejected("nothing to choose from")
        return options[int(self.random.integers(len(options)))]

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        if high < low:
            raise Rejected("an empty range")
        return int(self.random.integers(low, high + 1))

    def shape(self, rank: int | None = None, most: int | None = None) -> tuple[int, ...]:
        """Awkward extents; a few are 0 if nothing else is asked."""
        rank = int(self.random.choice([0, 1, 2, 2, 3, 3, 3, 4, 4, 5])) if rank is None else rank
        while True:
            extents = [self.choose(EXTENTS) for _ in range(rank)]
            if math.prod(extents) <= min(most or self.fuel, self.fuel):
                break
        if rank and self.chance(0.004):
            extents[self.between(0, rank - 1)] = 0
        return tuple(extents)

    def split_axes(self, rank: int) -> list[int]:
        """Some axes, at least one, written from the front or from the back."""
        if rank == 0:
            raise Rejected("no axes")
        count = self.between(1, rank)
        axes = sorted(int(a) for a in self.random.permutation(rank)[:count])
        return [a - rank if self.chance(0.3) else a for a in axes]

    def axis(self, rank: int) -> int:
        """One axis, written from the front or from the back."""
        axis = self.between(0, rank - 1)
        return axis - rank if self.chance(0.4) else axis

    def floats(self, shape: Sequence[int], dtype: str, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        """Numbers between ``low`` and ``high``, in one of several manners."""
        manner = self.random.random()
        if manner < 0.6:
            array = self.random.uniform(low, high, shape)
        elif manner < 0.85:
            middle, half = (low + high) / 2, (high - low) / 2
            array = np.clip(middle + half / 2 * self.random.standard_normal(shape), low, high)
        else:  # quarters, among them zeros and ties
            array = np.clip(np.round(self.random.uniform(low, high, shape) * 4) / 4, low, high)
        return np.asarray(array).astype(numpy_dtype(dtype))

    def integers(self, shape: Sequence[int], dtype: str, low: int | None = None, high: int | None = None) -> np.ndarray:
        """Integers from ``low`` to ``high``, both included: small ones, if not bounded."""
        low = (-9 if dtype in SIGNED else 0) if low is None else low
        high = 9 if high is None else high
        return np.asarray(self.random.integers(low, high + 1, tuple(shape))).astype(dtype)

    def array(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Any values of a dtype."""
        if dtype == "bool":
            return np.asarray(self.random.integers(0, 2, tuple(shape)).astype(bool))
        return self.floats(shape, dtype) if dtype in FLOATS else self.integers(shape, dtype)

    # --- values ---

    def new(self, array: np.ndarray, constant: bool | None = None) -> str:
        """A model input or a constant that holds ``array``."""
        constant = self.chance(0.4) if constant is None else constant
        name = f"{'c' if constant else 'x'}{len(self.feeds) + len(self.constants)}"
        array = np.asarray(array)
        if not constant and self.special and is_float(array) and array.size and self.chance(0.7):
            array = array.copy()
            count = min(array.size, 1 + array.size // 50)
            places = self.random.integers(0, array.size, count)
            array.reshape(-1)[places] = self.random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], count)
        (self.constants if constant else self.feeds)[name] = array
        self.values[name] = array
        return name

    def constant(self, array: np.ndarray) -> str:
        """A constant."""
        return self.new(array, True)

    def index(self, values: Sequence[int] | int) -> str:
        """A constant of int64: axes, extents, pads."""
        return self.new(np.asarray(values, np.int64), True)

    def find(self, fits: Callable[[np.ndarray], bool]) -> str | None:
        """An existing value that fits, recent ones first; None if there is none."""
        found = [name for name, value in self.values.items() if name not in self.constants and fits(value)]
        if not found:
            return None
        return found[-1] if self.chance(0.5) else self.choose(found)

    def pick(
        self,
        dtypes: Sequence[str] = DTYPES,
        ranks: Sequence[int] = (0, 1, 2, 3, 4, 5),
        fits: Callable[[np.ndarray], bool] | None = None,
        fresh: float = 0.12,
    ) -> str:
        """An existing value of one of these dtypes and ranks, or a new one."""

        def right(value: np.ndarray) -> bool:
            return str(value.dtype) in dtypes and value.ndim in ranks and (fits is None or fits(value))

        name = None if self.chance(fresh) else self.find(right)
        if name is not None:
            return name
        for _ in range(8):
            array = self.array(self.shape(self.choose(ranks)), self.dtype_of(dtypes))
            if fits is None or fits(array):
                return self.new(array, self.chance(0.1))
        raise Rejected("no value fits")

    def dtype_of(self, dtypes: Sequence[str]) -> str:
        """A dtype for a new value: mostly the model's own."""
        for own in (self.dtype, self.integer):
            if own in dtypes and self.chance(0.8):
                return own
        return self.choose(sorted(dtypes))

    def types(self, op: str, position: int = 0, among: Sequence[str] = DTYPES) -> tuple[str, ...]:
        """The dtypes that the standard allows for an input of ``op``; Rejected if this opset has no such operator."""
        found = tuple(d for d in among if d in schema_types(op, self.opset, position))
        if not found:
            raise Rejected(f"no {op} in opset {self.opset}")
        return found

    def value(self, name: str) -> np.ndarray:
        """The array that a name stands for, as computed with the drawn inputs."""
        return self.values[name]

    def kind(self, name: str) -> str:
        """The dtype of a value."""
        return str(self.values[name].dtype)

    # --- nodes ---

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The output of a node."""
        return self.add_many(1, op, *inputs, **attrs)[0]

    def add_many(self, count: int, op: str, *inputs: str, **attrs: Any) -> list[str]:
        """``count`` outputs of a node, computed at once. Raises Rejected if they cannot be, or are not tame."""
        names = [f"v{len(self.nodes)}" + (f"_{i}" if count > 1 else "") for i in range(count)]
        attrs = {key: value for key, value in attrs.items() if value is not None}
        if not known_operator(op, self.opset):
            raise Rejected(f"no {op} in opset {self.opset}")
        node = helper.make_node(op, inputs, names, name=f"{op}_{len(self.nodes)}", **attrs)
        try:
            found, _ = compute_node(node, self.values, self.opset)
        except NotComputable as error:
            raise Rejected(str(error)) from error
        for array in found:
            self._require_tame(array)
        self.nodes.append(node)
        self.values.update(zip(names, found, strict=True))
        return names

    def _require_tame(self, array: np.ndarray) -> None:
        """Values that grow without bound test nothing but overflow."""
        if str(array.dtype) not in DTYPES:
            raise Rejected(f"a value of dtype {array.dtype}")
        if array.size > 3 * self.fuel:
            raise Rejected(f"{array.size} elements")
        if is_float(array) and array.size:
            finite = np.isfinite(array)
            if not self.special and not finite.all():
                raise Rejected("not finite")
            if np.abs(array[finite]).max(initial=0.0) > LARGEST[str(array.dtype)]:
                raise Rejected("too large")

    def attempt(self, draw: Callable[[Sketch], None]) -> bool:
        """Whether ``draw`` worked out; if not, the sketch is as before."""
        parts = (self.feeds, self.constants, self.values)
        before = [dict(part) for part in parts], list(self.nodes)
        try:
            draw(self)
        except Rejected:
            for part, old in zip(parts, before[0], strict=True):
                part.clear()
                part.update(old)
            self.nodes[:] = before[1]
            return False
        return True

    # --- the model ---

    def finish(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model with its outputs: all values that nothing reads, and some that are read."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        outputs = [name for name in made if name not in read or self.chance(0.12)]
        if len(outputs) > 8:
            kept = set(self.random.permutation(len(outputs))[:8].tolist())
            outputs = [name for i, name in enumerate(outputs) if i in kept]
        nodes = needed_nodes(self.nodes, outputs)
        read = {name for node in nodes for name in node.input} | set(outputs)
        spare = [*self.feeds, *self.constants]
        if spare and self.chance(0.04):
            outputs.append(self.choose(spare))
            read.add(outputs[-1])
        feeds = {n: a for n, a in self.feeds.items() if n in read or self.chance(0.1)}
        constants = {n: a for n, a in self.constants.items() if n in read}
        model = make_model(nodes, feeds, constants, {n: self.values[n] for n in outputs}, self.opset)
        return model, feeds


def needed_nodes(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Nodes that the outputs depend on, in order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted.update(name for name in node.input if name)
    return kept[::-1]
