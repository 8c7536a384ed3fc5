"""Host fingerprint: which instruction sets this machine can execute, and whether they suffice for a compiled model."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from burnish.errors import ArtifactError
from burnish.permission import allow_matrix_tiles

# LLVM's name of an instruction set -> the Linux kernel's name in /proc/cpuinfo.
_FLAGS: Mapping[str, Mapping[str, str]] = {
    "x86_64": {
        "adx": "adx", "aes": "aes", "amx-bf16": "amx_bf16", "amx-fp16": "amx_fp16", "amx-int8": "amx_int8",
        "amx-tile": "amx_tile", "avx": "avx", "avx2": "avx2", "avx512bf16": "avx512_bf16",
        "avx512bitalg": "avx512_bitalg", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
        "avx512f": "avx512f", "avx512fp16": "avx512_fp16", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi",
        "avx512vbmi2": "avx512_vbmi2", "avx512vl": "avx512vl", "avx512vnni": "avx512_vnni",
        "avx512vp2intersect": "avx512_vp2intersect", "avx512vpopcntdq": "avx512_vpopcntdq", "avxifma": "avx_ifma",
        "avxvnni": "avx_vnni", "avxvnniint8": "avx_vnni_int8", "bmi": "bmi1", "bmi2": "bmi2", "crc32": "sse4_2",
        "f16c": "f16c", "fma": "fma", "gfni": "gfni", "lzcnt": "abm", "movbe": "movbe", "pclmul": "pclmulqdq",
        "popcnt": "popcnt", "sha": "sha_ni", "sse": "sse", "sse2": "sse2", "sse3": "pni", "sse4.1": "sse4_1",
        "sse4.2": "sse4_2", "ssse3": "ssse3", "vaes": "vaes", "vpclmulqdq": "vpclmulqdq",
    },
    "aarch64": {
        "bf16": "bf16", "crc": "crc32", "dotprod": "asimddp", "fp-armv8": "fp", "fp16fml": "asimdfhm",
        "fullfp16": "asimdhp", "i8mm": "i8mm", "lse": "atomics", "neon": "asimd", "rdm": "asimdrdm", "sme": "sme",
        "sve": "sve", "sve2": "sve2",
    },
}  # fmt: skip
_SAME_MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}


def fingerprint(triple: str, cpu: str, features: Iterable[str]) -> str:
    """The text ``triple/cpu/feature,feature``: what machine code was made for.

    Of LLVM's ``features`` it keeps those that arithmetic code can depend on and that can be checked without LLVM.
    """
    known = _FLAGS.get(machine_of(triple), {})
    return f"{triple}/{cpu}/{','.join(sorted(f for f in features if f in known))}"


def check_host(target: str) -> None:
    """Raises ArtifactError unless code for ``target``, a ``fingerprint``, runs here; names what this machine lacks."""
    triple, _, rest = target.partition("/")
    cpu, _, features = rest.partition("/")
    machine = machine_of(triple)
    if machine != host_machine() or ("linux" in triple) != sys.platform.startswith("linux"):
        raise ArtifactError(
            f"the model was compiled for {triple}, but this machine is {host_machine()} under {sys.platform}; "
            "compile it for this machine"
        )
    flags = cpu_flags()
    known = _FLAGS.get(machine, {})
    # An empty set of flags means that the system does not tell.
    missing = [f for f in features.split(",") if f and known.get(f, f) not in flags] if flags else []
    if "amx-tile" in features.split(",") and not missing and not allow_matrix_tiles():
        missing = ["permission from the kernel to use amx-tile"]
    if missing:
        raise ArtifactError(
            f"the model was compiled for {cpu}, but this CPU lacks {', '.join(missing)}; compile it for this machine"
        )


def host_machine() -> str:
    """``x86_64``, ``aarch64``, or what the system calls another machine."""
    name = platform.machine().lower()
    return _SAME_MACHINE.get(name, name)


@cache
def cpu_flags() -> frozenset[str]:
    """The kernel's names of the instruction sets of this CPU; empty where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def machine_of(triple: str) -> str:
    """``x86_64`` or ``aarch64`` of a triple, whatever it calls them; the triple's own name of another machine."""
    name = triple.partition("-")[0]
    return _SAME_MACHINE.get(name, name)
