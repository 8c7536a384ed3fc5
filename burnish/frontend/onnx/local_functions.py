"""A model's own functions (FunctionProto): their rules, defaults of attributes, and calls replaced by their nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx.inliner
import onnx.shape_inference

from burnish.errors import ModelError
from burnish.frontend.onnx.domains import DEFAULT, key_of
from burnish.frontend.onnx.nodes import subgraphs
from burnish.frontend.onnx.validity import check_names, label_of

MOST_NODES = 1 << 17  # after all calls are replaced: functions that double over twenty levels have no end else
MOST_LEVELS = 256  # of calls within calls: the inliner follows them on the stack

Key = tuple[str, str, str]


def without_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the calls of its own functions replaced by their nodes.

    Attributes that a call leaves out have the function's defaults (``attribute_proto``). Raises ModelError for
    functions that break the standard's rules, call one another without end, or become more than ``MOST_NODES`` nodes.
    """
    if not proto.functions:
        return proto
    functions = {_key_of(f): f for f in proto.functions}
    if len(functions) < len(proto.functions):
        repeated = [_words(key) for key, n in Counter(map(_key_of, proto.functions)).items() if n > 1]
        raise ModelError(f"model: functions {', '.join(repeated)} are defined twice; allowed: once an overload")
    for function in proto.functions:
        _check_function(function)
    _check_calls(proto, functions)
    return _inlined(_with_defaults(proto))


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model after the inliner, in which no call of a function of its own is left."""
    versions = {(o.domain, o.version) for o in proto.opset_import}
    try:
        if any((o.domain, o.version) not in versions for f in proto.functions for o in f.opset_import):
            proto = onnx.shape_inference.infer_shapes(proto)  # conversion to the model's opset asks for types
        return onnx.inliner.inline_local_functions(proto, convert_version=True)
    except Exception as error:  # of C++: its classes have no common base but this one
        names = ", ".join(_words(_key_of(f)) for f in proto.functions)
        raise ModelError(f"model: its functions ({names}) cannot be inlined: {error}") from error


def _domain(domain: str) -> str:
    return "" if domain in DEFAULT else domain


def _key_of(function: onnx.FunctionProto) -> Key:
    return _domain(function.domain), function.name, function.overload


def _called(node: onnx.NodeProto) -> Key:
    return _domain(node.domain), node.op_type, node.overload


def _words(key: Key) -> str:
    """A function for people: ``domain.Name``, and its overload if it has one."""
    domain, name, overload = key
    return key_of(domain, name) + (f" (overload '{overload}')" if overload else "")


def _nodes_of(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node).values():
            yield from _nodes_of(graph.node)


def _check_function(function: onnx.FunctionProto) -> None:
    """Refuses names that are defined twice or not at all, and references to attributes that it does not declare."""
    where = f"function {_words(_key_of(function))}"
    declared = [*function.attribute, *(a.name for a in function.attribute_proto)]
    for kind, names in (("input", function.input), ("output", function.output), ("attribute", declared)):
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise ModelError(f"{where}: {kind}s {repeated} are defined twice; allowed: once")
    for default in function.attribute_proto:
        if default.ref_attr_name:
            raise ModelError(f"{where}: attribute '{default.name}': found a reference; allowed: a value, its default")
    for position, node in enumerate(_nodes_of(function.node)):
        for attribute in node.attribute:
            if attribute.ref_attr_name and attribute.ref_attr_name not in declared:
                raise ModelError(
                    f"{where}: node '{label_of(node, position)}' ({node.op_type}): attribute '{attribute.name}': found "
                    f"a reference to '{attribute.ref_attr_name}'; allowed: {', '.join(declared) or 'none'}"
                )
    inputs = [onnx.ValueInfoProto(name=name) for name in function.input]
    outputs = [onnx.ValueInfoProto(name=name) for name in function.output]
    try:
        check_names(onnx.GraphProto(node=function.node, input=inputs, output=outputs), place="")
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None


def _check_calls(proto: onnx.ModelProto, functions: Mapping[Key, onnx.FunctionProto]) -> None:
    """Refuses calls at odds with their function, calls without end, and too many nodes in all."""
    callers = {key: list(_nodes_of(f.node)) for key, f in functions.items()}
    main = list(_nodes_of(proto.graph.node))
    for key, nodes in [(None, main), *callers.items()]:
        place = f"function {_words(key)}: " if key else ""
        for position, node in enumerate(nodes):
            if _called(node) in functions:
                _check_call(f"{place}node '{label_of(node, position)}' ({_words(_called(node))})", node,
                            functions[_called(node)])  # fmt: skip
    total = _expanded(main, callers)
    if total > MOST_NODES:
        raise ModelError(f"model: its functions make {total} nodes of {len(main)}; allowed: {MOST_NODES}")


def _check_call(where: str, node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
    for kind, found, allowed in (("inputs", node.input, function.input), ("outputs", node.output, function.output)):
        if len(found) > len(allowed):
            raise ModelError(f"{where}: {kind}: found {len(found)}; allowed: {len(allowed)}, those of its function")
    declared = [*function.attribute, *(a.name for a in function.attribute_proto)]
    kinds = {a.name: a.type for a in function.attribute_proto}
    for name, count in Counter(a.name for a in node.attribute).items():
        if count > 1:
            raise ModelError(f"{where}: attribute '{name}': found {count} times; allowed: once")
    for attribute in node.attribute:
        if attribute.name not in declared:
            allowed = ", ".join(declared) or "no attributes"
            raise ModelError(f"{where}: attribute '{attribute.name}': found an unknown name; allowed: {allowed}")
        if attribute.type != kinds.get(attribute.name, attribute.type):
            found, wanted = (onnx.AttributeProto.AttributeType.Name(t) for t in (attribute.type, kinds[attribute.name]))
            raise ModelError(f"{where}: attribute '{attribute.name}': found type {found}; allowed: {wanted}")


def _expanded(main: Sequence[onnx.NodeProto], callers: Mapping[Key, Sequence[onnx.NodeProto]]) -> int:
    """Nodes of the model once every call is replaced. Raises ModelError for calls without end, or too deep."""
    calls = {key: Counter(c for c in map(_called, nodes) if c in callers) for key, nodes in callers.items()}
    known: dict[Key, tuple[int, int]] = {}
    while len(known) < len(calls):
        ready = [key for key, called in calls.items() if key not in known and called.keys() <= known.keys()]
        if not ready:
            names = ", ".join(_words(key) for key in calls if key not in known)
            raise ModelError(f"model: functions {names} call one another without end; allowed: no recursion")
        for key in ready:
            called, own = calls[key], len(callers[key])
            level = 1 + max((known[c][1] for c in called), default=0)
            if level > MOST_LEVELS:
                raise ModelError(f"function {_words(key)}: found {level} calls within calls; allowed: {MOST_LEVELS}")
            known[key] = own + sum((known[c][0] - 1) * n for c, n in called.items()), level
    first = Counter(c for c in map(_called, main) if c in callers)
    return len(main) + sum((known[c][0] - 1) * n for c, n in first.items())


def _with_defaults(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model where calls give what the functions' defaults say, which the inliner ignores.

    A reference to an attribute that its own function was not given is none, so that what it is passed on to has its
    default: a function has a variant, an overload, for every set of attributes that calls give. An output that is an
    input becomes a node.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    functions = {_key_of(f): f for f in proto.functions}
    variants: dict[tuple[Key, frozenset[str]], str] = {}
    del made.functions[:]

    def complete(nodes: Sequence[onnx.NodeProto]) -> None:
        """Writes defaults into the calls among nodes, and turns these to the variant for what they give."""
        for node in _nodes_of(nodes):
            function = functions.get(_called(node))
            if function is not None:
                given = {a.name for a in node.attribute}
                node.attribute.extend(a for a in function.attribute_proto if a.name not in given)
                node.overload = variant(function, frozenset(a.name for a in node.attribute))

    def variant(function: onnx.FunctionProto, given: frozenset[str]) -> str:
        key = _key_of(function)
        if (key, given) not in variants:
            own = onnx.FunctionProto()
            own.CopyFrom(function)
            variants[key, given] = own.overload = f"{len(variants)}"
            own.attribute.extend(a.name for a in own.attribute_proto)
            del own.attribute_proto[:]
            for node in _nodes_of(own.node):
                kept = [a for a in node.attribute if not a.ref_attr_name or a.ref_attr_name in given]
                if len(kept) < len(node.attribute):
                    del node.attribute[:]
                    node.attribute.extend(kept)
            _separate_outputs(own)
            complete(own.node)
            made.functions.append(own)
        return variants[key, given]

    complete(made.graph.node)
    return made


def _separate_outputs(function: onnx.FunctionProto) -> None:
    """Makes outputs of a function that are its inputs values of their own."""
    taken = {*function.input, *function.output}
    taken |= {name for node in _nodes_of(function.node) for name in (*node.input, *node.output)}
    for position, name in enumerate(function.output):
        if name in function.input:
            own = next(fresh for fresh in (f"{name}.{i}" for i in range(len(taken) + 1)) if fresh not in taken)
            function.output[position] = own
            taken.add(own)
            function.node.append(onnx.NodeProto(op_type="Identity", input=[name], output=[own]))
