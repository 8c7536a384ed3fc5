"""Reads an ONNX model into a Graph: load and check the file, fix the shapes, translate node by node."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx.defs
import onnx.inliner
import onnx.shape_inference
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from burnish.errors import ModelError, ScheduleError, UnsupportedOperator, VerificationError
from burnish.files import open_regular
from burnish.frontend.onnx import (
    classical,
    contrib,
    elementwise,
    forests,
    functions,
    generators,
    movement,
    product,
    quantized,
    recurrent,
    reduction,
    sampling,
    scatter,
    sorting,
    training,
    window,
)
from burnish.frontend.onnx.context import Context, OnnxNode, Translator, attributes, require_room
from burnish.frontend.onnx.domains import DEFAULT, NEWEST, key_of
from burnish.frontend.onnx.dtypes import dtype_name, to_array
from burnish.frontend.onnx.external import NO_FILES, ExternalData
from burnish.frontend.onnx.validity import check_declared, check_dtypes, check_graph, label_of
from burnish.graph.graph import Graph, GraphBuilder, TensorType, type_of
from burnish.graph.rewrite import drop_dead
from burnish.loops.sizes import dim, dims_of

MOST_BYTES = (1 << 31) - 1  # of a file: protobuf's own limit
OLDEST_OPSET = 1
TRANSLATORS: Mapping[str, Translator] = {
    **classical.TRANSLATORS,
    **contrib.TRANSLATORS,
    **elementwise.TRANSLATORS,
    **forests.TRANSLATORS,
    **functions.TRANSLATORS,
    **generators.TRANSLATORS,
    **movement.TRANSLATORS,
    **product.TRANSLATORS,
    **quantized.TRANSLATORS,
    **recurrent.TRANSLATORS,
    **reduction.TRANSLATORS,
    **sampling.TRANSLATORS,
    **scatter.TRANSLATORS,
    **sorting.TRANSLATORS,
    **training.TRANSLATORS,
    **window.TRANSLATORS,
}
_BATCH = re.compile(r"batch|^[nb]$|^none$|^unk|^\?$|^-1$|^$", re.IGNORECASE)
_log = logging.getLogger("burnish")


@dataclass(frozen=True)
class Imported:
    """A model as a graph. ``assumed``: inputs whose first extent the model leaves open, by that extent's name in the
    model, and nobody has given: it was taken as 1.
    """

    graph: Graph
    assumed: Mapping[str, str] = field(default_factory=dict)


def from_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, shapes: Mapping[str, Sequence[int | str]] | None = None
) -> Graph:
    """The model as a graph with static shapes: what :func:`import_onnx` says, without what it assumed."""
    return import_onnx(model, shapes).graph


def import_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, shapes: Mapping[str, Sequence[int | str]] | None = None
) -> Imported:
    """The model as a graph; names of inputs and outputs are the model's.

    ``model`` is a path, the bytes of a file, or a ModelProto. ``shapes`` gives the full shape of inputs by name, which
    those with open dimensions need; an open *first* dimension that looks like a batch (unnamed, or called N, batch, …)
    is otherwise taken as 1. It also gives, by name, the bounds of dimensions that stay open: ``{"batch": (1, 32)}``,
    ``(16, 512, 16)`` where only multiples of 16 occur, ``(1, 512, 1, 20)`` where kernels shall suit 20 best; the model,
    or an entry such as ``{"x": ("batch", 768)}``, refers to them by that name. Raises ModelError for what is no valid
    model, UnsupportedOperator (a ModelError) for valid models that use what Burnish lacks.
    """
    proto, data = _load(model)
    proto = _without_functions(proto)
    graph = proto.graph
    _refuse_unsupported(graph)
    opset = _opset(proto)
    versions = {o.domain: o.version for o in proto.opset_import}
    check_graph(graph, opset, versions)
    context = Context(GraphBuilder(), data=data, translators=TRANSLATORS, versions=versions)
    names = _add_constants(context, graph)
    assumed = _add_inputs(context, graph, names, dict(shapes or {}))
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for position, node in enumerate(graph.node):
        _translate(context, names, node, position, opset)
        _refuse_missing_outputs(context.node, names, used)
    outputs = []
    _check_declared(context, names, graph)
    for value in graph.output:
        if value.name not in names:
            raise ModelError(f"model output '{value.name}' is computed by no node")
        outputs.append(_named(context.builder, names[value.name], value.name))
    return Imported(drop_dead(context.builder.build(*outputs)), assumed)


# --- the file ---------------------------------------------------------------------------------------------------------


def _load(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, ExternalData]:
    """The parsed model, and where its external data may be."""
    external = NO_FILES
    if isinstance(model, onnx.ModelProto):
        proto, where = model, "the ModelProto"
    else:
        if isinstance(model, bytes):
            data, where = model, f"the model of {len(model)} bytes"
        else:
            path = Path(model)
            where, external = f"model file '{path}'", ExternalData(path)
            data = _read(path, where)
        try:
            proto = onnx.ModelProto.FromString(data)
        except DecodeError as error:
            raise ModelError(f"{where}: not an ONNX model, or truncated ({len(data)} bytes): {error}") from error
    if not proto.HasField("graph") or not proto.graph.output:
        raise ModelError(f"{where}: holds no graph with outputs; it is not an ONNX model, or truncated")
    return proto, external


def _read(path: Path, where: str) -> bytes:
    """The bytes of the model file. Raises ModelError."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise ModelError(
                    f"{where}: {size} bytes, allowed: up to {MOST_BYTES}, the limit of protobuf; save the weights as "
                    "external data"
                )
            return file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{where}: cannot be read: {reason}") from error


def _without_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the calls of its own functions replaced by their nodes."""
    if not proto.functions:
        return proto
    _refuse_recursion(proto)
    versions = {(o.domain, o.version) for o in proto.opset_import}
    try:
        if any((o.domain, o.version) not in versions for f in proto.functions for o in f.opset_import):
            proto = onnx.shape_inference.infer_shapes(proto)  # conversion to the model's opset asks for types
        return onnx.inliner.inline_local_functions(proto, convert_version=True)
    except Exception as error:  # of C++: its classes have no common base but this one
        names = ", ".join(f"{f.domain}.{f.name}" for f in proto.functions)
        raise ModelError(f"model: its functions ({names}) cannot be inlined: {error}") from error


def _refuse_recursion(proto: onnx.ModelProto) -> None:
    """Functions that call themselves, directly or through others, have no end."""
    calls = {(f.domain, f.name): {(n.domain, n.op_type) for n in f.node} for f in proto.functions}
    while calls:
        leaves = [key for key, called in calls.items() if not called & calls.keys()]
        if not leaves:
            names = ", ".join(f"{domain}.{name}" for domain, name in calls)
            raise ModelError(f"model: functions {names} call one another without end; allowed: no recursion")
        for key in leaves:
            del calls[key]


def _opset(proto: onnx.ModelProto) -> int:
    """The version of the default domain; of a model that imports only others the newest, as onnxruntime takes it."""
    newest = onnx.defs.onnx_opset_version()
    if not proto.opset_import:
        raise ModelError("model: opset imports: found none; allowed: one at least, that of the default domain")
    versions = {o.domain: o.version for o in proto.opset_import}
    version = next((versions[d] for d in DEFAULT if d in versions), newest)
    if not OLDEST_OPSET <= version <= newest:
        allowed = f"{OLDEST_OPSET} to {newest}"
        raise UnsupportedOperator(f"model: opset of the default domain: found {version}; allowed: {allowed}")
    return version


def _refuse_unsupported(graph: onnx.GraphProto) -> None:
    """Names every node without a translator at once, so that a user sees the whole distance."""
    missing: dict[str, list[str]] = {}
    for position, node in enumerate(graph.node):
        operator = key_of(node.domain, node.op_type)
        if operator not in TRANSLATORS:
            missing.setdefault(operator, []).append(node.name or f"#{position}")
    if missing:
        words = [f"{name} ({', '.join(nodes[:5])}{', …' * (len(nodes) > 5)})" for name, nodes in missing.items()]
        raise UnsupportedOperator(f"model uses operators that are not supported: {'; '.join(words)}")
    if graph.sparse_initializer:
        raise UnsupportedOperator(f"model: {len(graph.sparse_initializer)} sparse initializers; allowed: dense ones")


def _add_constants(context: Context, graph: onnx.GraphProto) -> dict[str, str]:
    """Adds the initializers; returns ONNX name -> graph name."""
    declared = {value.name: value for value in graph.input}
    for tensor in graph.initializer:
        where = f"initializer '{tensor.name}'"
        array = to_array(tensor, where, context.data)
        value = declared.get(tensor.name)
        element = value.type.tensor_type.elem_type if value is not None else 0
        dtype = dtype_name(element, where) if element else None
        if value is not None and not check_declared(where, value, type_of(array), dtype):
            raise ModelError(f"{where}: found shape {list(array.shape)}; allowed: that of the input of its name")
        context.builder.constant(array, tensor.name)
    return {tensor.name: tensor.name for tensor in graph.initializer}


# --- inputs and their shapes ------------------------------------------------------------------------------------------


def _add_inputs(
    context: Context, graph: onnx.GraphProto, names: dict[str, str], shapes: Mapping[str, Sequence[int | str]]
) -> dict[str, str]:
    """Adds the graph's inputs; one that an initializer gives a value is a constant. Returns ``Imported.assumed``."""
    inputs = [value for value in graph.input if value.name not in names]
    dims = _dimensions(inputs, shapes)
    assumed = {}
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value")
            if kind is None:
                raise ModelError(f"input '{value.name}': found no type; allowed: a tensor of some element type")
            raise UnsupportedOperator(f"input '{value.name}': found type {kind}; allowed: tensors")
        dtype = dtype_name(value.type.tensor_type.elem_type, f"input '{value.name}'")
        shape = _input_shape(value, shapes.get(value.name), dims)
        require_room(TensorType(shape, dtype), f"input '{value.name}'")
        context.builder.input(value.name, shape, dtype)
        names[value.name] = value.name
        first = next((_dimension(d) for d in value.type.tensor_type.shape.dim), 1)
        if value.name not in shapes and isinstance(first, str) and first not in dims:
            assumed[value.name] = first
    return assumed


def _dimensions(inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int | str]]) -> dict[str, int]:
    """The dimensions that stay open, by name: those that ``shapes`` gives bounds."""
    own = {value.name for value in inputs}
    named = {d.dim_param for value in inputs for d in value.type.tensor_type.shape.dim if d.dim_param}
    named |= {e for name in own & shapes.keys() for e in shapes[name] if isinstance(e, str)}
    unknown = sorted(shapes.keys() - own - named)
    if unknown:
        allowed = ", ".join([*own, *sorted(named - own)])
        raise ModelError(f"shapes: found names {unknown} of no model input; allowed: {allowed or 'none'}")
    found: dict[str, int] = {}
    for name in shapes.keys() - own:
        bounds = shapes[name]
        if len(bounds) not in (2, 3, 4) or not all(isinstance(b, int) for b in bounds):
            allowed = "(low, high), (low, high, multiple) or (low, high, multiple, hint)"
            raise ModelError(f"shapes: dimension '{name}': found {bounds}; allowed: {allowed}")
        try:
            found[name] = dim(re.sub(r"\W|^(?=\d)", "_", name), *bounds)  # type: ignore[arg-type]
        except ScheduleError as error:
            raise ModelError(f"shapes: {error}") from None
    return found


def _input_shape(
    value: onnx.ValueInfoProto, given: Sequence[int | str] | None, dims: Mapping[str, int]
) -> tuple[int, ...]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        if given is None:
            raise ModelError(f"input '{value.name}' has no shape; pass shapes={{'{value.name}': (...)}}")
        return tuple(_extent(value.name, g, dims) for g in given)
    declared = [_dimension(d) for d in tensor.shape.dim]
    if given is not None:
        fits = len(given) == len(declared) and all(
            isinstance(d, str) or d == g for d, g in zip(declared, given, strict=True)
        )
        if not fits or any(isinstance(g, int) and g < 0 for g in given):
            raise ModelError(f"shapes: input '{value.name}': found {list(given)}; allowed: {declared}")
        return tuple(_extent(value.name, g, dims) for g in given)
    declared = [dims.get(d, d) if isinstance(d, str) else d for d in declared]
    open_ = [d for position, d in enumerate(declared) if isinstance(d, str) and (position or not _BATCH.search(d))]
    if open_:
        words = ", ".join(str(d) for d in declared)
        raise ModelError(
            f"input '{value.name}' has open dimensions {open_} in shape [{words}]; "
            f"pass the whole shape: shapes={{'{value.name}': ({words})}} with numbers in their place"
        )
    return tuple(1 if isinstance(d, str) else d for d in declared)


def _extent(name: str, given: int | str, dims: Mapping[str, int]) -> int:
    """A number, or the dimension of this name. Raises ModelError for one without bounds."""
    if isinstance(given, str) and given not in dims:
        example = f"shapes={{'{given}': (1, 512), …}}"
        raise ModelError(f"shapes: input '{name}': dimension '{given}' has no bounds; pass them: {example}")
    return dims[given] if isinstance(given, str) else int(given)


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> int | str:
    """The extent, or the name of an open dimension; some exporters write -1 for one."""
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    return dimension.dim_param or "?"


# --- nodes ------------------------------------------------------------------------------------------------------------


def _translate(context: Context, names: dict[str, str], node: onnx.NodeProto, position: int, opset: int) -> None:
    """Adds one node's operators and binds its outputs in ``names``."""
    inputs = tuple(names[name] if name else "" for name in node.input)
    opset = opset if node.domain in DEFAULT else context.versions.get(node.domain, NEWEST)
    key, given = key_of(node.domain, node.op_type), dict(attributes(node.attribute))
    n = OnnxNode(key, label_of(node, position), inputs, tuple(node.output), given, opset)
    context.begin(n)
    try:
        check_dtypes(str(n), n.op, opset, inputs, [context.dtype(name) if name else "" for name in inputs])
        result = TRANSLATORS[key](context, n)
    except (ModelError, VerificationError) as error:
        if str(error).startswith(str(n)):
            raise
        kind = UnsupportedOperator if isinstance(error, UnsupportedOperator) else ModelError
        raise kind(f"{n}: {error}") from error
    except (KeyError, IndexError, ValueError, TypeError, ArithmeticError) as error:
        open_ = {d for name in inputs if name for d in dims_of(context.shape(name))}
        if open_ and isinstance(error, TypeError):
            words = ", ".join(f"'{d}'" for d in sorted(map(str, open_)))
            raise UnsupportedOperator(
                f"{n}: not supported where extents depend on dimension {words} ({error}); allowed: a number for it"
            ) from error
        raise ModelError(f"{n}: malformed inputs or attributes: {error!r}") from error
    found = [result] if isinstance(result, str) else list(result)
    for index, name in enumerate(node.output):
        if name and index < len(found) and found[index]:
            fresh = found[index] in context.made and name not in context.builder.types
            names[name] = context.builder.rename(found[index], name) if fresh else found[index]


def _check_declared(context: Context, names: Mapping[str, str], graph: onnx.GraphProto) -> None:
    """Holds what the model says of its values against what is computed: dtypes must agree, shapes are told."""
    for kind, values in (("output", graph.output), ("value", graph.value_info)):
        for value in values:
            if value.name not in names or not value.type.HasField("tensor_type"):
                continue
            where, element = f"{kind} '{value.name}'", value.type.tensor_type.elem_type
            found = context.builder.types[names[value.name]]
            if not check_declared(where, value, found, dtype_name(element, where) if element else None):
                _log.warning("%s: its shape is declared otherwise; computed: %s", where, list(found.shape))


def _refuse_missing_outputs(node: OnnxNode, names: Mapping[str, str], used: Collection[str]) -> None:
    """Optional outputs that no translator computes (a dropout's mask, …) may be there, but not be read."""
    for index, name in enumerate(node.outputs):
        if name in used and name and name not in names:
            raise UnsupportedOperator(f"{node}: output {index} ('{name}'): found in use; allowed: not used")


def _named(builder: GraphBuilder, found: str, name: str) -> str:
    """``found`` under the name that the model gives its output."""
    return found if found == name else builder.add("identity", found, name=builder.fresh(name))
