"""Native kernels of opaque operators: loops of the operator's definition as object code, through the cache."""

from __future__ import annotations

import json
from math import prod

from burnish.base.cache import ObjectCache, cache_key
from burnish.codegen.native import emit_native, version_of
from burnish.codegen.objects import compile_ir
from burnish.graph.graph import Graph, Node
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.sizes import dims_of
from burnish.machines.target import Target
from burnish.ops import OPERATORS
from burnish.ops.operator import Entropy, NativeCall, TensorType
from burnish.pipeline.kernel import CompiledKernel, code_version

TEMPLATE = "native"


def build(graph: Graph, node: Node, target: Target, store: ObjectCache | None) -> CompiledKernel | None:
    """The kernel of a node whose operator has loops for its types; None where it runs in Python."""
    operator = OPERATORS[node.op]
    if operator.native is None or target.kind != "cpu":
        return None
    inputs, outputs = ([(graph.types[n].shape, graph.types[n].dtype) for n in ns] for ns in (node.inputs, node.outputs))
    attrs = operator.complete(node.attrs)
    call = operator.native(inputs, outputs, attrs)
    if call is None:
        return None
    _require_same_bytes(node.op, call, inputs if operator.traits.counts else [*inputs, *outputs])
    dims = tuple(d.name for d in sorted(dims_of(_extents(call)), key=lambda d: d.name))
    key = cache_key(
        code_version(), target.key, node.op, version_of(call), repr((inputs, outputs, sorted(attrs.items())))
    )
    symbol = f"{node.op}_{key[:12]}"
    found = store.get(key) if store else None
    if found is not None:
        head, _, code = found.partition(b"\n")
        return CompiledKernel(symbol, code, json.loads(head), {}, TEMPLATE, {}, dims)
    text, scratch = emit_native(symbol, call, dims, store)
    code = compile_ir(text, target)
    if store:
        store.put(key, json.dumps(scratch).encode() + b"\n" + code)
    return CompiledKernel(symbol, code, scratch, {}, TEMPLATE, {}, dims)


def _extents(call: NativeCall) -> list[int]:
    numbers = [n for n in call.numbers if not isinstance(n, float | Entropy)]
    return [*(n for shape, _ in (*call.views, *call.scratch) for n in shape), *numbers, call.extent]


def _require_same_bytes(op: str, call: NativeCall, types: list[TensorType]) -> None:
    """A view of other bytes than its operand's is a fault of the operator's declaration."""
    seen = call.views[: len(types)]
    bytes_of = [[prod(shape) * ITEM_BYTES[dtype] for shape, dtype in kinds] for kinds in (seen, types)]
    assert bytes_of[0] == bytes_of[1], f"{op}: views of {bytes_of[0]} bytes for operands of {bytes_of[1]}"
