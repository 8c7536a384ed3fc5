"""The simulator against what instructions mean, its times, and every fault by its name."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.errors import VerificationError
from burnish.machines.vdla.code import VdlaKernel, placed, to_bytes
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.device import VdlaDevice
from burnish.machines.vdla.isa import Instruction, micro_operation

CONFIG = Config()
B = CONFIG.block


def run(instructions: list[Instruction], uops: list[int], *arrays: np.ndarray, config: Config = CONFIG) -> VdlaDevice:
    device = VdlaDevice(config)
    memory = [a.reshape(-1).view(np.uint8) for a in arrays]
    kernel = VdlaKernel(placed([m.nbytes for m in memory]), tuple(instructions), tuple(uops))
    device.run(to_bytes(config, kernel), memory)
    return device


def load(memory: str, sram: int, dram: int, count: int = 1, **more: int) -> Instruction:
    values = {"memory": CONFIG.memories[memory].code, "sram": sram, "dram": dram, "rows": 1, "columns": count}
    return Instruction("load", {**values, "stride": count, **more})


def store(sram: int, dram: int, memory: str = "acc", **more: int) -> Instruction:
    values = {"memory": CONFIG.memories[memory].code, "sram": sram, "dram": dram, "rows": 1, "columns": 1, "stride": 1}
    return Instruction("store", {**values, **more})


def core(kind: str, **values: int) -> Instruction:
    return Instruction(kind, {"uop_end": 1, "outer": 1, "inner": 1, **values})


def multiply() -> tuple[list[Instruction], list[int], np.ndarray, np.ndarray, np.ndarray]:
    """A matrix times a vector: inputs at DRAM 0, weights at 4096, the result at 8192, micro-operations at 12288."""
    random = np.random.default_rng(0)
    x, w = random.integers(-128, 128, B, np.int8), random.integers(-128, 128, (B, B), np.int8)
    instructions = [
        load("uop", 0, 12288), load("inp", 0, 0), load("wgt", 0, 4096, push_next=1), core("gemm", reset=1),
        core("gemm", pop_prev=1, push_next=1), store(0, 8192, pop_prev=1),
    ]  # fmt: skip
    return instructions, [micro_operation(CONFIG, 0, 0, 0)], x, w, np.zeros(B, np.int32)


def test_a_matrix_times_a_vector() -> None:
    instructions, uops, x, w, y = multiply()
    device = run(instructions, uops, x, w, y)
    np.testing.assert_array_equal(y, w.astype(np.int32) @ x.astype(np.int32))
    (found,) = device.runs
    assert (found.products, found.vectors) == (1, 1) and found.bytes == 32 + 32 + 256 + 64
    # two transfers of the load unit, the product, the store: what the compute unit did before is hidden
    assert found.cycles == (64 + 4) + (64 + 32) + (8 + 1) + (64 + 8)


@pytest.mark.parametrize(
    ("op", "value", "meaning"),
    [
        (0, -5, lambda a: np.minimum(a, -5)), (1, 7, lambda a: np.maximum(a, 7)), (2, -300, lambda a: a - 300),
        (3, 4, lambda a: a >> 4), (3, 40, lambda a: a >> 31),
    ],
)  # fmt: skip
def test_operations_of_the_alu(op: int, value: int, meaning: object) -> None:
    a = np.random.default_rng(1).integers(-(2**31), 2**31, B).astype(np.int32)
    y = np.zeros(B, np.int32)
    alu = core("alu", op=op, immediate=1, value=value, push_next=1)
    run([load("uop", 0, 8192), load("acc", 0, 0), alu, store(0, 4096, pop_prev=1)], [0], a, y)
    np.testing.assert_array_equal(y, meaning(a))  # type: ignore[operator]


def test_bytes_are_widened_and_the_low_ones_stored() -> None:
    a, b = np.arange(-8, 8, dtype=np.int8), np.full(B, 125, np.int8)
    y = np.zeros(B, np.int8)
    add = core("alu", op=2, push_next=1)
    uop = micro_operation(CONFIG, 0, 1, 0)
    loads = [load("uop", 0, 12288), load("acc8", 0, 0), load("acc8", 1, 4096)]
    run([*loads, add, store(0, 8192, "acc8", pop_prev=1)], [uop], a, b, y)
    np.testing.assert_array_equal(y, a + b)


def test_zeros_around_a_block_of_rows() -> None:
    """A block of 2 x 3 entries out of rows of 5, in a frame of zeros, read back entry by entry."""
    x = np.random.default_rng(2).integers(-100, 100, (4, 5, B), np.int8)
    y = np.zeros((4 * 6, B), np.int8)
    block = load("acc8", 0, 16 * 6, rows=2, columns=3, stride=5, top=1, bottom=1, left=2, right=1, push_next=1)
    run([block, store(0, 4096, "acc8", columns=24, stride=24, pop_prev=1)], [], x, y)
    expected = np.zeros((4, 6, B), np.int8)
    expected[1:3, 2:5] = x[1:3, 1:4]
    np.testing.assert_array_equal(y.reshape(4, 6, B), expected)


def without(instructions: list[Instruction], at: int, flag: str) -> list[Instruction]:
    kept = {k: v for k, v in instructions[at].values.items() if k != flag}
    return [*instructions[:at], Instruction(instructions[at].kind, kept), *instructions[at + 1 :]]


@pytest.mark.parametrize(
    ("at", "flag", "fault"),
    [
        (2, "push_next", "deadlock: instruction 4 of the compute unit"),
        (4, "pop_prev", r"race: instruction 4 .* reads entry 0 of memory 'inp'|read before write: instruction 4"),
        (5, "pop_prev", r"race: instruction 5 .* reads entry 0 of memory 'acc'|read before write: instruction 5"),
    ],
)
def test_a_missing_token_is_found(at: int, flag: str, fault: str) -> None:
    instructions, uops, *arrays = multiply()
    with pytest.raises(VerificationError, match=fault):
        run(without(instructions, at, flag), uops, *arrays)


def test_overwriting_what_is_still_read_is_found_whatever_the_times() -> None:
    """The inputs are loaded again without waiting for the product; by the clock that happens long before or after."""
    instructions, uops, *arrays = multiply()
    for latency in (1, 1000):
        config = Config(dram_latency=latency)
        late = [*instructions, load("inp", 0, 0)]
        with pytest.raises(VerificationError, match=r"race: instruction .* of memory 'inp'"):
            run(late, uops, *arrays, config=config)


def test_reads_of_nothing_and_accesses_out_of_range_are_found() -> None:
    instructions, uops, *arrays = multiply()
    with pytest.raises(VerificationError, match=r"read before write: instruction 3 .* reads entry 0 of memory 'acc'"):
        run([*instructions[:3], core("gemm", pop_prev=1)], uops, *arrays)
    with pytest.raises(VerificationError, match=r"out of range: .* entry 2048 of memory 'acc', allowed: 0 to 2047"):
        run([load("uop", 0, 12288), core("gemm", reset=1, inner=1025, dst_inner=2)], uops, *arrays)
    with pytest.raises(VerificationError, match=r"out of range: .* DRAM at byte"):
        run([load("inp", 0, 1 << 20)], uops, *arrays)
    with pytest.raises(VerificationError, match="ALU operation 9 is unknown; known: 0"):
        run([core("alu", op=9)], uops, *arrays)
    with pytest.raises(VerificationError, match="parameters have"):
        device, kernel = VdlaDevice(), VdlaKernel(placed([16]), (), ())
        device.run(to_bytes(CONFIG, kernel), [np.zeros(17, np.uint8)])


def test_a_queue_holds_so_many_tokens() -> None:
    config = Config(queue_depth=2)
    gives = [Instruction("sync", {"unit": 0, "push_next": 1})] * 3
    with pytest.raises(VerificationError, match="deadlock: instruction 2 of the load unit"):
        run(gives, [], np.zeros(1, np.int8), config=config)
    run([*gives, Instruction("sync", {"unit": 1, "pop_prev": 1})], [], np.zeros(1, np.int8), config=config)


def test_transfers_of_two_units_share_the_dram() -> None:
    x, y = np.zeros(512 * B, np.int8), np.zeros(512 * B, np.int32)
    loads = load("inp", 0, 0, 512)
    fill = load("acc", 0, 8192, 512)
    alone = run([loads], [], x, y).runs[0].cycles
    both = run([loads, fill], [], x, y).runs[0].cycles
    assert alone == 64 + 1024 and both == 64 + 1024 + 4096
