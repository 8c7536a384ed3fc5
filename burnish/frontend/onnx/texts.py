"""Tensors of strings (ONNX element type STRING), which are no compiled code: NumPy arrays of Python strings.

A classifier whose labels are texts is one of positions, and a table after it: :func:`separate_labels`. The operators on
texts are in :mod:`burnish.frontend.onnx.text_operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from burnish.errors import ModelError
from burnish.frontend.onnx.domains import key_of
from burnish.frontend.onnx.nodes import subgraphs

ML = "ai.onnx.ml"
CLASSIFIERS = {  # and the attribute of labels that are numbers
    f"{ML}.LinearClassifier": "classlabels_ints",
    f"{ML}.SVMClassifier": "classlabels_ints",
    f"{ML}.TreeEnsembleClassifier": "classlabels_int64s",
}


def is_texts(value: Any) -> bool:
    """Whether a value is a tensor of texts."""
    return isinstance(value, np.ndarray) and value.dtype == object


def texts_of(values: Sequence[str], shape: Sequence[int] | None = None) -> np.ndarray:
    """A tensor of texts; by default a vector."""
    made = np.empty(len(values), object)
    made[:] = values
    return made if shape is None else made.reshape(shape)


def stored_texts(tensor: TensorProto, where: str) -> np.ndarray:
    """The value of a tensor of texts in a file. Raises ModelError."""
    try:
        return texts_of([text.decode("utf-8", "replace") for text in tensor.string_data], tuple(tensor.dims))
    except ValueError as error:
        raise ModelError(f"{where}: the texts of dimensions {list(tensor.dims)} cannot be read: {error}") from error


def separate_labels(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with classifiers of texts as classifiers of positions, and tables of their texts after them."""
    if not _any_labels(proto.graph):
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    _separate(result.graph)
    return result


def _any_labels(graph: onnx.GraphProto) -> bool:
    inner = [g for node in graph.node for g in subgraphs(node).values()]
    return any(map(_labels, graph.node)) or any(map(_any_labels, inner))


def _labels(node: onnx.NodeProto) -> list[bytes]:
    """The texts that a classifier gives."""
    if key_of(node.domain, node.op_type) not in CLASSIFIERS:
        return []
    return [text for a in node.attribute if a.name == "classlabels_strings" for text in a.strings]


def _separate(graph: onnx.GraphProto) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node).values():
            _separate(inner)
        nodes.append(node)
        labels = _labels(node)
        if not labels:
            continue
        name, kind = node.output[0], CLASSIFIERS[key_of(node.domain, node.op_type)]
        kept = [a for a in node.attribute if not a.name.startswith("classlabels_")]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(kind, list(range(len(labels))))])
        node.output[0] = f"{name}.position" if name else ""
        if not name:
            continue
        encoder = helper.make_node("LabelEncoder", [node.output[0]], [name], domain=ML)
        encoder.attribute.append(helper.make_attribute("keys_int64s", list(range(len(labels)))))
        encoder.attribute.append(helper.make_attribute("values_strings", labels))
        nodes.append(encoder)
    del graph.node[:]
    graph.node.extend(nodes)
