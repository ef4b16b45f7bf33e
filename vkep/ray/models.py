"""How a cluster's nodes get a model: by a path that exists on all of them, or as an object that Ray copies once to each
node."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vkep.cache import code_folder
from vkep.files import file_inside, read_file
from vkep.own_files import is_own_file, write_own
from vkep.ray.devices import assigned_device
from vkep.ray.folders import hold, prune
from vkep.session import InferenceSession

if TYPE_CHECKING:
    import onnx
    import ray

_MODEL = "model.onnx"


@dataclass(frozen=True)
class Shipped:
    """A model's files as an object of Ray's store, which is copied once to each node, where all processes read it in
    place.

    files: bytes by path, relative to the model's folder; the first is the model itself.
    digest: 64 hexadecimal digits for all of them.
    """

    files: Mapping[str, np.ndarray[Any, Any]]
    digest: str

    def path(self) -> Path:
        """The model as a file on this machine, written below vkep's cache folder when the first of its processes needs
        it (``models``). A file keeps plans between processes, and weights are read from it as they are uploaded. The
        files stay until this process ends. Writing a model removes others that no process uses, those not used for
        longest first, until the models have at most `vkep.ray.folders.LIMIT` bytes. Raises ``OSError``.
        """
        folder = code_folder("models", self.digest)
        hold(folder)
        names = list(self.files)
        written = False
        for name in (*names[1:], names[0]):  # the model is written last: where it exists, all files exist
            path, content = folder / name, self.files[name]
            if not _is_written(path, content.nbytes):
                write_own(path, [content.data])
                written = True
        if written:
            prune(folder.parent)
        return folder / names[0]


def _is_written(path: Path, nbytes: int) -> bool:
    """Whether this user's file of this size is there."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return is_own_file(status) and status.st_size == nbytes


if TYPE_CHECKING:
    Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | Shipped | ray.ObjectRef[Shipped]


def ship(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> ray.ObjectRef[Shipped]:
    """Put a model into Ray's object store; `Predictor` and `deployment` accept the result as a model.

    Files with weights beside the model are included. Raises ``FileNotFoundError``; ``ValueError`` for weights outside
    the model's folder, also by links; Ray's errors where the store has no room.
    """
    import ray

    return ray.put(packed(model))


def packed(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> Shipped:
    """What `ship` ships. Raises as `ship`, and ``ValueError`` for weights outside the model's folder."""
    if not isinstance(model, (str, os.PathLike)):
        content = model if isinstance(model, bytes) else model.SerializeToString()
        return _shipped({_MODEL: np.frombuffer(content, np.uint8)})
    path = Path(model)
    files = {path.name: np.frombuffer(read_file(path), np.uint8)}
    for location in sorted(_external_files(path)):
        file = file_inside(path.parent, location, ValueError)
        files[location] = np.frombuffer(read_file(file), np.uint8)
    return _shipped(files)


def _external_files(path: Path) -> set[str]:
    """The files beside a model that hold weights, also those of inner graphs and functions."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    proto = onnx.load(path, load_external_data=False)
    return {ExternalDataInfo(tensor).location for tensor in _get_all_tensors(proto) if uses_external_data(tensor)}


def _shipped(files: Mapping[str, np.ndarray[Any, Any]]) -> Shipped:
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{len(name)} {name} {content.nbytes} ".encode())
        digest.update(content.data)
    return Shipped(files, digest.hexdigest())


def open_session(model: Source, options: Mapping[str, Any]) -> InferenceSession:
    """A session on the device that Ray assigned, unless ``options`` name one. Raises as `vkep.InferenceSession`."""
    mine = dict(options)
    if mine.get("device") is None and (device := assigned_device()) is not None:
        mine["device"] = device  # the token is derived from it: sessions of one process share its context and weights
    return InferenceSession(local(model), **mine)


def local(model: Source) -> str | os.PathLike[str] | bytes | onnx.ModelProto:
    """The model in a form that `vkep.InferenceSession` accepts."""
    if type(model).__name__ == "ObjectRef":  # a `Shipped` exists only where Ray is imported
        import ray

        model = ray.get(model)
    return model.path() if isinstance(model, Shipped) else model
