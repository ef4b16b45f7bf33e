"""ONNX Runtime's CPU provider: the reference for correctness, and what a GPU has to beat to be worth it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import onnxruntime

from tools.bench.peers.base import Peer
from tools.models.builder import Array


class OrtCpuPeer(Peer):
    """All cores, default graph optimization."""

    packages = ("onnxruntime",)

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = os.cpu_count() or 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._inputs = dict(inputs)
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(None, self._inputs), strict=True))

    def placement(self) -> str:
        return "all on the CPU"
