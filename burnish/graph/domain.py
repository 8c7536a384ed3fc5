"""Value ranges of a model's inputs, derived from the definitions of the operators that use them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from burnish import ops
from burnish.graph.graph import Attribute, Graph, TensorType
from burnish.loops.bounds import UNKNOWN, Interval
from burnish.loops.domain import Domains, domains, meet
from burnish.loops.tensor import placeholder

LOOKED_AT = 4096  # elements of constants whose values count; larger ones are weights


def input_domains(graph: Graph) -> Domains:
    """Inclusive bounds of those inputs that are used as positions, as divisors, or where only positive numbers have a
    value, also after some arithmetic or movement. Of other inputs any values will do.
    """
    found: Domains = {}
    constants = {name: _bounds(array) for name, array in graph.constants.items() if 0 < array.size <= LOOKED_AT}
    for node in reversed(graph.nodes):
        types = tuple(graph.types[name] for name in node.inputs)
        wanted = tuple(found.get(name, UNKNOWN) for name in node.outputs)
        known = tuple((i, constants[name]) for i, name in enumerate(node.inputs) if name in constants)
        for number, interval in _operand_domains(node.op, types, tuple(sorted(node.attrs.items())), wanted, known):
            name = node.inputs[number]
            if name not in graph.constants:
                found[name] = meet(found.get(name, UNKNOWN), interval)
    return {name: found[name] for name in graph.inputs if name in found}


@lru_cache(maxsize=4096)
def _operand_domains(
    op: str,
    types: tuple[TensorType, ...],
    attrs: tuple[tuple[str, Attribute], ...],
    wanted: tuple[Interval, ...],
    known: tuple[tuple[int, Interval], ...],
) -> tuple[tuple[int, Interval], ...]:
    """Operands by their numbers, and their domains, where an operator's outputs shall be within ``wanted``. Those of
    ``known`` are constant.
    """
    if ops.is_opaque(op):
        return ()
    inputs = [placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)]
    outputs = ops.OPERATORS[op].define("y", inputs, dict(attrs))
    wants = {t.name: want for t, want in zip(outputs, wanted, strict=True) if want != UNKNOWN}
    found = domains(outputs, wants, {inputs[i].name: interval for i, interval in known})
    return tuple((i, found[t.name]) for i, t in enumerate(inputs) if t.name in found)


def _bounds(array: np.ndarray) -> Interval:
    return float(array.min()), float(array.max())
