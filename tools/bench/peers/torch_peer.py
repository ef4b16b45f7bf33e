"""PyTorch: node by node (eager), as a replayed CUDA graph, and that without the copies to and from the host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import torch

from tools.bench.peers.base import Peer, Unavailable
from tools.bench.peers.torch_ops import TorchGraph
from vkep.models.builder import Array


class TorchEagerPeer(Peer):
    """Eager calls, float32 without TF32; on the GPU where torch has one, else on the CPU."""

    packages = ("torch",)

    @torch.inference_mode()
    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self._graph = TorchGraph(onnx.load(model), self._device)
        self._host = {name: torch.from_numpy(value) for name, value in inputs.items()}

    @torch.inference_mode()
    def run(self) -> dict[str, Array]:
        results = self._graph({name: value.to(self._device) for name, value in self._host.items()})
        return {name: value.cpu().numpy() for name, value in zip(self._graph.outputs, results, strict=True)}

    def placement(self) -> str:
        name = torch.cuda.get_device_name() if self._device == "cuda" else "the CPU"
        return f"all on {name}, {self.how}"

    how = "eager"


class TorchGraphPeer(TorchEagerPeer):
    """The eager calls captured once as a CUDA graph, with copies to and from fixed buffers around each replay."""

    how = "CUDA graph"

    @torch.inference_mode()
    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        if not torch.cuda.is_available():
            raise Unavailable("torch has no CUDA device here")
        super().open(model, inputs)
        self._fixed = {name: value.to("cuda") for name, value in self._host.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries must initialize outside the capture
            for _ in range(3):
                self._graph(self._fixed)
        torch.cuda.current_stream().wait_stream(side)
        self._captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._captured):
            self._results = self._graph(self._fixed)

    @torch.inference_mode()
    def run(self) -> dict[str, Array]:
        for name, value in self._host.items():
            self._fixed[name].copy_(value)
        self._captured.replay()
        return {name: value.cpu().numpy() for name, value in zip(self._graph.outputs, self._results, strict=True)}


class TorchDevicePeer(TorchGraphPeer):
    """The replay alone, with data on the device: a lower limit for the time of the kernels."""

    how = "CUDA graph, data on the device"

    def repeat(self) -> None:
        self._captured.replay()
        torch.cuda.synchronize()
