"""Input features of Whisper: logarithms of the energy in bands of the mel scale (arXiv:2212.04356, section 2.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vkep.errors import InvalidInputError, InvalidModelError
from vkep.generation.folder import Record

Array = np.ndarray[Any, Any]
SETTINGS = "preprocessor_config.json"
_MOST = {
    "sampling_rate": 1 << 18,
    "n_fft": 1 << 14,
    "hop_length": 1 << 14,
    "feature_size": 1 << 10,
    "chunk_length": 600,
}


def log_mel(samples: Array, folder: Path) -> Array:
    """Features float32 [mels, frames] of samples at 16 kHz float32 [count], padded to the model's 30 seconds.

    Sizes are those of the folder's ``preprocessor_config.json``, else Whisper's: 80 bands, windows of 400 samples, one every 160.
    Raises `InvalidInputError` for longer audio, `InvalidModelError` for sizes that no model has.
    """
    given = Record.read(folder, SETTINGS, needed=False)
    sizes = (("sampling_rate", 16000), ("n_fft", 400), ("hop_length", 160), ("feature_size", 80), ("chunk_length", 30))
    rate, size, hop, bands, seconds = (given.number(name, usual, _MOST[name]) for name, usual in sizes)
    if not rate or not size or not hop or not bands:
        raise InvalidModelError(f"{given.where}: a size is 0")
    most = seconds * rate
    if samples.size > most:
        raise InvalidInputError(
            f"{samples.size / rate:.1f} s of audio; the model hears {most / rate:g} s at once: cut it"
        )
    padded = np.pad(samples.astype(np.float64), (0, most - samples.size))
    padded = np.pad(padded, size // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][: most // hop]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    energy = np.abs(np.fft.rfft(frames * window)) ** 2
    logs = np.log10(np.maximum(mel_bands(bands, size, rate) @ energy.T, 1e-10))
    return ((np.maximum(logs, logs.max() - 8) + 4) / 4).astype(np.float32)


def mel_bands(count: int, size: int, rate: int) -> Array:
    """Triangles [count, size / 2 + 1] of equal area on Slaney's mel scale: linear up to 1 kHz, then logarithmic."""
    step = np.log(6.4) / 27

    def mel(hertz: float) -> float:
        return hertz * 3 / 200 if hertz < 1000 else 15 + float(np.log(hertz / 1000)) / step

    places = np.linspace(0, mel(rate / 2), count + 2)
    edges = np.where(places < 15, places * 200 / 3, 1000 * np.exp((places - 15) * step))
    hertz = np.fft.rfftfreq(size, 1 / rate)
    up = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]
