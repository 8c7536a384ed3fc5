"""Operators that move elements without computing on them: views, slices, joins, padding, repetition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from burnish.loops.expr import INDEX, Expr, all_of, cast, equal, maximum, minimum, select, wrap
from burnish.loops.sizes import at_least, greatest, hinted, is_size, least
from burnish.loops.tensor import Tensor, compute
from burnish.ops.operator import (
    FLOATS,
    NUMBERS,
    Application,
    Composed,
    Ints,
    Number,
    Shape,
    broadcast_load,
    declare,
    differentiated,
    internal,
    normal_axes,
    normal_axis,
    operator,
    require,
    require_input,
)
from burnish.ops.separable import separable

# --- views ------------------------------------------------------------------------------------------------------------


def matched_groups(a: Shape, b: Shape) -> list[tuple[range, range]]:
    """The finest partition of the dimensions of ``a`` and ``b`` into runs of equal product, in order.

    Example: (1, 128, 768) and (1, 128, 12, 64) give dimensions 0|0, 1|1, 2|2-3.
    """
    groups = []
    i = j = 0
    while i < len(a) or j < len(b):
        i0, j0 = i, j
        i, j = min(i + 1, len(a)), min(j + 1, len(b))
        while prod(a[i0:i]) != prod(b[j0:j]):
            if j == len(b) or (i < len(a) and _not_larger(prod(a[i0:i]), prod(b[j0:j]))):
                i += 1
            else:
                j += 1
        groups.append((range(i0, i), range(j0, j)))
    return groups


def _not_larger(m: int, n: int) -> bool:
    """Whether the first of two different counts is the smaller; of open ones also where they may be equal, or is so
    where the dimensions have their hints.
    """
    return at_least(n, m) or (hinted(m) <= hinted(n) and not at_least(m, n))


def reshaped_index(index: Sequence[Expr], shape: Shape, source: Shape) -> tuple[Expr, ...]:
    """Index map of reshape: where element ``index`` of a tensor of ``shape`` lies in one of ``source`` in the same
    order.

    Works group by group of :func:`matched_groups`, so that unaffected dimensions keep their index as it is.
    """
    if 0 in shape:
        return tuple(wrap(0) for _ in source)
    out: list[Expr] = [wrap(0)] * len(source)
    for own, other in matched_groups(source, shape):
        position: Expr = wrap(0)
        for d in other:
            position = position * shape[d] + (index[d] if shape[d] != 1 else 0)
        stride = 1
        for d in reversed(own):
            above = prod(source[e] for e in own if e < d)
            if source[d] != 1:
                out[d] = position // stride % source[d] if above != 1 else position // stride
            stride *= source[d]
    return tuple(out)


@declare(layout_affinity=-2.0)
@operator
def reshape(name: str, x: Tensor, *, shape: Ints) -> Tensor:
    """``x`` with its elements in the same row-major order; one extent may be -1."""
    size = prod(x.shape)
    known = prod(d for d in shape if d != -1)
    open_ = shape.count(-1)
    ok = open_ <= 1 and all(d >= -1 for d in shape) and (known == size if not open_ else known and size % known == 0)
    require(bool(ok), "attribute 'shape'", list(shape), f"{size} elements, as in {list(x.shape)}")
    full = tuple(size // known if d == -1 else d for d in shape)
    return compute(full, lambda *i: x[reshaped_index(i, full, x.shape)], name)


@declare(layout_affinity=-1.0)
@operator
def transpose(name: str, x: Tensor, *, perm: Ints | None = None) -> Tensor:
    """``x`` with dimension ``perm[d]`` at place ``d``; reversed for None."""
    rank = len(x.shape)
    perm = tuple(reversed(range(rank))) if perm is None else perm
    require(sorted(perm) == list(range(rank)), "attribute 'perm'", list(perm), f"a permutation of 0 to {rank - 1}")

    def element(*i: Expr) -> Expr:
        return x[tuple(i[perm.index(d)] for d in range(rank))]

    return compute(tuple(x.shape[p] for p in perm), element, name)


@operator
def shape_of(name: str, x: Tensor, *, dims: Ints | None = None) -> Tensor:
    """The extents of ``x`` as a vector of int64: of these dimensions, by default all of them."""
    dims = normal_axes(dims, len(x.shape)) if dims is None else tuple(normal_axis(d, len(x.shape)) for d in dims)

    def element(i: Expr) -> Expr:
        found: Expr = cast("int64", wrap(x.shape[dims[-1]]))
        for position in range(len(dims) - 2, -1, -1):
            found = select(equal(i, position), cast("int64", wrap(x.shape[dims[position]])), found)
        return found

    require(len(dims) > 0, "attribute 'dims'", list(dims), "one dimension at least")
    return compute((len(dims),), element, name)


@operator
def iota(name: str, start: Tensor, *, extent: int, step: Number = 1) -> Tensor:
    """``extent`` numbers from the scalar ``start`` on, each ``step`` more than the one before."""
    require_input(start, "start", 0, dtype=NUMBERS)
    return compute((extent,), lambda i: start[()] + cast(start.dtype, i) * wrap(step, start.dtype), name)


@operator
def expand(name: str, x: Tensor, *, shape: Ints) -> Tensor:
    """``x`` broadcast with ``shape`` (in both directions, as NumPy broadcasts)."""
    rank = max(len(shape), len(x.shape))
    a = (1,) * (rank - len(shape)) + shape
    b = (1,) * (rank - len(x.shape)) + x.shape
    ok = all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=True))
    require(ok, "attribute 'shape'", list(shape), f"a shape that {list(x.shape)} broadcasts with")
    full = tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
    return compute(full, lambda *i: broadcast_load(x, i), name)


@operator
def slice_(name: str, x: Tensor, *, starts: Ints, extents: Ints, steps: Ints | None = None) -> Tensor:
    """Elements ``starts[d] + i * steps[d]``, ``i`` in ``range(extents[d])``, in every dimension (steps of any sign)."""
    rank = len(x.shape)
    steps = (1,) * rank if steps is None else steps
    for key, values in (("starts", starts), ("extents", extents), ("steps", steps)):
        require(len(values) == rank, f"attribute '{key}'", list(values), f"{rank} integers, one a dimension")
    for d, (start, extent, step) in enumerate(zip(starts, extents, steps, strict=True)):
        inside = _inside(start, extent, step, x.shape[d])
        found = f"start {start}, extent {extent}, step {step} in dimension {d}"
        require(inside, "attribute 'starts'", found, f"positions within 0 to {x.shape[d] - 1}")

    def element(*i: Expr) -> Expr:
        return x[tuple(v * step + start for v, step, start in zip(i, steps, starts, strict=True))]

    return compute(extents, element, name)


def _inside(start: int, extent: int, step: int, size: int) -> bool:
    """Whether positions lie in a dimension of ``size``, for all values of open dimensions: of those in single steps."""
    if any(map(is_size, (start, extent, size))):
        first, end = (start, start + extent) if step == 1 else (start - extent + 1, start + 1)
        return step in (1, -1) and least(extent) >= 0 and least(first) >= 0 and at_least(size, end)
    last = start + (extent - 1) * step
    return extent == 0 or (extent > 0 and 0 <= start < size and 0 <= last < size)


# --- joins and padding ------------------------------------------------------------------------------------------------


def _in_a_row(name: str, xs: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors one after the other along ``axis``."""
    first = xs[0]
    dim = normal_axis(axis, len(first.shape))
    for n, x in enumerate(xs):
        require_input(x, str(n), len(first.shape), dtype=(first.dtype,))
        same = x.shape[:dim] + x.shape[dim + 1 :] == first.shape[:dim] + first.shape[dim + 1 :]
        require(same, f"input '{n}'", f"shape {list(x.shape)}", f"{list(first.shape)} but for dimension {dim}")
    parts = [x for x in xs if greatest(x.shape[dim])] or [first]
    starts = [0, *accumulate(x.shape[dim] for x in parts)]

    def one_of(low: int, high: int, i: tuple[Expr, ...]) -> Expr:
        """The element, which is in parts ``low`` to ``high``: one comparison halves them."""
        if high - low == 1:
            return parts[low][(*i[:dim], i[dim] - starts[low], *i[dim + 1 :])]
        middle = (low + high) // 2
        return select(i[dim] < starts[middle], one_of(low, middle, i), one_of(middle, high, i))

    def element(*i: Expr) -> Expr:
        return one_of(0, len(parts), i)

    return compute((*first.shape[:dim], starts[-1], *first.shape[dim + 1 :]), element, name)


@declare(layout_affinity=0.5)
@operator
def concat(name: str, *xs: Tensor, axis: int) -> Tensor:
    """The inputs one after the other along ``axis``."""
    return _in_a_row(name, xs, axis)


@operator
def copied_concat(name: str, *xs: Tensor, axis: int) -> Tensor:
    """The inputs one after the other, by copies: none is computed in the result's memory, each may be computed again.

    Otherwise as ``concat``.
    """
    return _in_a_row(name, xs, axis)


def _padded(a: Application) -> list[str | None] | None:
    """Gradient of padding that repeats elements, by matrices: a definition would look for all that repeat one."""
    rank = len(a.types[0][0])
    low, high = a.attrs["pads"][:rank], a.attrs["pads"][rank:]
    mode = a.attrs["mode"]
    if mode == "constant":
        return None

    def along(x: Tensor, d: int) -> Tensor:
        return pad.define("y", [x], {"pads": (low[d], 0, high[d], 0), "mode": mode})[0]

    return [separable(a, [d for d in range(rank) if low[d] or high[d]], along)]


@differentiated(Composed(_padded))
@operator
def pad(name: str, x: Tensor, *, pads: Ints, mode: str = "constant", value: Number = 0.0) -> Tensor:
    """``x`` with ``pads`` (all lows, then all highs) elements around it: ``value``, or mirrored, or the edge repeated.

    Negative constant pads crop. ``mode`` is constant, reflect or edge.
    """
    rank = len(x.shape)
    require(mode in ("constant", "reflect", "edge"), "attribute 'mode'", mode, "constant, reflect, edge")
    require(len(pads) == 2 * rank, "attribute 'pads'", list(pads), f"{2 * rank} integers: {rank} lows, {rank} highs")
    low, high = pads[:rank], pads[rank:]
    shape = tuple(d + lo + hi for d, lo, hi in zip(x.shape, low, high, strict=True))
    ok = all(extent >= 0 for extent in shape)
    require(ok, "attribute 'pads'", list(pads), f"pads that crop no more than {list(x.shape)} holds")
    for d, extent in enumerate(x.shape):
        reach = max(extent - 1, 0) if mode == "reflect" else max(low[d], high[d]) if extent else 0
        ok = mode == "constant" or max(low[d], high[d]) <= reach
        require(ok, "attribute 'pads'", list(pads), f"at most {reach} in dimension {d} with mode {mode}")

    def source(i: Expr, d: int) -> Expr:
        j, extent = i - low[d], x.shape[d]
        if mode == "edge":
            j = maximum(j, 0) if low[d] > 0 else j
            return minimum(j, extent - 1) if high[d] > 0 else j
        if mode == "reflect":
            j = select(j < 0, 0 - j, j) if low[d] > 0 else j
            return select(j >= extent, 2 * (extent - 1) - j, j) if high[d] > 0 else j
        return j

    def element(*i: Expr) -> Expr:
        inside = []
        for d, extent in enumerate(x.shape):
            inside += [i[d] >= low[d]] if low[d] > 0 else []
            inside += [i[d] < extent + low[d]] if high[d] > 0 else []
        moved = x[tuple(source(v, d) for d, v in enumerate(i))]
        return select(all_of(*inside), moved, wrap(value, x.dtype)) if inside and mode == "constant" else moved

    return compute(shape, element, name)


@operator
def tile(name: str, x: Tensor, *, repeats: Ints) -> Tensor:
    """``x`` repeated ``repeats[d]`` times along every dimension."""
    ok = len(repeats) == len(x.shape) and min(repeats, default=0) >= 0
    require(ok, "attribute 'repeats'", list(repeats), f"{len(x.shape)} integers of at least 0")

    def element(*i: Expr) -> Expr:
        return x[tuple(v if r == 1 else v % d if d else wrap(0) for v, d, r in zip(i, x.shape, repeats, strict=True))]

    return compute(tuple(d * r for d, r in zip(x.shape, repeats, strict=True)), element, name)


# --- channels and positions -------------------------------------------------------------------------------------------


@operator
def depth_to_space(name: str, x: Tensor, *, block: int, mode: str = "DCR") -> Tensor:
    """[N, C·block², H, W] to [N, C, H·block, W·block]; ``mode`` DCR: block index before the channel, CRD: after it."""
    require_input(x, "x", 4, "[N, C, H, W]")
    require(mode in ("DCR", "CRD"), "attribute 'mode'", mode, "DCR, CRD")
    ok = block > 0 and x.shape[1] % (block * block) == 0
    require(ok, "attribute 'block'", block, f"an integer whose square divides {x.shape[1]} channels")
    channels = x.shape[1] // (block * block)

    def element(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        phase = h % block * block + w % block
        channel = phase * channels + c if mode == "DCR" else c * (block * block) + phase
        return x[n, channel, h // block, w // block]

    return compute((x.shape[0], channels, x.shape[2] * block, x.shape[3] * block), element, name)


@operator
def space_to_depth(name: str, x: Tensor, *, block: int, mode: str = "DCR") -> Tensor:
    """[N, C, H·block, W·block] to [N, C·block², H, W]; ``mode`` DCR: block index before the channel, CRD: after it."""
    require_input(x, "x", 4, "[N, C, H, W]")
    require(mode in ("DCR", "CRD"), "attribute 'mode'", mode, "DCR, CRD")
    ok = block > 0 and x.shape[2] % block == 0 and x.shape[3] % block == 0
    require(ok, "attribute 'block'", block, f"a divisor of {x.shape[2]} and {x.shape[3]}")
    channels = x.shape[1]

    def element(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        area = block * block
        phase, channel = (c // channels, c % channels) if mode == "DCR" else (c % area, c // area)
        return x[n, channel, h * block + phase // block, w * block + phase % block]

    return compute((x.shape[0], channels * block * block, x.shape[2] // block, x.shape[3] // block), element, name)


@operator
def trilu(name: str, x: Tensor, *, upper: bool = True, diagonal: int = 0) -> Tensor:
    """The upper (else lower) triangle of the last two dimensions from ``diagonal`` on; zero elsewhere."""
    require(len(x.shape) >= 2, "input 'x'", f"shape {list(x.shape)}", "at least 2 dimensions")

    def element(*i: Expr) -> Expr:
        offset = i[-1] - i[-2]
        return select(offset >= diagonal if upper else offset <= diagonal, x[i], wrap(0, x.dtype))

    return compute(x.shape, element, name)


@operator
def band(name: str, x: Tensor, *, lower: int, upper: int) -> Tensor:
    """Band of the two last dimensions: ``x`` where column - row is in ``lower`` to ``upper``, else minus infinity."""
    require(len(x.shape) >= 2, "input 'x'", f"shape {list(x.shape)}", "at least 2 dimensions")
    require_input(x, "x", dtype=FLOATS)
    rows, columns = (greatest(extent) for extent in x.shape[-2:])

    def element(*i: Expr) -> Expr:
        row, column = i[-2:]
        within = [column <= row + upper] * (upper < columns - 1) + [row + lower <= column] * (lower > 1 - rows)
        return select(all_of(*within), x[i], wrap(float("-inf"), x.dtype)) if within else x[i]

    return compute(x.shape, element, name)


@operator
def interval(name: str, x: Tensor, ends: Tensor) -> Tensor:
    """Interval of the last dimension: ``x`` where its column is from ``ends[..., 0]`` to before ``ends[..., 1]``, else
    minus infinity. ``ends`` [..., 2] broadcasts with all dimensions but the last.
    """
    require_input(x, "x", dtype=FLOATS)
    require_input(ends, "ends", dtype=("int32",))
    ok = 1 <= len(ends.shape) <= len(x.shape) and ends.shape[-1] == 2
    require(ok, "input 'ends'", f"shape {list(ends.shape)}", "a first and a last of each row")

    def end(number: int, i: Sequence[Expr]) -> Expr:
        lead = i[len(x.shape) - len(ends.shape) : -1]
        place = [0 if n == 1 else own for n, own in zip(ends.shape[:-1], lead, strict=True)]
        return cast(INDEX, ends[(*place, number)])

    def element(*i: Expr) -> Expr:
        return select(all_of(end(0, i) <= i[-1], i[-1] < end(1, i)), x[i], wrap(float("-inf"), x.dtype))

    return compute(x.shape, element, name)


OPERATORS = (
    reshape, transpose, *internal(shape_of, band, interval), iota, expand, slice_, concat, *internal(copied_concat),
    pad, tile, depth_to_space, space_to_depth, trilu,
)  # fmt: skip
