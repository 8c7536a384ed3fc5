"""Burnish has floors: each package imports only from packages above it in this list, also from inside functions."""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import burnish

FLOORS = (
    "errors", "base", "workers", "comm", "search", "loops", "machines", "schedule", "ops", "graph", "kernels",
    "lower", "codegen", "memory", "runtime", "clib", "boost", "simulators", "boards", "measure", "frontend", "rewrite",
    "pipeline", "tune", "train", "driver", "parallel", "torch", "array", "gnn", "fitting", "quantization",
    "ahead", "serve", "report", "cli", "__main__",
)  # fmt: skip
WALLS = {  # rooms within a package, each of which imports only from those before it
    "parallel": ("model", "simulate", "programs"),
    "gnn": ("data", "model", "run"),
}
DOORS = {("burnish/runtime/callable.py", "burnish.report.written", "write_report")}
"""Names that a method imports from a later floor when it is called (``burnish/base/lazy.py``: ``later``)."""
HOUSE = Path(burnish.__file__).parent


@cache
def statements(file: Path) -> tuple[ast.Import | ast.ImportFrom | ast.Call, ...]:
    """Imports of a file, also inside functions, and calls of ``later``; read once for all tests."""
    return tuple(
        node
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "later")
    )


def imported_floors(file: Path) -> Iterator[tuple[int, str]]:
    """Line and floor of every import of a part of Burnish in the file."""
    for node in statements(file):
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


def test_methods_import_from_later_floors_only_what_is_listed() -> None:
    found = set()
    for file in sorted(HOUSE.rglob("*.py")):
        for node in statements(file):
            if isinstance(node, ast.Call):
                module, name = (ast.literal_eval(argument) for argument in node.args[:2])
                found.add((str(file.relative_to(HOUSE.parent)), module, name))
                assert hasattr(importlib.import_module(module), name)
    assert found == DOORS


def test_rooms_of_a_package_import_from_rooms_before_them() -> None:
    wrong = []
    for package, rooms in WALLS.items():
        assert {path.name for path in (HOUSE / package).iterdir() if (path / "__init__.py").exists()} == set(rooms)
        for file in sorted((HOUSE / package).glob("*/*.py")):
            room = file.parent.name
            for node in statements(file):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"burnish.{package}."):
                    used = node.module.split(".")[2]
                    if used in rooms and rooms.index(used) > rooms.index(room):
                        wrong.append(f"{file.relative_to(HOUSE)}:{node.lineno}: {room!r} imports {node.module}")
    assert not wrong, "\n".join(wrong)


def module_imports(package: Path) -> dict[str, set[str]]:
    """The modules of a package that each of its modules imports, also from inside functions and for types alone."""
    files = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(HOUSE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    found: dict[str, set[str]] = {}
    for name, file in files.items():
        used = set()
        for node in statements(file):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                used |= (inner & files.keys()) or {node.module}
        found[name] = (used & files.keys()) - {name}
    return found


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that reach each other by imports."""
    reached = {name: set(used) for name, used in imports.items()}
    for middle in imports:
        for used in reached.values():
            if middle in used:
                used |= reached[middle]
    return {
        frozenset({name} | {other for other in used if name in reached[other]})
        for name, used in reached.items()
        if name in used
    }


def test_modules_of_boosting_import_each_other_in_no_circle() -> None:
    imports = module_imports(HOUSE / "boost")
    del imports["burnish.boost"]  # the public names, which are imported when they are asked for
    assert circles({name: used - {"burnish.boost"} for name, used in imports.items()}) == set()


def test_modules_outside_of_boosting_import_each_other_in_no_circle() -> None:
    """Also for types alone; but for a package and its own modules, where the package holds their public names."""
    imports = {name: used for name, used in module_imports(HOUSE).items() if not name.startswith("burnish.boost")}
    packages = {name for name in imports if any(other.startswith(name + ".") for other in imports)}
    assert circles({name: used - packages for name, used in imports.items() if name not in packages}) == set()


def test_circles_of_imports_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}
    assert circles(imports) == {frozenset("bc"), frozenset("ef")}
