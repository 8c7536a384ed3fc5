import xml.etree.ElementTree as ElementTree

import pytest

from burnish.boost.model import Model
from burnish.boost.render import dot, svg, text
from burnish.boost.tree import TreeBuilder
from burnish.errors import ParameterError


def small() -> Model:
    builder = TreeBuilder()
    left, _ = builder.split(builder.add(0, 10), 1, 0.5, True, 4.0, (0.1, 6), (0.25, 4))
    builder.split(left, 0, 0.0, False, 1.0, (0.5, 5), (-0.5, 1), (0, 2))
    return Model((builder.tree(),), 2, feature_names=('k"<', "age"), categories=(("x", "y", "z"), None))


def test_text() -> None:
    assert text(small(), 0) == (
        "age < 0.5  (gain 4, cover 10)\n"
        '  yes, missing: k"< not in {x, z}  (gain 1, cover 6)\n'
        "    yes: value 0.5  (cover 5)\n"
        "    no, missing: value -0.5  (cover 1)\n"
        "  no: value 0.25  (cover 4)\n"
    )
    assert text(small(), 0, statistics=False).splitlines()[0] == "age < 0.5"


def test_dot() -> None:
    assert dot(small(), 0) == (
        "digraph tree0 {\n"
        "  node [fontname=sans];\n"
        '  0 [label="age < 0.5", shape=box];\n'
        '  0 -> 1 [label="yes, missing"];\n'
        '  0 -> 2 [label="no"];\n'
        '  1 [label="k\\"< not in {x, z}", shape=box];\n'
        '  1 -> 3 [label="yes"];\n'
        '  1 -> 4 [label="no, missing"];\n'
        '  2 [label="value 0.25", shape=ellipse];\n'
        '  3 [label="value 0.5", shape=ellipse];\n'
        '  4 [label="value -0.5", shape=ellipse];\n'
        "}\n"
    )


def test_svg_is_xml_with_every_node_apart() -> None:
    root = ElementTree.fromstring(svg(small(), 0))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [(float(box.get("x")), float(box.get("y"))) for box in root.iter(f"{space}rect")]
    assert len(set(boxes)) == 5
    shown = [element.text for element in root.iter(f"{space}text")]
    assert 'k"< not in {x, z}' in shown and shown.count("yes, missing") == 1


def test_a_tree_that_is_not_there() -> None:
    for render in (text, dot, svg):
        with pytest.raises(ParameterError, match="tree is 1, allowed: 0 … 0"):
            render(small(), 1)
