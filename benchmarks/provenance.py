"""Provenance of a stored result: when, where, on what and by which command it was measured."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from burnish.machines.target import host

LIBRARIES = (
    "numpy", "llvmlite", "numba", "onnx", "onnxruntime", "openvino", "torch", "xgboost", "xgboost-cpu", "lightgbm",
    "torch_geometric",
)  # fmt: skip


def provenance() -> dict[str, Any]:
    """Commit ("+" behind it: with changes), date, CPU, its cores, versions of what is installed, and the command."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    own = host()
    program = Path(sys.argv[0])
    name = ".".join(program.with_suffix("").parts[-2:]) if program.suffix == ".py" else program.name
    given = (Path(word).name if word.startswith("/") else word for word in sys.argv[1:])  # no folder of one machine
    words = ["python -m", name.removesuffix(".__main__"), *given]
    return {
        "commit": _commit(), "date": date.today().isoformat(), "cpu": f"{_model()} ({own.cpu})", "cores": own.cores,
        "versions": versions, "command": " ".join(words),
    }  # fmt: skip


def stored(report: Mapping[str, Any] | Sequence[Any], **how: Any) -> str:
    """JSON of a report, which opens with its provenance; a list becomes "rows"."""
    own = report if isinstance(report, Mapping) else {"rows": list(report)}
    return json.dumps({"measured": provenance(), **own}, **how)


def kind_of_machine() -> str:
    """Name of this machine in files of results: its maker's word for the CPU, its widest vectors, its cores."""
    own = host()
    makers = [word for word in ("epyc", "xeon", "ryzen", "core") if word in _model().lower()]
    vectors = [word for word in ("amx-bf16", "avx512f", "avx2") if word in own.features]
    words = [*(makers or [own.cpu])[:1], *(word.removesuffix("-bf16").removesuffix("f") for word in vectors[:1])]
    return "-".join([*words, f"{own.cores}cores"])


def _commit() -> str:
    """The checkout's commit; empty where git does not tell."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"], cwd=here, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def _model() -> str:
    """The CPU's name in /proc/cpuinfo, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
