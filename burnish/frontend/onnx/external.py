"""External data of ONNX tensors: read from files in the model's folder or below it, and from nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from burnish.base.files import open_regular
from burnish.errors import ModelError


@dataclass(frozen=True)
class ExternalData:
    """The files that the tensors of the model file ``model`` may be in; None for a model that is no file."""

    model: Path | None = None

    def read(self, tensor: onnx.TensorProto, nbytes: int, where: str) -> np.ndarray:
        """The ``nbytes`` bytes (uint8) of a tensor. Raises ModelError, naming ``where``.

        They must lie in a file in the model's folder, or below it, wherever links lead; where the model is a link
        itself, as in caches of downloads, in the folder that it leads to, likewise.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self.model is None:
            raise ModelError(
                f"{where}: its data is in the file '{location}', which a model that is no file does not lead to; "
                "pass the path of the model, or load its external data first"
            )
        path = os.path.realpath(self.model.parent / location.replace("\0", ""))
        folders = {os.path.realpath(self.model.parent), os.path.dirname(os.path.realpath(self.model))}
        inside = any(os.path.commonpath([folder, path]) == folder for folder in folders)
        if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts or not inside:
            raise ModelError(f"{where}: external data in {location!r}, allowed: files in or below the model's folder")
        offset, length = (_number(entries, key, where) for key in ("offset", "length"))
        if length is not None and length != nbytes:
            raise ModelError(f"{where}: external data of {length} bytes, allowed: {nbytes}, by its type and dimensions")
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                begin = offset or 0
                if begin + nbytes > size:
                    raise ModelError(f"{where}: bytes {begin} to {begin + nbytes} of '{path}', which has {size}")
                file.seek(begin)
                data = np.empty(nbytes, np.uint8)
                done = 0
                while done < nbytes:
                    count = file.readinto(data[done:].data)  # type: ignore[attr-defined]
                    if not count:
                        raise ModelError(f"{where}: '{path}' was cut off while it was read")
                    done += count
                return data
        except OSError as error:
            raise ModelError(f"{where}: external data cannot be read: {error}") from error


NO_FILES = ExternalData()


def _number(entries: dict[str, str], key: str, where: str) -> int | None:
    """The value of an entry, None if there is none."""
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"{where}: external data has {key} {text[:30]!r}, allowed: an integer from 0")
    return int(text)
