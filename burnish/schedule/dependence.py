"""Dependence analysis: whether iterations touch the same elements, so that a loop may be reordered or parallel."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from burnish.loops.bounds import linear_bounds
from burnish.loops.expr import Binary, Const, Expr, Var
from burnish.loops.linear import Linear, divided, from_linear, size_part, to_linear
from burnish.loops.program import Intrinsic, Stmt, walk_stmt
from burnish.loops.regions import BufferAccess, accesses, ranges_of
from burnish.loops.simplify import Ranges, bounds, simplify
from burnish.loops.sizes import extent_of, greatest, is_size
from burnish.loops.traverse import free_vars, substitute, transform, walk

Digit = tuple[str, int]  # (loop variable, place value): the variable in a mixed radix, (x // place) % size
Form = tuple[dict[Expr, int], dict[Digit, int], float, float]  # fixed terms, digits, the interval of the rest


def carried(body: Stmt, loops: Mapping[str, int], ranges: Ranges, reassociate: bool) -> str | None:
    """Loop-carried dependence: why iterations of ``loops`` around ``body`` depend on each other; None if they do not.

    ``ranges`` are those of the loops further out, which stay fixed. With ``reassociate``, buffers that are only
    combined into by one reduction do not count: its order is free (floating-point sums are re-associated).
    """
    inside = body.allocates
    shared = body.writes - inside
    if any(isinstance(s, Intrinsic) for s in walk_stmt(body)):
        return "it contains an intrinsic, whose footprint is unknown here; tensorize last"
    for name in sorted(shared):
        touching = accesses(body, {**ranges, **loops}, of=name)
        kinds = {a.reduce for a in touching}
        if reassociate and len(kinds) == 1 and None not in kinds:
            continue
        clashing = undetermined(touching, loops)
        if clashing:
            verb = "combined into" if None not in kinds else "written"
            return f"buffer '{name}' is {verb} by several iterations of {', '.join(repr(v) for v in clashing)}"
    return None


def undetermined(touching: Sequence[BufferAccess], loops: Mapping[str, int]) -> list[str]:
    """Dependence test: those of ``loops`` whose different iterations may touch a common element through any two
    accesses.

    Loops inside of these count as anything at first, then as more of them: where an element fixes the iterations of
    all, as ``x[i * 16 + j]`` does for ``j < 16``, it fixes those of ``j`` alone.
    """
    found = _undetermined(touching, loops)
    if not found:
        return found
    first, *others = (a.ranges for a in touching)
    outer = _outer(first, loops)
    inner = {
        name: n
        for name, n in first.items()
        if name not in loops and name not in outer and all(ranges.get(name) == n for ranges in others)
    }
    wider = _undetermined(touching, {**loops, **inner}) if inner else found
    return [name for name in found if name in wider]


def _undetermined(touching: Sequence[BufferAccess], loops: Mapping[str, int]) -> list[str]:
    """See :func:`undetermined`, with loops inside as anything."""
    divided_loop = _divide_loop(touching, loops)
    if divided_loop is not None:
        whole, parts, touching, parted = divided_loop
        found = _undetermined(touching, parted)
        return [name for name in loops if name in found or (name == whole and not parts.isdisjoint(found))]
    joined = _join_loops(touching, loops)
    if joined is not None:
        whole, members, touching_whole, loops_whole = joined
        found = _undetermined(touching_whole, loops_whole)
        return [name for name in loops if name in found or (whole in found and name in members)]
    varying = {name: greatest(extent) for name, extent in loops.items() if greatest(extent) > 1}
    tuples = [_dimensions(a.indices, ranges_of(a.indices, a.ranges)) for a in touching]
    digits = {name: _digits(name, extent, tuples) for name, extent in varying.items()}
    rank = len(tuples[0])
    dimensions = [
        form
        for d in range(rank)
        if (form := _common([_form(t[d], a.ranges, digits, loops) for t, a in zip(tuples, touching, strict=True)]))
    ]
    open_digits = {(name, place): size for name, sizes in digits.items() for place, size in sizes.items() if size > 1}
    progress = True
    while progress:
        progress = False
        for _, coefficients, low, high in dimensions:
            for digit in _determined(coefficients, open_digits, high - low):
                del open_digits[digit]
                progress = True
    return [name for name in loops if any(digit[0] == name for digit in open_digits)]


def _divide_loop(
    touching: Sequence[BufferAccess], loops: Mapping[str, int]
) -> tuple[str, set[str], list[BufferAccess], dict[str, int]] | None:
    """A loop that is read as quotient and remainder by a size only, as two: its name, theirs, and what follows.

    Its extent is a multiple of the size: two loops fused, of which the inner one's extent is not a number. Or it is,
    and quotient or remainder are parts of a sum that is divided once more, as in ``(i * 8 + lane // 4) // 7``.
    """
    values: dict[Expr, Expr]
    for name, extent in loops.items():
        if not is_size(extent):
            found = _divide_within_sum(name, touching)
            least = min(found, default=0)
            if found and extent % least == 0:
                over, under = f"{name}/", f"{name}%"
                own, values = {over: extent // least, under: least}, {}
                for number in found:
                    by, rest = Const(number), number // least
                    values[Binary("//", Var(name), by)] = Var(over) // rest if rest > 1 else Var(over)
                    left = Var(over) % rest * least + Var(under) if rest > 1 else Var(under)
                    values[Binary("%", Var(name), by)] = left
                parted = [_with_parts(a, name, own, values) for a in touching]
                if not any(name in i.variables for a in parted for i in a.indices):
                    return name, set(own), parted, _in_place(loops, name, own)
            continue
        indices = [simplify(i, a.ranges) for a in touching for i in a.indices if name in i.variables]
        sizes = {x.b for i in indices for x in walk(i) if isinstance(x, Binary) and x.a == Var(name) and x.b.symbolic}
        size = sizes.pop() if len(sizes) == 1 else None
        whole = divided(to_linear(extent), size) if is_size(size) else None
        count = None if whole is None else size_part(whole)
        if size is None or count is None:
            continue
        over, under = f"{name}/", f"{name}%"
        parts = {over: count, under: extent_of(size)}
        values = {Binary("//", Var(name), size): Var(over), Binary("%", Var(name), size): Var(under)}
        divided_touching = [_with_parts(a, name, parts, values) for a in touching]
        if not any(name in i.variables for a in divided_touching for i in a.indices):
            return name, set(parts), divided_touching, _in_place(loops, name, parts)
    return None


def _divide_within_sum(name: str, touching: Sequence[BufferAccess]) -> set[int]:
    """The numbers, multiples of one of them, that a variable is divided by, where it is in sums of several terms that
    are divided again.
    """
    sizes: set[int] = set()
    within = False
    for a in touching:
        for index in a.indices:
            if name not in index.variables:
                continue
            for e in walk(simplify(index, a.ranges)):
                if not isinstance(e, Binary) or e.op not in ("//", "%") or not isinstance(e.b, Const):
                    continue
                if e.a == Var(name):
                    sizes.add(int(e.b.value))
                elif name in e.a.variables:
                    within = within or any(isinstance(t, Binary) and t.a == Var(name) for t in to_linear(e.a)[0])
    return sizes if within and all(size % min(sizes) == 0 for size in sizes) else set()


def _with_parts(a: BufferAccess, name: str, parts: Mapping[str, int], values: Mapping[Expr, Expr]) -> BufferAccess:
    """An access in terms of the quotient and the remainder of a loop's variable."""
    indices = tuple(transform(simplify(i, a.ranges), lambda x: values.get(x, x)) for i in a.indices)
    return replace(a, indices=indices, ranges=_in_place(a.ranges, name, parts))


def _in_place(ranges: Mapping[str, int], name: str, parts: Mapping[str, int]) -> dict[str, int]:
    """Ranges with those of ``parts`` in the place of one."""
    placed: dict[str, int] = {}
    for other, extent in ranges.items():
        placed.update({other: extent} if other != name else parts)
    return placed


def _join_loops(
    touching: Sequence[BufferAccess], loops: Mapping[str, int]
) -> tuple[str, set[str], list[BufferAccess], dict[str, int]] | None:
    """Several loops as one: its name, theirs, and the accesses and loops rewritten; None where there are no such loops.

    Where all indices read ``o`` and ``i`` as ``o * 13 + i`` only, as in ``(o * 13 + i) // 7``, and ``i < 13``, that sum
    is the variable of one loop, which determines both. ``o`` alone is its quotient by 13.
    """
    for terms in _sums(touching):
        outer, last = _radix(terms, touching[0].ranges)
        if last is None or not set(terms) & set(loops):
            continue
        whole = " + ".join(terms)
        rest: Expr = Var(whole)
        for name in outer:
            rest = rest - Var(name) * terms[name]
        places: dict[str, Expr] = {}
        for number, name in enumerate(outer):
            place = Var(whole) // terms[name]
            places[name] = place % touching[0].ranges[name] if number else place
        fixed = _outer(touching[0].ranges, loops) - terms.keys()
        rewritten = [_with_sum(a, whole, terms, {last: rest}, places, fixed) for a in touching]
        if any(free_vars(i) & set(terms) for a in rewritten for i in a.indices):
            continue
        others = {name: extent for name, extent in loops.items() if name not in terms}
        return whole, set(terms), rewritten, {whole: rewritten[0].ranges[whole], **others}
    return None


def _sums(touching: Sequence[BufferAccess]) -> Iterator[dict[str, int]]:
    """Sums of several variables that are divided as one: variable -> coefficient."""
    for a in touching:
        for terms in _divided(a.indices, ranges_of(a.indices, a.ranges)):
            if all(name in x.ranges for name in terms for x in touching):
                yield terms


@lru_cache(maxsize=1 << 12)
def _divided(indices: tuple[Expr, ...], known: tuple[tuple[str, int], ...]) -> tuple[dict[str, int], ...]:
    """Linear sums of several variables that the indices divide, over these ranges: variable -> coefficient."""
    ranges = dict(known)
    inside = [e for i in indices for e in walk(simplify(i, ranges)) if isinstance(e, Binary) and e.op in ("//", "%")]
    sums = [to_linear(e.a)[0] for e in inside]
    alike = (terms for terms in sums if len(terms) > 1 and all(isinstance(v, Var) for v in terms))
    return tuple({str(v): c for v, c in terms.items()} for terms in alike)


def _radix(terms: Mapping[str, int], ranges: Ranges) -> tuple[list[str], str | None]:
    """The variables of a sum but the last, and the last, if every value of the sum fixes all of them; else no last."""
    *outer, last = sorted(terms, key=lambda name: -terms[name])
    reach = 0
    for name in (last, *reversed(outer)):
        if terms[name] <= reach:
            return [], None
        reach += terms[name] * (greatest(ranges[name]) - 1)
    return (outer, last) if terms[last] == 1 else ([], None)


def _with_sum(
    a: BufferAccess,
    whole: str,
    terms: Mapping[str, int],
    values: Mapping[str, Expr],
    places: Mapping[str, Expr],
    fixed: Collection[str],
) -> BufferAccess:
    """An access in terms of the variable ``whole`` in place of those of ``terms``: first of the last one, whose sum
    with the others it is, then of those that are left, each at its place in ``whole``. Loops that stay ``fixed`` come
    first.
    """
    extent = 1 + sum(c * (a.ranges[name] - 1) for name, c in terms.items())
    ranges = {name: own for name, own in a.ranges.items() if name in fixed}
    for name, own in a.ranges.items():
        ranges.update({name: own} if name not in terms else {whole: extent})
    known = {**a.ranges, whole: extent}
    summed = (simplify(substitute(simplify(i, a.ranges), values), known) for i in a.indices)
    indices = tuple(simplify(substitute(i, places), known) if i.variables & places.keys() else i for i in summed)
    return replace(a, indices=indices, ranges=ranges)


def _determined(coefficients: Mapping[Digit, int], open_digits: Mapping[Digit, int], noise: float) -> list[Digit]:
    """Digits that the value of this dimension fixes: each weighs more than all smaller terms together."""
    terms = sorted(((abs(c), d) for d, c in coefficients.items() if d in open_digits), reverse=True)
    found = []
    for position, (c, digit) in enumerate(terms):
        rest = noise + sum(k * (open_digits[d] - 1) for k, d in terms[position + 1 :])
        if c <= rest:
            break
        found.append(digit)
    return found


@lru_cache(maxsize=1 << 12)
def _dimensions(indices: tuple[Expr, ...], known: tuple[tuple[str, int], ...]) -> tuple[Linear, ...]:
    """The linear forms of indices, over these ranges, blocked dimensions joined and remainders of sums taken apart."""
    ranges = dict(known)
    merged = _merge_pairs([to_linear(simplify(i, ranges)) for i in indices])
    return tuple(to_linear(_split_remainders(from_linear(*form), ranges)) for form in merged)


def _split_remainders(e: Expr, ranges: Ranges) -> Expr:
    """``(g x + r) % (g d)`` as ``(x % d) * g + r`` where ``0 <= r < g``."""
    return transform(e, lambda part: _split_remainder(part, ranges))


def _split_remainder(e: Expr, ranges: Ranges) -> Expr:
    if not (isinstance(e, Binary) and e.op == "%" and isinstance(e.b, Const)):
        return e
    (terms, const), modulus = to_linear(e.a), int(e.b.value)
    for g in sorted({math.gcd(c, modulus) for c in terms.values()} - {1}, reverse=True):
        small = {atom: c for atom, c in terms.items() if c % g}
        low, high = linear_bounds((small, const % g), ranges)
        if small and low >= 0 and high < g:
            large = {atom: c // g for atom, c in terms.items() if c % g == 0}
            return from_linear(large, const // g) % (modulus // g) * g + from_linear(small, const % g)
    return e


def _merge_pairs(index: list[Linear]) -> list[Linear]:
    """Joins the dimensions ``e // c`` and ``e % c`` (a blocked layout) into ``e``."""
    merged = list(index)
    for i, (terms, const) in enumerate(index):
        if len(terms) != 1 or const:
            continue
        ((atom, c),) = terms.items()
        if c == 1 and isinstance(atom, Binary) and atom.op == "//":
            rest: Linear = ({Binary("%", atom.a, atom.b): 1}, 0)
            if rest in index:
                merged[i] = to_linear(atom.a)
                merged[index.index(rest)] = ({}, 0)
    return merged


def _digits(name: str, extent: int, tuples: Iterable[tuple[Linear, ...]]) -> dict[int, int]:
    """Place value -> size of the mixed radix in which every ``//`` and ``%`` of the variable is a run of digits."""
    cuts = {1}
    for index in tuples:
        for terms, _ in index:
            for atom in terms:
                run = _run(atom, name)
                if run:
                    cuts |= {int(c) for c in run if c < extent}
    places = sorted(cuts)
    if any(b % a for a, b in pairwise(places)):
        places = [1]
    ends = [*places[1:], places[-1] * -(-extent // places[-1])]
    return {p: end // p for p, end in zip(places, ends, strict=True)}


def _run(atom: Expr, name: str) -> tuple[int, float] | None:
    """(low place, end place) when ``atom`` is ``x``, ``x // c``, ``x % c``, ``x // c % b`` or ``x % (b c) // c`` of
    variable ``name``.
    """
    match atom:
        case Var(n) if n == name:
            return 1, math.inf
        case Binary("//", Var(n), Const(c, _)) if n == name:
            return int(c), math.inf
        case Binary("%", Var(n), Const(c, _)) if n == name:
            return 1, int(c)
        case Binary("%", Binary("//", Var(n), Const(c, _)), Const(b, _)) if n == name:
            return int(c), int(c) * int(b)
        case Binary("//", Binary("%", Var(n), Const(b, _)), Const(c, _)) if n == name and b % c == 0:
            return int(c), int(b)
    return None


def _form(form: Linear, ranges: Ranges, digits: Mapping[str, Mapping[int, int]], loops: Mapping[str, int]) -> Form:
    """Splits a linear form into terms of loops further out, digits of the loops in question, and bounded noise."""
    fixed: dict[Expr, int] = {}
    coefficients: dict[Digit, int] = {}
    low = high = float(form[1])
    inner = set(ranges) - _outer(ranges, loops)
    for atom, c in form[0].items():
        names = free_vars(atom)
        if not names & inner:
            fixed[atom] = c
            continue
        name = next(iter(names)) if len(names) == 1 else ""
        run = _run(atom, name) if name in digits else None
        places = digits.get(name, {})
        if run and run[0] in places and (run[1] in places or run[1] >= greatest(loops[name])):
            for place in places:
                if run[0] <= place < run[1]:
                    digit = (name, place)
                    coefficients[digit] = coefficients.get(digit, 0) + c * (place // run[0])
            continue
        p, q = bounds(atom, ranges)
        low += c * (p if c > 0 else q)
        high += c * (q if c > 0 else p)
    return fixed, coefficients, low, high


def _outer(ranges: Ranges, loops: Mapping[str, int]) -> set[str]:
    """Variables of the loops around those in question: they come first in ``ranges``."""
    first = min((position for position, name in enumerate(ranges) if name in loops), default=len(ranges))
    return set(list(ranges)[:first])


def _common(forms: Sequence[Form]) -> Form | None:
    """One form for all accesses: equal but for the noise, whose union counts; None when they move differently."""
    fixed, coefficients, _, _ = forms[0]
    if any(f[0] != fixed or f[1] != coefficients for f in forms[1:]):
        return None
    low, high = min(f[2] for f in forms), max(f[3] for f in forms)
    return (fixed, coefficients, low, high) if math.isfinite(low) and math.isfinite(high) else None
