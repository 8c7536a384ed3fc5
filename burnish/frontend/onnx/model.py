"""Reads an ONNX model into a Graph: load and check the file, fix the shapes, translate node by node."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from burnish.errors import ModelError, ScheduleError, UnsupportedOperator
from burnish.frontend.onnx import (
    classical,
    contrib,
    control,
    counted,
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
    sequences,
    sorting,
    training,
    vectors,
    window,
)
from burnish.frontend.onnx.context import OnnxContext, OpenDimensions, RuntimeValue, Translator, require_room
from burnish.frontend.onnx.domains import key_of
from burnish.frontend.onnx.dtypes import dtype_name, to_array
from burnish.frontend.onnx.external import ExternalData
from burnish.frontend.onnx.load import load_model, opset_of, versions_of
from burnish.frontend.onnx.local_functions import without_functions
from burnish.frontend.onnx.nodes import names_read, subgraphs, translate_nodes
from burnish.frontend.onnx.validity import check_declared, check_graph
from burnish.graph.graph import Graph, GraphBuilder, TensorType, type_of
from burnish.graph.rewrite import drop_dead
from burnish.loops.expr import FLOATS
from burnish.loops.numeric import numpy_dtype
from burnish.loops.sizes import dim, extent_of

TRANSLATORS: Mapping[str, Translator] = {
    **classical.TRANSLATORS,
    **contrib.TRANSLATORS,
    **control.TRANSLATORS,
    **counted.TRANSLATORS,
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
    **sequences.TRANSLATORS,
    **sorting.TRANSLATORS,
    **training.TRANSLATORS,
    **vectors.TRANSLATORS,
    **window.TRANSLATORS,
}
_BATCH = re.compile(  # names of a first extent that is a number of rows
    r"batch|^[nb]$|^(num_|n_)?(rows?|samples?|examples?|items?|instances?)$|^none$|^unk|^\?$|^-1$|^$", re.IGNORECASE
)
_log = logging.getLogger("burnish")


@dataclass(frozen=True)
class Imported:
    """A model as a graph. ``assumed``: inputs whose first extent the model leaves open, by that extent's name in the
    model, and nobody has given: it was taken as 1. ``weights``: in training, the constants that are initializers of
    several floating-point numbers; None where nothing tells them from other constants.
    """

    graph: Graph
    assumed: Mapping[str, str] = field(default_factory=dict)
    weights: tuple[str, ...] | None = None


Shapes = Mapping[str, Sequence[int | str] | int]


def from_onnx(model: str | os.PathLike[str] | bytes | onnx.ModelProto, shapes: Shapes | None = None) -> Graph:
    """The model as a graph with static shapes: what :func:`import_onnx` says, without what it assumed."""
    return import_onnx(model, shapes).graph


def import_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    shapes: Shapes | None = None,
    fix: Mapping[str, Any] | None = None,
    training: bool = False,
) -> Imported:
    """The model as a graph; names of inputs and outputs are the model's.

    ``model`` is a path, the bytes of a file, or a ModelProto. ``shapes`` gives the full shape of inputs by name, which
    those with open dimensions need; an open *first* dimension that looks like a batch (unnamed, or called N, batch, …)
    is otherwise taken as 1. It also gives, by name, the bounds of dimensions that stay open: ``{"batch": (1, 32)}``,
    ``(16, 512, 16)`` where only multiples of 16 occur, ``(1, 512, 1, 20)`` where kernels shall suit 20 best, or a size:
    ``{"batch": 4}``; the model, or an entry such as ``{"x": ("batch", 768)}``, refers to them by that name. ``fix``
    gives values of inputs, which are constants then, such as ``{"sr": 16000}``; an input that is an initializer, too,
    has that as its default and is a constant, unless ``fix`` gives None: then every call gives it. ``training``:
    nothing is computed of initializers that may be weights but in the graph, and dropout is there.

    Raises ModelError for what is no valid model, OpenDimensions (a ModelError) for extents that are missing, all at
    once, UnsupportedOperator (a ModelError) for valid models that use what Burnish lacks, of which RuntimeValue is one
    that is no static graph, nor one of open sizes.
    """
    proto, data = load_model(model)
    return import_loaded(without_functions(proto), data, shapes, fix, training)


def import_loaded(
    proto: onnx.ModelProto,
    data: ExternalData,
    shapes: Shapes | None = None,
    fix: Mapping[str, Any] | None = None,
    training: bool = False,
    flow: bool = True,
) -> Imported:
    """:func:`import_onnx` of a model that was read, without functions of its own; ``data``: where its weights are.
    ``flow``: control flow that values decide becomes nodes with bodies where it can, else it is no static graph.
    """
    proto = fixed_inputs(proto, fix or {})
    graph = proto.graph
    refuse_unsupported(graph)
    opset = opset_of(proto)
    versions = versions_of(proto)
    check_graph(graph, opset, versions)
    context = OnnxContext(
        GraphBuilder(), data=data, translators=TRANSLATORS, opset=opset, versions=versions, training=training, flow=flow
    )
    names = _add_constants(context, graph)
    assumed = _add_inputs(context, graph, names, dict(shapes or {}))
    translate_nodes(context, names, graph.node, names_read(graph))
    outputs = []
    _check_declared(context, names, graph)
    for value in graph.output:
        if value.name not in names:
            raise ModelError(f"model output '{value.name}' is computed by no node")
        if names[value.name] in context.lists:
            raise RuntimeValue(f"model output '{value.name}': found a sequence; allowed: tensors", "")
        outputs.append(named(context.builder, names[value.name], value.name))
    found = drop_dead(context.builder.build(*outputs))
    weights = tuple(name for name in found.constants if name in context.weights) if training else None
    return Imported(found, assumed, weights)


def fixed_inputs(proto: onnx.ModelProto, fix: Mapping[str, Any]) -> onnx.ModelProto:
    """The model with these values of inputs as initializers, and inputs of None without theirs, which is a default.

    Raises ModelError for names and values of no input.
    """
    if not fix:
        return proto
    declared = {value.name: value for value in proto.graph.input}
    unknown = sorted(fix.keys() - declared.keys())
    if unknown:
        raise ModelError(f"fix: found names {unknown} of no model input; allowed: {', '.join(declared)}")
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    constant = {tensor.name for tensor in proto.graph.initializer}
    missing = [name for name, value in fix.items() if value is None and name not in constant]
    if missing:
        raise ModelError(
            f"fix: input '{missing[0]}': found None; allowed: a value, or None where the model has a default"
        )
    kept = [tensor for tensor in result.graph.initializer if tensor.name not in fix]
    del result.graph.initializer[:]
    result.graph.initializer.extend(kept)
    for name, value in fix.items():
        if value is None:
            continue
        where, kind = f"fix: input '{name}'", declared[name].type.tensor_type.elem_type
        dtype = numpy_dtype(dtype_name(kind, where))
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise ModelError(f"{where}: found {value!r}; allowed: values that {dtype} holds")
        wanted = array.astype(dtype)
        dims = declared[name].type.tensor_type.shape.dim
        if declared[name].type.tensor_type.HasField("shape") and len(dims) != wanted.ndim and wanted.size == 1:
            wanted = wanted.reshape([1] * len(dims))
        if not np.array_equal(wanted.reshape(-1), array.reshape(-1)):
            raise ModelError(f"{where}: found {value!r}; allowed: values that {dtype} holds")
        result.graph.initializer.append(onnx.numpy_helper.from_array(wanted, name))
    return result


def refuse_unsupported(graph: onnx.GraphProto) -> None:
    """Names every node without a translator at once, so that a user sees the whole distance."""
    missing: dict[str, list[str]] = {}
    sparse = _unsupported(graph, missing)
    if missing:
        words = [f"{name} ({', '.join(nodes[:5])}{', …' * (len(nodes) > 5)})" for name, nodes in missing.items()]
        raise UnsupportedOperator(f"model uses operators that are not supported: {'; '.join(words)}")
    if sparse:
        raise UnsupportedOperator(f"model: {sparse} sparse initializers; allowed: dense ones")


def _unsupported(graph: onnx.GraphProto, missing: dict[str, list[str]]) -> int:
    """Adds the nodes without a translator, by operator; returns the number of sparse initializers."""
    sparse = len(graph.sparse_initializer)
    for position, node in enumerate(graph.node):
        operator = key_of(node.domain, node.op_type)
        if operator not in TRANSLATORS:
            missing.setdefault(operator, []).append(node.name or f"#{position}")
        sparse += sum(_unsupported(inner, missing) for inner in subgraphs(node).values())
    return sparse


def _add_constants(context: OnnxContext, graph: onnx.GraphProto) -> dict[str, str]:
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
        if context.training and type_of(array).dtype in FLOATS and array.size > 1:
            context.weights.add(tensor.name)
    return {tensor.name: tensor.name for tensor in graph.initializer}


# --- inputs and their shapes ------------------------------------------------------------------------------------------


def _add_inputs(
    context: OnnxContext, graph: onnx.GraphProto, names: dict[str, str], shapes: Mapping[str, Any]
) -> dict[str, str]:
    """Adds the graph's inputs; one that an initializer gives a value is a constant. Returns ``Imported.assumed``."""
    inputs = [value for value in graph.input if value.name not in names]
    dims = _dimensions(inputs, shapes)
    _require_closed(inputs, shapes, dims)
    assumed = {}
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value")
            if kind is None:
                raise ModelError(f"input '{value.name}': found no type; allowed: a tensor of some element type")
            if kind in ("sequence_type", "optional_type"):
                raise RuntimeValue(f"input '{value.name}': found type {kind}; allowed: tensors", "")
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


def _dimensions(inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Any]) -> dict[str, int]:
    """The dimensions that stay open, by name: those that ``shapes`` gives bounds."""
    own = {value.name for value in inputs}
    named = {d.dim_param for value in inputs for d in value.type.tensor_type.shape.dim if d.dim_param}
    scalars = [name for name in own & shapes.keys() if isinstance(shapes[name], int)]
    if scalars:
        raise ModelError(f"shapes: input '{scalars[0]}': found {shapes[scalars[0]]}; allowed: one extent a dimension")
    named |= {e for name in own & shapes.keys() for e in shapes[name] if isinstance(e, str)}
    unknown = sorted(shapes.keys() - own - named)
    if unknown:
        allowed = ", ".join([*own, *sorted(named - own)])
        raise ModelError(f"shapes: found names {unknown} of no model input; allowed: {allowed or 'none'}")
    found: dict[str, int] = {}
    for name in shapes.keys() - own:
        bounds = shapes[name]
        if isinstance(bounds, int):
            found[name] = bounds
            continue
        if len(bounds) not in (2, 3, 4) or not all(isinstance(b, int) for b in bounds):
            allowed = "(low, high), (low, high, multiple) or (low, high, multiple, hint)"
            raise ModelError(f"shapes: dimension '{name}': found {bounds}; allowed: {allowed}")
        try:
            found[name] = dim(re.sub(r"\W|^(?=\d)", "_", name), *bounds)
        except ScheduleError as error:
            raise ModelError(f"shapes: {error}") from None
    return found


def _input_shape(
    value: onnx.ValueInfoProto, given: Sequence[int | str] | None, dims: Mapping[str, int]
) -> tuple[int, ...]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return tuple(_extent(value.name, g, dims) for g in given or ())
    declared = [_dimension(d) for d in tensor.shape.dim]
    if given is not None:
        fits = len(given) == len(declared) and all(
            isinstance(d, str) or d == g for d, g in zip(declared, given, strict=True)
        )
        if not fits or any(isinstance(g, int) and g < 0 for g in given):
            raise ModelError(f"shapes: input '{value.name}': found {list(given)}; allowed: {declared}")
        return tuple(_extent(value.name, g, dims) for g in given)
    declared = [dims.get(d, d) if isinstance(d, str) else d for d in declared]
    return tuple(1 if isinstance(d, str) else d for d in declared)


def _require_closed(inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Any], dims: Mapping[str, int]) -> None:
    """Raises OpenDimensions that names all extents which are missing; a first one that looks like a batch is not."""
    found, remedy = [], {}
    for value in inputs:
        tensor = value.type.tensor_type
        if value.name in shapes or not value.type.HasField("tensor_type"):
            continue
        if not tensor.HasField("shape"):
            found.append(f"input '{value.name}' has no shape")
            remedy[value.name] = "(...)"
            continue
        declared = [dims.get(d, d) if isinstance(d, str) else d for d in map(_dimension, tensor.shape.dim)]
        open_ = [d for at, d in enumerate(declared) if isinstance(d, str) and (at or not _BATCH.search(d))]
        if open_:
            words = ", ".join(str(d) for d in declared)
            found.append(f"input '{value.name}' has open dimensions {open_} in shape [{words}]")
            remedy[value.name] = f"({words})"
    if found:
        shown = ", ".join(f"'{name}': {extents}" for name, extents in remedy.items())
        options = " ".join(f"--shape {name}={re.sub('[() ]', '', extents)}" for name, extents in remedy.items())
        remedy_text = (
            f"pass the whole shape: shapes={{{shown}}} with numbers in their place (on the command line {options})"
        )
        raise OpenDimensions(f"{'; '.join(found)}; {remedy_text}")


def _extent(name: str, given: int | str, dims: Mapping[str, int]) -> int:
    """A number, or the dimension of this name. Raises ModelError for one without bounds."""
    if isinstance(given, str) and given not in dims:
        example = f"shapes={{'{given}': (1, 512), …}}"
        raise ModelError(f"shapes: input '{name}': dimension '{given}' has no bounds; pass them: {example}")
    if isinstance(given, str):
        return dims[given]
    return extent_of(given)


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> int | str:
    """The extent, or the name of an open dimension; some exporters write -1 for one."""
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    return dimension.dim_param or "?"


# --- outputs ----------------------------------------------------------------------------------------------------------


def _check_declared(context: OnnxContext, names: Mapping[str, str], graph: onnx.GraphProto) -> None:
    """Check of the values' declared types against the computed ones: dtypes must agree, shapes are logged."""
    for kind, values in (("output", graph.output), ("value", graph.value_info)):
        for value in values:
            if value.name not in names or not value.type.HasField("tensor_type"):
                continue
            where, element = f"{kind} '{value.name}'", value.type.tensor_type.elem_type
            found = context.builder.types[names[value.name]]
            if not check_declared(where, value, found, dtype_name(element, where) if element else None):
                _log.warning("%s: its shape is declared otherwise; computed: %s", where, list(found.shape))


def named(builder: GraphBuilder, found: str, name: str) -> str:
    """``found`` under the name that the model gives its output."""
    return found if found == name else builder.add("identity", found, name=builder.fresh(name))
