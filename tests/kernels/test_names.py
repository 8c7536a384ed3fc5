"""An operator under another name, whose stages have other names too, gets the same template and the same code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from burnish.codegen.llvm import emit
from burnish.kernels.constants import split_constants
from burnish.kernels.task import KernelTask
from burnish.kernels.template import TemplateMatch
from burnish.kernels.templates import first_match, template_called, templates
from burnish.loops.layout import layout
from burnish.loops.tensor import placeholder
from burnish.lower.pipeline import lower
from burnish.machines.target import target
from burnish.ops import OPERATORS

MACHINE = target("x86-64-v4")
UNIT = replace(MACHINE, features=MACHINE.features | {"amx-bf16", "amx-tile"})
BLOCKED = "ABCD16b"
OUTPUT = "y"
TWICE = (2, 2)


@dataclass(frozen=True)
class Case:
    """An operator of the registry, its operands and attributes, and the layouts of some tensors.

    Of the operands ``w`` is constant, and ``p`` packed at each call.
    """

    op: str
    shapes: Mapping[str, tuple[int, ...]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)


IMAGE = {"x": (1, 32, 16, 16), "w": (32, 32, 3, 3)}
IMAGES = {"x": BLOCKED, OUTPUT: BLOCKED}
PARTS = {"w": "bfloat16"}
BY_WEIGHT = {
    "operator": "conv2d", "attributes": (("pads", (1, 1, 1, 1)),), "wrt": 1, "seeded": (0,), "reads": (0, 3),
    "types": (((2, 16, 9, 11), "float32"), ((32, 16, 3, 3), "float32")),
}  # fmt: skip
BY_TABLE = {
    "operator": "gather", "attributes": (), "wrt": 0, "seeded": (0,), "reads": (1, 3),
    "types": (((50, 64), "float32"), ((40,), "int64")),
}  # fmt: skip
CASES = {  # by the template's name
    "depthwise_conv2d": Case("conv2d", {"x": (1, 32, 9, 9), "w": (32, 1, 3, 3)}, {"groups": 32}, IMAGES),
    "grouped_conv2d": Case("conv2d", {"x": (1, 32, 9, 9), "w": (32, 4, 3, 3)}, {"groups": 8}, IMAGES),
    "few_outputs": Case("conv2d", {"x": (1, 32, 20, 20), "w": (3, 32, 3, 3)}, {}, {"x": BLOCKED}),
    "pointwise_conv2d": Case("conv2d", {"x": (1, 64, 1, 3136), "w": (64, 64, 1, 1)}),
    "row_conv2d": Case("conv2d", {"x": (1, 8, 20, 20), "w": (8, 4, 3, 3)}, {"groups": 2}),
    "direct_conv2d": Case("conv2d", IMAGE, {}, IMAGES),
    "depthwise_rows": Case("conv2d", {"x": (1, 8, 32, 32), "w": (8, 1, 3, 3)}, {"groups": 8}),
    "plain_conv2d": Case(
        "banded_conv2d", {"x": (1, 30, 20, 20), "w": (30, 18, 3, 3)}, {"outputs": 3, "depth": 3, "block": 16}
    ),
    "weight_gradient": Case(
        "adjoint", {"x": (2, 16, 9, 11), "dy": (2, 32, 9, 11)}, BY_WEIGHT, {"x": BLOCKED, "dy": BLOCKED}
    ),
    "conv2d_transpose_phases": Case(
        "conv2d_transpose", {"x": (1, 32, 8, 8), "w": (32, 32, 4, 4)}, {"strides": TWICE}, IMAGES
    ),
    "conv2d_transpose_pixel": Case("conv2d_transpose", {"x": (1, 32, 1, 1), "w": (32, 32, 4, 4)}, {}, IMAGES),
    "pool2d": Case("max_pool2d", {"x": (1, 32, 16, 16)}, {"kernel": (3, 3)}, IMAGES),
    "pool_rows": Case("avg_pool2d", {"x": (1, 4, 32, 32)}, {"kernel": TWICE, "strides": TWICE}),
    "neighbouring_channels": Case("lrn", {"x": (1, 32, 8, 8)}, {"size": 5}, IMAGES),
    "winograd_conv2d": Case("winograd_conv2d", {"x": (1, 32, 16, 16), "w": (6, 6, 32, 32)}, {}, IMAGES),
    "winograd_raw_weight": Case(
        "winograd_conv2d", {"x": (1, 32, 16, 16), "p": (32, 32, 3, 3)}, {"transforms_weight": True}, IMAGES
    ),
    "polyphase_conv2d": Case(
        "polyphase_conv2d", {"x": (1, 3, 32, 32), "w": (6, 5, 3, 2, 32)}, {"kernel_w": 5, "strides": TWICE}
    ),
    "split_conv2d": Case(
        "split_conv2d", {"x": (1, 40, 28, 28), "w": (2, 64, 64, 3, 3)},
        {"rows": 7, "pads": (1, 1, 1, 1), "outputs": 64}, {}, PARTS,
    ),
    "split_matmul": Case("split_matmul", {"x": (128, 96), "w": (2, 96, 192)}, {"columns": 192}, {}, PARTS),
    "block_product": Case(
        "block_matmul", {"x": (3, 64), "w": (8, 32), "s": (2, 32), "z": (1, 1)}, {"bits": 4, "block": 32}, {},
        {"w": "int32"},
    ),
    "inner_products": Case("matmul", {"x": (8, 256), "p": (40, 256)}, {"transpose_b": True}),
    "matmul": Case("matmul", {"x": (64, 64), "w": (64, 64)}),
    "recurrent": Case("lstm_cell", {"x": (1, 256), "h": (1, 64), "c": (1, 64), "w": (4, 64, 64)}),
    "aggregate_blocks": Case(
        "aggregate_blocks", {"x": (50, 64), "o": (71,), "b": (1, 71), "q": (210,)}, {"rows": 64}, {},
        {"o": "int64", "b": "int32", "q": "uint16"},
    ),
    "aggregate": Case(
        "aggregate", {"x": (50, 64), "o": (71,), "s": (210,)}, {}, {}, {"o": "int64", "s": "int32"}
    ),
    "transpose": Case("transpose", {"x": (64, 48)}),
    "join": Case(
        "concat", {"x": (1, 24, 8, 8), "v": (1, 40, 8, 8)}, {"axis": 1}, {**IMAGES, "v": BLOCKED}
    ),
    "pack": Case("identity", {"x": (64, 64, 3, 3)}, {}, {OUTPUT: "ABCD16b16a"}),
    "scatter": Case("adjoint", {"index": (40,), "dy": (40, 64)}, BY_TABLE, {}, {"index": "int64"}),
    "column_sums": Case("reduce_sum", {"x": (128, 64)}, {"axes": (0,)}),
    "tiled": Case("matmul", {"x": (128, 96), "w": (96, 144)}),
    "generic": Case("softmax", {"x": (8, 100)}, {"axis": 1}),
}  # fmt: skip


def task_of(case: Case, label: str, stage: str) -> KernelTask:
    """The task of a copy of the case's operator called ``label``, whose output, and what its inner stages begin with,
    is ``stage``.
    """
    tensors = [placeholder(shape, case.dtypes.get(name, "float32"), name) for name, shape in case.shapes.items()]
    renamed = replace(OPERATORS[case.op], name=label)
    outputs = renamed.define(stage, tensors, case.attrs)
    inputs, outputs, _ = split_constants(tensors, list(outputs), {"w"} & {*case.shapes})
    own = {stage if name == OUTPUT else name: layout(tag) for name, tag in case.layouts.items()}
    constants = frozenset(t.name for t in inputs if t.name not in case.shapes or t.name == "w")
    return KernelTask("kernel", tuple(inputs), tuple(outputs), label, own, constants, frozenset({"p"} & {*case.shapes}))


def matched(name: str, label: str, stage: str) -> TemplateMatch:
    """The template that a target takes for a case; one that only searches take, if the case is about such a one."""
    machine = UNIT if name.startswith("split") else MACHINE
    task, wanted = task_of(CASES[name], label, stage), template_called(name, machine)
    return wanted.on(task, machine) if wanted.searched else first_match(task, machine)


def test_every_template_has_a_case() -> None:
    assert [*CASES] == [template.name for template in templates(MACHINE)]


@pytest.mark.parametrize("name", CASES)
def test_another_name_is_the_same_template_and_code(name: str) -> None:
    """The same loop program and the same LLVM IR, so the same speed."""
    own, other = matched(name, CASES[name].op, OUTPUT), matched(name, "unheard_of", "q7")
    assert own.name == other.name == name
    assert own.space == other.space
    programs = [match.apply(match.space.default).program for match in (own, other)]
    texts = [[str(p), emit(lower(p), own.target).text] for p in programs]
    assert texts[0] == [text.replace("q7", OUTPUT) for text in texts[1]]
