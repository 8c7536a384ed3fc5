"""Operators: one block each, an index-expression definition with its attributes. `OPERATORS` lists them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import UnsupportedOperator
from burnish.ops import (
    adjoint,
    batch_norm,
    bf16x3,
    bit_words,
    blocks,
    byte_words,
    convolution,
    counted,
    coupling,
    csr,
    edge_attention,
    elementwise,
    graph_attention,
    indexing,
    inverse,
    linear_algebra,
    matmul,
    movement,
    narrow,
    normalize,
    packing,
    part,
    partial_sums,
    polyphase,
    pool,
    random,
    recurrent,
    reduce,
    resize,
    row_attention,
    running,
    sampling,
    scatter,
    sort,
    sparse,
    sparse_weighted,
    special,
    spectrum,
    text,
    transposed,
    trees,
    winograd,
)
from burnish.ops.control import branch_over, loop_over
from burnish.ops.operator import REQUIRED, Operator, TensorType, internal
from burnish.ops.scan import scan_over

__all__ = ["COUNTING", "OPERATORS", "REQUIRED", "Operator", "infer", "is_opaque", "operator_named"]

_FAMILIES = (
    elementwise,
    inverse,
    special,
    matmul,
    convolution,
    transposed,
    pool,
    reduce,
    running,
    normalize,
    row_attention,
    batch_norm,
    movement,
    indexing,
    resize,
    recurrent,
    winograd,
    polyphase,
    bf16x3,
    sort,
    narrow,
    sampling,
    scatter,
    spectrum,
    linear_algebra,
    random,
    text,
    trees,
    coupling,
    counted,
    packing,
    byte_words,
    bit_words,
    blocks,
    csr,
    sparse,
    sparse_weighted,
    graph_attention,
    edge_attention,
)
_PLAIN: Mapping[str, Operator] = {op.name: op for family in _FAMILIES for op in family.OPERATORS}
_DEFINED: dict[str, Operator] = dict(_PLAIN)
OPERATORS: Mapping[str, Operator] = _DEFINED
COUNTING = frozenset(name for name, op in _PLAIN.items() if op.traits.counts)  # operators that count a dimension


def operator_named(name: str) -> Operator:
    """The operator called ``name``; raises UnsupportedOperator naming those that exist."""
    if name not in OPERATORS:
        raise UnsupportedOperator(f"operator '{name}' is not defined; defined are {', '.join(sorted(OPERATORS))}")
    return OPERATORS[name]


_ADJOINT = adjoint.adjoint_of(operator_named)  # of any operator, of itself too
_SCAN = scan_over({**_PLAIN, _ADJOINT.name: _ADJOINT})
_PART = part.part_of(operator_named)
_SUMS = partial_sums.partial_sums_of(operator_named)
_FLOW = (branch_over(OPERATORS), loop_over(OPERATORS))  # of any operators, each other too
_DEFINED.update({op.name: op for op in internal(_SCAN, _ADJOINT, _PART, _SUMS, *_FLOW)})


def is_opaque(name: str) -> bool:
    """Whether the operator of this name is computed by its ``extern``, and has no definition as index expressions."""
    return name in OPERATORS and OPERATORS[name].extern is not None


def infer(name: str, inputs: Sequence[TensorType], attrs: Mapping[str, Any] | None = None) -> list[TensorType]:
    """Shapes and dtypes of the outputs of operator ``name`` for inputs of the given shapes and dtypes."""
    return operator_named(name).infer(inputs, attrs)
