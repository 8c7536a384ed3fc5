"""Symbols: declarative expressions that compose, with free variables whose types are bound late (Chen, thesis §3.1.1).

A symbol is a reference to a result of an operator; what hangs together by references becomes a :class:`Graph` as soon
as the types of its variables are known, and all else is done with that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import numpy as np

from burnish import ops
from burnish.array.operators import NEGATIVE, SIGNS
from burnish.array.recording import as_number
from burnish.array.types import dtype_name
from burnish.base.arguments import refusal
from burnish.errors import InputError
from burnish.graph.graph import Attribute
from burnish.train.losses import LOSSES

Kind = Literal["variable", "state", "constant", "operator", "loss", "mode"]
_serial = count()


@dataclass(frozen=True)
class Extent:
    """The extent of dimension ``axis`` of the symbol that a variable goes with: known when that is."""

    axis: int


@dataclass(frozen=True, eq=False)
class Symbol:
    """One result of an operator, a free variable, a state or a constant.

    ``inputs``: of an operator its operands; of a variable whose shape follows from another symbol's, that symbol; of a
    ``mode`` what holds in training and in inference; of a ``loss``, named by ``operator``, output and labels. A
    variable with an ``operator`` holds that loss's labels. ``updates``: states, and what they become by a call.
    ``index``: of an operator with several results, which one. Symbols never change: composition makes new ones.
    """

    kind: Kind
    name: str
    operator: str = ""
    inputs: tuple[Symbol, ...] = ()
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    index: int = 0
    shape: tuple[int | Extent, ...] | None = None
    dtype: str | None = None
    value: np.ndarray | None = None
    updates: tuple[tuple[Symbol, Symbol], ...] = ()
    node: object = field(default_factory=object)  # alike in all results of one application

    __array_ufunc__ = None

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Symbol({self.name!r}: {self.operator or self.kind}({', '.join(s.name for s in self.inputs)}))"

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the free variables, in the order in which they are met."""
        return tuple(s.name for s in reachable([self]) if s.kind == "variable")

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the auxiliary states."""
        return tuple(s.name for s in reachable([self]) if s.kind == "state")

    def __getitem__(self, key: str | int) -> Symbol:
        """The symbol of this name within the expression, or another result of the same operator by its number.

        Raises InputError.
        """
        if isinstance(key, str):
            for symbol in reachable([self]):
                if symbol.name == key:
                    return symbol
            raise InputError(
                f"symbol '{self.name}': found no '{key}'; allowed: the name of a symbol that it is made of"
            )
        if self.kind != "operator" or key < 0:
            raise InputError(
                f"symbol '{self.name}', a {self.kind}: found number {key}; allowed: a result of an operator"
            )
        return _copy(self, index=key, name=f"{self.name}.{key}") if key != self.index else self

    def __iter__(self) -> Iterator[Symbol]:
        raise TypeError(f"symbol '{self.name}': the number of its results is not known; allowed: symbol[0]")

    def __call__(self, **replaced: Symbol) -> Symbol:
        """The expression with symbols in place of free variables. Raises InputError."""
        unknown = sorted(set(replaced) - set(self.variables))
        if unknown:
            raise InputError(f"symbol '{self.name}': found {unknown}; allowed: {', '.join(self.variables)}")
        return substituted(self, replaced)

    def updating(self, state: Symbol, value: Symbol) -> Symbol:
        """This symbol; when it is evaluated in training, ``state`` becomes ``value``. Raises InputError."""
        if state.kind != "state":
            raise InputError(f"updating: found '{state.name}', a {state.kind}; allowed: a state")
        return _copy(self, updates=(*self.updates, (state, value)))

    def named(self, name: str) -> Symbol:
        """This symbol under another name."""
        return _copy(self, name=name)

    def __neg__(self) -> Symbol:
        return apply(NEGATIVE, [self], {})


def _copy(symbol: Symbol, **changed: Any) -> Symbol:
    fields = {key: getattr(symbol, key) for key in symbol.__dataclass_fields__}
    return Symbol(**{**fields, **changed})


def variable(
    name: str,
    shape: Sequence[int | Extent] | None = None,
    dtype: Any = "float32",
    like: Symbol | None = None,
) -> Symbol:
    """A free variable. Its shape is given here or when it is bound; an :class:`Extent` in it is that of ``like``."""
    given = None if shape is None else tuple(shape)
    if like is None and given is not None and any(isinstance(d, Extent) for d in given):
        raise InputError(f"variable '{name}': found the shape {given}; allowed: extents of another symbol with like=")
    return Symbol("variable", name, inputs=() if like is None else (like,), shape=given, dtype=dtype_name(dtype))


def state(name: str, value: Any = None, *, shape: Sequence[int | Extent] = (), like: Symbol | None = None,
          fill: float = 0.0, dtype: Any = "float32") -> Symbol:  # fmt: skip
    """An auxiliary state: what lasts from call to call, and is no parameter. It begins as ``value``, or as an array of
    ``shape`` filled with one number.
    """
    if value is not None:
        array = np.asarray(value, dtype_name(dtype) if np.asarray(value).dtype == np.float64 else None)
        return Symbol("state", name, shape=array.shape, dtype=dtype_name(array.dtype), value=array)
    start = np.asarray(fill, dtype_name(dtype))
    return Symbol(
        "state", name, inputs=() if like is None else (like,), shape=tuple(shape), dtype=dtype_name(dtype), value=start
    )


def constant(value: Any, name: str = "") -> Symbol:
    """A constant."""
    array = np.asarray(value)
    if array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
        array = array.astype(np.float32)
    return Symbol("constant", name or _fresh("constant"), dtype=dtype_name(array.dtype), value=array)


def mode(training: Symbol, inference: Symbol, name: str = "") -> Symbol:
    """``training`` where an executor trains, else ``inference``."""
    return Symbol("mode", name or _fresh("mode"), inputs=(training, inference))


def apply(operator: str, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """An operator's result, or the tuple of several; ``name`` names it. Raises InputError, UnsupportedOperator."""
    found = ops.operator_named(operator)
    given = dict(attrs)
    name = given.pop("name", "") or _fresh(operator)
    least, most = found.inputs
    if len(operands) < least or (most is not None and len(operands) > most):
        raise InputError(f"{operator}: found {len(operands)} operands; allowed: {', '.join(found.arguments)}")
    found.complete(given)
    inputs = tuple(as_symbol(o) for o in operands)
    frozen = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
    node = object()
    many = found.results or 1
    results = [
        Symbol("operator", name if at == 0 else f"{name}.{at}", operator, inputs, frozen, at, node=node)
        for at in range(many)
    ]
    return results[0] if many == 1 else tuple(results)


def loss(kind: str, output: Symbol, label: Symbol | None = None, name: str = "loss") -> Symbol:
    """One of ``train.losses.LOSSES``, the mean over all that is labelled. Labels are by default a free variable
    "label", whose type follows from the output's. Raises ParameterError.
    """
    if kind not in LOSSES:
        raise refusal("loss", kind, ", ".join(LOSSES))
    label = Symbol("variable", "label", kind, (output,)) if label is None else label
    return Symbol("loss", name, kind, (output, label))


def as_symbol(operand: Any) -> Symbol:
    """An operand as a symbol; a number stays one, whose dtype is that of what it meets."""
    if isinstance(operand, Symbol):
        return operand
    number = as_number(operand)
    if number is not None:
        return Symbol("constant", _fresh("number"), value=np.asarray(number))
    if hasattr(operand, "__array__"):
        return constant(np.asarray(operand))
    raise InputError(f"operand: found a {type(operand).__name__}; allowed: a symbol, an array or a number")


def reachable(heads: Sequence[Symbol], training: bool | None = None) -> list[Symbol]:
    """All symbols that these are made of, and they, each behind what it is made of; updates of states too.

    ``training``: of modes only what then holds, and updates only in training.
    """
    order: list[Symbol] = []
    seen: set[int] = set()
    stack = [(head, False) for head in reversed(heads)]
    while stack:
        symbol, entered = stack.pop()
        if entered:
            order.append(symbol)
        elif id(symbol) not in seen:
            seen.add(id(symbol))
            stack.append((symbol, True))
            below = list(symbol.inputs)
            if symbol.kind == "mode" and training is not None:
                below = [symbol.inputs[0 if training else 1]]
            if training is not False:
                below += [s for pair in symbol.updates for s in pair]
            stack += [(s, False) for s in reversed(below)]
    return order


def substituted(symbol: Symbol, replaced: Mapping[str, Symbol]) -> Symbol:
    """An expression with symbols in place of free variables."""
    made: dict[int, Symbol] = {}
    nodes: dict[object, object] = {}
    for at in reachable([symbol]):
        if at.kind == "variable" and at.name in replaced:
            made[id(at)] = replaced[at.name]
            continue
        inputs = tuple(made[id(s)] for s in at.inputs)
        updates = tuple((made[id(s)], made[id(v)]) for s, v in at.updates)
        if all(a is b for a, b in zip(inputs, at.inputs, strict=True)) and not updates:
            made[id(at)] = at
        else:
            made[id(at)] = _copy(at, inputs=inputs, updates=updates, node=nodes.setdefault(at.node, object()))
    return made[id(symbol)]


def _fresh(stem: str) -> str:
    return f"{stem}{next(_serial)}"


def _install_signs() -> None:
    for sign in SIGNS:
        name = sign.operator

        def method(self: Symbol, other: Any, name: str = name) -> Any:
            return apply(name, [self, other], {})

        def reverse(self: Symbol, other: Any, name: str = name) -> Any:
            return apply(name, [other, self], {})

        if sign.method in ("eq", "ne"):
            continue  # symbols are compared by identity
        setattr(Symbol, f"__{sign.method}__", method)
        if sign.reflected:
            setattr(Symbol, f"__r{sign.method}__", reverse)


_install_signs()
