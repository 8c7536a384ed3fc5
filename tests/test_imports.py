"""Burnish has floors: each package imports only from packages above it in this list, also from inside functions."""

import ast
from collections.abc import Iterator
from pathlib import Path

import burnish

FLOORS = (
    "errors", "dump", "optional", "files", "cache", "jit", "permission", "target", "comm", "search", "boost",
    "loops", "schedule", "ops", "graph", "kernels", "lower", "codegen", "memory", "runtime", "measure", "frontend",
    "rewrite", "arguments", "pipeline", "tune", "array", "train", "parallel", "gnn", "driver", "report", "cli",
    "__main__",
)  # fmt: skip
HOUSE = Path(burnish.__file__).parent


def imported_floors(file: Path) -> Iterator[tuple[int, str]]:
    """Line and floor of every import of a part of Burnish in the file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"burnish.<relative import>.{node.module}"]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "burnish" and len(parts) > 1:
                yield node.lineno, parts[1]


def test_imports_point_upwards_to_earlier_floors() -> None:
    wrong = []
    for file in sorted(HOUSE.rglob("*.py")):
        floor = file.relative_to(HOUSE).with_suffix("").parts[0]
        if floor == "__init__":
            continue
        if floor not in FLOORS:
            wrong.append(f"{file.relative_to(HOUSE)}: {floor!r} stands on no floor")
            continue
        for line, used in imported_floors(file):
            if used not in FLOORS or FLOORS.index(used) > FLOORS.index(floor):
                wrong.append(f"{file.relative_to(HOUSE)}:{line}: {floor!r} imports {used!r}")
    assert not wrong, "\n".join(wrong)
