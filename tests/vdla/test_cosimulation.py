"""The same binary kernels on a register-transfer model under Verilator: equal results, and cycles that are close.

Skipped where there is no `verilator` (5 or newer) on the path, with the C++ compiler that it needs.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from burnish.machines.vdla.code import VdlaKernel, from_bytes
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.device import VdlaDevice
from burnish.machines.vdla.isa import FLAGS, KINDS, encode, formats, uop_bits
from tests.vdla.conftest import Check
from tests.vdla.layers import convolution, product

CONFIG = Config()
MODEL = Path(__file__).parent / "hardware" / "vdla.v"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("verilator") or not shutil.which("g++"), reason="needs verilator and g++"),
]


def header(kernel: VdlaKernel, bytes_: int) -> str:
    """Macros for the fields of instructions, from their table, and for the sizes of everything."""
    m, c = CONFIG.memories, CONFIG
    lines = []
    for kind, fields in formats(c).items():
        at = 0
        for f in fields:
            part = f"c[{at + f.bits - 1}:{at}]"
            value = (
                f"$signed({{{{{32 - f.bits}{{c[{at + f.bits - 1}]}}}}, {part}}})" if f.signed else f"({part} + 32'd0)"
            )
            name = f.name.upper() if f.name in ("opcode", *FLAGS) else f"{kind.upper()}_{f.name}"
            if kind == "load" or name.startswith(kind.upper()):
                lines.append(f"`define {name}(c) {value}")
            at += f.bits
    lines += [f"`define {kind.upper()} {number}" for number, kind in enumerate(KINDS)]
    sizes = {
        "CODE": len(kernel.instructions), "DRAM": bytes_, "BLOCK": c.block, "LATENCY": c.dram_latency,
        "RATE": c.dram_bytes, "BURST": c.dram_burst, "PIPELINE": c.pipeline, "LIMIT": 10_000_000,
        **{name.upper(): m[name].entries for name in ("uop", "inp", "wgt", "acc")},
        **dict(zip(("DST_BITS", "SRC_BITS", "WGT_BITS"), uop_bits(c), strict=True)),
    }  # fmt: skip
    return "\n".join([*lines, *(f"`define {name} {value}" for name, value in sizes.items())]) + "\n"


def cosimulate(kernel: VdlaKernel, dram: np.ndarray, folder: Path) -> tuple[np.ndarray, int]:
    """The DRAM behind a run of the hardware model, and its cycles."""
    (folder / "fields.vh").write_text(header(kernel, len(dram)))
    words = [int.from_bytes(encode(CONFIG, each), "little") for each in kernel.instructions]
    (folder / "code.hex").write_text("\n".join(f"{word:032x}" for word in words))
    (folder / "dram.hex").write_text("\n".join(f"{byte:02x}" for byte in dram.tolist()))
    build = ["verilator", "--binary", "-O3", "-Wno-fatal", "-Wno-lint", f"-I{folder}", str(MODEL), "--top", "vdla"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    done = subprocess.run([folder / "obj_dir" / "Vvdla"], cwd=folder, check=True, capture_output=True, text=True)
    said = next(line for line in done.stdout.splitlines() if line.startswith(("cycles", "deadlock")))
    assert said.startswith("cycles"), said
    text = (folder / "result.hex").read_text().split()
    return np.array([int(word, 16) for word in text if not word.startswith(("@", "/"))], np.uint8), int(said.split()[1])


@pytest.mark.parametrize(
    ("graph", "threads"),
    [
        (convolution((1, 32, 8, 8), (32, 32, 3, 3), beside=True, pads=(1, 1, 1, 1)), 1),
        (convolution((1, 32, 8, 8), (32, 32, 3, 3), beside=True, pads=(1, 1, 1, 1)), 2),
        (convolution((1, 32, 8, 8), (64, 32, 3, 3), pads=(1, 1, 1, 1), strides=(2, 2)), 2),
        (product(24, 64, 64), 2),
    ],
)
def test_hardware_computes_the_same(
    check: Check, graph: object, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[VdlaKernel, np.ndarray]] = []
    plain = VdlaDevice.run

    def recorded(self: VdlaDevice, code: bytes, memory: list[np.ndarray]) -> None:
        kernel = from_bytes(CONFIG, code)
        before = self._place(kernel, memory).copy()
        plain(self, code, memory)
        kept.extend([(kernel, before), (kernel, self._dram[: len(before)].copy())])

    monkeypatch.setattr(VdlaDevice, "run", recorded)
    rows = 12 if graph is not None and "matmul" in str(graph) else 4
    columns = 1 if rows == 12 else 4
    choice = {"channels": 1, "rows": rows, "columns": columns, "depth": 1, "threads": threads, "axis": "channels"}
    (run,) = check(graph, choice=choice)
    (kernel, before), (_, after) = kept
    found, cycles = cosimulate(kernel, before, tmp_path)
    np.testing.assert_array_equal(found, after)
    assert run.cycles == pytest.approx(cycles, rel=0.1)
