"""A few rules that tests apply, and random graphs in which they match."""

import numpy as np

from burnish.graph.graph import Graph, GraphBuilder
from burnish.rewrite.language.terms import parse_rules

RULES = parse_rules("""
substitution merge of products
  for x: [*l, m, k]; a: [k, n]; b: [k, p]
  matmul(x, a), matmul(x, b) =
    part(matmul(x, concat(a, b, axis=-1)), axis=-1, start=0, extent=n),
    part(matmul(x, concat(a, b, axis=-1)), axis=-1, start=n, extent=p)

substitution product is associative
  for a: [*l, m, k]; b: [k, n]; c: [n, p]
  matmul(matmul(a, b), c) = matmul(a, matmul(b, c))

substitution swap of a product
  for a: [m, k]; b: [k, n]
  swap(matmul(a, b)) = matmul(swap(b), swap(a))

substitution sum of products
  for x: [m, k]; y: [m, j]; a: [k, n]; b: [j, n]
  add(matmul(x, a), matmul(y, b)) = matmul(concat(x, y, axis=-1), concat(a, b, axis=0))

substitution join of products
  for x: [m, k]; y: [j, k]; a: [k, n]
  concat(matmul(x, a), matmul(y, a), axis=0) = matmul(concat(x, y, axis=0), a)

substitution merge of convolutions
  for x: [n, c, h, w]; a: [o, i, k, l]; b: [p, i, k, l]
  conv2d(x, a, strides=(s, t), pads=(e, f, g, j)), conv2d(x, b, strides=(s, t), pads=(e, f, g, j)) =
    part(conv2d(x, concat(a, b, axis=0), strides=(s, t), pads=(e, f, g, j)), axis=1, start=0, extent=o),
    part(conv2d(x, concat(a, b, axis=0), strides=(s, t), pads=(e, f, g, j)), axis=1, start=o, extent=p)

substitution enlarge to merge
  for x: [n, c, h, w]; a: [o, i, k, l]; b: [p, i, k + u + v, l + y + z]
  where 0 <= u; 0 <= v; 0 <= y; 0 <= z; 1 <= u + v + y + z
  conv2d(x, a, strides=(s, t), pads=(e, f, g, j)), conv2d(x, b, strides=(s, t), pads=(e + u, f + y, g + v, j + z)) =
    part(conv2d(x, concat(grow(a, pads=(u, y, v, z)), b, axis=0), strides=(s, t), pads=(e + u, f + y, g + v, j + z)),
         axis=1, start=0, extent=o),
    part(conv2d(x, concat(grow(a, pads=(u, y, v, z)), b, axis=0), strides=(s, t), pads=(e + u, f + y, g + v, j + z)),
         axis=1, start=o, extent=p)

substitution sum of convolutions
  for x: [n, c, h, w]; a: [o, c, k, l]; b: [o, c, k, l]
  add(conv2d(x, a, strides=(s, t), pads=(e, f, g, j)), conv2d(x, b, strides=(s, t), pads=(e, f, g, j))) =
    conv2d(x, add(a, b), strides=(s, t), pads=(e, f, g, j))

substitution product distributes
  for x: [m, k]; y: [m, k]; a: [k, n]
  add(matmul(x, a), matmul(y, a)) = matmul(add(x, y), a)
""")


def rule(name: str) -> list:
    """The one rule of that name."""
    return [r for r in RULES if r.name == name]


def random_graph(random: np.random.Generator, size: int = 12) -> Graph:
    """Convolutions of one image and products of rows, of few extents so that many of them fit together.

    Weights are eighths: their sums and products are exact.
    """
    b = GraphBuilder()
    images = [b.input("image", (1, 3, int(random.integers(4, 7)), 5))]
    rows = [b.input("rows", (int(random.integers(1, 4)), 4)), b.input("others", (3, 4))]

    def weight(*shape: int) -> str:
        return b.constant((random.integers(-8, 9, shape) / 8).astype(np.float32))

    def pick(names: list[str]) -> str:
        return names[int(random.integers(len(names)))]

    def twin(names: list[str], x: str) -> str:
        alike = [n for n in names if b.types[n] == b.types[x]]
        return pick(alike)

    for _ in range(size):
        x, r = pick(images), pick(rows)
        match int(random.integers(10)):
            case 0 | 1:
                k = int(random.choice([1, 3]))
                outputs = int(random.choice([2, 3]))
                shape = (outputs, b.types[x].shape[1], k, k)
                images.append(b.add("conv2d", x, weight(*shape), pads=(k // 2,) * 4))
            case 2:
                images.append(b.add("add", x, twin(images, x)))
            case 3:
                images.append(b.add("concat", x, twin(images, x), axis=-3))
            case 4:
                images.append(b.add("relu", x))
            case 5 | 6:
                rows.append(b.add("matmul", r, weight(b.types[r].shape[1], int(random.choice([3, 4])))))
            case 7:
                rows.append(b.add("add", r, twin(rows, r)))
            case 8:
                shared = weight(4, 4)
                pair = [n for n in rows if b.types[n].shape[1] == 4]
                rows.append(b.add("concat", *(b.add("matmul", pick(pair), shared) for _ in range(2)), axis=0))
            case 9:
                inner = b.types[r].shape[1]
                if bool(random.integers(2)):
                    rows.append(b.add("matmul", r, weight(4, inner), transpose_b=True))
                else:
                    starts, extents = (0, 1), (b.types[r].shape[0], inner - 1)
                    rows.append(b.add("slice", r, starts=starts, extents=extents))
    return b.build(*images[-3:], *rows[-4:])
