"""Code for RISC-V CPUs: the answers of definitions, in an emulator without vectors and in a simulator with them."""

from __future__ import annotations

import struct
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

import burnish as bn
from benchmarks import layers
from benchmarks.emulated import measure, smaller
from burnish.errors import MissingDependencyError, TargetError
from burnish.frontend.onnx import from_onnx
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph
from burnish.machines.target import target
from burnish.measure.accuracy import scaled_error
from burnish.runtime import host
from burnish.runtime.link import link
from burnish.runtime.module import Module
from burnish.simulators.emulated import RISCV64
from burnish.simulators.emulator import CpuEmulator
from burnish.simulators.spike import Spike
from tests.machines.test_emulator import block


def spike(isa: str = "rv64gcv") -> Spike:
    try:
        return Spike(isa)
    except MissingDependencyError as error:
        pytest.skip(str(error))


def agrees(graph: Graph, target: str, device: object, x: np.ndarray) -> bool:
    (wanted,) = evaluate(graph, {graph.inputs[0]: x}).values()
    executable = bn.compile(graph, target=target, threads=1, rewrite=False).executable
    return scaled_error([Module(executable, 1, device=device)(x)], [wanted]) <= 1e-5  # type: ignore[arg-type]


X = np.random.default_rng(1).standard_normal((7, 24)).astype(np.float32)


def test_a_block_of_a_transformer_is_right_after_save_and_load(tmp_path: Path) -> None:
    graph = block()
    bn.compile(graph, target="riscv64", threads=1).save(tmp_path / "model.bn")
    (wanted,) = evaluate(graph, {"x": X}).values()
    assert scaled_error([bn.load(tmp_path / "model.bn", device=CpuEmulator())(X)], [wanted]) <= 1e-5


@pytest.mark.parametrize("name", ["C3", "D9"])
def test_layers_are_right(name: str) -> None:
    row = measure(smaller(layers.LAYERS[name], 5), "riscv64", exact=False)
    assert row.error <= 1e-5
    assert 0 < row.share < 0.5  # scalar code: a load for each of a product's factors


def test_code_with_vectors_needs_them() -> None:
    """The emulator has none."""
    with pytest.raises(TargetError, match=r"Unhandled CPU exception|Invalid instruction"):
        agrees(block(), "riscv64-v", CpuEmulator(), X)


def test_code_with_vectors_is_right_where_there_are_some() -> None:
    assert agrees(block(), "riscv64-v", spike(), X)
    with pytest.raises(TargetError, match="trapped"):
        agrees(block(), "riscv64-v", spike("rv64gc"), X)


@pytest.mark.slow
@pytest.mark.parametrize("name", layers.LAYERS)
def test_every_layer_is_right_without_vectors(name: str) -> None:
    assert measure(smaller(layers.LAYERS[name], 7), "riscv64", exact=False).error <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", layers.LAYERS)
def test_every_layer_is_right_with_vectors(name: str) -> None:
    layer = smaller(layers.LAYERS[name], 7)
    assert agrees(from_onnx(layers.model(layer)), "riscv64-v", spike(), layers.input_array(layer))


LINKED = """
@table = internal constant [2 x ptr] [ptr @one, ptr @two]
@numbers = internal constant [4 x i64] [i64 1, i64 20, i64 300, i64 4000]
declare i64 @other(i64)
define internal i64 @one(i64 %x) { ret i64 101 }
define internal i64 @two(i64 %x) { %y = call i64 @other(i64 %x) ret i64 %y }
define i64 @choose(i64 %i) {
  %at = getelementptr ptr, ptr @table, i64 %i
  %f = load ptr, ptr %at
  %n.at = getelementptr i64, ptr @numbers, i64 2
  %n = load volatile i64, ptr %n.at
  %r = call i64 %f(i64 %n)
  ret i64 %r
}
"""


def test_linked_objects_find_each_other() -> None:
    """Addresses of constants, a table of addresses that loading completes, a call from one object to another."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    made = llvm.Target.from_triple(target("riscv64").triple).create_target_machine(reloc="pic", codemodel="small")
    texts = {"first": LINKED, "other": "define i64 @other(i64 %x) { %y = add i64 %x, 7 ret i64 %y }"}
    image = link({name: made.emit_object(llvm.parse_assembly(text)) for name, text in texts.items()})
    assert image.machine == "riscv64" and image.absolute
    import unicorn

    base = 1 << 32
    data = bytearray(image.data)
    for offset, place in image.absolute:
        struct.pack_into("<Q", data, offset, base + place)
    cpu = RISCV64.processor(unicorn)
    cpu.mem_map(base, 1 << 16)
    cpu.mem_map(base << 1, 1 << 12)
    cpu.mem_write(base, bytes(data))
    for number, wanted in ((0, 101), (1, 307)):
        for name, value in (("A0", number), ("SP", (base << 1) + 2048), ("RA", base + 0xF000)):
            cpu.reg_write(RISCV64.register(name), value)
        cpu.emu_start(base + image.symbols["choose"], base + 0xF000)
        assert cpu.reg_read(RISCV64.register("A0")) == wanted


def test_this_machines_extensions_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdcv_zicsr_zba_zbb\nmmu\t\t: sv39\n"
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(host, "Path", lambda path: tmp_path / "cpuinfo")
    host.cpu_flags.cache_clear()
    found = host.cpu_flags()
    host.cpu_flags.cache_clear()
    assert {"m", "a", "v", "zbb"} <= found
