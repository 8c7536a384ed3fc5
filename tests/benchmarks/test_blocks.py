"""Building blocks of networks: right, and without a kernel by the general schedule of a contraction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import burnish as bn
from benchmarks.architectures.blocks import BLOCKS
from burnish.measure.accuracy import scaled_error

FAST = ("channel norm", "MambaOut", "temporal convolutions", "bilinear, twice")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in BLOCKS])
def test_blocks_are_right_and_have_templates(name: str, tmp_path: Path) -> None:
    make, shapes = BLOCKS[name]
    torch.manual_seed(1)
    network = make().eval()
    inputs = tuple(torch.randn(shape) for shape in shapes)
    with torch.no_grad():
        expected = network.double()(*(x.double() for x in inputs)).numpy()
    module = bn.compile(network.float(), inputs, cache_dir=tmp_path)
    assert scaled_error(np.asarray(module(*inputs)), expected.astype(np.float32)) < 2e-5
    assert module.slow == {}
