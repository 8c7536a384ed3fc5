"""Schedule templates of decoupled accelerators, best first: convolutions and matrix products of int8."""

from __future__ import annotations

from typing import Any

from burnish.kernels.template import Template
from burnish.kernels.vdla.convolution import CONVOLUTION
from burnish.kernels.vdla.product import PRODUCT

TEMPLATES: tuple[Template[Any], ...] = (CONVOLUTION, PRODUCT)
