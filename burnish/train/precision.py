"""Mixed precision (Micikevicius et al. 2018): products in half precision, parameters and sums in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish import ops
from burnish.base.arguments import check_count, check_number, refusal
from burnish.errors import ModelError
from burnish.graph.fusion_properties import operator_facts
from burnish.graph.graph import Graph, GraphBuilder, Node, TensorType, infer_types
from burnish.graph.weights import HALVES

FULL = "float32"
# Element-wise functions that are computed in float32, as their results leave the range or the precision of a half.
WIDE = frozenset((
    "exp", "log", "pow", "div", "reciprocal", "sqrt", "rsqrt", "softplus", "logaddexp", "sinh", "cosh", "cast",
    "batch_norm",
))  # fmt: skip
# Functions that are computed in float32, and rounded where the first operand is a half: what is kept stays narrow.
ROUNDED = frozenset(("batch_norm",))


@dataclass(frozen=True)
class MixedPrecision:
    """Mixed precision: ``dtype`` is "bfloat16" or "float16"; parameters and what the optimizer remembers stay float32.

    ``scale``: what the loss is multiplied by, so that small gradients do not vanish in float16; None for none. The
    gradients are divided by it. Where one is not finite the step is left out and the scale halved; after ``growth``
    steps in a row without that it is doubled. By default bfloat16, which has float32's range, has no scale.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> recipe = bn.Train("mse", bn.SGD(0.1), precision=bn.MixedPrecision("float16", scale=1024.0))
    >>> step = bn.compile(graph, train=recipe)
    >>> round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3), str(step.state["w"].dtype)
    (9.0, 'float32')
    """

    dtype: str = "bfloat16"
    scale: float | None = None
    growth: int = 2000

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        if self.dtype not in HALVES:
            raise refusal("MixedPrecision: dtype", self.dtype, " or ".join(map(repr, HALVES)))
        if self.scale is not None:
            check_number("MixedPrecision: scale", self.scale, 0, open_below=True)
        check_count("MixedPrecision: growth", self.growth, 1)


DEFAULT_SCALE = 65536.0  # that of PyTorch's GradScaler


def mixed_precision(argument: str, found: object) -> MixedPrecision | None:
    """Mixed precision that ``Train(precision=)`` asks for, or None. Raises ParameterError."""
    if found is None or isinstance(found, MixedPrecision):
        return found
    if isinstance(found, str) and found in HALVES:
        return MixedPrecision(found, DEFAULT_SCALE if found == "float16" else None)
    raise refusal(argument, found, f"{', '.join(map(repr, HALVES))}, a burnish.MixedPrecision, or None")


def in_half(graph: Graph, dtype: str) -> Graph:
    """The graph with its products in ``dtype``, and what follows them element by element; its types stay.

    A product is an operator that is linear in a weight (``Traits.weight_channel``): its sums are float32. An operator
    without a reduction computes in ``dtype`` if one of its operands is in it and all others are, or are constants.
    """
    return _Halved(graph, dtype).built()


class _Halved:
    """A graph under construction: every tensor in float32, in half precision, or in both.

    A tensor that is computed in half precision keeps its name there, by which plans know it.
    """

    def __init__(self, graph: Graph, dtype: str) -> None:
        self._graph, self._dtype, self._b = graph, dtype, GraphBuilder()
        self._results = {*graph.outputs}  # which keep their names in float32
        self._full: dict[str, str] = {}
        self._half: dict[str, str] = {}

    def built(self) -> Graph:
        b, graph = self._b, self._graph
        for name in graph.inputs:
            self._full[name] = b.input(name, graph.types[name].shape, graph.types[name].dtype)
        for name, value in graph.constants.items():
            self._full[name] = b.constant(value, name)
        for node in graph.nodes:
            if not (self._wants_half(node) and self._add_half(node)):
                narrow = node.op in ROUNDED and node.inputs[0] in self._half
                operands = [self._as_full(name) for name in node.inputs]
                names = [b.fresh(f"{n}.wide") for n in node.outputs] if narrow else node.outputs
                made = b.add_many(node.op, *operands, names=names, node=node.name, **node.attrs)
                if narrow:
                    self._half[node.outputs[0]] = b.add(
                        "cast", made[0], to=self._dtype, name=self._half_name(node.outputs[0])
                    )
                else:
                    self._full.update(zip(node.outputs, made, strict=True))
        return b.build(*[self._as_full(name) for name in graph.outputs])

    def _as_full(self, name: str) -> str:
        if name not in self._full:
            own = name if name in self._results else self._b.fresh(f"{name}.{FULL}")
            self._full[name] = self._b.add("cast", self._half[name], to=FULL, name=own)
        return self._full[name]

    def _as_half(self, name: str) -> str:
        if self._graph.types[name].dtype != FULL:
            return self._full[name]
        if name not in self._half:
            fresh = self._b.fresh(f"{name}.{self._dtype}")
            self._half[name] = self._b.add("cast", self._full[name], to=self._dtype, name=fresh)
        return self._half[name]

    def _wants_half(self, node: Node) -> bool:
        if ops.is_opaque(node.op) or node.op in WIDE:
            return False
        if ops.OPERATORS[node.op].traits.weight_channel is not None:
            return True
        floats = [name for name in node.inputs if self._graph.types[name].dtype == FULL]
        if not any(name in self._half for name in floats if name not in self._graph.constants):
            return False
        if not all(name in self._half or name in self._graph.constants for name in floats):
            return False
        types = tuple(self._graph.types[name] for name in node.inputs)
        return operator_facts(node.op, types, tuple(sorted(node.attrs.items()))).kind == "injective"

    def _add_half(self, node: Node) -> bool:
        """Adds the node in half precision if its operator takes that."""
        types = [self._halved(self._graph.types[name]) for name in node.inputs]
        try:
            found = infer_types(node.op, types, node.attrs)
        except ModelError:
            return False
        if found[:1] != self._types(node)[:1] or any(
            own not in (self._graph.types[name], self._halved(self._graph.types[name]))
            for own, name in zip(found, node.outputs, strict=True)
        ):
            return False
        b = self._b
        operands = [self._as_half(name) for name in node.inputs]
        halved = [own.dtype == self._dtype and self._is_full(n) for own, n in zip(found, node.outputs, strict=True)]
        names = [self._half_name(n) if half else n for n, half in zip(node.outputs, halved, strict=True)]
        made = b.add_many(node.op, *operands, names=names, node=node.name, **node.attrs)
        for name, own, half in zip(node.outputs, made, halved, strict=True):
            (self._half if half else self._full)[name] = own
        return True

    def _half_name(self, name: str) -> str:
        return self._b.fresh(f"{name}.{self._dtype}") if name in self._results else name

    def _is_full(self, name: str) -> bool:
        return self._graph.types[name].dtype == FULL

    def _halved(self, t: TensorType) -> TensorType:
        return TensorType(t.shape, self._dtype) if t.dtype == FULL else t

    def _types(self, node: Node) -> Sequence[TensorType]:
        return [self._halved(self._graph.types[name]) for name in node.outputs]
