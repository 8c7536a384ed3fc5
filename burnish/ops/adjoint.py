"""The gradient of any operator, derived from its definition: an operator itself, of which one names another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from burnish.errors import UnsupportedOperator
from burnish.loops.adjoint import gradients, replaced
from burnish.loops.expr import Load
from burnish.loops.tensor import Tensor, compute, placeholder, stages
from burnish.ops.operator import Ints, Nested, Operator, TensorType, named_operator, require, require_input

Find = Callable[[str], Operator]


@dataclass(frozen=True, eq=False)
class Derived:
    """Derived gradient of one application of an operator by one input, over placeholders ``x…``, ``y…`` and ``dy…``.

    ``reads``: which of its inputs, outputs and adjoints of outputs, in this order, it is computed from. ``result`` is
    None where the gradient is 0.
    """

    result: Tensor | None
    operands: tuple[Tensor, ...]
    reads: Ints

    @property
    def copied(self) -> int | None:
        """The operand that the gradient is, element by element, if it is one."""
        t = self.result
        if t is None or len(self.reads) != 1:
            return None
        (number,) = self.reads
        own = self.operands[number]
        same = t.body is None or (t.body == Load(own.buffer, t.axes) and t.shape == own.shape)
        return number if same else None


@lru_cache(maxsize=1 << 12)
def derive(
    find: Find,
    name: str,
    attributes: tuple[tuple[str, Any], ...],
    types: tuple[TensorType, ...],
    wrt: int,
    seeded: Ints,
) -> Derived:
    """The gradient of operator ``name`` by input ``wrt``, where the outputs numbered ``seeded`` have adjoints.

    Raises UnsupportedOperator for an opaque operator.
    """
    operator = find(name)
    if operator.extern is not None:
        raise UnsupportedOperator(f"{operator.name}: an opaque operator without a gradient rule")
    inputs = [placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(types)]
    outputs = operator.define("y", inputs, dict(attributes))
    results = [placeholder(t.shape, t.dtype, f"value{j}") for j, t in enumerate(outputs)]
    seeds = [placeholder(t.shape, t.dtype, f"seed{j}") if j in seeded else None for j, t in enumerate(outputs)]
    found = gradients(outputs, results, seeds, inputs[wrt])
    all_seeds = [placeholder(t.shape, t.dtype, f"seed{j}") for j, t in enumerate(outputs)]
    operands = (*inputs, *results, *all_seeds)
    read = {t.name for t in stages([found])} if found is not None else set()
    return Derived(found, operands, tuple(i for i, t in enumerate(operands) if t.name in read))


def adjoint_of(find: Find) -> Operator:
    """The operator ``adjoint`` over the operators that ``find`` knows by name, itself among them."""

    def adjoint(
        name: str, *given: Tensor, operator: str, attributes: Nested, types: Nested, wrt: int, seeded: Ints, reads: Ints
    ) -> Tensor:
        """The gradient of ``operator`` with ``attributes``, applied to ``types``, by its input ``wrt``.

        ``given`` are those of its inputs, outputs and adjoints of outputs that ``reads`` numbers, in this order;
        outputs not in ``seeded`` have no adjoint. Where ``max`` or ``min`` is attained several times, the first counts.
        """
        derived = derive(find, operator, attributes, types, wrt, seeded)
        require(derived.reads == reads, "attribute 'reads'", list(reads), f"{list(derived.reads)}")
        require(len(given) == len(reads), "inputs", f"{len(given)} tensors", f"{len(reads)}, those of 'reads'")
        assert derived.result is not None
        by: dict[str, Tensor] = {}
        for t, number in zip(given, reads, strict=True):
            own = derived.operands[number]
            require_input(t, str(number), shape=own.shape, dtype=(own.dtype,))
            by[own.name] = t
        return _named(derived.result, by, name)

    return named_operator("adjoint", adjoint)


def _named(result: Tensor, by: Mapping[str, Tensor], name: str) -> Tensor:
    """The stages under names that begin with ``name``, the last is ``name``."""
    names = {t.name: f"{name}.{t.name}" for t in stages([result])}
    if result.body is None:  # the adjoint of an output itself
        return compute(result.shape, lambda *i: by[result.name][i], name)
    return replaced([result], by, {**names, result.name: name})[0]


def application(
    find: Find, name: str, attrs: Mapping[str, Any], types: Sequence[TensorType], wrt: int, seeded: Ints
) -> tuple[Derived, dict[str, Any]]:
    """One operator's gradient, and the attributes of the operator ``adjoint`` that computes it."""
    operator = find(name)
    given_attrs = {key: value for key, value in operator.complete(attrs).items() if value != operator.attrs[key]}
    frozen = tuple(sorted(given_attrs.items()))
    given = tuple((tuple(shape), dtype) for shape, dtype in types)
    derived = derive(find, name, frozen, given, wrt, seeded)
    return derived, {
        "operator": name, "attributes": frozen, "types": given, "wrt": wrt, "seeded": seeded, "reads": derived.reads
    }  # fmt: skip
