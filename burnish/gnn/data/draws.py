"""Random edges: R-MAT and degree-corrected block models, in chunks whose hashed seeds make independent streams.

A chunk's edges follow from the seed and its number alone, for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.runtime.threads import Workers

kernel = njit(cache=True, nogil=True, error_model="numpy")
_part = njit(error_model="numpy", inline="always")

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64
LARGEST_CHUNK, SMALLEST_CHUNK = 1 << 20, 1 << 10  # edges
MOST_DRAWS = 8  # times the edges wanted: where classes are saturated, no number of draws finds more
_SAMPLED = 64  # one pair in so many is kept for the estimate of distinct ones, of large graphs

Ends = NDArray[np.int32]
Draw = Callable[[int, Ends, Ends], None]


@_part
def mix(z):  # type: ignore[no-untyped-def]
    """The output function of SplitMix64: a hash of 64 bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@_part
def stream(seed, chunk):  # type: ignore[no-untyped-def]
    """State of the generator at a chunk's beginning.

    Hashed twice: chunk × GOLDEN would be the same stream for all chunks, shifted.
    """
    return mix(mix(np.uint64(seed) + GOLDEN) ^ mix(np.uint64(chunk) + np.uint64(0xD1B54A32D192ED03)))


@kernel
def draw_rmat(chunk, seed, levels, vertices, shares, new, source, target):  # type: ignore[no-untyped-def]
    """Fills a chunk with edges of R-MAT; shares: a, a + b, a + b + c in units of 2⁻¹⁶. No loops.

    One number of 64 bits decides four levels. new: what a vertex is called, or nothing.
    """
    state = stream(seed, chunk)
    a, b, c = shares[0], shares[1], shares[2]
    for e in range(source.shape[0]):
        u, v = 0, 0
        while True:
            u, v, bits = 0, 0, np.uint64(0)
            for level in range(levels):
                if level % 4 == 0:
                    state += GOLDEN
                    bits = mix(state)
                r = np.int64(bits & np.uint64(0xFFFF))
                bits >>= np.uint64(16)
                u = 2 * u + (r >= b)
                v = 2 * v + ((r >= a and r < b) or r >= c)
            if u < vertices and v < vertices and u != v:
                break
        source[e] = new[u] if new.size else u
        target[e] = new[v] if new.size else v


@kernel
def fill_alias(weights, begin, end, chance, other):  # type: ignore[no-untyped-def]
    """Alias table (Vose) of begin … end - 1: one of them by weight is i, drawn evenly, with chance[i], or other[i]."""
    n = end - begin
    total = 0.0
    for i in range(begin, end):
        total += weights[i]
    small, large = np.empty(n, np.int64), np.empty(n, np.int64)
    smalls, larges = 0, 0
    scaled = np.empty(n, np.float64)
    for i in range(n):
        scaled[i] = weights[begin + i] * n / total
        other[begin + i] = begin + i
        chance[begin + i] = 1.0
        if scaled[i] < 1:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls and larges:
        smalls -= 1
        i, j = small[smalls], large[larges - 1]
        chance[begin + i] = scaled[i]
        other[begin + i] = begin + j
        scaled[j] -= 1 - scaled[i]
        if scaled[j] < 1:
            larges -= 1
            small[smalls] = j
            smalls += 1


@_part
def pick(state, begin, end, chance, other):  # type: ignore[no-untyped-def]
    """One of begin … end - 1 by an alias table, from 64 random bits."""
    high = np.int64(state >> np.uint64(33))
    low = np.float64(state & np.uint64(0x1FFFFFFFF)) * (1.0 / 8589934592.0)
    i = begin + high * (end - begin) // 2147483648
    return i if low < chance[i] else other[i]


@kernel
def draw_blocks(  # type: ignore[no-untyped-def]
    chunk, seed, inside, begins, class_chance, class_other, chance, other, new, source, target
):
    """Fills a chunk with edges of a degree-corrected block model. No loops.

    One end by weight, the other by weight too: within the first one's class with probability ``inside``, else anywhere.
    """
    state = stream(seed, chunk)
    classes = begins.shape[0] - 1
    for e in range(source.shape[0]):
        u, v = 0, 0
        while u == v:
            state += GOLDEN
            first = pick(mix(state), 0, classes, class_chance, class_other)
            state += GOLDEN
            u = pick(mix(state), begins[first], begins[first + 1], chance, other)
            state += GOLDEN
            second = first
            if np.float64(mix(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0) >= inside:
                state += GOLDEN
                second = pick(mix(state), 0, classes, class_chance, class_other)
            state += GOLDEN
            v = pick(mix(state), begins[second], begins[second + 1], chance, other)
        source[e] = new[u] if new.size else u
        target[e] = new[v] if new.size else v


@kernel
def collect(source, target, begin, end, out, count):  # type: ignore[no-untyped-def]
    """Appends to ``out``, from ``count`` on, the edges of both directions that lead to begin … end - 1, as keys that
    order them by target, then source; returns how many there are then.
    """
    for e in range(source.shape[0]):
        u, v = np.int64(source[e]), np.int64(target[e])
        if v >= begin and v < end:
            out[count] = (v - begin) << 32 | u
            count += 1
        if u >= begin and u < end:
            out[count] = (u - begin) << 32 | v
            count += 1
    return count


@kernel
def sample_pairs(source, target, share, out):  # type: ignore[no-untyped-def]
    """Keys of the undirected pairs whose hash is a multiple of ``share``; returns how many."""
    found = 0
    for e in range(source.shape[0]):
        low, high = min(source[e], target[e]), max(source[e], target[e])
        key = (np.uint64(high) << np.uint64(32)) | np.uint64(low)
        if mix(key) % np.uint64(share) == np.uint64(0):
            out[found] = key
            found += 1
    return found


def draw_distinct(draw: Draw, pairs: int, workers: Workers) -> Iterator[tuple[Ends, Ends]]:
    """Draws until there are some ``pairs`` distinct undirected ones; yields their ends by chunk, with the duplicates.

    The number of distinct ones is estimated from one in 64 of them, chosen by their hash: within 0.5 %
    for a million and more. Ends at 8 draws a pair, where a graph is too small or its classes are too dense.
    """
    chunk = int(np.clip(pairs // 32, SMALLEST_CHUNK, LARGEST_CHUNK))
    share = _SAMPLED if pairs > 1 << 20 else 1
    drawn, last = 0, None
    seen = np.empty(0, np.uint64)
    while drawn * chunk < MOST_DRAWS * pairs:
        # A draw finds at most one: so many chunks are certainly needed.
        before = len(seen) * share
        missing = pairs - before
        count = max(1, missing // chunk) if drawn else max(1, pairs // chunk)
        keys = [seen]
        for first in range(drawn, drawn + count, workers.threads):
            numbers = range(first, min(first + workers.threads, drawn + count))
            ends = [(np.empty(chunk, np.int32), np.empty(chunk, np.int32)) for _ in numbers]
            workers.run(draw, [(n, *pair) for n, pair in zip(numbers, ends, strict=True)])
            for pair in ends:
                room = np.empty(chunk, np.uint64)
                keys.append(room[: sample_pairs(*pair, share, room)].copy())
                if last is not None:
                    yield last
                last = pair
        seen = np.unique(np.concatenate(keys))
        drawn += count
        found = len(seen) * share
        if found >= pairs:
            assert last is not None, "a round draws one chunk or more"
            left = max(0, chunk - int((found - pairs) / max(1, found - before) * chunk * count))
            last = last[0][:left], last[1][:left]
            break
    if last is not None:
        yield last
