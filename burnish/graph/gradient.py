"""Reverse-mode automatic differentiation of a graph: the backward graph, from each operator's rule or its definition.

A node's adjoint reads only what it needs: a relu's its result, not its argument. What nodes add to the adjoint of a
tensor is summed in the reverse of their order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from burnish import ops
from burnish.base.arguments import typed
from burnish.errors import ModelError, UnsupportedOperator
from burnish.graph.fusion_properties import operator_facts
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.graph.rounds_gradient import reverse_rounds
from burnish.graph.sums import Sums
from burnish.loops.expr import FLOATS
from burnish.loops.sizes import dims_of
from burnish.ops.adjoint import application
from burnish.ops.operator import DERIVED, Application, Composed, Refused


@typed
def gradients(graph: Graph, of: str | Sequence[str], wrt: Sequence[str]) -> Graph:
    """``graph`` with further outputs, in the order of ``wrt``: the gradients by these tensors, called ``name.grad``.

    ``of``: the tensor, or tensors, whose sum is differentiated. One of several elements is weighted by an input of its
    type, called ``name.seed``, which the graph has behind its own: vector-Jacobian products. Raises ModelError for
    tensors that do not exist or are no floats; UnsupportedOperator, naming node and operator, for one that has no
    gradient.

    >>> x = bn.sym.variable("x")
    >>> graph = bn.sym.graph(bn.sym.sum(x * x), {"x": (3,)})
    >>> value, gradient = bn.compile(bn.gradients(graph, graph.outputs[0], ["x"]))(np.array([1, 2, 3], "f4"))
    >>> float(value), gradient
    (14.0, array([2., 4., 6.], dtype=float32))
    """
    builder = GraphBuilder.of(graph)
    names: Sequence[str] = [of] if isinstance(of, str) else of
    for name in names:
        _require_float(builder, name, "of")
    for name in wrt:
        _require_float(builder, name, "wrt")
    seeds = {}
    for name in names:
        t = builder.types[name]
        if t.size == 1:
            seeds[name] = builder.add("expand", builder.constant(1.0, dtype=t.dtype), shape=t.shape)
        else:
            seeds[name] = builder.input(f"{name}.seed", t.shape, t.dtype)
    found = backpropagate(builder, seeds, wrt)
    results = [builder.add("identity", g, name=builder.fresh(f"{w}.grad")) for w, g in zip(wrt, found, strict=True)]
    plain = [name for position, name in enumerate(graph.outputs) if position not in _after(graph)]
    return builder.build(*plain, *results)


def backpropagate(builder: GraphBuilder, seeds: Mapping[str, str], wrt: Sequence[str]) -> list[str]:
    """Adds the nodes of the backward graph: the gradients by ``wrt`` of the sum of all tensors times their ``seeds``.

    Where the builder's nodes have ``segments``, what each adds to the gradients of shared weights is added up when its
    part of the backward graph is complete. Returns their names; a gradient that is 0 is a tensor of zeros.
    """
    builder.trained = True
    found = _backward(builder, builder.nodes, seeds, wrt, {*builder.segments})
    return [name or _zeros(builder, w) for name, w in zip(found, wrt, strict=True)]


def _backward(
    builder: GraphBuilder,
    nodes: Sequence[Node],
    seeds: Mapping[str, str],
    wrt: Sequence[str],
    begins: Collection[int] = (),
) -> list[str | None]:
    """The gradients by ``wrt`` through ``nodes`` alone; None for those that are 0. ``begins``: where segments begin."""
    reached = set(wrt)
    for node in nodes:
        if any(name in reached and builder.types[name].dtype in FLOATS for name in node.inputs):
            reached.update(name for name in node.outputs if builder.types[name].dtype in FLOATS)
    parts: dict[str, list[str]] = {name: [seed] for name, seed in seeds.items()}
    sums = Sums(builder)
    for position, node in reversed([*enumerate(nodes)]):
        wanted = tuple(name in reached and builder.types[name].dtype in FLOATS for name in node.inputs)
        given = tuple(_total(builder, sums, parts, name) if name in reached else None for name in node.outputs)
        if any(wanted) and any(given):
            for name, gradient in zip(node.inputs, _adjoints(builder, node, wanted, given), strict=True):
                if gradient is not None:
                    parts.setdefault(name, []).append(gradient)
        if position in begins:
            sums.settle(parts)
    return [_total(builder, sums, parts, name) for name in wrt]


def _adjoints(
    builder: GraphBuilder, node: Node, wanted: tuple[bool, ...], seeds: tuple[str | None, ...]
) -> Sequence[str | None]:
    """Adjoint contributions of a node, one for each of its inputs; None for none."""
    operator = ops.operator_named(node.op)
    if operator.gradient == "none":
        return [None] * len(node.inputs)
    types = tuple((builder.types[name].shape, builder.types[name].dtype) for name in node.inputs)
    applied = Application(builder, node.inputs, node.outputs, seeds, wanted, types, operator.complete(node.attrs))
    rules: Sequence[str | None] = [DERIVED] * len(node.inputs)
    try:
        if operator.rounds:
            return reverse_rounds(builder, node, wanted, seeds, backpropagate)
        if isinstance(operator.gradient, Refused):
            raise UnsupportedOperator(operator.gradient.reason)
        if isinstance(operator.gradient, Composed):
            composed = _through(builder, operator.gradient, applied)
            if composed is not None:
                return composed
        elif callable(operator.gradient):
            rules = operator.gradient(applied)
        return [
            None if not want else _derived(builder, node, types, number, seeds) if rule == DERIVED else rule
            for number, (rule, want) in enumerate(zip(rules, wanted, strict=True))
        ]
    except TypeError as error:
        dims = ", ".join(sorted(d.name for d in dims_of(extent for shape, _ in types for extent in shape)))
        if not dims:
            raise
        found = f"gradient of node '{node.name}' ({node.op}): open dimensions {dims}: {error}"
        raise UnsupportedOperator(f"{found}; allowed: numbers for them") from error
    except ModelError as error:
        raise UnsupportedOperator(f"gradient of node '{node.name}' ({node.op}): {error}") from error


def _through(builder: GraphBuilder, gradient: Composed, applied: Application) -> list[str | None] | None:
    """The gradients by the inputs of an equal composition; None where there is none, but the definition's own."""
    begin = len(builder.nodes)
    results = gradient.outputs(applied)
    if results is None:
        return None
    pairs = zip(results, applied.seeds, strict=True)
    seeds = {name: seed for name, seed in pairs if name is not None and seed is not None}
    wanted = [*dict.fromkeys(name for name, want in zip(applied.inputs, applied.wanted, strict=True) if want)]
    found = dict(zip(wanted, _backward(builder, builder.nodes[begin:], seeds, wanted), strict=True))
    # An operand that is read twice has one gradient, of both together.
    return [found.pop(name, None) for name in applied.inputs]


def _derived(
    builder: GraphBuilder,
    node: Node,
    types: Sequence[tuple[tuple[int, ...], str]],
    wrt: int,
    seeds: Sequence[str | None],
) -> str | None:
    """The gradient by one input, from the definition; of a view that keeps its elements' order another such view, of
    one that permutes dimensions the inverse permutation, so that passes see both cancel.
    """
    given_types = tuple(builder.types[name] for name in node.inputs)
    facts = operator_facts(node.op, given_types, tuple(sorted(node.attrs.items())))
    if facts.alias and seeds[0] is not None:
        return builder.add("reshape", seeds[0], shape=types[wrt][0])
    if facts.permutation is not None and seeds[0] is not None:
        return builder.add("transpose", seeds[0], perm=facts.permutation)
    seeded = tuple(number for number, seed in enumerate(seeds) if seed is not None)
    derived, attrs = application(ops.operator_named, node.op, node.attrs, types, wrt, seeded)
    if derived.result is None:
        return None
    operands = (*node.inputs, *node.outputs, *seeds)
    if derived.copied is not None:
        return _as(builder, operands[derived.copied], types[wrt][1])
    if not derived.reads:  # it has no elements
        return builder.add("expand", builder.constant(0.0, dtype=types[wrt][1]), shape=types[wrt][0])
    given = [operands[number] for number in derived.reads]
    return builder.add("adjoint", *[name for name in given if name is not None], node=f"{node.name}.grad{wrt}", **attrs)


def _as(builder: GraphBuilder, name: str | None, dtype: str) -> str | None:
    """A tensor as another dtype: where a value is copied into a narrower one, its adjoint is in that."""
    return name if name is None or builder.types[name].dtype == dtype else builder.add("cast", name, to=dtype)


def _total(builder: GraphBuilder, sums: Sums, parts: dict[str, list[str]], name: str) -> str | None:
    """The sum of what there is of an adjoint."""
    found = parts[name] = sums.total(name, parts.get(name, []))
    while len(found) > 1:
        found = [builder.add("add", found[0], found[1]), *found[2:]]
        parts[name] = found
    return found[0] if found else None


def _zeros(builder: GraphBuilder, name: str) -> str:
    t = builder.types[name]
    return builder.add("expand", builder.constant(0.0, dtype=t.dtype), shape=t.shape)


def _after(graph: Graph) -> set[int]:
    """The numbers of the outputs that are states."""
    return {state.output for state in graph.states.values()}


def _require_float(builder: GraphBuilder, name: str, argument: str) -> None:
    if name not in builder.types:
        raise ModelError(f"gradients: argument '{argument}': found no tensor '{name}'; allowed: {_some(builder)}")
    if builder.types[name].dtype not in FLOATS:
        t = builder.types[name]
        raise ModelError(f"gradients: argument '{argument}': found '{name}', {t}, integer; allowed: floating-point")


def _some(builder: GraphBuilder) -> str:
    names = list(builder.types)
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
