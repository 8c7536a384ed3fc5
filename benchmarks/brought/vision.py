"""Networks of torchvision and timm on images: small ones of many architectures, and some in the size of their use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.brought.exporting import BATCH, Architecture, Network, image

TORCHVISION, BEHIND_TIMM = ("torch", "torchvision"), ("torch", "torchvision", "timm")


def _torchvision(name: str, size: int, batch: int = 2, **options: Any) -> Network:
    import torchvision

    module = torchvision.models.get_model(name, weights=None, **options)
    if "segmentation" in type(module).__module__:
        module = FirstOf(module, "out")
    return Network(module, (image(size, batch=batch),), BATCH)


def _video(name: str) -> Network:
    import torch
    import torchvision

    return Network(torchvision.models.get_model(name, weights=None), (torch.randn(1, 3, 8, 32, 32),), BATCH)


def _timm(name: str, size: int, **options: Any) -> Network:
    import timm

    return Network(timm.create_model(name, pretrained=False, **options), (image(size),), BATCH)


def FirstOf(module: Any, key: str) -> Any:  # noqa: N802 (a class that exists where torch does)
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any) -> Any:
            return self.inner(x)[key]

    return First()


IMAGES: Mapping[str, tuple[str, int]] = {  # of torchvision: forms, size of the image
    "resnet18": ("static open", 64), "resnet50": ("static open script", 64), "resnext50_32x4d": ("static", 64),
    "wide_resnet50_2": ("script", 64), "mobilenet_v2": ("static open script", 64),
    "mobilenet_v3_small": ("static script", 64), "mobilenet_v3_large": ("open", 64),
    "efficientnet_b0": ("static open", 64), "efficientnet_v2_s": ("static", 64), "convnext_tiny": ("static open", 64),
    "swin_t": ("static open script", 64), "swin_v2_t": ("static", 64), "shufflenet_v2_x0_5": ("static script", 64),
    "shufflenet_v2_x1_0": ("open", 64), "squeezenet1_1": ("static open", 64), "vit_b_32": ("static open", 224),
    "densenet121": ("static script", 64), "googlenet": ("static", 64), "inception_v3": ("static", 96),
    "mnasnet0_5": ("static script", 64), "regnet_y_400mf": ("static open", 64), "regnet_x_400mf": ("script", 64),
    "alexnet": ("static", 96), "vgg11_bn": ("static", 64), "maxvit_t": ("static", 224),
    "deeplabv3_mobilenet_v3_large": ("static script", 64), "fcn_resnet50": ("static", 64),
    "lraspp_mobilenet_v3_large": ("static open", 64),
}  # fmt: skip
PLAIN: Mapping[str, dict[str, Any]] = {  # options without which a network has further outputs
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None}, "fcn_resnet50": {"weights_backbone": None},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
}  # fmt: skip
REAL: Mapping[str, int] = {  # of torchvision in the size of its use, one image
    "resnet50": 224, "vit_b_16": 224, "convnext_tiny": 224, "efficientnet_b0": 224, "swin_t": 224,
    "mobilenet_v3_large": 224, "deeplabv3_mobilenet_v3_large": 320,
}  # fmt: skip
TIMM: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": ("static open script", 64, {"img_size": 64}),
    "deit_tiny_distilled_patch16_224": ("static", 64, {"img_size": 64}),
    "mobilevitv2_050": ("static open", 64, {}), "mobilevit_xxs": ("static script", 64, {}),
    "poolformerv2_s12": ("static", 64, {}), "levit_128s": ("static", 224, {}),
    "beit_base_patch16_224": ("static", 64, {"img_size": 64, "depth": 2}),
    "edgenext_xx_small": ("static open", 64, {}), "tf_efficientnetv2_b0": ("static", 64, {}),
    "repvgg_a0": ("static", 64, {}), "res2net50_26w_4s": ("static", 64, {}), "ghostnet_100": ("static script", 64, {}),
    "mixer_s32_224": ("static", 224, {"num_classes": 10}), "coat_tiny": ("static", 64, {"img_size": 64}),
    "xcit_nano_12_p16_224": ("static", 64, {}), "hrnet_w18_small": ("static", 64, {}),
    "dla34": ("static", 64, {}), "efficientvit_b0": ("static open", 64, {}), "fastvit_t8": ("static", 64, {}),
    "mobilenetv4_conv_small": ("static open", 64, {}), "tinynet_e": ("static", 64, {}),
    "lcnet_050": ("static script", 64, {}), "hardcorenas_a": ("static", 64, {}), "rexnet_100": ("static", 64, {}),
    "convmixer_768_32": ("static", 64, {}), "pvt_v2_b0": ("static open", 64, {}),
    "resnest14d": ("static", 64, {}), "selecsls42b": ("static", 64, {}), "nfnet_l0": ("static", 64, {}),
    "eca_resnet33ts": ("static", 64, {}), "gmlp_s16_224": ("static", 224, {"num_classes": 10}),
    "twins_pcpvt_small": ("static", 64, {"img_size": 64}), "crossvit_9_240": ("static", 240, {}),
    "volo_d1_224": ("static", 224, {}), "davit_tiny": ("static", 64, {}), "repvit_m0_9": ("static", 64, {}),
}  # fmt: skip


def architectures() -> dict[str, Architecture]:
    found: dict[str, Architecture] = {}
    for name, (forms, size) in IMAGES.items():
        make = partial(_torchvision, name, size, **PLAIN.get(name, {}))
        found[f"tv-{name}"] = Architecture(make, forms, TORCHVISION)
    for name, size in REAL.items():
        make = partial(_torchvision, name, size, 1, **PLAIN.get(name, {}))
        found[f"real-{name}"] = Architecture(make, "script", TORCHVISION)
    found["tv-r3d_18"] = Architecture(partial(_video, "r3d_18"), "static", TORCHVISION)
    half = partial(_torchvision, "resnet18", 64)
    found["half-resnet18"] = Architecture(half, "static script", TORCHVISION, "float16")
    for name, (forms, size, options) in TIMM.items():
        found[f"timm-{name}"] = Architecture(partial(_timm, name, size, **options), forms, BEHIND_TIMM)
    return found
