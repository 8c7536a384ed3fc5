"""Documents: their snippets of Python run, and their tables name all errors, variables and commands that there are."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

import burnish as bn
from burnish import errors
from tests.marks import slow
from tools.docs import generated
from tools.docs.docstrings import escape
from tools.docs.links import inside

HOME = Path(__file__).parents[1]
DOCS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((HOME / "docs").glob("*.md"))}
SNIPPETS = {name: re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for name, text in DOCS.items()}
FIRST = "getting-started"  # its snippets write the file that others compile

IMPORTS = "import numpy as np\nimport burnish as bn\nrng = np.random.default_rng(0)\n"
IMAGE = (
    IMPORTS
    + """
import onnx
from onnx import TensorProto, helper, numpy_helper
weight = numpy_helper.from_array(rng.normal(size=(8, 3, 3, 3)).astype("f4"), "w")
shapes = {"x": (1, 3, 16, 16), "y": (1, 8, 14, 14)}
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
made = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "resnet18.onnx")
x = rng.normal(size=(1, 3, 16, 16)).astype("f4")
tune, bn.Tune = bn.Tune, lambda seconds: tune(seconds=1.0)  # a reader waits longer
"""
)
NETWORK = (
    IMPORTS
    + """
import burnish.torch
import torch
class Net(torch.nn.Sequential):
    def forward(self, x): return super().forward(x)
net = Net(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
x = torch.randn(32, 64)
"""
)
FIXED = """
import onnx
closed = onnx.load("model.onnx")
for value in (*closed.graph.input, *closed.graph.output):
    value.type.tensor_type.shape.dim[0].dim_value = 32
onnx.save(closed, "model.onnx")
"""
ROWS = """
rows, digits = rng.normal(size=(640, 64)).astype("f4"), rng.integers(0, 10, 640)
np.savez("train.npz", x=rows, label=digits)
np.savez("valid.npz", x=rows[:64], label=digits[:64])
"""
# What a document takes for granted: code before its snippets, and packages without which they do not run.
RUNS: dict[str, tuple[str, list[str]]] = {
    "artifact": ("", []),
    "getting-started": ("", []),
    "troubleshooting": ("", []),
    "c-library": (IMAGE, []),
    "serving": (
        IMAGE + "m = bn.compile('resnet18.onnx', rewrite=False)\n",
        ["starlette", "uvicorn", "prometheus_client"],
    ),
}
SLOW: dict[str, tuple[str, list[str]]] = {
    "tasks": ("", ["torch", "starlette", "uvicorn", "prometheus_client", "scipy"]),
    "using": (IMAGE, []),
    "cpus": (
        IMAGE
        + """
from burnish.machines.target import target
from burnish.simulators.emulator import CpuEmulator, emulated
""",
        ["unicorn"],
    ),
    "pytorch": (NETWORK, ["torch"]),
    "quantization": (
        IMPORTS
        + """
batches = [rng.normal(size=(32, 64)).astype("f4") for _ in range(8)]
""",
        ["scipy"],
    ),
    "training": (
        NETWORK
        + """
x, labels = x.numpy(), rng.integers(0, 10, 32)
from burnish.graph.graph import GraphBuilder
made = GraphBuilder()
x, w = made.input("x", (4, 8)), made.input("w", (8, 2))
graph = made.build(made.add("reduce_mean", made.add("matmul", x, w), axes=(0, 1), name="loss"))
x = torch.randn(32, 64).numpy()
""",
        ["torch"],
    ),
    "trainer": (NETWORK + FIXED + ROWS, ["torch", "scipy"]),
    "arrays": (
        IMPORTS
        + """
batches = [(rng.normal(size=(64, 784)).astype("f4"), rng.integers(0, 10, 64)) for _ in range(3)]
table_file, load, note = "table", lambda file: None, lambda text: None
""",
        [],
    ),
    "boosting": (
        IMPORTS
        + """
table = rng.normal(size=(300, 5))
y = (table[:, 0] > 0).astype(int)
from burnish import boost
new_table, held_out = table[:50], boost.Dataset.of(table[:50], label=y[:50])
import lightgbm
other = lightgbm.train({"verbose": -1}, lightgbm.Dataset(table, y), 3)
other.save_model("model.txt")
""",
        ["lightgbm", "sklearn", "matplotlib"],
    ),
}
# Those that need what no test has: a GPU, boards, other frameworks' graphs, data to be fetched, or names that stand for
# the reader's own. Their syntax is right, and the names of Burnish in them exist.
OUTLINES = ("accelerators", "devices", "gpu", "graph-networks", "parallel-plans")


def run(name: str, before: str, needs: list[str], folder: Path) -> None:
    """Runs the snippets of a document one after the other, as a reader has them, in a process of its own."""
    missing = [each for each in needs if importlib.util.find_spec(each) is None]
    if missing:
        pytest.skip(f"docs/{name}.md needs {', '.join(missing)}")
    script = "\n".join([before, *SNIPPETS[name]])
    (folder / "script.py").write_text(script, encoding="utf-8")
    paths = [str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"docs/{name}.md: {done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a reader works, with the model of the first steps in it."""
    found = tmp_path_factory.mktemp("reader")
    run(FIRST, "", [], found)
    return found


def test_every_document_with_snippets_is_run() -> None:
    assert {name for name, found in SNIPPETS.items() if found} == {*RUNS, *SLOW, *OUTLINES}


@pytest.mark.parametrize(
    "name", slow([name for name in RUNS if name != FIRST], "c-library", "serving", "troubleshooting")
)
def test_snippets_run(name: str, folder: Path, tmp_path: Path) -> None:
    run(name, *RUNS[name], copytree(folder, tmp_path / "own"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_larger_snippets_run(name: str, folder: Path, tmp_path: Path) -> None:
    run(name, *SLOW[name], copytree(folder, tmp_path / "own"))


@pytest.mark.parametrize("name", OUTLINES)
def test_names_in_outlines_exist(name: str) -> None:
    for snippet in SNIPPETS[name]:
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("burnish"):
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
            found = re.fullmatch(r"bn\.([\w.]+)", ast.unparse(node)) if isinstance(node, ast.Attribute) else None
            if found:
                attrgetter(found[1])(bn)


def test_programs_of_c_are_built_by_their_commands(tmp_path: Path) -> None:
    """Whole programs of the document about C libraries, by its own command lines, on a model of any input."""
    text = DOCS["c-library"]
    commands = [line.split("  #")[0] for line in text.split("```\n", 1)[1].split("```")[0].strip().split("\n")]
    assert [command.split()[0] for command in commands] == ["burnish", "cc", "c++"]
    missing = [name for name in ("cc", "c++") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    y = bn.sym.exp(bn.sym.variable("x")) * bn.sym.constant(np.array([0.75, 3, 5], np.float32))
    model = bn.compile(bn.sym.graph(y, {"x": (4, 3)}), rewrite=False, threads=1)
    bn.export_c(model, tmp_path / "net")
    for language, name in (("c", "main.c"), ("cpp", "main.cpp")):
        (program,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        (tmp_path / name).write_text(program, encoding="utf-8")
    for command in commands[1:]:
        subprocess.run(command.split(), cwd=tmp_path, check=True)
        done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
        assert done.stdout == "0.75\n"  # of zeros


def test_all_errors_have_advice() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", DOCS["troubleshooting"], re.MULTILINE)
    kinds = [name for name, kind in vars(errors).items() if inspect.isclass(kind) and name != "BurnishError"]
    assert sorted(listed) == sorted(kinds)


def test_all_variables_of_the_environment_are_listed() -> None:
    read: set[str] = set()
    for path in (*(HOME / "burnish").rglob("*.py"), HOME / "setup.py"):
        read |= set(re.findall(r'"(BURNISH_[A-Z]+)"', path.read_text(encoding="utf-8")))
    assert set(re.findall(r"^\| `(BURNISH_[A-Z]+)` \|", DOCS["environment"], re.MULTILINE)) == read


def test_the_site_has_every_document() -> None:
    index = DOCS["index"]
    listed = {line for block in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL) for line in block.split("\n")}
    assert {name for name in DOCS if name not in ("README", "index")} <= listed


def test_generated_pages_name_all_commands_and_public_names(tmp_path: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in generated.write(tmp_path)}
    commands = [" ".join(words) for words, _ in generated.commands()]
    assert len(commands) > 20 and all(f"## burnish {words}\n" in pages["command-line.md"] for words in commands)
    assert "`--threads`" in pages["command-line.md"]
    assert ":: burnish.compile\n" in pages["python.rst"] and ":: burnish.boost.train\n" in pages["boost.rst"]
    times = [path.stat().st_mtime_ns for path in generated.write(tmp_path)]
    assert times == [path.stat().st_mtime_ns for path in generated.write(tmp_path)]


def test_links_out_of_the_documents_become_pages_or_names_of_files() -> None:
    assert (
        inside("[a](../ARCHITECTURE.md#x) [b](../examples/toy)", "using") == "[a](architecture.md#x) b (`examples/toy`)"
    )
    assert inside("[README](../README.md)", "using") == "[README](index.md)"
    assert inside("see [more](docs/using.md#files), [x](tools/size.py)", "contributing") == (
        "see [more](using.md#files), x (`tools/size.py`)"
    )


def test_docstrings_have_literals_and_no_other_markup() -> None:
    lines = ["By ``rate *", "decay`` of *args and a_ or |x|.", "", ">>> a * b_", "c * d"]
    escape(None, "function", "f", None, None, lines)
    assert lines == ["By ``rate *", r"decay`` of \*args and a\_ or \|x\|.", "", ">>> a * b_", "c * d"]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for needed in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(needed, reason="the site needs burnish[docs]")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html", str(HOME / "docs")]
    done = subprocess.run([*words, str(tmp_path)], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")]
    loaded = [
        found for page in pages for found in re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)', page)
    ]
    assert (tmp_path / "reference/python.html").exists() and loaded == []
