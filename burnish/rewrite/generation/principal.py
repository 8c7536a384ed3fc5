"""Principal types: the most general symbolic sizes at which a term of a domain is well-typed (by unification).

Every extent and every numeric attribute becomes a name of its own; what an operator demands of its arguments becomes
equations between polynomials, solved one by one. An equation that is not linear in any name is solved by giving names
their values in the domain, ones first: what is found is then not the most general, but still general.

The types only propose: that both sides of a rule have equal types and values is tested at random sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from burnish.loops.sizes import unbounded
from burnish.ops.movement import matched_groups
from burnish.rewrite.generation.domains import Shape
from burnish.rewrite.language.sizes import (
    is_extent,
    name_of,
    names_of,
    number_of,
    put_in,
    size_text,
    terms_of,
    value_of,
)
from burnish.rewrite.language.terms import Apply, Condition, Term, TermVariable, Value

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """An extent that is ``span // stride + 1``: the number of positions of a window."""

    span: int
    stride: int


class Unifier:
    """Names with their values in the domain, what is known of them, and conditions that operators put on them.

    A name begins with its kind: d (extent), k (kernel), p (pad), s (stride), g (groups), i (start of a part),
    f (number of windows). ``axis[name]`` tells apart attributes of different dimensions.
    """

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.known: dict[str, int] = {}
        self.axis: dict[str, int] = {}
        self.windows: dict[str, Windows] = {}
        self.conditions: list[Condition] = []

    def fresh(self, kind: str, value: int, axis: int = 0) -> int:
        """A new name."""
        name = f"{kind}{len(self.values) + 1}"
        self.values[name] = value
        self.axis[name] = axis
        return unbounded(name)

    def of(self, size: int) -> int:
        """``size`` with what is known put in."""
        while any(name in self.known for name in names_of(size)):
            size = put_in(size, self.known)
        return size

    def count(self, span: int, stride: int) -> int:
        """The number of positions of a window that can move by ``span`` in steps of ``stride``."""
        span, stride = self.of(span), self.of(stride)
        for name, other in self.windows.items():
            if name not in self.known and self.of(other.span) == span and self.of(other.stride) == stride:
                return unbounded(name)
        count = self.fresh("f", value_of(span, self.values) // value_of(stride, self.values) + 1)
        self.windows[size_text(count)] = Windows(span, stride)
        return count

    def unify(self, a: int, b: int) -> None:
        """Makes two sizes equal. They are of equal value in the domain."""
        a, b = self.of(a), self.of(b)
        if a == b:
            return
        one, other = name_of(a) or "", name_of(b) or ""
        left, right = self.windows.get(one), self.windows.get(other)
        apart = left and right and not {one, other} & (self._under(one) | self._under(other))
        if left is not None and right is not None and apart:
            self.known[one] = b
            self.unify(left.stride, right.stride)
            self.unify(left.span, right.span)
            return
        difference = a - b
        counted = sorted(n for n in names_of(difference) if n in self.windows)
        if counted and not self._named(a, b, counted[0]) and not self._named(b, a, counted[0]):
            self._step(counted[0])
        else:
            self._solve(difference)
        self.unify(a, b)

    def _named(self, extent: int, count: int, window: str) -> bool:
        """Makes an extent that is a mere name, on which the window does not depend, the window's count."""
        name = name_of(extent)
        if name is None or name_of(count) != window or name[0] != "d" or name in self._under(window):
            return False
        self.known[name] = count
        return True

    def _under(self, window: str) -> frozenset[str]:
        """All names on which a count of windows depends."""
        names = names_of(self.of(self.windows[window].span), self.of(self.windows[window].stride))
        return names.union(*(self._under(n) for n in names if n in self.windows))

    def _step(self, name: str) -> None:
        """Windows whose number is added to something move in steps of one."""
        window = self.windows.pop(name)
        self.known[name] = window.span + 1
        if number_of(self.of(window.stride)) is None:
            self.unify(window.stride, 1)

    def _solve(self, difference: int) -> None:
        terms = [(tuple(map(str, m)), f) for m, f in terms_of(difference)]  # before windows are put in, of names alone
        linear = {m[0]: f for m, f in terms if len(m) == 1 and abs(f) == 1}
        for monomial, _ in terms:
            if len(monomial) > 1 or (monomial and monomial[0] in self.windows):
                for name in monomial:
                    linear.pop(name, None)
        if linear:
            solutions = {n: (difference - unbounded(n) * f) * -f for n, f in linear.items()}
            name = max(
                solutions, key=lambda n: (min(f for _, f in terms_of(solutions[n]) or [((), 0)]) >= 0, int(n[1:]))
            )
            self.known[name] = solutions[name]
            return
        if self._factors(difference):
            return
        names = sorted(names_of(difference), key=lambda n: int(n[1:]))
        if not names:
            raise AssertionError(f"{size_text(difference)} is not 0 at the sizes of the domain")
        chosen = [n for n in names if self.values[n] == 1][:1] or [n for n in names if n[0] == "g"][:1] or names
        for name in chosen:
            self.known[name] = self.values[name]

    def _factors(self, difference: int) -> bool:
        """Solves a·b = c·d by equal factors."""
        terms = [(tuple(map(str, m)), f) for m, f in terms_of(difference)]
        if len(terms) != 2 or sum(f for _, f in terms) != 0:
            return False
        (a, _), (b, _) = terms
        if len(a) != len(b):
            return False
        rest = list(b)
        pairs = []
        for name in a:
            same = [n for n in rest if n[0] == name[0] and self.values[n] == self.values[name]]
            same = same or [n for n in rest if self.values[n] == self.values[name]]
            if not same:
                return False
            rest.remove(same[0])
            pairs.append((name, same[0]))
        for x, y in pairs:
            if x != y:
                self.unify(unbounded(x), unbounded(y))
        return True


# --- terms ------------------------------------------------------------------------------------------------------------


def typed(
    u: Unifier, term: Term, variables: Mapping[str, Dims], cache: dict[Term, tuple[Dims, Shape, Term]]
) -> tuple[Dims, Shape, Term]:
    """Symbolic and concrete extents of a term, and the term with symbolic attributes. Fills ``cache``, which holds the
    variables' at first.
    """
    if term not in cache:
        assert isinstance(term, Apply)
        parts = [typed(u, a, variables, cache) for a in term.args]
        rule = _WORDS.get(term.word, _pointwise)
        dims, attrs = rule(u, [p[0] for p in parts], [p[1] for p in parts], dict(term.attrs))
        shape = tuple(value_of(u.of(d), u.values) for d in dims)
        symbolic = Apply(term.word, tuple(p[2] for p in parts), tuple(sorted(attrs.items())))
        cache[term] = dims, shape, symbolic
    return cache[term]


def resolved(u: Unifier, term: Term) -> Term:
    """A symbolic term with what is known put in."""
    if isinstance(term, TermVariable):
        return term
    return Apply(term.word, tuple(resolved(u, a) for a in term.args), tuple((k, _put(u, v)) for k, v in term.attrs))


def _put(u: Unifier, value: Value) -> Value:
    if is_extent(value):
        return u.of(value)
    return tuple(u.of(v) for v in value) if isinstance(value, tuple) else value


Attrs = dict[str, Value]
Infer = Callable[[Unifier, Sequence[Dims], Sequence[Shape], Attrs], tuple[Dims, Attrs]]


def _numbers(value: Value) -> tuple[int, ...]:
    """A concrete attribute of one or more integers."""
    sizes = value if isinstance(value, tuple) else (value,)
    return tuple(value_of(s, {}) for s in sizes if is_extent(s))


def _names(u: Unifier, kind: str, value: Value) -> tuple[int, ...]:
    """New names for an attribute of two or four integers: rows, columns, rows, columns."""
    return tuple(u.fresh(kind, n, i % 2) for i, n in enumerate(_numbers(value)))


def _pointwise(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    """Operators of one tensor that keep its shape; of two, with broadcasting."""
    if len(dims) == 1:
        return dims[0], attrs
    (a, b), (m, n) = dims, shapes
    rank = max(len(a), len(b))
    out = []
    for d in range(-rank, 0):
        if -d > len(a) or -d > len(b):
            out.append((a if -d <= len(a) else b)[d])
            continue
        if m[d] == n[d]:
            u.unify(a[d], b[d])
        else:
            u.unify(a[d] if m[d] == 1 else b[d], 1)
        out.append(b[d] if m[d] == 1 else a[d])
    return tuple(out), attrs


def _matmul(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    a, b = dims
    u.unify(a[-1], b[-2])
    lead, _ = _pointwise(u, [a[:-2], b[:-2]], [shapes[0][:-2], shapes[1][:-2]], {})
    return (*lead, *a[-2:-1], b[-1]), attrs


def _swap(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    (x,) = dims
    return (*x[:-2], x[-1], x[-2]), attrs


def _transpose(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    return tuple(dims[0][d] for d in _numbers(attrs["perm"])), attrs


def _reshape(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    (x,), (shape,) = dims, shapes
    target = _numbers(attrs["shape"])
    out = [*target]
    for own, other in matched_groups(shape, target):
        if len(other) == 1 and own:
            out[other[0]] = prod(x[d] for d in own)
        elif len(own) == 1:
            for d in other:
                out[d] = u.fresh("d", target[d])
            u.unify(x[own[0]], prod(out[d] for d in other))
        else:
            for d in own:
                u.unify(x[d], shape[d])
    return tuple(out), {"shape": tuple(out)}


def _concat(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    a, b = dims
    (axis,) = _numbers(attrs["axis"])
    axis %= len(a)
    for d, (x, y) in enumerate(zip(a, b, strict=True)):
        if d != axis:
            u.unify(x, y)
    return tuple(x + b[d] if d == axis else x for d, x in enumerate(a)), attrs


def _part(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    (x,) = dims
    (axis,), (start,), (extent,) = (_numbers(attrs[k]) for k in ("axis", "start", "extent"))
    size = u.fresh("d", extent)
    out = tuple(size if d == axis % len(x) else n for d, n in enumerate(x))
    return out, {**attrs, "start": u.fresh("i", start), "extent": size}


def _grow(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    (x,) = dims
    pads = _names(u, "p", attrs["pads"])
    u.conditions += [Condition(0, "<=", p) for p in pads]
    return (*x[:-2], x[-2] + pads[0] + pads[2], x[-1] + pads[1] + pads[3]), {"pads": pads}


def _conv2d(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    (x, weight), (_, shape) = dims, shapes
    (groups,) = _numbers(attrs["groups"])
    g, depth, outputs = u.fresh("g", groups), u.fresh("d", shape[1]), u.fresh("d", shape[0] // groups)
    u.unify(x[1], g * depth)
    u.unify(weight[1], depth)
    u.unify(weight[0], g * outputs)
    space, symbolic = _window(u, x[2:], weight[2:], attrs)
    return (x[0], weight[0], *space), {**symbolic, "groups": g}


def _window(u: Unifier, x: Dims, kernel: Dims, attrs: Attrs) -> tuple[Dims, Attrs]:
    strides, pads = _names(u, "s", attrs["strides"]), _names(u, "p", attrs["pads"])
    space = tuple(u.count(x[d] + pads[d] + pads[2 + d] - kernel[d], strides[d]) for d in (0, 1))
    return space, {**attrs, "strides": strides, "pads": pads}


def _pool(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    (x,) = dims
    kernel = _names(u, "k", attrs["kernel"])
    space, symbolic = _window(u, x[2:], kernel, attrs)
    pads = symbolic["pads"]
    assert isinstance(pads, tuple)
    for i, pad in enumerate(pads):  # no window lies in the padding alone
        u.conditions += [Condition(0, "<=", pad), Condition(pad, "<", kernel[i % 2])]
    return (*x[:2], *space), {**symbolic, "kernel": kernel}


def _eye(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    size = u.fresh("d", *_numbers(attrs["size"]))
    return (size, size), {"size": size}


def _full(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    shape = tuple(u.fresh("d", n) for n in _numbers(attrs["shape"]))
    return shape, {**attrs, "shape": shape}


def _box(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    channels, kernel = u.fresh("d", *_numbers(attrs["channels"])), _names(u, "k", attrs["kernel"])
    return (channels, 1, *kernel), {"channels": channels, "kernel": kernel}


def _dirac(u: Unifier, dims: Sequence[Dims], shapes: Sequence[Shape], attrs: Attrs) -> tuple[Dims, Attrs]:
    (channels,), (groups,) = _numbers(attrs["channels"]), _numbers(attrs["groups"])
    g, depth = u.fresh("g", groups), u.fresh("d", channels // groups)
    kernel, at = _names(u, "k", attrs["kernel"]), _names(u, "p", attrs["at"])
    for p, k in zip(at, kernel, strict=True):
        u.conditions += [Condition(0, "<=", p), Condition(p, "<", k)]
    return (g * depth, depth, *kernel), {"channels": g * depth, "groups": g, "kernel": kernel, "at": at}


_WORDS: Mapping[str, Infer] = {
    "matmul": _matmul, "swap": _swap, "transpose": _transpose, "reshape": _reshape, "concat": _concat, "part": _part,
    "grow": _grow, "conv2d": _conv2d, "max_pool2d": _pool, "avg_pool2d": _pool, "eye": _eye, "full": _full,
    "box": _box, "dirac": _dirac,
}  # fmt: skip
