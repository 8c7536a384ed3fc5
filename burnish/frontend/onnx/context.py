"""Translation context: the ONNX node, the graph under construction, and the values known statically."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import onnx

from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.context import TranslationContext
from burnish.frontend.onnx.external import NO_FILES, ExternalData
from burnish.graph.evaluate import evaluate_node
from burnish.graph.graph import Attribute, Node, TensorType, infer_types
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.numeric import numpy_dtype
from burnish.loops.sizes import Dim, dims_of, extent_of, greatest, is_size

STATIC_ELEMENTS = 1 << 16  # results of constants up to this size are computed at import; folding decides on others
MOST_BYTES = min(1 << 47, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))  # of a tensor: what there is


def require_room(t: TensorType, where: str) -> None:
    """Raises ModelError, naming ``where``, for a tensor that no memory of this machine can hold.

    Nor may the other extents of an empty one exceed what can be counted.
    """
    extents = tuple(greatest(d) for d in t.shape)
    if greatest(t.nbytes) > MOST_BYTES or math.prod(max(d, 1) for d in extents) * ITEM_BYTES[t.dtype] > 1 << 62:
        raise ModelError(
            f"{where}: found a tensor {t} of {greatest(t.nbytes)} bytes; allowed: {MOST_BYTES}, this machine's memory"
        )


@dataclass(frozen=True)
class OnnxNode:
    """One node: ``inputs`` are names of graph tensors, or "" where an optional input is left out."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    opset: int

    def __str__(self) -> str:
        return f"node '{self.name}' ({self.op}, opset {self.opset})"

    @property
    def stem(self) -> str:
        """Name prefix of intermediate tensors: the first output in use."""
        return next((name for name in self.outputs if name), self.name)

    def input(self, position: int) -> str:
        """The name of an input, or "" if it is left out."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value, or ``default``."""
        return self.attrs.get(name, default)


Translator = Callable[["OnnxContext", OnnxNode], "str | Sequence[str]"]


class RuntimeValue(UnsupportedOperator):
    """A model that is no static graph: a node wants to know a value which only a call computes.

    ``tensor``: the value's name in the graph, or "" where it is not a matter of one. What :func:`import_onnx` refuses
    so, ``segments.py`` takes apart.
    """

    def __init__(self, message: str, tensor: str) -> None:
        super().__init__(message)
        self.tensor = tensor


class OpenDimensions(ModelError):  # noqa: N818 - what is missing, as the others say what they refuse
    """Inputs whose extents a model leaves open and nobody has given."""


@dataclass
class OnnxContext(TranslationContext[str]):
    """Adds operators to the graph on behalf of the node being translated."""

    node: OnnxNode = field(default_factory=lambda: OnnxNode("", "", (), (), {}, 0))
    data: ExternalData = NO_FILES
    made: set[str] = field(default_factory=set)  # tensors that the node being translated has added
    translators: Mapping[str, Translator] = field(default_factory=dict)
    opset: int = 0
    names: dict[str, str] = field(default_factory=dict)  # of the model where the node stands: those in the graph
    versions: Mapping[str, int] = field(default_factory=dict)  # of the other domains that the model imports
    sizes: dict[str, np.ndarray] = field(default_factory=dict)  # integers known up to dimensions: see symbolic.py
    counted: set[Dim] = field(default_factory=set)  # dimensions whose values a call computes
    constants: dict[int, tuple[onnx.TensorProto, str]] = field(default_factory=dict)  # of subgraphs, by identity
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)  # sequences: the names of their tensors
    flow: bool = True  # control flow that values decide may be a node with bodies
    training: bool = False  # what drops elements by chance in training does so; nothing is computed of initializers
    weights: set[str] = field(default_factory=set)  # initializers that may be trained: see ``training``

    def begin(self, node: OnnxNode) -> None:
        """Turns to the next node."""
        self.node = node
        self.made = set()

    # --- building ---

    def named(self, x: str) -> str:
        """The name as a tensor's."""
        return x

    def add_many(self, op: str, *inputs: str, **attrs: Attribute) -> tuple[str, ...]:
        """All outputs of ``op``; computed at once if the inputs are constants and the results are small."""
        constants = [self.builder.constants.get(name) for name in inputs]
        known = [array for array in constants if array is not None]
        types = infer_types(op, [self.builder.types[name] for name in inputs], attrs)
        for t in types:
            require_room(t, str(self.node))
        sizes = [greatest(t.size) for t in types] + [a.size for a in known]
        small = all(size <= STATIC_ELEMENTS for size in sizes) and not any(dims_of(t.shape) for t in types)
        if len(known) == len(inputs) > 0 and small and self.weights.isdisjoint(inputs):
            node = Node(op, inputs, tuple(f"{i}" for i in range(len(types))), attrs, self.node.name)
            return tuple(self.constant(array) for array in evaluate_node(node, known))
        return self.emit(op, *inputs, **attrs)

    def emit(self, op: str, *inputs: str, **attrs: Attribute) -> tuple[str, ...]:
        """Node of ``op`` with all its outputs, never folded, even on constant inputs."""
        names = [self.builder.fresh(f"{self.node.stem}.{op}")]
        added = self.builder.add_many(op, *inputs, names=names, node=self.node.name, **attrs)
        self.made.update(added)
        return added

    def constant(self, value: np.ndarray | float | int | Sequence[int], dtype: str | None = None) -> str:
        """A constant tensor; Python numbers need ``dtype``."""
        array = np.asarray(value) if dtype is None else np.asarray(value).astype(np_dtype(dtype))
        name = self.builder.constant(array, self.builder.fresh(f"{self.node.stem}.const"))
        self.made.add(name)
        return name

    def listed(self, items: Sequence[str]) -> str:
        """The name of a new sequence of tensors: of none in the graph."""
        name = f"\0{len(self.lists)}"
        self.lists[name] = tuple(items)
        return name

    # --- asking ---

    def axis(self, name: str, axis: int) -> int:
        """``axis`` of tensor ``name`` counted from the front."""
        rank = self.rank(name)
        if not -rank <= axis < max(rank, 1):
            self.invalid("attribute 'axis'", axis, f"-{rank} to {rank - 1} for an input of {rank} dimensions")
        return axis % rank if rank else 0

    def known(self, name: str) -> np.ndarray | None:
        """The value of a constant, or an array of integers and sizes; None for what a call computes."""
        return self.builder.constants.get(name, self.sizes.get(name))

    def static(self, name: str, what: str) -> np.ndarray:
        """The value of a tensor that must be known at compile time."""
        array = self.known(name)
        if array is None:
            raise RuntimeValue(
                f"{self.node}: input '{what}': found '{name}', computed at run time; allowed: a value that is known "
                "statically", name,
            )  # fmt: skip
        return array

    def number(self, name: str, what: str) -> Any:
        """The only element of a tensor that must be known at compile time."""
        self.require_one(name, what)
        return self.static(name, what).reshape(-1)[0]

    def require_one(self, name: str, what: str) -> None:
        """Refuses a tensor that is not of one element."""
        if any(e != 1 for e in self.shape(name)):
            self.invalid(f"input '{what}'", f"shape {list(self.shape(name))}", "one element")

    @staticmethod
    def may_be(shape: Sequence[int], other: Sequence[int]) -> bool:
        """Whether two shapes are the same, or may be for some values of dimensions."""
        return len(shape) == len(other) and all(
            a == b or is_size(a) or is_size(b) for a, b in zip(shape, other, strict=True)
        )

    def require_onto(self, name: str, what: str, shape: Sequence[int]) -> None:
        """Refuses a tensor whose broadcast against one of ``shape`` would be of another shape."""
        own = self.shape(name)
        pairs = zip(own[::-1], shape[::-1], strict=False)
        if len(own) > len(shape) or any(e not in (1, o) and not (is_size(e) and is_size(o)) for e, o in pairs):
            self.invalid(f"input '{what}'", f"shape {list(own)}", f"one that broadcasts to {list(shape)}")

    def ints(self, name: str, what: str) -> tuple[int, ...]:
        """The integers of a tensor that must be known at compile time, but for the values of dimensions: sizes."""
        return tuple(extent_of(v) for v in self.static(name, what).reshape(-1))

    def ints_of(self, attribute: str, position: int) -> tuple[int, ...] | None:
        """Integers given by an attribute (old opsets) or by an input (new ones); None if by neither."""
        if attribute in self.node.attrs:
            value = self.node.attrs[attribute]
            return tuple(value) if isinstance(value, (list, tuple)) else (int(value),)
        name = self.node.input(position)
        return self.ints(name, attribute) if name else None

    def require_room(self, shape: Sequence[int], dtype: str) -> None:
        """Refuses a constant that is too large, before it is made."""
        require_room(TensorType(tuple(shape), dtype), str(self.node))

    def require_positions(self, index: str, x: str, dims: Sequence[int]) -> None:
        """Refuses known indices out of range of dimensions of ``x``: one, or as many as are in a tuple of them.

        Those below 0 count from the end.
        """
        shape = self.shape(x)
        if not all(0 <= d < len(shape) for d in dims):
            return  # which the operator refuses
        value = self.builder.constants.get(index)
        for k, d in enumerate(dims):
            if value is not None and not is_size(shape[d]):
                own = value if len(dims) == 1 else value[..., k]
                self.require_range(
                    own, "indices", -shape[d], shape[d], f"positions along dimension {d} of '{x}' {list(shape)}"
                )

    def require_range(self, value: np.ndarray | str, what: str, least: int, end: int, of: str) -> None:
        """Refuses an array, or a constant, with integers other than ``least`` … ``end - 1``; ``of``: what those are."""
        found = self.builder.constants.get(value) if isinstance(value, str) else value
        if found is None or found.dtype.kind not in "iu":
            return
        outside = found[(found < least) | (found >= end)]
        if outside.size:
            allowed = f"{least} to {end - 1}" if end > least else "none"
            raise ModelError(f"{self.node}: input '{what}': found {outside.flat[0]}; allowed: {allowed}, {of}")

    def refuse(self, argument: str, found: object, allowed: str) -> NoReturn:
        """Raises UnsupportedOperator for one argument of the node."""
        raise UnsupportedOperator(f"{self.node}: {argument}: found {found}; allowed: {allowed}")

    def invalid(self, argument: str, found: object, allowed: str) -> NoReturn:
        """Raises ModelError for one argument that the standard does not allow."""
        raise ModelError(f"{self.node}: {argument}: found {found}; allowed: {allowed}")

    # --- small compositions ---

    def slice(self, x: str, axis: int, start: int, stop: int) -> str:
        """``x`` restricted to ``start`` … ``stop - 1`` along ``axis``."""
        rank, shape = self.rank(x), self.shape(x)
        starts = tuple(start if d == axis else 0 for d in range(rank))
        extents = tuple(stop - start if d == axis else shape[d] for d in range(rank))
        return self.add("slice", x, starts=starts, extents=extents)

    def flatten(self, x: str, axis: int) -> str:
        """``x`` as a matrix: dimensions before ``axis`` are rows."""
        shape = self.shape(x)
        return self.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def np_dtype(dtype: str) -> np.dtype:
    """NumPy's object for a dtype name."""
    return numpy_dtype(dtype)
