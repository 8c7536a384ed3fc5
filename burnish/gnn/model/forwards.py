"""Symbolic values of a PyTorch model's forward: its convolutions, and the operators between them, as it calls them.

The model is called once, in training, so that its dropout and branches of training are seen. Convolutions are leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.base.optional import require
from burnish.errors import ModelError, UnsupportedOperator
from burnish.gnn.model.calls import EXTRA, ForwardSignature
from burnish.gnn.model.layers import ACTIVATIONS

# Arguments of an activation that must have their defaults: by place and by name.
SETTINGS: Mapping[str, tuple[str, object]] = {
    "elu": ("alpha", 1.0), "leaky_relu": ("negative_slope", 0.01), "softplus": ("beta", 1.0),
}  # fmt: skip
HOMOGENEOUS = ("relu", "leaky_relu")  # f(a x) = a f(x) for a ≥ 0: dropout may stand on either side
SUMS = ("add", "add_", "__add__", "__radd__", "__iadd__")
SAME = ("detach", "contiguous", "clone", "to", "float")  # of which the result has the values of the operand


@dataclass(frozen=True)
class Given:
    """An argument of the model: "x", "edges" or "weights"."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Called:
    """A convolution's result: ``read`` is what it gets as features; ``weighted``: whether with weights of edges."""

    name: str
    read: Value
    weighted: bool

    def __str__(self) -> str:
        return f"'{self.name}'"


@dataclass(frozen=True)
class Applied:
    """An operator's result: one of ``ACTIVATIONS``, "dropout" with its ``rate``, "sum" of two, or another one."""

    operator: str
    operands: tuple[Value, ...]
    rate: float = 0.0

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(map(str, self.operands))})"


Value = Given | Called | Applied


@dataclass(frozen=True)
class LayerCall:
    """A convolution in the chain that a forward is, and what follows it until the next one."""

    convolution: str
    activation: str
    residual: bool
    weighted: bool
    dropout: float  # of what it reads


def steps_of(
    model: Any, names: Sequence[str], tensors: tuple[Any, Any, Any], arguments: ForwardSignature
) -> list[LayerCall]:
    """The convolutions of a forward in its order. ``names``: of the model's convolutions, whose calls get recorded;
    ``tensors``: features, edges and weights of a graph, with which ``arguments`` calls the model.

    Raises UnsupportedOperator, naming it, for what no layer says, and ModelError.
    """
    torch = require("torch", EXTRA)
    x, edges, weights = tensors
    weights = weights if arguments.reads else None
    given = {"x": x, "edges": edges, "weights": weights}
    recorder = Recorder({id(t): (t, Given(name)) for name, t in given.items() if t is not None})

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[name-defined]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return recorder.function(function, args, kwargs or {})

    for name in names:
        module = model.get_submodule(name)
        module.forward = recorder.leaf(name, module.forward)
    with torch.no_grad(), Mode():
        result = arguments(model, x, edges, weights)
    if not isinstance(result, torch.Tensor):
        raise UnsupportedOperator(f"model: its forward gives {type(result).__name__}; allowed: one tensor")
    return _chain(recorder.value(result))


class Recorder:
    """Values of tensors by identity, as functions of PyTorch make them. ``known``: tensor and value by ``id``."""

    def __init__(self, known: dict[int, tuple[Any, Value]]) -> None:
        self._known = {key: (tensor, value, _version(tensor)) for key, (tensor, value) in known.items()}
        self._inside = False

    def value(self, tensor: Any) -> Value:
        """The value of a tensor: of unknown ones, and of those changed through a view, one that no layer says."""
        found = self._known.get(id(tensor))
        if found is None:
            return Applied("a constant", ())
        return found[1] if found[2] == _version(tensor) else Applied("a change in place", (found[1],))

    def leaf(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` of a convolution, which is recorded as a whole."""

        def called(*args: Any, **kwargs: Any) -> Any:
            given = [self.value(a) for a in (*args, *kwargs.values()) if _is_tensor(a)]
            others = [a for a in (*args, *kwargs.values()) if a is not None and not _is_tensor(a)]
            self._inside = True
            try:
                result = forward(*args, **kwargs)
            finally:
                self._inside = False
            if others or given[1:] not in ([Given("edges")], [Given("edges"), Given("weights")]):
                found = ", ".join(map(str, [*given[1:], *(type(a).__name__ for a in others)]))
                raise UnsupportedOperator(
                    f"'{name}': is called with features and {found}; allowed: the model's own edges, and their weights"
                )
            self._set(result, Called(name, given[0], len(given) == 3))
            return result

        return called

    def function(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a function of PyTorch, and keeps the value of its result."""
        if self._inside:
            return function(*args, **kwargs)
        operands = [a for a in _flat((args, kwargs)) if id(a) in self._known]
        values = tuple(self.value(a) for a in operands)
        before = [_version(a) for a in operands]
        plain = _plain(function, args, kwargs, values)
        result = function(*args, **kwargs)
        changed = [a for a, version in zip(operands, before, strict=True) if _version(a) != version]
        if plain.operator == "sum" and any(a.shape != result.shape for a in operands):
            plain = Applied("a sum of different shapes", values)
        for tensor in changed:
            self._set(tensor, _simple(plain))
        for tensor in _flat(result):
            if operands and id(tensor) not in self._known:
                self._set(tensor, _simple(plain))
        return result

    def _set(self, tensor: Any, value: Value) -> None:
        self._known[id(tensor)] = tensor, value, _version(tensor)  # which keeps the tensor, and so its number


def _plain(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: tuple[Value, ...]) -> Applied:
    """A function's result by the names of layers, of tensors with these values."""
    name = str(getattr(function, "__name__", function))
    plain = name.removesuffix("_") if not name.endswith("__") else name
    if name in SUMS and len(values) == 2 and kwargs.get("alpha", 1) == 1:
        return Applied("sum", values)
    if plain in ("dropout", "feature_dropout") and len(values) == 1:
        rate = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        trained = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
        return Applied("dropout" if plain == "dropout" else plain, values, float(rate) if trained else 0.0)
    if plain not in ACTIVATIONS or len(values) != 1:
        return Applied(plain.strip("_"), values)
    key, default = SETTINGS.get(plain, ("", None))
    setting = args[1] if key and len(args) > 1 else kwargs.get(key, default)
    if setting != default:
        return Applied(f"{plain} with {key} = {setting}", values)
    if plain == "gelu" and kwargs.get("approximate", "none") != "none":
        return Applied("gelu by tanh", values)
    if plain == "log_softmax":
        axis = args[1] if len(args) > 1 else kwargs.get("dim")
        return Applied(plain if axis in (1, -1) else f"log_softmax over axis {axis}", values)
    return Applied(plain, values)


def _simple(value: Applied) -> Value:
    """Without dropout of rate 0, and operators that change nothing."""
    nothing = value.operator in SAME or (value.operator == "dropout" and not value.rate)
    return value.operands[0] if nothing and len(value.operands) == 1 else value


def _chain(value: Value) -> list[LayerCall]:
    """The steps that lead to a model's result."""
    steps: list[LayerCall] = []
    rate, rest = _dropped(value)
    if rate:
        raise UnsupportedOperator("model: found dropout of its result; allowed: none")
    while rest != Given("x"):
        step, read = _step(rest)
        rate, rest = _dropped(read)
        steps.insert(0, LayerCall(step.convolution, step.activation, step.residual, step.weighted, rate))
    if not steps:
        raise ModelError("model: its forward calls no convolution; allowed: one or more")
    names = [step.convolution for step in steps]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnsupportedOperator(f"'{twice[0]}': its weights are used {names.count(twice[0])} times; allowed: once")
    return steps


def _step(value: Value) -> tuple[LayerCall, Value]:
    """The last convolution of a value with what follows it, and what it reads."""
    if isinstance(value, Applied) and value.operator == "sum":
        for first, second in (value.operands, value.operands[::-1]):
            try:
                step, read = _step(first)
            except UnsupportedOperator:
                continue
            if read == second and not step.residual:
                return LayerCall(step.convolution, step.activation, True, step.weighted, 0.0), read
        raise _unsaid(value)
    activation, inner = "none", value
    if isinstance(inner, Applied) and inner.operator in ACTIVATIONS:
        activation, inner = inner.operator, inner.operands[0]
    if not isinstance(inner, Called):
        raise _unsaid(inner)
    return LayerCall(inner.name, activation, False, inner.weighted, 0.0), inner.read


def _dropped(value: Value) -> tuple[float, Value]:
    """The rate of a value's dropout, and the value without: also in front of an activation that it may follow."""
    rate, rest = 0.0, value
    while isinstance(rest, Applied) and rest.operator == "dropout":
        rate, rest = rate + rest.rate - rate * rest.rate, rest.operands[0]
    if isinstance(rest, Applied) and rest.operator in HOMOGENEOUS:
        more, inner = _dropped(rest.operands[0])
        rate, rest = rate + more - rate * more, Applied(rest.operator, (inner,))
    return rate, rest


def _unsaid(value: Value) -> UnsupportedOperator:
    found = str(value) if isinstance(value, Given | Called) else value.operator
    near = "" if isinstance(value, Given | Called) or not value.operands else " of " + ", ".join(
        v.operator if isinstance(v, Applied) else str(v) for v in value.operands
    )  # fmt: skip
    return UnsupportedOperator(
        f"model: its forward has {found}{near}; allowed: convolutions one after another, each followed by at most one "
        f"of {', '.join(ACTIVATIONS[1:])}, then the sum with what the convolution reads, then dropout"
    )


def _flat(found: Any) -> Iterator[Any]:
    """The tensors in arguments."""
    if _is_tensor(found):
        yield found
    elif isinstance(found, tuple | list):
        for each in found:
            yield from _flat(each)
    elif isinstance(found, dict):
        yield from _flat([*found.values()])


def _is_tensor(found: Any) -> bool:
    return hasattr(found, "untyped_storage")


def _version(tensor: Any) -> int:
    """Number of times a tensor was changed in place, also through views of it."""
    return int(getattr(tensor, "_version", 0))
