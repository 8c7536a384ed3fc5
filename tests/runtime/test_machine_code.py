"""Machine code or PTX: what a GPU is given of a kernel."""

from types import SimpleNamespace

import pytest

from burnish.codegen.gridcode import GridCode
from burnish.errors import TargetError
from burnish.runtime.gpu.driver import Gpu

KERNEL = (), (), (), 0


def driven(monkeypatch: pytest.MonkeyPatch, have: tuple[int, int], code: int) -> tuple[Gpu, list[bytes]]:
    """A GPU whose driver answers ``code`` to machine code, and what it was given."""
    gpu, given = object.__new__(Gpu), list[bytes]()

    def load(data: bytes) -> tuple[int, str]:
        given.append(data)
        return (code if data.startswith(b"machine") else 0), "module"

    gpu.driver = SimpleNamespace(
        CUstreamCaptureMode=int, cuThreadExchangeStreamCaptureMode=lambda mode: (0, 0), cuModuleLoadData=load,
        cuGetErrorString=lambda code: (0, f"error {code}".encode()),
    )  # fmt: skip
    monkeypatch.setattr(gpu, "capability", lambda: have, raising=False)
    return gpu, given


@pytest.mark.parametrize(
    ("have", "cpu", "runs"),
    [((8, 0), "sm_80", True), ((8, 9), "sm_80", True), ((9, 0), "sm_80", False), ((8, 0), "sm_89", False),
     ((9, 0), "sm_90a", True), ((9, 1), "sm_90a", False), ((10, 0), "sm_90", False)],
)  # fmt: skip
def test_machine_code_is_loaded_where_the_gpu_runs_it_else_ptx(
    have: tuple[int, int], cpu: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, given = driven(monkeypatch, have, 0)
    gpu.module(GridCode(*KERNEL, cpu, "ptx", "", b"machine code"))
    assert given == [b"machine code" if runs else b"ptx\0"]


def test_ptx_is_loaded_where_machine_code_is_refused_and_nothing_where_loading_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = GridCode(*KERNEL, "sm_80", "ptx", "", b"machine code")
    gpu, given = driven(monkeypatch, (8, 0), 209)
    gpu.module(code)
    assert given == [b"machine code", b"ptx\0"]
    gpu, given = driven(monkeypatch, (8, 0), 2)
    with pytest.raises(TargetError, match="cuModuleLoadData: error 2"):
        gpu.module(code)
    assert given == [b"machine code"]
