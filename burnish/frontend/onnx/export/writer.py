"""ONNX writer: the nodes exported so far, as an exporter sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.numpy_helper

from burnish.errors import UnsupportedOperator
from burnish.frontend.onnx.dtypes import element_type
from burnish.frontend.onnx.schema import signature
from burnish.graph.graph import Graph
from burnish.loops.numeric import numpy_dtype
from burnish.loops.sizes import Atom, Dim, Quotient, is_size

OPSET = 20  # the first with Gelu; onnxruntime has it since 1.17


@dataclass(frozen=True)
class ExportedNode:
    """A node of the graph, its attributes checked and complete."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    name: str


Exporter = Callable[["Writer", ExportedNode], "str | Sequence[str]"]
"""Writes an operation; returns what its outputs are called."""

# What a dtype is computed in where ONNX's operator does not take it: all its values are exact there.
_WIDER: Mapping[str, tuple[str, ...]] = {
    "float16": ("float32",), "bfloat16": ("float32",),
    "int8": ("int32", "float32"), "uint8": ("int32", "float32"),
    "int16": ("int32", "float32"), "uint16": ("int32", "float32"),
    "int32": ("int64", "float64"), "uint32": ("int64", "float64"),
}  # fmt: skip


@dataclass
class Writer:
    """Appends ONNX nodes and initializers on behalf of the graph's node that is being exported."""

    graph: Graph
    node: ExportedNode = field(default_factory=lambda: ExportedNode("", (), (), {}, ""))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    _literals: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _labels: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.dtypes = {name: t.dtype for name, t in self.graph.types.items()}

    # --- asking ---

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor of the graph."""
        return self.graph.types[name].shape

    def rank(self, name: str) -> int:
        """The number of dimensions of a tensor of the graph."""
        return len(self.graph.types[name].shape)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the first output of the node being exported."""
        return self.shape(self.node.outputs[0])

    def refuse(self, argument: str, found: object, allowed: str) -> NoReturn:
        """Raises UnsupportedOperator for one argument of the node."""
        where = f"to_onnx: node '{self.node.name}' ({self.node.op})"
        raise UnsupportedOperator(f"{where}: {argument}: found {found}; allowed: {allowed}")

    # --- writing ---

    def emit(self, op_type: str, *inputs: str, dtype: str = "", **attrs: Any) -> str:
        """Appends a node with one output and returns that; see :meth:`emit_many`."""
        (output,) = self.emit_many(op_type, 1, *inputs, dtype=dtype, **attrs)
        return output

    def emit_many(self, op_type: str, count: int, *inputs: str, dtype: str = "", **attrs: Any) -> list[str]:
        """Appends a node with ``count`` outputs and returns their names; an input "" is left out.

        Operands of a dtype that the operator does not take are cast to a wider one, and the results back. ``dtype`` is
        the outputs', where it does not follow from the inputs'.
        """
        types = signature(op_type, OPSET)
        assert types is not None
        parameters = [types.inputs[min(i, len(types.inputs) - 1)] for i in range(len(inputs))]
        own = {p: self.dtypes[name] for p, name in zip(parameters, inputs, strict=True) if name}
        computed = {p: self._accepted(op_type, types.allowed[p], found) for p, found in own.items()}
        operands = [self.cast(name, computed[p]) if name else "" for p, name in zip(parameters, inputs, strict=True)]
        outputs = [self.fresh(f"{self.node.outputs[0]}.{op_type}") for _ in range(count)]
        self.nodes.append(onnx.helper.make_node(op_type, operands, outputs, name=self._label(), **attrs))
        results = []
        for position, output in enumerate(outputs):
            parameter = types.outputs[min(position, len(types.outputs) - 1)]
            self.dtypes[output] = computed.get(parameter) or dtype or next(iter(types.allowed[parameter]))
            results.append(self.cast(output, own.get(parameter, self.dtypes[output])))
        return results

    def cast(self, name: str, dtype: str) -> str:
        """``name`` as ``dtype``, itself if that is its dtype."""
        return name if self.dtypes[name] == dtype else self.emit("Cast", name, dtype=dtype, to=element_type(dtype))

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """``name`` in another shape, without a -1."""
        empty = any(not is_size(extent) and extent == 0 for extent in shape)
        return self.emit("Reshape", name, self.ints(shape), allowzero=int(empty))

    def constant(self, value: Any, dtype: str) -> str:
        """An initializer; equal ones are shared."""
        array = np.asarray(value).astype(numpy_dtype(dtype))
        key = (dtype, array.shape, array.tobytes())
        if key not in self._literals:
            name = self._literals[key] = self.fresh("literal")
            self.initialize(name, array)
            self.dtypes[name] = dtype
        return self._literals[key]

    def ints(self, values: Sequence[int]) -> str:
        """A one-dimensional int64 tensor: an initializer, or, of sizes, computed from the shapes of inputs."""
        if not any(map(is_size, values)):
            return self.constant(np.array(values, np.int64), "int64")
        return self.emit("Concat", *(self._size(value) for value in values), axis=0)

    def _size(self, extent: int | Atom) -> str:
        """An extent as an int64 tensor of one element."""
        if isinstance(extent, Quotient):
            return self.emit("Div", self._size(extent.size), self._size(extent.divisor))  # sizes are not negative
        if isinstance(extent, Dim):
            return self._dimension(extent)
        if not is_size(extent):
            return self.ints((extent,))
        total = self.ints((extent.constant,))
        for monomial, factor in extent.terms:
            product = self.ints((factor,))
            for atom in monomial:
                product = self.emit("Mul", product, self._size(atom))
            total = self.emit("Add", total, product)
        return total

    def _dimension(self, dim: Dim) -> str:
        """The value of a dimension: an extent of the first input that has it."""
        for name in self.graph.inputs:
            for axis, extent in enumerate(self.shape(name)):
                if is_size(extent) and extent.terms == (((dim,), 1),) and not extent.constant:
                    return self.emit("Gather", self.emit("Shape", name), self.ints((axis,)), axis=0)
        return self.refuse("dimension", f"'{dim}' in no input's shape alone", "the extent of an input")

    def scalar(self, value: float, like: str) -> str:
        """An initializer of no dimensions with the dtype of ``like``."""
        return self.constant(value, self.dtypes[like])

    def initialize(self, name: str, array: np.ndarray) -> None:
        """Adds an initializer under its name, its bytes as raw data."""
        self.initializers[name] = onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)

    def fresh(self, stem: str) -> str:
        """A name that no tensor has; it is taken from now on."""
        serial, name = 1, stem
        while name in self.dtypes:
            serial, name = serial + 1, f"{stem}.{serial}"
        self.dtypes[name] = ""
        return name

    def _accepted(self, op_type: str, allowed: Collection[str], found: str) -> str:
        """``found`` if it is allowed, else the first wider dtype that is."""
        for dtype in (found, *_WIDER.get(found, ())):
            if dtype in allowed:
                return dtype
        return self.refuse(f"ONNX operator {op_type}", f"dtype {found}", ", ".join(sorted(allowed)))

    def _label(self) -> str:
        """The node's name, with a number where it has become several."""
        stem = self.node.name
        serial, name = 1, stem
        while name in self._labels:
            serial, name = serial + 1, f"{stem}.{serial}"
        self._labels.add(name)
        return name
