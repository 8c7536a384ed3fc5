"""Templates for CPUs with vector registers: the first that matches a task schedules it, a tuner tries all that do."""

from collections.abc import Sequence

from burnish.errors import ScheduleError
from burnish.kernels.cpu.conv import DIRECT_CONV, PLAIN_CONV
from burnish.kernels.cpu.depthwise import DEPTHWISE_CONV, GROUPED_CONV
from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.join import JOIN
from burnish.kernels.cpu.matmul import MATMUL
from burnish.kernels.cpu.pack import PACK
from burnish.kernels.cpu.pointwise import POINTWISE_CONV
from burnish.kernels.cpu.polyphase import POLYPHASE_CONV
from burnish.kernels.cpu.pool import LRN, POOL
from burnish.kernels.cpu.recurrent import RECURRENT
from burnish.kernels.cpu.split import SPLIT_CONV, SPLIT_MATMUL
from burnish.kernels.cpu.tiled import TILED
from burnish.kernels.cpu.transpose import TRANSPOSE
from burnish.kernels.cpu.transposed import PHASES, PIXEL
from burnish.kernels.cpu.window_rows import DEPTHWISE_ROWS, POOL_ROWS
from burnish.kernels.cpu.winograd import WINOGRAD_CONV
from burnish.kernels.task import Task, Template
from burnish.target import Target

KIND = "cpu"  # of the targets that these templates schedule for
TEMPLATES: tuple[Template, ...] = (
    DEPTHWISE_CONV,
    GROUPED_CONV,
    POINTWISE_CONV,
    DIRECT_CONV,
    DEPTHWISE_ROWS,
    PLAIN_CONV,
    PHASES,
    PIXEL,
    POOL,
    POOL_ROWS,
    LRN,
    WINOGRAD_CONV,
    POLYPHASE_CONV,
    SPLIT_CONV,
    SPLIT_MATMUL,
    MATMUL,
    RECURRENT,
    TRANSPOSE,
    JOIN,
    PACK,
    GENERIC,
)
TUNABLE: tuple[Template, ...] = (*TEMPLATES, TILED)


def templates_for(task: Task, target: Target) -> list[Template]:
    """The templates that match ``task``, best first; the last is the generic one, which can schedule everything.

    Raises ScheduleError where those of a machine from outside of the package do not match, or it has none.
    """
    return _matching(TEMPLATES, task, target)


def _matching(shipped: Sequence[Template], task: Task, target: Target) -> list[Template]:
    """Those that match among the templates of the target's machine, or the ``shipped`` ones, which are for CPUs."""
    templates = target.machine.templates or shipped
    if templates is shipped and target.kind != KIND:
        raise ScheduleError(f"target '{target.name}' is of kind '{target.kind}', for which there are no templates")
    found = [template for template in templates if template.matches(task, target)]
    if not found:
        names = ", ".join(template.name for template in templates)
        raise ScheduleError(f"task '{task.name}': no template of target '{target.name}' matches; there are {names}")
    return found


def template_for(task: Task, target: Target) -> Template:
    """The first template that matches ``task``."""
    return templates_for(task, target)[0]


def tunable_templates(task: Task, target: Target) -> list[Template]:
    """Those of :func:`templates_for`, and after them the ones that are good only where their knobs are searched."""
    return _matching(TUNABLE, task, target)


def template_called(name: str) -> Template:
    """The template of this name. Raises ScheduleError, naming the known ones."""
    for template in TUNABLE:
        if template.name == name:
            return template
    raise ScheduleError(f"template '{name}' is unknown; known: {', '.join(t.name for t in TUNABLE)}")
