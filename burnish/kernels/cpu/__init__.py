"""Templates for CPUs with vector registers, best first; each stands in a file of its own with all that it needs."""

from typing import Any

from burnish.kernels.cpu.aggregate import AGGREGATE, AGGREGATE_BLOCKS
from burnish.kernels.cpu.block_product import BLOCK_PRODUCT
from burnish.kernels.cpu.column_sums import COLUMN_SUMS
from burnish.kernels.cpu.conv import DIRECT_CONV, PLAIN_CONV
from burnish.kernels.cpu.depthwise import DEPTHWISE_CONV, GROUPED_CONV
from burnish.kernels.cpu.few_outputs import FEW_OUTPUTS
from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.inner import INNER
from burnish.kernels.cpu.join import JOIN
from burnish.kernels.cpu.matmul import MATMUL
from burnish.kernels.cpu.pack import PACK
from burnish.kernels.cpu.pointwise import POINTWISE_CONV
from burnish.kernels.cpu.polyphase import POLYPHASE_CONV
from burnish.kernels.cpu.pool import LRN, POOL
from burnish.kernels.cpu.recurrent import RECURRENT
from burnish.kernels.cpu.row_conv import ROW_CONV
from burnish.kernels.cpu.scatter import SCATTER
from burnish.kernels.cpu.split import SPLIT_CONV, SPLIT_MATMUL
from burnish.kernels.cpu.tiled_nests import TILED
from burnish.kernels.cpu.transpose import TRANSPOSE
from burnish.kernels.cpu.transposed import TRANSPOSED_1X1, TRANSPOSED_PHASES
from burnish.kernels.cpu.weight_gradient import WEIGHT_GRADIENT
from burnish.kernels.cpu.window_rows import DEPTHWISE_ROWS, POOL_ROWS
from burnish.kernels.cpu.winograd import WINOGRAD_CONV
from burnish.kernels.cpu.winograd_raw_weight import WINOGRAD_RAW_WEIGHT
from burnish.kernels.template import Template

TEMPLATES: tuple[Template[Any], ...] = (
    DEPTHWISE_CONV,
    GROUPED_CONV,
    FEW_OUTPUTS,
    POINTWISE_CONV,
    ROW_CONV,
    DIRECT_CONV,
    DEPTHWISE_ROWS,
    PLAIN_CONV,
    WEIGHT_GRADIENT,
    TRANSPOSED_PHASES,
    TRANSPOSED_1X1,
    POOL,
    POOL_ROWS,
    LRN,
    WINOGRAD_CONV,
    WINOGRAD_RAW_WEIGHT,
    POLYPHASE_CONV,
    SPLIT_CONV,
    SPLIT_MATMUL,
    BLOCK_PRODUCT,
    INNER,
    MATMUL,
    RECURRENT,
    AGGREGATE_BLOCKS,
    AGGREGATE,
    TRANSPOSE,
    JOIN,
    PACK,
    SCATTER,
    COLUMN_SUMS,
    TILED,
    GENERIC,
)
