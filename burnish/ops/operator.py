"""An operator: its name, attributes and the index-expression definition everything else is derived from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, NoReturn, Protocol

import numpy as np

from burnish.errors import ModelError, ScheduleError, UnsupportedOperator
from burnish.loops.expr import FLOATS, INTS, Expr, Value, cast
from burnish.loops.sizes import is_size
from burnish.loops.tensor import Tensor, placeholder

NUMBERS = (*FLOATS, *INTS)
Shape = tuple[int, ...]
TensorType = tuple[Shape, str]  # shape and dtype
REQUIRED = inspect.Parameter.empty  # the default of an attribute that must be given


class Refusal(ModelError):  # noqa: N818 - reads as what it is
    """An argument an operator does not accept; :meth:`Operator.define` puts the operator's name in front."""


class UnsupportedDtype(Refusal):
    """A dtype that an operator is not implemented for, though it might be."""


RowMajor = Literal["never", "dense", "ragged", "always"]


@dataclass(frozen=True)
class Traits:
    """Declared properties of an operator, which graph passes ask in place of its name; undeclared ones are absent.

    ``layout_affinity``: what its images gain in channel blocks, relative to moving them once; what they lose, negative.
    ``packs``: its results are words of successive bytes of its operand along ``axis``.
    ``row_major``: when it is about as fast on row-major images: never, where every output channel reads all inputs
    (dense), where the channels fill no whole blocks (ragged), or always.
    ``weight_channel``: the dimension of its second operand, in which it is linear, that is the output's channel; -1 is
    a matrix's column. ``finite``: element-wise, and makes no infinity or NaN of zeros. ``recurrent``: one step of a
    layer that reads its own result. ``structure``: opaque, it makes a structure of structures (offsets and rows of
    edges), once for the same arrays.
    ``internal``: only passes and frontends make it; ``burnish.nd`` and ``burnish.sym`` do not show it.
    ``accumulates``: its first operand is a sum so far, made before the second: no kernel that waits for the second one
    makes both.
    ``counts``: opaque, its last result is the value of the dimension that its attribute ``count`` is.
    """

    layout_affinity: float = 0.0
    row_major: RowMajor = "never"
    packs: bool = False
    weight_channel: int | None = None
    finite: bool = False
    recurrent: bool = False
    accumulates: bool = False
    structure: bool = False
    internal: bool = False
    counts: bool = False


class GradientBuilder(Protocol):
    """Graph builder of gradient rules: a graph that is being made, of named tensors."""

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The name of the result of an operator with one output."""

    def add_many(self, op: str, *inputs: str, **attrs: Any) -> tuple[str, ...]:
        """The names of the results of an operator."""

    def constant(self, value: Any, name: str | None = None, dtype: str | None = None) -> str:
        """The name of a constant."""

    def count(self, x: str, dtype: str, axes: Sequence[int] | None = None) -> str:
        """The name of the number of elements of ``x``, along ``axes`` or all, a scalar."""


@dataclass(frozen=True, eq=False)
class Application:
    """Operator application, of which its gradient is made: names of tensors, and their types.

    ``seeds``: the adjoints of the outputs, None for those that nothing reads. ``wanted``: which inputs need a gradient.
    """

    emit: GradientBuilder
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seeds: tuple[str | None, ...]
    wanted: tuple[bool, ...]
    types: tuple[TensorType, ...]  # of the inputs
    attrs: Mapping[str, Any]

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The name of the result of an operator with one output."""
        return self.emit.add(op, *inputs, **attrs)

    def zeros(self, like: int) -> str:
        """Zeros of the type of an input."""
        shape, dtype = self.types[like]
        return self.add("expand", self.emit.constant(0.0, dtype=dtype), shape=shape)


DERIVED = ""  # in what a rule gives: no tensor has this name
Rule = Callable[[Application], Sequence[str | None]]


@dataclass(frozen=True)
class Composed:
    """The gradient of an equal composition of other operators, which is differentiated in place of the operator.

    ``outputs`` adds the composition and names its results, one for each output; None for one without an adjoint. It may
    read outputs that are integers, which have none: the order that a sort found. None in place of all results: where
    the definition's own gradient is as good.
    """

    outputs: Callable[[Application], Sequence[str | None] | None]


@dataclass(frozen=True)
class Refused:
    """No gradient, and why."""

    reason: str


Gradient = Rule | Composed | Refused | Literal["derived", "none"]
Parts = Callable[[Application], Sequence[str] | None]


class Entropy:
    """Entropy attribute, a number that is new in every call: see :data:`ENTROPY`."""

    def __repr__(self) -> str:
        return "ENTROPY"


ENTROPY = Entropy()  # among the numbers of a native call: 64 bits, from the system's entropy


class NativeCall(NamedTuple):
    """A kernel written as loops, for operands of certain types: ``function(*arrays, *numbers, begin, end)``.

    ``function`` is in the part of Python that numba compiles, and fills parts ``begin`` to ``end`` of ``extent`` parts,
    which are independent: threads share them. ``views``: the shape and dtype in which it sees each operand, inputs
    first; these have as many bytes as the operand. ``scratch``: arrays of its own behind them, undefined at its begin,
    one for each thread. ``tables``: constant arrays, behind those. ``work``: about how many elements it handles.
    Extents and integers may be sizes.
    """

    function: Callable[..., None]
    views: tuple[TensorType, ...]
    numbers: tuple[int | float | Entropy, ...] = ()
    extent: int = 1
    work: int = 1
    scratch: tuple[TensorType, ...] = ()
    tables: tuple[np.ndarray, ...] = ()


Native = Callable[[Sequence[TensorType], Sequence[TensorType], Mapping[str, Any]], NativeCall | None]
"""Types of inputs and of outputs, attributes -> the kernel for them; None where there is none."""


@dataclass(frozen=True)
class Operator:
    """One operator. ``inputs`` is the least and greatest number of tensors (None: any); ``attrs`` maps to defaults.

    ``extern``: of an opaque operator, what computes it: NumPy arrays, and all attributes by name, to one array or a
    tuple of them. Its ``function`` says shapes and dtypes only, by placeholders; nothing else is derived from it.
    ``native``: the kernel that CPUs run in its place, of which ``extern`` is the oracle.
    ``gradient`` is "derived": from the definition; or that of a composition of other operators; or a rule, which names
    the gradients of the inputs, None where there is none, and :data:`DERIVED` where the definition says it as well; or
    "none": it is 0 everywhere; or refused. ``parts``: the names of the same outputs by other operators, which fuse with
    their neighbours; None where it stays as it is. ``rounds``: its attributes hold a body, of which its
    computation is one round after the other, and its gradient that of the rounds in reverse order. ``bodies``: its
    attributes that hold bodies of which values decide which run how often.
    """

    name: str
    function: Callable[..., Tensor | tuple[Tensor, ...]]
    arguments: tuple[str, ...]
    attrs: Mapping[str, Any]
    types: Mapping[str, str]
    inputs: tuple[int, int | None]
    doc: str
    traits: Traits = Traits()
    gradient: Gradient = "derived"
    parts: Parts | None = None
    extern: Callable[..., Any] | None = None
    native: Native | None = None
    rounds: bool = False
    bodies: tuple[str, ...] = ()

    @property
    def results(self) -> int | None:
        """Number of tensors that the definition returns, as its signature says; None where that depends on operands."""
        said = str(getattr(self.function, "__annotations__", {}).get("return", "Tensor"))
        return None if "..." in said else said.count("Tensor")

    def define(self, name: str, inputs: Sequence[Tensor], attrs: Mapping[str, Any] | None = None) -> tuple[Tensor, ...]:
        """The output tensors of this operator applied to ``inputs``.

        A single output's stage is called ``name``, several are ``name.0``, ``name.1``…; inner stages ``name.<what>``.
        Raises ModelError naming the operator, the argument, what was found and what is allowed.
        """
        try:
            self._check_count(len(inputs))
            result = self.function(name, *inputs, **self.complete(attrs or {}))
        except Refusal as refusal:
            kind = UnsupportedOperator if isinstance(refusal, UnsupportedDtype) else ModelError
            raise kind(f"{self.name} '{name}': {refusal}") from None
        except ScheduleError as error:
            raise ModelError(f"{self.name} '{name}': {error}") from error
        return (result,) if isinstance(result, Tensor) else result

    def infer(self, inputs: Sequence[TensorType], attrs: Mapping[str, Any] | None = None) -> list[TensorType]:
        """Shapes and dtypes of the outputs for inputs of the given shapes and dtypes."""
        tensors = [placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(inputs)]
        return [(t.shape, t.dtype) for t in self.define("y", tensors, attrs)]

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """``attrs`` checked, lists made tuples, and defaults filled in."""
        for key in attrs:
            if key not in self.attrs:
                refuse(f"attribute '{key}'", "given", f"only {', '.join(self.attrs) or 'no attributes'}")
        values = {}
        for key, default in self.attrs.items():
            value = attrs.get(key, default)
            if value is REQUIRED:
                refuse(f"attribute '{key}'", "nothing", f"a value of type {self.types[key]}; it has no default")
            values[key] = _coerce(key, value, self.types[key])
        return values

    def _check_count(self, count: int) -> None:
        least, most = self.inputs
        if count < least or (most is not None and count > most):
            words = "" if most == least else " or more" if most is None else f" to {most}"
            refuse("inputs", f"{count} tensors", f"{least}{words} ({', '.join(self.arguments)})")


def operator(function: Callable[..., Tensor | tuple[Tensor, ...]]) -> Operator:
    """The operator that a definition describes by its signature.

    ``def conv2d(name, x, w, bias=None, *, strides: Ints = (1, 1))``: positional parameters after ``name`` are inputs
    (optional where they default to None, any number as ``*xs``), keyword-only ones are attributes. A trailing
    underscore of the name (``slice_``) is dropped.
    """
    return named_operator(function.__name__.rstrip("_"), function)


def opaque(
    extern: Callable[..., Any], native: Native | None = None
) -> Callable[[Callable[..., Tensor | tuple[Tensor, ...]]], Operator]:
    """The decorator of an opaque operator's shape function: :func:`operator`, computed by ``extern``, on CPUs by the
    kernel that ``native`` gives.
    """
    return lambda function: replace(operator(function), extern=extern, native=native)


def declare(**traits: Any) -> Callable[[Operator], Operator]:
    """A decorator that gives an operator :class:`Traits`."""
    return lambda op: replace(op, traits=Traits(**traits))


def internal(*operators: Operator) -> tuple[Operator, ...]:
    """Operators that only passes and frontends make."""
    return tuple(replace(op, traits=replace(op.traits, internal=True)) for op in operators)


def differentiated(gradient: Gradient) -> Callable[[Operator], Operator]:
    """A decorator that gives an operator a rule for its gradient."""
    return lambda op: replace(op, gradient=gradient)


def composed(parts: Parts) -> Callable[[Operator], Operator]:
    """A decorator that says what other operators an operator is made of."""
    return lambda op: replace(op, parts=parts)


def named_operator(
    name: str, function: Callable[..., Tensor | tuple[Tensor, ...]], doc: str = "", traits: Traits = Traits()
) -> Operator:
    """:func:`operator` under another name, for definitions made from a table."""
    arguments: list[str] = []
    attrs: dict[str, Any] = {}
    types: dict[str, str] = {}
    least, most = 0, 0
    variadic = False
    for p in list(inspect.signature(function).parameters.values())[1:]:
        if p.kind is p.KEYWORD_ONLY:
            attrs[p.name] = p.default
            types[p.name] = str(p.annotation)
            if types[p.name].removesuffix(" | None") not in _CHECKS:
                raise TypeError(f"operator {name}: attribute '{p.name}' needs an annotation among {', '.join(_CHECKS)}")
            continue
        arguments.append(p.name)
        variadic = variadic or p.kind is p.VAR_POSITIONAL
        most += 1
        least += p.default is not None
    text = inspect.cleandoc(doc or function.__doc__ or "")
    return Operator(name, function, tuple(arguments), attrs, types, (least, None if variadic else most), text, traits)


# --- attribute types --------------------------------------------------------------------------------------------------

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Body = tuple[tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, Any], ...]], ...], tuple[str, ...]]
"""Nodes (operator, inputs, outputs, attributes as pairs) and the names of results."""
Nested = tuple[Any, ...]  # of numbers, strings and such tuples
Number = int | float  # for a tensor's elements: an integer stays one, as not every int64 is a float


def _is_int(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_float(value: object) -> bool:
    return (isinstance(value, float) or _is_int(value)) and not isinstance(value, bool)


_CHECKS: Mapping[str, Callable[[Any], Any]] = {  # annotation -> the value in its one Python form; raises TypeError
    "int": lambda v: v if is_size(v) else int(v) if _is_int(v) else _mistyped(),
    "float": lambda v: float(v) if _is_float(v) else _mistyped(),
    "Number": lambda v: int(v) if _is_int(v) else float(v) if _is_float(v) else _mistyped(),
    "bool": lambda v: bool(v) if isinstance(v, bool) or v in (0, 1) else _mistyped(),
    "str": lambda v: v if isinstance(v, str) else _mistyped(),
    "Ints": lambda v: tuple(i if is_size(i) else int(i) if _is_int(i) else _mistyped() for i in v),
    "Body": lambda v: _body(v),
    "Nested": lambda v: tuple(_frozen(i) for i in v),
    "Floats": lambda v: tuple(float(i) if _is_float(i) else _mistyped() for i in v),
}


def _frozen(value: Any) -> Any:
    """A number, a string, None, or a list of such as a tuple."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(i) for i in value)
    return value if value is None or isinstance(value, bool | int | float | str) or is_size(value) else _mistyped()


def _mistyped() -> NoReturn:
    raise TypeError


def _body(value: Any) -> Body:
    try:
        nodes, results = value
        made = tuple(
            (_text(op), tuple(map(_text, inputs)), tuple(map(_text, outputs)), tuple((_text(k), v) for k, v in attrs))
            for op, inputs, outputs, attrs in nodes
        )
        return made, tuple(map(_text, results))
    except ValueError:
        return _mistyped()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _mistyped()


def _coerce(key: str, value: Any, annotation: str) -> Any:
    base = annotation.removesuffix(" | None")
    if value is None and base != annotation:
        return None
    try:
        return _CHECKS[base](value)
    except TypeError:
        return refuse(f"attribute '{key}'", repr(value), f"a value of type {annotation}")


# --- checks and accesses shared by definitions ------------------------------------------------------------------------


def refuse(argument: str, found: object, allowed: str) -> NoReturn:
    """Raises the error for one argument."""
    raise Refusal(f"{argument}: found {found}; allowed: {allowed}")


def require(condition: bool, argument: str, found: object, allowed: str) -> None:
    """Refuses ``argument`` unless ``condition`` holds."""
    if not condition:
        refuse(argument, found, allowed)


def require_input(
    t: Tensor,
    argument: str,
    rank: int | None = None,
    meaning: str = "",
    *,
    shape: Shape | None = None,
    dtype: Sequence[str] = (),
) -> None:
    """Refuses a tensor that does not have ``rank`` dimensions, ``shape``, or a dtype among those listed.

    ``meaning``: what the dimensions are, as the refusal says it. A dtype that is alone is another operand's.
    """
    if rank is not None:
        words = f"{rank} dimensions" + (f" {meaning}" if meaning else "")
        require(len(t.shape) == rank, f"input '{argument}'", f"shape {list(t.shape)}", words)
    if shape is not None:
        require(t.shape == shape, f"input '{argument}'", f"shape {list(t.shape)}", f"shape {list(shape)}")
    if dtype and t.dtype not in dtype:
        kind = Refusal if len(dtype) == 1 else UnsupportedDtype
        raise kind(f"input '{argument}': found dtype {t.dtype}; allowed: dtype {', '.join(dtype)}")


def normal_axis(axis: int, rank: int, key: str = "axis") -> int:
    """``axis`` counted from the front."""
    require(-rank <= axis < rank, f"attribute '{key}'", axis, f"-{rank} to {rank - 1} for {rank} dimensions")
    return axis % rank


def normal_axes(axes: Ints | None, rank: int) -> Ints:
    """Sorted axes counted from the front; all of them for None."""
    if axes is None:
        return tuple(range(rank))
    normal = tuple(sorted(normal_axis(a, rank, "axes") for a in axes))
    require(len(set(normal)) == len(normal), "attribute 'axes'", list(axes), "each axis once")
    return normal


def broadcast_shapes(tensors: Mapping[str, Tensor]) -> Shape:
    """The shape that all tensors broadcast to (NumPy's rule)."""
    rank = max((len(t.shape) for t in tensors.values()), default=0)
    shape = [1] * rank
    for argument, t in tensors.items():
        for d, extent in enumerate(t.shape, rank - len(t.shape)):
            if extent != 1:
                ok = shape[d] in (1, extent)
                words = f"extents that are 1 or equal to those of {list(shape)}, counted from the last"
                require(ok, f"input '{argument}'", f"shape {list(t.shape)}", words)
                shape[d] = extent
    return tuple(shape)


def broadcast_load(t: Tensor, index: Sequence[Value]) -> Expr:
    """``t`` at the output index it broadcasts to: missing leading dimensions dropped, extents of 1 read at 0."""
    tail = index[len(index) - len(t.shape) :]
    return t[tuple(0 if extent == 1 else i for extent, i in zip(t.shape, tail, strict=True))]


# --- accumulation in a wider type -------------------------------------------------------------------------------------


def accumulator_dtype(dtype: str) -> str:
    """The dtype in which sums of ``dtype`` are kept: halves in float32, 8- and 16-bit integers in int32."""
    if dtype in ("float16", "bfloat16"):
        return "float32"
    return "int32" if dtype in ("int8", "uint8", "int16", "uint16") else dtype


def wide(e: Expr) -> Expr:
    """``e`` in its accumulator's dtype."""
    return cast(accumulator_dtype(e.dtype), e)
