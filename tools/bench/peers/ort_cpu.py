"""ONNX Runtime's CPU provider: the reference for correctness, and the speed that a GPU must exceed to be useful."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import onnxruntime

from tools.bench.peers.ort_peer import OrtPeer
from vkep.models.builder import Array


class OrtCpuPeer(OrtPeer):
    """All cores, default graph optimization."""

    packages = ("onnxruntime",)

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = os.cpu_count() or 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._opened(session, inputs)

    def placement(self) -> str:
        return "all on the CPU"
