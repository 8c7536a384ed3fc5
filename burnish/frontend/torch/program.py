"""Translates an FX graph of functional ATen into a Graph, node by node; evaluates what depends on constants alone."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from burnish.errors import BurnishError, UnsupportedOperator
from burnish.frontend.torch import (
    backward,
    composed,
    creation,
    dropout,
    elementwise,
    indexing,
    linear_algebra,
    losses,
    movement,
    product,
    quantized,
    recurrent,
    reduction,
    training,
    window,
)
from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.dtypes import dtype_name, on_cpu, require_device
from burnish.graph.graph import GraphBuilder

TRANSLATORS: Mapping[str, Translator] = {
    **composed.TRANSLATORS,
    **creation.TRANSLATORS,
    **dropout.TRANSLATORS,
    **elementwise.TRANSLATORS,
    **indexing.TRANSLATORS,
    **linear_algebra.TRANSLATORS,
    **losses.TRANSLATORS,
    **movement.TRANSLATORS,
    **product.TRANSLATORS,
    **quantized.TRANSLATORS,
    **recurrent.TRANSLATORS,
    **reduction.TRANSLATORS,
    **window.TRANSLATORS,
    **backward.TRANSLATORS,
    **training.TRANSLATORS,
}
CHECKS = ("_assert", "sym_constrain_range")  # operators that compute nothing begin with these
# Arguments that say where and how a tensor lies in memory, or how its gradient is computed: no matter of values.
UNREAD = frozenset(("device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad", "implicit"))
LARGEST_CONSTANT = 1 << 22  # elements of what is made of smaller constants at translation
_ABSENT = object()


@dataclass(frozen=True)
class Untyped:
    """Stand-in for a tensor that a graph cannot hold: the reason why its readers are refused."""

    reason: str


@dataclass
class Translation:
    """A translation under way or done.

    ``values`` holds of every FX node what it became: a :class:`Ref`, a real tensor for a constant, an extent or
    another Python value, or a list. ``refused`` holds the nodes that could not be translated, and why; the graph then
    has an input in place of each of their outputs, and is of no use but to find all of them. ``names``: of
    constants, of nodes whose own name is not theirs.
    """

    context: TorchContext
    values: dict[Any, Any] = field(default_factory=dict)
    refused: dict[Any, str] = field(default_factory=dict)
    names: Mapping[Any, str] = field(default_factory=dict)

    def refuse(self, node: Any, reason: str) -> None:
        """Marks a placeholder that no graph can have: its readers are refused."""
        self.values[node] = Untyped(reason)

    @property
    def builder(self) -> GraphBuilder:
        """The graph under construction."""
        return self.context.builder

    def name_of(self, node: Any) -> str:
        """The name of a constant tensor."""
        return self.names.get(node, str(node.name))

    def ref(self, value: Any, stem: str) -> Ref:
        """A value as a graph tensor."""
        return value if isinstance(value, Ref) else self.context.constant_of(value, stem)


def operator_name(target: Any) -> str:
    """``aten.add`` for any overload of it."""
    packet = getattr(target, "overloadpacket", target)
    found = getattr(packet, "_qualified_op_name", None)
    return str(packet) if found is None else str(found).replace("::", ".")


def translate(nodes: Any, work: Translation) -> None:
    """Translates the nodes of an FX graph whose placeholders have their values in ``work``. Raises nothing for nodes
    that cannot be translated: they are in ``work.refused``.
    """
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        try:
            work.values[node] = _translated(work, node)
        except (BurnishError, NotImplementedError, TypeError) as error:  # a TypeError: what depends on an open size
            work.refused[node] = str(error)
            work.values[node] = _substitute(work, node)


def refusal(refused: Mapping[Any, str]) -> UnsupportedOperator:
    """The error that names everything which could not be translated at once."""
    found: dict[str, list[str]] = {}
    for node, reason in refused.items():
        found.setdefault(f"{operator_name(node.target)}: {reason}", []).append(_place(node))
    lines = [f"{words} ({', '.join(places[:5])}{', …' * (len(places) > 5)})" for words, places in found.items()]
    return UnsupportedOperator("model uses operators that are not supported: " + "; ".join(lines))


def _place(node: Any) -> str:
    """A node's name, and the module that it comes from where torch tells."""
    stack = node.meta.get("nn_module_stack")
    path = [*stack.values()][-1][0] if stack else ""
    return f"'{node.name}' in {path}" if path else f"'{node.name}'"


# --- one node ---------------------------------------------------------------------------------------------------------


def _translated(work: Translation, node: Any) -> Any:
    if node.op == "get_attr":
        return on_cpu(_attribute(node.graph.owning_module, node.target))
    name = operator_name(node.target)
    result = node.meta.get("val")
    if type(result).__name__ == "SymBool":  # what torch has assumed of extents
        return None
    if not hasattr(node.target, "_schema") and node.target is not operator.getitem:
        numbers = [_mapped(a, lambda n: work.values[n]) for a in node.args]
        if all(isinstance(v, (int, float)) for v in numbers) and not node.kwargs:
            return node.target(*numbers)
    if _is_extent(result):  # arithmetic on sizes: torch has the polynomial
        return work.context.symbols.extent(result, name)
    if node.target is operator.getitem:
        return _item(work, node)
    if name.rpartition(".")[2].startswith(CHECKS):
        return None
    known = _evaluated(work, node, result)
    if known is not _ABSENT:
        _bind_extents(work, result, known)
        return known
    translator = TRANSLATORS.get(name)
    if translator is None:
        raise UnsupportedOperator("no translation")
    bound = _bound(node)
    _require_types(result, "result")
    raw = {key: _mapped(value, lambda n: n.meta["val"]) for key, value in bound.items()}
    values = {key: _mapped(value, lambda n: _operand(work, n)) for key, value in bound.items()}
    work.context.begin(f"node {_place(node)} ({name})", node.name, result, raw)
    outputs = translator(work.context, **_accepted(translator, values, node.target))
    _check(work.context, outputs, result)
    return outputs


def _attribute(module: Any, target: str) -> Any:
    for part in target.split("."):
        module = getattr(module, part)
    return module


def _item(work: Translation, node: Any) -> Any:
    source, position = node.args
    found = work.values[source]
    if found is None or position >= len(found) or found[position] is None:
        raise UnsupportedOperator(f"output {position} of {operator_name(source.target)} is not computed")
    return found[position]


def _is_extent(result: Any) -> bool:
    return isinstance(result, int) or (hasattr(result, "node") and type(result).__name__ == "SymInt")


def _mapped(value: Any, of_node: Any) -> Any:
    """An argument with its nodes replaced."""
    if isinstance(value, (list, tuple)):
        return [_mapped(v, of_node) for v in value]
    if isinstance(value, slice):
        return value
    return of_node(value) if hasattr(value, "meta") and hasattr(value, "op") else value


def _operand(work: Translation, node: Any) -> Any:
    """The value of a node as translators take it: constants become graph tensors."""
    value = work.values[node]
    if isinstance(value, Untyped):
        raise UnsupportedOperator(value.reason)
    if isinstance(value, (list, tuple)):
        return [work.ref(v, work.name_of(node)) if hasattr(v, "detach") else v for v in value]
    return work.context.constant_of(value, work.name_of(node)) if hasattr(value, "detach") else value


def _bound(node: Any) -> dict[str, Any]:
    """The arguments of a node by the names in its schema, and with defaults; ``self`` is called ``x``."""
    schema = node.target._schema
    bound = {a.name: a.default_value if a.has_default_value() else None for a in schema.arguments}
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    bound.update(zip(positional, node.args, strict=False))
    bound.update(node.kwargs)
    return {"x" if key == "self" else key: value for key, value in bound.items() if key not in UNREAD}


@lru_cache(maxsize=1024)
def _parameters(translator: Translator) -> frozenset[str]:
    return frozenset(inspect.signature(translator).parameters)


def _accepted(translator: Translator, values: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """The arguments that a translator takes. Raises UnsupportedOperator for others that are not at their defaults."""
    taken = _parameters(translator)
    defaults = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    for key, value in values.items():
        default = defaults.get(key)
        if key not in taken and value is not None and value != default:
            raise UnsupportedOperator(f"argument '{key}': found {value}; allowed: {default}")
    return {key: value for key, value in values.items() if key in taken}


def _require_types(result: Any, where: str) -> None:
    for tensor in result if isinstance(result, (list, tuple)) else [result]:
        if hasattr(tensor, "detach"):
            dtype_name(tensor.dtype, where)
            require_device(tensor, where)


def _check(c: TorchContext, outputs: Any, result: Any) -> None:
    """Holds what was translated against the types that torch says. Raises UnsupportedOperator where they differ."""
    listed = isinstance(result, (list, tuple))
    for own, said in zip(outputs if listed else [outputs], result if listed else [result], strict=False):
        if own is None or not hasattr(said, "detach"):
            continue
        c.symbols.bind(said, c.shape(own))
        wanted = c.symbols.shape(said, c.label), dtype_name(said.dtype, c.label)
        found = c.shape(own), c.dtype(own)
        if found != wanted:
            raise UnsupportedOperator(
                f"translated to {found[1]}{list(found[0])}, but torch says {wanted[1]}{list(wanted[0])}"
            )


# --- constants --------------------------------------------------------------------------------------------------------


def _evaluated(work: Translation, node: Any, result: Any) -> Any:
    """The value of a node that depends on constants alone, computed by torch; ``_ABSENT`` for any other node."""
    import torch

    if not all(_is_known(work.values[n]) for n in node.all_input_nodes):
        return _ABSENT
    if operator_name(node.target).startswith("burnish."):  # of training, where a constant is not what it stays
        return _ABSENT
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and _draws(node):
        raise UnsupportedOperator("random numbers are not supported")
    if not hasattr(node.target, "_schema") or _has_sizes(work, node) or not _is_small(work, node, result):
        return _ABSENT
    arguments = [on_cpu(_mapped(a, lambda n: work.values[n])) for a in node.args]
    keywords = {key: on_cpu(_mapped(value, lambda n: work.values[n])) for key, value in node.kwargs.items()}
    with torch.no_grad():
        return node.target(*arguments, **keywords)


def _draws(node: Any) -> bool:
    """Whether an operator that may draw random numbers does: not with a probability of 0, nor outside of training."""
    given = {a.name: a.default_value for a in node.target._schema.arguments if a.has_default_value()}
    given.update(zip((a.name for a in node.target._schema.arguments), node.args, strict=False))
    given.update(node.kwargs)
    chances, modes = ([given[n] for n in names if n in given] for names in (("p", "dropout_p"), ("train", "training")))
    return 0.0 not in chances and not any(mode is False for mode in modes)


def _bind_extents(work: Translation, result: Any, known: Any) -> None:
    """Extents that torch could not know, of positions in a mask, from the value."""
    for said, own in zip(*(v if isinstance(v, (list, tuple)) else [v] for v in (result, known)), strict=False):
        if hasattr(said, "detach") and hasattr(own, "detach"):
            work.context.symbols.bind(said, own.shape)


def _is_known(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_known(v) for v in value)
    return not isinstance(value, (Ref, Untyped))


def _has_sizes(work: Translation, node: Any) -> bool:
    """Whether open extents are among the arguments."""
    return any(not isinstance(work.values[n], (int, float)) and hasattr(work.values[n], "terms")
               for n in node.all_input_nodes)  # fmt: skip


def _is_small(work: Translation, node: Any, result: Any) -> bool:
    """Whether the result is not much larger than what it is made of."""
    given = sum(work.values[n].numel() for n in node.all_input_nodes if hasattr(work.values[n], "numel"))
    results = result if isinstance(result, (list, tuple)) else [result]
    counts = [t.numel() for t in results if hasattr(t, "numel")]
    return all(not isinstance(count, int) or count <= max(LARGEST_CONSTANT, 2 * given) for count in counts)


# --- what cannot be translated ----------------------------------------------------------------------------------------


def _substitute(work: Translation, node: Any) -> Any:
    """Inputs in place of a node's outputs, so that the nodes behind it can be tried."""
    result = node.meta.get("val")

    def stand_in(tensor: Any) -> Any:
        if not hasattr(tensor, "detach"):
            return tensor
        try:
            shape, dtype = work.context.symbols.shape(tensor, node.name), dtype_name(tensor.dtype, node.name)
            return Ref(work.builder.input(work.builder.fresh(f"{node.name}.missing"), shape, dtype))
        except BurnishError:
            return Untyped("it reads what torch computes in a type that no graph has")

    return [stand_in(t) for t in result] if isinstance(result, (list, tuple)) else stand_in(result)
