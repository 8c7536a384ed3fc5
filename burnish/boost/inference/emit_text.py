"""LLVM IR as text: numbered values, loops, loads and stores; constants to the last bit."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray


class Text:
    """One function, line by line."""

    def __init__(self, signature: str) -> None:
        self._lines = [f"{signature} #0 {{", "entry:"]
        self._block = "entry"
        self._count = 0

    def finish(self, result: str = "void") -> str:
        """The text of the function, which returns `result`."""
        return "\n".join([*self._lines, f"  ret {result}", "}"])

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append(f"  {text}")

    def value(self, text: str) -> str:
        """An instruction; returns the name of its result."""
        self._count += 1
        self.line(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def label(self, name: str) -> None:
        """Begins a block, after an instruction that leaves the one before."""
        self._lines.append(f"{name}:")
        self._block = name

    def _place(self, kind: str, base: str, index: int | str) -> str:
        return base if index == 0 else self.value(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def load(self, kind: str, base: str, index: int | str) -> str:
        """``base[index]``."""
        return self.value(f"load {kind}, ptr {self._place(kind, base, index)}")

    def store(self, kind: str, value: str, base: str, index: int | str) -> None:
        """``base[index] = value``."""
        self.line(f"store {kind} {value}, ptr {self._place(kind, base, index)}")

    def vector_load(self, lanes: int, base: str, index: int | str) -> str:
        """A vector of floats from ``base[index]`` on."""
        return self.value(f"load <{lanes} x float>, ptr {self._place('float', base, index)}, align 4")

    def vector_store(self, lanes: int, value: str, base: str, index: int | str) -> None:
        """A vector of floats to ``base[index]`` and after."""
        self.line(f"store <{lanes} x float> {value}, ptr {self._place('float', base, index)}, align 4")

    def shuffle(self, lanes: int, pair: tuple[str, str], places: Sequence[int]) -> str:
        """The elements of two vectors at `places`."""
        kind, mask = f"<{lanes} x float>", ", ".join(f"i32 {place}" for place in places)
        return self.value(f"shufflevector {kind} {pair[0]}, {kind} {pair[1]}, <{len(places)} x i32> <{mask}>")

    def least(self, a: str, b: str) -> str:
        """The smaller of two integers."""
        return self.value(f"select i1 {self.value(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def most(self, a: str, b: str) -> str:
        """The larger of two integers."""
        return self.value(f"select i1 {self.value(f'icmp sgt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def ceil(self, a: str, b: str) -> str:
        """a / b, rounded up; neither is negative."""
        more = self.value(f"sub i64 {b}, 1")
        return self.value(f"udiv i64 {self.value(f'add i64 {a}, {more}')}, {b}")

    @contextmanager
    def loop(self, end: str, begin: str = "0", carried: Sequence[tuple[str, str, str]] = ()) -> Iterator[str]:
        """A loop over ``begin … end - 1``; gives the name of the counter.

        `carried`: names of i64 that each pass hands to the next, with their first values and the names of the next.
        """
        self._count += 1
        n, before = self._count, self._block
        self.line(f"br label %head{n}")
        self.label(f"head{n}")
        self.line(f"%i{n} = phi i64 [ {begin}, %{before} ], [ %next{n}, %latch{n} ]")
        for name, first, following in carried:
            self.line(f"{name} = phi i64 [ {first}, %{before} ], [ {following}, %latch{n} ]")
        self.line(f"%more{n} = icmp slt i64 %i{n}, {end}")
        self.line(f"br i1 %more{n}, label %body{n}, label %exit{n}")
        self.label(f"body{n}")
        yield f"%i{n}"
        self.line(f"br label %latch{n}")
        self.label(f"latch{n}")
        self.line(f"%next{n} = add i64 %i{n}, 1")
        self.line(f"br label %head{n}")
        self.label(f"exit{n}")


def float_text(value: float | np.float32) -> str:
    """A float32 as LLVM writes it exactly: the bits of the equal double."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X}"


def constant(name: str, kind: str, values: NDArray[np.generic]) -> str:
    """A global array of i32 or float."""
    write = float_text if kind == "float" else str
    items = ", ".join(f"{kind} {write(value)}" for value in values.tolist())
    return f"@{name} = private unnamed_addr constant [{len(values)} x {kind}] [{items}], align 64"
