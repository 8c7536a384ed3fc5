"""Templates for GPUs, best first; each stands in a file of its own with all that it needs."""

from typing import Any

from burnish.kernels.gpu.attention import ATTENTION
from burnish.kernels.gpu.attention_gradient import ATTENTION_GRADIENT
from burnish.kernels.gpu.bundle import BUNDLE
from burnish.kernels.gpu.columns import COLUMNS
from burnish.kernels.gpu.elements import ELEMENTS
from burnish.kernels.gpu.launches import LAUNCHES
from burnish.kernels.gpu.product import PRODUCT
from burnish.kernels.gpu.rows import ROWS
from burnish.kernels.gpu.shared_rows import SHARED_ROWS
from burnish.kernels.gpu.split_product import SPLIT_PRODUCT
from burnish.kernels.gpu.tensor_attention import TENSOR_ATTENTION
from burnish.kernels.gpu.tensor_attention_gradient import TENSOR_ATTENTION_GRADIENT
from burnish.kernels.gpu.tensor_product import TENSOR_PRODUCT
from burnish.kernels.gpu.transformed_product import TRANSFORMED_PRODUCT
from burnish.kernels.gpu.vector_product import VECTOR_PRODUCT
from burnish.kernels.gpu.warpgroup_attention import WARPGROUP_ATTENTION
from burnish.kernels.gpu.warpgroup_product import WARPGROUP_PRODUCT
from burnish.kernels.template import Template

TEMPLATES: tuple[Template[Any], ...] = (
    TENSOR_ATTENTION_GRADIENT,
    ATTENTION_GRADIENT,
    WARPGROUP_ATTENTION,
    TENSOR_ATTENTION,
    ATTENTION,
    SPLIT_PRODUCT,
    WARPGROUP_PRODUCT,
    TENSOR_PRODUCT,
    PRODUCT,
    VECTOR_PRODUCT,
    COLUMNS,
    ROWS,
    SHARED_ROWS,
    ELEMENTS,
    BUNDLE,
    TRANSFORMED_PRODUCT,
    LAUNCHES,
)
