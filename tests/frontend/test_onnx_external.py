"""External data, and model files that are none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from burnish.errors import ModelError
from burnish.frontend.onnx import from_onnx
from burnish.frontend.onnx.load import MOST_BYTES

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def write(folder: Path, dtype: int = TensorProto.FLOAT, dims: tuple[int, ...] = (2, 3), **entries: str) -> Path:
    """A model ``y = w`` or, as an attribute of a node, ``y = Constant(w)``, whose tensor has these entries."""
    tensor = TensorProto(name="w", data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    y = helper.make_tensor_value_info("y", dtype, dims)
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [y], [tensor])
    onnx.save(_model(graph), folder / "initializer.onnx")
    graph = helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "g", [], [y])
    onnx.save(_model(graph), folder / "attribute.onnx")
    return folder


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def constants(folder: Path) -> list[np.ndarray]:
    """What initializer and attribute hold."""
    found = []
    for name in ("initializer.onnx", "attribute.onnx"):
        (value,) = from_onnx(folder / name).constants.values()
        found.append(value)
    return found


def refused(folder: Path, message: str) -> None:
    for name in ("initializer.onnx", "attribute.onnx"):
        with pytest.raises(ModelError, match=message):
            from_onnx(folder / name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64", "bool"])
def test_every_type_from_any_offset(tmp_path: Path, dtype: str) -> None:
    number = {"float32": 1, "bfloat16": 16, "int8": 3, "float64": 11, "bool": 9}[dtype]
    kind = helper.tensor_dtype_to_np_dtype(number)
    data = (W % 2 if dtype == "bool" else W).astype(kind)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "w.bin").write_bytes(b"12345" + data.tobytes() + b"rest")
    write(tmp_path, number, location="below/w.bin", offset="5", length=str(data.nbytes))
    assert all(v.dtype == kind and np.array_equal(v, data) for v in constants(tmp_path))


def test_without_offset_and_length_and_for_no_elements(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    assert all(np.array_equal(v, W) for v in constants(write(tmp_path, location="w.bin")))
    assert all(v.shape == (0, 3) for v in constants(write(tmp_path, dims=(0, 3), location="w.bin")))


def test_nothing_is_read_from_outside_the_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "model2").mkdir()
    (tmp_path / "model2" / "w.bin").write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to("../secret.bin")
    (folder / "up").symlink_to("..")
    monkeypatch.chdir(tmp_path)  # a location is not relative to the working directory
    for location in (
        "../secret.bin", "link.bin", "up/secret.bin", str(tmp_path / "secret.bin"), "x/../../secret.bin", "",
        "../model2/w.bin", "../model/../secret.bin", "/proc/self/environ", "sec\0ret.bin", "..", "/",
    ):  # fmt: skip
        refused(write(folder, location=location), "allowed: files in or below the model's folder")
    refused(write(folder, location="secret.bin"), "No such file")


def test_a_model_that_is_a_link_finds_its_data_beside_what_it_links_to(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    write(blobs, location="w.bin")
    (blobs / "data").write_bytes(W.tobytes())
    for name in ("initializer.onnx", "attribute.onnx"):
        (snapshot / name).symlink_to(f"../blobs/{name}")
    (snapshot / "w.bin").symlink_to("../blobs/data")
    assert all(np.array_equal(v, W) for v in constants(snapshot))


@pytest.mark.parametrize(
    ("entries", "dims", "message"),
    [
        ({"offset": "-4"}, (2, 3), "external data has offset '-4'"),
        ({"offset": "x"}, (2, 3), "external data has offset 'x'"),
        ({"offset": "1" * 30}, (2, 3), "external data has offset"),
        ({"length": "24.0"}, (2, 3), "external data has length"),
        ({"length": "20"}, (2, 3), "of 20 bytes, allowed: 24"),
        ({"offset": "1"}, (2, 3), "bytes 1 to 25 of .*, which has 24"),
        ({"offset": str(2**62)}, (2, 3), "which has 24"),
        ({}, (7,), "bytes 0 to 28 of .*, which has 24"),
        ({}, (2**40, 2**40), "which has 24"),
        ({}, (-1, 3), "allowed: none below 0"),
        ({}, (-2, -3), "allowed: none below 0"),
    ],
)
def test_impossible_places_are_refused(tmp_path: Path, entries: dict, dims: tuple[int, ...], message: str) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    refused(write(tmp_path, dims=dims, location="w.bin", **entries), message)


def test_data_that_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    for location in ("fifo", "loop", "folder", "absent"):
        refused(write(tmp_path, location=location), "external data cannot be read")


def test_a_model_that_is_no_file_has_no_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    path = write(tmp_path, location="w.bin") / "initializer.onnx"
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(ModelError, match=r"'w': its data is in the file 'w\.bin'.*pass the path of the model"):
            from_onnx(source)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    whole = write(tmp_path, location="w.bin") / "initializer.onnx"
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    data, path = whole.read_bytes(), tmp_path / "other.onnx"
    for content in (b"", b"\0", b"PK\3\4", b"{}", b"<html>", b"\x80\x04.", b"BURNISH\n" + bytes(99)):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"model file '.*other\.onnx'"):
            from_onnx(path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        try:
            from_onnx(path)
        except ModelError:
            continue
        assert length > len(data) - 8  # what follows the graph: the opset
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for wrong in (tmp_path, tmp_path / "fifo", tmp_path / "loop", "/dev/zero", tmp_path / "absent", f"{tmp_path}/a\0b"):
        with pytest.raises(ModelError, match="cannot be read"):
            from_onnx(wrong)
    with open(tmp_path / "large.onnx", "wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ModelError, match=r"2147483648 bytes, allowed: up to 2147483647.*external data"):
        from_onnx(tmp_path / "large.onnx")
