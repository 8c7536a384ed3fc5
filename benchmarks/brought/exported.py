"""Models that PyTorch's exporters write: architectures of torchvision, timm and transformers, and small networks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.brought import language, vision
from benchmarks.brought.exporting import Architecture, Network, export
from benchmarks.brought.recipe import Made, Recipe, Store

NETWORKS: Mapping[str, str] = {  # of networks.py: forms
    "unet": "static open script", "yolo": "static open script", "style_transfer": "static open",
    "deform_conv": "static", "dcgan": "static open", "segnet": "static",
    "super_resolution": "static open script",
    "sentence_embedding": "static open script", "spectrogram": "static", "conformer": "static open script",
    "lstm": "static open script", "gru": "static open script", "rnn": "static script", "long_lstm": "script",
    "stateful_lstm": "static script", "branch": "static", "pointnet": "static open", "gcn": "static open script",
    "recommender": "static open script", "tabular": "static open script", "policy": "static open script",
    "fourier": "static", "indexing": "static script", "attention_opset23": "static", "double_mlp": "static",
    "keypoints": "static open", "tcn": "static open", "keyword_spotting": "static script", "matting": "static",
    "diffusion_unet": "static open script", "diffusion_vae": "static", "topk_pooling": "static script",
    "mixture_density": "static open", "siamese": "static open", "wavenet": "static", "capsules": "static",
}  # fmt: skip
FOREIGN = {"deform": "torchvision", "diffusion": "diffusers"}


def _small(name: str) -> Network:
    from benchmarks.brought import image_networks, networks

    make = getattr(image_networks, name, None) or getattr(networks, name)
    return Network(*make())


def architectures() -> dict[str, Architecture]:
    found = vision.architectures() | language.architectures()
    for name, forms in NETWORKS.items():
        dtype = "float64" if name.startswith("double") else ""
        opset = 23 if name.endswith("opset23") else None
        needs = ("torch", *(package for prefix, package in FOREIGN.items() if name.startswith(prefix)))
        found[f"net-{name}"] = Architecture(partial(_small, name), forms, needs, dtype, opset)
    return found


def recipes() -> list[Recipe]:
    return [
        Recipe(f"{name}.{form}", "exported", partial(_exported, architecture, form), _needs(architecture, form))
        for name, architecture in architectures().items()
        for form in architecture.forms.split()
    ]


def _needs(architecture: Architecture, form: str) -> tuple[str, ...]:
    return architecture.needs if form == "script" else (*architecture.needs, "onnxscript")


def _exported(architecture: Architecture, form: str, store: Store) -> Made:
    return export(architecture, form)
