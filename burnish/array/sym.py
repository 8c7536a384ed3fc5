"""Declarative symbols (``burnish.sym``): expressions that compose, are bound to arrays, and have gradients.

Every operator is a function here, by its name or NumPy's: ``sym.relu(x)``, ``sym.softmax(x, axis=-1)``, ``sym.sum(x)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.array.array import Array
from burnish.array.binding import bind_types
from burnish.array.drawing import dot as dot_text
from burnish.array.drawing import svg as svg_text
from burnish.array.executor import Executor as Executor
from burnish.array.executor import NamedArrays as Arrays
from burnish.array.executor import bind as bind
from burnish.array.executor import type_given
from burnish.array.functions import function_named, names
from burnish.array.layers import batch_normalization as batch_normalization
from burnish.array.layers import convolution as convolution
from burnish.array.layers import fully_connected as fully_connected
from burnish.array.sizing import estimate
from burnish.array.symbol import Extent as Extent
from burnish.array.symbol import Symbol as Symbol
from burnish.array.symbol import apply
from burnish.array.symbol import constant as constant
from burnish.array.symbol import loss as loss
from burnish.array.symbol import mode as mode
from burnish.array.symbol import state as state
from burnish.array.symbol import variable as variable
from burnish.array.symbol_file import load as load
from burnish.array.symbol_file import save as save
from burnish.graph.graph import Graph, TensorType

Shape = tuple[int, ...]


def infer_shape(heads: Symbol | Sequence[Symbol], **shapes: Sequence[int]) -> tuple[dict[str, Shape], list[Shape]]:
    """The shapes of all variables and states by name, and of the heads, from those of some variables.

    Raises InputError for a variable whose shape neither is given nor follows; ModelError for what does not fit.
    """
    built = graph(heads, {name: tuple(shape) for name, shape in shapes.items()}, training=True)
    count = 1 if isinstance(heads, Symbol) else len(heads)
    return (
        {name: built.types[name].shape for name in built.inputs},
        [built.types[name].shape for name in built.outputs[:count]],
    )


def graph(heads: Symbol | Sequence[Symbol], types: Mapping[str, Any], training: bool = False) -> Graph:
    """The graph of symbols, to compile, to export, or to look at: shapes of variables, or (shape, dtype), by name.

    Its inputs are variables and states, its outputs the heads and, in training, what states become.
    """
    symbols = (heads,) if isinstance(heads, Symbol) else tuple(heads)
    return bind_types(symbols, _types(types), training).graph


def memory(
    heads: Symbol | Sequence[Symbol], data: Mapping[str, Any], arrays: Mapping[str, Any] | None = None,
    *, gradients: bool = True,
) -> Mapping[str, int]:  # fmt: skip
    """Bytes that an executor will need, by kind: "arena" for intermediate values, "inputs" for data, "parameters",
    "states", "outputs" with the gradients, and "constants". Arguments as those of :func:`bind`.
    """
    symbols = (heads,) if isinstance(heads, Symbol) else tuple(heads)
    net = Executor(symbols, _types({**data, **(arrays or {})}), {}, tuple(data), None, None)
    built = net.joint if gradients else net.inference
    return estimate(built, tuple(net.states), tuple(net.w))


def _types(given: Mapping[str, Any]) -> dict[str, TensorType]:
    return {name: type_given(name, one) for name, one in given.items()}


def dot(heads: Symbol | Sequence[Symbol]) -> str:
    """A drawing in Graphviz's language."""
    return dot_text((heads,) if isinstance(heads, Symbol) else tuple(heads))


def svg(heads: Symbol | Sequence[Symbol]) -> str:
    """A drawing as SVG."""
    return svg_text((heads,) if isinstance(heads, Symbol) else tuple(heads))


def _is_operand(given: Any) -> bool:
    return isinstance(given, Symbol | Array)


def __getattr__(name: str) -> Callable[..., Any]:
    found = None if name.startswith("_") else function_named(name, apply, _is_operand)
    if found is None:
        raise AttributeError(f"burnish.sym has no function {name!r}; operators are listed in docs/operators.md")
    globals()[name] = found
    return found


__all__ = [
    "Arrays", "Executor", "Extent", "Symbol", "batch_normalization", "bind", "constant", "convolution", "dot",
    "fully_connected", "graph", "infer_shape", "load", "loss", "memory", "mode", "save", "state", "svg", "variable",
    *(name for name in names() if name != "dot"),
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
