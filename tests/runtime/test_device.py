"""Archives of a device's kernels."""

import pytest

from burnish.runtime.device import archive, unpacked


@pytest.mark.parametrize("kernels", [{}, {"a": b"xyz"}, {"a": b"xyz", "b": b"", "c": b"12"}])
def test_an_archive_gives_back_its_kernels_and_none_where_there_are_none(kernels: dict[str, bytes]) -> None:
    assert unpacked(archive("gpu", kernels)) == kernels
