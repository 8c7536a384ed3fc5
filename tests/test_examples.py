"""Every example runs to its end by itself."""

import subprocess
import sys
from pathlib import Path

import pytest

SHORTER = {
    "boost_walkthrough": ["--quick"],
    "train_resnet": ["--epochs", "2"],
}  # arguments of an example's shorter form
HEAVY = {
    "accelerator", "arrays", "boost_walkthrough", "generate", "gnn_budget", "integer_accelerator",
    "schedule_convolution", "torch_compile", "torch_module", "train_resnet",
}  # fmt: skip
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, id=e.stem, marks=[pytest.mark.slow] if e.stem in HEAVY else []) for e in EXAMPLES],
)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, example, *SHORTER.get(example.stem, [])]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
