"""ONNX's TopK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator


def _top_k(c: OnnxContext, n: OnnxNode) -> Sequence[str]:
    counts = c.ints_of("k", 1) or ()
    if len(counts) != 1:
        c.invalid("k", list(counts), "one number")
    flags = {key: bool(n.attr(key, 1)) for key in ("largest", "sorted")}
    return c.add_many("top_k", n.inputs[0], k=counts[0], axis=n.attr("axis", -1), **flags)


TRANSLATORS: Mapping[str, Translator] = {"TopK": _top_k}
