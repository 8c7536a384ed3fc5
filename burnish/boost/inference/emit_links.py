"""Links as LLVM IR: what a model predicts, written over its margins (rows, outputs), float32, row-major.

``e^x`` is that of ``losses/elementary.py``, to the last bit.
"""

from __future__ import annotations

from burnish.boost.inference.emit_text import Text, float_text
from burnish.boost.losses import elementary

LINKS = ("sigmoid", "exponential", "softmax", "hinge", "signed_square")
_ROWS = 1 << 12  # of a part for one thread


def emit_link(link: str, name: str, outputs: int) -> str:
    """The kernel ``void name(ptr args, ptr rt)``: args are the margins and the number of rows. `link`: one of LINKS."""
    parts = [_exponential(), _rows(link, outputs)]
    text = Text(f"define void @{name}(ptr noalias %args, ptr noalias %rt)")
    out, rows = text.load("ptr", "%args", 0), text.load("i64", "%args", 1)
    parallel, pool = (text.load("ptr", "%rt", i) for i in range(2))
    context = text.value("alloca [2 x i64], align 8")
    text.store("ptr", out, context, 0)
    text.store("i64", rows, context, 1)
    count = text.ceil(rows, str(_ROWS))
    text.line(f"call void {parallel}(ptr {pool}, ptr @part, ptr {context}, i64 {count})")
    parts.append(text.finish())
    return "\n\n".join([*parts, 'attributes #0 = { nounwind "no-builtins" "prefer-vector-width"="512" }', ""])


def _rows(link: str, outputs: int) -> str:
    text = Text("define internal void @part(ptr %ctx, i64 %begin, i64 %end, i64 %thread)")
    out, rows = text.load("ptr", "%ctx", 0), text.load("i64", "%ctx", 1)
    first = text.value(f"mul i64 %begin, {_ROWS}")
    last = text.least(text.value(f"mul i64 %end, {_ROWS}"), rows)
    with text.loop(last, first) as row:
        place = text.value(f"getelementptr float, ptr {out}, i64 {text.value(f'mul i64 {row}, {outputs}')}")
        values = [text.load("float", place, output) for output in range(outputs)]
        found = _softmax(text, values) if link == "softmax" else [_one(text, link, value) for value in values]
        for output, value in enumerate(found):
            text.store("float", value, place, output)
    return text.finish()


def _one(text: Text, link: str, x: str) -> str:
    one, zero = float_text(1.0), float_text(0.0)
    if link == "sigmoid":
        e = text.value(f"call float @exponential(float {text.value(f'fneg float {x}')})")
        return text.value(f"fdiv float {one}, {text.value(f'fadd float {one}, {e}')}")
    if link == "exponential":
        return text.value(f"call float @exponential(float {x})")
    positive = text.value(f"fcmp ogt float {x}, {zero}")
    if link == "hinge":
        return text.value(f"select i1 {positive}, float {one}, float {zero}")
    size = text.value(f"select i1 {positive}, float {x}, float {text.value(f'fneg float {x}')}")
    return text.value(f"fmul float {x}, {size}")


def _softmax(text: Text, values: list[str]) -> list[str]:
    largest = values[0]
    for value in values[1:]:
        larger = text.value(f"fcmp ogt float {value}, {largest}")
        largest = text.value(f"select i1 {larger}, float {value}, float {largest}")
    total, found = float_text(0.0), []
    for value in values:
        less = text.value(f"fsub float {value}, {largest}")
        found.append(text.value(f"call float @exponential(float {less})"))
        total = text.value(f"fadd float {total}, {found[-1]}")
    return [text.value(f"fdiv float {value}, {total}") for value in found]


def _exponential() -> str:
    text = Text("define internal float @exponential(float %x)")
    low, high = float_text(elementary.LEAST), float_text(elementary.LARGEST)
    x = text.value(f"select i1 {text.value(f'fcmp ogt float %x, {low}')}, float %x, float {low}")
    x = text.value(f"select i1 {text.value(f'fcmp olt float {x}, {high}')}, float {x}, float {high}")
    shifted = text.value(f"fmul float {x}, {float_text(elementary.LOG2E)}")
    shifted = text.value(f"fadd float {shifted}, {float_text(elementary.ROUND)}")
    n = text.value(f"fsub float {shifted}, {float_text(elementary.ROUND)}")
    r = text.value(f"fsub float {x}, {text.value(f'fmul float {n}, {float_text(elementary.LN2_HIGH)}')}")
    r = text.value(f"fsub float {r}, {text.value(f'fmul float {n}, {float_text(elementary.LN2_LOW)}')}")
    p = float_text(1.0 / 5040.0)
    for coefficient in (1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0):
        p = text.value(f"fadd float {text.value(f'fmul float {p}, {r}')}, {float_text(coefficient)}")
    bits = text.value(f"shl i32 {text.value(f'bitcast float {shifted} to i32')}, 23")
    power = text.value(f"bitcast i32 {text.value(f'add i32 {bits}, {127 << 23}')} to float")
    return text.finish(f"float {text.value(f'fmul float {p}, {power}')}")
