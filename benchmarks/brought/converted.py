"""Models that converters write: of scikit-learn, XGBoost, LightGBM, Keras, JAX; quantizers, half precision, optimizers.

The last three start from exported models.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.brought.recipe import Made, Recipe, Store

ROWS = 5  # of a table that a call takes
SKLEARN = ("sklearn", "skl2onnx")
QUANTIZED, HALF = 0.1, 2e-2  # tolerances: a quantum may fall to either side


# --- scikit-learn -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Data to fit on: features, classes, values."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray


def table(rows: int = 200) -> Table:
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] ** 2 > 0.5).astype(np.int64) + (x[:, 2] > 1)
    return Table(x, y, (x @ random.standard_normal(8) + 0.1 * x[:, 0] ** 2).astype(np.float32))


@dataclass(frozen=True)
class Estimator:
    """Steps of a pipeline, each "module.Class" of scikit-learn with arguments, and what it is fit to."""

    steps: tuple[tuple[str, dict[str, Any]], ...]
    target: str = "y"
    options: dict[str, Any] = field(default_factory=lambda: {"zipmap": False})
    rows: int = 200


def _pipe(*steps: str | tuple[str, dict[str, Any]], target: str = "y", rows: int = 200, **options: Any) -> Estimator:
    named = tuple((step, {}) if isinstance(step, str) else step for step in steps)
    return Estimator(named, target, options or ({"zipmap": False} if target == "y" else {}), rows)


SCALER, LOGISTIC, MLP = (
    "preprocessing.StandardScaler",
    "linear_model.LogisticRegression",
    "neural_network.MLPClassifier",
)
FOREST = ("ensemble.RandomForestClassifier", {"n_estimators": 20, "max_depth": 5, "random_state": 0})
ESTIMATORS: Mapping[str, Estimator] = {
    "logistic": _pipe(SCALER, LOGISTIC),
    "logistic-zipmap": _pipe(SCALER, LOGISTIC, zipmap=True),
    "forest": _pipe(FOREST),
    "forest-zipmap": _pipe(FOREST, zipmap=True),
    "extra-trees": _pipe(("ensemble.ExtraTreesClassifier", {"n_estimators": 50, "max_depth": 8, "random_state": 0})),
    "gradient-boosting": _pipe(("ensemble.GradientBoostingClassifier", {"n_estimators": 10})),
    "hist-boosting": _pipe(("ensemble.HistGradientBoostingClassifier", {"max_iter": 10})),
    "decision-tree": _pipe(("tree.DecisionTreeClassifier", {"max_depth": 5})),
    "mlp": _pipe(SCALER, (MLP, {"hidden_layer_sizes": (16,), "max_iter": 50})),
    "svc-rbf": _pipe(("svm.SVC", {"probability": True})),
    "svc-poly": _pipe(("svm.SVC", {"kernel": "poly"})),
    "svc-linear": _pipe(("svm.SVC", {"kernel": "linear", "probability": True})),
    "linear-svc": _pipe("svm.LinearSVC", target="y", nocl=False),
    "knn": _pipe(("neighbors.KNeighborsClassifier", {"n_neighbors": 3})),
    "gaussian-nb": _pipe("naive_bayes.GaussianNB"),
    "bernoulli-nb": _pipe("naive_bayes.BernoulliNB"),
    "lda": _pipe("discriminant_analysis.LinearDiscriminantAnalysis"),
    "qda": _pipe("discriminant_analysis.QuadraticDiscriminantAnalysis"),
    "ada-boost": _pipe(("ensemble.AdaBoostClassifier", {"n_estimators": 10})),
    "polynomial-pca": _pipe(
        ("preprocessing.PolynomialFeatures", {"degree": 2}), ("decomposition.PCA", {"n_components": 5}), LOGISTIC
    ),
    "calibrated": _pipe(("calibration.CalibratedClassifierCV", {"cv": 2})),
    "sgd": _pipe(SCALER, ("linear_model.SGDClassifier", {"loss": "log_loss"})),
    "linear": _pipe("linear_model.LinearRegression", target="z"),
    "lasso": _pipe(SCALER, "linear_model.Lasso", target="z"),
    "forest-regressor": _pipe(("ensemble.RandomForestRegressor", {"n_estimators": 10, "max_depth": 4}), target="z"),
    "boosting-regressor": _pipe(("ensemble.GradientBoostingRegressor", {"n_estimators": 10}), target="z"),
    "hist-regressor": _pipe(("ensemble.HistGradientBoostingRegressor", {"max_iter": 50}), target="z"),
    "svr": _pipe("svm.SVR", target="z"),
    "knn-regressor": _pipe("neighbors.KNeighborsRegressor", target="z"),
    "mlp-regressor": _pipe(
        SCALER, ("neural_network.MLPRegressor", {"hidden_layer_sizes": (32, 16), "max_iter": 50}), target="z"
    ),
    "gaussian-process": _pipe("gaussian_process.GaussianProcessRegressor", target="z", rows=50),
    "bagging": _pipe(("ensemble.BaggingRegressor", {"n_estimators": 5}), target="z"),
    "k-means": _pipe(("cluster.KMeans", {"n_clusters": 4}), target=""),
    "mixture": _pipe(("mixture.GaussianMixture", {"n_components": 3}), target=""),
    "isolation-forest": _pipe(("ensemble.IsolationForest", {"n_estimators": 10}), target=""),
    "scalers": _pipe("preprocessing.RobustScaler", "preprocessing.MinMaxScaler", "preprocessing.Normalizer", target=""),
    "bins": _pipe(("preprocessing.KBinsDiscretizer", {"n_bins": 3, "encode": "onehot-dense"}), target=""),
    "binarizer-max-abs": _pipe(
        "preprocessing.MaxAbsScaler", ("preprocessing.Binarizer", {"threshold": 0.1}), target=""
    ),
    "imputer": _pipe("impute.SimpleImputer", "linear_model.Ridge", target="z"),
    "select-best": _pipe(("feature_selection.SelectKBest", {"k": 4}), LOGISTIC),
    "truncated-svd": _pipe(("decomposition.TruncatedSVD", {"n_components": 3}), target=""),
}
LATEST_TREES = {"isolation-forest"}  # its converter writes an older version of the classical domain


def _sklearn(name: str, store: Store) -> Made:
    import importlib

    from skl2onnx import to_onnx
    from sklearn.pipeline import make_pipeline

    estimator, data = ESTIMATORS[name], table(ESTIMATORS[name].rows)
    parts = []
    for path, arguments in estimator.steps:
        module, _, kind = path.rpartition(".")
        parts.append(getattr(importlib.import_module(f"sklearn.{module}"), kind)(**arguments))
    model = make_pipeline(*parts) if len(parts) > 1 else parts[0]
    model.fit(data.x, getattr(data, estimator.target)) if estimator.target else model.fit(data.x)
    options = {key: value for key, value in estimator.options.items() if key == "zipmap"}
    opset = {"target_opset": {"": 18, "ai.onnx.ml": 3}} if name in LATEST_TREES else {}
    return Made(to_onnx(model, data.x[:1], options=options or None, **opset), {"X": data.x[:ROWS]})


def _columns(store: Store) -> Made:
    """Numbers that are scaled and words that become one-hot."""
    import pandas
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    data = table()
    words = np.random.default_rng(1).choice(["u", "v", "w"], len(data.x))
    frame = pandas.DataFrame({"a": data.x[:, 0], "b": data.x[:, 1], "c": words})
    columns = ColumnTransformer([("n", StandardScaler(), ["a", "b"]), ("c", OneHotEncoder(), ["c"])])
    model = make_pipeline(columns, LogisticRegression()).fit(frame, data.y)
    types = [("a", FloatTensorType([None, 1])), ("b", FloatTensorType([None, 1])), ("c", StringTensorType([None, 1]))]
    inputs = {"a": data.x[:ROWS, :1], "b": data.x[:ROWS, 1:2], "c": words[:ROWS, None].astype(str)}
    return Made(to_onnx(model, initial_types=types, options={"zipmap": False}), inputs)


def _texts(store: Store) -> Made:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    lines = ["the cat sat", "a dog ran", "cats and dogs", "he sat down"] * 10
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(lines, [0, 1, 1, 0] * 10)
    made = to_onnx(model, initial_types=[("s", StringTensorType([None]))], options={"zipmap": False})
    return Made(made, {"s": np.array(lines[:ROWS])})


BOOSTERS = {
    "xgb-classifier": {"n_estimators": 10, "max_depth": 4}, "xgb-regressor": {"n_estimators": 10, "max_depth": 4},
    "xgb-large": {"n_estimators": 300, "max_depth": 6}, "lgbm-classifier": {"n_estimators": 10, "verbose": -1},
    "lgbm-regressor": {"n_estimators": 10, "verbose": -1},
    "lgbm-large": {"n_estimators": 300, "num_leaves": 31, "verbose": -1},
}  # fmt: skip


def _booster(name: str, store: Store) -> Made:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    data = table(300 if not name.endswith("large") else 2000)
    types = [("X", FloatTensorType([None, 8]))]
    classes = (data.y > 0).astype(int)
    if name.startswith("xgb"):
        import xgboost

        kind = xgboost.XGBClassifier if "classifier" in name else xgboost.XGBRegressor
        model = kind(**BOOSTERS[name]).fit(data.x, classes if "classifier" in name else data.z)
        made = onnxmltools.convert_xgboost(model, initial_types=types)
    else:
        import lightgbm

        kind = lightgbm.LGBMClassifier if "classifier" in name else lightgbm.LGBMRegressor
        model = kind(**BOOSTERS[name]).fit(data.x, classes if "classifier" in name else data.z)
        plain = {"zipmap": False} if "classifier" in name else {}
        made = onnxmltools.convert_lightgbm(model, initial_types=types, **plain)
    return Made(made, {"X": data.x[: 1 if name.endswith("large") else ROWS]})


# --- Keras and JAX ----------------------------------------------------------------------------------------------------


def _keras(name: str, store: Store) -> Made:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras
    from keras import layers as L

    keras.utils.set_random_seed(0)
    shape: tuple[int, ...]
    match name:
        case "cnn":
            parts = [L.Conv2D(8, 3, activation="relu"), L.MaxPooling2D(), L.SeparableConv2D(16, 3, padding="same")]
            parts += [L.BatchNormalization(), L.GlobalAveragePooling2D(), L.Dense(10, activation="softmax")]
            model, shape = keras.Sequential([keras.Input((32, 32, 3)), *parts]), (1, 32, 32, 3)
        case "recurrent":
            parts = [L.Bidirectional(L.LSTM(16, return_sequences=True)), L.GRU(8), L.Dense(3)]
            model, shape = keras.Sequential([keras.Input((20, 8)), *parts]), (1, 20, 8)
        case "dense":
            parts = [L.Dense(64, activation="relu"), L.Dropout(0.2), L.Dense(32, activation="elu"), L.Dense(1)]
            model, shape = keras.Sequential([keras.Input((16,)), *parts]), (4, 16)
        case "autoencoder":
            parts = [L.Conv2D(8, 3, 2, padding="same", activation="relu"), L.Conv2D(16, 3, 2, padding="same")]
            parts += [L.Conv2DTranspose(8, 3, 2, padding="same", activation="relu"), L.UpSampling2D()]
            parts += [L.Conv2D(3, 3, padding="same", activation="sigmoid")]
            model, shape = keras.Sequential([keras.Input((32, 32, 3)), *parts]), (1, 32, 32, 3)
        case _:
            side = 64
            model = getattr(keras.applications, name)(input_shape=(side, side, 3), weights=None, classes=10)
            shape = (1, side, side, 3)
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    model(array)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model.export(str(path), format="onnx", verbose=False)
        made = onnx.load(path)
    return Made(made, {made.graph.input[0].name: array})


KERAS = ("cnn", "recurrent", "dense", "autoencoder", "MobileNetV2", "EfficientNetB0", "DenseNet121")
JAX: Mapping[str, tuple[int, ...]] = {
    "mlp": (4, 16), "attention": (2, 6, 16), "convolution": (1, 16, 16, 3), "scan": (5, 16), "normalized": (4, 32),
}  # fmt: skip


def _jax(name: str, store: Store) -> Made:
    import jax
    import jax.numpy as jnp
    from jax2onnx import to_onnx

    random = np.random.default_rng(0)
    first, second = (jnp.asarray(random.standard_normal(s) * 0.3, jnp.float32) for s in ((16, 32), (32, 4)))
    kernel = jnp.asarray(random.standard_normal((3, 3, 3, 8)) * 0.2, jnp.float32)

    def attention(x: Any) -> Any:
        weight = jax.nn.softmax(jnp.einsum("bid,bjd->bij", x, x) / 4, -1)
        return jnp.einsum("bij,bjd->bid", weight, x).sum(1)

    def convolution(x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)).mean((1, 2))

    def normalized(x: Any) -> Any:
        center = x - x.mean(-1, keepdims=True)
        return jax.nn.silu(center * jax.lax.rsqrt((center**2).mean(-1, keepdims=True) + 1e-5)) @ second

    functions: dict[str, Callable[[Any], Any]] = {
        "mlp": lambda x: jax.nn.softmax(jax.nn.gelu(x @ first) @ second),
        "attention": attention,
        "convolution": convolution,
        "scan": lambda x: jax.lax.scan(lambda c, v: (jnp.tanh(c + v), c), jnp.zeros(16), x)[0],
        "normalized": normalized,
    }
    model = to_onnx(functions[name], [jax.ShapeDtypeStruct(JAX[name], jnp.float32)])
    return Made(model, {model.graph.input[0].name: random.standard_normal(JAX[name]).astype(np.float32)})


# --- quantized, half precision, optimized -----------------------------------------------------------------------------

QUANTIZERS = ("dynamic", "dynamic-s8", "qdq-s8", "qdq-u8", "qoperator")
SOURCES: Mapping[str, tuple[str, ...]] = {  # exported model -> how it is quantized
    "tv-mobilenet_v3_small.script": QUANTIZERS, "tv-resnet50.script": QUANTIZERS, "net-unet.script": QUANTIZERS,
    "hf-bert.script": QUANTIZERS, "net-lstm.script": ("dynamic",), "net-tabular.script": ("dynamic", "qdq-s8"),
    "hf-distilbert.script": ("dynamic", "qdq-s8"), "net-keyword_spotting.script": ("dynamic", "qdq-u8", "qoperator"),
}  # fmt: skip
HALVES = (
    "tv-mobilenet_v3_small.script", "hf-bert.script", "net-unet.script", "net-lstm.script", "net-yolo.script",
    "net-super_resolution.script", "hf-llama.script",
)  # fmt: skip
OPTIMIZED = ("hf-bert.script", "tv-mobilenet_v3_small.script", "hf-whisper-encoder.script", "net-lstm.script")


def _source(name: str, store: Store) -> tuple[Path, dict[str, np.ndarray]]:
    path = store.folder / "exported" / f"{name}.onnx"
    return path, store.inputs(path)


def _quantized(source: str, how: str, store: Store) -> Made:
    from onnxruntime import quantization as tools
    from onnxruntime.quantization.preprocess import quant_pre_process

    path, inputs = _source(source, store)

    class Reader(tools.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [inputs, inputs]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    kinds, forms = tools.QuantType, tools.QuantFormat
    s8, u8 = kinds.QInt8, kinds.QUInt8
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        try:
            quant_pre_process(str(path), str(before), skip_symbolic_shape=True)
        except Exception:  # of files that its optimizer does not take
            before.write_bytes(path.read_bytes())
        match how:
            case "dynamic":
                tools.quantize_dynamic(str(before), str(after), weight_type=u8)
            case "dynamic-s8":
                tools.quantize_dynamic(str(before), str(after), weight_type=s8, per_channel=True)
            case _:
                form, activation, weight, channels = {
                    "qdq-s8": (forms.QDQ, s8, s8, True),
                    "qdq-u8": (forms.QDQ, u8, u8, False),
                    "qoperator": (forms.QOperator, u8, s8, False),
                }[how]
                tools.quantize_static(
                    str(before), str(after), Reader(), quant_format=form, activation_type=activation,
                    weight_type=weight, per_channel=channels,
                )  # fmt: skip
        return Made(onnx.load(after), inputs, QUANTIZED)


def _four_bits(source: str, form: str, store: Store) -> Made:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer, QuantFormat

    path, inputs = _source(source, store)
    quantizer = MatMulNBitsQuantizer(
        onnx.load(path), block_size=32, is_symmetric=True, quant_format=getattr(QuantFormat, form),
        op_types_to_quantize=("MatMul",),
    )  # fmt: skip
    quantizer.process()
    return Made(quantizer.model.model, inputs, 0.05)


def _half(source: str, ends: bool, store: Store) -> Made:
    """``ends``: inputs and outputs stay float32."""
    from onnxconverter_common import float16

    path, inputs = _source(source, store)
    model = float16.convert_float_to_float16(onnx.load(path), keep_io_types=ends, disable_shape_infer=False)
    if not ends:
        inputs = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in inputs.items()}
    return Made(model, inputs, HALF)


def _optimized(source: str, level: str, store: Store) -> Made:
    """Models optimized by onnxruntime, with operators of its domain."""
    import onnxruntime

    path, inputs = _source(source, store)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}")
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return Made(onnx.load(options.optimized_model_filepath), inputs)


# --- all --------------------------------------------------------------------------------------------------------------


def recipes() -> list[Recipe]:
    def of(name: str, make: Callable[[Store], Made], needs: tuple[str, ...], source: str = "") -> Recipe:
        return Recipe(name, "converted", make, needs, source)

    runtime = ("onnxruntime",)
    found = [of(f"skl-{name}", partial(_sklearn, name), SKLEARN) for name in ESTIMATORS]
    found += [of("skl-columns", _columns, (*SKLEARN, "pandas")), of("skl-texts", _texts, SKLEARN)]
    for name in BOOSTERS:
        needs = ("xgboost" if name.startswith("xgb") else "lightgbm", "onnxmltools")
        found.append(of(name, partial(_booster, name), needs))
    found += [of(f"keras-{name}", partial(_keras, name), ("keras", "torch")) for name in KERAS]
    found += [of(f"jax-{name}", partial(_jax, name), ("jax", "jax2onnx")) for name in JAX]
    for source, hows in SOURCES.items():
        stem = source.rpartition(".")[0]
        found += [of(f"int8-{stem}-{how}", partial(_quantized, source, how), runtime, source) for how in hows]
    for source in ("hf-llama.script", "hf-bert.script"):
        stem = source.rpartition(".")[0]
        for form in ("QOperator", "QDQ"):
            name = f"int4-{stem}-{form.lower()}"
            found.append(of(name, partial(_four_bits, source, form), (*runtime, "onnx_ir"), source))
    for source in HALVES:
        stem = source.rpartition(".")[0]
        for ends in (True, False):
            name = f"fp16-{stem}{'-ends32' if ends else ''}"
            found.append(of(name, partial(_half, source, ends), ("onnxconverter_common",), source))
    for source in OPTIMIZED:
        stem = source.rpartition(".")[0]
        for level in ("basic", "extended"):
            found.append(of(f"optimized-{stem}-{level}", partial(_optimized, source, level), runtime, source))
    return found
