"""Validity of an ONNX model by the standard's rules: names, operator schemas, declared types. It says ModelError."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx

from burnish.errors import ModelError
from burnish.frontend.onnx.bodies import check_bodies
from burnish.frontend.onnx.domains import DEFAULT, NEWEST, key_of
from burnish.frontend.onnx.schema import OperatorSchema, described_domains, known_operator, signature
from burnish.graph.graph import TensorType

_ATTRIBUTE_TYPES = onnx.AttributeProto.AttributeType


def label_of(node: onnx.NodeProto, position: int) -> str:
    """Node label in messages: its name, else its first output, else its place in the graph."""
    return node.name or next((o for o in node.output if o), f"#{position}")


def check_graph(graph: onnx.GraphProto, opset: int, versions: Mapping[str, int], outer: Iterable[str] = ()) -> None:
    """Refuses names that are defined twice, too late or not at all, and nodes at odds with their operators' schemas.

    ``versions`` are those of other domains than the default one; a domain without schemas has none to be held to.
    ``outer``: names that a subgraph sees.
    """

    texts = {v.name for v in graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.STRING}
    texts |= {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.STRING}

    def check(node: onnx.NodeProto, position: int) -> None:
        version = opset if node.domain in DEFAULT else versions.get(node.domain, NEWEST)
        where = f"node '{label_of(node, position)}' ({key_of(node.domain, node.op_type)}, opset {version})"
        if node.domain in DEFAULT or node.domain in described_domains():
            _check_node(node, where, version)
            _check_texts(node, where, version, texts)
            check_bodies(node, where)

    check_names(graph, outer, check)


def check_names(
    graph: onnx.GraphProto,
    outer: Iterable[str] = (),
    check: Callable[[onnx.NodeProto, int], None] = lambda node, position: None,
    place: str = "model ",
) -> None:
    """Refuses names of a graph, and of its subgraphs, that are defined twice, too late or not at all.

    ``outer``: names that a subgraph sees. ``check`` is called for every node, of subgraphs too, whose names are right.
    ``place``: what the graph is of, in front of messages.
    """
    _check_once("input", [value.name for value in graph.input])
    _check_once("initializer", [tensor.name for tensor in graph.initializer])
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known = own.union(outer)
    later = Counter(name for node in graph.node for name in node.output if name)
    for position, node in enumerate(graph.node):
        where = f"node '{label_of(node, position)}' ({key_of(node.domain, node.op_type)})"
        undefined = [name for name in node.input if name and name not in known]
        if undefined:
            known_later = [name for name in undefined if name in later]
            hint = "; the order of nodes must be that of computation, without cycles" if known_later else ""
            raise ModelError(f"{where}: inputs {undefined} are defined by nothing before it{hint}")
        outputs = [name for name in node.output if name]
        repeated = [name for name, count in Counter(outputs).items() if name in own or count > 1]
        if repeated:
            raise ModelError(f"{where}: outputs {repeated} are defined before; a name has one definition")
        check(node, position)
        for attribute in node.attribute:
            if attribute.type == _ATTRIBUTE_TYPES.GRAPH:
                check_names(attribute.g, known, check, f"{where}: attribute '{attribute.name}': ")
        own.update(outputs)
        known.update(outputs)
    missing = [value.name for value in graph.output if value.name not in known]
    if missing:
        raise ModelError(f"{place}output '{missing[0]}' is computed by no node")


def _check_once(kind: str, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated or "" in names:
        raise ModelError(f"model: {kind}s {repeated or ['']} are defined twice or without a name; allowed: once, named")


def _check_node(node: onnx.NodeProto, where: str, opset: int) -> None:
    operator = signature(key_of(node.domain, node.op_type), opset)
    if operator is None and not known_operator(key_of(node.domain, node.op_type)):
        return  # one that other tools add to the domain, and for which there is a translator
    if operator is None:
        raise ModelError(f"{where}: found an operator that this opset does not define; import the opset that does")
    repeated = range(len(operator.inputs) - 1, len(node.input)) if operator.variadic else ()
    _check_places(where, "input", node.input, operator.input_count, operator.single_inputs.union(repeated))
    _check_places(where, "output", node.output, operator.output_count, operator.single_outputs)
    _check_attributes(node, where, operator)


def _check_texts(node: onnx.NodeProto, where: str, opset: int, texts: Collection[str]) -> None:
    """Refuses texts of the model where an operator takes numbers alone."""
    operator = signature(key_of(node.domain, node.op_type), opset)
    for position, name in enumerate(node.input if operator and texts else ()):
        assert operator is not None
        allowed = operator.allowed[operator.inputs[min(position, len(operator.inputs) - 1)]]
        if name in texts and allowed and "string" not in allowed:
            raise ModelError(f"{where}: input {position} ('{name}'): found dtype string; allowed: {_words(allowed)}")


def _check_places(where: str, kind: str, names: Sequence[str], count: tuple[int, int], single: Iterable[int]) -> None:
    least, most = count
    missing = sorted(i for i in single if i >= len(names) or not names[i])
    if missing and missing[0] < max(least, len(names)):
        raise ModelError(f"{where}: {kind} {missing[0]} is missing; {max(least, 1)} are required")
    if not least <= len(names) <= most:
        allowed = f"{least}" if most == least else f"at least {least}" if most > 1 << 20 else f"{least} to {most}"
        raise ModelError(f"{where}: {kind}s: found {len(names)}; allowed: {allowed}")


def _check_attributes(node: onnx.NodeProto, where: str, operator: OperatorSchema) -> None:
    found = Counter(attribute.name for attribute in node.attribute)
    for attribute in node.attribute:
        name = attribute.name
        if found[name] > 1:
            raise ModelError(f"{where}: attribute '{name}': found {found[name]} times; allowed: once")
        if name not in operator.attributes:
            allowed = ", ".join(operator.attributes) or "no attributes"
            raise ModelError(f"{where}: attribute '{name}': found an unknown name; allowed: {allowed}")
        wanted, _ = operator.attributes[name]
        if attribute.ref_attr_name or attribute.type != wanted:
            type_name = _ATTRIBUTE_TYPES.Name(attribute.type) if not attribute.ref_attr_name else "a reference"
            raise ModelError(f"{where}: attribute '{name}': found type {type_name}; "
                             f"allowed: {_ATTRIBUTE_TYPES.Name(wanted)}")  # fmt: skip
    for name, (_, required) in operator.attributes.items():
        if required and name not in found:
            raise ModelError(f"{where}: attribute '{name}': found nothing; it is required")


def check_dtypes(where: str, op_type: str, opset: int, inputs: Sequence[str], dtypes: Sequence[str]) -> None:
    """Refuses input dtypes that the schema does not allow, or that it wants to be equal."""
    operator = signature(op_type, opset)
    if operator is None:  # of a domain without schemas
        return
    bound: dict[str, tuple[int, str]] = {}
    for position, (name, dtype) in enumerate(zip(inputs, dtypes, strict=True)):
        place = min(position, len(operator.inputs) - 1)
        parameter = operator.inputs[place]
        allowed = operator.allowed[parameter]
        if not name or not allowed:
            continue
        if dtype not in allowed:
            raise ModelError(f"{where}: input {position} ('{name}'): found dtype {dtype}; allowed: {_words(allowed)}")
        first, other = bound.setdefault(parameter, (position, dtype))
        if other != dtype and (operator.same_dtypes or place < len(operator.inputs) - 1):
            raise ModelError(f"{where}: input {position} ('{name}'): found dtype {dtype}; "
                             f"allowed: {other}, that of input {first}")  # fmt: skip


def _words(dtypes: Iterable[str]) -> str:
    return ", ".join(sorted(dtypes))


def check_declared(where: str, declared: onnx.ValueInfoProto, found: TensorType, dtype: str | None) -> bool:
    """Refuses a declared element type (``dtype``; None if none is) that the value does not have.

    Returns whether the declared shape is the value's, where it says one: models with stale shapes are common, and what
    is computed is right.
    """
    if dtype is not None and dtype != found.dtype:
        raise ModelError(f"{where}: declared with dtype {dtype}; found: {found.dtype}, computed by the model")
    tensor = declared.type.tensor_type
    if not tensor.HasField("shape"):
        return True
    dims = tensor.shape.dim
    extents = zip(dims, found.shape, strict=False)
    return len(dims) == len(found.shape) and all(
        d.dim_value == n or not d.HasField("dim_value") or d.dim_value < 0 for d, n in extents
    )
