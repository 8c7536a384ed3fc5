"""ptxas: PTX to machine code of a GPU, and its report of registers, spills and shared memory; no GPU is needed.

It comes with the PyPI package ``nvidia-cuda-nvcc`` (``pip install "burnish[cuda]"``); without it PTX is left to the
driver.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from burnish.codegen.gridcode import Resources
from burnish.errors import TargetError

_log = logging.getLogger("burnish")
SECONDS = 120.0  # of one kernel: ptxas takes milliseconds, of a kernel that it cannot cope with minutes
FEW = 128  # registers of a thread, up to which a function that spills may have MORE times as many
MORE, MOST = 2, 255


@cache
def find_ptxas() -> str | None:
    """The program: of the installed package, else of the path; None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for found in sorted(Path(folder).glob("*/bin/ptxas"), reverse=True):
            return str(found)
    return shutil.which("ptxas")


def assemble(ptx: str, cpu: str) -> tuple[bytes, dict[str, Resources]]:
    """Machine code (cubin) and the resources of each function, by name; nothing where ptxas is not installed, or does
    not come to an end.

    Raises TargetError, with what ptxas says, for code that it refuses.
    """
    program = find_ptxas()
    if program is None:
        return b"", {}
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        command = [program, "-v", f"-arch={cpu}", str(source), "-o", str(result)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            _log.warning("ptxas did not assemble a kernel for %s in %d seconds: the driver will", cpu, SECONDS)
            return b"", {}
        if done.returncode:
            raise TargetError(f"ptxas refuses a kernel for {cpu}: {done.stderr.strip()[:2000]}")
        return result.read_bytes(), resources(done.stderr)


def assemble_without_spills(ptx: str, cpu: str) -> tuple[str, bytes, dict[str, Resources]]:
    """As :func:`assemble`, and the PTX that it is of: with a limit of registers for functions that spill although they
    have few, which ptxas does to have more blocks at a time on a multiprocessor unless a limit is given.
    """
    code, found = assemble(ptx, cpu)
    few = {name: min(MORE * r.registers, MOST) for name, r in found.items() if r.spilled and r.registers <= FEW}
    if not few:
        return ptx, code, found
    allowed = with_registers(ptx, few)
    other, again = assemble(allowed, cpu)
    less = sum(r.spilled for r in again.values()) < sum(r.spilled for r in found.values())
    return (allowed, other, again) if again and less else (ptx, code, found)


def with_registers(ptx: str, most: Mapping[str, int]) -> str:
    """PTX with a limit of the registers of a thread of some kernels, by name."""
    for name, count in most.items():
        ptx = re.sub(rf"(\.entry {re.escape(name)}\([^)]*\)\n)", rf"\g<1>.maxnreg {count}\n", ptx)
    return ptx


def resources(report: str) -> dict[str, Resources]:
    """Resource usage by function, parsed from the report of ``ptxas -v``."""
    found = {}
    parts = re.split(r"Compiling entry function '([^']+)'", report)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found[name] = Resources(
            registers=_number(r"Used (\d+) registers", text),
            stack=_number(r"(\d+) bytes stack frame", text),
            spilled=_number(r"(\d+) bytes spill stores", text) + _number(r"(\d+) bytes spill loads", text),
            shared=_number(r"(\d+) bytes smem", text),
        )
    return found


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0
