"""A public class name occurs once in the house; docstrings of the house and its tools begin with a term."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import burnish

HOUSE = Path(burnish.__file__).parent
TOOLS = ("benchmarks", "examples", "tools")
TWINS = {"Graph"}  # of operators, and of vertices: each is the public name in its own field
NO_TERMS = ("How", "Of", "That", "Those", "What", "Who", "Why")
DIALECT = re.compile(r"\b(told|so many|whatever|beside)\b", re.IGNORECASE)
PLAIN_ROOMS = (
    "ahead",
    "array",
    "base",
    "boards",
    "boost",
    "cli",
    "clib",
    "codegen",
    "comm",
    "driver",
    "fitting",
    "frontend",
    "gnn",
    "graph",
    "kernels",
    "loops",
    "lower",
    "machines",
    "measure",
    "memory",
    "ops",
    "parallel",
    "pipeline",
    "quantization",
    "report",
    "rewrite",
    "runtime",
    "schedule",
    "search",
    "serve",
    "simulators",
    "torch",
    "train",
    "tune",
    "workers",
)


class Definition(NamedTuple):
    """A module, class or function: its file and line, its name if it is a class, its docstring's first line."""

    file: str
    line: int
    class_name: str
    first_line: str


@cache
def definitions(folder: Path = HOUSE) -> tuple[Definition, ...]:
    """All definitions in a folder, read once for all tests."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        name = str(file.relative_to(folder))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first, *_ = (ast.get_docstring(node) or "").split("\n")
                class_name = node.name if isinstance(node, ast.ClassDef) else ""
                found.append(Definition(name, getattr(node, "lineno", 1), class_name, first))
    return tuple(found)


def classes() -> dict[str, list[str]]:
    """Files by the public names of classes that they define."""
    found = defaultdict(list)
    for each in definitions():
        if each.class_name and not each.class_name.startswith("_"):
            found[each.class_name].append(each.file)
    return found


def not_plain(found: Iterable[Definition]) -> dict[str, str]:
    """First lines of docstrings that begin with no term, by their places. Fails where there are no docstrings."""
    lines = {f"{d.file}:{d.line}": d.first_line for d in found if d.first_line}
    assert lines
    return {at: line for at, line in lines.items() if not is_plain(line)}


def is_plain(first_line: str) -> bool:
    """Whether a docstring begins with a term, in words of the field."""
    return first_line.split()[0].strip(".,:;") not in NO_TERMS and not DIALECT.search(first_line)


def test_a_public_class_name_occurs_once() -> None:
    several = {name: files for name, files in classes().items() if len(files) > 1}
    assert several.keys() == TWINS, several


@pytest.mark.parametrize("room", PLAIN_ROOMS)
def test_docstrings_begin_with_a_term(room: str) -> None:
    assert not_plain(d for d in definitions() if d.file.startswith(f"{room}/")) == {}


@pytest.mark.parametrize("folder", TOOLS)
def test_docstrings_of_tools_begin_with_a_term(folder: str) -> None:
    assert not_plain(definitions(HOUSE.parent / folder)) == {}


def test_what_begins_no_docstring() -> None:
    assert is_plain("Whatsoever: a longer word.") and is_plain("Bytes of rows.")
    for line in (
        "What it is.",
        "How it is done.",
        "Of rows.",
        "Those: none.",
        "Blocks of so many rows.",
        "Lies beside it.",
    ):
        assert not is_plain(line), line
