"""Transposed blocks: right for any number of rows and width of elements, by shuffles within or of whole units."""

from collections.abc import Sequence

import pytest

from burnish.codegen.builder import IRValue
from burnish.codegen.resolve import Resolver
from burnish.codegen.shuffles import UNIT_BYTES, Shuffles
from burnish.loops.expr import ITEM_BYTES


class Recorder(Shuffles):
    """Computes what shuffles give, by the names of their operands."""

    def __init__(self) -> None:
        super().__init__(Resolver(), {})
        self.known: dict[str, list[tuple[int, int]]] = {}
        self.masks: set[tuple[int, ...]] = set()
        self.shuffles = 0

    def shuffle(self, a: IRValue, b: IRValue, lanes: Sequence[int]) -> IRValue:
        both = self.known[a.text] + self.known[b.text]
        self.shuffles += 1
        self.masks.add(tuple(lanes))
        return self.named([both[lane] for lane in lanes], a)

    def fence(self, v: IRValue) -> IRValue:
        return self.named(self.known[v.text], v)

    def named(self, elements: list[tuple[int, int]], like: IRValue) -> IRValue:
        name = self.fresh()
        self.known[name] = elements
        return IRValue(name, like.dtype, like.lanes)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])
def test_columns_of_a_block(dtype: str, n: int) -> None:
    recorder = Recorder()
    rows = [recorder.named([(row, column) for column in range(n)], IRValue("", dtype, n)) for row in range(n)]
    columns = [recorder.known[column.text] for column in recorder.transpose(rows)]
    assert columns == [[(row, column) for row in range(n)] for column in range(n)]
    assert recorder.shuffles == n * (n.bit_length() - 1)


def test_shuffles_stay_within_units_or_move_whole_ones() -> None:
    recorder = Recorder()
    recorder.transpose([recorder.named([(row, c) for c in range(16)], IRValue("", "float32", 16)) for row in range(16)])
    unit = UNIT_BYTES // ITEM_BYTES["float32"]
    for mask in recorder.masks:
        within = all(lane % 16 // unit == place // unit for place, lane in enumerate(mask))
        whole = all(mask[at : at + unit] == tuple(range(mask[at], mask[at] + unit)) for at in range(0, 16, unit))
        assert within != whole
    assert len(recorder.masks) == 6


def test_a_fence_is_for_floats_that_registers_hold() -> None:
    function = Shuffles(Resolver(), {})
    assert function.fence(IRValue("%x", "float32", 16)).text != "%x"
    assert function.declarations == {
        "llvm.arithmetic.fence.v16f32": "declare <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float>)"
    }
    assert function.fence(IRValue("%x", "int8", 16)).text == "%x"
