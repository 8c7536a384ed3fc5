"""The binary form of instructions and kernels: what is encoded is what is decoded, for any configuration."""

from __future__ import annotations

import random

import pytest

from burnish.errors import ScheduleError, TargetError
from burnish.machines.vdla.code import VdlaKernel, from_bytes, placed, to_bytes
from burnish.machines.vdla.config import ADD, MIN, AluOp, Config
from burnish.machines.vdla.isa import (
    KINDS,
    Instruction,
    decode,
    encode,
    formats,
    micro_operation,
    unit_of,
    uop_bits,
)

CONFIGS = (Config(), Config(name="small", block=8, inp_bytes=4 << 10, wgt_bytes=8 << 10, acc_bytes=16 << 10))


def drawn(config: Config, kind: str, source: random.Random) -> Instruction:
    values = {}
    for field in formats(config)[kind]:
        if field.name != "opcode":
            low, high = field.range
            values[field.name] = source.choice((low, high, source.randint(low, high)))
    return Instruction(kind, values)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_what_is_encoded_is_decoded(config: Config) -> None:
    source = random.Random(0)
    for kind in KINDS:
        for _ in range(50):
            made = drawn(config, kind, source)
            data = encode(config, made)
            assert len(data) == 16 and decode(config, data) == made


def test_values_that_do_not_fit_are_refused_by_name() -> None:
    config = Config()
    with pytest.raises(ScheduleError, match="'gemm': field 'outer' is 4096, allowed: 0 to 4095"):
        encode(config, Instruction("gemm", {"outer": 4096}))
    with pytest.raises(ScheduleError, match="'alu' has no field outre"):
        encode(config, Instruction("alu", {"outre": 1}))
    with pytest.raises(TargetError, match="opcode of 0 to 4"):
        decode(config, bytes([7] + [0] * 15))
    with pytest.raises(ScheduleError, match="micro-operation: 'wgt' is 128"):
        micro_operation(config, 0, 0, 128)


def test_configurations_that_cannot_be_are_refused() -> None:
    with pytest.raises(TargetError, match="'vdla': block is 12, allowed: a power of two"):
        Config(block=12)
    with pytest.raises(TargetError, match="codes of ALU operations must differ"):
        Config(alu=(ADD, AluOp("again", ADD.code, "+")))
    with pytest.raises(TargetError, match="needs 34 bits, allowed: 32"):
        uop_bits(Config(inp_bytes=1 << 17, wgt_bytes=1 << 16, acc_bytes=1 << 19))
    with pytest.raises(TargetError, match=r"'gemm' needs .* bits, allowed: 128"):
        formats(Config(inp_bytes=1 << 20, acc_bytes=1 << 24, uop_bytes=1 << 20))


def test_a_kernel_is_bytes_and_back() -> None:
    config, source = Config(alu=(MIN, ADD)), random.Random(1)
    made = tuple(drawn(config, kind, source) for kind in KINDS * 3)
    kernel = VdlaKernel(placed([100, 5000]), made, (1, 2, 3))
    assert from_bytes(config, to_bytes(config, kernel)) == kernel
    assert kernel.parameters == ((0, 100), (4096, 5000)) and kernel.uop_address == 12288
    with pytest.raises(TargetError, match="allowed: b'VDLA'"):
        from_bytes(config, b"\x7fELF" + bytes(40))
    with pytest.raises(TargetError, match="its header says"):
        from_bytes(config, to_bytes(config, kernel)[:-1])


def test_instructions_are_readable_and_belong_to_units() -> None:
    made = [
        Instruction("load", {"memory": 2, "rows": 1}), Instruction("load", {"memory": 0}),
        Instruction("sync", {"unit": 2}), Instruction("store", {"memory": 4}),
    ]  # fmt: skip
    assert [unit_of(each) for each in made] == ["load", "compute", "store", "store"]
    assert str(made[0]) == "load memory=2 rows=1"
