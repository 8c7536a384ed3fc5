"""Translators of ai.onnx.ml: linear models, encoders and scalers. Those that give or take texts: ``texts.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, RuntimeValue, Translator, np_dtype
from burnish.frontend.onnx.dtypes import to_array

FEW_KEYS = 16  # of a table that is compared with each element, which fuses with its neighbours
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def real(c: OnnxContext, x: str) -> str:
    """``x`` as float32, or as float64 if it is that."""
    return x if c.dtype(x) in ("float32", "float64") else c.cast(x, "float32")


def rows(c: OnnxContext, x: str) -> str:
    """A vector as a table of one row."""
    return x if c.rank(x) == 2 else c.reshape(x, (1, *c.shape(x)))


def transformed(c: OnnxContext, scores: str, transform: str) -> str:
    """Scores [N, classes] as the attribute ``post_transform`` says."""
    match transform:
        case "NONE":
            return scores
        case "SOFTMAX":
            return c.add("softmax", scores, axis=-1)
        case "LOGISTIC":
            return c.add("sigmoid", scores)
        case "SOFTMAX_ZERO":  # classes whose score is zero stay at zero
            zero = c.scalar(0.0, scores)
            none = c.add("equal", scores, zero)
            power = c.add("exp", c.add("sub", scores, c.add("reduce_max", scores, axes=(-1,), keepdims=True)))
            live = c.add("where", none, zero, power)
            return c.add("div", live, c.add("reduce_sum", live, axes=(-1,), keepdims=True))
    return c.refuse("attribute 'post_transform'", transform, "NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO")


def no_texts(n: OnnxNode, *keys: str) -> None:
    """Raises RuntimeValue for attributes that make the operator one of texts."""
    for key in keys:
        if n.attr(key):
            raise RuntimeValue(f"{n}: attribute '{key}': found texts; allowed: numbers; texts only in a call", "")


def _linear(c: OnnxContext, n: OnnxNode, outputs: int) -> str:
    x = rows(c, real(c, n.inputs[0]))
    weights = np.asarray(n.attrs["coefficients"], np.float32).reshape(outputs, -1)
    scores = c.add("matmul", x, c.constant(np.ascontiguousarray(weights.T), c.dtype(x)))
    bias = n.attr("intercepts")
    if bias and len(bias) != outputs:
        c.invalid("attribute 'intercepts'", f"{len(bias)} numbers", f"{outputs}, one for each output")
    return c.add("add", scores, c.constant(np.asarray(bias), c.dtype(x))) if bias else scores


def _linear_regressor(c: OnnxContext, n: OnnxNode) -> str:
    return transformed(c, _linear(c, n, n.attr("targets", 1)), n.attr("post_transform", "NONE"))


def labels_of(c: OnnxContext, labels: Sequence[int], index: str) -> str:
    """The labels of classes, by their positions."""
    return c.add("gather", c.constant(np.asarray(labels, np.int64)), index, axis=0)


def binary_label(c: OnnxContext, labels: Sequence[int], score: str, limit: float) -> str:
    """The second of two labels where a score [N, 1] is greater than ``limit``, else the first."""
    first, second = (c.constant(np.asarray(v, np.int64)) for v in labels)
    positive = c.reshape(c.add("greater", score, c.scalar(limit, score)), c.shape(score)[:1])
    return c.add("where", positive, second, first)


def _linear_classifier(c: OnnxContext, n: OnnxNode) -> list[str]:
    no_texts(n, "classlabels_strings")
    labels, transform = n.attr("classlabels_ints") or [], n.attr("post_transform", "NONE")
    features = c.shape(n.inputs[0])[-1]
    outputs = len(n.attrs["coefficients"]) // max(features, 1)
    scores = _linear(c, n, outputs)
    if outputs == 1 and len(labels) == 2:
        logistic = transform == "LOGISTIC"
        label = binary_label(c, labels, scores, 0.0)
        scores = c.add("sigmoid", scores) if logistic else scores
        opposite = c.add("sub", c.scalar(1.0, scores), scores)  # as onnxruntime has it, also of no probabilities
        return [label, c.add("concat", opposite, scores, axis=1)]
    if len(labels) != outputs:
        c.invalid("attribute 'classlabels_ints'", f"{len(labels)} labels", f"{outputs}, one for each score")
    index = c.add("argmax", scores, axis=1, keepdims=False)
    return [labels_of(c, labels, index), transformed(c, scores, transform)]


def _scaler(c: OnnxContext, n: OnnxNode) -> str:
    x = real(c, n.inputs[0])
    offset = c.constant(np.asarray(n.attr("offset", [0.0])), c.dtype(x))
    scale = c.constant(np.asarray(n.attr("scale", [1.0])), c.dtype(x))
    return c.cast(c.add("mul", c.add("sub", x, offset), scale), "float32")


def _normalizer(c: OnnxContext, n: OnnxNode) -> str:
    x, norm = real(c, n.inputs[0]), n.attr("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        c.invalid("attribute 'norm'", norm, "MAX, L1, L2")
    size = {
        "MAX": lambda: c.add("reduce_max", x, axes=(-1,), keepdims=True),
        "L1": lambda: c.add("reduce_l1", x, axes=(-1,), keepdims=True),
        "L2": lambda: c.add("reduce_l2", x, axes=(-1,), keepdims=True),
    }[norm]()
    zero = c.add("equal", size, c.scalar(0.0, size))
    return c.cast(c.add("div", x, c.add("where", zero, c.scalar(1.0, size), size)), "float32")


def _feature_extractor(c: OnnxContext, n: OnnxNode) -> str:
    """Columns along the last dimension; a vector is taken as one row."""
    x, index = rows(c, n.inputs[0]) if c.rank(n.inputs[0]) == 1 else n.inputs[0], n.inputs[1]
    c.require_positions(index, x, (c.rank(x) - 1,))
    return c.add("gather", x, c.reshape(index, (int(np.prod(c.shape(index))),)), axis=-1)


def _binarizer(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    return c.cast(c.add("greater", x, c.scalar(n.attr("threshold", 0.0), x)), c.dtype(x))


def _imputer(c: OnnxContext, n: OnnxNode) -> str:
    """One value, or one a column, in the place of what is missing."""
    x = n.inputs[0]
    whole = c.dtype(x).startswith("int")
    values = n.attrs["imputed_value_int64s" if whole else "imputed_value_floats"]
    missing = n.attr("replaced_value_int64" if whole else "replaced_value_float", 0)
    found = c.add("isnan", x) if missing != missing else c.add("equal", x, c.scalar(missing, x))
    return c.add("where", found, c.constant(np.asarray(values), c.dtype(x)), x)


def _one_hot_encoder(c: OnnxContext, n: OnnxNode) -> str:
    no_texts(n, "cats_strings")
    x, categories = n.inputs[0], np.asarray(n.attrs["cats_int64s"], np.int64)
    if not n.attr("zeros", 1):
        c.refuse("attribute 'zeros'", 0, "1: an unknown category cannot end a compiled model")
    wide = c.reshape(c.cast(x, "int64"), (*c.shape(x), 1))
    return c.cast(c.add("equal", wide, c.constant(categories)), "float32")


def _vectorizer(c: OnnxContext, n: OnnxNode) -> str:
    parts = [c.cast(rows(c, x), "float32") for x in n.inputs]
    sizes = n.attr("inputdimensions") or [c.shape(p)[1] for p in parts]
    cut = [p if c.shape(p)[1] == size else c.slice(p, 1, 0, size) for p, size in zip(parts, sizes, strict=True)]
    return c.add("concat", *cut, axis=1)


def _by_search(c: OnnxContext, x: str, keys: np.ndarray, values: np.ndarray, other: np.ndarray) -> str:
    """The value of each element's key, the first of equal ones; ``other`` for what is no key."""
    ordered, first = np.unique(keys, return_index=True)
    place = c.add("find_keys", x, c.constant(ordered))
    table = np.concatenate([values[first], other.astype(values.dtype).reshape(1)])
    return c.add("gather", c.constant(table), place, axis=0)  # -1 is the last one


def _label_encoder(c: OnnxContext, n: OnnxNode) -> str:
    """A table of keys and values; what is no key has the default value."""
    no_texts(n, "keys_strings", "values_strings", "classes_strings")
    tables = []
    for kind in ("keys", "values"):
        name = next((k for k in (f"{kind}_tensor", f"{kind}_int64s", f"{kind}_floats") if k in n.attrs), None)
        if name is None:
            c.invalid("attributes", ", ".join(n.attrs), f"{kind}_int64s, {kind}_floats or {kind}_tensor")
        value = n.attrs[name]
        if isinstance(value, onnx.TensorProto):
            tables.append(to_array(value, str(n)))
        else:
            tables.append(np.asarray(value, np.int64 if "int64" in name else np.float32))
    keys, values = tables
    if keys.size != values.size or not keys.size:
        c.invalid("attributes", f"{keys.size} keys and {values.size} values", "as many values as keys, one at least")
    x, default = n.inputs[0], n.attr("default_tensor")
    if isinstance(default, onnx.TensorProto):
        other = to_array(default, str(n)).reshape(-1)[0]
    else:
        whole = values.dtype.kind in "iu"
        other = n.attr("default_int64", -1) if whole else n.attr("default_float", -0.0)
    if c.dtype(x) != str(keys.dtype):
        c.invalid("input 0", f"dtype {c.dtype(x)}", f"{keys.dtype}, that of the keys")
    if keys.size > FEW_KEYS:
        return _by_search(c, x, keys.reshape(-1), values.reshape(-1), np.asarray(other))
    wide = c.reshape(x, (*c.shape(x), 1))
    hit = c.add("equal", wide, c.constant(keys.reshape(-1)))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        both = c.add("logical_and", c.add("isnan", wide), c.constant(np.isnan(keys).reshape(-1)))
        hit = c.add("logical_or", hit, both)
    place = c.add("argmax", c.cast(hit, "int32"), axis=-1, keepdims=False)
    found = c.add("gather", c.constant(values.reshape(-1)), place, axis=0)
    known = c.add("reduce_max", hit, axes=(-1,), keepdims=False)
    return c.add("where", known, found, c.constant(np.asarray(other).astype(np_dtype(c.dtype(found)))))


_OPERATORS: Mapping[str, Translator] = {
    "LinearRegressor": _linear_regressor,
    "LinearClassifier": _linear_classifier,
    "Scaler": _scaler,
    "Normalizer": _normalizer,
    "ArrayFeatureExtractor": _feature_extractor,
    "Binarizer": _binarizer,
    "Imputer": _imputer,
    "OneHotEncoder": _one_hot_encoder,
    "FeatureVectorizer": _vectorizer,
    "LabelEncoder": _label_encoder,
}
TRANSLATORS: Mapping[str, Translator] = {f"ai.onnx.ml.{name}": t for name, t in _OPERATORS.items()}
