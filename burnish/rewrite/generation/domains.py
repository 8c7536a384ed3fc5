"""Domains: the tensors and operators that substitutions are enumerated from, as named data (thesis-jia table 2.1).

A term of a domain is one of its leaves, or one of its operators applied to terms. The shapes listed are those that
terms may have: they bound the enumeration where a chain of joins would go on for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from burnish.errors import ModelError
from burnish.graph.graph import Graph
from burnish.rewrite.language.terms import Apply, Term, TermVariable, Value, parse_term
from burnish.rewrite.language.vocabulary import Binding, Shape, word_graph

NOTHING = Binding({}, {})  # terms of a domain name no sizes


@dataclass(frozen=True)
class Instance:
    """An operator at concrete shapes. ``shapes`` are those of its arguments, ``shape`` that of its result."""

    word: str
    attrs: tuple[tuple[str, Value], ...]
    shapes: tuple[Shape, ...]
    shape: Shape
    graph: Graph

    def term(self, *args: Term) -> Term:
        """The term that applies it."""
        return Apply(self.word, args, self.attrs)


@dataclass(frozen=True)
class Domain:
    """``variables`` and ``shapes`` by name; ``constants`` and ``operators`` are terms.

    An operator's arguments name shapes of the domain, ``_`` any of them. It is applied to every choice of arguments
    whose result has a shape of the domain.

    What is computed from ``weights`` alone costs nothing: models hold their weights as constants. ``leading`` says that
    variables may have further dimensions in front of those they have here. ``size``: the operators of the largest terms
    of which substitutions are made.
    """

    name: str
    shapes: Mapping[str, Shape]
    variables: Mapping[str, str]
    constants: tuple[str, ...]
    operators: tuple[str, ...]
    weights: frozenset[str] = frozenset()
    leading: bool = False
    size: int = 3

    def leaves(self) -> list[tuple[Term, Shape]]:
        """Variables and constants with their shapes, in the order in which they are preferred."""
        known: list[tuple[Term, Shape]] = [(TermVariable(v), self.shapes[s]) for v, s in self.variables.items()]
        for text in self.constants:
            term = parse_term(text)
            assert isinstance(term, Apply)
            known.append((term, constant(term).shape))
        return known

    def instances(self) -> list[Instance]:
        """Every operator at every choice of shapes that it accepts and whose result has a shape of the domain."""
        return [instance for text in self.operators for instance in self._instances(parse_term(text))]

    def _instances(self, pattern: Term) -> Iterator[Instance]:
        assert isinstance(pattern, Apply)
        allowed = set(self.shapes.values())
        named = [sorted(allowed) if str(a) == "_" else [self.shapes[str(a)]] for a in pattern.args]
        for shapes in product(*named):
            try:
                instance = _instance(pattern, shapes)
            except ModelError:
                continue
            if instance.shape in allowed:
                yield instance


def constant(term: Apply) -> Instance:
    """A constant leaf as an operator of no tensor."""
    return _instance(term, ())


def _instance(pattern: Apply, shapes: tuple[Shape, ...]) -> Instance:
    graph = word_graph(pattern.word, shapes, NOTHING.attributes(pattern))
    return Instance(pattern.word, pattern.attrs, shapes, graph.types[graph.outputs[0]].shape, graph)


# --- products of matrices ---------------------------------------------------------------------------------------------

MATRIX = Domain(
    name="matrix",
    shapes={"scalar": (), "square": (3, 3), "wide": (3, 6), "tall": (6, 3)},
    variables={"x": "square", "y": "square", "z": "square", "s": "scalar"},
    constants=("eye(size=3)", "full(shape=(3, 3), value=1)"),
    operators=(
        "add(square, square)",
        "add(wide, wide)",
        "add(tall, tall)",
        "mul(square, square)",
        "mul(wide, wide)",
        "mul(_, scalar)",
        "relu(square)",
        "relu(wide)",
        "relu(tall)",
        "swap(_)",
        "matmul(_, _)",
        "concat(square, square, axis=-1)",
        "concat(square, square, axis=-2)",
        "part(wide, axis=-1, start=0, extent=3)",
        "part(wide, axis=-1, start=3, extent=3)",
        "part(tall, axis=-2, start=0, extent=3)",
        "part(tall, axis=-2, start=3, extent=3)",
    ),
    leading=True,
)

# --- convolutions and pools -------------------------------------------------------------------------------------------

_SAME = "kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)"
_DENSE = "strides=(1, 1), pads=(1, 1, 1, 1), groups=1"
_POINT = "strides=(1, 1), pads=(0, 0, 0, 0), groups=1"
_SEPARATE = "strides=(1, 1), pads=(1, 1, 1, 1), groups=2"

CONVOLUTION = Domain(
    name="convolution",
    shapes={
        "scalar": (),
        "image": (1, 2, 4, 5),
        "images": (2, 2, 4, 5),
        "double": (1, 4, 4, 5),
        "dense": (2, 2, 3, 3),
        "outputs": (4, 2, 3, 3),
        "inputs": (2, 4, 3, 3),
        "point": (2, 2, 1, 1),
        "depth": (2, 1, 3, 3),
        "depths": (4, 1, 3, 3),
    },
    variables={
        "x": "image", "y": "image", "z": "image",
        "w": "dense", "v": "dense", "u": "dense",
        "q": "point", "d": "depth", "e": "depth", "s": "scalar",
    },
    constants=(
        "box(channels=2, kernel=(3, 3))",
        "dirac(channels=2, groups=1, kernel=(3, 3), at=(1, 1))",
        "dirac(channels=2, groups=2, kernel=(3, 3), at=(1, 1))",
        "full(shape=(1, 2, 4, 5), value=1)",
    ),
    operators=(
        "add(image, image)",
        "add(double, double)",
        "add(dense, dense)",
        "add(depth, depth)",
        "add(point, point)",
        "mul(image, image)",
        "mul(image, scalar)",
        "mul(dense, scalar)",
        "mul(depth, scalar)",
        "mul(scalar, scalar)",
        "relu(image)",
        "relu(images)",
        "relu(double)",
        f"avg_pool2d(image, count_include_pad=True, {_SAME})",
        f"avg_pool2d(images, count_include_pad=True, {_SAME})",
        f"avg_pool2d(double, count_include_pad=True, {_SAME})",
        f"max_pool2d(image, {_SAME})",
        f"max_pool2d(images, {_SAME})",
        f"max_pool2d(double, {_SAME})",
        "grow(point, pads=(1, 1, 1, 1))",
        f"conv2d(image, dense, {_DENSE})",
        f"conv2d(image, point, {_POINT})",
        f"conv2d(image, depth, {_SEPARATE})",
        f"conv2d(image, outputs, {_DENSE})",
        f"conv2d(images, dense, {_DENSE})",
        f"conv2d(images, depth, {_SEPARATE})",
        f"conv2d(double, inputs, {_DENSE})",
        "conv2d(double, depths, strides=(1, 1), pads=(1, 1, 1, 1), groups=4)",
        f"conv2d(double, outputs, {_SEPARATE})",
        "concat(image, image, axis=-3)",
        "concat(image, image, axis=-4)",
        "concat(dense, dense, axis=-4)",
        "concat(dense, dense, axis=-3)",
        "concat(depth, depth, axis=-4)",
        "part(double, axis=-3, start=0, extent=2)",
        "part(double, axis=-3, start=2, extent=2)",
        "part(images, axis=-4, start=0, extent=1)",
        "part(images, axis=-4, start=1, extent=1)",
    ),
    weights=frozenset("wvuqdes"),
)  # fmt: skip

# --- what real models need beside: channel vectors, views, batched products, an opaque function -----------------------

BROADCAST = Domain(
    name="broadcast",
    shapes={
        "tokens": (2, 3, 4),
        "turned": (3, 2, 4),
        "flat": (6, 4),
        "table": (4, 4),
        "vector": (4,),
        "column": (4, 1),
        "image": (2, 4, 2, 3),
        "filters": (4, 4, 1, 1),
        "channels": (4, 1, 1),
        "outputs": (4, 1, 1, 1),
    },
    variables={
        "x": "tokens", "y": "tokens", "w": "table", "v": "vector", "u": "vector",
        "i": "image", "f": "filters", "c": "channels", "d": "channels",
    },
    constants=(),
    operators=(
        "add(tokens, tokens)",
        "add(tokens, vector)",
        "add(turned, vector)",
        "add(flat, vector)",
        "add(vector, vector)",
        "add(image, channels)",
        "add(channels, channels)",
        "mul(tokens, vector)",
        "mul(turned, vector)",
        "mul(flat, vector)",
        "mul(table, vector)",
        "mul(table, column)",
        "mul(vector, vector)",
        "mul(image, channels)",
        "mul(channels, channels)",
        "mul(filters, channels)",
        "mul(filters, outputs)",
        "relu(tokens)",
        "relu(turned)",
        "relu(flat)",
        "relu(image)",
        "softmax(tokens, axis=-1)",
        "softmax(turned, axis=-1)",
        "softmax(flat, axis=-1)",
        "matmul(tokens, table)",
        "matmul(turned, table)",
        "matmul(flat, table)",
        "matmul(table, column)",
        "matmul(vector, table)",
        "matmul(table, table)",
        f"conv2d(image, filters, {_POINT})",
        "swap(table)",
        "transpose(tokens, perm=(1, 0, 2))",
        "transpose(turned, perm=(1, 0, 2))",
        "reshape(tokens, shape=(6, 4))",
        "reshape(flat, shape=(2, 3, 4))",
        "reshape(vector, shape=(4, 1))",
        "reshape(channels, shape=(4, 1, 1, 1))",
    ),
    weights=frozenset("wvufcd"),
)  # fmt: skip

# --- products and convolutions with a bias: few tensors, hence larger terms ------------------------------------------

ROWS = Domain(
    name="rows",
    shapes={"rows": (2, 3), "wide": (2, 6), "table": (3, 3), "tables": (3, 6), "vector": (3,), "vectors": (6,)},
    variables={"x": "rows", "y": "rows", "w": "table", "v": "table", "u": "vector", "r": "vector"},
    constants=(),
    operators=(
        "add(rows, rows)",
        "add(rows, vector)",
        "add(vector, vector)",
        "add(wide, vectors)",
        "mul(rows, vector)",
        "mul(table, vector)",
        "mul(vector, vector)",
        "matmul(rows, table)",
        "matmul(rows, tables)",
        "concat(table, table, axis=-1)",
        "concat(vector, vector, axis=-1)",
        "part(wide, axis=-1, start=0, extent=3)",
        "part(wide, axis=-1, start=3, extent=3)",
    ),
    weights=frozenset("wvur"),
    leading=True,
    size=5,
)

CHANNELS = Domain(
    name="channels",
    shapes={
        "image": (1, 2, 4, 5),
        "double": (1, 4, 4, 5),
        "dense": (2, 2, 3, 3),
        "outputs": (4, 2, 3, 3),
        "channels": (2, 1, 1),
        "both": (4, 1, 1),
        "column": (2, 1, 1, 1),
        "point": (2, 2, 1, 1),
    },
    variables={"x": "image", "w": "dense", "v": "dense", "q": "point", "c": "channels", "d": "channels"},
    constants=(),
    operators=(
        "add(image, image)",
        "add(image, channels)",
        "add(double, both)",
        "add(dense, dense)",
        "add(channels, channels)",
        "mul(image, channels)",
        "mul(dense, column)",
        "mul(channels, channels)",
        "relu(image)",
        "relu(double)",
        "grow(point, pads=(1, 1, 1, 1))",
        f"conv2d(image, point, {_POINT})",
        f"conv2d(image, dense, {_DENSE})",
        f"conv2d(image, outputs, {_DENSE})",
        "concat(dense, dense, axis=-4)",
        "concat(channels, channels, axis=-3)",
        "part(double, axis=-3, start=0, extent=2)",
        "part(double, axis=-3, start=2, extent=2)",
        "reshape(channels, shape=(2, 1, 1, 1))",
    ),
    weights=frozenset("wvqcd"),
    size=5,
)

# --- pools whose means leave the padding out, beside convolutions by points -------------------------------------------

POOLING = Domain(
    name="pooling",
    shapes={
        "scalar": (),
        "image": (1, 2, 4, 5),
        "double": (1, 4, 4, 5),
        "small": (1, 2, 2, 3),
        "point": (2, 2, 1, 1),
        "depth": (2, 1, 3, 3),
    },
    variables={"x": "image", "y": "image", "q": "point", "d": "depth", "s": "scalar"},
    constants=("box(channels=2, kernel=(3, 3))",),
    operators=(
        "add(image, image)",
        "add(depth, depth)",
        "mul(image, scalar)",
        f"avg_pool2d(image, {_SAME})",
        f"avg_pool2d(double, {_SAME})",
        f"avg_pool2d(image, count_include_pad=True, {_SAME})",
        "avg_pool2d(image, kernel=(3, 3), strides=(1, 1), pads=(0, 0, 0, 0))",
        f"conv2d(image, point, {_POINT})",
        f"conv2d(image, depth, {_SEPARATE})",
        "conv2d(image, depth, strides=(1, 1), pads=(0, 0, 0, 0), groups=2)",
        "concat(image, image, axis=-3)",
        "part(double, axis=-3, start=0, extent=2)",
        "part(double, axis=-3, start=2, extent=2)",
    ),
    weights=frozenset("qds"),
    size=4,
)

DOMAINS: Mapping[str, Domain] = {d.name: d for d in (MATRIX, CONVOLUTION, BROADCAST, ROWS, CHANNELS, POOLING)}
