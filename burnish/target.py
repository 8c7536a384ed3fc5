"""Machines as data: instruction set, vector width, caches, cores; what schedules, code generation and artifacts ask."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from burnish.errors import TargetError
from burnish.permission import allow_matrix_tiles


@dataclass(frozen=True)
class Target:
    """One machine. Sizes in bytes; ``features`` are LLVM's names of the instruction sets code may use."""

    name: str
    triple: str
    cpu: str
    features: frozenset[str]
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int

    @property
    def lanes(self) -> int:
        """float32 elements of one vector register."""
        return self.vector_bytes // 4

    @property
    def multiply_bytes(self) -> int:
        """Bytes of the vectors two of which are multiplied and added in a cycle: Zen 4 takes 64 in two halves."""
        return min(self.vector_bytes, 32) if self.cpu == "znver4" else self.vector_bytes

    @property
    def flops(self) -> float:
        """Estimated float32 operations a second of all cores: two vectors multiplied and added a cycle at 3.3 GHz."""
        return self.cores * self.multiply_bytes * 3.3e9

    @property
    def matrix_flops(self) -> float:
        """Estimated bfloat16 operations a second of the matrix units; 0 without."""
        return self.cores * 3.0e12 if self.has("amx-bf16") else 0.0

    @property
    def cache_bandwidth(self) -> float:
        """Estimated bytes a second that all cores move through the caches behind the first."""
        return 19e9 * self.cores

    @property
    def memory_bandwidth(self) -> float:
        """Estimated bytes a second read from memory by all cores."""
        return 15e9 * self.cores

    @property
    def feature_string(self) -> str:
        """The features as LLVM's ``+a,+b``."""
        return ",".join(f"+{f}" for f in sorted(self.features))

    def has(self, feature: str) -> bool:
        return feature in self.features


# name -> (triple, cpu, features, vector bytes, vector registers, L1, L2, L3, cores)
_KNOWN: Mapping[str, tuple[str, str, str, int, int, int, int, int, int]] = {
    "x86-64-v4": ("x86_64-unknown-linux-gnu", "x86-64-v4", "avx512f avx512bw avx512dq avx512vl avx2 fma", 64, 32,
                  32 << 10, 1 << 20, 32 << 20, 2),
    "x86-64-v3": ("x86_64-unknown-linux-gnu", "x86-64-v3", "avx2 fma f16c", 32, 16, 32 << 10, 512 << 10, 16 << 20, 2),
    "aarch64-cortex-a53": ("aarch64-unknown-linux-gnu", "cortex-a53", "neon", 16, 32, 32 << 10, 512 << 10, 0, 4),
    "aarch64-neoverse-n1": ("aarch64-unknown-linux-gnu", "neoverse-n1", "neon dotprod fullfp16", 16, 32, 64 << 10,
                            1 << 20, 32 << 20, 4),
    "riscv64": ("riscv64-unknown-linux-gnu", "generic-rv64", "m a f d c", 16, 32, 32 << 10, 512 << 10, 0, 4),
}  # fmt: skip


def target(name: str = "cpu") -> Target:
    """The machine called ``name``: ``cpu`` is this one, ``cpu,-amx`` this one without its matrix tiles.

    Behind the name may follow features not to use, each as ``,-feature``; a prefix stands for all features that begin
    with it. Raises TargetError naming the known machines or features.
    """
    if not isinstance(name, str):
        raise TargetError(f"target: found {name!r}; allowed: a name: cpu, {', '.join(_KNOWN)}")
    base, *changes = name.split(",")
    if base != "cpu" and base not in _KNOWN:
        raise TargetError(f"target {base!r} is unknown; known: cpu, {', '.join(_KNOWN)}")
    machine = host() if base == "cpu" else _known(base)
    return replace(_without(machine, changes), name=name) if changes else machine


def _known(name: str) -> Target:
    triple, cpu, features, width, registers, l1, l2, l3, cores = _KNOWN[name]
    return Target(name, triple, cpu, frozenset(features.split()), width, registers, l1, l2, l3, cores)


def _without(machine: Target, changes: Sequence[str]) -> Target:
    """The machine with features switched off, and vectors of the width that the others allow."""
    kept = machine.features
    # A script may leave out on any machine what only other kinds of machine have.
    known = {"amx-tile", *(f for row in _KNOWN.values() for f in row[2].split()), *machine.features, *host_features()}
    for change in changes:
        if not re.fullmatch(r"-[\w.-]+", change):
            raise TargetError(f"target: {change!r} is not a feature to leave out; allowed: -FEATURE, such as -amx")
        if not any(f.startswith(change[1:]) for f in known):
            has = ", ".join(sorted(machine.features))
            raise TargetError(f"target: no feature begins with {change[1:]!r}; {machine.name} has {has}")
        kept = frozenset(f for f in kept if not f.startswith(change[1:]))
    width, registers = _vectors(machine.triple, kept)
    return replace(machine, features=kept, vector_bytes=width, vector_registers=registers)


def _vectors(triple: str, features: frozenset[str]) -> tuple[int, int]:
    """(bytes, number) of the vector registers."""
    if not triple.startswith(("x86_64", "i686")):
        return 16, 32
    return (64, 32) if "avx512f" in features else (32 if "avx2" in features else 16, 16)


@cache
def host_features() -> Mapping[str, bool]:
    """LLVM's names of all instruction sets of this machine's kind, and whether this machine has them."""
    return dict(llvm.get_host_cpu_features())


@cache
def host() -> Target:
    """This machine, from LLVM's feature detection and the kernel's cache description."""
    features = frozenset(f for f, on in host_features().items() if on)
    if not allow_matrix_tiles():
        features = frozenset(f for f in features if not f.startswith("amx-"))
    triple = llvm.get_process_triple()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    width, registers = _vectors(triple, features)
    caches = _host_caches()
    return Target(
        "cpu", triple, llvm.get_host_cpu_name(), features, width, registers, caches.get(1, 32 << 10),
        caches.get(2, 1 << 20), caches.get(3, 0), cores,
    )  # fmt: skip


def _host_caches() -> dict[int, int]:
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
