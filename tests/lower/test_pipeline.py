"""The whole lowering, and each of its steps in turn."""

from collections.abc import Callable

from burnish.loops.program import LoopProgram
from burnish.lower.pipeline import PASSES, lower
from burnish.schedule.schedule import Schedule


def test_every_pass_keeps_the_meaning(
    conv: Callable[..., Schedule], tiled: Callable[..., Schedule], same: Callable[[LoopProgram, LoopProgram], None]
) -> None:
    program = original = tiled(conv(5, 7, step=2), 3).program
    for step in PASSES:
        program = step(program)
        same(original, program)
    assert program == lower(original)


def test_the_main_part_of_a_padded_convolution_has_no_condition(
    conv: Callable[..., Schedule], tiled: Callable[..., Schedule]
) -> None:
    """Whole rows are skipped outside the loops over columns; in the middle tiles nothing is left to test."""
    text = str(lower(tiled(conv(6, 8), 2).program))
    main = "".join(text[text.index("for y.v.o~2") :].split("alloc y.register")[:2])
    assert main.count(" if ") == 1, "the row condition"
    assert "if (((y.h + y.register.r) >= 1) and ((y.h + y.register.r) < 7)):" in main
    assert "else" not in main
