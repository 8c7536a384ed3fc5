"""Microarchitecture levels: the baseline CPUs that code is compiled for when a package is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_AVX2 = {"avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse4.2", "xsave"}
_AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

# Baseline CPUs that code is compiled for ahead, the best first, by architecture: LLVM's name of one, and the features
# that a CPU needs to run its code. Older CPUs compile their own.
BASELINES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "x86_64": {"x86-64-v4": frozenset(_AVX2 | _AVX512), "x86-64-v3": frozenset(_AVX2)},
    "aarch64": {"generic": frozenset()},
}


def archive_path(level: str) -> Path:
    """The file that holds what was compiled ahead for a baseline CPU; it need not exist."""
    return Path(__file__).with_name(f"kernels-{level}.bnlib")
