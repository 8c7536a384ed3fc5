"""Nothing asks for a machine by its name: CPUs and instruction sets are named in the packages of machines alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import burnish

HOUSE = Path(burnish.__file__).parent
# Whose subject is a binary format, baseline CPUs, the system's word for a processor, or one that is emulated.
FORMATS = {
    "base/baselines.py",
    "boards/emulated.py",
    "boards/native.py",
    "runtime/elf.py",
    "simulators/emulated.py",
    "simulators/spike.py",
    "runtime/host.py",
    "runtime/relocate.py",
}
NAME = re.compile(
    r"[\w.+-]*(x86|amd64|i686|arm64|aarch64|riscv|amx|avx|vnni|neon|znver|sapphire|cortex|neoverse)[\w.+-]*"
)
ATTRIBUTE = re.compile(r"\.(cpu|triple)\b")


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is one word and names a machine, and of every test of a triple or CPU."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            yield node.lineno, node.value
        asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            asked = [node.func.value, *node.args]
        attributes = [part for part in asked if isinstance(part, ast.Attribute) and part.attr in ("cpu", "triple")]
        if attributes and any(isinstance(part, ast.Constant) for part in asked):
            yield node.lineno, ast.unparse(node)


def test_names_of_machines_stand_in_their_packages() -> None:
    found = []
    for file in sorted(HOUSE.rglob("*.py")):
        path = file.relative_to(HOUSE).as_posix()
        if path.startswith("machines/") or path in FORMATS:
            continue
        text = file.read_text(encoding="utf-8")
        if NAME.search(text) or ATTRIBUTE.search(text):
            found += [f"{path}:{line}: {what}" for line, what in names(ast.parse(text))]
    assert not found, "\n".join(found)


def test_the_search_finds_what_it_should() -> None:
    code = 'if target.cpu == "z14": pass\nif target.has("amx-bf16"): pass\nif t.triple.startswith("x86_64"): pass'
    assert sorted(line for line, _ in names(ast.parse(code))) == [1, 2, 3, 3]
    assert not [*names(ast.parse('"a message about x86-64 and -amx"'))]
