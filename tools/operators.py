"""The table of ONNX operators: ``python -m tools.operators`` writes it from the front end's registry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import onnx.defs

from burnish.frontend.onnx import functions
from burnish.frontend.onnx.domains import key_of, split_key
from burnish.frontend.onnx.load import OLDEST_OPSET
from burnish.frontend.onnx.model import TRANSLATORS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"
REFUSED = {  # why what the standard has is refused
    "ImageDecoder": "decodes image files",
    "ai.onnx.preview.training.Gradient": "asks for the gradient of a part of its own graph",
}
TEXTS = "works on texts"


def rows() -> Iterator[tuple[str, str, str]]:
    """Each operator, the opsets in which its definition changed, and what becomes of it; sorted by domain and name."""
    versions: dict[tuple[str, str], list[int]] = {}
    newest: dict[tuple[str, str], onnx.defs.OpSchema] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        operator = schema.domain, schema.name
        versions.setdefault(operator, []).append(schema.since_version)
        if schema.since_version == max(versions[operator]):
            newest[operator] = schema
    for key in TRANSLATORS:
        versions.setdefault(split_key(key), [])
    for operator, since in sorted(versions.items()):
        key = key_of(*operator)
        yield key, ", ".join(map(str, sorted(since))) or "of onnxruntime", _status(key, newest.get(operator))


def _status(key: str, schema: onnx.defs.OpSchema | None) -> str:
    if key in TRANSLATORS:
        return "by the standard's function" if key in functions.TRANSLATORS else "yes"
    assert schema is not None
    if schema.deprecated:
        return "no: deprecated"
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    texts = any(allowed.get(i.type_str, {i.type_str}) <= {"tensor(string)"} for i in schema.inputs)
    reason = REFUSED.get(key, TEXTS if texts else "")
    return f"no: {reason}" if reason else "no"


def page() -> str:
    """The text of the page."""
    found = list(rows())
    count = sum(not status.startswith("no") for *_, status in found)
    lines = [
        "# ONNX operators", "",
        f"Of {len(found)} operators {count} are translated, in every opset from {OLDEST_OPSET} to "
        f"{onnx.defs.onnx_opset_version()} of the default domain that",
        "defines them. Models with others are refused by the operators' names; what an operator does not take (an",
        "attribute's value, a dtype) is refused by that name.", "",
        "Written by `python -m tools.operators`.", "",
        "| operator | changed in opset | translated |", "|---|---|---|",
        *(f"| {key} | {since} | {status} |" for key, since, status in found),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
