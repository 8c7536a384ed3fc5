"""Declarations of torchvision's own operators, for a wheel whose library was built for another build of torch.

Networks are exported then as with the library; what runs such an operator fails. Does nothing where the library loads.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ROI = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
SIZE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
GRADIENT = f"Tensor grad, Tensor rois, {{}}float spatial_scale, SymInt pooled_height, SymInt pooled_width, {{}}{SIZE}"
STEPS = "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w"
DEFORM = f"Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {STEPS}, "
DEFORM += "SymInt groups, SymInt offset_groups, bool use_mask"
PAIR, FIVE = "(Tensor, Tensor)", "(Tensor, Tensor, Tensor, Tensor, Tensor)"
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({ROI}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align({ROI}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({GRADIENT.format('', '')}, int sampling_ratio, bool aligned) -> Tensor",
    f"ps_roi_align({ROI}, int sampling_ratio) -> {PAIR}",
    f"_ps_roi_align_backward({GRADIENT.format('Tensor channel_mapping, ', 'int sampling_ratio, ')}) -> Tensor",
    f"roi_pool({ROI}) -> {PAIR}",
    f"_roi_pool_backward({GRADIENT.format('Tensor argmax, ', '')}) -> Tensor",
    f"ps_roi_pool({ROI}) -> {PAIR}",
    f"_ps_roi_pool_backward({GRADIENT.format('Tensor channel_mapping, ', '')}) -> Tensor",
    f"deform_conv2d({DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {DEFORM}) -> {FIVE}",
    "_cuda_version() -> int",
)
_kept: list[Any] = []  # a library goes with its object


def declare() -> None:
    """To be called before torchvision is imported."""
    import torch

    found = importlib.util.find_spec("torchvision")
    if _kept or found is None or found.origin is None:
        return
    for path in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(path)
            return
        except OSError:  # of another build
            break
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    _kept.append(library)
    load = torch.ops.load_library
    torch.ops.load_library = lambda path: None if "torchvision" in str(path) else load(path)
