"""Ensemble files of any format that is read: which one it is, by its content; and writing the one that is asked for."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from burnish.base.files import write_atomic
from burnish.boost.ensemble import Ensemble
from burnish.boost.formats.lightgbm_format import loads_lightgbm
from burnish.boost.formats.own_format import dumps_own, loads_own
from burnish.boost.formats.ubjson import loads_ubjson
from burnish.boost.formats.xgboost_format import dumps_xgboost, dumps_xgboost_ubj, loads_xgboost, model_of_document
from burnish.errors import DataError, ParameterError

FORMATS = ("burnish", "xgboost", "xgboost-ubj")
_ALIASES = {
    "own": "burnish", "native": "burnish", "json": "burnish", "xgboost-json": "xgboost", "xgboost_json": "xgboost",
    "ubj": "xgboost-ubj", "xgboost_ubj": "xgboost-ubj", "ubjson": "xgboost-ubj",
}  # fmt: skip
_UBJ_LENGTHS = b"iUIlL"  # what follows the brace of an object in UBJ: the length of a name
_HEAD = 4096


def loads_any(content: bytes, source: str = "model") -> Ensemble:
    """The model in a file's content: our own JSON, XGBoost's JSON or UBJ, or LightGBM's text.

    Raises DataError, naming `source` and what is wrong, or that the content is none of these.
    """
    head = content[:_HEAD].lstrip()
    if head[:1] == b"{" and head[1:2] and head[1:2] in _UBJ_LENGTHS:
        return model_of_document(loads_ubjson(content, source), source)
    if head[:1] == b"{":
        return loads_xgboost(content, source) if _holds_learner(content) else loads_own(content, source)
    if head.startswith((b"tree\n", b"tree\r\n")):
        return loads_lightgbm(content.replace(b"\r\n", b"\n"), source)
    if head[:4] == b"binf" or head[:2] == b"PK" or content[:1] in (b"\x80", b"\x93"):
        found = "a binary file of an old XGBoost, a pickle, or an archive"
    else:
        found = f"begins with {bytes(content[:12])!r}" if content else "is empty"
    raise DataError(f"{source} {found}; allowed: models of burnish (JSON), XGBoost (JSON, UBJ) and LightGBM (text)")


def save_as(model: Ensemble, path: str | Path, form: str | None = None) -> None:
    """Writes the model, whole or not at all: by `form`, one of FORMATS, and the suffix: ``.ubj`` is XGBoost's UBJ.

    XGBoost takes a file's format from its name, so that "xgboost" and a name ending in ``.ubj`` are UBJ too.
    Raises ParameterError for another format, DataError for what the format cannot hold, OSError.
    """
    by_name = "xgboost-ubj" if Path(path).suffix.lower() == ".ubj" else "burnish"
    chosen = by_name if form in (None, "xgboost") and by_name != "burnish" else form or by_name
    chosen = _ALIASES.get(chosen, chosen)
    if chosen not in FORMATS:
        near = difflib.get_close_matches(str(chosen), FORMATS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ParameterError(f"save: format is {form!r}, allowed: {', '.join(map(repr, FORMATS))}{hint}")
    if chosen == "xgboost-ubj":
        content = dumps_xgboost_ubj(model)
    else:
        content = (dumps_xgboost(model) if chosen == "xgboost" else dumps_own(model)).encode()
    write_atomic(Path(path), [content])


def _holds_learner(content: bytes) -> bool:
    """Whether JSON is XGBoost's: by its names, without parsing the file twice where one of ours says so at once."""
    if content[:64].lstrip().startswith(b'{"format":"burnish'):
        return False
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return b'"learner"' in content
    return isinstance(document, dict) and "learner" in document and "format" not in document
