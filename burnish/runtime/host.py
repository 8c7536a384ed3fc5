"""Host fingerprint: which instruction sets this machine can execute, and whether they suffice for a compiled model."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from burnish.errors import ArtifactError
from burnish.machines.flags import FLAGS, PERMISSIONS

ENTRY_ALIGNMENT = {"x86_64": 16, "aarch64": 4, "riscv64": 2}  # of functions, in bytes, on machines that run a driver
_SAME_MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}


def fingerprint(triple: str, cpu: str, features: Iterable[str]) -> str:
    """The text ``triple/cpu/feature,feature``: what machine code was made for.

    Of LLVM's ``features`` it keeps those that arithmetic code can depend on and that can be checked without LLVM.
    """
    known = FLAGS.get(machine_of(triple), {})
    return f"{triple}/{cpu}/{','.join(sorted(f for f in features if f in known))}"


def check_host(target: str) -> None:
    """Raises ArtifactError unless code for ``target``, a ``fingerprint``, runs here; names what this machine lacks."""
    reason = obstacle(target)
    if reason:
        raise ArtifactError(f"the model was compiled for {reason}; compile it for this machine")


def obstacle(target: str) -> str:
    """Reason why code for ``target``, a ``fingerprint``, cannot run here, behind its name; empty if it can."""
    triple, _, rest = target.partition("/")
    cpu, _, features = rest.partition("/")
    machine = machine_of(triple)
    if machine != host_machine() or ("linux" in triple) != sys.platform.startswith("linux"):
        return f"{triple}, but this machine is {host_machine()} under {sys.platform}"
    flags = cpu_flags()
    known = FLAGS.get(machine, {})
    # An empty set of flags means that the system does not tell.
    missing = [f for f in features.split(",") if f and known.get(f, f) not in flags] if flags else []
    if not missing:
        asked = [f for f in features.split(",") if f in PERMISSIONS and not PERMISSIONS[f]()]
        missing = [f"permission from the kernel to use {f}" for f in asked]
    return f"{cpu}, but this CPU lacks {', '.join(missing)}" if missing else ""


def features_of(target: str) -> frozenset[str]:
    """The features that a ``fingerprint`` names."""
    return frozenset(f for f in target.partition("/")[2].partition("/")[2].split(",") if f)


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
    if found:
        return frozenset(found.group(1).split())
    letters = re.search(r"^isa\s*:\s*rv64(\w+)$", text, re.MULTILINE)  # such as rv64imafdcv_zba_zbb
    single, *words = letters.group(1).split("_") if letters else [""]
    return frozenset([*single.replace("g", "imafd"), *words])


def machine_of(triple: str) -> str:
    """Architecture of a triple, under any of its names: ``x86_64`` or ``aarch64``; the triple's own name of another
    machine.
    """
    name = triple.partition("-")[0]
    return _SAME_MACHINE.get(name, name)
