"""Facts of a C library's model as LLVM IR: sizes as polynomials, ranges of indices, texts of errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from burnish.loops.sizes import Dim, Quotient, is_size
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.integers import Allowed
from burnish.runtime.steps import TensorSpec

Size = object  # an integer, or a size of dimensions


class SizeFunctions:
    """Functions ``i64 @size.N(ptr values)`` of the values of dimensions, one for each different size."""

    def __init__(self, dims: Sequence[Dim]) -> None:
        self._number = {d: i for i, d in enumerate(dims)}
        self._known: dict[object, str] = {}
        self.text = ""

    def of(self, size: Size) -> str:
        """The name of the function that computes a size."""
        if size not in self._known:
            name = self._known[size] = f"@size.{len(self._known)}"
            fresh = count()
            lines: list[str] = []
            result = self._value(size, lines, fresh)
            body = "".join(f"  {line}\n" for line in lines)
            self.text += f"define internal i64 {name}(ptr %values) nounwind {{\n{body}  ret i64 {result}\n}}\n"
        return self._known[size]

    def table(self, name: str, sizes: Sequence[Size]) -> str:
        """A table of such functions."""
        items = ", ".join(f"ptr {self.of(size)}" for size in sizes)
        return f"{name} = internal constant [{len(sizes)} x ptr] [{items}]\n"

    def _value(self, size: Size, lines: list[str], fresh: Iterator[int]) -> str:
        """An operand that holds the size, after ``lines``."""
        if isinstance(size, Dim):
            at, value = f"%a{next(fresh)}", f"%v{next(fresh)}"
            lines += [
                f"{at} = getelementptr i64, ptr %values, i64 {self._number[size]}",
                f"{value} = load i64, ptr {at}",
            ]
            return value
        if isinstance(size, Quotient):  # rounded down
            a, b = (self._value(part, lines, fresh) for part in (size.size, size.divisor))
            q, r, s, n, c, value = (f"%q{next(fresh)}" for _ in range(6))
            lines += [
                f"{q} = sdiv i64 {a}, {b}", f"{r} = srem i64 {a}, {b}", f"{s} = xor i64 {r}, {b}",
                f"{n} = icmp slt i64 {s}, 0", f"{c} = icmp ne i64 {r}, 0", f"{value}.down = and i1 {n}, {c}",
                f"{value}.one = zext i1 {value}.down to i64", f"{value} = sub i64 {q}, {value}.one",
            ]  # fmt: skip
            return value
        if not is_size(size):
            return str(size)
        total = str(size.constant)
        for monomial, factor in size.terms:
            product = str(factor)
            for atom in monomial:
                operand, made = self._value(atom, lines, fresh), f"%p{next(fresh)}"
                lines.append(f"{made} = mul i64 {product}, {operand}")
                product = made
            made = f"%s{next(fresh)}"
            lines.append(f"{made} = add i64 {total}, {product}")
            total = made
        return total


def within_ir(allowed: Sequence[Allowed], inputs: Sequence[TensorSpec], io_at: int) -> str:
    """``i1 @lib.within(ptr m)``: whether integers of inputs are labels of classes, and indices in range."""
    text, calls = "", ""
    for number, own in enumerate(allowed):
        spec = inputs[own.position]
        width = numpy_dtype(spec.dtype).itemsize
        bits = 8 * width
        signed = "u" if spec.dtype.startswith("u") else "s"
        tests = [f"%high = icmp {signed}lt i{bits} %x, {own.high}"]
        fine = "%high"
        if own.low is not None and signed == "s":
            tests += [f"%low = icmp sge i{bits} %x, {own.low}", "%both = and i1 %high, %low"]
            fine = "%both"
        elif own.low is None and own.ignore is not None:
            tests += [f"%ignored = icmp eq i{bits} %x, {own.ignore}", "%either = or i1 %high, %ignored"]
            fine = "%either"
        body = "\n  ".join(tests)
        text += f"""
define internal i1 @lib.within.{number}(ptr %m) nounwind {{
entry:
  %io = getelementptr i8, ptr %m, i64 {io_at}
  %at = getelementptr ptr, ptr %io, i64 {1 + own.position}
  %data = load ptr, ptr %at
  %bytes = call i64 @lib.evaluate(ptr %m, ptr @input.bytes, i32 {own.position})
  %n = udiv i64 %bytes, {width}
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next, %test ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %test, label %yes
test:
  %place = getelementptr i{bits}, ptr %data, i64 %i
  %x = load i{bits}, ptr %place
  {body}
  %next = add i64 %i, 1
  br i1 {fine}, label %look, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""
        calls += f"  %w{number} = call i1 @lib.within.{number}(ptr %m)\n"
        calls += f"  %all{number + 1} = and i1 %all{number}, %w{number}\n"
    first, last = "  %all0 = and i1 true, true\n", f"  ret i1 %all{len(allowed)}\n"
    return f"{text}\ndefine internal i1 @lib.within(ptr %m) nounwind {{\n{first}{calls}{last}}}\n"


def messages_ir(texts: Mapping[int, str]) -> str:
    """``@messages``: a text for each code, and last one for codes that are none."""
    text = ""
    for number, words in texts.items():
        text += f'@message.{number} = internal constant [{len(words.encode()) + 1} x i8] c"{words}\\00"\n'
    items = ", ".join(f"ptr @message.{number}" for number in texts)
    return f"{text}@messages = internal constant [{len(texts)} x ptr] [{items}]\n"
