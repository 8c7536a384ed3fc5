"""Laws that cost nothing are applied as values are made, and every graph comes back as it was."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder, TensorType
from burnish.graph.verify import verify
from burnish.rewrite.search.convert import read_graph, write_graph
from burnish.rewrite.search.normal import NormalTable
from tests.rewrite.rules import random_graph


@pytest.fixture
def table() -> NormalTable:
    return NormalTable()


def matrix(table: NormalTable, name: str, *shape: int) -> int:
    return table.leaf("input", name, TensorType(shape))


def part(table: NormalTable, x: int, start: int, extent: int, axis: int = 1) -> int:
    return table.make("part", (x,), {"axis": axis, "start": start, "extent": extent})


def join(table: NormalTable, *xs: int, axis: int = 1) -> int:
    return table.make("concat", xs, {"axis": axis})


def test_joins_of_joins_are_flat(table: NormalTable) -> None:
    x, y, z = (matrix(table, n, 2, 3) for n in "xyz")
    flat = join(table, x, y, z)
    assert join(table, join(table, x, y), z) == flat == join(table, x, join(table, y, z, axis=-1))
    assert join(table, join(table, x, y, axis=0), join(table, y, z, axis=0)) != flat


def test_parts_of_parts_and_whole_parts(table: NormalTable) -> None:
    x = matrix(table, "x", 4, 8)
    assert part(table, part(table, x, 2, 5), 1, 3) == part(table, x, 3, 3)
    assert part(table, x, 0, 8) == x
    assert part(table, part(table, x, 1, 2, axis=0), 3, 4) == part(table, part(table, x, 3, 4), 1, 2, axis=0)


def test_parts_of_joins_and_joins_of_parts(table: NormalTable) -> None:
    x, y, z = (matrix(table, n, 2, 3) for n in "xyz")
    joined = join(table, x, y, z)
    assert part(table, joined, 3, 3) == y
    assert table.args[part(table, joined, 3, 6)] == (joined,)  # a join of y and z would be a copy
    u, v, w = (table.leaf("constant", n, TensorType((2, 3))) for n in "uvw")
    weights = join(table, u, v, w)
    assert part(table, weights, 3, 6) == join(table, v, w)
    assert part(table, weights, 2, 2) == join(table, part(table, u, 2, 1), part(table, v, 0, 1))
    assert join(table, part(table, x, 0, 1), part(table, x, 1, 2)) == x
    assert table.labels[join(table, part(table, x, 1, 2), part(table, x, 0, 1))].op == "concat"


def test_element_wise_operators_go_behind_parts(table: NormalTable) -> None:
    x = matrix(table, "x", 2, 6)
    whole = table.make("relu", (x,), {})
    assert table.make("relu", (part(table, x, 1, 3),), {}) == part(table, whole, 1, 3)
    half = table.leaf("constant", "half", TensorType(()))
    scaled = table.make("mul", (part(table, x, 1, 3), half), {})
    assert scaled == part(table, table.make("mul", (x, half), {}), 1, 3)
    softmax = table.make("softmax", (part(table, x, 1, 3),), {"axis": -1})
    assert table.labels[softmax].op == "softmax"


def test_element_wise_operators_of_what_is_stored_by_columns(table: NormalTable) -> None:
    x = matrix(table, "x", 2, 6)
    columns = table.make("swap", (x,), {})
    gelu = table.make("gelu", (x,), {})
    assert table.make("gelu", (columns,), {}) == table.make("swap", (gelu,), {})
    row = table.leaf("constant", "row", TensorType((2,)))
    table.constants["row"] = np.ones(2, np.float32)
    moved = table.operands(table.make("add", (columns, row), {}))[0]
    assert table.labels[moved].op == "add" and table.types[moved].shape == (2, 6)
    softmax = table.make("softmax", (columns,), {"axis": -1})
    assert table.labels[softmax].op == "softmax"
    for wide in (matrix(table, "y", 2), table.leaf("constant", "z", TensorType((6, 2)))):  # no constant row
        assert table.labels[table.make("add", (columns, wide), {})].op == "add"


def test_views_of_views(table: NormalTable) -> None:
    x = matrix(table, "x", 2, 6)
    assert table.make("swap", (table.make("swap", (x,), {}),), {}) == x
    assert table.make("transpose", (x,), {}) == table.make("swap", (x,), {})
    shaped = table.make("reshape", (x,), {"shape": (3, 4)})
    assert table.make("reshape", (shaped,), {"shape": (2, -1)}) == x
    cube = table.leaf("input", "cube", TensorType((2, 3, 4)))
    turned = table.make("transpose", (cube,), {"perm": (2, 0, 1)})
    assert table.make("transpose", (turned,), {"perm": (1, 2, 0)}) == cube


def test_slices_and_pads_are_words_where_they_can_be(table: NormalTable) -> None:
    x = matrix(table, "x", 4, 8)
    assert table.make("slice", (x,), {"starts": (0, 2), "extents": (4, 3)}) == part(table, x, 2, 3)
    strided = table.make("slice", (x,), {"starts": (0, 2), "extents": (4, 3), "steps": (1, 2)})
    assert table.labels[strided].op == "slice"
    assert table.labels[table.make("pad", (x,), {"pads": (1, 0, 0, 2)})].op == "grow"
    assert table.make("pad", (x,), {"pads": (0, 0, 0, 0)}) == x
    assert table.labels[table.make("pad", (x,), {"pads": (1, 0, 0, 2), "value": 1.0})].op == "pad"


def test_sums_do_not_depend_on_the_order_of_two(table: NormalTable) -> None:
    x, y = (matrix(table, n, 2, 3) for n in "xy")
    assert table.make("add", (x, y), {}) == table.make("add", (y, x), {})
    assert table.make("sub", (x, y), {}) != table.make("sub", (y, x), {})


def test_operands_that_do_not_fit_are_refused(table: NormalTable) -> None:
    x = matrix(table, "x", 2, 3)
    with pytest.raises(ModelError, match="part: attribute 'start': found elements 2 to 4"):
        part(table, x, 2, 2)
    with pytest.raises(ModelError, match="concat: attribute 'axis': found 2"):
        join(table, x, x, axis=2)
    with pytest.raises(ModelError, match="unknown operator 'blur'"):
        table.make("blur", (x,), {})


def test_a_graph_whose_shapes_do_not_type_is_refused_by_name() -> None:
    b = GraphBuilder()
    good = b.build(b.add("relu", b.input("x", (2, 3)), name="y", node="the relu"))
    bad = Graph(good.inputs, good.outputs, good.nodes, {**good.types, "y": TensorType((3, 2))}, {})
    with pytest.raises(ModelError, match=r"node 'the relu': output 'y': found float32\[3, 2\]; allowed"):
        read_graph(NormalTable(), bad)


@pytest.mark.parametrize("seed", range(8))
def test_a_graph_comes_back_with_its_values(seed: int) -> None:
    graph = random_graph(np.random.default_rng(100 + seed))
    table = NormalTable()
    reading = read_graph(table, graph)
    back = write_graph(table, reading, reading.roots, graph)
    verify(back)
    random = np.random.default_rng(1)
    feeds = {n: random.standard_normal(graph.types[n].shape).astype("float32") for n in graph.inputs}
    values, others = evaluate(graph, feeds, "float64"), evaluate(back, feeds, "float64")
    for name in graph.outputs:
        np.testing.assert_allclose(others[name], values[name], rtol=1e-10, atol=1e-12)


def test_operators_of_several_outputs_and_outputs_that_are_inputs_come_back() -> None:
    b = GraphBuilder()
    x, recurrent = b.input("x", (2, 20)), b.input("recurrent", (4, 5, 5))
    h, c = b.input("h", (2, 5)), b.input("c", (2, 5))
    first, last = b.add_many("lstm_cell", x, h, c, recurrent, names=["now", "cell"])
    graph = b.build(last, x, b.add("relu", first), last)
    table = NormalTable()
    reading = read_graph(table, graph)
    back = write_graph(table, reading, reading.roots, graph)
    verify(back)
    assert [n.op for n in back.nodes].count("lstm_cell") == 1
    assert back.outputs == graph.outputs
    assert "now" in back.types


def test_parts_go_back_in_front_of_what_only_they_need() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 6))
    graph = b.build(b.add("relu", b.add("slice", x, starts=(0, 1), extents=(2, 3))))
    table = NormalTable()
    reading = read_graph(table, graph)
    back = write_graph(table, reading, reading.roots, graph)
    assert [n.op for n in back.nodes] == ["slice", "relu"]
