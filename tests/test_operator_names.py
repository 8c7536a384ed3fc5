"""Nothing asks for an operator by its name but operators, importers, and the rules that rewrite one into another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import burnish
from burnish.ops import OPERATORS

HOUSE = Path(burnish.__file__).parent
ROOMS = ("graph", "kernels", "lower", "memory", "pipeline", "runtime", "array", "driver", "measure", "tune", "parallel")
# Rules about named operators: they replace, make, estimate, or bound nodes of these.
RULES = {
    f"graph/{name}.py"
    for name in (
        "affine",
        "aggregation",
        "algorithms",
        "align",
        "bands",
        "bit_products",
        "block_products",
        "byte_products",
        "canonical",
        "dequantized",
        "channels",
        "divide",
        "eliminate",
        "estimates",
        "fold",
        "halves",
        "integer_products",
        "join",
        "magnitudes",
        "narrow_selections",
        "recurrence",
        "requantize",
        "row_attention",
        "scale_gradients",
        "siblings",
        "sliced_sums",
        "sums",
        "unit_axes",
        "wide_reads",
    )
} | {"array/operators.py"}  # what NumPy's names and Python's signs stand for
KNOBS = {"band", "tile"}  # of templates
NODES = {"identity", "slice", "concat"}  # copies, parts and joins: what passes make of values themselves


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every operator in a comparison, a case, a set or the keys of a table."""
    for node in ast.walk(tree):
        asked: list[ast.AST | None] = []
        match node:
            case ast.Compare():
                asked = [node.left, *node.comparators]
            case ast.MatchValue():
                asked = [node.value]
            case ast.Dict():
                asked = [*node.keys]
            case ast.Set():
                asked = [node]
            case ast.Call(func=ast.Name(id="frozenset" | "set")) | ast.Call(func=ast.Attribute(attr="startswith")):
                asked = [*node.args]
        for part in asked:
            inside = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
            for e in inside:
                if isinstance(e, ast.Constant) and e.value in OPERATORS:
                    yield e.lineno, e.value


def test_names_of_operators_stand_in_their_rules() -> None:
    found = []
    for room in ROOMS:
        for file in sorted((HOUSE / room).rglob("*.py")):
            path = file.relative_to(HOUSE).as_posix()
            functions = path == "kernels/cpu/generic.py"  # of elements, which have names of their own: exp, log
            for line, name in names(ast.parse(file.read_text(encoding="utf-8"))):
                if path not in RULES and name not in NODES | KNOBS and not functions:
                    found.append(f"{path}:{line}: {name}")
    assert not found, "\n".join(found)


def test_no_template_asks_for_the_label_of_a_task() -> None:
    for file in sorted((HOUSE / "kernels").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "label"], file.name


def test_no_template_asks_for_the_end_of_a_name() -> None:
    """Stages are found by what they compute."""
    for file in sorted((HOUSE / "kernels").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        asked = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in ("removesuffix", "rpartition")]
        assert not asked, file.name


def test_the_search_finds_what_it_should() -> None:
    code = 'if n.op == "conv2d": pass\nif n.op in ("relu", "x"): pass\nt = {"matmul": 1}\ns = frozenset(("lrn",))'
    assert sorted(line for line, _ in names(ast.parse(code))) == [1, 2, 3, 4]
