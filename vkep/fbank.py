"""Kaldi's features of speech: logarithms of the energy in bands of the mel scale, as recognizers of icefall and sherpa-onnx read
them.

The definitions are Kaldi's (feature-window.h, mel-computations.h) with frames at the edges mirrored (``snip_edges`` false) and
without dither.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: samples of a window and from one frame to the next, and of a transform, at 16 kHz
RATE, WINDOW, SHIFT, SIZE = 16000, 400, 160, 512
#: of the lowest and the highest band, in hertz
_LOW, _HIGH = 20.0, RATE / 2 - 400
_PREEMPHASIS = 0.97
#: the smallest energy that has a logarithm
_LEAST = float(np.finfo(np.float32).eps)


class OnlineFbank:
    """Features of a sound that comes in parts: float32 [frames, bands], a frame for each 10 ms.

    A frame is there once all of its samples are; after `finish` the last ones mirror the sound's end.
    """

    def __init__(self, bands: int = 80) -> None:
        self._bands = bands
        self._first = 0  # the number in the sound of the first sample that is kept
        self._kept = np.zeros(0, np.float32)
        self._made, self._finished = 0, False

    def accept(self, samples: Array) -> Array:
        """The frames that are new with further ``samples``, float32 [count] of -1 to 1."""
        self._kept = np.concatenate([self._kept, samples.astype(np.float32)])
        return self._new()

    def finish(self) -> Array:
        """The last frames of the sound."""
        self._finished = True
        return self._new()

    def _new(self) -> Array:
        total = self._first + len(self._kept)
        count = (total + SHIFT // 2) // SHIFT
        if not self._finished:
            count = min(count, max((total - _begin(0) - WINDOW) // SHIFT + 1, 0))
        if count <= self._made:
            return np.zeros((0, self._bands), np.float32)
        places = _begin(np.arange(self._made, count))[:, None] + np.arange(WINDOW)
        mirrored = np.where(places < 0, -places - 1, places)
        while (mirrored >= total).any() or (mirrored < 0).any():  # a sound of less than a window
            mirrored = np.where(mirrored >= total, 2 * total - 1 - mirrored, mirrored)
            mirrored = np.where(mirrored < 0, -mirrored - 1, mirrored)
        found = fbank(self._kept[mirrored - self._first], self._bands)
        self._made = count
        dropped = max(int(_begin(count)) - WINDOW - self._first, 0) if not self._finished else 0
        self._kept, self._first = self._kept[dropped:], self._first + dropped
        return found


def _begin(frame: Any) -> Any:
    """The number of a frame's first sample, which may be before the sound."""
    return frame * SHIFT + SHIFT // 2 - WINDOW // 2


def fbank(windows: Array, bands: int = 80) -> Array:
    """Features float32 [frames, bands] of windows [frames, 400] of samples."""
    x = windows.astype(np.float64)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / (WINDOW - 1))
    energy = energies(x - x.mean(1, keepdims=True), hann**0.85, triangles(bands, _LOW, _HIGH))
    return np.log(np.maximum(energy, _LEAST)).astype(np.float32)


def energies(x: Array, shape: Array, weights: Array) -> Array:
    """Energies [frames, bands] of windows float64 [frames, 400] of the ``shape`` [400] after pre-emphasis; ``weights``: of
    `triangles`."""
    x = x - _PREEMPHASIS * np.concatenate([x[:, :1], x[:, :-1]], axis=1)
    power = np.abs(np.fft.rfft(x * shape, SIZE)[:, : SIZE // 2]) ** 2
    found: Array = power @ weights.T
    return found


@functools.cache
def triangles(count: int, low: float, high: float) -> Array:
    """Triangles [count, 256] from ``low`` to ``high`` hertz on the mel scale, of height 1."""

    def mel(hertz: Any) -> Any:
        return 1127 * np.log(1 + hertz / 700)

    edges = np.linspace(mel(low), mel(high), count + 2)
    places = mel(np.arange(SIZE // 2) * RATE / SIZE)
    up = (places - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - places) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down))
