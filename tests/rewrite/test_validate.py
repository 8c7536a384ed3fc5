"""Identity testing: what is true passes, what is false at any size, stride, pad or group is found and named."""

import pytest

from burnish.errors import RuleError
from burnish.rewrite.language.terms import RewriteRule, parse_rules, parse_term
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.field import PRIMES
from burnish.rewrite.proofs.validate import degree_of, validate


def rule(text: str) -> RewriteRule:
    (only,) = parse_rules(text)
    return only


def test_every_axiom_holds() -> None:
    axioms = load_axioms()
    found = [validate(axiom, bindings=2, points=2) for axiom in axioms.values()]
    assert [v.name for v in found] == list(axioms)
    assert all(v.obligations == 8 and v.error_bound < 1e-15 for v in found)


def test_the_error_bound_is_that_of_schwartz_and_zippel() -> None:
    found = validate(load_axioms()["matmul is associative"], bindings=3, points=2, mid_bindings=1)
    assert (found.degree, found.bindings, found.obligations) == (3, 4, 8)
    assert found.error_bound == (3 / min(PRIMES)) ** 2
    assert degree_of(parse_term("mul(add(x, y), conv2d(x, relu(z)))")) == 3


@pytest.mark.parametrize(
    "text",
    [  # each is true at some sizes: unequal ones, strides, pads or groups find it out
        "axiom odd\n  for x: [n, n]; y: [n, n]\n  matmul(x, y) = matmul(y, x)\n",
        "axiom odd\n  for x: [m, n]; y: [m, n]\n  relu(add(x, y)) = add(relu(x), relu(y))\n",
        "axiom odd\n  for x: [m, n]\n  matmul(x, swap(x)) = matmul(x, x, transpose_b=True)\n"
        "axiom of a transposed square  # holds for 1 and 2 rows: Cayley and Hamilton\n  for x: [n, n]\n"
        "  mul(swap(x), matmul(x, x)) = mul(x, swap(matmul(x, x)))\n",
        "axiom odd\n  for x: [1, c, h, w]\n  avg_pool2d(x, kernel=(3, 3), strides=(s, s), pads=(p, p, p, p))"
        " = conv2d(x, box(channels=c, kernel=(3, 3)), strides=(s, s), pads=(p, p, p, p), groups=c)\n",
        "axiom odd\n  for x: [1, c, h, w]\n  max_pool2d(x, kernel=(2, 2), pads=(p, p, p, p))"
        " = relu(max_pool2d(x, kernel=(2, 2), pads=(p, p, p, p)))\n",
        "axiom odd\n  for x: [m, k]; y: [k, n]; s: [k]\n  mul(matmul(x, y), y) = matmul(x, mul(y, y))\n",
    ],
)
def test_what_is_false_is_refused_by_name(text: str) -> None:
    *true, last = parse_rules(text)
    for law in true:
        validate(law, bindings=8)
    with pytest.raises(RuleError, match=f"'{last.name}'.*(is false: output 0 differs at|no sizes found)"):
        validate(last, bindings=40)


SAME = """
axiom {name}
  for x: [1, c, h, w]; y: [o, c, 1, 1]
  {where}
  conv2d(x, y, strides=({s}, {s}), pads=(a, a, b, b))
    = conv2d(x, grow(y, pads=(1, 1, 1, 1)), strides=({s}, {s}), pads=(c2, c2, d, d))
"""


def test_grow_under_same_padding_fails_at_even_strides_and_holds_with_explicit_pads() -> None:
    # SAME: pads sum to max((⌈h / s⌉ - 1) s + kernel - h, 0), the smaller half in front. Stride 2, h = w = 4: for the
    # 1×1 kernel none, for the 3×3 kernel 0 in front and 1 behind, so windows begin one place apart.
    even = "where h == 4; w == 4; a == 0; b == 0; c2 == 0; d == 1"
    with pytest.raises(RuleError, match="'naive' is false"):
        validate(rule(SAME.format(name="naive", where=even, s=2)), bindings=4)
    odd = "where h == 5; w == 5; a == 0; b == 0; c2 == 1; d == 1"
    validate(rule(SAME.format(name="odd sizes", where=odd, s=2)), bindings=4)
    any_ = "where c2 == a + 1; d == b + 1; 0 <= a; 0 <= b"
    for stride in (1, 2, 3):
        validate(rule(SAME.format(name="explicit", where=any_, s=stride)), bindings=12)


def test_channel_concat_of_convolutions_fails_under_groups_and_holds_dense() -> None:
    outputs = (
        "axiom {name}\n  for x: [n, g * c, h, w]; y: [g * a, c, i, j]; z: [g * b, c, i, j]\n  {where}\n"
        "  concat(conv2d(x, y, groups=g), conv2d(x, z, groups=g), axis=1) = conv2d(x, concat(y, z, axis=0), groups=g)\n"
    )
    inputs = (
        "axiom {name}\n  for x: [n, g * a, h, w]; z: [n, g * b, h, w]; y: [g * o, a, i, j]; u: [g * o, b, i, j]\n"
        "  {where}\n  conv2d(concat(x, z, axis=1), concat(y, u, axis=1), groups=g)"
        " = add(conv2d(x, y, groups=g), conv2d(z, u, groups=g))\n"
    )
    for law in (outputs, inputs):
        with pytest.raises(RuleError, match="'naive' is false"):
            validate(rule(law.format(name="naive", where="where 2 <= g")), bindings=8)
        validate(rule(law.format(name="dense", where="where g == 1")), bindings=8)


def test_what_is_found_does_not_depend_on_the_run() -> None:
    text = "axiom odd\n  for x: [n, n]; y: [n, n]\n  matmul(x, y) = matmul(y, x)\n"
    messages = []
    for _ in range(2):
        with pytest.raises(RuleError) as caught:
            validate(rule(text), seed=5)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
