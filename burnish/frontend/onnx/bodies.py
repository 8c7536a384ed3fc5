"""Rules of subgraphs: how many inputs and outputs control flow gives and takes, and which types stay the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from burnish.errors import ModelError
from burnish.frontend.onnx.domains import key_of

Rule = Callable[[onnx.NodeProto, str], None]


def check_bodies(node: onnx.NodeProto, where: str) -> None:
    """Refuses subgraphs of a node that its operator cannot run. Raises ModelError, naming ``where``."""
    rule = _RULES.get(key_of(node.domain, node.op_type))
    if rule is not None:
        rule(node, where)


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    return next((a for a in node.attribute if a.name == name), onnx.AttributeProto())


def _count(where: str, what: str, found: int, allowed: int, least: bool = False) -> None:
    if found < allowed or (found > allowed and not least):
        raise ModelError(f"{where}: {what}: found {found}; allowed: {allowed}{' at least' if least else ''}")


def _same(where: str, what: str, a: onnx.ValueInfoProto, b: onnx.ValueInfoProto) -> None:
    """Refuses two values whose declared element types differ, where both are tensors of a declared one."""
    found, wanted = a.type.tensor_type.elem_type, b.type.tensor_type.elem_type
    if found and wanted and found != wanted:
        name = onnx.TensorProto.DataType.Name
        raise ModelError(
            f"{where}: {what} '{a.name}': declared as {name(found)}; allowed: {name(wanted)}, as '{b.name}'"
        )


def _if(node: onnx.NodeProto, where: str) -> None:
    branches = [_attribute(node, key) for key in ("then_branch", "else_branch")]
    for branch in branches:
        _count(where, f"inputs of '{branch.name}'", len(branch.g.input), 0)
        _count(where, f"outputs of '{branch.name}'", len(branch.g.output), len(node.output))
    for a, b in zip(branches[1].g.output, branches[0].g.output, strict=True):
        _same(where, "output of 'else_branch'", a, b)


def _loop(node: onnx.NodeProto, where: str) -> None:
    body, carried = _attribute(node, "body").g, len(node.input) - 2
    _count(where, "inputs of 'body'", len(body.input), 2 + carried)
    _count(where, "outputs of 'body'", len(body.output), 1 + carried, least=True)
    _count(where, "outputs of 'body', a condition and those of the node,", len(body.output), 1 + len(node.output), True)
    condition = body.output[0]
    _same(where, "condition", condition, onnx.helper.make_tensor_value_info("bool", onnx.TensorProto.BOOL, None))
    for a, b in zip(body.output[1 : 1 + carried], body.input[2:], strict=True):
        _same(where, "carried value", a, b)


def _scan(node: onnx.NodeProto, where: str) -> None:
    body, count = _attribute(node, "body").g, _attribute(node, "num_scan_inputs").i
    inputs = len(node.input) - (len(node.input) != len(body.input))  # opset 8: lengths of sequences in front
    if not 1 <= count <= inputs:
        raise ModelError(f"{where}: attribute 'num_scan_inputs': found {count}; allowed: 1 to {inputs}")
    states = inputs - count
    _count(where, "inputs of 'body'", len(body.input), inputs)
    _count(where, "outputs of 'body'", len(body.output), max(states, len(node.output)), least=True)
    for key, wanted in (
        ("scan_input_axes", count), ("scan_input_directions", count), ("directions", count),
        ("scan_output_axes", len(body.output) - states), ("scan_output_directions", len(body.output) - states),
    ):  # fmt: skip
        given = list(_attribute(node, key).ints)
        if given:
            _count(where, f"integers of attribute '{key}'", len(given), wanted)
        if "directions" in key and not {*given} <= {0, 1}:
            raise ModelError(f"{where}: attribute '{key}': found {given}; allowed: 0, 1")
    for a, b in zip(body.output[:states], body.input[:states], strict=True):
        _same(where, "state", a, b)


_RULES: Mapping[str, Rule] = {"If": _if, "Loop": _loop, "Scan": _scan}
