"""The programs: a net, its inputs, and the special options of its export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tools.executorch_data import nets

Inputs = tuple[Tensor, ...]

#: which partitioners a variant uses
VARIANTS = ("vulkan", "vgf", "vgf_first", "vulkan_first", "auto", "portable")
DELEGATED = ("vulkan", "vgf", "vgf_first", "vulkan_first")


@dataclass(frozen=True)
class Entry:
    """One model. ``inputs`` are made by method name; ``dynamic`` goes to ``torch.export`` of ``forward``.

    ``quantize``: "" (float), "vulkan" (weights int8), "vulkan_dynamic" (activations too) or "vgf" (static int8).
    ``external``: the constants go to a .ptd file. ``runs``: how often the program is run one after another.
    """

    methods: Callable[[], Mapping[str, nn.Module]]
    inputs: Callable[[], Mapping[str, Inputs]]
    variants: tuple[str, ...] = DELEGATED
    dynamic: Callable[[], Any] | None = None
    more_inputs: Callable[[], tuple[Inputs, ...]] | None = None
    vulkan_options: Mapping[str, Any] = field(default_factory=dict)
    quantize: str = ""
    external: bool = False
    runs: int = 1
    tolerance: float = 1e-4


def _one(net: Callable[[], nn.Module], *shapes: tuple[int, ...], **more: Any) -> Entry:
    return Entry(lambda: {"forward": net()}, lambda: {"forward": tuple(torch.randn(s) for s in shapes)}, **more)


def _rfc_inputs() -> Mapping[str, Inputs]:
    return {"forward": (torch.linspace(-0.8, 0.8, steps=1 * 3 * 8 * 8).reshape(1, 3, 8, 8),)}


def _two_methods() -> Mapping[str, nn.Module]:
    mlp = nets.Mlp()
    return {"forward": mlp, "decode": nets.Decoder(mlp)}


def _batch() -> Any:
    return ({0: torch.export.Dim("batch", min=1, max=8)},)


def _sizes() -> Any:
    return ({2: torch.export.Dim("rows", min=4, max=24), 3: torch.export.Dim("columns", min=4, max=24)},)


SMALL: dict[str, Entry] = {
    "rfc": Entry(lambda: {"forward": nets.UnifiedVgfVulkan()}, _rfc_inputs, (*DELEGATED, "auto", "portable")),
    "cnn_maxpool": _one(nets.CnnMaxPool, (1, 3, 16, 16), variants=(*DELEGATED, "portable")),
    "mobilenet_v2": _one(lambda: nets.MobileNetV2(nets.MobileNetV2.SMALL_ROWS, 8, 32, 10), (1, 3, 32, 32)),
    "resnet18": _one(lambda: nets.ResNet18(3, 10), (1, 3, 32, 32)),
    "transformer_block": _one(nets.TransformerBlock, (1, 8, 32), variants=(*DELEGATED, "portable")),
    "sdpa": _one(nets.SdpaBlock, *[(1, 2, 6, 16)] * 3),
    "lstm_cell": _one(nets.LstmCell, (2, 12), (2, 16), (2, 16), variants=(*DELEGATED, "portable")),
    "upsample_nearest": _one(lambda: nets.Upsample("nearest"), (1, 3, 5, 6)),
    "upsample_bilinear": _one(lambda: nets.Upsample("bilinear"), (1, 3, 5, 6)),
    "group_norm": _one(nets.GroupNormNet, (2, 4, 6, 5), variants=(*DELEGATED, "portable")),
    "embedding": Entry(
        lambda: {"forward": nets.EmbeddingNet()},
        lambda: {"forward": (torch.randint(0, 50, (2, 7)),)},
        (*DELEGATED, "portable"),
    ),
    "many_operators": _one(nets.ManyOperators, (2, 3, 8), (2, 3, 8), variants=(*DELEGATED, "portable")),
    "mlp": _one(nets.Mlp, (4, 24), variants=(*DELEGATED, "portable")),
    "mlp_fp16": _one(
        nets.Mlp,
        (4, 24),
        variants=("vulkan", "vulkan_first"),
        vulkan_options={"force_fp16": True},
        tolerance=1e-2,
    ),
    "mlp_dynamic": _one(
        nets.Mlp,
        (4, 24),
        variants=("vulkan", "vulkan_first", "portable"),
        dynamic=_batch,
        more_inputs=lambda: ((torch.randn(1, 24),), (torch.randn(8, 24),)),
    ),
    "cnn_dynamic": _one(
        lambda: nets.Upsample("nearest"),
        (1, 3, 8, 8),
        variants=("vulkan", "portable"),
        dynamic=_sizes,
        more_inputs=lambda: ((torch.randn(1, 3, 4, 24),), (torch.randn(1, 3, 11, 7),)),
    ),
    "two_methods": Entry(
        _two_methods,
        lambda: {"forward": (torch.randn(2, 24),), "decode": (torch.randn(2, 24), torch.randn(2, 10))},
        (*DELEGATED, "portable"),
    ),
    "external_constants": _one(
        nets.Mlp,
        (4, 24),
        variants=("vulkan", "vulkan_first", "portable"),
        vulkan_options={"external_constants_max_data_bytes": 1 << 20},
        external=True,
    ),
    "channels_last": Entry(
        lambda: {"forward": nets.ChannelsLast()},
        lambda: {"forward": (torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last),)},
        (*DELEGATED, "portable"),
    ),
    "aliases": _one(nets.Aliases, (4, 6), (4, 6), variants=(*DELEGATED, "portable")),
    "zero_sized": _one(nets.ZeroSized, (3, 5), variants=("vulkan", "portable")),
    "counter": _one(
        nets.Counter,
        (4,),
        variants=("vulkan", "vulkan_first", "portable"),
        vulkan_options={"alias_buffer_mutations": True},
        runs=3,
    ),
    "linear_int8_weights": _one(
        lambda: nets.Mlp(32, 48, 12), (4, 32), variants=("vulkan",), quantize="vulkan", tolerance=1e-3
    ),
    "linear_int8_dynamic": _one(
        lambda: nets.Mlp(32, 48, 12), (4, 32), variants=("vulkan",), quantize="vulkan_dynamic", tolerance=1e-2
    ),
    "cnn_int8": _one(nets.CnnMaxPool, (1, 3, 16, 16), variants=("vgf", "vgf_first", "auto"), quantize="vgf"),
}

#: for latency measurements; too large for the repository
FULL: dict[str, Entry] = {
    "mobilenet_v2_full": _one(nets.MobileNetV2, (1, 3, 224, 224)),
    "resnet18_full": _one(nets.ResNet18, (1, 3, 224, 224)),
}
CATALOG = {**SMALL, **FULL}
