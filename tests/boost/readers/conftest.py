"""Fixtures of the tests of readers."""

import pytest

from burnish.boost.readers import files


@pytest.fixture(params=[7, pytest.param(64, marks=pytest.mark.slow), files.BLOCK])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sizes of the blocks that text is parsed in."""
    monkeypatch.setattr(files, "BLOCK", request.param)
    return int(request.param)
