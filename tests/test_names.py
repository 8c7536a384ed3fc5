"""A public class name occurs once in the house, and first lines of docstrings begin with a term."""

import ast
from collections import defaultdict
from pathlib import Path

import burnish

HOUSE = Path(burnish.__file__).parent
TWINS = {"Graph"}  # of operators, and of vertices: each is the public name in its own field
NO_TERMS = ("What", "Of", "That", "Those")


def classes() -> dict[str, list[str]]:
    """Files by the public names of classes that they define."""
    found = defaultdict(list)
    for file in sorted(HOUSE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(HOUSE)))
    return found


def test_a_public_class_name_occurs_once() -> None:
    several = {name: files for name, files in classes().items() if len(files) > 1}
    assert several.keys() == TWINS, several
