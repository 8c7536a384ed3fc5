"""Control flow in one executable: bodies compiled with the model, and the steps that hold theirs (branch, while)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import cast

from burnish.driver.stages import Compilation, HostStage, NestedStage, nbytes_of
from burnish.errors import UnsupportedOperator
from burnish.graph.flow import moving
from burnish.graph.fuse import Group
from burnish.loops.sizes import dims_of, is_size
from burnish.memory.lifetimes import Interval
from burnish.memory.share import plan
from burnish.runtime.devices import device_maker
from burnish.runtime.executable import Branch, CopyStep, Slot, TensorSpec, While
from burnish.runtime.steps import Native

LiveValues = Callable[[Compilation], tuple[list[Interval], list[tuple[str, str]], object]]
BodySteps = Callable[[Compilation, Mapping[str, Slot]], list[Native]]


class PythonStep(UnsupportedOperator):
    """Control flow that native code cannot run, since a body of it has a step in Python, or a device runs it."""


def nested_stage(group: Group, bodies: Sequence[Compilation]) -> NestedStage:
    """The stage of a node with bodies. Raises PythonStep."""
    node = group.nodes[0]
    for body in bodies:
        hosts = [s for s in body.steps if isinstance(s, HostStage) and s.kernel is None]
        if hosts or body.structures:
            names = ", ".join(dict.fromkeys(s.node.op for s in (*hosts, *body.structures)))
            raise PythonStep(f"node '{node.name}' ({node.op}): its body has steps in Python: {names}; allowed: kernels")
        if device_maker(body.target.machine) is not None or body.target.machine.offloads:
            raise PythonStep(f"node '{node.name}' ({node.op}): found target '{body.target.name}'; allowed: CPUs")
    return NestedStage(group, tuple(bodies))


def buffers_of(stage: NestedStage, live: LiveValues) -> dict[str, int]:
    """Buffers of a stage besides its operands and results, bytes by name: one block for the values of its
    bodies, of which one runs at a time; of sizes that are open each value for itself. Of a loop, the next values of its
    states as well.
    """
    found: dict[str, int] = {}
    blocks = []
    for body in stage.bodies:
        inside, pairs, _ = live(body)
        if any(is_size(i.nbytes) for i in inside):
            found |= {i.name: i.nbytes for i in inside}
        else:
            blocks.append(plan(inside, pairs).arena_bytes)
    if any(blocks):
        found[_own(stage, "values")] = max(blocks)
    if _is_loop(stage):
        (body,) = stage.bodies
        found |= {_own(stage, "round"): 8, _own(stage, "condition"): 1}
        found |= {name: _nbytes(body, name) for name in body.graph.outputs[1:]}
    return found


def make_nested(
    stage: NestedStage,
    live: LiveValues,
    buffers: Mapping[str, Slot],
    place_of: Callable[[str], Slot],
    steps_of: BodySteps,
) -> Branch | While:
    """The step of a stage. ``buffers``: those of :func:`buffers_of`, and all others; ``place_of``: where the operands
    and results of its node are; ``steps_of``: the steps of a body whose inputs, outputs and buffers are at places.
    """
    node, label = stage.node, stage.node.name or stage.node.op
    inner = []
    for body in stage.bodies:
        inside, pairs, _ = live(body)
        slots = dict(buffers)
        if not any(is_size(i.nbytes) for i in inside) and inside:
            block = buffers.get(_own(stage, "values"), Slot("arena"))
            offsets = plan(inside, pairs).offsets
            slots |= {name: replace(block, offset=block.offset + at) for name, at in offsets.items()}
        first = moving(node)
        given = dict(zip(body.graph.inputs[:first], node.inputs[:first], strict=True))
        names = {f"{i}": value for i, value in enumerate(node.inputs)}
        given |= {n: names[n.rpartition("/")[2]] for n in body.graph.inputs[first:]}
        slots |= {name: place_of(value) for name, value in given.items()}
        inner.append((body, slots))
    if not _is_loop(stage):
        lists = []
        for body, slots in inner:
            slots |= {own: place_of(value) for own, value in zip(body.graph.outputs, node.outputs, strict=True)}
            lists.append(tuple(steps_of(body, slots)))
        return Branch(replace(place_of(node.inputs[0]), nbytes=1), lists[0], lists[1], label)
    ((body, slots),) = inner
    states = cast(int, node.attrs["states"])
    number = replace(buffers[_own(stage, "round")], nbytes=8)
    going = replace(buffers[_own(stage, "condition")], nbytes=1)
    slots[body.graph.inputs[0]] = number
    slots[body.graph.outputs[0]] = going
    before: list[Native] = [CopyStep(replace(place_of(node.inputs[1]), nbytes=1), going, label)]
    after: list[Native] = []
    for i in range(states):
        slots[body.graph.inputs[2 + i]] = place_of(node.outputs[i])
        old, new, there = body.graph.inputs[2 + i], body.graph.outputs[1 + i], place_of(node.outputs[i])
        before += _copies(body, old, place_of(node.inputs[2 + i]), there, label)
        after += _copies(body, new, buffers[new], there, label)
    for i, name in enumerate(body.graph.outputs[1 + states :], states):
        spec = TensorSpec(name, body.graph.types[name].shape, body.graph.types[name].dtype)
        amount, rounds = nbytes_of(spec), cast(int, node.attrs["rounds"])
        if spec.dims or amount:
            source = replace(buffers[name], nbytes=spec.nbytes)
            whole = 0 if dims_of((amount, rounds)) else amount * rounds
            after.append(CopyStep(source, replace(place_of(node.outputs[i]), nbytes=whole), label, amount, number))
    run = steps_of(body, slots)
    limit = replace(place_of(node.inputs[0]), nbytes=8)
    return While(limit, going, number, tuple(before), (*run, *after), label)


def row_major_operands(stage: NestedStage, constants: Collection[str]) -> list[str]:
    """The operands of a stage that are constants and that its step reads itself, row-major where they are."""
    return [name for name in stage.node.inputs[: moving(stage.node)] if name in constants]


def _copies(body: Compilation, name: str, source: Slot, target: Slot, label: str) -> list[Native]:
    """The copy of a state of the type that a body's value has; none of no bytes."""
    amount = _nbytes(body, name)
    if dims_of((amount,)):
        return [CopyStep(replace(source, nbytes=0), replace(target, nbytes=0), label, amount)]
    return [CopyStep(replace(source, nbytes=amount), replace(target, nbytes=amount), label)] if amount else []


def _nbytes(body: Compilation, name: str) -> int:
    t = body.graph.types[name]
    return nbytes_of(TensorSpec(name, t.shape, t.dtype))


def _is_loop(stage: NestedStage) -> bool:
    return len(stage.bodies) == 1


def _own(stage: NestedStage, what: str) -> str:
    return f"{stage.node.outputs[0]}/{what}"
