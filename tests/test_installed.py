"""What an installation needs: models are loaded and run with NumPy alone; a wheel works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import burnish as bn
from burnish.loops.sizes import dim
from tests.test_callable import dense, segmented, trees
from tests.test_opaque import block_with_sort

HOME = Path(__file__).parents[1]
NUMPY_ALONE = """
import importlib.abc, sys
import numpy.testing  # which looks for more
ALLOWED = {"numpy", "burnish", *sys.stdlib_module_names}

class Only(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Only())
"""
RUN = """
import sys
from pathlib import Path
import numpy as np, burnish as bn
for path in map(Path, sys.argv[1:]):
    model = bn.load(path)
    given = np.load(path.with_suffix(".npz"))
    x = [given[f"x{i}"] for i in range(len(model.inputs))]
    found = model.run_async(*x).result() if not dict(model.state) else model(*x)
    for i, y in enumerate(found if isinstance(found, tuple) else (found,)):
        np.testing.assert_array_equal(y, given[f"y{i}"])
    assert model.profile(*x, repeat=1)
    print("right:", path.stem, bn.__file__)
"""


def saved(folder: Path) -> list[Path]:
    """Files of models of several kinds, and their inputs and outputs beside them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 8)).astype(np.float32)
    train = bn.Train("mse", bn.Adam(0.1))
    made = {
        "open": (bn.compile(dense(dim("rows", 1, 8)), rewrite=False), [x]),
        "sort": (bn.compile(block_with_sort()), [rng.normal(size=(8, 16)).astype(np.float32)]),
        "training": (bn.compile(dense(), train=train), [x, np.ones((4, 3), np.float32)]),
        "trees": trees(),
    }
    paths = []
    for name, (model, inputs) in made.items():
        model.save(path := folder / f"{name}.bn")
        found = model(*inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        arrays = {f"x{i}": array for i, array in enumerate(inputs)} | {f"y{i}": a for i, a in enumerate(outputs)}
        np.savez(path.with_suffix(".npz"), **arrays)
        paths.append(path)
    return paths


def run(python: str | Path, code: str, *arguments: str | Path, cwd: Path, **environment: str) -> str:
    command = [str(python), "-c", code, *map(str, arguments)]
    given = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "BURNISH"))}
    done = subprocess.run(command, cwd=cwd, env=given | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_are_loaded_and_run_with_numpy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = saved(tmp_path)
    monkeypatch.setattr("burnish.pipeline.native.build", lambda *_: None)  # a step in Python
    bn.compile(block_with_sort()).save(tmp_path / "host.bn")
    shutil.copy(tmp_path / "sort.npz", tmp_path / "host.npz")
    paths.append(tmp_path / "host.bn")
    printed = run(sys.executable, NUMPY_ALONE + RUN, *paths, cwd=tmp_path, PYTHONPATH=str(HOME))
    assert printed.count("right:") == len(paths) == 5


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_needs_the_compiler_says_so(tmp_path: Path) -> None:
    segmented()[0].save(tmp_path / "segments.bn")
    bn.compile(dense(), rewrite=False).save(tmp_path / "dense.bn")
    code = (
        NUMPY_ALONE
        + f"""
import burnish as bn
from burnish.errors import MissingDependencyError
for needing in (lambda: bn.load({str(tmp_path / "segments.bn")!r}), lambda: bn.compile("model.onnx"),
                bn.load({str(tmp_path / "dense.bn")!r}).report):
    try:
        needing()
    except MissingDependencyError as error:
        print(error)
"""
    )
    printed = run(sys.executable, code, cwd=tmp_path, PYTHONPATH=str(HOME))
    assert printed.count("is not installed, but is needed here: pip install") == 3
    assert "for pages about models" in printed and not (tmp_path / "report.html").exists()


def packages_of(python: Path) -> Path:
    return Path(run(python, "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=python.parent).strip())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_wheel_works_without_the_checkout(tmp_path: Path) -> None:
    """In new environments: of NumPy alone, and of the packages that this one has."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(HOME / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.bnlib")
    shutil.copytree(HOME / "burnish", source / "burnish", ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    environment = os.environ | {"BURNISH_AHEAD": "0"}
    subprocess.run([*build, "-w", tmp_path, source], check=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"burnish-{bn.__version__}-py3-none-any.whl"
    shutil.rmtree(source)
    paths, pythons = saved(tmp_path), {}
    own = Path(sysconfig.get_path("purelib"))
    for name in ("runtime", "all"):
        venv.create(tmp_path / name, with_pip=False)
        pythons[name] = python = tmp_path / name / "bin/python"
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*install, wheel], check=True)
        packages = packages_of(python)
        if name == "all":
            (packages / "others.pth").write_text(f"{own}\n")
        else:
            for each in ("numpy", "numpy.libs"):
                if (own / each).exists():
                    (packages / each).symlink_to(own / each)
        printed = run(python, RUN, *paths, cwd=tmp_path)
        assert printed.count("right:") == printed.count(str(packages)) == len(paths)
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (4, 4)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    command = [tmp_path / "all/bin/burnish", "compile", "m.onnx"]
    subprocess.run(command, cwd=tmp_path, check=True)
    code = """
import numpy as np, burnish as bn
x = np.arange(-8, 8, dtype="f4").reshape(4, 4)
np.testing.assert_array_equal(bn.load("m.bn")(x), np.maximum(x, 0))
model = bn.boost.train({"max_depth": 2}, bn.boost.Dataset.of(np.abs(x), label=x[:, 0]), 3)
print(len(bn.compile(bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)}), tune=bn.Tune(trials=2)).outputs))
"""
    assert run(pythons["all"], code, cwd=tmp_path).strip() == "1"
