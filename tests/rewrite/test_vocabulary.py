"""Words against NumPy: what they stand for, and what they refuse."""

from collections.abc import Mapping

import numpy as np
import pytest

from burnish.errors import ModelError, RuleError
from burnish.graph.evaluate import evaluate
from burnish.rewrite.language.terms import parse_rules, parse_term, parse_type
from burnish.rewrite.language.types import type_rule
from burnish.rewrite.language.vocabulary import Binding, infer_word, sides

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


def value(text: str, sizes: Mapping[str, int] | None = None) -> np.ndarray:
    (rule,) = parse_rules(f"axiom a\n  for x: [3, 4, 5]\n  {text} = {text}\n")
    graph, _ = sides(rule, Binding(sizes or {}, {}))
    return evaluate(graph, {"x": X} if graph.inputs else {})[graph.outputs[0]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("part(x, axis=1, start=s, extent=2)", X[:, 1:3]),
        ("part(x, axis=-1, start=0, extent=1)", X[..., :1]),
        ("swap(x)", X.swapaxes(1, 2)),
        ("grow(x, pads=(1, 2, 0, -1))", np.pad(X, ((0, 0), (1, 0), (2, 0)))[:, :, :-1]),
        ("eye(size=s + 2)", np.eye(3)),
        ("box(channels=2, kernel=(2, 4))", np.full((2, 1, 2, 4), 0.125)),
        ("full(shape=(2, 3), value=7)", np.full((2, 3), 7.0)),
    ],
)
def test_words_mean_what_numpy_says(text: str, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(value(text, {"s": 1}), expected)


def test_block_diagonal_weights_keep_groups_apart() -> None:
    (rule,) = parse_rules(
        "axiom a\n  for y: [8, 3, 1, 2]\n"
        "  block_diagonal(y, groups=2, merged=2) = block_diagonal(y, groups=2, merged=2)\n"
    )
    left, _ = sides(rule, Binding({}, {}))
    weight = np.arange(48, dtype=np.float32).reshape(8, 3, 1, 2)
    expected = np.zeros((8, 6, 1, 2), np.float32)
    for o in range(8):
        expected[o, o // 2 % 2 * 3 :][:3] = weight[o]
    np.testing.assert_array_equal(evaluate(left, {"y": weight})[left.outputs[0]], expected)
    with pytest.raises(RuleError):
        infer_type = parse_rules("axiom a\n  for y: [9, 3, 1, 2]\n  block_diagonal(y, groups=2, merged=2) = y\n")
        type_rule(infer_type[0])


def test_dirac_moves_its_input() -> None:
    (rule,) = parse_rules(
        "axiom a\n  for x: [1, 4, 3, 3]\n"
        "  conv2d(x, dirac(channels=4, groups=2, kernel=(2, 3), at=(1, 0)), pads=(1, 0, 0, 2), groups=2) = x\n"
    )
    left, _ = sides(rule, Binding({}, {}))
    x = np.arange(36, dtype=np.float32).reshape(1, 4, 3, 3)
    np.testing.assert_array_equal(evaluate(left, {"x": x})[left.outputs[0]], x)


def test_a_binding_gives_shapes_and_attributes() -> None:
    binding = Binding({"a": 2, "b": 3}, {"l": (7, 1)})
    assert binding.shape(parse_type("[*l, a * b]")) == (7, 1, 6)
    term = parse_term("f(axis=-1, shape=(a, b + 1), flag=True)")
    assert binding.attributes(term) == (("axis", -1), ("flag", True), ("shape", (2, 4)))  # type: ignore[arg-type]


def test_shared_terms_are_one_node() -> None:
    (rule,) = parse_rules("axiom a\n  for x: [m]\n  add(relu(x), relu(x)) = add(relu(x), relu(x))\n")
    left, _ = sides(rule, Binding({"m": 2}, {}))
    assert [node.op for node in left.nodes] == ["relu", "add"]


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("product(x)", RuleError, "'product' is no word of the vocabulary: .*matmul"),
        ("part(x, axis=7, start=0, extent=1)", ModelError, "part: "),
        ("part(x, axis=0, start=0)", ModelError, "part: .*extent"),
        ("part(x, axis=0, start=2, extent=2)", ModelError, "starts"),
        ("part(x, axis=0, start=0, extent=0)", ModelError, "at least 1"),
        ("grow(x, pads=(-4, 0, 0, 0))", ModelError, "at least 1"),
        ("matmul(x, x)", ModelError, "inner extent"),
        ("relu(x, axis=1)", ModelError, "axis"),
    ],
)
def test_what_has_no_meaning_is_refused(text: str, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        value(text)


def test_sides_of_other_types_are_refused_by_name() -> None:
    (rule,) = parse_rules("axiom odd\n  for x: [m, n]\n  swap(x) = x\n")
    with pytest.raises(RuleError, match="'odd': output 0"):
        sides(rule, Binding({"m": 2, "n": 3}, {}))


def test_shapes_of_words() -> None:
    assert infer_word("part", ((3, 4),), (("axis", 1), ("extent", 2), ("start", 1))) == (3, 2)
    with pytest.raises(ModelError):
        infer_word("matmul", ((3, 4), (3, 4)), ())
    with pytest.raises(ModelError):  # the second refusal is remembered
        infer_word("matmul", ((3, 4), (3, 4)), ())
