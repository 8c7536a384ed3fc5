"""Operators on tensors of strings, run on values: movement, tables, casts, tokens and n-grams; which nodes give texts.

What moves texts about (Reshape, Concat, Gather, …) moves their places instead, through the translator of the operator
on numbers. Results that are lists of maps (ZipMap) are lists of dictionaries.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from burnish.frontend.onnx.context import OnnxContext, OnnxNode
from burnish.frontend.onnx.domains import key_of
from burnish.frontend.onnx.dtypes import dtype_name, to_array
from burnish.frontend.onnx.eager import Eager, EagerNode
from burnish.frontend.onnx.model import TRANSLATORS
from burnish.frontend.onnx.texts import ML, is_texts, stored_texts, texts_of
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder, type_of
from burnish.loops.numeric import numpy_dtype

KEPT_PLACES = 64  # of a node: where it moves texts to, by shapes and other inputs
_UNUSED = "_Unused"  # the standard's text for what is no key


# --- movement ---------------------------------------------------------------------------------------------------------


def _moved(operator: str) -> Eager:
    """The operator on the places of texts, which depend on shapes and other inputs alone: found once for them."""

    def run(n: EagerNode) -> list[Any]:
        kept: OrderedDict[Any, list[np.ndarray]] = n.once(OrderedDict)
        parts, key = [], list[Any]()
        for value in n.inputs:
            if value is None:
                key.append(None)
            elif value.dtype == object:
                key.append(value.shape)
                parts.append(value.reshape(-1))
            else:
                key += (value.shape, value.dtype.char, value.tobytes())
        places = kept.get(found := tuple(key))
        if places is None:
            places = kept[found] = _places(operator, n)
            while len(kept) > KEPT_PLACES:
                kept.popitem(last=False)
        if operator in _NO_TEXTS_OUT:
            return [place.copy() for place in places]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return [whole.take(place) for place in places]

    return run


def _places(operator: str, n: EagerNode) -> list[np.ndarray]:
    """Index map of a text operator: its outputs for the numbers 0, 1, … in place of the texts of its inputs."""
    context = OnnxContext(GraphBuilder(), translators=TRANSLATORS, opset=n.opset)
    names, feeds, begin = [], dict[str, np.ndarray](), 0
    for at, value in enumerate(n.inputs):
        name = f"x{at}" if value is not None else ""
        if is_texts(value):
            numbers = np.arange(begin, begin + value.size).reshape(value.shape)
            begin += value.size
            feeds[name] = numbers
            context.builder.input(name, numbers.shape, type_of(numbers).dtype)
        elif name:
            context.builder.constant(value, name)
        names.append(name)
    outputs = tuple(f"y{at}" for at in range(n.outputs))
    attrs = {name: value for name, value in n.attrs.items() if name}
    node = OnnxNode(operator, n.label, tuple(names), outputs, attrs, n.opset)
    context.begin(node)
    result = TRANSLATORS[operator](context, node)
    made = [result] if isinstance(result, str) else list(result)
    graph = context.builder.build(*[context.add("identity", name) for name in made])
    found = evaluate(graph, feeds)
    return [found[name] for name in graph.outputs]


def _equal(n: EagerNode) -> list[Any]:
    a, b = np.broadcast_arrays(*n.inputs)
    return [np.asarray(a == b, bool)]


_NO_TEXTS_OUT = ("Shape", "Size")
_MOVES = (
    "Identity", "Reshape", "Concat", "Gather", "GatherElements", "GatherND", "Squeeze", "Unsqueeze", "Flatten",
    "Transpose", "Expand", "Tile", "Slice", "Split", "Where", f"{ML}.ArrayFeatureExtractor", *_NO_TEXTS_OUT,
)  # fmt: skip
MOVES: Mapping[str, Eager] = {operator: _moved(operator) for operator in _MOVES} | {"Equal": _equal}


# --- tables -----------------------------------------------------------------------------------------------------------


def _each(n: EagerNode, compute: Callable[[Any], Any], dtype: np.dtype) -> list[Any]:
    """A function of every element of input 0."""
    x = n.inputs[0]
    found = [compute(value) for value in x.reshape(-1).tolist()]
    if dtype.kind == "O":
        return [texts_of(found, x.shape)]
    return [np.array(found, dtype).reshape(x.shape)]


def _column(n: EagerNode, kind: str) -> tuple[list[Any], np.dtype]:
    """The keys or the values of a LabelEncoder, and their type."""
    tensor = n.attrs.get(f"{kind}_tensor")
    if isinstance(tensor, TensorProto):
        texts = tensor.data_type == TensorProto.STRING
        array = stored_texts(tensor, n.label) if texts else to_array(tensor, n.label)
        return array.reshape(-1).tolist(), array.dtype
    for suffix, dtype in (("strings", object), ("int64s", np.int64), ("floats", np.float32)):
        if f"{kind}_{suffix}" in n.attrs:
            return list(n.attrs[f"{kind}_{suffix}"]), np.dtype(dtype)
    raise n.invalid("attributes", ", ".join(n.attrs), f"{kind}_strings, {kind}_int64s, {kind}_floats or {kind}_tensor")


def _otherwise(n: EagerNode, dtype: np.dtype) -> Any:
    """Default value of a LabelEncoder, for inputs that are no key."""
    tensor = n.attrs.get("default_tensor")
    if isinstance(tensor, TensorProto):
        texts = tensor.data_type == TensorProto.STRING
        return (stored_texts(tensor, n.label) if texts else to_array(tensor, n.label)).reshape(-1).tolist()[0]
    if dtype.kind == "O":
        return n.attrs.get("default_string", _UNUSED)
    return n.attrs.get("default_int64", -1) if dtype.kind in "iu" else n.attrs.get("default_float", -0.0)


_Table = tuple[Sequence[Any], Sequence[Any], np.dtype]  # keys, values and their type


def _label_encoder(n: EagerNode) -> list[Any]:
    return _mapped(n, _encoder_table)


def _encoder_table(n: EagerNode) -> _Table:
    if "classes_strings" in n.attrs:  # of the first version: a position, or the text there
        classes = n.attrs["classes_strings"]
        if is_texts(n.inputs[0]):
            return classes, range(len(classes)), np.dtype(np.int64)
        return range(len(classes)), classes, np.dtype(object)
    (keys, _), (values, dtype) = _column(n, "keys"), _column(n, "values")
    if len(keys) != len(values):
        raise n.invalid("attributes", f"{len(keys)} keys, {len(values)} values", "as many of both")
    return keys, values, dtype


def _mapped(n: EagerNode, table_of: Callable[[EagerNode], _Table]) -> list[Any]:
    """The values of the keys that the elements of input 0 are, by a table that is made once; one NaN is any other."""

    def make() -> tuple[dict[Any, Any], Any, Any, np.dtype]:
        keys, values, dtype = table_of(n)
        pairs, other = list(zip(keys, values, strict=True))[::-1], _otherwise(n, dtype)
        missing = [value for key, value in pairs if key != key] or [other]
        return {key: value for key, value in pairs if key == key}, other, missing[-1], dtype

    table, other, missing, dtype = n.once(make)
    if n.inputs[0].dtype.kind != "f":
        return _each(n, lambda value: table.get(value, other), dtype)
    return _each(n, lambda value: table.get(value, other) if value == value else missing, dtype)


def _category_mapper(n: EagerNode) -> list[Any]:
    return _mapped(n, _category_table)


def _category_table(n: EagerNode) -> _Table:
    numbers, texts = n.attrs["cats_int64s"], n.attrs["cats_strings"]
    if len(numbers) != len(texts):
        raise n.invalid("attributes", f"{len(numbers)} numbers, {len(texts)} texts", "as many of both")
    if is_texts(n.inputs[0]):
        return texts, numbers, np.dtype(np.int64)
    return numbers, texts, np.dtype(object)


def _one_hot_encoder(n: EagerNode) -> list[Any]:
    x, place = n.inputs[0], n.once(lambda: {text: at for at, text in enumerate(n.attrs["cats_strings"])})
    found, width = [place.get(text) for text in x.reshape(-1).tolist()], len(place)
    if not n.attrs.get("zeros", 1) and None in found:
        raise n.invalid("input 0", f"{x.reshape(-1)[found.index(None)]!r}", f"one of {list(place)}")
    made = np.zeros((*x.shape, width), np.float32)
    made.put([row + at for row, at in zip(range(0, made.size, width or 1), found, strict=True) if at is not None], 1.0)
    return [made]


def _zip_map(n: EagerNode) -> list[Any]:
    """A dictionary of label and score for each row."""
    labels = n.once(lambda: n.attrs.get("classlabels_strings") or n.attrs.get("classlabels_int64s") or [])
    scores = n.inputs[0]
    if scores.ndim != 2:
        scores = scores.reshape(-1, scores.shape[-1]) if scores.ndim else scores.reshape(1, 1)
    count, width = scores.shape
    if width != len(labels):
        raise n.invalid("input 0", f"{width} columns", f"{len(labels)}, one for each label")
    if count < width:
        return [[dict(zip(labels, row)) for row in scores.tolist()]]  # noqa: B905 as many
    rows: list[dict[Any, float]] = [{} for _ in range(count)]
    for label, column in zip(labels, scores.T.tolist()):  # noqa: B905
        for row, score in zip(rows, column):  # noqa: B905
            row[label] = score
    return [rows]


# --- numbers and texts ------------------------------------------------------------------------------------------------


def _cast(n: EagerNode) -> list[Any]:
    x, to = n.inputs[0], n.attrs["to"]
    if to == TensorProto.STRING:
        return [x] if is_texts(x) else _each(n, _written, np.dtype(object))
    dtype = numpy_dtype(dtype_name(to, n.label))
    try:
        numbers = np.array([_read(text, dtype) for text in x.reshape(-1).tolist()])
    except ValueError as error:
        raise n.invalid("input 0", f"a text that is no number ({error})", "numbers as texts") from error
    return [numbers.astype(dtype).reshape(x.shape)]


def _read(text: str, dtype: np.dtype) -> float | int:
    return int(text) if dtype.kind in "iu" else float(text)


def _written(value: Any) -> str:
    """A number as the standard writes it: eight digits that matter, no trailing zeros."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, float):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "INF" if value > 0 else "-INF"
    return f"{value:.8g}"


def _constant(n: EagerNode) -> list[Any]:
    if "value_strings" in n.attrs:
        return [texts_of(n.attrs["value_strings"])]
    if "value_string" in n.attrs:
        return [texts_of([n.attrs["value_string"]], ())]
    return [stored_texts(n.attrs["value"], n.label)]


# --- language ---------------------------------------------------------------------------------------------------------


def _normalizer(n: EagerNode) -> list[Any]:
    """Texts without stop words, in one case."""
    x, action, stop = n.inputs[0], n.attrs.get("case_change_action", "NONE"), n.attrs.get("stopwords", [])
    if x.ndim > 2 or (x.ndim == 2 and x.shape[0] != 1):
        raise n.invalid("input 0", f"shape {list(x.shape)}", "[C] or [1, C]")
    exact = bool(n.attrs.get("is_case_sensitive", 0))
    stopped = set(stop if exact else map(str.lower, stop))
    kept = [text for text in x.reshape(-1).tolist() if (text if exact else text.lower()) not in stopped] or [""]
    change: Mapping[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    if action not in change:
        raise n.invalid("attribute 'case_change_action'", action, ", ".join(change))
    return [texts_of([change[action](text) for text in kept], (*x.shape[:-1], len(kept)))]


def _tokenizer(n: EagerNode) -> list[Any]:
    """Words along a new last dimension, filled up with ``pad_value``."""
    x, least, mark = n.inputs[0], n.attrs.get("mincharnum", 1), n.attrs.get("mark", 0)
    separators, expression = n.attrs.get("separators") or [], n.attrs.get("tokenexp", "")
    try:
        word = re.compile(expression) if expression else None
        gap = re.compile("|".join(f"(?:{s})" for s in separators)) if separators and any(separators) else None
    except re.error as error:
        raise n.invalid("attributes 'tokenexp' and 'separators'", error, "regular expressions") from error

    def words(text: str) -> list[str]:
        if word is not None:
            found = [match.group(0) for match in word.finditer(text)]
        else:
            found = gap.split(text) if gap is not None else list(text)
        found = [w for w in found if w and len(w) >= least]
        return ["\x02", *found, "\x03"] if mark else found

    rows = [words(text) for text in x.reshape(-1).tolist()]
    width, pad = max(map(len, rows), default=0), n.attrs["pad_value"]
    return [texts_of([w for row in rows for w in [*row, *[pad] * (width - len(row))]], (*x.shape, width))]


def _concat(n: EagerNode) -> list[Any]:
    a, b = np.broadcast_arrays(*n.inputs[:2])
    pairs = zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)
    return [texts_of([one + two for one, two in pairs], a.shape)]


def _split(n: EagerNode) -> list[Any]:
    """Parts of each text along a new last dimension, filled up with empty texts, and how many they are."""
    x, limit, delimiter = n.inputs[0], n.attrs.get("maxsplit", -1), n.attrs.get("delimiter") or None
    rows = [text.split(delimiter, -1 if limit is None else limit) for text in x.reshape(-1).tolist()]
    width = max(map(len, rows), default=0)
    parts = texts_of([part for row in rows for part in [*row, *[""] * (width - len(row))]], (*x.shape, width))
    return [parts, np.array([len(row) for row in rows], np.int64).reshape(x.shape)]


def _full_match(n: EagerNode) -> list[Any]:
    try:
        pattern = re.compile(n.attrs.get("pattern", ""))
    except re.error as error:
        raise n.invalid("attribute 'pattern'", error, "a regular expression") from error
    return _each(n, lambda text: pattern.fullmatch(text) is not None, np.dtype(bool))


def _tf_idf(n: EagerNode) -> list[Any]:
    """TF-IDF counts of the pool's n-grams by row of words; ``mode`` weighs them."""
    x, mode = n.inputs[0], n.attrs["mode"]
    if x.ndim not in (1, 2) or mode not in ("TF", "IDF", "TFIDF"):
        raise n.invalid("input 0 and attribute 'mode'", f"{list(x.shape)}, {mode}", "[C] or [N, C]; TF, IDF, TFIDF")
    columns, weights, longest = _grams(n), n.attrs.get("weights") or [], n.attrs["max_gram_length"]
    counts = np.zeros((len(x) if x.ndim == 2 else 1, max(n.attrs["ngram_indexes"]) + 1))
    factors = np.ones(counts.shape[1])
    factors[list(columns.values())[: len(weights)]] = weights[: len(columns)]
    for row, words in enumerate(x.reshape(len(counts), -1).tolist()):
        for length in range(n.attrs["min_gram_length"], longest + 1):
            for step in range(1, (n.attrs["max_skip_count"] if length > 1 else 0) + 2):
                for start in range(len(words) - (length - 1) * step):
                    at = columns.get(tuple(words[start : start + (length - 1) * step + 1 : step]))
                    if at is not None:
                        counts[row, at] += 1
    found = counts if mode == "TF" else (counts > 0) * factors if mode == "IDF" else counts * factors
    return [found.astype(np.float32).reshape((*x.shape[:-1], counts.shape[1]))]


def _grams(n: EagerNode) -> dict[tuple[Any, ...], int]:
    """The column of each n-gram of the pool, in its order."""
    pool, starts = n.attrs.get("pool_strings") or n.attrs.get("pool_int64s") or [], n.attrs["ngram_counts"]
    columns = n.attrs["ngram_indexes"]
    grams = []
    for length, start in enumerate(starts, 1):
        stop = starts[length] if length < len(starts) else len(pool)
        grams += [tuple(pool[at : at + length]) for at in range(start, stop, length)]
    if len(grams) != len(columns) or len(set(grams)) != len(grams):
        raise n.invalid("attribute 'ngram_indexes'", len(columns), f"{len(set(grams))}, one for each n-gram")
    return dict(zip(grams, columns, strict=True))


TEXTS: Mapping[str, Eager] = {  # that are of texts whatever they read
    "RegexFullMatch": _full_match,
    "StringConcat": _concat,
    "StringNormalizer": _normalizer,
    "StringSplit": _split,
    "TfIdfVectorizer": _tf_idf,
    "ai.onnx.ml.CategoryMapper": _category_mapper,
    "ai.onnx.ml.ZipMap": _zip_map,
    "com.microsoft.Tokenizer": _tokenizer,
}
_GIVE_TEXTS = ("StringConcat", "StringNormalizer", "com.microsoft.Tokenizer")
ON_TEXTS: Mapping[str, Eager] = {
    **MOVES,
    **TEXTS,
    "Cast": _cast,
    "Constant": _constant,
    "ai.onnx.ml.LabelEncoder": _label_encoder,
    "ai.onnx.ml.OneHotEncoder": _one_hot_encoder,
}


def texts_made(node: onnx.NodeProto, texts: Collection[str]) -> tuple[bool, Sequence[str]]:
    """Whether a node works on texts, where the names ``texts`` are, and which of its outputs are texts."""
    key, reads = key_of(node.domain, node.op_type), any(name in texts for name in node.input)
    attrs = {a.name: a for a in node.attribute}
    if key in MOVES:
        return reads, node.output if reads and key not in (*_NO_TEXTS_OUT, "Equal") else ()
    match key:
        case "Cast":
            to_texts = attrs["to"].i == TensorProto.STRING if "to" in attrs else False
            return reads or to_texts, node.output if to_texts else ()
        case "Constant":
            own = any(name in attrs for name in ("value_string", "value_strings"))
            own = own or ("value" in attrs and attrs["value"].t.data_type == TensorProto.STRING)
            return own, node.output if own else ()
        case "ai.onnx.ml.LabelEncoder":
            own = _encoded_texts(attrs, reads)
            return reads or own, node.output if own else ()
        case "ai.onnx.ml.OneHotEncoder":
            return reads, ()
        case "ai.onnx.ml.CategoryMapper":
            return True, () if reads else node.output
        case "StringSplit":
            return True, node.output[:1]
    return key in TEXTS, node.output if key in _GIVE_TEXTS else ()


def _encoded_texts(attrs: Mapping[str, onnx.AttributeProto], reads: bool) -> bool:
    """Whether a LabelEncoder gives texts: by its values, or of the first version by what it does not read."""
    if "values_tensor" in attrs:
        return attrs["values_tensor"].t.data_type == TensorProto.STRING
    return "values_strings" in attrs or ("classes_strings" in attrs and not reads)
