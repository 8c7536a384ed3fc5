"""Probe of the host: triple, CPU and instruction sets as LLVM detects them, caches and cores as the kernel tells."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm


def host_triple() -> str:
    """LLVM's triple of this process."""
    return str(llvm.get_process_triple())


def host_cpu() -> str:
    """LLVM's name of this CPU."""
    return str(llvm.get_host_cpu_name())


@cache
def host_features() -> Mapping[str, bool]:
    """LLVM's names of all instruction sets of this machine's kind, and whether this machine has them."""
    return dict(llvm.get_host_cpu_features())


def host_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_caches() -> dict[int, int]:
    """Cache level -> bytes seen by one core, where the kernel says."""
    sizes: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            number, unit = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip()).groups()  # type: ignore[union-attr]
            sizes[int((index / "level").read_text())] = int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]
        except (OSError, AttributeError, ValueError):
            continue
    return sizes
