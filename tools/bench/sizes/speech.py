"""Text to speech with random weights, by the code of the packages kokoro and piper-tts.

    pip install --no-deps kokoro piper-tts loguru attrs

Their other requirements read texts.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

Tensor = Any
#: of the smallest networks of these forms
_STYLE, _SYMBOLS = 128, 40
_PITCH = 200  #: Hz
_PHASES = 11  #: magnitudes come before phases


def _bare(package: str) -> Path:
    """Let modules of a package be imported without the package's own module, which imports what reads texts."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    folder = Path(found.origin).parent
    if package not in sys.modules:
        module = types.ModuleType(package)
        module.__path__ = [str(folder)]
        sys.modules[package] = module
    return folder


def kokoro() -> nn.Module:
    """Kokoro's network: ids [1, sequence], a style [1, 256] and a speed to a waveform and the durations."""
    _bare("kokoro")
    models = importlib.import_module("kokoro.model")
    text = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 512}
    config = {
        "vocab": {},
        "n_token": _SYMBOLS,
        "plbert": {**text, "num_hidden_layers": 2, "dropout": 0.1, "attn_implementation": "eager"},
        "hidden_dim": 512,
        "style_dim": _STYLE,
        "n_layer": 2,
        "max_dur": 4,
        "dropout": 0.2,
        "text_encoder_kernel_size": 5,
        "n_mels": 80,
        "istftnet": {
            "resblock_kernel_sizes": [3],
            "upsample_rates": [4, 2],
            "upsample_initial_channel": 512,
            "resblock_dilation_sizes": [[1, 3, 5]],
            "upsample_kernel_sizes": [8, 4],
            "gen_istft_n_fft": 20,
            "gen_istft_hop_size": 5,
        },
    }
    with tempfile.NamedTemporaryFile() as file:
        torch.save({}, file.name)
        inner = models.KModel(repo_id="none", config=config, model=file.name, disable_complex=True)
    with torch.no_grad():
        inner.predictor.F0_proj.bias.fill_(_PITCH)  # else no sound has a voice
        for conv in inner.decoder.generator.noise_convs:  # numbers next to 0 have the phases of their roundings
            conv.weight[:, _PHASES:] = 0
    return models.KModelForONNX(inner)


def piper() -> nn.Module:
    """Piper's network: ids [1, sequence], their number, and the scales of noise, lengths and the durations' noise."""
    _bare("piper")
    models = importlib.import_module("piper.train.vits.models")
    inner = models.SynthesizerTrn(
        n_vocab=_SYMBOLS,
        spec_channels=33,
        segment_size=8,
        inter_channels=32,
        hidden_channels=32,
        filter_channels=64,
        n_heads=2,
        n_layers=2,
        kernel_size=3,
        p_dropout=0.1,
        resblock="2",
        resblock_kernel_sizes=(3, 5),
        resblock_dilation_sizes=((1, 2), (2, 6)),
        upsample_rates=(8, 4),
        upsample_initial_channel=32,
        upsample_kernel_sizes=(16, 8),
    )
    inner.eval()
    with torch.no_grad():
        inner.dec.remove_weight_norm()

    class Voice(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: Tensor, lengths: Tensor, scales: Tensor) -> Tensor:
            noise, length, durations = scales[0], scales[1], scales[2]
            given: Mapping[str, Tensor] = {"noise_scale": noise, "length_scale": length, "noise_scale_w": durations}
            return self.inner.infer(ids, lengths, **given)[0].unsqueeze(1)

    return Voice()
