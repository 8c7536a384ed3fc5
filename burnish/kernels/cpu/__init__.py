"""Templates for CPUs with vector registers; the first that matches a task schedules it."""

from burnish.kernels.cpu.conv import DIRECT_CONV, PLAIN_CONV
from burnish.kernels.cpu.depthwise import DEPTHWISE_CONV, GROUPED_CONV
from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.matmul import MATMUL
from burnish.kernels.cpu.pool import LRN, POOL
from burnish.kernels.cpu.recurrent import RECURRENT
from burnish.kernels.cpu.split import SPLIT_CONV, SPLIT_MATMUL
from burnish.kernels.cpu.transposed import PHASES, PIXEL
from burnish.kernels.cpu.transpose import TRANSPOSE
from burnish.kernels.cpu.winograd import WINOGRAD_CONV
from burnish.kernels.task import Task, Template
from burnish.target import Target

TEMPLATES: tuple[Template, ...] = (
    DEPTHWISE_CONV,
    GROUPED_CONV,
    DIRECT_CONV,
    PLAIN_CONV,
    PHASES,
    PIXEL,
    POOL,
    LRN,
    WINOGRAD_CONV,
    SPLIT_CONV,
    SPLIT_MATMUL,
    MATMUL,
    RECURRENT,
    TRANSPOSE,
    GENERIC,
)


def template_for(task: Task, target: Target) -> Template:
    """The first template that can schedule ``task``; the generic one can schedule everything."""
    return next(t for t in TEMPLATES if t.matches(task, target))
