"""Models of texts: labels, categories and words as strings, and maps of labels and scores, against onnxruntime."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import burnish as bn
from burnish.errors import InputError, UnsupportedOperator

ML = "ai.onnx.ml"
STRING, F32, I64 = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64
WORDS = np.array([["red", "blue"], ["blue", "green"], ["none", "red"]], object)
RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((5, 4)).astype(np.float32)
TREES = {
    "nodes_treeids": [0] * 5, "nodes_nodeids": [0, 1, 2, 3, 4], "nodes_featureids": [0, 1, 0, 0, 0],
    "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 2, 0, 0, 0], "nodes_falsenodeids": [4, 3, 0, 0, 0],
    "class_treeids": [0] * 3, "class_nodeids": [2, 3, 4], "class_ids": [0, 1, 2], "class_weights": [1.0, 2.0, 0.5],
}  # fmt: skip
LINEAR = {"coefficients": RNG.standard_normal(12).tolist(), "intercepts": [0.1, 0.2, 0.3], "post_transform": "SOFTMAX"}


def texts(values: Any) -> np.ndarray:
    return np.array(values, object)


def node(op: str, inputs: list[str], outputs: list[str], domain: str = "", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain=domain, **attrs)


def model(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], outputs: list[Any], **constants: Any):
    kinds = {"O": STRING, "f": F32, "i": I64}
    inputs = [helper.make_tensor_value_info(k, kinds[a.dtype.kind], [None, *a.shape[1:]]) for k, a in feeds.items()]
    made = [value if isinstance(value, onnx.ValueInfoProto) else helper.make_tensor_value_info(*value, None)
            for value in outputs]  # fmt: skip
    stored = [
        helper.make_tensor(name, STRING, a.shape, [t.encode() for t in a.reshape(-1)])
        if (a := np.asarray(value)).dtype.kind in "OU" else numpy_helper.from_array(a, name)
        for name, value in constants.items()
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, made, stored)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def same(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    import onnxruntime as ort

    wanted = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = bn.compile(proto, threads=1, shapes={k: a.shape for k, a in feeds.items()})(**feeds)
    results = list(found) if isinstance(found, tuple) else [found]
    for got, want in zip(results, wanted, strict=True):
        if isinstance(want, list):
            assert [set(row) for row in got] == [set(row) for row in want]
            for own, other in zip(got, want, strict=True):
                np.testing.assert_allclose([own[k] for k in other], list(other.values()), rtol=1e-5)
        elif want.dtype == object:
            assert got.dtype == object
            np.testing.assert_array_equal(got, want)
        else:
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return results


def maps(name: str, key: int) -> onnx.ValueInfoProto:
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(F32, []))
    return helper.make_value_info(name, helper.make_sequence_type_proto(kind))


@pytest.mark.parametrize(("op", "attrs"), [("TreeEnsembleClassifier", TREES), ("LinearClassifier", LINEAR)])
def test_classifiers_give_labels_that_are_texts_and_maps_of_scores(op: str, attrs: dict[str, Any]) -> None:
    labels = ["no", "yes", "maybe"]
    nodes = [
        node(op, ["x"], ["label", "scores"], ML, classlabels_strings=labels, **attrs),
        node("ZipMap", ["scores"], ["map"], ML, classlabels_strings=labels),
    ]
    results = same(model(nodes, {"x": SCORES}, [("label", STRING), maps("map", STRING)]), {"x": SCORES})
    assert len(set(results[0])) > 1


def test_maps_of_numbered_labels() -> None:
    nodes = [node("Softmax", ["x"], ["s"]), node("ZipMap", ["s"], ["m"], ML, classlabels_int64s=[3, 1, 7, 9])]
    module = bn.compile(model(nodes, {"x": SCORES}, [maps("m", I64)]), shapes={"x": SCORES.shape})
    assert str(module.outputs[0]) == "m: maps of float32"
    same(model(nodes, {"x": SCORES}, [maps("m", I64)]), {"x": SCORES})


COLUMN = np.array([["red"], ["blue"], ["red"]], object)


def test_categories_become_columns_beside_numbers() -> None:
    feeds = {"c": COLUMN, "x": SCORES[:3]}
    nodes = [
        node("OneHotEncoder", ["c"], ["hot"], ML, cats_strings=["blue", "red"], zeros=0),
        node("Reshape", ["hot", "shape"], ["flat"]),
        node("Concat", ["flat", "x"], ["y"], axis=1),
    ]
    proto = model(nodes, feeds, [("y", F32)], shape=np.array([-1, 2]))
    same(proto, feeds)
    with pytest.raises(InputError, match=r"input 0: found 'green'; allowed: one of \['blue', 'red'\]"):
        bn.compile(proto, shapes={"c": (1, 1), "x": (1, 4)})(c=[["green"]], x=SCORES[:1])


def test_repeated_calls_of_texts_of_any_kind() -> None:
    """Python's and NumPy's strings, of sizes that change; two nodes that take different columns of them."""
    nodes = [
        node("Gather", ["w", "first"], ["a"], axis=1), node("Gather", ["w", "second"], ["b"], axis=1),
        node("OneHotEncoder", ["a"], ["u"], ML, cats_strings=["red", "blue", "none"]),
        node("OneHotEncoder", ["b"], ["v"], ML, cats_strings=["red", "blue", "none"]),
        node("Sub", ["u", "v"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"w": WORDS}, [("y", F32)], first=np.array([0]), second=np.array([1]))
    compiled = bn.compile(proto, shapes={"w": ("n", 2)})
    hot = {"red": [1, 0, 0], "blue": [0, 1, 0], "none": [0, 0, 1], "green": [0, 0, 0]}
    wanted = np.array([[np.subtract(hot[a], hot[b])] for a, b in WORDS.tolist()], np.float32)
    for given in (WORDS, WORDS, WORDS[:2], WORDS.astype(str), WORDS.astype(str), texts([*WORDS.astype(str)]), WORDS):
        np.testing.assert_array_equal(compiled(given), wanted[: len(given)])
    with pytest.raises(InputError, match="input 'w' holds a float, allowed"):
        compiled(texts([["red", 1.0]]))


@pytest.mark.parametrize(
    "made",
    [
        [node("LabelEncoder", ["w"], ["y"], ML, keys_strings=["red", "blue"], values_int64s=[5, 6])],
        [node("LabelEncoder", ["w"], ["y"], ML, keys_strings=["red"], values_floats=[0.5], default_float=2.0)],
        [node("CategoryMapper", ["w"], ["y"], ML, cats_int64s=[4, 9], cats_strings=["red", "blue"], default_int64=7)],
        [node("Equal", ["w", "red"], ["y"])],
        [node("Shape", ["w"], ["y"])],
    ],
)  # fmt: skip
def test_numbers_of_texts(made: list[onnx.NodeProto]) -> None:
    attrs = {a.name for a in made[0].attribute}
    kind = F32 if "values_floats" in attrs else TensorProto.BOOL if made[0].op_type == "Equal" else I64
    same(model(made, {"w": WORDS}, [("y", kind)], red=texts(["red"])), {"w": WORDS})


@pytest.mark.parametrize(
    "made",
    [
        [node("LabelEncoder", ["w"], ["y"], ML, keys_strings=["red"], values_strings=["rot"], default_string="?")],
        [node("Transpose", ["w"], ["y"], perm=[1, 0])],
        [node("Reshape", ["w", "shape"], ["y"])],
        [node("Concat", ["w", "more"], ["y"], axis=0)],
        [node("Gather", ["w", "at"], ["y"], axis=1)],
        [node("Slice", ["w", "at", "two"], ["y"])],
        [node("Unsqueeze", ["w", "at"], ["y"])],
        [node("Equal", ["w", "red"], ["e"]), node("Where", ["e", "red", "w"], ["y"])],
        [node("StringConcat", ["w", "red"], ["y"])],
        [node("ArrayFeatureExtractor", ["w", "at"], ["y"], ML)],
        [node("Cast", ["n"], ["y"], to=STRING)],
    ],
    ids=lambda made: made[-1].op_type,
)  # fmt: skip
def test_texts_of_texts(made: list[onnx.NodeProto]) -> None:
    constants = {"red": texts(["red"]), "shape": np.array([2, -1]), "more": texts([["x", "y"]]), "at": np.array([1]),
                 "two": np.array([2]), "n": np.array([3, -12])}  # fmt: skip
    read = {name for n in made for name in n.input}
    stored = {k: v for k, v in constants.items() if k in read}
    same(model(made, {"w": WORDS}, [("y", STRING)], **stored), {"w": WORDS})


def test_words_are_counted() -> None:
    lines = texts(["The cat sat", "a dog", "cats and dogs sat on the cat"])
    nodes = [
        node("StringNormalizer", ["s"], ["l"], case_change_action="LOWER", locale="C", stopwords=["nothing"]),
        node("Tokenizer", ["l"], ["t"], "com.microsoft", mark=0, mincharnum=2, pad_value="#", tokenexp="[a-z]+"),
        node("TfIdfVectorizer", ["t"], ["y"], mode="TFIDF", max_gram_length=2, min_gram_length=1, max_skip_count=0,
             ngram_counts=[0, 3], ngram_indexes=[2, 0, 1, 3], pool_strings=["cat", "sat", "dog", "the", "cat"],
             weights=[1.0, 2.0, 0.5, 3.0]),
    ]  # fmt: skip
    found = same(model(nodes, {"s": lines}, [("t", STRING), ("y", F32)]), {"s": lines})
    np.testing.assert_array_equal(found[1], [[2, 0, 1, 3], [0, 0.5, 0, 0], [2, 0, 1, 3]])


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_skipped_grams_of_numbers(mode: str) -> None:
    words = np.array([[1, 2, 3, 1, 3], [3, 3, 1, 2, 5]])
    nodes = [node("TfIdfVectorizer", ["w"], ["y"], mode=mode, max_gram_length=2, min_gram_length=1, max_skip_count=2,
                  ngram_counts=[0, 2], ngram_indexes=[0, 1, 2, 3], pool_int64s=[1, 5, 1, 3, 3, 2],
                  weights=[1.0, 2.0, 0.5, 3.0])]  # fmt: skip
    same(model(nodes, {"w": words}, [("y", F32)]), {"w": words})


def test_texts_and_numbers_become_each_other() -> None:
    feeds = {"s": texts(["1.5", "-2", "1e3"])}
    same(model([node("Cast", ["s"], ["y"], to=F32)], feeds, [("y", F32)]), feeds)
    cast = model([node("Cast", ["s"], ["y"], to=F32)], feeds, [("y", F32)])
    module = bn.compile(cast, shapes={"s": ("n",), "n": (1, 9)})
    with pytest.raises(InputError, match="a text that is no number"):
        module(texts(["one"]))
    with pytest.raises(InputError, match=r"input 's' is a ndarray|input 's' is float"):
        module(np.zeros(3, np.float32))
    parts = [node("StringSplit", ["s"], ["y", "n"], delimiter=".")]
    found = bn.compile(model(parts, feeds, [("y", STRING), ("n", I64)]), shapes={"s": (3,)})(feeds["s"])
    assert found[0].tolist() == [["1", "5"], ["-2", ""], ["1e3", ""]]
    assert found[1].tolist() == [2, 1, 1]
    matches = [node("RegexFullMatch", ["s"], ["y"], pattern=r"-?\d")]
    found = bn.compile(model(matches, feeds, [("y", TensorProto.BOOL)]), shapes={"s": (3,)})(feeds["s"])
    assert found.tolist() == [False, True, False]


def test_maps_as_inputs_are_refused_by_name() -> None:
    proto = model([node("Identity", ["s"], ["y"])], {"s": texts(["a"])}, [("y", STRING)])
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(F32, []))
    proto.graph.input[0].CopyFrom(helper.make_value_info("s", kind))
    with pytest.raises(UnsupportedOperator, match="'s': found type map_type"):
        bn.compile(proto)
