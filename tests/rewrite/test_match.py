"""Where left sides stand in graphs: sizes are solved, attributes compared whole, conditions and types checked."""

import pytest

from burnish.driver.rewritten import shipped_rules
from burnish.errors import RuleError
from burnish.graph.graph import GraphBuilder
from burnish.rewrite.language.terms import parse_rules
from burnish.rewrite.search.convert import read_graph
from burnish.rewrite.search.match import Matcher, both_ways, compile_rules, patterns, reassociates
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.solve import Solver
from tests.rewrite.rules import rule


def matches(text: str, b: GraphBuilder, *outputs: str) -> list:
    """The matches of a rule's first term with the last output."""
    table = NormalTable()
    reading = read_graph(table, b.build(*outputs))
    (compiled,) = compile_rules(parse_rules(text))
    matcher, solver = Matcher(), Solver(table)
    found = [solver.solve(compiled, p) for p in matcher.parts(table, patterns(compiled)[0], reading.roots[-1])]
    return [m for m in found if m is not None]


PRODUCT = "substitution r\n  for a: [*l, m, k]; b: [k, n]\n  {} = relu(matmul(a, b))\n"


def test_sizes_and_leading_dimensions_are_bound() -> None:
    b = GraphBuilder()
    product = b.add("matmul", b.input("a", (5, 6, 2, 3)), b.input("b", (3, 4)))
    (match,) = matches(PRODUCT.format("matmul(a, b)"), b, product)
    assert dict(match.binding.sizes) == {"m": 2, "k": 3, "n": 4}
    assert dict(match.binding.leads) == {"l": (5, 6)}


def test_flags_of_a_product_are_swaps_of_its_operands() -> None:
    b = GraphBuilder()
    product = b.add("matmul", b.input("a", (2, 3)), b.input("b", (4, 3)), transpose_b=True)
    text = "substitution r\n  for a: [m, k]; b: [n, k]\n  {} = swap(matmul(b, swap(a)))\n"
    for left in ("matmul(a, swap(b))", "matmul(a, b, transpose_b=True)"):
        (match,) = matches(text.format(left), b, product)
        assert dict(match.binding.sizes) == {"m": 2, "k": 3, "n": 4}


def test_an_attribute_that_the_rule_leaves_out_has_its_default() -> None:
    text = "substitution r\n  for x: [n, c, h, w]; a: [o, c, k, l]\n  conv2d(x, a, pads=(p, p, p, p)) = x\n"
    for attrs, count in (({"pads": (1, 1, 1, 1)}, 1), ({"pads": (1, 1, 1, 0)}, 0), ({"strides": (2, 1)}, 0)):
        b = GraphBuilder()
        y = b.add("conv2d", b.input("x", (1, 2, 8, 8)), b.input("a", (2, 2, 3, 3)), **attrs)
        assert len(matches(text, b, y)) == count


def test_axes_count_from_either_end() -> None:
    for axis in ("-1", "1"):
        b = GraphBuilder()
        joined = b.add("concat", b.input("x", (2, 3)), b.input("y", (2, 4)), axis=-1)
        text = f"substitution r\n  for x: [m, k]; y: [m, j]\n  concat(x, y, axis={axis}) = relu(concat(x, y, axis=1))\n"
        assert len(matches(text, b, joined)) == 1
        assert matches(text.replace(f"(x, y, axis={axis})", "(x, y, axis=0)", 1), b, joined) == []


def test_a_join_of_many_is_one_of_two_at_every_cut() -> None:
    b = GraphBuilder()
    joined = b.add("concat", *[b.input(f"x{i}", (2, 1 + i)) for i in range(4)], axis=1)
    text = "substitution r\n  for x: [m, k]; y: [m, j]\n  concat(x, y, axis=-1) = relu(concat(x, y, axis=1))\n"
    found = matches(text, b, joined)
    assert [(m.binding.sizes["k"], m.binding.sizes["j"]) for m in found] == [(1, 9), (3, 7), (6, 4)]


def test_operands_of_a_sum_may_be_in_either_order() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (2, 3)), b.input("y", (2, 3))
    total = b.add("add", y, b.add("relu", x))
    text = "substitution r\n  for x: [m, k]; y: [m, k]\n  add(relu(x), y) = add(y, relu(x))\n"
    assert len(matches(text, b, total)) == 1


def test_a_variable_that_occurs_twice_is_one_tensor() -> None:
    text = "substitution r\n  for x: [m, k]\n  add(relu(x), exp(x)) = x\n"
    for second, count in (("x", 1), ("y", 0)):
        b = GraphBuilder()
        b.input("x", (2, 3))
        b.input("y", (2, 3))
        assert len(matches(text, b, b.add("add", b.add("relu", "x"), b.add("exp", second)))) == count


def test_conditions_are_checked_at_the_sizes_found() -> None:
    text = "substitution r\n  for x: [m, n]\n  where m <= n\n  relu(x) = x\n"
    for shape, count in (((2, 3), 1), ((3, 2), 0)):
        b = GraphBuilder()
        assert len(matches(text, b, b.add("relu", b.input("x", shape)))) == count


def test_sizes_that_are_sums_are_solved_in_any_order() -> None:
    text = "substitution r\n  for x: [a + b, b + 2]\n  relu(x) = x\n"
    b = GraphBuilder()
    (match,) = matches(text, b, b.add("relu", b.input("x", (7, 5))))
    assert dict(match.binding.sizes) == {"a": 4, "b": 3}
    b = GraphBuilder()
    assert matches(text, b, b.add("relu", b.input("x", (3, 5)))) == []  # a would be 0: no extent


def test_rules_speak_of_float32() -> None:
    b = GraphBuilder()
    text = "substitution r\n  for x: [*l]\n  relu(x) = x\n"
    assert matches(text, b, b.add("relu", b.input("x", (3,), "int32"))) == []


def test_a_constant_of_one_number_is_full() -> None:
    import numpy as np

    b = GraphBuilder()
    y = b.add("mul", b.input("x", (2, 3)), b.constant(np.ones((2, 3), np.float32)))
    text = "substitution r\n  for x: [m, n]\n  mul(x, full(shape=(m, n), value=1)) = x\n"
    assert len(matches(text, b, y)) == 1
    assert matches(text.replace("value=1", "value=2"), b, y) == []


def test_rules_that_only_move_elements_are_left_to_normal_forms() -> None:
    text = "substitution r\n  for x: [m, n]\n  swap(swap(x)) = x\n"
    assert compile_rules(parse_rules(text)) == []


def test_products_are_regrouped_both_ways() -> None:
    names = [r.name for r in both_ways([*rule("product is associative"), *rule("swap of a product")])]
    assert names == ["product is associative", "swap of a product", "product is associative, read backwards"]


def test_rules_that_cannot_be_applied_are_left_out() -> None:
    text = """
substitution from a variable
  for x: [m]
  x = relu(x)
substitution of what is not there
  for x: [m]; y: [m]
  relu(x) = add(x, y)
substitution with a size of its own
  for x: [m]
  where 0 <= a
  relu(x) = relu(part(concat(x, x, axis=0), axis=0, start=a, extent=m))
substitution of strangers
  for x: [m]; y: [m]
  relu(x), relu(y) = exp(x), exp(y)
"""
    assert compile_rules(parse_rules(text)) == []


def test_unknown_words_and_attributes_are_named() -> None:
    with pytest.raises(RuleError, match="'blur' is no word of the vocabulary"):
        compile_rules(parse_rules("substitution r\n  for x: [m]\n  blur(x) = x\n"))
    b = GraphBuilder()
    text = "substitution r\n  for x: [m]\n  relu(x, slope=1) = x\n"
    with pytest.raises(RuleError, match="attributes slope; allowed: none"):
        matches(text, b, b.add("relu", b.input("x", (3,))))


def test_new_arithmetic_is_no_reassociation() -> None:
    assert reassociates(rule("merge of products")[0])
    assert reassociates(rule("product is associative")[0])
    (mean,) = parse_rules(
        "substitution r\n  for x: [n, c, h, w]\n  avg_pool2d(x, kernel=(2, 2)) ="
        " conv2d(x, box(channels=c, kernel=(2, 2)), groups=c)\n"
    )
    assert not reassociates(mean)


def test_products_with_zeros_are_new_arithmetic() -> None:
    allowed = {r.name: reassociates(r) for r in shipped_rules()}
    assert not allowed["grown weights"] and not allowed["joined convolutions of unequal kernels"]
    assert allowed["RepVGG"] and allowed["sum of convolutions of unequal kernels"]  # whose windows are those of others
