"""The engines that can be measured: one small class in its own file each."""

from __future__ import annotations

import importlib

from tools.bench.peers.base import Peer, Unavailable

# name -> module and class; imported only in the worker that measures it.
PEERS: dict[str, str] = {
    "vkep": "tools.bench.peers.vkep_peer:VkepPeer",
    "vkep-ort": "tools.bench.peers.vkep_ort:VkepOrtPeer",
    "ort-cpu": "tools.bench.peers.ort_cpu:OrtCpuPeer",
    "ep-webgpu": "tools.bench.peers.ort_webgpu:OrtWebGpuPeer",
    "ncnn": "tools.bench.peers.ncnn_peer:NcnnPeer",
    "iree": "tools.bench.peers.iree_peer:IreePeer",
    "torch": "tools.bench.peers.torch_peer:TorchEagerPeer",
    "torch-graph": "tools.bench.peers.torch_peer:TorchGraphPeer",
    "torch-device": "tools.bench.peers.torch_peer:TorchDevicePeer",
}
DEFAULT_PEERS = ("vkep", "ort-cpu", "ep-webgpu", "ncnn")


def peer_class(name: str) -> type[Peer]:
    """Import a peer's class by its name.

    Raises:
        ValueError: for a name that is not in PEERS.
        Unavailable: if a package it needs is not installed.
    """
    if name not in PEERS:
        raise ValueError(f"no peer named {name!r}; there are: {', '.join(PEERS)}")
    module, _, attribute = PEERS[name].partition(":")
    try:
        found: type[Peer] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as missing:
        raise Unavailable(f"{missing.name} is not installed") from missing
    return found
