"""The generator: its forms against the definitions, its terms, and the substitutions that it must find."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from burnish.rewrite.generation import forms
from burnish.rewrite.generation.domains import DOMAINS, MATRIX, Domain
from burnish.rewrite.generation.enumerate import enumerate_terms
from burnish.rewrite.generation.generalize import Pair, generalize, most_general
from burnish.rewrite.generation.generate import generate, text
from burnish.rewrite.generation.prune import Nodes, orbits, prune
from burnish.rewrite.language.terms import (
    Apply,
    RewriteRule,
    TermVariable,
    parse_rules,
    parse_term,
    substitute,
    subterms,
    variables,
)
from burnish.rewrite.proofs.field import PRIMES, PrimeField
from burnish.rewrite.proofs.validate import validate

_DENSE = "strides=(1, 1), pads=(1, 1, 1, 1), groups=1"
_POINT = "strides=(1, 1), pads=(0, 0, 0, 0), groups=1"
_DEPTH = "strides=(1, 1), pads=(1, 1, 1, 1), groups=2"
_POOL = "kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)"
_MEAN = f"count_include_pad=True, {_POOL}"
_DIRAC = "dirac(channels=2, groups=1, kernel=(3, 3), at=(1, 1))"

NAMED = {
    "associativity": ("matrix", "matmul(x, matmul(y, z))", "matmul(matmul(x, y), z)"),
    "transpose": ("matrix", "swap(matmul(x, y))", "matmul(swap(y), swap(x))"),
    "join": ("matrix", "concat(matmul(x, y), matmul(x, z), axis=-1)", "matmul(x, concat(y, z, axis=-1))"),
    "input": ("convolution", f"conv2d(add(x, y), w, {_DENSE})", f"add(conv2d(x, w, {_DENSE}), conv2d(y, w, {_DENSE}))"),
    "tie": ("convolution", f"conv2d(x, add(w, v), {_DENSE})", f"add(conv2d(x, w, {_DENSE}), conv2d(x, v, {_DENSE}))"),
    "grow": ("convolution", f"conv2d(x, q, {_POINT})", f"conv2d(x, grow(q, pads=(1, 1, 1, 1)), {_DENSE})"),
    "box": ("convolution", f"avg_pool2d(x, {_MEAN})", f"conv2d(x, box(channels=2, kernel=(3, 3)), {_DEPTH})"),
    "pools": (
        "convolution",
        f"add(avg_pool2d(x, {_MEAN}), avg_pool2d(y, {_MEAN}))",
        f"conv2d(add(x, y), box(channels=2, kernel=(3, 3)), {_DEPTH})",
    ),
    "branches": (
        "convolution",
        f"add(conv2d(x, w, {_DENSE}), conv2d(x, q, {_POINT}))",
        f"conv2d(x, add(w, grow(q, pads=(1, 1, 1, 1))), {_DENSE})",
    ),
    "residual": ("convolution", f"add(x, conv2d(x, w, {_DENSE}))", f"conv2d(x, add(w, {_DIRAC}), {_DENSE})"),
    "relu of pool": ("convolution", f"relu(max_pool2d(x, {_POOL}))", f"max_pool2d(relu(x), {_POOL})"),
    "channels": ("broadcast", "matmul(mul(x, v), w)", "matmul(x, mul(w, reshape(v, shape=(4, 1))))"),
}


def general(domain: str, left: str, right: str) -> list[RewriteRule]:
    chosen = DOMAINS[domain]
    a, b = (tuple(map(parse_term, side.split("; "))) for side in (left, right))
    names = {n for t in (*a, *b) for n in variables(t)}
    pair = Pair(a, b, {n: chosen.shapes[s] for n, s in chosen.variables.items() if n in names})
    return generalize(most_general(pair), "r", chosen)


@pytest.mark.parametrize("name", NAMED)
def test_named_pairs_generalize_to_valid_rules(name: str) -> None:
    rules = general(*NAMED[name])
    assert rules
    for rule in rules:
        validate(rule, bindings=4, points=1, mid_bindings=1)
        assert rule.sizes  # symbolic
        assert [str(r) for r in parse_rules(str(rule))] == [str(rule)]


def test_branches_of_unequal_kernels_keep_strides_pads_and_groups() -> None:
    (rule,) = general(*NAMED["branches"])
    assert {"s1", "s2", "g1"} <= set(rule.sizes)
    assert len([n for n in rule.sizes if n[0] == "p"]) >= 6


def test_a_merge_stays_the_parts_of_one_product() -> None:
    rules = general(
        "matrix",
        "matmul(x, y); matmul(x, z)",
        "part(matmul(x, concat(y, z, axis=-1)), axis=-1, start=0, extent=3); "
        "part(matmul(x, concat(y, z, axis=-1)), axis=-1, start=3, extent=3)",
    )
    assert rules and all(len(r.types) == 3 for r in rules)


def test_an_identity_of_one_size_is_no_rule() -> None:
    ones = "full(shape=(3, 3), value=1)"
    assert general("matrix", f"mul(x, matmul({ones}, {ones}))", "add(x, add(x, x))") == []


def test_leading_dimensions_are_given_only_where_every_word_takes_them() -> None:
    rules = general("matrix", "concat(x, matmul(x, y), axis=-1)", "matmul(x, concat(eye(size=3), y, axis=-1))")
    assert any(r.types["x"].lead for r in rules)
    assert all(r.types["y"].lead is None for r in rules)  # it is joined with the identity, a matrix


@pytest.mark.parametrize("name", DOMAINS)
def test_forms_are_the_definitions(name: str) -> None:
    over = PrimeField(PRIMES[1])
    random = np.random.default_rng(11)
    for instance in DOMAINS[name].instances()[::5]:
        form = forms.form(instance, over)
        inputs = [over.random(random, (2, int(np.prod(s, dtype=int)))) for s in instance.shapes]
        if form.kind != "opaque":
            values = forms.evaluate(instance, inputs, over).astype(object)  # Python's integers
            expected = values @ forms.projection(instance.shape, over).T.astype(object)
            assert (forms.fingerprints(form, inputs, over) == expected % over.prime).all()


def test_terms_have_distinct_values_and_no_term_occurs_twice() -> None:
    terms = enumerate_terms(MATRIX, 2)
    level = terms.levels[1]
    keys = set(zip(level.operator.tolist(), level.a.tolist(), level.b.tolist(), strict=True))
    assert len(keys) == len(level.a)
    for n in (0, 1):
        for (_, size), values in terms.values.items():
            if size == n:
                assert len(np.unique(values, axis=0)) == len(values)


def test_rules_of_size_one_are_found_and_the_text_is_the_same_under_any_hash_seed() -> None:
    small = replace(MATRIX, operators=tuple(o for o in MATRIX.operators if "wide" not in o and "tall" not in o))
    here = text(generate([small], 1))
    assert "add(x, y) = add(y, x)" in here
    assert parse_rules(here)
    program = (
        "from dataclasses import replace; from burnish.rewrite.generation.domains import MATRIX;"
        "from burnish.rewrite.generation.generate import generate, text;"
        "small = replace(MATRIX, operators=tuple(o for o in MATRIX.operators if 'wide' not in o and 'tall' not in o));"
        "print(text(generate([small], 1)), end='')"
    )
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, "-c", program]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert run.stdout == here


def test_renaming_and_common_subgraphs_leave_one_pair_of_each_kind() -> None:
    sums = Domain("sums", {"square": (3, 3)}, dict.fromkeys("xyz", "square"), (), ("add(square, square)",))
    terms = enumerate_terms(sums, 2)
    one, two = (prune(Nodes(terms, n), n) for n in (1, 2))
    assert (one.terms, one.pairs, one.renamed, len(one.kept)) == (9, 3, 1, 1)  # y + x = x + y
    # v + (x + y) and (x + y) + v: the second kind is y + x = x + y with x + y for x, unless v is in it.
    assert two.renamed > len(two.kept) > 0
    level = terms.levels[1]
    for row in two.kept:
        left = terms.applied(level.operator[row], level.a[row], level.b[row])
        right = terms.term(level.value[row])
        assert str(left) != str(right) and isinstance(left, Apply) and isinstance(right, Apply)
        common = {a for a in left.args if isinstance(a, Apply)} & {a for a in right.args if isinstance(a, Apply)}
        assert not common  # addition is a law of any tensors: what both have in common could be one


def test_orbits_are_terms_up_to_the_names_of_variables() -> None:
    terms = enumerate_terms(MATRIX, 2)
    nodes = Nodes(terms, 2)
    orbit = orbits(nodes, np.flatnonzero(nodes.level > 0))
    assert (orbit <= np.arange(len(orbit))).all() and (orbit[orbit] == orbit).all()
    texts = {}
    for node in range(nodes.start[1], len(nodes.value)):
        term = terms.applied(nodes.operator[node], nodes.a[node], nodes.b[node])
        names = dict.fromkeys(t.name for t in subterms(term) if isinstance(t, TermVariable) and t.name != "s")
        text_ = str(substitute(term, {n: TermVariable(f"v{i}") for i, n in enumerate(names)}))
        texts.setdefault(int(orbit[node]), set()).add(text_)
    assert all(len(t) <= 2 for t in texts.values())  # a class may be written with its variables in another order
    assert sum(len(t) == 1 for t in texts.values()) > 0.9 * len(texts)


def test_of_merges_only_those_are_kept_that_no_other_implies() -> None:
    words = ("matmul(square, square)", "matmul(square, wide)", "concat(square, square, axis=-1)")
    parts = ("part(wide, axis=-1, start=0, extent=3)", "part(wide, axis=-1, start=3, extent=3)")
    products = replace(MATRIX, name="products", constants=(), operators=words + parts, leading=False)
    for size in (3, 4):
        (found,) = generate([products], size)
        merges = [rule for rule in found.rules if " merge " in rule.name]
        assert found.merges == len(merges) == 1  # larger ones are this one of products
        assert {t.word for t in merges[0].left if isinstance(t, Apply)} == {"matmul"}


def test_two_outputs_are_told_apart_together_and_stay_computed_together() -> None:
    chains = replace(MATRIX, name="chains", constants=(), operators=("matmul(square, square)",), leading=False)
    (found,) = generate([chains], 3)
    (rule,) = [rule for rule in found.rules if " joint " in rule.name]
    assert found.joint == 1 and found.merges == 0
    products = [
        {t for term in side for t in subterms(term) if isinstance(t, Apply)} for side in (rule.left, rule.right)
    ]
    assert [len(side) for side in products] == [4, 3]  # neither output alone takes fewer
    validate(rule, bindings=3, points=1, mid_bindings=1)


def test_beyond_four_operators_the_table_holds_halves_and_smaller_terms_alone() -> None:
    sums = replace(MATRIX, operators=("add(square, square)", "concat(square, square, axis=-1)"), constants=())
    terms = enumerate_terms(sums, 3)
    some, whole = Nodes(terms, 3, 2, [1]), Nodes(terms, 3)
    kept = (whole.level < 3) | (whole.operator == 1)
    np.testing.assert_array_equal(some.value, whole.value[kept])
    np.testing.assert_array_equal(some.operator, whole.operator[kept])
