"""Capture of launches as a graph: a failed one is ended."""

from types import SimpleNamespace

import pytest

from burnish.codegen.gridcode import GridCode
from burnish.errors import TargetError
from burnish.runtime.gpu.driver import Gpu


class _Driver:
    """A driver that allows one capture at a time, as CUDA does."""

    def __init__(self) -> None:
        self.capturing, self.graphs = False, 0

    CUstreamCaptureMode = int

    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:  # noqa: N802
        code, self.capturing = (900 if self.capturing else 0), True
        return (code,)

    def cuStreamEndCapture(self, stream: int) -> tuple[int, str]:  # noqa: N802
        code, self.capturing = (0 if self.capturing else 901), False
        self.graphs += not code
        return code, "graph"

    def cuGraphInstantiate(self, graph: str, flags: int) -> tuple[int, str]:  # noqa: N802
        return 0, "executable"

    def cuGraphDestroy(self, graph: str) -> tuple[int]:  # noqa: N802
        self.graphs -= 1
        return (0,)

    def cuGetErrorString(self, code: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, str(code).encode()


def test_a_failed_capture_is_ended_and_the_next_one_goes() -> None:
    driver = _Driver()
    gpu = object.__new__(Gpu)
    vars(gpu).update(SimpleNamespace(driver=driver, stream=0).__dict__)

    def fails() -> None:
        raise TargetError("cuLaunchKernel: 1")

    with pytest.raises(TargetError, match="cuLaunchKernel"):
        gpu.captured(fails)
    assert (driver.capturing, driver.graphs) == (False, 0)
    assert gpu.captured(lambda: None) == "executable"
    assert (driver.capturing, driver.graphs) == (False, 0)


@pytest.mark.parametrize(
    ("have", "cpu", "runs"),
    [((8, 0), "sm_80", True), ((8, 9), "sm_80", True), ((9, 0), "sm_80", False), ((8, 0), "sm_89", False),
     ((9, 0), "sm_90a", True), ((9, 1), "sm_90a", False), ((10, 0), "sm_90", False)],
)  # fmt: skip
def test_machine_code_is_loaded_where_the_gpu_runs_it_else_ptx(
    have: tuple[int, int], cpu: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, loaded = object.__new__(Gpu), []
    monkeypatch.setattr(gpu, "capability", lambda: have, raising=False)
    monkeypatch.setattr(gpu, "ask", lambda name, *args: loaded.append(args[0]), raising=False)
    gpu.module(GridCode((), (), (), 0, cpu, "ptx", "", b"machine code"))
    assert loaded == [b"machine code" if runs else b"ptx\0"]
